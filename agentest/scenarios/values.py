"""The values of simple options. What is none raises ValueError, which names the option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.matchers.showing import brief
from agentest.repeat import EXCLUDES, Repeat, parse_repeat


def checked_text(value: Any, key: str) -> str:
    """A text, be it empty."""
    if not isinstance(value, str):
        raise ValueError(f"{key}: expected a text, found {brief(value)}")
    return value


def needed_text(value: Any, key: str) -> str:
    """A text that says something."""
    if not checked_text(value, key).strip():
        raise ValueError(f"{key}: is empty")
    return str(value)


def positive(value: Any, key: str) -> int | None:
    """A whole number of at least 1; None: the option was not given."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key}: expected a whole number of at least 1, found {brief(value)}")
    return value


def yes_or_no(value: Any, key: str) -> bool | None:
    """A truth value; None: the option was not given."""
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key}: expected True or False, found {brief(value)}")
    return value


def repeat_of(options: Mapping[str, Any]) -> Repeat | None:
    """What the options say of `repeat`, which no fixed number of conversations may stand beside."""
    try:
        repeat = parse_repeat(options.get("repeat"))
    except ValueError as error:
        raise ValueError(f"repeat: {error}") from None
    if repeat and options.get("conversations_per_scenario") is not None:
        raise ValueError(EXCLUDES)
    return repeat
