"""A word that was written as data: `{text: "hi"}`, where Python writes `text("hi")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentest.scenarios.matchers.comparison import Equal, Matcher, equal, is_same, may_be_absent
from agentest.scenarios.matchers.showing import shown


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Form(Matcher):
    """What a dict of data stands for, or that dict itself: an argument can be `{"text": "hi"}`, too."""

    word: Any
    """A matcher, a compiled pattern or, of `{exactly: …}`, the value as it is."""
    literal: Mapping[str, Any]

    def holds(self, actual: Any, equal: Equal) -> bool:
        is_itself = isinstance(actual, Mapping) and equal(self.literal, actual)
        return is_itself or equal(self.word, actual)

    @property
    def inner(self) -> tuple[Any, ...]:
        return (self.word,)

    @property
    def may_be_absent(self) -> bool:
        return may_be_absent(self.word)

    def parts(self, actual: Any) -> list[tuple[str, Any, Any]] | None:
        return [("", self.word, actual)]

    def says_same(self, other: Any) -> bool:
        if isinstance(other, Form):
            return is_same(self.word, other.word)
        return is_same(self.word, other) or is_same(self.literal, other)

    def __eq__(self, other: object) -> bool:
        return is_same(self, other) or (not isinstance(other, Matcher) and equal(self, other))

    def __hash__(self) -> int:
        try:
            return hash(self.word)
        except TypeError:  # a value as it is, which may be a dict
            return 0

    def __repr__(self) -> str:
        return shown(self.word)
