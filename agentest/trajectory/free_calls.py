"""Which calls are free: reads, and with `ignore_failed` those that were answered with an error.

A call that waits for approval has not run, so it meets no expectation. In a turn it is free: it belongs to
the turn in which it is decided. Bans see it all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import WAITS_FOR_APPROVAL, ToolCall, failed
from agentest.scenarios.names import name_matches, name_text
from agentest.scenarios.trajectory import Trajectory
from agentest.support.patterns import PatternTimeout
from agentest.trajectory.known import NOTHING, Known
from agentest.trajectory.matches import RESULT_UNTOLD, result_untold


def failure_untold(call: ToolCall) -> str:
    """Why it is not known whether a call failed."""
    return f"ignore_failed: {call.name}: {RESULT_UNTOLD}"


class FreeCalls:
    """Which calls are free, and why."""

    def __init__(self, spec: Trajectory, calls: Sequence[ToolCall], *, of_turn: bool = False) -> None:
        """`of_turn`: whether they are the calls of one turn."""
        self.whys: dict[int, str] = {}
        """Call → why it is free, or may be."""
        reads = failures = waiting = NOTHING
        told = spec.reads or spec.ignore_failed or any(call.approval for call in calls)
        for at, call in enumerate(calls if told else ()):
            if call.approval is Approval.PENDING:
                waiting = waiting.answered(at, True)
                if of_turn:
                    self.whys[at] = f"free: {WAITS_FOR_APPROVAL}"
                continue
            reads = reads.answered(at, self._reads(spec, at, call))
            if spec.ignore_failed:
                failures = failures.answered(at, self._failed(at, call))
        self.failed = Known(failures.yes | waiting.yes, failures.maybe)
        yes = reads.yes | failures.yes | (waiting.yes if of_turn else 0)
        self.known = Known(yes, (reads.maybe | failures.maybe) & ~yes)

    def _reads(self, spec: Trajectory, at: int, call: ToolCall) -> bool | None:
        for name in spec.reads:
            try:
                if name_matches(name, call.name):
                    self.whys[at] = f"free: a read ({name_text(name)})"
                    return True
            except PatternTimeout as error:
                self.whys[at] = f"reads: {error}"
                return None
        return False

    def _failed(self, at: int, call: ToolCall) -> bool | None:
        if failed(call):
            self.whys[at] = "free: answered with an error"
            return True
        if result_untold(call):
            self.whys.setdefault(at, failure_untold(call))
            return None
        return False
