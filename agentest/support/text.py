"""Format text for readers: shortened texts, counts, durations, data blocks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar
from unicodedata import normalize

from agentest.support.terminal import clean

_Name = TypeVar("_Name", bound=str)
_SHOWN_CHARS = 150
SENTENCE_END = re.compile(
    r"(?:(?<=[.!?])|(?<=[.!?][*_])|(?<=[.!?]\*\*))\s+|\n+|(?<=[。！？])(?![”」』）])\s*"
)


def is_same_text(text: str, other: str) -> bool:
    """Return True if texts are equal, in whatever normal form of Unicode each is written."""
    return text == other or (not text.isascii() and normalize("NFC", text) == normalize("NFC", other))


def has_part(text: str, part: str) -> bool:
    """Return True if a text has a part, in whatever normal form of Unicode each is written."""
    return part in text or (not part.isascii() and normalize("NFC", part) in normalize("NFC", text))


def on_one_line(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())


def shortened(text: str, limit: int = _SHOWN_CHARS) -> str:
    """Return the text in one row of at most `limit` characters."""
    one_row = clean(on_one_line(text[: limit * 20]))
    return one_row if len(one_row) <= limit else one_row[: limit - 1].rstrip() + "…"


def cut_middle(text: str, limit: int, tail: float = 0.5) -> str:
    """Return the text in at most `limit` characters: its beginning, and `tail` of the room for its end."""
    if len(text) <= limit:
        return text
    end = min(max(1, int(limit * tail)), limit - 1)
    return f"{text[: limit - 1 - end].rstrip()}…{text[len(text) - end :].lstrip()}"


def cut_name(name: str, limit: int, shown: dict[str, str]) -> str:
    """Return a name that is cut in the middle, or whole if another one of those shown looks the same."""
    cut = cut_middle(name, limit)
    return cut if shown.setdefault(cut, name) == name else name


def sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text that are not blank."""
    return [each for each in SENTENCE_END.split(text) if each.strip()]


def is_in(text: str, other: str) -> bool:
    """Return True if the other text has the same letters and digits, at least one, in the same order."""
    short, long = (re.sub(r"\W+", "", each) for each in (text, other))
    return bool(short) and short in long


def count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def turn_name(index: int) -> str:
    """Name a turn for people, who count from 1; `turnIndex` in data counts from 0."""
    return f"turn {index + 1}"


def duration(ms: float) -> str:
    if ms < 999.5:
        return f"{ms:.0f} ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    return f"{minutes} min {seconds:02d} s"


def about(seconds: float) -> str:
    """Format an estimated time with suitable precision: "40 s", "3 min", "1 h 20 min"."""
    if seconds < 57.5:
        return f"{max(5, round(seconds / 5) * 5)} s" if seconds >= 10 else f"{max(1, round(seconds))} s"
    minutes = max(1, round(seconds / 60))
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {rest:02d} min" if rest else f"{hours} h"


def escaped(text: str) -> str:
    """Escape a text for the inside of a data block."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def data_block(name: str, inside: str, turn: int | None = None) -> str:
    """Return a data block; models count turns from 1. `turn`: an index. `inside` is already escaped."""
    at = "" if turn is None else f' turn="{turn + 1}"'
    return f'<data name="{name}"{at}>\n{inside}\n</data>'


def cut(text: str, limit: int) -> str:
    """Escape a text, and keep only the beginning and the end of a long one.

    The omission mark is a tag, which nothing else in a block can contain.
    """
    if len(text) <= limit:
        return escaped(text)
    end = limit // 3
    left_out = f'<left_out characters="{len(text) - limit}" why="length; it was whole in the conversation"/>'
    return f"{escaped(text[: limit - end])} {left_out} {escaped(text[len(text) - end :])}"


_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def snake_case(key: str) -> str:
    """Convert `matchMode` to `match_mode` and `baseURL` to `base_url`. Snake-case keys stay as they are."""
    return _HUMP.sub("_", key).lower()


def snake_keys(mapping: Mapping[Any, Any], valid: Iterable[str]) -> dict[Any, Any]:
    """Rename keys that are valid in another spelling. Other keys stay as they are.

    Raises ValueError if a key is given in both spellings.
    """
    names = frozenset(valid)
    renamed: dict[Any, Any] = {}
    for key, value in mapping.items():
        name = snake_case(key) if isinstance(key, str) and key not in names else key
        name = name if name in names else key
        if name in renamed:
            raise ValueError(f"`{name}` is given twice, in both spellings")
        renamed[name] = value
    return renamed


def valid_keys(mapping: Mapping[Any, Any], valid: Collection[str]) -> dict[str, Any]:
    """Rename keys as `snake_keys` does. Raises ValueError also for an unknown key."""
    keys = snake_keys(mapping, valid)
    for key in keys:
        if key not in valid:
            raise ValueError(f"unknown key {key!r}; {did_you_mean(str(key), valid)}")
    return keys


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the most similar valid name; None if none is similar."""
    matches = difflib.get_close_matches(snake_case(name), list(valid), n=1, cutoff=0.5)
    return matches[0] if matches else None


def nearest_part(text: str, names: Iterable[str]) -> str | None:
    """Return the name with the part most similar to this text; None if none is similar.

    Parts are sequences of as many words as the text has, and the whole name. Letter case is ignored.
    """
    parts: dict[str, str] = {}
    for name in names:
        words = re.findall(r"[^\W_]+", name.casefold())
        count = max(1, len(re.findall(r"[^\W_]+", text)))
        for start in range(max(1, len(words) - count + 1)):
            parts.setdefault(" ".join(words[start : start + count]), name)
        parts.setdefault(name.casefold(), name)
    close = difflib.get_close_matches(text.casefold(), parts, n=1, cutoff=0.6)
    return parts[close[0]] if close else None


def first_names(names: Sequence[str], most: int) -> str:
    """List the first names, and count the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def quoted_names(names: Iterable[str], most: int = 3) -> str:
    """Quote names, each once; of many, list the first ones and count the others."""
    return first_names(list(map(repr, dict.fromkeys(names))), most)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return a sentence for an error message with the most similar valid name, or all of them."""
    names = sorted(valid)
    close = nearest(name, names)
    if close:
        return f"did you mean `{close}`?"
    return "valid are: " + ", ".join(f"`{n}`" for n in names)


def meanings(name: Callable[[str], _Name], text: str) -> Mapping[_Name, str]:
    """Read lines of the form `name: meaning`."""
    lines = (line.partition(": ") for line in text.splitlines())
    return MappingProxyType({name(each): meaning for each, _, meaning in lines})
