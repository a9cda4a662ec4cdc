"""Asking judges several times, and making one result of their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import anyio
from pydantic import BaseModel

from agentest.errors import ModelError
from agentest.evalset.formats.criteria import Criterion
from agentest.evaluate.grading import Graded
from agentest.evaluate.judge import BinaryAnswer
from agentest.llm.port import CallKey, Message, Model
from agentest.metrics import ADK_METRICS
from agentest.results import NO_MODEL, MetricResult, Score, Skipped, Unscored
from agentest.transcript import Turn

Answer = TypeVar("Answer", bound=BaseModel)
Given = TypeVar("Given")
Found = TypeVar("Found")


def samples_of(criterion: Criterion) -> int:
    """How often each question of the metric is asked."""
    return criterion.num_samples or ADK_METRICS[criterion.metric].samples


def no_model(criterion: Criterion) -> Skipped:
    """Why a judged metric has no value in an offline run."""
    if criterion.judge_model is None:
        return Skipped(NO_MODEL)
    return Skipped(
        f"{NO_MODEL} (the criteria name {criterion.judge_model}: configure `model`, or name one with --model)"
    )


@dataclass(frozen=True, slots=True)
class Sampled(Generic[Answer]):
    """The answers that could be had, in the order of their samples, and what the first problem was."""

    answers: tuple[Answer, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """The judges of one grader: their model, and how often each question is asked."""

    model: Model
    samples: int
    key: CallKey

    @classmethod
    def of(cls, criterion: Criterion, model: Model, key: CallKey) -> Panel:
        return cls(model, samples_of(criterion), replace(key, metric=criterion.metric))

    async def ask(
        self, messages: Sequence[Message], answer: type[Answer], turn: int, nth: int = 0
    ) -> Sampled[Answer]:
        """The samples' answers to a question; `nth` tells several questions of a turn apart."""

        async def sample(n: int) -> Answer | str:
            key = replace(self.key, turn=turn, sample=nth * self.samples + n)
            try:
                return await self.model.ask(messages, answer, key)
            except ModelError as error:
                return str(error)
            except Exception as error:  # noqa: BLE001 - a model's defect costs its answer, not the run
                return f"internal error: {type(error).__name__}: {error}"

        found = await concurrently(sample, range(self.samples))
        problems = [given for given in found if isinstance(given, str)]
        return Sampled(
            tuple(given for given in found if not isinstance(given, str)),
            problems[0] if problems else "no judge was asked",
        )


async def concurrently(function: Callable[[Given], Awaitable[Found]], given: Sequence[Given]) -> list[Found]:
    """What the function finds for each of the values, all at once, in their order."""
    found: dict[int, Found] = {}

    async def one(index: int) -> None:
        found[index] = await function(given[index])

    async with anyio.create_task_group() as tasks:
        for index in range(len(given)):
            tasks.start_soon(one, index)
    return [found[index] for index in range(len(given))]


async def each_turn(turns: Sequence[Turn], score: Callable[[Turn], Awaitable[MetricResult | None]]) -> Graded:
    """All turns scored at once, by turn; those left out for which there is nothing to say (None)."""
    found = await concurrently(score, turns)
    results = zip(turns, found, strict=True)
    return Graded({turn.turn_index: result for turn, result in results if result is not None})


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
