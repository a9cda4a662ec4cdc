"""How fast a run goes, and how long the rest of it takes if it goes on like this."""

from __future__ import annotations

from collections.abc import Sequence

_ENOUGH = 10
"""Judgings before their rate counts: of the first few nobody knows how many more end in the same moment."""
_NO_JUDGING_S = 0.05
"""What takes no longer has asked no model."""


class Pace:
    """How long conversations took so far, talking and being judged; seconds of any clock."""

    def __init__(self) -> None:
        self._talks = 0
        self._talked_s = 0.0
        self._finished = 0
        self._judgings = 0
        self._judged_s = 0.0
        self._being_judged = 0
        self._since = 0.0
        self._busy_s = 0.0

    def talked(self, seconds: float, now: float) -> None:
        """A conversation has been held, and is judged from now on."""
        self._talks += 1
        self._talked_s += seconds
        if not self._being_judged:
            self._since = now
        self._being_judged += 1

    def judged(self, seconds: float, now: float) -> None:
        """A conversation is judged."""
        self._finished += 1
        self._being_judged -= 1
        self._judged_s += seconds
        self._judgings += seconds > _NO_JUDGING_S
        if not self._being_judged:
            self._busy_s += now - self._since

    def left_s(
        self, elapsed_s: float, ages_s: Sequence[float], judging_s: Sequence[float], unbegun: int, now: float
    ) -> float | None:
        """How long the rest takes if it goes on like this; None before any conversation has ended.

        Not the settings, but what was seen says how much goes on at once: agents may stand in a line, and
        judges may be the narrow place, behind which conversations wait longer and longer.

        Args:
            ages_s: for how long those have been talking that still do.
            judging_s: the same of those that are being judged.
            unbegun: how many conversations have not begun.
        """
        if not self._talks or elapsed_s <= 0:
            return None
        talking = self._talking_s(elapsed_s, ages_s, unbegun)
        mean = self._judged_s / self._finished if self._finished else 0.0
        youngest = 0.0 if unbegun or ages_s else min(judging_s, default=mean)
        to_come = unbegun + len(ages_s)
        return max(talking + max(0.0, mean - youngest), self._queue_s(len(judging_s), to_come, now))

    def _talking_s(self, elapsed_s: float, ages_s: Sequence[float], unbegun: int) -> float:
        mean = self._talked_s / self._talks
        at_once = max(1.0, (self._talked_s + sum(ages_s)) / elapsed_s)
        rests = [max(0.0, mean - age) for age in ages_s]
        longest = mean if unbegun else max(rests, default=0.0)
        return max((sum(rests) + unbegun * mean) / at_once, longest)

    def _queue_s(self, judging: int, to_come: int, now: float) -> float:
        """How long the judges take for all that is left, at the rate at which they have worked."""
        if self._judgings < _ENOUGH:
            return 0.0
        busy_s = self._busy_s + (now - self._since if self._being_judged else 0.0)
        left = judging + to_come * self._judgings / self._finished
        return left * busy_s / self._judgings
