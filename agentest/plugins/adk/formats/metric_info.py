"""The metadata of a custom metric: its name, default threshold, and range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Strict, model_validator
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass

from agentest.plugins.adk.formats.problems import InvalidDocument, validated
from agentest.support.json_text import safe_repr

# Numbers and flags are strict. The values are not, because they may be mappings in either spelling.
_EITHER_SPELLING = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")
_Number = Annotated[float, Strict()]
_Flag = Annotated[bool, Strict()]


@dataclass(slots=True, frozen=True, config=_EITHER_SPELLING)
class Interval:
    """A range of scores. Ends are included unless they are open."""

    min_value: _Number
    max_value: _Number
    open_at_min: _Flag = False
    open_at_max: _Flag = False

    @model_validator(mode="after")
    def _holds_something(self) -> Self:
        if not self.min_value <= self.max_value:
            raise ValueError(f"min_value {self.min_value:g} is above max_value {self.max_value:g}")
        return self

    def __contains__(self, value: float) -> bool:
        above = self.min_value < value if self.open_at_min else self.min_value <= value
        below = value < self.max_value if self.open_at_max else value <= self.max_value
        return above and below

    def __str__(self) -> str:
        if not (self.open_at_min or self.open_at_max):
            return f"from {self.min_value:g} to {self.max_value:g}"
        low = "above" if self.open_at_min else "at least"
        high = "below" if self.open_at_max else "at most"
        return f"{low} {self.min_value:g} and {high} {self.max_value:g}"


@dataclass(slots=True, frozen=True, config=_EITHER_SPELLING)
class MetricValueInfo:
    """The values that a metric can have."""

    interval: Interval | None = None  # None for any number


@dataclass(slots=True, frozen=True, config=_EITHER_SPELLING)
class MetricInfo:
    """Metadata of the metric that an evaluator measures."""

    metric_name: str
    description: str = ""
    default_threshold: _Number | None = None
    """The threshold of a criterion that gives none; None for the evaluator's own."""
    experimental: _Flag = False
    metric_value_info: MetricValueInfo | None = None

    @property
    def interval(self) -> Interval | None:
        """Return the range of its scores; None for any number."""
        return self.metric_value_info.interval if self.metric_value_info else None


def metric_info_of(info: Any) -> MetricInfo:
    """Convert a MetricInfo, a mapping in either spelling, or google-adk's object to a MetricInfo.

    Raises ValueError with a one-line explanation.
    """
    if isinstance(info, MetricInfo):
        return info
    if not isinstance(info, Mapping) and not hasattr(info, "metric_name"):
        raise ValueError(f"expected a MetricInfo or a mapping with its keys, found {safe_repr(info)}")
    values = info if isinstance(info, Mapping) else _attributes(info)
    try:
        return validated(MetricInfo, values)
    except InvalidDocument as error:
        raise ValueError(error.problems[0].message) from None


_KEYS = {field.name for shape in (MetricInfo, MetricValueInfo, Interval) for field in fields(shape)}
_PLAIN = (str, float, int, Mapping, MetricValueInfo, Interval)


def _attributes(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    return {n: _attributes(found) for n in _KEYS if (found := getattr(value, n, None)) is not None}
