"""Asking a model what it thinks of a turn or a conversation, in as many calls as the configuration wants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import anyio
from pydantic import BaseModel

from agentest.config.models import Batch
from agentest.judging.joint import joint_answer, picked, with_shared_evidence
from agentest.judging.prompts import judge_messages
from agentest.judging.questions import JudgeQuestion, joint_messages
from agentest.models.port import CallKey, Message, Model
from agentest.models.structured import Problem
from agentest.support.errors import ModelError

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
