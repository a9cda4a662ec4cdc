"""`text("New York", ignore_case=True)`: a text, however it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unicodedata import category, normalize

from agentest.scenarios.matchers.comparison import Equal, Matcher
from agentest.scenarios.matchers.showing import shown

_UNSEEN = str.maketrans("", "", "\u200b\u2060\ufeff")
"""White space without any width, which `str.split` does not know."""
FLAGS = ("ignore_case", "ignore_space", "ignore_punctuation")
"""What may make no difference."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Text(Matcher):
    """A text that is equal to `value`, but for letter case, white space and punctuation where asked."""

    value: str
    ignore_case: bool = False
    ignore_space: bool = False
    ignore_punctuation: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.value, str):
            raise ValueError(f"text(…) expects a text, found {shown(self.value)}{_instead(self.value)}")
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                found = shown(getattr(self, name))
                raise ValueError(f"text(…): {name} is True or False, found {found}")

    def holds(self, actual: Any, equal: Equal) -> bool:
        del equal
        return isinstance(actual, str) and self.plain(actual) == self.plain(self.value)

    def is_in(self, text: str) -> bool:
        """Whether the value is a part of a longer text.

        A value of nothing but what makes no difference would be a part of any: it is looked for as it is.
        """
        plain = self.plain(self.value)
        return plain in self.plain(text) if plain else self.value in text

    def plain(self, text: str) -> str:
        """A text without what makes no difference."""
        if self.ignore_punctuation:
            text = "".join(sign for sign in text if not category(sign).startswith("P"))
        if self.ignore_space:
            text = "".join(text.translate(_UNSEEN).split())
        return normalize("NFC", normalize("NFD", text).casefold()) if self.ignore_case else text

    def __repr__(self) -> str:
        flags = "".join(f", {name}=True" for name in FLAGS if getattr(self, name))
        return f"text({self.value!r}{flags})"


def _instead(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"; for a number write number({value!r})"
    return ""


def text(
    value: str, *, ignore_case: bool = False, ignore_space: bool = False, ignore_punctuation: bool = False
) -> Matcher:
    """A text that is equal to `value`. Raises ValueError for anything but a text.

    Args:
        ignore_case: `Paris` equals `PARIS`, `straße` equals `STRASSE`.
        ignore_space: white space makes no difference at all: `New York` equals `NewYork`.
        ignore_punctuation: no punctuation makes a difference: `April 1, 2024` equals `April 1 2024`. That is
            what Unicode calls so: `. , - _ ' " / ( )`, but no currency and no sign of arithmetic.
    """
    return Text(value, ignore_case, ignore_space, ignore_punctuation)
