"""Names and scales of the built-in metrics (contract, section 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

from agentest.support.spelling import snake_case

NO_FAILURE = "no failure"


class Kind(StrEnum):
    """What a metric's value is, and so what a threshold on it may be."""

    SCALE = "scale"
    """An integer from 1 to 5, 5 the best."""
    BINARY = "binary"
    """0 or 1."""
    LABEL = "label"
    """One of a fixed set of labels; has no average and no threshold."""


BUILTIN: dict[str, Kind] = {
    "helpfulness": Kind.SCALE,
    "coherence": Kind.SCALE,
    "relevance": Kind.SCALE,
    "faithfulness": Kind.SCALE,
    "verbosity": Kind.SCALE,
    "goal_completion": Kind.BINARY,
    "agent_behavior_failure": Kind.LABEL,
    "tool_call_behavior_failure": Kind.LABEL,
}


LABELS: dict[str, tuple[str, ...]] = {
    "agent_behavior_failure": (
        NO_FAILURE,
        "repetition",
        "failure to ask for clarification",
        "lack of specific information",
        "disobey user request",
        "false information",
        "unsafe action",
        "unsafe state",
    ),
    "tool_call_behavior_failure": (
        NO_FAILURE,
        "unnecessary tool call",
        "wrong tool",
        "wrong arguments",
        "ignored tool result",
        "missing tool call",
        "repeated tool call",
    ),
}


TOOL_CALLS = "tool_call_behavior_failure"


ABOUT_CALLS = (
    TOOL_CALLS,
    "tool_trajectory_avg_score",
    "tool_trajectory_f1",
    "rubric_based_tool_use_quality_v1",
)
"""What judges tool calls, metrics of evaluation sets included."""


PASS_RATE = "pass_rate"
"""Not a metric: a threshold on the share of conversations that pass."""


THRESHOLD_RANGE: dict[str, tuple[float, float]] = {
    **{name: (0.0, 5.0) for name, kind in BUILTIN.items() if kind is Kind.SCALE},
    **{name: (0.0, 1.0) for name, kind in BUILTIN.items() if kind is Kind.BINARY},
    PASS_RATE: (0.0, 1.0),
}


def metric_name(name: str) -> str:
    """A built-in metric's name in its own spelling; other names (custom metrics) as they are."""
    snake = snake_case(name)
    return snake if snake in BUILTIN or snake == "pass_rate" else name


def normal_thresholds(given: Mapping[str, float]) -> dict[str, float]:
    """Thresholds under the metrics' own names. Raises ValueError for one that is no finite number."""
    thresholds: dict[str, float] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise ValueError(f"expected the name of a metric, found {name!r}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"the threshold of `{name}` must be a number, but is {value!r}")
        if metric_name(name) in thresholds:
            raise ValueError(f"`{metric_name(name)}` is given twice, in both spellings")
        thresholds[metric_name(name)] = float(value)
    return thresholds
