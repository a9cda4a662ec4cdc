"""The table of metrics: missing or incomplete entries fail when Agentest is imported."""

from __future__ import annotations

from typing import Any

import pytest

from agentest.domain.metrics import (
    ABOUT_CALLS,
    ADK_METRICS,
    BUILTIN,
    LIMITS,
    METRICS,
    PASS_RATE,
    THRESHOLD_RANGE,
    TRAJECTORY_METRICS,
    Kind,
    MetricDefinition,
    require_entry_for_each,
)

ANCHORS = ("good", "all right", "fair", "poor", "bad")
WHOLE: dict[Kind, dict[str, Any]] = {
    Kind.SCALE: {"question": "How?", "anchors": ANCHORS, "thresholds": (0, 5)},
    Kind.BINARY: {"question": "Is it?", "thresholds": (0, 1)},
    Kind.LABEL: {"question": "Which?", "labels": {"no failure": "none"}, "thresholds": None},
}


@pytest.mark.parametrize("kind", WHOLE)
def test_incomplete_definitions_are_refused(kind: Kind) -> None:
    """A definition needs its question, anchors, labels and range."""
    whole = {"name": "tone", "kind": kind, "thresholds": None, **WHOLE[kind]}
    assert MetricDefinition(**whole).name == "tone"
    for missing in WHOLE[kind]:
        if whole[missing] is None:
            continue
        empty: Any = {"question": "", "labels": {}}.get(missing)
        with pytest.raises(LookupError, match=f"tone has the wrong {missing}"):
            MetricDefinition(**{**whole, missing: empty})


def test_labels_have_no_thresholds() -> None:
    """A metric of labels has no average, so it cannot have a range of thresholds."""
    with pytest.raises(LookupError, match="wrong thresholds"):
        MetricDefinition(name="x", kind=Kind.LABEL, **{**WHOLE[Kind.LABEL], "thresholds": (0, 1)})


def test_a_table_has_one_entry_for_each_metric() -> None:
    """A table with a missing or unknown metric is refused with its name."""
    metrics = list(ADK_METRICS.values())
    table = {metric.name: metric for metric in metrics}
    assert require_entry_for_each(metrics, table) is table
    with pytest.raises(LookupError, match="safety_v1"):
        require_entry_for_each(metrics, {name: 1 for name in table if name != "safety_v1"})
    with pytest.raises(LookupError, match="vibes"):
        require_entry_for_each(metrics, {**table, "vibes": table["safety_v1"]})


def test_tables_are_complete_and_disjoint() -> None:
    """Scenarios and evaluation sets share no metric, and together have all of them."""
    assert [*BUILTIN, *TRAJECTORY_METRICS, *ADK_METRICS] == [*METRICS]
    of_scenarios = {**BUILTIN, **TRAJECTORY_METRICS}
    with_range = {name for name, metric in of_scenarios.items() if metric.thresholds}
    assert with_range | {PASS_RATE, *LIMITS} == set(THRESHOLD_RANGE)
    assert {name for name in METRICS if "tool" in name or "trajectory" in name} == ABOUT_CALLS
