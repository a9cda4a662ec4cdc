"""The values of simple options. What is none raises ValueError, which names the option."""

from __future__ import annotations

from typing import Any


def checked_text(value: Any, key: str) -> str:
    """A text, be it empty."""
    if not isinstance(value, str):
        raise ValueError(f"{key}: expected a text, found {value!r}")
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
        raise ValueError(f"{key}: expected a whole number of at least 1, found {value!r}")
    return value


def yes_or_no(value: Any, key: str) -> bool | None:
    """A truth value; None: the option was not given."""
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key}: expected True or False, found {value!r}")
    return value
