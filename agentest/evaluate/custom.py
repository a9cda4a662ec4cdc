"""Users' own metrics.

Subclass one of three, give it a `name` (default: the class name in snake_case), and name it in
`custom_metrics`. Methods may be plain or async and may ask the judges' model through `self.llm`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from agentest.errors import ModelError
from agentest.evaluate.context import ConversationInput, TurnInput
from agentest.llm.port import CallKey, Model
from agentest.results import NO_MODEL, MetricResult, Score, Skipped, Unscored
from agentest.spelling import snake_case

Answer = TypeVar("Answer", bound=BaseModel)
Given = Score | Mapping[str, Any] | tuple[Any, str] | float | str
"""What a metric may return: a value, `(value, reason)`, `{"value": …, "reason": …}` or a Score."""


class NoModel(ModelError):
    """A metric asked for the judges' model in an offline run."""


class _Text(BaseModel):
    text: str


class MetricModel:
    """`self.llm` of a custom metric: the judges' model, with the calls counted as the judges'."""

    def __init__(self, model: Model | None, key: CallKey) -> None:
        self._model = model
        self._key = key

    async def ask(self, prompt: str, answer: type[Answer], *, system: str | None = None) -> Answer:
        """An answer of the shape of a pydantic model. Raises ModelError."""
        if self._model is None:
            raise NoModel(NO_MODEL)
        messages = [{"role": "system", "content": system}] if system else []
        return await self._model.ask([*messages, {"role": "user", "content": prompt}], answer, self._key)

    async def text(self, prompt: str, *, system: str | None = None) -> str:
        """An answer in words. Raises ModelError."""
        return (await self.ask(prompt, _Text, system=system)).text


class Metric:
    """Base of custom metrics; use one of the three below."""

    name: str = ""
    llm: MetricModel

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__dict__.get("name"):
            cls.name = snake_case(cls.__name__)


class QuantitativeMetric(Metric):
    """A number for each turn."""

    def score(self, input: TurnInput) -> Any:
        """The turn's value; any form of `Given` with a number, or an awaitable of one."""
        raise TypeError(f"metric {self.name!r} does not define score(input)")


class QualitativeMetric(Metric):
    """A label for each turn; every label other than `no failure` is a failure."""

    def evaluate(self, input: TurnInput) -> Any:
        """The turn's label; any form of `Given` with a text, or an awaitable of one."""
        raise TypeError(f"metric {self.name!r} does not define evaluate(input)")


class ConversationMetric(Metric):
    """A number for each conversation."""

    def score(self, input: ConversationInput) -> Any:
        """The conversation's value; any form of `Given` with a number, or an awaitable of one."""
        raise TypeError(f"metric {self.name!r} does not define score(input)")


async def evaluate_metric(
    metric: Metric, given: TurnInput | ConversationInput, model: Model | None, key: CallKey
) -> MetricResult:
    """The metric's value. Whatever its code raises makes it Unscored; asking a missing model, Skipped."""
    # A copy for each call: `self.llm` knows its conversation, and nothing set on `self` is shared.
    bound = copy.copy(metric)
    bound.llm = MetricModel(model, key)
    method: Any = bound.evaluate if isinstance(bound, QualitativeMetric) else getattr(bound, "score", None)
    try:
        found = method(given)
        return _score(metric, await found if inspect.isawaitable(found) else found)
    except NoModel:
        return Skipped(NO_MODEL)
    except Exception as error:  # noqa: BLE001 - the user's metric may raise anything; it becomes a record
        return Unscored(f"{type(error).__name__}: {error}")


def _score(metric: Metric, found: Any) -> Score:
    value, reason = _value_and_reason(found)
    if isinstance(metric, QualitativeMetric):
        if not isinstance(value, str) or not value:
            raise TypeError(f"evaluate() must give a label, but gave {value!r}")
        return Score(value, reason)
    if isinstance(value, bool):
        value = int(value)
    if not isinstance(value, int | float) or value != value:
        raise TypeError(f"score() must give a number, but gave {value!r}")
    return Score(value, reason)


def _value_and_reason(found: Any) -> tuple[Any, str]:
    if isinstance(found, Score):
        return found.value, found.reason
    if isinstance(found, Mapping):
        return found.get("value"), str(found.get("reason") or "")
    if isinstance(found, tuple) and len(found) == 2:
        return found[0], str(found[1])
    return found, ""
