"""Asking judges several times, and making one result of their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

import anyio
from pydantic import BaseModel

from agentest.adk.formats.criteria import Criterion
from agentest.domain.metrics import ADK_METRICS
from agentest.domain.results import NO_MODEL, Score, Skipped, Unscored
from agentest.judging.answers import BinaryAnswer
from agentest.judging.judge import answered, at_once
from agentest.models.port import CallKey, Message, Model
from agentest.models.structured import Problem

Answer = TypeVar("Answer", bound=BaseModel)
Item = TypeVar("Item")
Result = TypeVar("Result")


def samples_of(criterion: Criterion) -> int:
    """How often each question of the metric is asked."""
    return criterion.num_samples or ADK_METRICS[criterion.metric].samples


def no_model(criterion: Criterion) -> Skipped:
    """Why a judged metric has no value in an offline run."""
    if criterion.judge_model is None:
        return Skipped(NO_MODEL)
    return Skipped(
        f"{NO_MODEL} (the criteria name {criterion.judge_model}: "
        "configure `model`, set AGENTEST_MODEL, or name one with --model)"
    )


@dataclass(frozen=True, slots=True)
class Sampled(Generic[Answer]):
    """The samples that have an answer, in their order, and what the first problem was.

    google-adk leaves out the samples that it cannot read and lets the others decide, however few they are;
    so do its metrics here. Agentest's own metrics (`evaluate.judge`) have no score unless more than half of
    the samples have an answer.
    """

    answers: tuple[Answer, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """The judges of one grader: their model, and how often each question is asked."""

    model: Model
    samples: int
    key: CallKey
    places: AbstractAsyncContextManager[object] = field(default_factory=nullcontext)
    """Has a place for a question, or is waited for."""

    @classmethod
    def of(cls, criterion: Criterion, model: Model, key: CallKey) -> Panel:
        """The panel for one conversation; it is asked as much at once as the criterion allows."""
        own = replace(key, metric=criterion.metric)
        if criterion.parallelism_limit is None:
            return cls(model, samples_of(criterion), own)
        return cls(model, samples_of(criterion), own, anyio.Semaphore(criterion.parallelism_limit))

    async def ask(
        self, messages: Sequence[Message], answer: type[Answer], turn: int, nth: int = 0
    ) -> Sampled[Answer]:
        """The samples' answers to a question; `nth` tells several questions of a turn apart."""

        async def sample(n: int) -> Answer | Problem:
            key = replace(self.key, turn=turn, sample=nth * self.samples + n)
            async with self.places:
                found: Answer | Problem = await answered(self.model, messages, answer, key)
                return found

        replies = await concurrently(sample, range(self.samples))
        problems = [reply.text for reply in replies if isinstance(reply, Problem)]
        return Sampled(
            tuple(reply for reply in replies if not isinstance(reply, Problem)),
            problems[0] if problems else "no judge was asked",
        )


async def concurrently(function: Callable[[Item], Awaitable[Result]], items: Sequence[Item]) -> list[Result]:
    """The function's result for each of the items, all asked for at once, in the order of the items."""
    return await at_once([partial(function, item) for item in items])


def majority(votes: Sequence[bool]) -> bool:
    """Whether more than half of the votes are yes: a tie is no."""
    return 2 * sum(votes) > len(votes)


def voted(sampled: Sampled[BinaryAnswer], asked: int) -> Score | Unscored:
    """1 or 0 by majority, a tie 0, with the reason of a judge who said so."""
    answers = sampled.answers
    if not answers:
        return Unscored(sampled.problem)
    value = int(majority([answer.value == 1 for answer in answers]))
    reason = next(answer.reason for answer in answers if answer.value == value)
    return Score(value, reason, tuple(answer.value for answer in answers) if asked > 1 else ())
