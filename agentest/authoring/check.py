"""A check of the doctor and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class CheckOutcome(Enum):
    """The outcome of a check."""

    GOOD = "good"
    BAD = "bad"
    """A run would not start, or would be errored."""
    OPEN = "open"
    """The check was skipped or is inconclusive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the doctor's output."""

    mark: CheckOutcome
    name: str
    """The subject, in one or two words."""
    text: str
    """The finding."""
    advice: str = ""
    """The next step, in rows; "" if there is nothing to do."""


Tell = Callable[[Check], None]
"""Receives each check as soon as it is complete."""


def good(name: str, text: str, advice: str = "") -> Check:
    return Check(mark=CheckOutcome.GOOD, name=name, text=text, advice=advice)


def bad(name: str, text: str, advice: str = "") -> Check:
    return Check(mark=CheckOutcome.BAD, name=name, text=text, advice=advice)


def left_open(name: str, text: str, advice: str = "") -> Check:
    return Check(mark=CheckOutcome.OPEN, name=name, text=text, advice=advice)
