"""The table of metrics: every property of a metric that is known before it is measured.

To add a metric, add an entry. The graders of ADK's metrics are checked against the table when their modules
are imported (`require_entry_for_each`), so that a missing grader is noticed at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from agentest.domain import judge_questions
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import snake_case

NO_FAILURE = "no failure"
FALSE_INFORMATION = "false information"
"""A label for which judges also report whether the known facts contradict the statement."""

GOAL = "goal_completion"  # the metric for the outcome of the user's goal

TRAJECTORY_SCORE = "trajectory_score"  # the share of a trajectory's requirements that was met

PASS_RATE = "pass_rate"  # not a metric, but a threshold on the share of conversations that pass

CRITERIA = "criteria"
"""Not a metric, but the name under which labels and calibrations count the criteria of all scenarios."""

Range = tuple[float, float]
_T = TypeVar("_T")


class Kind(StrEnum):
    """The type of a metric's value."""

    SCALE = "scale"  # an integer from 1 to 5; 5 is the best
    BINARY = "binary"  # 0 or 1
    SHARE = "share"  # a number from 0 to 1
    AMOUNT = "amount"
    """A number of any size; smaller is better. It has no threshold, so it never passes or fails."""
    LABEL = "label"
    """One of a fixed set of labels. It has no average and no threshold."""


class MetricLevel(StrEnum):
    """The scope of a metric."""

    TURN = "turn"
    CONVERSATION = "conversation"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDefinition:
    """The definition of a metric.

    Attributes:
        thresholds: the lowest and the highest valid threshold; None for labels and amounts.
        adk: True for metrics of ADK's evaluation sets, which criteria select; False for metrics of scenarios.
        judged: True if a configured judge scores the metric.
        judges_tool_calls: True if the value depends on tool calls, so that invisible calls leave it without
            one.
        question: the judge's question. Empty for ADK's metrics, whose questions include references and
            rubrics.
        terms: definitions of the question's words, placed before its points or labels. Questions in one batch
            share them.
        anchors: the meaning of the points of a scale, from 5 to 1.
        labels: label → its meaning; `no failure` first, then from worst to mildest.
        rubric_type: the type of the rubrics of cases and invocations that the metric evaluates.
        default_threshold: the threshold of a criterion that states none; None if it must state one.
        samples: the default number of judge calls for a metric of ADK.
    """

    name: str
    kind: Kind
    level: MetricLevel = MetricLevel.TURN
    thresholds: Range | None
    adk: bool = False
    judged: bool = True
    judges_tool_calls: bool = False
    question: str = ""
    terms: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    rubric_type: str | None = None
    samples: int = 5
    default_threshold: float | None = None

    def __post_init__(self) -> None:
        incomplete = {
            "question": not self.adk and self.judged and not self.question,
            "anchors": not self.adk and (self.kind is Kind.SCALE) is not bool(self.anchors),
            "labels": (self.kind is Kind.LABEL) is not bool(self.labels),
            "thresholds": (self.kind in (Kind.LABEL, Kind.AMOUNT)) is not (self.thresholds is None),
        }
        for name in (name for name, wrong in incomplete.items() if wrong):
            raise LookupError(f"the definition of the metric {self.name} has the wrong {name}")


_ONE: Range = (0.0, 1.0)
_scale = partial(MetricDefinition, kind=Kind.SCALE, thresholds=(0.0, 5.0))
_label = partial(MetricDefinition, kind=Kind.LABEL, thresholds=None)
_trajectory = partial(
    MetricDefinition,
    kind=Kind.SHARE,
    level=MetricLevel.CONVERSATION,
    thresholds=_ONE,
    judged=False,
    judges_tool_calls=True,
)
_adk = partial(MetricDefinition, adk=True, thresholds=_ONE)
_amount = partial(MetricDefinition, kind=Kind.AMOUNT, thresholds=None, adk=True, judged=False)


def _labels(meanings: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({NO_FAILURE: "none of these", **meanings})


_BUILTIN = (
    _scale(
        name="helpfulness", question=judge_questions.HELPFULNESS, anchors=judge_questions.HELPFULNESS_POINTS
    ),
    _scale(name="coherence", question=judge_questions.COHERENCE, anchors=judge_questions.COHERENCE_POINTS),
    _scale(name="relevance", question=judge_questions.RELEVANCE, anchors=judge_questions.RELEVANCE_POINTS),
    _scale(
        name="faithfulness",
        question=judge_questions.FAITHFULNESS,
        anchors=judge_questions.FAITHFULNESS_POINTS,
        terms=(judge_questions.EVIDENCE,),
    ),
    _scale(name="verbosity", question=judge_questions.VERBOSITY, anchors=judge_questions.VERBOSITY_POINTS),
    MetricDefinition(
        name=GOAL,
        kind=Kind.BINARY,
        level=MetricLevel.CONVERSATION,
        thresholds=_ONE,
        question=judge_questions.GOAL_COMPLETION,
    ),
    _label(
        name="agent_behavior_failure",
        question=judge_questions.BEHAVIOR,
        labels=_labels(judge_questions.BEHAVIOR_LABELS),
        terms=(judge_questions.EVIDENCE, judge_questions.FAILURE),
    ),
    _label(
        name="tool_call_behavior_failure",
        question=judge_questions.TOOL_USE,
        labels=_labels(judge_questions.TOOL_USE_LABELS),
        terms=(judge_questions.FAILURE,),
        judges_tool_calls=True,
    ),
)
_whole_adk = partial(_adk, kind=Kind.SHARE, level=MetricLevel.CONVERSATION)
_ADK = (
    _adk(name="tool_trajectory_avg_score", kind=Kind.BINARY, judged=False, judges_tool_calls=True),
    _adk(name="tool_trajectory_f1", kind=Kind.SHARE, judged=False, judges_tool_calls=True),
    _adk(name="response_match_score", kind=Kind.SHARE, judged=False),
    _adk(name="reference_answer_match", kind=Kind.BINARY),
    _adk(name="response_evaluation_score", kind=Kind.SCALE, thresholds=(1.0, 5.0), samples=1),
    _adk(name="final_response_match_v2", kind=Kind.BINARY),
    _adk(
        name="rubric_based_final_response_quality_v1", kind=Kind.SHARE, rubric_type="FINAL_RESPONSE_QUALITY"
    ),
    _adk(
        name="rubric_based_tool_use_quality_v1",
        kind=Kind.SHARE,
        rubric_type="TOOL_USE_QUALITY",
        judges_tool_calls=True,
    ),
    _adk(name="hallucinations_v1", kind=Kind.SHARE, samples=1),
    _adk(name="safety_v1", kind=Kind.BINARY, samples=1),
    _adk(name="per_turn_user_simulator_quality_v1", kind=Kind.BINARY),
    _adk(name="final_session_state_match", kind=Kind.BINARY, judged=False, default_threshold=1.0),
    _adk(name="intermediate_responses_match", kind=Kind.BINARY, judged=False, default_threshold=1.0),
    _whole_adk(name="multi_turn_task_success_v1", samples=1),
    _whole_adk(name="multi_turn_trajectory_quality_v1", judges_tool_calls=True, samples=1),
    _whole_adk(name="multi_turn_tool_use_quality_v1", judges_tool_calls=True, samples=1),
    _whole_adk(
        name="rubric_based_multi_turn_trajectory_quality_v1",
        rubric_type="TRAJECTORY_QUALITY",
        judges_tool_calls=True,
    ),
    _amount(name="tool_call_count_v1", judges_tool_calls=True),
    _amount(name="inference_call_count_v1"),
    _amount(name="token_usage_v1"),
    _amount(name="invocation_duration_v1"),
)
_TRAJECTORY = (
    _trajectory(name=TRAJECTORY_SCORE),
    _trajectory(name="trajectory_precision"),
    _trajectory(name="trajectory_recall"),
    _trajectory(name="trajectory_f1"),
)


def _by_name(metrics: Iterable[MetricDefinition]) -> Mapping[str, MetricDefinition]:
    table: dict[str, MetricDefinition] = {}
    for metric in metrics:
        if metric.name in table or metric.name == PASS_RATE:
            raise LookupError(f"the metric {metric.name} is defined twice")
        table[metric.name] = metric
    return MappingProxyType(table)


METRICS = _by_name((*_BUILTIN, *_TRAJECTORY, *_ADK))

BUILTIN = _by_name(_BUILTIN)  # the metrics that Agentest measures in scenarios

TRAJECTORY_METRICS = _by_name(_TRAJECTORY)
"""Partial credit for trajectories.

Measured only if a threshold names one; then it alone decides about calls.
"""

ADK_METRICS = _by_name(_ADK)

ABOUT_CALLS = frozenset(metric.name for metric in METRICS.values() if metric.judges_tool_calls)
"""The names of metrics that judge tool calls, including those of evaluation sets."""

LATENCY_P95, COST = "latency_p95_ms", "cost"
LIMITS = (LATENCY_P95, COST)
"""Thresholds that are upper limits: of the agent's latency, and of the cost of its models."""
THRESHOLD_RANGE: Mapping[str, Range] = {
    **{m.name: m.thresholds for m in (*_BUILTIN, *_TRAJECTORY) if m.thresholds},
    PASS_RATE: _ONE,
    **dict.fromkeys(LIMITS, (0.0, math.inf)),
}
"""The metrics that a scenario's thresholds can name, with the range of valid thresholds."""


def require_entry_for_each(metrics: Iterable[MetricDefinition], table: Mapping[str, _T]) -> Mapping[str, _T]:
    """Return the table after a check that it has exactly one entry for each metric. Raises LookupError."""
    names = {metric.name for metric in metrics}
    if names != table.keys():
        raise LookupError(f"entries are missing or unknown: {', '.join(sorted(names ^ table.keys()))}")
    return table


_SCALES: Mapping[Kind, Range] = {Kind.SCALE: (1.0, 5.0), Kind.BINARY: _ONE, Kind.SHARE: _ONE}


def scale_of(name: str) -> Range | None:
    """Return the lowest and the highest value of a metric; None if unknown, as for custom metrics."""
    metric = METRICS.get(name)
    return _SCALES.get(metric.kind) if metric else None


def metric_name(name: str) -> str:
    """Return a built-in metric's canonical name; return other names (custom metrics) unchanged."""
    snake = snake_case(name)
    return snake if snake in THRESHOLD_RANGE or snake in BUILTIN else name


def _short_repr(value: object) -> str:
    from agentest.support.json_text import safe_repr  # slow to import: only for errors
    from agentest.support.text import shortened

    return shortened(safe_repr(value))


def normalize_thresholds(thresholds: Mapping[str, float]) -> dict[str, float]:
    """Return thresholds under canonical names. Raises ValueError for a value that is not a finite number."""
    normal: dict[str, float] = {}
    for name, value in thresholds.items():
        if not isinstance(name, str):
            raise ValueError(f"expected the name of a metric, found {_short_repr(name)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"the threshold of `{name}` must be a number, but is {_short_repr(value)}")
        if metric_name(name) in normal:
            raise ValueError(f"`{metric_name(name)}` is given twice, in both spellings")
        normal[metric_name(name)] = float(value)
    return normal
