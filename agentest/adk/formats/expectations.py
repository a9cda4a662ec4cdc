"""Expectations of a case under its key `agentest`, with the keys and values of a scenario file.

The values are stored as written, so that writing the set again does not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from pydantic import AfterValidator

from agentest.domain.metrics import PASS_RATE, THRESHOLD_RANGE, TRAJECTORY_METRICS, normalize_thresholds
from agentest.scenarios.definition import parse_date
from agentest.scenarios.expectations import Saying, parse_expected_state, parse_sayings
from agentest.scenarios.model import Criterion, parse_criteria
from agentest.scenarios.options import parse_state
from agentest.scenarios.trajectory import Trajectory
from agentest.scenarios.trajectory_parser import parse_trajectories
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean

CASE_THRESHOLDS = (PASS_RATE, *TRAJECTORY_METRICS)
"""Metrics for which a case can set thresholds. Other thresholds belong to the criteria."""


def parse_thresholds(value: Any, key: str) -> dict[str, float]:
    """Parse a case's thresholds of metrics that are not criteria."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{key}: expected an object from metric to number, found {value!r}")
    try:
        thresholds = normalize_thresholds(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    for name, least in thresholds.items():
        if name not in CASE_THRESHOLDS:
            hint = did_you_mean(name, CASE_THRESHOLDS)
            raise ValueError(
                f"{key}: `{name}` can have no threshold here; {hint}. Other metrics have theirs in the "
                "criteria (test_config.json)"
            )
        low, high = THRESHOLD_RANGE[name]
        if not low <= least <= high:
            raise ValueError(f"{key}.{name}: {least:g} is not between {low:g} and {high:g}")
    return thresholds


def _some_criteria(value: Any, key: str) -> tuple[Criterion, ...]:
    criteria = parse_criteria(value, key)
    if not criteria:
        raise ValueError(f"{key}: is empty, so it would check nothing")
    return criteria


def _some_trajectories(value: Any, key: str) -> tuple[Trajectory, ...]:
    trajectories = parse_trajectories(value, key)
    if not trajectories:
        raise ValueError(f"{key}: is empty, so it would check nothing")
    return trajectories


_PARSERS: dict[str, Callable[[Any, str], Any]] = {
    "trajectory": _some_trajectories,
    "expect": parse_sayings,
    "state": parse_state,
    "final_state": parse_expected_state,
    "thresholds": parse_thresholds,
    "criteria": _some_criteria,
    "date": parse_date,
}


class NestedValueError(ValueError):
    """An invalid nested value. `at` is its path, such as `[0].expected`."""

    def __init__(self, at: str, message: str) -> None:
        super().__init__(message)
        self.at = at


def validated_as(name: str) -> AfterValidator:
    """Validate a value by the rules of this scenario key; failures are ValueErrors."""

    def check(value: Any) -> Any:
        if value is not None:
            _check(name, value)
        return value

    return AfterValidator(check)


def _check(name: str, value: Any) -> None:
    try:
        _PARSERS[name](value, name)
    except ValueError as error:
        at, _, message = str(error).removeprefix(name).partition(": ")
        raise NestedValueError(at, message) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseExpectations:
    """What a case must fulfill in addition to its criteria, as in a scenario."""

    trajectory: tuple[Trajectory, ...] = ()
    expect: tuple[Saying, ...] = ()
    state: Mapping[str, Any] | None = None
    final_state: Mapping[str, Any] | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    criteria: tuple[Criterion, ...] = ()
    date: str | None = None

    @property
    def decide(self) -> bool:
        """Return True if they can fail a case: then it is evaluated even if no criterion applies."""
        return bool(self.trajectory or self.expect or self.final_state or self._required)

    @property
    def _required(self) -> bool:
        return any(criterion.required for criterion in self.criteria)


def parse_case_expectations(values: Mapping[str, Any]) -> CaseExpectations:
    """Parse the values under a case's key `agentest`, which have been validated."""
    return CaseExpectations(
        **{
            name: parse(values[name], name)
            for name, parse in _PARSERS.items()
            if values.get(name) is not None
        }
    )
