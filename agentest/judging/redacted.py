"""Judging what was stored without secrets: what hangs on the hidden text is not known, and so no pass.

While a conversation is run, checks see what was really said. A turn that is `redacted` comes from a stored
run (`agentest judge`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agentest.domain.results import CheckResult, TrajectoryResult
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ARGUMENTS_UNTOLD, ToolCall, Turn, UnfinishedTurn
from agentest.support.json_text import safe_repr
from agentest.support.redact import HIDDEN
from agentest.support.replacing import replace

_OF_TIME = frozenset({"max_latency_ms", "max_first_token_ms"})
"""Checks that no text decides."""


def hidden_in(turns: Iterable[Turn | UnfinishedTurn | None]) -> str | None:
    """Why texts of these turns cannot be judged; None: they are as they were said."""
    hidden = [str(turn.turn_index) for turn in turns if turn and turn.redacted]
    if not hidden:
        return None
    which = f"turn{'s' if len(hidden) > 1 else ''} {', '.join(hidden)}"
    return f"secrets were hidden in {which} when the conversation was stored; run the scenario again"


def undecided_checks(why: str | None, checks: tuple[CheckResult, ...]) -> tuple[CheckResult, ...]:
    """The checks; those of hidden text are not decided, whether they hold of what is left or not."""
    if why is None:
        return checks
    return tuple(
        check
        if check.check in _OF_TIME
        else replace(check, passed=False, summary=f"cannot be judged: {why}", error=why)
        for check in checks
    )


def known_parts(why: str | None, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
    """The calls; arguments and results with hidden parts are not told."""
    return calls if why is None else tuple(map(_known_parts, calls))


def _known_parts(call: ToolCall) -> ToolCall:
    if isinstance(call.args, Mapping) and HIDDEN in safe_repr(call.args):
        call = replace(call, args=None, invalid_arguments=ARGUMENTS_UNTOLD)
    if HIDDEN in safe_repr(call.result):
        call = replace(call, result=None, error=None, mocked=False, seen_by=SeenBy.AGENT)
    return call


def undecided_trajectory(
    why: str | None, calls: Sequence[ToolCall], result: TrajectoryResult | None
) -> TrajectoryResult | None:
    """The result of `known_parts`; not decided where it hangs on something hidden."""
    if why is None or result is None:
        return result
    untold = result.error is not None or any(HIDDEN in call.name for call in calls)
    return replace(result, matched=False, summary=why, error=why) if untold else result
