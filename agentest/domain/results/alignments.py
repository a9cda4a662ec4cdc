"""How the calls that were made stand beside the calls that a trajectory expects."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RowStatus(StrEnum):
    """What is to say of an expected call, a call that was made, or the two side by side."""

    MATCHED = "matched"
    FREE = "free"
    """Allowed besides what is expected; within a set of allowed calls also one of them that was not made."""
    DIFFERENT = "different"
    """A call of the same tool that is not as expected stands where the expected one is missing."""
    MISSING = "missing"
    EXTRA = "extra"
    """Not expected, or one more than a limit allows: then `difference` names the limit."""
    FORBIDDEN = "forbidden"
    OUT_OF_ORDER = "out_of_order"
    """As expected, but not at this place."""
    UNKNOWN = "unknown"
    """It could not be told; `difference` says why."""

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong with it."""
        return self in (RowStatus.MATCHED, RowStatus.FREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedRow:
    """An expected call, a call that was made, or one beside the other."""

    expected: str | None
    """The expected call as text; None: nothing was expected for this call."""
    call: int | None
    """Which of the calls that the trajectory looked at, from 0; None: it was not made."""
    status: RowStatus
    difference: str = ""
    """What is not as expected, in words."""
