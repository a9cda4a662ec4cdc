"""Graders of evaluation set metrics that a judge decides turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median_low

from agentest.adk.formats.criteria import MetricCriterion
from agentest.adk.formats.eval_set import ConversationScenario, EvalCase
from agentest.adk.formats.personas import persona_violations
from agentest.adk.metrics.grader import CriterionGrader
from agentest.adk.metrics.hallucinations import HallucinationsV1
from agentest.adk.metrics.multi_turn import (
    RubricTrajectory,
    TaskSuccess,
    ToolUseQuality,
    TrajectoryQuality,
)
from agentest.adk.metrics.prompts import RESPONSE_QUALITY, match_question, user_messages
from agentest.adk.metrics.rubrics import RubricQuality
from agentest.adk.metrics.safety import Safety
from agentest.adk.metrics.turn_judge import (
    NO_REFERENCE,
    SIMULATED,
    JudgePanel,
    Sampled,
    TurnJudge,
    concurrently,
    each_turn,
    no_model,
    reference_of,
    reply_messages,
    reply_of,
    voted,
)
from agentest.domain.metrics import ADK_METRICS, require_entry_for_each
from agentest.domain.results import MetricResult, Score, Skipped, Unscored
from agentest.domain.transcript import Conversation, Turn
from agentest.judging.answers import BinaryAnswer, ScaleAnswer
from agentest.judging.grader import Grader, GraderResult
from agentest.models.port import CallKey, Message, Model

WRITTEN = Skipped(
    "the case's conversation is written out, so no user is simulated; "
    "hold sets for simulated users alone to this metric"
)


class UserSimulatorQuality(CriterionGrader):
    """1 or 0 for every message of the user.

    The first message must be the case's starting prompt; the others are judged by plan and persona. A last
    question asks whether the stop signal would now be right. If not, or if no judge can tell, its result
    replaces that of the last turn. As in google-adk, it is asked however the conversation ended.
    """

    __slots__ = ()

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> GraderResult:
        scenario = self.case.conversation_scenario
        if scenario is None or model is None:
            return GraderResult(whole=WRITTEN if scenario is None else no_model(self.criterion))
        turns = conversation.turns
        panel = JudgePanel.of(self.criterion, model, key)
        said = [*(turn.user_message for turn in turns), self.criterion.stop_signal]

        async def judged(at: int) -> MetricResult:
            if at == 0:
                return _opening(said[0], scenario)
            messages = self._messages(scenario, turns[:at], said[at])
            return voted(await panel.ask(messages, BinaryAnswer, at), panel.samples)

        *results, stop = await concurrently(judged, range(len(said)))
        if results:
            results[-1] = _last_result(results[-1], stop)
        return GraderResult({turn.turn_index: result for turn, result in zip(turns, results, strict=True)})

    def _messages(self, scenario: ConversationScenario, before: Sequence[Turn], said: str) -> list[Message]:
        persona, signal = scenario.user_persona, self.criterion.stop_signal
        return user_messages(
            scenario.conversation_plan,
            persona.description if persona else "",
            persona_violations(persona, signal) if persona else "",
            before,
            said,
            signal,
        )


def _opening(said: str, scenario: ConversationScenario) -> Score:
    if said.strip() == scenario.starting_prompt.strip():
        return Score(1, "the first message is the starting prompt")
    return Score(0, f"the first message is not the starting prompt {scenario.starting_prompt!r}")


def _last_result(result: MetricResult, stop: MetricResult) -> MetricResult:
    if isinstance(stop, Score) and stop.value == 0:
        return Score(0, f"the conversation's end is not right: {stop.reason}", stop.samples)
    failed = isinstance(result, Score) and result.value == 0
    if isinstance(stop, Unscored) and not failed:
        return Unscored(f"whether the conversation's end is right: {stop.error}")
    return result


class ResponseEvaluation(TurnJudge):
    """`response_evaluation_score`: coherence and quality of the reply, 1 to 5; the median of samples."""

    __slots__ = ()

    async def _score(self, turn: Turn, conversation: Conversation, panel: JudgePanel) -> MetricResult:
        messages = reply_messages(self.case, self.criterion, conversation, turn, RESPONSE_QUALITY, self.facts)
        return _median(await panel.ask(messages, ScaleAnswer, turn.turn_index), panel.samples)


class FinalResponseMatch(TurnJudge):
    """`final_response_match_v2`: 1 for a reply that is valid compared with the reference, else 0."""

    __slots__ = ()

    def _skipped(self, conversation: Conversation) -> Skipped | None:
        return _not_compared(self.case, self.criterion, conversation)

    async def _score(self, turn: Turn, conversation: Conversation, panel: JudgePanel) -> MetricResult | None:
        reference = reference_of(self.case, turn.turn_index, self.criterion)
        if reference is None:
            return None
        return await _matched(self, turn, conversation, reference, panel)


class ReferenceAnswerMatch(CriterionGrader):
    """`reference_answer_match`: 1 for a reply that contains the reference, or that a judge finds equivalent.

    Letter case and white space do not count. Without a model, a turn whose reply does not contain the
    reference is skipped, because the reply may say the same in other words.
    """

    __slots__ = ()

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> GraderResult:
        skipped = _not_compared(self.case, self.criterion, conversation)
        if skipped:
            return GraderResult(whole=skipped)
        panel = JudgePanel.of(self.criterion, model, key) if model else None

        async def score(turn: Turn) -> MetricResult | None:
            reference = reference_of(self.case, turn.turn_index, self.criterion)
            if reference is None:
                return None
            if _normalized(reference) in _normalized(reply_of(turn, self.criterion)):
                return Score(1, "the reply contains the reference")
            if panel is None:
                return no_model(self.criterion)
            return await _matched(self, turn, conversation, reference, panel)

        return await each_turn(conversation.turns, score)


JUDGED: Mapping[str, Callable[..., Grader]] = require_entry_for_each(
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
"""Metric → its grader, constructed from a case, a criterion, and `facts` about the agent."""


async def _matched(
    grader: CriterionGrader, turn: Turn, conversation: Conversation, reference: str, panel: JudgePanel
) -> MetricResult:
    question = match_question(reference)
    messages = reply_messages(grader.case, grader.criterion, conversation, turn, question, grader.facts)
    return voted(await panel.ask(messages, BinaryAnswer, turn.turn_index), panel.samples)


def _not_compared(case: EvalCase, criterion: MetricCriterion, conversation: Conversation) -> Skipped | None:
    """Return why no turn can be compared with a reference; None if one can."""
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


def _normalized(text: str) -> str:
    """Normalize letter case and white space for comparison."""
    return " ".join(text.casefold().split())
