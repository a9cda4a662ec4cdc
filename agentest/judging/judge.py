"""Judge a turn or a conversation with a model, in as many calls as the configuration requires.

`Judge` collects several samples for each question, together or one by one. `ConfirmedJudge` adds a second
model that must agree before a judgement can fail a scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import partial
from sys import maxsize
from typing import Any

from pydantic import BaseModel

from agentest.config.models import Batch
from agentest.domain.metrics import GOAL, NO_FAILURE
from agentest.domain.results import CriterionOutcome, CriterionResult, Score, Severity, Unscored
from agentest.judging.answers import criterion_result, exclusions, score_of
from agentest.judging.judge_input import Context, JudgeQuestion, criterion_question, not_shown
from agentest.judging.questions import (
    joint_answer,
    joint_messages,
    judge_messages,
    objection,
    pick_answer,
    prompt_of,
    share_evidence,
)
from agentest.models.limits import estimate_tokens
from agentest.models.port import CallKey, Message, Model
from agentest.models.structured_output import MAX_REPAIRS, AnswerProblem
from agentest.scenarios.model import Criterion
from agentest.support.calling import run_concurrently
from agentest.support.errors import ModelError, OwnFault
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import shortened

BATCH_METRIC = "batch"  # replaces the metric in the key of a call that contains several questions

MAX_TURNS_PER_CALL = 8

_REASON_CHARS = 300  # limit for the quoted reason of each model if two models differ

_CHARS_PER_TOKEN = 3  # a low estimate, because calls and their results are JSON
_TOO_LONG = (
    "the judge was not called: even with a shortened transcript its prompt has about {:,} tokens, but "
    "`judge.context` is {:,}; choose a model with a larger context, or shorten the agent's instructions"
)
_QUESTION_CHARS = 17_000  # for questions about eight turns and the schema of their answer


@dataclass(frozen=True, slots=True)
class SampledAnswers:
    """The sampled answers to one question; empty unless more than half of the samples are usable."""

    usable: tuple[Any, ...]
    requested: int
    problem: str  # the first problem by sample number, not by time, so that a replay reports the same one


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPart:
    """The content of one call: questions about some turns, and in the last part about the whole conversation.

    The turns up to the last one that is judged are shown.
    """

    questions: tuple[JudgeQuestion, ...]
    turn_indexes: range
    is_last: bool


def split_into_parts(questions: Sequence[JudgeQuestion], turns: int) -> list[JudgedPart]:
    """Split a conversation with this number of turns into parts of at most TURNS_AT_ONCE turns, in order."""
    starts = range(0, turns, MAX_TURNS_PER_CALL)
    parts = []
    for start in starts:
        indexes, is_last = range(start, min(start + MAX_TURNS_PER_CALL, turns)), start == starts[-1]
        part_questions = tuple(q for q in questions if (is_last if q.turn is None else q.turn in indexes))
        if part_questions:
            parts.append(JudgedPart(questions=part_questions, turn_indexes=indexes, is_last=is_last))
    return parts


@dataclass(frozen=True, slots=True)
class Judge:
    """The judges' model, with the number of samples and the batch mode."""

    model: Model
    samples: int = 1
    batch: Batch = Batch.TURN  # which questions share one call
    first_sample: int = 0
    """The number of the first sample; a second model's samples follow those of the first."""
    context: int | None = None
    """Maximum tokens of a prompt; None: no limit."""

    @property
    def room(self) -> int:
        """Maximum characters of what is shown to the model in addition to the questions."""
        return _CHARS_PER_TOKEN * self.context - _QUESTION_CHARS if self.context else maxsize

    @property
    def _numbers(self) -> range:
        return range(self.first_sample, self.first_sample + self.samples)

    async def ask(
        self, questions: Sequence[JudgeQuestion], context: Context, key: CallKey, *, by_turn: bool = False
    ) -> dict[JudgeQuestion, SampledAnswers]:
        """Return answers to questions about one turn, about a whole conversation, or (`by_turn`) both."""
        if by_turn or (self.batch is not Batch.OFF and len(questions) > 1):
            sets = await self._joint(questions, context, key, by_turn=by_turn)
        else:
            prompts = [(each.name, prompt_of(each)) for each in questions]
            requests = [(judge_messages(context, each.alone), each.answer, name) for name, each in prompts]
            samples = zip(*await self._samples(requests, key), strict=True)
            sets = [dict(zip(questions, answers, strict=True)) for answers in samples]
        return await self._consistent(sets, context, key, by_turn=by_turn)

    async def ask_of_all_turns(
        self,
        questions: Sequence[JudgeQuestion],
        turns: int,
        context: Callable[[JudgedPart, int], Context],
        key: CallKey,
    ) -> dict[JudgeQuestion, SampledAnswers]:
        """Return answers to questions about every turn and the whole, with one call per part and sample."""
        parts = split_into_parts(questions, turns)
        keys = [key if part.is_last else replace(key, turn=part.turn_indexes[-1]) for part in parts]
        answered = await run_concurrently(
            [
                partial(self.ask, part.questions, context(part, self.room), part_key, by_turn=True)
                for part, part_key in zip(parts, keys, strict=True)
            ]
        )
        return {question: answers for part in answered for question, answers in part.items()}

    async def _joint(
        self, questions: Sequence[JudgeQuestion], context: Context, key: CallKey, *, by_turn: bool
    ) -> list[dict[JudgeQuestion, Any]]:
        messages = joint_messages(questions, context, by_turn=by_turn)
        shape = joint_answer(questions, by_turn=by_turn)
        [samples] = await self._samples([(messages, shape, BATCH_METRIC)], key)
        return [
            share_evidence({q: pick_answer(sample, q, by_turn=by_turn) for q in questions})
            for sample in samples
        ]

    async def _consistent(
        self, sets: Sequence[dict[JudgeQuestion, Any]], context: Context, key: CallKey, *, by_turn: bool
    ) -> dict[JudgeQuestion, SampledAnswers]:

        async def settle(number: int, answers: dict[JudgeQuestion, Any]) -> dict[JudgeQuestion, Any]:
            judge = replace(self, first_sample=number, samples=1)
            for _ in range(MAX_REPAIRS):
                if not (wrong := _wrong_parts(answers)):
                    return answers
                again = objection(context, wrong.values())
                [anew] = await judge._joint(list(wrong), again, key, by_turn=by_turn)
                usable = {q: a for q, a in anew.items() if not isinstance(a, AnswerProblem)}
                if not usable:
                    break
                answers = answers | usable
            why = f"model {self.model.name} gave no usable answer to this question"
            return answers | {q: AnswerProblem(f"{why}: {text}") for q, text in _wrong_parts(answers).items()}

        settled = await run_concurrently(
            [partial(settle, n, answers) for n, answers in zip(self._numbers, sets, strict=True)]
        )
        omitted = not_shown(context)
        return {each: usable_answers([answers[each] for answers in settled], omitted) for each in sets[0]}

    async def _samples(
        self, requests: Iterable[tuple[Sequence[Message], type[BaseModel], str]], key: CallKey
    ) -> list[list[Any | AnswerProblem]]:
        async def ask(messages: Sequence[Message], shape: type[BaseModel], metric: str) -> list[Any]:
            if self.context and (tokens := estimate_tokens(messages)) > self.context:
                return [AnswerProblem(_TOO_LONG.format(tokens, self.context))] * self.samples
            return await ask_samples(self.model, messages, shape, replace(key, metric=metric), self._numbers)

        return await run_concurrently([partial(ask, *request) for request in requests])


async def ask_samples(
    model: Model, messages: Sequence[Message], shape: type[BaseModel], key: CallKey, numbers: Iterable[int]
) -> list[Any | AnswerProblem]:
    """Return the answer or problem of each sample, in the order of their numbers. Never raises."""
    keys = [replace(key, sample=n) for n in numbers]
    return await run_concurrently([partial(ask_model, model, messages, shape, each) for each in keys])


async def ask_model(
    model: Model, messages: Sequence[Message], shape: type[BaseModel], key: CallKey
) -> Any | AnswerProblem:
    """Return a model's answer, or its problem. Never raises."""
    try:
        return await model.ask(messages, shape, key)
    except ModelError as error:
        return AnswerProblem(str(error))
    except Exception as error:  # noqa: BLE001 - an error in a model adapter costs one answer, not the run
        return AnswerProblem(str(OwnFault.of(error)))


def usable_answers(samples: Sequence[Any], omitted: str = "") -> SampledAnswers:
    """Return the usable samples if they are more than half of all.

    Metrics of evaluation sets require fewer, because google-adk does.

    Args:
        omitted: parts of the conversation that the model did not see; the answers' reasons then say so.
    """
    usable = tuple(sample for sample in samples if not isinstance(sample, AnswerProblem))
    if omitted:
        reasons = [f"{each.reason} (not shown to the judge: {omitted})" for each in usable]
        usable = tuple(a.model_copy(update={"reason": r}) for a, r in zip(usable, reasons, strict=True))
    problem = next((sample.text for sample in samples if isinstance(sample, AnswerProblem)), "")
    return SampledAnswers(usable if 2 * len(usable) > len(samples) else (), len(samples), problem)


def _wrong_parts(answers: Mapping[JudgeQuestion, Any]) -> dict[JudgeQuestion, str]:
    problems = {q: a for q, a in answers.items() if isinstance(a, AnswerProblem) and a.is_part}
    return {q: f"{q.field}: {a.text}" for q, a in problems.items()} | exclusions(answers)


_Result = Score | CriterionResult | Unscored


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedJudge(Judge):
    """A judge whose answers fail a scenario only if a second model agrees.

    If the two differ, or the second model gives no usable answer, the question has no answer: a metric is
    unscored, and a criterion is `cannot tell`.
    """

    second: Judge
    criteria: Mapping[str, Criterion] = field(default_factory=dict)
    """Name of a question → the scenario's criterion. A criterion that is not required cannot fail a scenario.
    """
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Metric → minimum average. Scores below it can fail the scenario."""
    fail_on: Severity = Severity.HIGH

    async def ask(
        self, questions: Sequence[JudgeQuestion], context: Context, key: CallKey, *, by_turn: bool = False
    ) -> dict[JudgeQuestion, SampledAnswers]:
        # `super()` finds nothing in a dataclass with slots.
        first = await Judge.ask(self, questions, context, key, by_turn=by_turn)
        if not (failing := self._failing(first)):
            return first
        second = await self.second.ask(list(failing), context, key, by_turn=by_turn)
        confirmed = self._failing(second)
        for question in failing.keys() - confirmed:
            models = [(self.model.name, first[question]), (self.second.model.name, second[question])]
            opinions = "; ".join(self._described(question, answers, name) for name, answers in models)
            first[question] = SampledAnswers((), self.samples, f"not confirmed: {opinions}")
        return first

    def _failing(
        self, answered: Mapping[JudgeQuestion, SampledAnswers]
    ) -> dict[JudgeQuestion, SampledAnswers]:
        return {
            question: answers
            for question, answers in answered.items()
            if answers.usable and self._fails(question, self._result_of(question, answers))
        }

    def _fails(self, question: JudgeQuestion, opinion: _Result) -> bool:
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

    def _result_of(self, question: JudgeQuestion, answers: SampledAnswers) -> _Result:
        criterion = self.criteria.get(question.name)
        if criterion:
            return criterion_result(criterion, answers.usable, answers.requested, turns=0)
        return score_of(question.name, answers.usable, answers.requested)

    def _described(self, question: JudgeQuestion, answers: SampledAnswers, model: str) -> str:
        if not answers.usable:
            return f"{model} gave no usable answer: {answers.problem}"
        match self._result_of(question, answers):
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
    """Return the judge of a scenario with these criteria and thresholds, confirmed by a second model."""
    # The second model gives the sample after the judge's: calls and recordings stay apart.
    second = Judge(confirming, batch=Batch.TURN, first_sample=judge.samples)
    named = {criterion_question(n, each).name: each for n, each in enumerate(criteria, start=1)}
    settings = {each.name: getattr(judge, each.name) for each in fields(Judge)}
    return ConfirmedJudge(**settings, second=second, criteria=named, thresholds=thresholds, fail_on=fail_on)
