"""A number that was measured on a sample: with how many observations, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """An average or a rate with its 95 % interval.

    `low` and `high` are both None where the observations do not tell how sure the value is.
    """

    value: float
    n: int
    """How many observations the value is the mean of: turns, or conversations."""
    low: float | None = None
    high: float | None = None
