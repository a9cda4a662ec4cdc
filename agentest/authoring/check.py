"""One thing that was looked at, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Mark(Enum):
    """What came of it."""

    GOOD = "good"
    BAD = "bad"
    """A run would not begin, or would be errored for it."""
    OPEN = "open"
    """It was not looked at, or cannot be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of what the doctor says."""

    mark: Mark
    name: str
    """What was looked at, in one or two words."""
    text: str
    """What was found."""
    advice: str = ""
    """What to do next, in rows; "" where there is nothing to do."""


Tell = Callable[[Check], None]
"""Receives each check as soon as it is made."""


def good(name: str, text: str, advice: str = "") -> Check:
    return Check(mark=Mark.GOOD, name=name, text=text, advice=advice)


def bad(name: str, text: str, advice: str = "") -> Check:
    return Check(mark=Mark.BAD, name=name, text=text, advice=advice)


def left_open(name: str, text: str, advice: str = "") -> Check:
    return Check(mark=Mark.OPEN, name=name, text=text, advice=advice)
