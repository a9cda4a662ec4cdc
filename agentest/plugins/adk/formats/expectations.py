"""Expectations of a case under its key `agentest`, with the keys and values of a scenario file.

The values are stored as written, so that writing the set again does not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import AfterValidator

from agentest.domain.metrics import PASS_RATE, THRESHOLD_RANGE, TRAJECTORY_METRICS, normalize_thresholds
from agentest.scenarios.definition import parse_date
from agentest.scenarios.expectations import parse_expected_state, parse_sayings
from agentest.scenarios.model import parse_criteria
from agentest.scenarios.options import parse_state
from agentest.scenarios.trajectory_parser import parse_trajectories
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


def _not_empty(parse: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def parsed(value: Any, key: str) -> Any:
        found = parse(value, key)
        if not found:
            raise ValueError(f"{key}: is empty, so it would check nothing")
        return found

    return parsed


_PARSERS: dict[str, Callable[[Any, str], Any]] = {
    "trajectory": _not_empty(parse_trajectories),
    "expect": parse_sayings,
    "state": parse_state,
    "final_state": parse_expected_state,
    "thresholds": parse_thresholds,
    "criteria": _not_empty(parse_criteria),
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
        try:
            parse_expectations({name: value})
        except ValueError as error:
            at, _, message = str(error).removeprefix(name).partition(": ")
            raise NestedValueError(at, message) from None
        return value

    return AfterValidator(check)


def parse_expectations(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the values under a case's key `agentest`, which have been validated, to fields of a Scenario."""
    return {
        name: parse(values[name], name) for name, parse in _PARSERS.items() if values.get(name) is not None
    }


def can_fail(expectations: Mapping[str, Any]) -> bool:
    """Return True if they can fail a case: then it is evaluated even if no criterion applies."""
    required = any(criterion.required for criterion in expectations.get("criteria", ()))
    return required or any(expectations.get(name) for name in ("trajectory", "expect", "final_state"))
