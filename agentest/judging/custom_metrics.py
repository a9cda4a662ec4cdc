"""Custom metrics: base classes for users, and their evaluation.

Subclass one of the three base classes, give it a `name` (default: the class name in snake_case), and list it
under `custom_metrics`. Methods may be plain or async and may call the judges' model through `self.llm`.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Real
from typing import Any, TypeVar

from pydantic import BaseModel

from agentest.domain.results import NO_MODEL, MetricResult, Score, Skipped, Unscored
from agentest.domain.transcript import ToolCall, Turn, copy_call, copy_turn
from agentest.models.port import CallKey, Model
from agentest.support.calling import FunctionTimeout, ends_the_run, message_of_error, result_of
from agentest.support.deadlines import FUNCTION_S, TimeLimit
from agentest.support.errors import ModelError
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import snake_case

_TIMEOUT_S = 5 * FUNCTION_S  # it may call models
Answer = TypeVar("Answer", bound=BaseModel)
MetricValue = Score | Mapping[str, Any] | tuple[Any, str] | float | str
"""Types that a metric may return: a value, `(value, reason)`, `{"value": …, "reason": …}` or a Score."""


class ModelNotConfigured(ModelError):
    """Raised when a metric calls the judges' model in an offline run."""


class _Text(BaseModel, defer_build=True):
    text: str


class MetricModel:
    """The judges' model as `self.llm` of a custom metric. Its calls count as judge calls."""

    def __init__(self, model: Model | None, key: CallKey) -> None:
        self._model = model
        self._key = key
        self.refused = False  # True if the metric called a model that is not configured
        self.failed = False

    async def ask(self, prompt: str, answer: type[Answer], *, system: str | None = None) -> Answer:
        """Return an answer that is an instance of the given pydantic model. Raises ModelError."""
        if self._model is None:
            self.refused = True
            raise ModelNotConfigured(NO_MODEL)
        messages = [{"role": "system", "content": system}] if system else []
        try:
            return await self._model.ask([*messages, {"role": "user", "content": prompt}], answer, self._key)
        except ModelError:
            self.failed = True
            raise

    async def text(self, prompt: str, *, system: str | None = None) -> str:
        """Return an answer as text. Raises ModelError."""
        return (await self.ask(prompt, _Text, system=system)).text


class Metric(ABC):
    """Base of all custom metrics; subclass one of the three classes below instead."""

    name: str = ""
    llm: MetricModel

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__dict__.get("name"):
            cls.name = snake_case(cls.__name__)


class QuantitativeMetric(Metric):
    """A number for each turn."""

    @abstractmethod
    def score(self, input: ScoreInput) -> Any:
        """Return the turn's value: any form of `MetricValue` with a number, or an awaitable of one."""


class QualitativeMetric(Metric):
    """A label for each turn; every label other than `no failure` is a failure."""

    @abstractmethod
    def evaluate(self, input: ScoreInput) -> Any:
        """Return the turn's label: any form of `MetricValue` with a text, or an awaitable of one."""


class ConversationMetric(Metric):
    """A number for each conversation."""

    @abstractmethod
    def score(self, input: ConversationInput) -> Any:
        """Return the conversation's value: a `MetricValue` with a number, or an awaitable of one."""


async def evaluate_metric(
    metric: Metric,
    data: ScoreInput | ConversationInput,
    model: Model | None,
    key: CallKey,
    timeout_s: float = _TIMEOUT_S,
) -> MetricResult:
    """Return a metric's result: Unscored if it raises, Skipped if it calls a model that is not configured."""
    llm, limit = MetricModel(model, key), TimeLimit(timeout_s)
    try:
        # Copy for each call: `self.llm` belongs to one conversation, and attributes must not be shared.
        bound: Any = copy.copy(metric)
        bound.llm = llm
        method = bound.evaluate if isinstance(metric, QualitativeMetric) else bound.score
        return _score(metric, await result_of(method, data.copied(), limit=limit, source=metric))
    except BaseException as error:
        if ends_the_run(error):
            raise
        if isinstance(error, FunctionTimeout):
            return Unscored(f"the metric {error}", own_code=True)
        # A task group or a wrapper may have hidden ModelError, so rely on the recorded outcome of its calls.
        if llm.refused:
            return Skipped(NO_MODEL)
        return Unscored(f"{type(error).__name__}: {message_of_error(error)}", own_code=not llm.failed)


def _score(metric: Metric, returned: Any) -> Score:
    value, reason = _value_and_reason(returned)
    reason = "" if reason is None else str(reason)
    if isinstance(metric, QualitativeMetric):
        if not isinstance(value, str) or not value.strip():
            raise TypeError(f"evaluate() must give a label, but gave {value!r}")
        return Score(value, reason)
    if not isinstance(value, Real) or not math.isfinite(value):
        raise TypeError(f"score() must give a number, but gave {value!r}")
    if isinstance(value, bool):
        return Score(int(value), reason)
    return Score(value if isinstance(value, int | float) else float(value), reason)


def _value_and_reason(returned: Any) -> tuple[Any, Any]:
    if isinstance(returned, Score):
        return returned.value, returned.reason
    if isinstance(returned, Mapping):
        return returned.get("value"), returned.get("reason")
    if isinstance(returned, tuple) and len(returned) == 2:
        return returned[0], returned[1]
    return returned, None


@dataclass(frozen=True, slots=True)
class ScoreInput:
    """One turn to judge; `history` contains the turns before it."""

    goal: str
    profile: str
    knowledge: tuple[str, ...]
    user_message: str
    agent_message: str
    tool_calls: tuple[ToolCall, ...]
    history: tuple[Turn, ...]
    turn_index: int

    def copied(self) -> ScoreInput:
        """Return a copy for users' code, which may modify its input."""
        calls = tuple(map(copy_call, self.tool_calls))
        return replace(self, tool_calls=calls, history=tuple(map(copy_turn, self.history)))


@dataclass(frozen=True, slots=True)
class ConversationInput:
    """A whole conversation to judge."""

    goal: str
    profile: str
    knowledge: tuple[str, ...]
    turns: tuple[Turn, ...]

    def copied(self) -> ConversationInput:
        """Return a copy for users' code, which may modify its input."""
        return replace(self, turns=tuple(map(copy_turn, self.turns)))
