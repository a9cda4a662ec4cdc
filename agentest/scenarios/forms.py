"""Words as data: `{optional: 10}` where Python writes `optional(10)`.

A dict that has the form of a word may have been meant as itself: an argument can be `{"text": "hi"}`. So
it is equal to both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.support.spelling import snake_case

CALL_WORDS = ("any_of", "exactly", "before", "never_after", "regex")


def word_in(value: Mapping[Any, Any]) -> str | None:
    """The word of calls that a dict is the form of; None where it is none."""
    names = [snake_case(name) for name in value if isinstance(name, str)]
    word = next((name for name in names if name in CALL_WORDS), None)
    return word if word and (len(value) == 1 or word == "regex") else None


def check_value(value: Any, key: str, *, of_key: bool = True) -> None:
    """Raise ValueError where an expected value can never be compared as it was meant."""


def from_data(value: Any, *, of_key: bool = True, is_word: bool = True) -> Any:
    """A value with the words that stand in it as data."""
    return value
