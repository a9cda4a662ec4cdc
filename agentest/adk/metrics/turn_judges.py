"""The graders that ask a judge about one turn after another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence

from agentest.adk.metrics.base import CriterionGrader
from agentest.adk.metrics.sampling import Panel, concurrently, no_model
from agentest.domain.results import MetricResult, Skipped
from agentest.domain.transcript import Conversation, Turn
from agentest.judging.grading import Graded
from agentest.models.port import CallKey, Model


async def each_turn(turns: Sequence[Turn], score: Callable[[Turn], Awaitable[MetricResult | None]]) -> Graded:
    """The scores of all turns, asked for at once; a turn whose score is None is left out."""
    results = zip(turns, await concurrently(score, turns), strict=True)
    return Graded({turn.turn_index: result for turn, result in results if result is not None})


class TurnJudge(CriterionGrader):
    """Asks the same of every turn of a conversation."""

    __slots__ = ()

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> Graded:
        skipped = self._skipped(conversation)
        if skipped or model is None:
            return Graded(whole=skipped or no_model(self.criterion))
        panel = Panel.of(self.criterion, model, key)

        async def score(turn: Turn) -> MetricResult | None:
            return await self._score(turn, conversation, panel)

        graded = await each_turn(conversation.turns, score)
        return graded if graded.turns else Graded(whole=self._no_turn())

    @abstractmethod
    async def _score(self, turn: Turn, conversation: Conversation, panel: Panel) -> MetricResult | None:
        """The turn's score; None where there is nothing to judge."""

    def _skipped(self, conversation: Conversation) -> Skipped | None:  # noqa: ARG002 - for those that look at it
        """Why the conversation cannot be judged, whatever the judge; None where it can be."""
        return None

    def _no_turn(self) -> Skipped | None:
        """Why no turn has a score."""
        return None
