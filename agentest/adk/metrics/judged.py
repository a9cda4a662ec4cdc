"""The metrics of an evaluation set that a judge decides, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median_low

from agentest.adk.formats.criteria import Criterion
from agentest.adk.formats.model import EvalCase
from agentest.adk.metrics.base import CriterionGrader
from agentest.adk.metrics.hallucinations import HallucinationsV1
from agentest.adk.metrics.prompts import RESPONSE_QUALITY, match_question
from agentest.adk.metrics.rubrics import RubricQuality
from agentest.adk.metrics.safety import Safety
from agentest.adk.metrics.sampling import Panel, Sampled, no_model, voted
from agentest.adk.metrics.turn_judges import TurnJudge, each_turn
from agentest.adk.metrics.turns import NO_REFERENCE, SIMULATED, reference_of, reply_messages, reply_of
from agentest.adk.metrics.user_quality import UserSimulatorQuality
from agentest.adk.metrics.whole import (
    RubricTrajectory,
    TaskSuccess,
    ToolUseQuality,
    TrajectoryQuality,
)
from agentest.domain.metrics import ADK_METRICS, one_for_each
from agentest.domain.results import MetricResult, Score, Skipped, Unscored
from agentest.domain.transcript import Conversation, Turn
from agentest.judging.answers import BinaryAnswer, ScaleAnswer
from agentest.judging.grading import Graded, Grader
from agentest.models.port import CallKey, Model


class ResponseEvaluation(TurnJudge):
    """`response_evaluation_score`: coherence and quality of the reply, 1 to 5; the median of samples."""

    __slots__ = ()

    async def _score(self, turn: Turn, conversation: Conversation, panel: Panel) -> MetricResult:
        messages = reply_messages(self.case, self.criterion, conversation, turn, RESPONSE_QUALITY, self.facts)
        return _median(await panel.ask(messages, ScaleAnswer, turn.turn_index), panel.samples)


class FinalResponseMatch(TurnJudge):
    """`final_response_match_v2`: 1 for a reply that is valid compared with the reference, else 0."""

    __slots__ = ()

    def _skipped(self, conversation: Conversation) -> Skipped | None:
        return _not_compared(self.case, self.criterion, conversation)

    async def _score(self, turn: Turn, conversation: Conversation, panel: Panel) -> MetricResult | None:
        reference = reference_of(self.case, turn.turn_index, self.criterion)
        if reference is None:
            return None
        return await _matched(self, turn, conversation, reference, panel)


class ReferenceAnswerMatch(CriterionGrader):
    """`reference_answer_match`: 1 for a reply that holds the reference, or that a judge finds valid by it.

    Upper and lower case and white space do not count. Without a model, a turn whose reply does not hold the
    reference is skipped: whether it says the same in other words is not known.
    """

    __slots__ = ()

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> Graded:
        skipped = _not_compared(self.case, self.criterion, conversation)
        if skipped:
            return Graded(whole=skipped)
        panel = Panel.of(self.criterion, model, key) if model else None

        async def score(turn: Turn) -> MetricResult | None:
            reference = reference_of(self.case, turn.turn_index, self.criterion)
            if reference is None:
                return None
            if _plain(reference) in _plain(reply_of(turn, self.criterion)):
                return Score(1, "the reply contains the reference")
            if panel is None:
                return no_model(self.criterion)
            return await _matched(self, turn, conversation, reference, panel)

        return await each_turn(conversation.turns, score)


JUDGED: Mapping[str, Callable[..., Grader]] = one_for_each(
    (metric for metric in ADK_METRICS.values() if metric.judged),
    {
        "response_evaluation_score": ResponseEvaluation,
        "final_response_match_v2": FinalResponseMatch,
        "rubric_based_final_response_quality_v1": RubricQuality,
        "rubric_based_tool_use_quality_v1": RubricQuality,
        "hallucinations_v1": HallucinationsV1,
        "safety_v1": Safety,
        "multi_turn_task_success_v1": TaskSuccess,
        "multi_turn_trajectory_quality_v1": TrajectoryQuality,
        "multi_turn_tool_use_quality_v1": ToolUseQuality,
        "rubric_based_multi_turn_trajectory_quality_v1": RubricTrajectory,
        "per_turn_user_simulator_quality_v1": UserSimulatorQuality,
        "reference_answer_match": ReferenceAnswerMatch,
    },
)
"""Metric → its grader, made of a case, a criterion, and the `facts` that are known of the agent."""


async def _matched(
    grader: CriterionGrader, turn: Turn, conversation: Conversation, reference: str, panel: Panel
) -> MetricResult:
    question = match_question(reference)
    messages = reply_messages(grader.case, grader.criterion, conversation, turn, question, grader.facts)
    return voted(await panel.ask(messages, BinaryAnswer, turn.turn_index), panel.samples)


def _not_compared(case: EvalCase, criterion: Criterion, conversation: Conversation) -> Skipped | None:
    """Why no turn can be compared with a reference, if none can."""
    if case.conversation is None:
        return SIMULATED
    compared = any(reference_of(case, turn.turn_index, criterion) for turn in conversation.turns)
    return None if compared else NO_REFERENCE


def _median(sampled: Sampled[ScaleAnswer], asked: int) -> Score | Unscored:
    if not sampled.answers:
        return Unscored(sampled.problem)
    values = [answer.value for answer in sampled.answers]
    value = median_low(values)
    reason = next(answer.reason for answer in sampled.answers if answer.value == value)
    return Score(value, reason, tuple(values) if asked > 1 else ())


def _plain(text: str) -> str:
    """The text by which two are compared: case and white space do not count."""
    return " ".join(text.casefold().split())
