"""Asking a model what it thinks of a turn or a conversation, in as many calls as the configuration wants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

import anyio
from pydantic import BaseModel

from agentest.config.models import Batch
from agentest.domain.metrics import GOAL, NO_FAILURE
from agentest.domain.results import CriterionOutcome, CriterionResult, Score, Severity, Unscored
from agentest.judging.answers import criterion_result, score_of
from agentest.judging.questions import (
    JudgeQuestion,
    criterion_question,
    joint_answer,
    joint_messages,
    judge_messages,
    picked,
    with_shared_evidence,
)
from agentest.models.port import CallKey, Message, Model
from agentest.models.structured_output import Problem
from agentest.scenarios.model import Criterion
from agentest.support.errors import ModelError
from agentest.support.text import shortened

TOGETHER = "batch"
"""In the key of a call that asks several questions: what stands in place of a metric."""

TURNS_AT_ONCE = 8
"""About how many turns a call asks at most."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Answers:
    """What the samples answered to one question: nothing, unless more than half have an answer."""

    usable: tuple[Any, ...]
    asked: int
    problem: str
    """The first problem; by number, not by time: a replay has the same numbers, and other times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is asked of a conversation in one call: questions about some of its turns, and in the last part
    about the whole. The turns up to the last one asked about are shown."""

    questions: tuple[JudgeQuestion, ...]
    asked: range
    """The turns asked about, by their index."""
    is_last: bool


def parts_of(questions: Sequence[JudgeQuestion], turns: int) -> list[Part]:
    """The parts of a conversation of so many turns, in order: a part has at most TURNS_AT_ONCE of them."""
    starts = range(0, turns, TURNS_AT_ONCE)
    parts = []
    for start in starts:
        asked, is_last = range(start, min(start + TURNS_AT_ONCE, turns)), start == starts[-1]
        mine = tuple(q for q in questions if (is_last if q.turn is None else q.turn in asked))
        if mine:
            parts.append(Part(questions=mine, asked=asked, is_last=is_last))
    return parts


@dataclass(frozen=True, slots=True)
class Judge:
    """The judges' model and how many answers to ask it for."""

    model: Model
    samples: int = 1
    batch: Batch = Batch.TURN
    """How much is asked for in one call."""
    first_sample: int = 0
    """The number of the first answer; those of another model come after it."""

    async def ask(
        self, questions: Sequence[JudgeQuestion], context: str, key: CallKey
    ) -> dict[JudgeQuestion, Answers]:
        """Answers to questions about one turn, or about a conversation as a whole."""
        if self.batch is not Batch.OFF and len(questions) > 1:
            return await self._together(questions, context, key, by_turn=False)
        answers = await at_once([partial(self._alone, each, context, key) for each in questions])
        return dict(zip(questions, answers, strict=True))

    async def ask_of_all_turns(
        self,
        questions: Sequence[JudgeQuestion],
        turns: int,
        context: Callable[[Part], str],
        key: CallKey,
    ) -> dict[JudgeQuestion, Answers]:
        """Answers to questions about every turn and the whole of a conversation, a call a part and sample.

        Args:
            turns: how many the conversation has.
            context: what is shown for a part.
        """
        parts = parts_of(questions, turns)
        keys = [key if part.is_last else replace(key, turn=part.asked[-1]) for part in parts]
        found = await at_once(
            [
                partial(self._together, part.questions, context(part), own, by_turn=True)
                for part, own in zip(parts, keys, strict=True)
            ]
        )
        return {question: answers for part in found for question, answers in part.items()}

    async def _alone(self, question: JudgeQuestion, context: str, key: CallKey) -> Answers:
        messages = judge_messages(context, question.alone)
        return counted(await self._sample(messages, question.answer, replace(key, metric=question.name)))

    async def _together(
        self, questions: Sequence[JudgeQuestion], context: str, key: CallKey, *, by_turn: bool
    ) -> dict[JudgeQuestion, Answers]:
        messages = joint_messages(questions, context, by_turn=by_turn)
        shape = joint_answer(questions, by_turn=by_turn)
        samples = await self._sample(messages, shape, replace(key, metric=TOGETHER))
        picks = [
            with_shared_evidence({q: self._picked(sample, q, by_turn=by_turn) for q in questions})
            for sample in samples
        ]
        return {each: counted([answers[each] for answers in picks]) for each in questions}

    def _picked(self, sample: BaseModel | Problem, question: JudgeQuestion, *, by_turn: bool) -> Any:
        """The answer to one question of several; a problem that it has by itself, with whose it is."""
        if isinstance(sample, Problem):
            return sample
        own = picked(sample, question, by_turn=by_turn)
        if not isinstance(own, Problem):
            return own
        return Problem(f"model {self.model.name} gave no usable answer to this question: {own.text}")

    async def _sample(
        self, messages: Sequence[Message], shape: type[BaseModel], key: CallKey
    ) -> list[Any | Problem]:
        numbers = range(self.first_sample, self.first_sample + self.samples)
        return await sampled(self.model, messages, shape, key, numbers)


async def sampled(
    model: Model, messages: Sequence[Message], shape: type[BaseModel], key: CallKey, numbers: Iterable[int]
) -> list[Any | Problem]:
    """The answer of each sample, or its problem, in the order of their numbers. Never raises."""
    return await at_once([partial(answered, model, messages, shape, replace(key, sample=n)) for n in numbers])


async def answered(
    model: Model, messages: Sequence[Message], shape: type[BaseModel], key: CallKey
) -> Any | Problem:
    """A model's answer, or the problem that it has. Never raises."""
    try:
        return await model.ask(messages, shape, key)
    except ModelError as error:
        return Problem(str(error))
    except Exception as error:  # noqa: BLE001 - a model's defect costs its answer, not the run
        return Problem(f"internal error: {type(error).__name__}: {error}")


def counted(samples: Sequence[Any]) -> Answers:
    """ADK's metrics let fewer decide (`evalset.metrics.sampling.Sampled`), because google-adk does."""
    usable = tuple(sample for sample in samples if not isinstance(sample, Problem))
    problem = next((sample.text for sample in samples if isinstance(sample, Problem)), "")
    return Answers(usable if 2 * len(usable) > len(samples) else (), len(samples), problem)


async def at_once(askings: Sequence[Callable[[], Awaitable[_T]]]) -> list[_T]:
    """The results of all, which go on at once, in their order."""
    if len(askings) <= 1:  # a task of its own would cost more than all else here
        return [await asking() for asking in askings]
    results: dict[int, _T] = {}

    async def ask(n: int) -> None:
        results[n] = await askings[n]()

    async with anyio.create_task_group() as tasks:
        for n in range(len(askings)):
            tasks.start_soon(ask, n)
    return [results[n] for n in range(len(askings))]


_REASON_CHARS = 300
"""How much of each model's reason is quoted where they differ."""

_Opinion = Score | CriterionResult | Unscored


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedJudge(Judge):
    """A judge whose answers fail a scenario only where a second model agrees.

    Where the two differ, or the second model gives no usable answer, the question has no answer: a metric is
    unscored, a criterion cannot be told.
    """

    second: Judge
    """Asks the confirming model."""
    criteria: Mapping[str, Criterion] = field(default_factory=dict)
    """Name of a question → the scenario's criterion. Those that are not required fail nothing."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Metric → least average. Scores below it can fail the scenario."""
    fail_on: Severity = Severity.HIGH
    """Failures that a judge grades lower fail nothing."""

    async def ask(
        self, questions: Sequence[JudgeQuestion], context: str, key: CallKey
    ) -> dict[JudgeQuestion, Answers]:
        # `super()` finds nothing in a dataclass with slots.
        first = await Judge.ask(self, questions, context, key)
        failing = self._failing(first)
        if not failing:
            return first
        return first | self._compared(failing, await self.second.ask(list(failing), context, key))

    async def ask_of_all_turns(
        self, questions: Sequence[JudgeQuestion], *conversation: Any, **more: Any
    ) -> dict[JudgeQuestion, Answers]:
        first = await Judge.ask_of_all_turns(self, questions, *conversation, **more)
        failing = self._failing(first)
        if not failing:
            return first
        second = await self.second.ask_of_all_turns(list(failing), *conversation, **more)
        return first | self._compared(failing, second)

    def _failing(self, found: Mapping[JudgeQuestion, Answers]) -> dict[JudgeQuestion, Answers]:
        return {
            question: answers
            for question, answers in found.items()
            if answers.usable and self._fails(question, self._opinion(question, answers))
        }

    def _compared(
        self, first: Mapping[JudgeQuestion, Answers], second: Mapping[JudgeQuestion, Answers]
    ) -> dict[JudgeQuestion, Answers]:
        """The first answers where the second agree; elsewhere none, and why."""
        return {
            question: answers
            if self._agrees(question, second[question])
            else Answers((), answers.asked, self._difference(question, answers, second[question]))
            for question, answers in first.items()
        }

    def _agrees(self, question: JudgeQuestion, answers: Answers) -> bool:
        return bool(answers.usable) and self._fails(question, self._opinion(question, answers))

    def _fails(self, question: JudgeQuestion, opinion: _Opinion) -> bool:
        """Whether this can fail the scenario."""
        match opinion:
            case CriterionResult():
                return opinion.required and opinion.result is CriterionOutcome.VIOLATED
            case Score(value=str() as label, severity=severity):
                return label != NO_FAILURE and (severity is None or severity >= self.fail_on)
            case Score(number=float() as value):
                least = self.thresholds.get(question.name)
                return (question.name == GOAL and value == 0) or (least is not None and value < least)
            case _:
                return False

    def _opinion(self, question: JudgeQuestion, answers: Answers) -> _Opinion:
        criterion = self.criteria.get(question.name)
        if criterion:
            return criterion_result(criterion, answers.usable, answers.asked, turns=0)
        return score_of(question.name, answers.usable, answers.asked)

    def _difference(self, question: JudgeQuestion, first: Answers, second: Answers) -> str:
        said = self._said(question, first, self.model.name)
        return f"not confirmed: {said}; {self._said(question, second, self.second.model.name)}"

    def _said(self, question: JudgeQuestion, answers: Answers, model: str) -> str:
        if not answers.usable:
            return f"{model} gave no usable answer: {answers.problem}"
        match self._opinion(question, answers):
            case CriterionResult(result=result, reason=reason):
                value = result.value
            case Score(value=number, outcome=outcome, severity=severity, reason=reason):
                value = outcome.value if outcome else str(number)
                if severity is not None:
                    value += f", {severity.label}"
            case Unscored(error=error):
                return f"{model} gave no usable answer: {error}"
        return f"{model} answered {value!r} ({shortened(reason, _REASON_CHARS)})"


def confirmed_judge(
    judge: Judge,
    confirming: Model,
    criteria: Sequence[Criterion],
    thresholds: Mapping[str, float],
    fail_on: Severity,
) -> Judge:
    """The judge of one scenario, confirmed by a second model.

    Args:
        criteria: the scenario's.
        thresholds: those that the scenario is held to.
        fail_on: the least severity of a failure that fails it.
    """
    # The second model gives the sample after the judge's: calls and recordings stay apart.
    second = Judge(confirming, batch=Batch.TURN, first_sample=judge.samples)
    named = {criterion_question(n, each).name: each for n, each in enumerate(criteria, start=1)}
    own = {each.name: getattr(judge, each.name) for each in fields(Judge)}
    return ConfirmedJudge(**own, second=second, criteria=named, thresholds=thresholds, fail_on=fail_on)
