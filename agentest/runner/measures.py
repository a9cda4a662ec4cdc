"""Metrics and thresholds as users name them, checked; and metrics of their own, loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentest.domain.metrics import BUILTIN, THRESHOLD_RANGE, TRAJECTORY_METRICS, Kind
from agentest.judging.custom import Metric
from agentest.support.errors import ConfigError
from agentest.support.importing import import_object
from agentest.support.spelling import did_you_mean


def check_metrics(names: Sequence[str], custom: set[str]) -> None:
    """Raise ConfigError for a metric that does not exist."""
    for name in names:
        if name in TRAJECTORY_METRICS:
            raise ConfigError(f"metrics: {name} is measured where `thresholds` names it; write it there")
        if name not in BUILTIN and name not in custom:
            raise ConfigError(
                f"metrics: there is no metric {name!r}; {did_you_mean(name, {*BUILTIN, *custom})}"
            )


def check_thresholds(thresholds: Mapping[str, float], custom: set[str]) -> None:
    """Raise ConfigError for a threshold on what has no average, or out of its range."""
    valid = {*THRESHOLD_RANGE, *custom}
    for name, least in thresholds.items():
        if name in BUILTIN and BUILTIN[name].kind is Kind.LABEL:
            raise ConfigError(
                f"thresholds: {name} gives labels, not numbers; see fail_on_error_severity for failures"
            )
        if name not in valid:
            raise ConfigError(f"thresholds: there is no metric {name!r}; {did_you_mean(name, valid)}")
        low, high = THRESHOLD_RANGE.get(name, (float("-inf"), float("inf")))
        if not low <= least <= high:
            raise ConfigError(f"thresholds.{name}: {least:g} is not between {low:g} and {high:g}")


def load_custom_metrics(items: Sequence[Any], root: Path) -> tuple[Metric, ...]:
    """The custom metrics of a configuration: import paths, classes or instances."""
    metrics: dict[str, Metric] = {}
    for i, item in enumerate(items):
        metric = _custom_metric(item, f"custom_metrics[{i}]", root)
        if metric.name in {*BUILTIN, *THRESHOLD_RANGE, *metrics}:
            raise ConfigError(f"custom_metrics[{i}]: the name {metric.name!r} is taken")
        metrics[metric.name] = metric
    return tuple(metrics.values())


def _custom_metric(item: Any, key: str, root: Path) -> Metric:
    try:
        metric = import_object(item, root) if isinstance(item, str) else item
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None
    if isinstance(metric, type) and issubclass(metric, Metric):
        try:
            metric = metric()
        except Exception as error:  # noqa: BLE001 - the user's class may raise anything
            raise ConfigError(f"{key}: {metric.__name__}() raised {type(error).__name__}: {error}") from None
    if not isinstance(metric, Metric):
        raise ConfigError(
            f"{key}: {item!r} is no metric; "
            "subclass QuantitativeMetric, QualitativeMetric or ConversationMetric"
        )
    return metric
