"""What is found out about the turns and conversations of a scenario: checks, metrics, grades, step by step.

Which questions judges are asked is in `judging`; in which order all is done, in `evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import anyio

from agentest.config.models import Batch, ModelWish
from agentest.domain.metrics import ABOUT_CALLS
from agentest.domain.results import CheckResult, MetricResult, TrajectoryResult, TurnEvaluation, Unscored
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ARGUMENTS_UNTOLD, Blame, Conversation, ToolCall, Turn, UnfinishedTurn
from agentest.judging.background import KnownAgent
from agentest.judging.conversation_checks import checked_whole
from agentest.judging.custom_metrics import (
    ConversationInput,
    ConversationMetric,
    Metric,
    TurnInput,
    evaluate_metric,
)
from agentest.judging.grader import Graded, Grader, for_information, graded
from agentest.judging.judge import Judge, at_once
from agentest.judging.judgement import Judging
from agentest.judging.reply_checks import checked_first_token, checked_reply
from agentest.judging.says_checks import checked_in_turn
from agentest.judging.session_checks import checked_session, checked_state
from agentest.models.port import CallKey, Model
from agentest.scenarios.expectations import Expect
from agentest.scenarios.model import Scenario, ScriptedTurn
from agentest.support.json_text import safe_repr
from agentest.support.redaction import HIDDEN
from agentest.support.replacing import replace
from agentest.trajectory.trajectory import matched_trajectories


@dataclass(frozen=True, slots=True)
class ScenarioEvaluator:
    """Evaluates the conversations of a scenario. It has no state of any conversation."""

    scenario: Scenario
    scope: str
    metrics: Sequence[str] = ()
    """Built-in metrics to judge."""
    custom: Sequence[Metric] = ()
    graders: Sequence[Grader] = ()
    judge: Judge | None = None
    named: Mapping[ModelWish, Model] = field(default_factory=dict)
    """The models that graders wish for, where they can be asked."""
    redact: Callable[[str], str] = field(default=str)
    agent: KnownAgent = KnownAgent()  # noqa: RUF009 - it holds nothing that could change
    """What is known of the agent.

    Where its calls cannot be seen, whatever would judge calls is unscored, unless calls that were seen all
    the same break it, or its answers show that it tells of all of them.
    """
    unstreamed: str = "it does not stream its replies"
    """Why the time to the first token of a reply is not known, where it is not."""
    metrics_named: bool = True
    """Whether `metrics` were named; else all run by default, and what cannot be judged is skipped."""
    credited: Collection[str] = ()
    """The metrics of trajectories that thresholds name; others are not measured."""
    information: Collection[str] = ()
    """The graders whose scores decide nothing: what they cannot score is skipped."""
    idle_user: str | None = None
    """Why the simulated user could not use the tools that it has; None: it could, or has none."""
    skip_decided: bool = False
    """Whether judges are not asked about a conversation that has failed without them."""

    @property
    def asks_at_end(self) -> bool:
        """Whether judges are asked nothing before a conversation has ended."""
        return self.judge is not None and (self.skip_decided or self.judge.batch is Batch.CONVERSATION)

    @property
    def judging(self) -> Judging:
        """What judges are asked about the scenario's conversations."""
        return Judging(
            scenario=self.scenario,
            scope=self.scope,
            metrics=self.metrics,
            judge=self.judge,
            redact=self.redact,
            agent=self.agent,
            metrics_named=self.metrics_named,
        )

    @property
    def _name(self) -> str:
        """The agent's, for what cannot be seen of it."""
        return self.agent.sight.agent

    async def checked_turn(self, turns: Sequence[Turn]) -> TurnEvaluation:
        """The last of the turns held against what its script says of it."""
        turn = turns[-1]
        scripted = self._script_of(turn)
        return TurnEvaluation(
            turn_index=turn.turn_index,
            trajectory=await self._turn_trajectory(turns),
            checks=await self._checks(scripted.expect, turns) if scripted and scripted.expect else (),
            reference=scripted.reference if scripted else None,
        )

    async def _turn_trajectory(self, turns: Sequence[Turn]) -> TrajectoryResult | None:
        """The trajectory that the script has for the last of the turns against its calls."""
        turn = turns[-1]
        scripted = self._script_of(turn)
        if scripted is None:
            return None
        why, calls = hidden_in([turn]), (*turn.tool_calls, *turn.asked_calls)
        found = await matched_trajectories(
            scripted.trajectory,
            known_parts(why, calls),
            1,
            blind=self.agent.sight.hidden(turn, turns),
            listed=self.agent.sight.listed_in(turn),
            of_turn=True,
        )
        return undecided_trajectory(why, calls, found)

    def _script_of(self, turn: Turn) -> ScriptedTurn | None:
        """What the scenario has the user say in a turn; None: it leaves that to the user."""
        script = self.scenario.turns
        return script[turn.turn_index] if turn.turn_index < len(script) else None

    async def custom_of_turn(self, turns: Sequence[Turn], number: int) -> dict[str, MetricResult]:
        """The users' own metrics of the last of the turns."""
        metrics = [metric for metric in self.custom if not isinstance(metric, ConversationMetric)]
        if not metrics:
            return {}
        turn = turns[-1]
        if why := hidden_in(turns):
            return {metric.name: Unscored(why) for metric in metrics}
        key = CallKey("judge", self.scope, number, turn.turn_index)
        turn_input = TurnInput(
            goal=self.scenario.goal,
            profile=self.scenario.profile,
            knowledge=self.scenario.knowledge,
            user_message=turn.user_message,
            agent_message=turn.agent_message,
            tool_calls=turn.tool_calls,
            history=tuple(turns[:-1]),
            turn_index=turn.turn_index,
        )
        return await self._own(metrics, turn_input, key)

    async def custom_of_conversation(
        self, conversation: Conversation, number: int
    ) -> dict[str, MetricResult]:
        """The users' own metrics of a conversation as a whole."""
        if conversation.failure or not conversation.turns:
            return {}
        metrics = [metric for metric in self.custom if isinstance(metric, ConversationMetric)]
        if why := hidden_in(conversation.turns):
            return {metric.name: Unscored(why) for metric in metrics}
        whole = ConversationInput(
            goal=self.scenario.goal,
            profile=self.scenario.profile,
            knowledge=self.scenario.knowledge,
            turns=conversation.turns,
        )
        return await self._own(metrics, whole, CallKey("judge", self.scope, number))

    async def _own(
        self, metrics: Sequence[Metric], data: TurnInput | ConversationInput, key: CallKey
    ) -> dict[str, MetricResult]:
        model = self.judge.model if self.judge else None
        keys = [replace(key, metric=metric.name) for metric in metrics]
        results = await at_once(
            [partial(evaluate_metric, m, data, model, k) for m, k in zip(metrics, keys, strict=True)]
        )
        return {
            metric.name: replace(result, error=self.redact(result.error))
            if isinstance(result, Unscored)
            else result
            for metric, result in zip(metrics, results, strict=True)
        }

    async def grade(self, conversation: Conversation, number: int) -> Mapping[str, Graded]:
        """The scores by the graders of an evaluation set's case. Never raises."""
        if not self.graders or conversation.failure or not conversation.turns:
            return {}
        grades: dict[str, Graded] = {}
        blind = self.agent.sight.hidden(conversation)
        redacted = hidden_in(conversation.turns)

        async def grade(grader: Grader) -> None:
            key, model = CallKey("judge", self.scope, number, metric=grader.name), self._asked_by(grader)
            grades[grader.name] = await graded(grader, conversation, model, key, self.redact)

        async with anyio.create_task_group() as tasks:
            for grader in self.graders:
                if blind and (grader.name in ABOUT_CALLS or conversation.call_refused):
                    grades[grader.name] = Graded(whole=Unscored(blind))
                elif redacted:
                    grades[grader.name] = Graded(whole=Unscored(redacted))
                else:
                    tasks.start_soon(grade, grader)
        return {
            grader.name: for_information(grades[grader.name])
            if grader.name in self.information
            else grades[grader.name]
            for grader in self.graders
        }

    def _asked_by(self, grader: Grader) -> Model | None:
        named = self.named.get(grader.judge) if grader.judge else None
        return named or (self.judge.model if self.judge else None)

    async def trajectory(self, conversation: Conversation) -> TrajectoryResult | None:
        """The scenario's own trajectory against the whole conversation."""
        if conversation.shortened:
            return None
        failure = conversation.failure
        why = hidden_in((*conversation.turns, conversation.unfinished))
        found = await matched_trajectories(
            self.scenario.trajectory,
            known_parts(why, conversation.tool_calls),
            conversation.started_turns,
            complete=failure is None or failure.blame is Blame.AGENT,
            blind=self.agent.sight.hidden(conversation),
            listed=self.agent.sight.listed_in(conversation),
        )
        return undecided_trajectory(why, conversation.tool_calls, found)

    async def final_state(self, conversation: Conversation) -> tuple[CheckResult, ...]:
        """What the scenario expects of the session's state, against the state after the last turn."""
        expected = self.scenario.final_session_state
        if expected is None or conversation.failure or conversation.shortened or not conversation.turns:
            return ()
        last = conversation.turns[-1]
        checks = await checked_state("final_session_state", expected, last, self._name)
        return _undecided_if(last.call_refused, undecided_checks(hidden_in([last]), checks))

    async def whole(self, conversation: Conversation) -> tuple[CheckResult, ...]:
        """What the scenario expects of what is said in it all, of the mocks' state, and its check."""
        checks = await checked_whole(self.scenario, conversation)
        checks = undecided_checks(hidden_in((*conversation.turns, conversation.unfinished)), checks)
        checks = tuple(map(self._redacted, checks))
        idle = None if conversation.user_calls else self.idle_user
        return _undecided_if(conversation.call_refused or idle, checks)

    def _redacted(self, check: CheckResult) -> CheckResult:
        """The check without secrets: what a function returns or raises may tell anything."""
        error = check.error and self.redact(check.error)
        return replace(check, summary=self.redact(check.summary), error=error)

    async def _checks(self, expect: Expect, turns: Sequence[Turn]) -> tuple[CheckResult, ...]:
        turn = turns[-1]
        first_token = checked_first_token(expect, turn, self._name, self.unstreamed)
        checks = (
            *await checked_reply(expect, turn),
            *first_token,
            *await checked_session(expect, turn, self._name),
            *await checked_in_turn(expect.sayings, turns),
        )
        return _undecided_if(turn.call_refused, undecided_checks(hidden_in([turn]), checks))


def _undecided_if(why: str | None, checks: tuple[CheckResult, ...]) -> tuple[CheckResult, ...]:
    """The checks; those that failed cannot be told where something but the agent may be why they did.

    Args:
        why: what that is, like a call that we refused to answer; None: nothing is known to be.
    """
    if not why:
        return checks
    told = f"which cannot be judged: {why}"
    return tuple(
        c if c.passed or c.error else replace(c, summary=f"{c.summary}, {told}", error=told) for c in checks
    )


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
