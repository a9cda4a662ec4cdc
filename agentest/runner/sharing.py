"""What kept conversations have in common is kept once: a scenario may have a hundred thousand of them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeVar

from agentest.domain.results import ConversationResult, TurnEvaluation
from agentest.domain.transcript import ToolCall, Turn, Usage, besides_values
from agentest.support.replacing import replace

_MOST = 10_000
"""Parts that are known at a time: where they differ, nothing is gained by knowing them."""
_NONE_USED = Usage()
_T = TypeVar("_T", bound=object)


class Sharing:
    """Puts one part in place of all equal ones, in conversations without texts (`run.totals.slimmed`)."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def shared(self, result: ConversationResult) -> ConversationResult:
        """The same result."""
        conversation = result.conversation
        turns = tuple(map(self._turn, conversation.turns))
        evaluations = tuple(map(self._evaluation, result.turns))
        return replace(result, conversation=replace(conversation, turns=turns), turns=evaluations)

    def _turn(self, turn: Turn) -> Turn:
        calls = self._calls(turn.tool_calls)
        usage = _NONE_USED if turn.usage == _NONE_USED else turn.usage
        return replace(turn, tool_calls=calls, usage=usage, started_at=self._one(turn.started_at))

    def _calls(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        if any(call.args or call.result is not None for call in calls):
            return calls
        key = tuple((type(call.args), besides_values(call)) for call in calls)
        return self._one(calls, key)

    def _evaluation(self, evaluation: TurnEvaluation) -> TurnEvaluation:
        if evaluation.judged_ms is not None or evaluation != TurnEvaluation(evaluation.turn_index):
            return evaluation
        return self._one(evaluation, (TurnEvaluation, evaluation.turn_index))

    def _one(self, part: _T, key: Hashable | None = None) -> _T:
        """The part of all that have this key; the part itself is it, unless another is told."""
        if len(self._known) >= _MOST:
            self._known.clear()
        found: _T = self._known.setdefault(part if key is None else key, part)
        return found
