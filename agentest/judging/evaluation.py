"""Evaluate one conversation, turn by turn while it runs or once it has ended.

`ConversationEvaluation` fixes the order of checks, judges and metrics. The module also computes partial
credit from trajectories and collects labelled failures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING

from agentest.domain.metrics import (
    GOAL,
    NO_FAILURE,
    TRAJECTORY_METRICS,
    TRAJECTORY_SCORE,
    require_entry_for_each,
)
from agentest.domain.reasons import conversation_failed, located_trajectories
from agentest.domain.results import (
    DECIDED,
    CheckResult,
    ConversationResult,
    LabelledFailure,
    MetricResult,
    Score,
    Skipped,
    TrajectoryResult,
    TrajectoryScore,
    TurnEvaluation,
    Unscored,
)
from agentest.domain.transcript import Blame, Conversation, Failure, Turn
from agentest.judging.judgement import Judgement, growing_histories
from agentest.scenarios.model import Scenario
from agentest.support.calling import run_concurrently
from agentest.support.lazy_dataclasses import replace

if TYPE_CHECKING:
    from agentest.judging.evaluator import ScenarioEvaluator
    from agentest.judging.grader import GraderResult


MeasurementTask = Callable[[], Awaitable[None]]
NO_TRAJECTORY = "the scenario has no trajectory about calls"
_SHORTENED = "texts of the conversation are shortened, so its calls cannot be compared"
_ZERO_SCORE = TrajectoryScore(met=0.0, precision=0.0, recall=0.0)


class ConversationEvaluation:
    """Evaluates one conversation: each turn when it closes and the whole at the end, or everything at the
    end.

    An internal error ends the evaluation of this conversation only and is reported in its result. An error of
    a judge is a value, not an exception.

    Args:
        number: the conversation's number within its scenario.
        at_end: True to evaluate nothing before the conversation has ended, which is also the case if judges
            are called at the end (`ScenarioEvaluator.judges_at_end`).
    """

    def __init__(self, evaluator: ScenarioEvaluator, number: int, *, at_end: bool = False) -> None:
        self._evaluator = evaluator
        self._number = number
        self._at_end = at_end or evaluator.judges_at_end
        self._is_judged = bool(evaluator.metrics or evaluator.scenario.criteria)
        """True if there are questions for judges, even if no model answers them."""
        self._checked: dict[int, tuple[object, TurnEvaluation]] = {}
        """Turn → the calls that were known when it was checked, and what was found."""
        self._judged: list[Judgement] = []
        self._custom: dict[int | None, Mapping[str, MetricResult]] = {}
        """Custom metrics by turn; those of the whole conversation under None."""
        self._grades: Mapping[str, GraderResult] = {}
        self._calls: dict[int, tuple[object, ...]] = {}
        self._rejudged: dict[int, Judgement] = {}
        """Second judgements of turns with late calls, and of the turns after them."""
        self._trajectory: TrajectoryResult | None = None
        self._final_state: tuple[CheckResult, ...] = ()
        self._whole: tuple[CheckResult, ...] = ()
        self._problem: str | None = None

    async def add_turn(self, turns: tuple[Turn, ...]) -> None:
        """Evaluate the last of the turns, unless evaluation waits for the end."""
        if self._at_end:
            return
        self._calls[turns[-1].turn_index] = _known_calls(turns[-1])
        try:
            await self._check_turn(turns)
            tasks = [partial(self._measure_turn, turns)] if self._evaluator.custom else []
            tasks += [partial(self._judge_turn, turns)] if self._is_judged else []
            if tasks:
                await run_concurrently(tasks)
        except Exception as error:  # noqa: BLE001 - stage boundary: the error becomes part of the result
            self._record_problem(error)

    async def add_conversation(self, conversation: Conversation) -> None:
        """Evaluate the conversation as a whole, and its turns if they have not been evaluated."""
        try:
            # A conversation without its end has no turns to check, as their checks may depend on the rest.
            histories = [] if conversation.shortened else growing_histories(conversation)
            # The first turn whose calls arrived after it closed, and all later ones.
            late = (n for n, each in enumerate(histories) if self._has_late_calls(each[-1]))
            early = histories[next(late, len(histories)) :]
            if not self._at_end:
                self._calls |= {each[-1].turn_index: _known_calls(each[-1]) for each in histories}
            await self._check(conversation, histories)
            tasks: list[MeasurementTask] = [partial(self._judge_turn_again, turns) for turns in early]
            tasks += [partial(self._measure, conversation, histories)] if self._evaluator.custom else []
            tasks += [partial(self._judge, conversation)] if self._is_judged else []
            if tasks:
                await run_concurrently(tasks)
            if self._evaluator.graders:
                self._grades = await self._evaluator.grade(conversation, self._number)
        except Exception as error:  # noqa: BLE001 - as above
            self._record_problem(error)

    async def settle(self, conversation: Conversation) -> None:
        """Judge the goal again if it excludes the scores. Call it after everything has been added."""
        goal = next((found for each in self._judged if (found := each.metrics.get(GOAL))), None)
        if goal and self._evaluator.judge:
            scores = {turn.turn_index: turn.metrics for turn in self._evaluated_turns()}
            settled = await self._evaluator.settled_goal(goal, scores, conversation, self._number)
            self._judged.append(Judgement(metrics={GOAL: settled}))

    def result(self, conversation: Conversation) -> ConversationResult:
        """Return the result; call it after everything has been added, and `settle`."""
        if self._problem and not conversation.failure:
            conversation = replace(conversation, failure=Failure(Blame.INTERNAL, self._problem))
        turns = self._evaluated_turns()
        if self._grades:
            turns = tuple(add_grades(turn, self._grades) for turn in turns)
        if self._evaluator.information:
            turns = tuple(replace(turn, metrics=self._shown(turn.metrics)) for turn in turns)
        graded = {name: grade.conversation for name, grade in self._grades.items() if grade.conversation}
        judged = {name: result for each in self._judged for name, result in each.metrics.items()}
        failures = labelled_failures(conversation.conversation_id, turns)
        result = ConversationResult(
            conversation=conversation,
            turns=turns,
            metrics=self._shown({**judged, **self._custom.get(None, {}), **graded}),
            trajectory=self._trajectory,
            failures=tuple(each for each in failures if each.metric not in self._evaluator.information),
            criteria=tuple(criterion for each in self._judged for criterion in each.criteria),
            checks=self._whole,
        )
        return self._with_partial_credit(result) if self._evaluator.credited else result

    def _with_partial_credit(self, result: ConversationResult) -> ConversationResult:
        credit = partial_credit(self._evaluator.credited, self._evaluator.scenario, result)
        return replace(result, metrics={**result.metrics, **credit})

    def _evaluated_turns(self) -> tuple[TurnEvaluation, ...]:
        judgements = [*self._judged, *self._rejudged.values()]
        judged = {index: metrics for each in self._judged for index, metrics in each.turns.items()}
        again = {index: each.turns[index] for index, each in self._rejudged.items()}
        took = {index: ms for each in judgements for index, ms in each.judged_ms.items()}
        turns = []
        for index in sorted(self._checked):
            _, turn = self._checked[index]
            metrics = again.get(index, {**judged.get(index, {}), **self._custom.get(index, {})})
            turns.append(replace(turn, metrics=metrics, judged_ms=took.get(index)))
        return _with_last_checks(turns, self._final_state) if self._final_state else tuple(turns)

    def _shown(self, metrics: Mapping[str, MetricResult]) -> Mapping[str, MetricResult]:
        """Return the results, in which a score that decides nothing may be missing."""
        return {
            name: Skipped(f"for information, and not scored: {result.error}")
            if isinstance(result, Unscored) and name in self._evaluator.information
            else result
            for name, result in metrics.items()
        }

    async def _check(self, conversation: Conversation, histories: Sequence[Sequence[Turn]]) -> None:
        if self._at_end or not conversation.shortened:  # a stored one, of which no turn was added
            for turns in histories:
                await self._check_turn(turns)
        self._trajectory = await self._evaluator.trajectory(conversation)
        self._final_state = await self._evaluator.final_state(conversation)
        self._whole = await self._evaluator.check_conversation(conversation)

    async def _check_turn(self, turns: Sequence[Turn]) -> None:
        index, calls = turns[-1].turn_index, _known_calls(turns[-1])
        if index in self._checked and self._checked[index][0] == calls:
            return
        checked = await self._evaluator.checked_turn(turns)
        if self._calls.get(index, calls) == calls:  # else more calls have become known meanwhile
            self._checked[index] = calls, checked

    async def _judge(self, conversation: Conversation) -> None:
        if self._evaluator.skip_decided and self._evaluator.judge and self._has_failed(conversation):
            self._judged.append(self._evaluator.skip(conversation, DECIDED))
        elif self._at_end:
            self._judged.append(await self._evaluator.everything(conversation, self._number))
        else:
            self._judged.append(await self._evaluator.judge_conversation(conversation, self._number))

    async def _judge_turn(self, turns: Sequence[Turn]) -> None:
        self._judged.append(await self._evaluator.one_turn(turns, self._number))

    async def _judge_turn_again(self, turns: Sequence[Turn]) -> None:
        judged = await self._evaluator.one_turn(turns, self._number)
        custom = await self._evaluator.custom_of_turn(turns, self._number)
        index = turns[-1].turn_index
        self._rejudged[index] = replace(judged, turns={index: {**judged.turns[index], **custom}})

    def _has_late_calls(self, turn: Turn) -> bool:
        known = _known_calls(turn)
        return self._calls.get(turn.turn_index, known) != known

    def _has_failed(self, conversation: Conversation) -> bool:
        turns = _with_last_checks([turn for _, turn in self._checked.values()], self._final_state)
        result = ConversationResult(conversation, turns, trajectory=self._trajectory, checks=self._whole)
        result = self._with_partial_credit(result) if self._evaluator.credited else result
        return conversation_failed(result)

    async def _measure_turn(self, turns: Sequence[Turn]) -> None:
        self._custom[turns[-1].turn_index] = await self._evaluator.custom_of_turn(turns, self._number)

    async def _measure(self, conversation: Conversation, histories: Sequence[Sequence[Turn]]) -> None:
        if self._at_end:
            await run_concurrently([partial(self._measure_turn, each) for each in histories])
        self._custom[None] = await self._evaluator.custom_of_conversation(conversation, self._number)

    def _record_problem(self, error: Exception) -> None:
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        text = f"the conversation could not be evaluated: {type(error).__name__}: {error}"
        self._problem = self._problem or self._evaluator.redact(text)


def _known_calls(turn: Turn) -> tuple[object, ...]:
    return turn.tool_calls, turn.calls_hidden, turn.call_refused


def add_grades(turn: TurnEvaluation, grades: Mapping[str, GraderResult]) -> TurnEvaluation:
    """Add the graders' scores to a turn's evaluation."""
    scores = {
        name: grade.turns[turn.turn_index] for name, grade in grades.items() if turn.turn_index in grade.turns
    }
    return replace(turn, metrics={**turn.metrics, **scores}) if scores else turn


def _with_last_checks(
    turns: Sequence[TurnEvaluation], checks: tuple[CheckResult, ...]
) -> tuple[TurnEvaluation, ...]:
    if not (turns and checks):
        return tuple(turns)
    return (*turns[:-1], replace(turns[-1], checks=(*turns[-1].checks, *checks)))


def labelled_failures(conversation_id: str, turns: Sequence[TurnEvaluation]) -> tuple[LabelledFailure, ...]:
    """Return a failure with a unique id for every label other than `no failure`; a turn may have several."""
    failures = [
        (turn.turn_index, name, label, result)
        for turn in turns
        for name, result in turn.metrics.items()
        if isinstance(result, Score) and isinstance(result.value, str) and result.value != NO_FAILURE
        for label in (result.labels or (result.value,))
    ]
    return tuple(
        LabelledFailure(
            id=f"{conversation_id}-F{n}",
            conversation_id=conversation_id,
            turn_index=turn,
            metric=name,
            label=label,
            reason=score.reason,
            severity=score.severity,
        )
        for n, (turn, name, label, score) in enumerate(failures, start=1)
    )


_VALUES: Mapping[str, Callable[[TrajectoryScore], float]] = require_entry_for_each(
    TRAJECTORY_METRICS.values(),
    {
        TRAJECTORY_SCORE: lambda score: score.met,
        "trajectory_precision": lambda score: score.precision,
        "trajectory_recall": lambda score: score.recall,
        "trajectory_f1": lambda score: score.f1,
    },
)


def partial_credit(
    names: Collection[str], scenario: Scenario, result: ConversationResult
) -> dict[str, MetricResult]:
    """Return the requested trajectory metrics, each the mean over all trajectories about calls.

    A trajectory that could not be compared leaves all metrics Unscored. The trajectory of a turn that was not
    reached scores 0. A conversation that was cut short, but not by the agent, has no metrics because its
    failure explains this.

    Args:
        names: the metrics to compute.
        result: the result with the compared trajectories of the conversation and its turns.
    """
    failure = result.conversation.failure
    if failure and failure.blame is not Blame.AGENT:
        return {}
    if not any(each.about_calls for each in scenario.trajectories):
        return dict.fromkeys(names, Skipped(NO_TRAJECTORY))
    compared = [each.result for each in located_trajectories(result)]
    unknown = [why for each in compared if (why := _why_unknown(each))]
    scores = [each.score for each in compared if each.score]
    reached = {turn.turn_index for turn in result.turns}
    not_reached = [turn for index, turn in enumerate(scenario.turns) if index not in reached]
    scores += [_ZERO_SCORE for turn in not_reached for each in turn.trajectory if each.about_calls]
    if unknown or not scores:
        lacking = _SHORTENED if result.conversation.shortened else "no trajectory about calls was compared"
        why = "; ".join(dict.fromkeys(unknown)) or lacking
        return dict.fromkeys(names, Unscored(why))
    results: dict[str, MetricResult] = {}
    for name in (name for name in TRAJECTORY_METRICS if name in names):
        values = [_VALUES[name](score) for score in scores]
        each = f": {', '.join(f'{value:.2g}' for value in values)}" if values[1:] else ""
        noun = "trajectories" if values[1:] else "trajectory"
        results[name] = Score(mean(values), f"of {len(values)} {noun}{each}")
    return results


def _why_unknown(trajectory: TrajectoryResult) -> str | None:
    if trajectory.error or trajectory.score or trajectory.actual is None:
        return trajectory.error
    return "it is not known of all calls whether they are as expected"
