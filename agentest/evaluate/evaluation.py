"""Evaluating one turn and one conversation: metrics, trajectories, checks and graders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import anyio

from agentest.config.models import Batch
from agentest.config.wishes import ModelWish
from agentest.evaluate.background import Background
from agentest.evaluate.checks import checked_first_token, checked_reply
from agentest.evaluate.custom import ConversationMetric, Metric, evaluate_metric
from agentest.evaluate.grading import Graded, Grader, for_information, graded
from agentest.evaluate.inputs import ConversationInput, TurnInput
from agentest.evaluate.judge import Judge
from agentest.evaluate.session_checks import checked_session, checked_state
from agentest.evaluate.shown import conversation_context, turn_context
from agentest.evaluate.trajectory import matched_trajectory
from agentest.llm.port import CallKey, Model
from agentest.metrics import ABOUT_CALLS, BUILTIN, NO_FAILURE, Kind, MetricLevel
from agentest.results import (
    NO_MODEL,
    CheckResult,
    ConversationResult,
    LabelledFailure,
    MetricResult,
    Score,
    Skipped,
    TrajectoryResult,
    TurnEvaluation,
    Unscored,
)
from agentest.scenarios.definition import Scenario, ScriptedTurn
from agentest.scenarios.expectations import Expect
from agentest.sight import cannot_be_seen
from agentest.transcript import Blame, Conversation, Failure, Turn

Asking = Callable[[], Awaitable[Mapping[str, MetricResult]]]
Pending = dict[tuple[str, ...], Asking]
"""Metrics → how to ask for them; several where one question is for all of them."""


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
    told_counts: bool = True
    """Whether answers that tell of calls make an agent seen whose calls otherwise cannot be."""
    blind: str | None = None
    """Why the agent's tool calls cannot be seen, and what to do about it; None: they can.

    Then whatever would judge calls is unscored, unless calls that were seen all the same break it, or the
    agent's answers show that it tells of all of them.
    """
    agent: str = ""
    """The agent's name, for what cannot be seen of it."""
    instructions: str = ""
    """What the agent was told, for judges; "": that is not known."""
    tools: str = ""
    """Which tools the agent has, a line each, for judges; "": that is not known."""
    unstreamed: str = "it does not stream its replies"
    """Why the time to the first token of a reply is not known, where it is not."""
    metrics_named: bool = True
    """Whether `metrics` were named; else all run by default, and what cannot be judged is skipped."""
    information: Collection[str] = ()
    """The graders whose scores decide nothing: what they cannot score is skipped."""

    async def evaluate_turn(self, turns: Sequence[Turn], conversation: int) -> TurnEvaluation:
        """The last of the turns, judged in the light of those before it. Never raises."""
        turn = turns[-1]
        scripted = self._script_of(turn)
        return TurnEvaluation(
            turn_index=turn.turn_index,
            metrics=await self._gather(self._turn_metrics(turns, conversation)),
            trajectory=await self.turn_trajectory(turn),
            checks=await self._checks(scripted.expect, turn) if scripted and scripted.expect else (),
            reference=scripted.reference if scripted else None,
        )

    async def turn_trajectory(self, turn: Turn) -> TrajectoryResult | None:
        """The trajectory that the script has for a turn against its calls."""
        scripted = self._script_of(turn)
        if scripted is None or scripted.trajectory is None:
            return None
        return await matched_trajectory(scripted.trajectory, turn.tool_calls, 1, blind=self._blind(turn))

    def _script_of(self, turn: Turn) -> ScriptedTurn | None:
        """What the scenario has the user say in a turn; None: it leaves that to the user."""
        script = self.scenario.turns
        return script[turn.turn_index] if turn.turn_index < len(script) else None

    async def evaluate_conversation(
        self, conversation: Conversation, number: int
    ) -> Mapping[str, MetricResult]:
        """The metrics of a conversation as a whole. Never raises."""
        return await self._gather(self._conversation_metrics(conversation, number))

    async def grade(self, conversation: Conversation, number: int) -> Mapping[str, Graded]:
        """The scores by the graders of an evaluation set's case. Never raises."""
        if conversation.failure or not conversation.turns:
            return {}
        grades: dict[str, Graded] = {}
        blind = self._blind(conversation)

        async def grade(grader: Grader) -> None:
            key, model = CallKey("judge", self.scope, number, metric=grader.name), self._asked_by(grader)
            grades[grader.name] = await graded(grader, conversation, model, key, self.redact)

        async with anyio.create_task_group() as tasks:
            for grader in self.graders:
                if blind and (grader.name in ABOUT_CALLS or conversation.call_refused):
                    grades[grader.name] = Graded(whole=Unscored(blind))
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
        if self.scenario.trajectory is None or conversation.shortened:
            return None
        failure = conversation.failure
        return await matched_trajectory(
            self.scenario.trajectory,
            conversation.tool_calls,
            conversation.started_turns,
            complete=failure is None or failure.blame is Blame.AGENT,
            blind=self._blind(conversation),
        )

    async def final_state(self, conversation: Conversation) -> tuple[CheckResult, ...]:
        """What the scenario expects of the session's state, against the state after the last turn."""
        expected = self.scenario.final_session_state
        if expected is None or conversation.failure or conversation.shortened or not conversation.turns:
            return ()
        last = conversation.turns[-1]
        return _undecided_if(last, await checked_state("final_session_state", expected, last, self.agent))

    async def _checks(self, expect: Expect, turn: Turn) -> tuple[CheckResult, ...]:
        first_token = checked_first_token(expect, turn, self.agent, self.unstreamed)
        checks = (
            *await checked_reply(expect, turn),
            *first_token,
            *await checked_session(expect, turn, self.agent),
        )
        return _undecided_if(turn, checks)

    def _blind(self, told: Turn | Conversation) -> str | None:
        """Why calls cannot be seen, by what the answers themselves show of it, and by the agent's sight."""
        if told.call_refused:
            return told.call_refused
        if told.calls_hidden and self.blind is None:
            return f"{cannot_be_seen(self.agent)}: {told.calls_hidden}"
        return None if told.tells_calls and self.told_counts else self.blind

    def _background(self, turns: Sequence[Turn]) -> Background:
        return Background(
            goal=self.scenario.goal,
            profile=self.scenario.profile,
            knowledge=self.scenario.knowledge,
            expected_outcome=self.scenario.expected_outcome,
            instructions=self.instructions,
            tools=self.tools,
            started_at=turns[0].started_at or "",
            unseen=self._blind(turns[-1]) or "",
        )

    def _judged(self, level: MetricLevel) -> list[str]:
        """The built-in metrics of this level, none where the scenario gives a judge no goal to judge by."""
        return [name for name in self.metrics if self.scenario.goal and BUILTIN[name].level is level]

    def _turn_metrics(self, turns: Sequence[Turn], conversation: int) -> Pending:
        turn = turns[-1]
        key = CallKey("judge", self.scope, conversation, turn.turn_index)
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
        blind = self._blind(turn)
        calls_known = turn.tool_calls and not blind
        names = [name for name in self._judged(MetricLevel.TURN) if calls_known or name not in ABOUT_CALLS]
        context = turn_context(self._background(turns), turns) if self.judge and names else ""
        pending = self._built_in(names, context, key)
        for metric in self.custom:
            if not isinstance(metric, ConversationMetric):
                pending[metric.name,] = self._custom(metric, turn_input, key)
        return pending | self._unseen_calls(blind)

    def _unseen_calls(self, blind: str | None) -> Pending:
        """The metrics of tool calls where they would be judged, but calls cannot be seen."""
        if not blind or not self.judge:
            return {}
        result = Unscored(blind) if self.metrics_named else Skipped(blind)
        names = [name for name in self._judged(MetricLevel.TURN) if name in ABOUT_CALLS]
        return {(name,): _answering({name: result}) for name in names}

    def _conversation_metrics(self, conversation: Conversation, number: int) -> Pending:
        if conversation.failure or not conversation.turns:
            return {}
        key = CallKey("judge", self.scope, number)
        whole = ConversationInput(
            goal=self.scenario.goal,
            profile=self.scenario.profile,
            knowledge=self.scenario.knowledge,
            turns=conversation.turns,
        )
        names = self._judged(MetricLevel.CONVERSATION)
        asked = self.judge and names
        context = (
            conversation_context(self._background(conversation.turns), conversation.turns) if asked else ""
        )
        pending = self._built_in(names, context, key)
        for metric in self.custom:
            if isinstance(metric, ConversationMetric):
                pending[metric.name,] = self._custom(metric, whole, key)
        return pending

    def _built_in(self, names: Sequence[str], context: str, key: CallKey) -> Pending:
        judge, first = self.judge, key.turn == 0
        if judge is None:
            return {(name,): _answering({name: Skipped(NO_MODEL)}) for name in names}

        def alone(name: str) -> Asking:
            async def ask() -> Mapping[str, MetricResult]:
                return {name: await judge.score(name, context, key, first_turn=first)}

            return ask

        def together(metrics: tuple[str, ...]) -> Asking:
            return lambda: judge.score_together(metrics, context, key, first_turn=first)

        joint = tuple(n for n in names if judge.batch is not Batch.OFF and BUILTIN[n].kind is Kind.SCALE)
        pending: Pending = {joint: together(joint)} if len(joint) > 1 else {}
        rest = [name for name in names if not pending or name not in joint]
        return pending | {(name,): alone(name) for name in rest}

    def _custom(self, metric: Metric, metric_input: TurnInput | ConversationInput, key: CallKey) -> Asking:
        model = self.judge.model if self.judge else None

        async def ask() -> Mapping[str, MetricResult]:
            own = replace(key, metric=metric.name)
            return {metric.name: await evaluate_metric(metric, metric_input, model, own)}

        return ask

    async def _gather(self, pending: Pending) -> dict[str, MetricResult]:
        """All metrics at once, in the order in which they were asked for."""
        results: dict[str, MetricResult] = {}

        async def ask(asking: Asking) -> None:
            for name, result in (await asking()).items():
                results[name] = (
                    Unscored(self.redact(result.error)) if isinstance(result, Unscored) else result
                )

        async with anyio.create_task_group() as tasks:
            for asking in pending.values():
                tasks.start_soon(ask, asking)
        return {name: results[name] for names in pending for name in names}


def with_grades(turn: TurnEvaluation, grades: Mapping[str, Graded]) -> TurnEvaluation:
    """The turn's evaluation with the scores that the graders gave it."""
    own = {
        name: grade.turns[turn.turn_index] for name, grade in grades.items() if turn.turn_index in grade.turns
    }
    return replace(turn, metrics={**turn.metrics, **own}) if own else turn


def _with_last_checks(
    turns: tuple[TurnEvaluation, ...], checks: tuple[CheckResult, ...]
) -> tuple[TurnEvaluation, ...]:
    """The turns with further checks of the last one."""
    if not (turns and checks):
        return turns
    return (*turns[:-1], replace(turns[-1], checks=(*turns[-1].checks, *checks)))


def _undecided_if(turn: Turn, checks: tuple[CheckResult, ...]) -> tuple[CheckResult, ...]:
    """The checks; those that failed cannot be told where the agent may have lacked the answer to a call."""
    why = turn.call_refused
    if not why:
        return checks
    told = f"which cannot be judged: {why}"
    return tuple(
        c if c.passed or c.error else replace(c, summary=f"{c.summary}, {told}", error=told) for c in checks
    )


def _answering(result: Mapping[str, MetricResult]) -> Asking:
    async def ask() -> Mapping[str, MetricResult]:
        return result

    return ask


class OngoingEvaluation:
    """Evaluates one conversation while it goes on: each turn when it closes, the whole at the end.

    An error in evaluating (not in a judge: that is a value) ends this conversation's evaluation
    alone; the result says so.
    """

    def __init__(self, evaluator: ScenarioEvaluator, number: int) -> None:
        self._evaluator = evaluator
        self._number = number
        self._turns: dict[int, TurnEvaluation] = {}
        self._metrics: Mapping[str, MetricResult] = {}
        self._grades: Mapping[str, Graded] = {}
        self._calls: dict[int, tuple[object, ...]] = {}
        """What was known of the calls of each turn when it closed."""
        self._late: dict[int, TrajectoryResult | None] = {}
        """The trajectories of turns of which calls came when they had closed."""
        self._trajectory: TrajectoryResult | None = None
        self._final_state: tuple[CheckResult, ...] = ()
        self._problem: str | None = None

    async def add_turn(self, turns: tuple[Turn, ...]) -> None:
        """Evaluate the last of the turns."""
        self._calls[turns[-1].turn_index] = _known_calls(turns[-1])
        try:
            self._turns[turns[-1].turn_index] = await self._evaluator.evaluate_turn(turns, self._number)
        except Exception as error:  # noqa: BLE001 - the boundary of the stage: it becomes part of the result
            self._note(error)

    async def add_conversation(self, conversation: Conversation) -> None:
        """Evaluate the conversation as a whole."""
        try:
            for turn in conversation.turns:
                if _known_calls(turn) != self._calls.get(turn.turn_index, _known_calls(turn)):
                    self._late[turn.turn_index] = await self._evaluator.turn_trajectory(turn)
            self._trajectory = await self._evaluator.trajectory(conversation)
            self._final_state = await self._evaluator.final_state(conversation)
            self._metrics = await self._evaluator.evaluate_conversation(conversation, self._number)
            self._grades = await self._evaluator.grade(conversation, self._number)
        except Exception as error:  # noqa: BLE001 - as above
            self._note(error)

    def result(self, conversation: Conversation) -> ConversationResult:
        """The result, once everything has been added."""
        if self._problem and not conversation.failure:
            conversation = replace(conversation, failure=Failure(Blame.INTERNAL, self._problem))
        closed = {index: self._turns[index] for index in sorted(self._turns)}
        for index in closed.keys() & self._late.keys():
            closed[index] = replace(closed[index], trajectory=self._late[index])
        turns = tuple(with_grades(turn, self._grades) for turn in closed.values())
        turns = _with_last_checks(turns, self._final_state)
        failures = labelled_failures(conversation.conversation_id, turns)
        whole = {name: grade.whole for name, grade in self._grades.items() if grade.whole}
        metrics = {**self._metrics, **whole}
        return ConversationResult(conversation, turns, metrics, self._trajectory, failures)

    def _note(self, error: Exception) -> None:
        text = f"the conversation could not be evaluated: {type(error).__name__}: {error}"
        self._problem = self._problem or self._evaluator.redact(text)


def _known_calls(turn: Turn) -> tuple[object, ...]:
    return turn.tool_calls, turn.calls_hidden, turn.call_refused


def labelled_failures(conversation_id: str, turns: Sequence[TurnEvaluation]) -> tuple[LabelledFailure, ...]:
    """Every label other than `no failure`, with its id."""
    failures = [
        (turn.turn_index, name, result)
        for turn in turns
        for name, result in turn.metrics.items()
        if isinstance(result, Score) and isinstance(result.value, str) and result.value != NO_FAILURE
    ]
    return tuple(
        LabelledFailure(
            id=f"{conversation_id}-F{n}",
            conversation_id=conversation_id,
            turn_index=turn,
            metric=name,
            label=str(result.value),
            reason=result.reason,
        )
        for n, (turn, name, result) in enumerate(failures, start=1)
    )
