"""Evaluate the turns and conversations of a scenario step by step: checks, custom metrics and grades.

`judgement` selects the questions for judges, and `evaluation` fixes the order of all steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

from agentest.config.models import Batch, RequestedModel
from agentest.domain.metrics import ABOUT_CALLS
from agentest.domain.results import CheckResult, MetricResult, TrajectoryResult, TurnEvaluation, Unscored
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ARGUMENTS_UNKNOWN, Blame, Conversation, ToolCall, Turn, UnfinishedTurn
from agentest.judging.judgement import ScenarioJudge
from agentest.models.port import CallKey, Model
from agentest.scenarios.expectations import Expect
from agentest.scenarios.trajectory import Trajectory
from agentest.support.calling import run_concurrently
from agentest.support.json_text import safe_repr
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.redaction import HIDDEN
from agentest.support.text import turn_name

if TYPE_CHECKING:
    from agentest.judging.custom_metrics import ConversationInput, Metric, ScoreInput
    from agentest.judging.grader import Grader, GraderResult


_CHECKS_OF_TIME = frozenset({"max_latency_ms", "max_first_token_ms"})  # checks that do not depend on text


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioEvaluator(ScenarioJudge):
    """Evaluates the conversations of a scenario. It stores no state of any conversation."""

    custom: Sequence[Metric] = ()
    graders: Sequence[Grader] = ()
    named: Mapping[RequestedModel, Model] = field(default_factory=dict)
    unstreamed: str = "it does not stream its replies"
    """Reason to report if the time to the first token is unknown."""
    credited: Collection[str] = ()  # trajectory metrics that thresholds name; others are not measured
    information: Collection[str] = ()
    """Metrics whose scores decide nothing: if one cannot be scored, the result is skipped."""
    idle_user: str | None = None
    """Why the simulated user could not use its tools; None: it could, or has none."""
    skip_decided: bool = False  # True to skip judges for a conversation that has failed without them

    @property
    def judges_at_end(self) -> bool:
        """True if judges are called only after a conversation has ended."""
        return self.judge is not None and (self.skip_decided or self.judge.batch is Batch.CONVERSATION)

    async def checked_turn(self, turns: Sequence[Turn]) -> TurnEvaluation:
        """Check the last of the turns against its script."""
        turn = turns[-1]
        script = self.scenario.turns
        if turn.turn_index >= len(script):  # the simulated user writes it
            return TurnEvaluation(turn.turn_index)
        scripted = script[turn.turn_index]
        blind = self.agent.visibility.hidden(turn, turns) if scripted.trajectory else None
        return TurnEvaluation(
            turn_index=turn.turn_index,
            trajectory=await self._matched(
                scripted.trajectory,
                [turn],
                (*turn.tool_calls, *turn.asked_calls),
                blind=blind,
                listed=self.agent.visibility.listed_if(blind),
                of_turn=True,
            )
            if scripted.trajectory
            else None,
            checks=await self._checks(scripted.expect, turns) if scripted.expect else (),
            reference=scripted.reference,
        )

    async def custom_of_turn(self, turns: Sequence[Turn], number: int) -> dict[str, MetricResult]:
        """Return the custom metrics of the last of the turns."""
        from agentest.judging.custom_metrics import ConversationMetric, ScoreInput

        metrics = [metric for metric in self.custom if not isinstance(metric, ConversationMetric)]
        turn = turns[-1]
        key = CallKey("judge", self.scope, number, turn.turn_index)
        turn_input = ScoreInput(
            goal=self.scenario.goal,
            profile=self.scenario.profile,
            knowledge=self.scenario.knowledge,
            user_message=turn.user_message,
            agent_message=turn.agent_message,
            tool_calls=turn.tool_calls,
            history=tuple(turns[:-1]),
            turn_index=turn.turn_index,
        )
        return await self._custom_results(metrics, turn_input, turns, key)

    async def custom_of_conversation(
        self, conversation: Conversation, number: int
    ) -> dict[str, MetricResult]:
        """Return the custom metrics of the conversation as a whole."""
        from agentest.judging.custom_metrics import ConversationInput, ConversationMetric

        if conversation.failure or not conversation.turns:
            return {}
        metrics = [metric for metric in self.custom if isinstance(metric, ConversationMetric)]
        key = CallKey("judge", self.scope, number)
        conversation_input = ConversationInput(
            goal=self.scenario.goal,
            profile=self.scenario.profile,
            knowledge=self.scenario.knowledge,
            turns=conversation.turns,
        )
        return await self._custom_results(metrics, conversation_input, conversation.turns, key)

    async def _custom_results(
        self,
        metrics: Sequence[Metric],
        data: ScoreInput | ConversationInput,
        turns: Sequence[Turn],
        key: CallKey,
    ) -> dict[str, MetricResult]:
        from agentest.judging.custom_metrics import evaluate_metric

        if why := why_redacted(turns):
            return {metric.name: Unscored(why) for metric in metrics}
        model = self.judge.model if self.judge else None
        keys = [replace(key, metric=metric.name) for metric in metrics]
        results = await run_concurrently(
            [partial(evaluate_metric, m, data, model, k) for m, k in zip(metrics, keys, strict=True)]
        )
        return {
            metric.name: replace(result, error=self.redact(result.error))
            if isinstance(result, Unscored)
            else result
            for metric, result in zip(metrics, results, strict=True)
        }

    async def grade(self, conversation: Conversation, number: int) -> Mapping[str, GraderResult]:
        """Return the scores by the graders of an evaluation set's case. Never raises."""
        if not self.graders or conversation.failure or not conversation.turns:
            return {}
        from agentest.judging.grader import GraderResult, graded

        blind = self.agent.visibility.hidden(conversation)
        redacted = why_redacted(conversation.turns)

        async def grade(grader: Grader) -> GraderResult:
            needs_calls = grader.name in ABOUT_CALLS or conversation.call_refused
            if why := (needs_calls and blind) or redacted:
                return GraderResult(conversation=Unscored(why))
            key = CallKey("judge", self.scope, number, metric=grader.name)
            named = self.named.get(grader.judge) if grader.judge else None
            model = named or (self.judge.model if self.judge else None)
            return await graded(grader, conversation, model, key, self.redact)

        grades = await run_concurrently([partial(grade, grader) for grader in self.graders])
        return {grader.name: grade for grader, grade in zip(self.graders, grades, strict=True)}

    async def trajectory(self, conversation: Conversation) -> TrajectoryResult | None:
        """Match the calls of the whole conversation against the scenario's trajectory."""
        if conversation.shortened or not self.scenario.trajectory:
            return None
        failure, blind = conversation.failure, self.agent.visibility.hidden(conversation)
        return await self._matched(
            self.scenario.trajectory,
            conversation.started_turns,
            conversation.tool_calls,
            complete=failure is None or failure.blame is Blame.AGENT,
            blind=blind,
            listed=self.agent.visibility.listed_if(blind),
        )

    async def _matched(
        self,
        trajectories: Sequence[Trajectory],
        turns: Sequence[Turn | UnfinishedTurn],
        calls: Sequence[ToolCall],
        **view: Any,
    ) -> TrajectoryResult | None:
        from agentest.trajectory.call_facts import CallView
        from agentest.trajectory.matcher import match_all_trajectories

        why = why_redacted(turns)
        known = calls if why is None else tuple(map(_known_parts_of_call, calls))
        result = await match_all_trajectories(trajectories, known, len(turns), CallView(**view))
        if why is None or result is None:
            return result
        is_unknown = result.error is not None or any(HIDDEN in call.name for call in calls)
        return replace(result, matched=False, summary=why, error=why) if is_unknown else result

    async def final_state(self, conversation: Conversation) -> tuple[CheckResult, ...]:
        """Check the session's state after the last turn against the scenario's expectation."""
        expected = self.scenario.final_session_state
        if expected is None or conversation.failure or conversation.shortened or not conversation.turns:
            return ()
        from agentest.judging.conversation_checks import check_session_state

        last = conversation.turns[-1]
        checks = await check_session_state("final_session_state", expected, last, self.agent.visibility.agent)
        return _undecided_if(last.call_refused, undecided_checks(why_redacted([last]), checks))

    async def check_conversation(self, conversation: Conversation) -> tuple[CheckResult, ...]:
        """Check the whole conversation: `expect`, the mocks' final state, `check`, and what `is_guarded`."""
        scenario = self.scenario
        checked = scenario.expect or scenario.final_state is not None or scenario.checks
        if not (checked or scenario.is_guarded or scenario.attack):
            return ()
        from agentest.judging.conversation_checks import check_conversation

        blind = self.agent.visibility.hidden(conversation) if scenario.is_guarded else None
        checks = await check_conversation(scenario, conversation, blind=blind)
        checks = undecided_checks(why_redacted(conversation.started_turns), checks)
        checks = tuple(map(self._redacted, checks))
        idle = None if conversation.user_calls else self.idle_user
        return _undecided_if(conversation.call_refused or idle, checks)

    def _redacted(self, check: CheckResult) -> CheckResult:
        """Redact secrets in a check, because users' functions may return or raise any text."""
        error = check.error and self.redact(check.error)
        return replace(check, summary=self.redact(check.summary), error=error)

    async def _checks(self, expect: Expect, turns: Sequence[Turn]) -> tuple[CheckResult, ...]:
        from agentest.judging.conversation_checks import check_session
        from agentest.judging.reply_checks import check_first_token, check_turn_sayings, run_reply_checks

        turn = turns[-1]
        first_token = check_first_token(expect, turn, self.agent.visibility.agent, self.unstreamed)
        checks = (
            *await run_reply_checks(expect, turn),
            *first_token,
            *await check_session(expect, turn, self.agent.visibility.agent),
            *await check_turn_sayings(expect.sayings, turns),
        )
        return _undecided_if(turn.call_refused, undecided_checks(why_redacted([turn]), checks))


def _undecided_if(why: str | None, checks: tuple[CheckResult, ...]) -> tuple[CheckResult, ...]:
    if not why:
        return checks
    reason = f"which cannot be judged: {why}"
    return tuple(
        c if c.passed or c.error else replace(c, summary=f"{c.summary}, {reason}", error=reason)
        for c in checks
    )


def why_redacted(turns: Iterable[Turn | UnfinishedTurn]) -> str | None:
    """Return why texts of these turns cannot be judged; None if they are complete."""
    hidden = ", ".join(turn_name(turn.turn_index) for turn in turns if turn.redacted)
    if not hidden:
        return None
    return f"secrets were hidden in {hidden} when the conversation was stored; run the scenario again"


def undecided_checks(why: str | None, checks: tuple[CheckResult, ...]) -> tuple[CheckResult, ...]:
    """Mark checks of redacted text as undecided, whether or not the remaining text meets them."""
    if why is None:
        return checks
    return tuple(
        check
        if check.check in _CHECKS_OF_TIME
        else replace(check, passed=False, summary=f"cannot be judged: {why}", error=why)
        for check in checks
    )


def _known_parts_of_call(call: ToolCall) -> ToolCall:
    if isinstance(call.args, Mapping) and HIDDEN in safe_repr(call.args):
        call = replace(call, args=None, invalid_arguments=ARGUMENTS_UNKNOWN)
    if HIDDEN in safe_repr(call.result):
        call = replace(call, result=None, error=None, mocked=False, seen_by=SeenBy.AGENT)
    return call
