"""Asking a model for the value of a built-in metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median_low
from typing import Annotated, Any, Literal

import anyio
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from agentest.errors import ModelError
from agentest.evaluate.prompts import joint_question, judge_messages, question
from agentest.llm.port import CallKey, Message, Model
from agentest.metrics import BUILTIN, NO_FAILURE, Kind, MetricDefinition
from agentest.results import MetricResult, Score, Unscored


def no_bool(value: object) -> object:
    """The value, unless it is a truth value. Raises ValueError."""
    if isinstance(value, bool):  # True is equal to 1, and would be taken for it
        raise ValueError("a number is expected, not true or false")
    return value


class ScaleAnswer(BaseModel, defer_build=True):
    """A judge's answer on the scale."""

    reason: str
    value: Annotated[Literal[1, 2, 3, 4, 5], BeforeValidator(no_bool)]


class BinaryAnswer(BaseModel, defer_build=True):
    """A judge's answer of yes or no."""

    reason: str
    value: Annotated[Literal[0, 1], BeforeValidator(no_bool)]


def _label_answer(labels: tuple[str, ...]) -> type[BaseModel]:
    fields: dict[str, Any] = {"reason": (str, Field()), "value": (Literal[labels], Field())}
    return create_model("LabelAnswer", __config__=ConfigDict(defer_build=True), **fields)


def _answer_type(metric: MetricDefinition) -> type[BaseModel]:
    if metric.kind is Kind.LABEL:
        return _label_answer(tuple(metric.labels))
    return {Kind.SCALE: ScaleAnswer, Kind.BINARY: BinaryAnswer}[metric.kind]


_ANSWERS = {name: _answer_type(metric) for name, metric in BUILTIN.items()}


@dataclass(frozen=True, slots=True)
class Judge:
    """The judges' model and how many answers to ask it for."""

    model: Model
    samples: int = 1
    batch: bool = False
    """Whether the 1–5 metrics of a turn are asked for together."""

    async def score(
        self, metric: str, context: str, key: CallKey, *, first_turn: bool = False, beside: str = ""
    ) -> MetricResult:
        """The value of a built-in metric; Unscored unless more than half of the samples have an answer.

        Args:
            beside: what the judge is shown for this metric alone, before its question.
        """
        asked = question(metric, first_turn=first_turn)
        messages = judge_messages(context, f"{beside}\n\n{asked}" if beside else asked)
        answers, problem = await self._sample(messages, _ANSWERS[metric], key, metric)
        return _combined(answers, self.samples) if answers else Unscored(problem)

    async def score_together(
        self, metrics: tuple[str, ...], context: str, key: CallKey, *, first_turn: bool = False
    ) -> dict[str, MetricResult]:
        """The values of several 1–5 metrics from one call a sample."""
        messages = judge_messages(context, joint_question(metrics, first_turn=first_turn))
        answers, problem = await self._sample(messages, _joint_answer(metrics), key, "batch")
        return {
            metric: _combined([getattr(answer, metric) for answer in answers], self.samples)
            if answers
            else Unscored(problem)
            for metric in metrics
        }

    async def _sample(
        self, messages: Sequence[Message], answer_type: type[BaseModel], key: CallKey, metric: str
    ) -> tuple[list[Any], str]:
        """The samples' answers, none unless more than half have one, and the first problem.

        ADK's metrics let fewer decide (`evalset.metrics.sampling.Sampled`), because google-adk does.
        """
        answers: list[Any] = [None] * self.samples
        problems: dict[int, str] = {}

        async def sample(n: int) -> None:
            try:
                answers[n] = await self.model.ask(
                    messages, answer_type, replace(key, metric=metric, sample=n)
                )
            except ModelError as error:
                problems[n] = str(error)
            except Exception as error:  # noqa: BLE001 - a model's defect costs its answer, not the run
                problems[n] = f"internal error: {type(error).__name__}: {error}"

        if self.samples == 1:  # a task of its own would cost more than all else here
            await sample(0)
        else:
            async with anyio.create_task_group() as tasks:
                for n in range(self.samples):
                    tasks.start_soon(sample, n)
        usable = [answer for answer in answers if answer is not None]
        enough = 2 * len(usable) > self.samples
        # By number, not by time: a replay has the same numbers, and other times.
        return (usable if enough else []), (problems[min(problems)] if problems else "")


@cache
def _joint_answer(metrics: tuple[str, ...]) -> type[BaseModel]:
    fields: dict[str, Any] = {metric: (ScaleAnswer, Field()) for metric in metrics}
    return create_model("JointAnswer", **fields)


def _combined(answers: Sequence[Any], asked: int) -> Score:
    """One score from several answers: the median of numbers, the majority of labels."""
    values = [answer.value for answer in answers]
    value = median_low(values) if isinstance(values[0], int) else majority_label(values)
    reason = next(answer.reason for answer in answers if answer.value == value)
    return Score(value, reason, tuple(values) if asked > 1 else ())


def majority_label(labels: Sequence[str]) -> str:
    """The label of most judges. They first agree on whether it failed at all, then on how."""
    failing = [label for label in labels if label != NO_FAILURE]
    if 2 * len(failing) <= len(labels):
        return NO_FAILURE
    return Counter(failing).most_common(1)[0][0]
