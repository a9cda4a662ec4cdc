"""ADK's efficiency metrics: what a turn cost. They are numbers for information, and less is better."""

from __future__ import annotations

from abc import abstractmethod

from agentest.adk.metrics.base import CriterionGrader
from agentest.domain.results import Score, Skipped
from agentest.domain.transcript import Conversation, Turn
from agentest.judging.grading import Graded
from agentest.models.port import CallKey, Model


class _Amount(CriterionGrader):
    """A number for every turn that has one; what is not known is left out, never 0."""

    __slots__ = ()

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> Graded:  # noqa: ARG002 - the protocol asks
        """The amount of each turn. No model is asked."""
        found = {turn.turn_index: self._amount(turn) for turn in conversation.turns}
        turns = {
            index: Score(amount, f"{self._unit()}: {amount:.6g}")
            for index, amount in found.items()
            if amount is not None
        }
        return Graded(turns, None if turns else Skipped(self._unknown()))

    @abstractmethod
    def _amount(self, turn: Turn) -> float | None:
        """The turn's amount; None where it is not known."""

    @abstractmethod
    def _unit(self) -> str:
        """What is counted."""

    def _unknown(self) -> str:
        """Why no turn has an amount."""
        return "the conversation has no turn"


class ToolCallCount(_Amount):
    """`tool_call_count_v1`: tool calls a turn."""

    __slots__ = ()

    def _amount(self, turn: Turn) -> float:
        return float(len(turn.tool_calls))

    def _unit(self) -> str:
        return "tool calls"


class InferenceCallCount(_Amount):
    """`inference_call_count_v1`: calls of the agent to its model a turn, where it tells them."""

    __slots__ = ()

    def _amount(self, turn: Turn) -> float | None:
        return None if turn.model_calls is None else float(turn.model_calls)

    def _unit(self) -> str:
        return "model calls"

    def _unknown(self) -> str:
        return "the agent does not tell how often it asks its model"


class TokenUsage(_Amount):
    """`token_usage_v1`: tokens a turn, as the agent reports them."""

    __slots__ = ()

    def _amount(self, turn: Turn) -> float | None:
        return float(turn.usage.total_tokens) or None

    def _unit(self) -> str:
        return "tokens"

    def _unknown(self) -> str:
        return "the agent reports no tokens"


class InvocationDuration(_Amount):
    """`invocation_duration_v1`: seconds a turn for which the agent was waited for."""

    __slots__ = ()

    def _amount(self, turn: Turn) -> float:
        return turn.latency_ms / 1000

    def _unit(self) -> str:
        return "seconds"
