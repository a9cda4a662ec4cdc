"""What is true of which calls, and of which of them nobody knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """Of which calls something is true, and of which that is not known, as bits."""

    yes: int = 0
    maybe: int = 0

    @property
    def at_most(self) -> int:
        return self.yes | self.maybe

    def surely(self, sure: bool) -> int:
        """The calls of which it is surely true; else those of which it may be."""
        return self.yes if sure else self.at_most

    def answered(self, at: int, answer: bool | None) -> Known:
        """With the answer for one more call; None: it is not known."""
        if answer is False:
            return self
        return Known(self.yes | 1 << at, self.maybe) if answer else Known(self.yes, self.maybe | 1 << at)

    def without(self, other: Known) -> Known:
        """What is true of it where the other is not."""
        yes = self.yes & ~other.at_most
        return Known(yes, self.at_most & ~other.yes & ~yes)

    def both(self, other: Known) -> Known:
        """Where both are true."""
        yes = self.yes & other.yes
        return Known(yes, self.at_most & other.at_most & ~yes)


NOTHING = Known()
