"""Asking a model for the value of a built-in metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio
from pydantic import BaseModel

from agentest.config.models import Batch
from agentest.errors import ModelError
from agentest.evaluate.answers import ANSWERS, joint_answer, score_of
from agentest.evaluate.prompts import joint_question, judge_messages, question
from agentest.llm.port import CallKey, Message, Model
from agentest.results import MetricResult, Unscored


@dataclass(frozen=True, slots=True)
class Judge:
    """The judges' model and how many answers to ask it for."""

    model: Model
    samples: int = 1
    batch: Batch = Batch.OFF
    """How much is asked for in one call."""

    async def score(
        self, metric: str, context: str, key: CallKey, *, first_turn: bool = False
    ) -> MetricResult:
        """The value of a built-in metric; Unscored unless more than half of the samples have an answer."""
        messages = judge_messages(context, question(metric, first_turn=first_turn))
        answers, problem = await self._sample(messages, ANSWERS[metric], key, metric)
        return score_of(metric, answers, self.samples) if answers else Unscored(problem)

    async def score_together(
        self, metrics: tuple[str, ...], context: str, key: CallKey, *, first_turn: bool = False
    ) -> dict[str, MetricResult]:
        """The values of several metrics from one call a sample."""
        messages = judge_messages(context, joint_question(metrics, first_turn=first_turn))
        answers, problem = await self._sample(messages, joint_answer(metrics), key, "batch")
        return {
            metric: score_of(metric, [getattr(answer, metric) for answer in answers], self.samples)
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
