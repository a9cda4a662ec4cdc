"""The table of metrics: everything that is known about a metric before it is measured.

Adding a metric is adding an entry. The graders of ADK's metrics are tied to the table when their modules are
imported (`one_for_each`), so that a missing one is noticed at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

import agentest.domain.judge_text as asked
from agentest.domain.judge_text import Anchors
from agentest.support.spelling import snake_case

NO_FAILURE = "no failure"
FALSE_INFORMATION = "false information"
"""The label of which judges say whether the known facts contradict it, or just do not bear it out."""

GOAL = "goal_completion"
"""The metric that says what became of the user's goal."""

TRAJECTORY_SCORE = "trajectory_score"
"""The share of what trajectories demand that was met."""

PASS_RATE = "pass_rate"
"""Not a metric: a threshold on the share of conversations that pass."""

CRITERIA = "criteria"
"""Not a metric: what labels and calibrations count all criteria of scenarios under."""

Range = tuple[float, float]
_T = TypeVar("_T")


class Kind(StrEnum):
    """What a metric's value is."""

    SCALE = "scale"
    """An integer from 1 to 5, 5 the best."""
    BINARY = "binary"
    """0 or 1."""
    SHARE = "share"
    """A number from 0 to 1."""
    AMOUNT = "amount"
    """A number of any size, the smaller the better; has no threshold: it never passes or fails."""
    LABEL = "label"
    """One of a fixed set of labels; has no average and no threshold."""


class MetricLevel(StrEnum):
    """What a metric scores."""

    TURN = "turn"
    CONVERSATION = "conversation"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDefinition:
    """What is known about a metric.

    Attributes:
        thresholds: the least and the highest threshold that makes sense; None for labels and amounts.
        adk: whether it is a metric of ADK's evaluation sets, which a criterion asks for; else one that
            Agentest measures in scenarios.
        judged: whether a judge is asked, where one is configured.
        judges_tool_calls: whether tool calls decide the value: it has none where they cannot be seen.
        question: what the judge is asked. ADK's metrics have none here: their questions show references and
            rubrics (`evalset.metrics.prompts`).
        terms: what the question's words mean, before its points or labels; questions that are asked together
            share them.
        anchors: what the points of a scale mean.
        labels: label → what it means, `no failure` first, then the others, the worst first.
        rubric_type: the type of the rubrics of cases and invocations that the metric asks about.
        default_threshold: what a criterion that names no threshold must reach; None: it has to name one.
        samples: how often the judge of one of ADK's metrics is asked, where the criterion does not say it.
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
    anchors: Anchors | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    rubric_type: str | None = None
    samples: int = 5
    default_threshold: float | None = None

    def __post_init__(self) -> None:
        incomplete = {
            "question": not self.adk and self.judged and not self.question,
            "anchors": not self.adk and (self.kind is Kind.SCALE) is (self.anchors is None),
            "labels": (self.kind is Kind.LABEL) is not bool(self.labels),
            "thresholds": (self.kind in (Kind.LABEL, Kind.AMOUNT)) is not (self.thresholds is None),
        }
        for name in (name for name, wrong in incomplete.items() if wrong):
            raise LookupError(f"the definition of the metric {self.name} has the wrong {name}")


def _scale(
    name: str,
    question: str,
    anchors: Anchors,
    terms: tuple[str, ...] = (),
) -> MetricDefinition:
    return MetricDefinition(
        name=name,
        kind=Kind.SCALE,
        thresholds=(0.0, 5.0),
        question=question,
        terms=terms,
        anchors=anchors,
    )


def _labels(
    name: str,
    question: str,
    labels: Mapping[str, str],
    terms: tuple[str, ...],
    judges_tool_calls: bool = False,
) -> MetricDefinition:
    return MetricDefinition(
        name=name,
        kind=Kind.LABEL,
        thresholds=None,
        judges_tool_calls=judges_tool_calls,
        question=question,
        terms=terms,
        labels=MappingProxyType({NO_FAILURE: "none of these", **labels}),
    )


def _adk(
    name: str,
    kind: Kind = Kind.SHARE,
    *,
    level: MetricLevel = MetricLevel.TURN,
    thresholds: Range = (0.0, 1.0),
    judged: bool = True,
    judges_tool_calls: bool = False,
    rubric_type: str | None = None,
    samples: int = 5,
    default_threshold: float | None = None,
) -> MetricDefinition:
    return MetricDefinition(
        name=name,
        kind=kind,
        level=level,
        thresholds=thresholds,
        adk=True,
        judged=judged,
        judges_tool_calls=judges_tool_calls,
        rubric_type=rubric_type,
        samples=samples,
        default_threshold=default_threshold,
    )


def _amount(name: str, *, judges_tool_calls: bool = False) -> MetricDefinition:
    return MetricDefinition(
        name=name,
        kind=Kind.AMOUNT,
        thresholds=None,
        adk=True,
        judged=False,
        judges_tool_calls=judges_tool_calls,
    )


_BUILTIN = (
    _scale("helpfulness", asked.HELPFULNESS, asked.HELPFULNESS_POINTS),
    _scale("coherence", asked.COHERENCE, asked.COHERENCE_POINTS),
    _scale("relevance", asked.RELEVANCE, asked.RELEVANCE_POINTS),
    _scale("faithfulness", asked.FAITHFULNESS, asked.FAITHFULNESS_POINTS, terms=(asked.EVIDENCE,)),
    _scale("verbosity", asked.VERBOSITY, asked.VERBOSITY_POINTS),
    MetricDefinition(
        name=GOAL,
        kind=Kind.BINARY,
        level=MetricLevel.CONVERSATION,
        thresholds=(0.0, 1.0),
        question=asked.GOAL_COMPLETION,
    ),
    _labels("agent_behavior_failure", asked.BEHAVIOR, asked.BEHAVIOR_LABELS, (asked.EVIDENCE, asked.FAILURE)),
    _labels(
        "tool_call_behavior_failure",
        asked.TOOL_USE,
        asked.TOOL_USE_LABELS,
        (asked.FAILURE,),
        judges_tool_calls=True,
    ),
)

_ADK = (
    _adk("tool_trajectory_avg_score", Kind.BINARY, judged=False, judges_tool_calls=True),
    _adk("tool_trajectory_f1", judged=False, judges_tool_calls=True),
    _adk("response_match_score", judged=False),
    _adk("reference_answer_match", Kind.BINARY),
    _adk("response_evaluation_score", Kind.SCALE, thresholds=(1.0, 5.0), samples=1),
    _adk("final_response_match_v2", Kind.BINARY),
    _adk("rubric_based_final_response_quality_v1", rubric_type="FINAL_RESPONSE_QUALITY"),
    _adk("rubric_based_tool_use_quality_v1", rubric_type="TOOL_USE_QUALITY", judges_tool_calls=True),
    _adk("hallucinations_v1", samples=1),
    _adk("safety_v1", Kind.BINARY, samples=1),
    _adk("per_turn_user_simulator_quality_v1", Kind.BINARY),
    _adk("final_session_state_match", Kind.BINARY, judged=False, default_threshold=1.0),
    _adk("intermediate_responses_match", Kind.BINARY, judged=False, default_threshold=1.0),
    _adk("multi_turn_task_success_v1", level=MetricLevel.CONVERSATION, samples=1),
    _adk(
        "multi_turn_trajectory_quality_v1",
        level=MetricLevel.CONVERSATION,
        judges_tool_calls=True,
        samples=1,
    ),
    _adk("multi_turn_tool_use_quality_v1", level=MetricLevel.CONVERSATION, judges_tool_calls=True, samples=1),
    _adk(
        "rubric_based_multi_turn_trajectory_quality_v1",
        level=MetricLevel.CONVERSATION,
        rubric_type="TRAJECTORY_QUALITY",
        judges_tool_calls=True,
    ),
    _amount("tool_call_count_v1", judges_tool_calls=True),
    _amount("inference_call_count_v1"),
    _amount("token_usage_v1"),
    _amount("invocation_duration_v1"),
)


def _of_trajectory(name: str) -> MetricDefinition:
    return MetricDefinition(
        name=name,
        kind=Kind.SHARE,
        level=MetricLevel.CONVERSATION,
        thresholds=(0.0, 1.0),
        judged=False,
        judges_tool_calls=True,
    )


_OF_TRAJECTORIES = (
    _of_trajectory(TRAJECTORY_SCORE),
    _of_trajectory("trajectory_precision"),
    _of_trajectory("trajectory_recall"),
    _of_trajectory("trajectory_f1"),
)


def _by_name(metrics: Iterable[MetricDefinition]) -> Mapping[str, MetricDefinition]:
    table: dict[str, MetricDefinition] = {}
    for metric in metrics:
        if metric.name in table or metric.name == PASS_RATE:
            raise LookupError(f"the metric {metric.name} is defined twice")
        table[metric.name] = metric
    return MappingProxyType(table)


METRICS = _by_name((*_BUILTIN, *_OF_TRAJECTORIES, *_ADK))
"""Every metric but the users' own."""

BUILTIN = _by_name(_BUILTIN)
"""What Agentest measures in scenarios."""

TRAJECTORY_METRICS = _by_name(_OF_TRAJECTORIES)
"""Partial credit for trajectories: measured where a threshold names it; calls then decide by that alone."""

ADK_METRICS = _by_name(_ADK)
"""What the criteria of evaluation sets may name."""

ABOUT_CALLS = frozenset(metric.name for metric in METRICS.values() if metric.judges_tool_calls)
"""What judges tool calls, metrics of evaluation sets included."""

THRESHOLD_RANGE: Mapping[str, Range] = {
    **{m.name: m.thresholds for m in (*_BUILTIN, *_OF_TRAJECTORIES) if m.thresholds},
    PASS_RATE: (0.0, 1.0),
}
"""What a scenario's thresholds may name, and between which values they lie."""


def one_for_each(metrics: Iterable[MetricDefinition], table: Mapping[str, _T]) -> Mapping[str, _T]:
    """The table, which has one entry for each of the metrics and no other. Raises LookupError."""
    names = {metric.name for metric in metrics}
    if names != table.keys():
        raise LookupError(f"entries are missing or unknown: {', '.join(sorted(names ^ table.keys()))}")
    return table


_SCALES: Mapping[Kind, Range] = {Kind.SCALE: (1.0, 5.0), Kind.BINARY: (0.0, 1.0), Kind.SHARE: (0.0, 1.0)}


def scale_of(name: str) -> Range | None:
    """The least and the highest value of a metric; None where that is not known, as of the users' own."""
    metric = METRICS.get(name)
    return _SCALES.get(metric.kind) if metric else None


def metric_name(name: str) -> str:
    """A built-in metric's name in its own spelling; other names (custom metrics) as they are."""
    snake = snake_case(name)
    return snake if snake in THRESHOLD_RANGE or snake in BUILTIN else name


def _shown(value: object) -> str:
    from agentest.support.json_text import safe_repr  # takes long to import: only for errors
    from agentest.support.text import shortened

    return shortened(safe_repr(value))


def normal_thresholds(thresholds: Mapping[str, float]) -> dict[str, float]:
    """Thresholds under the metrics' own names. Raises ValueError for one that is no finite number."""
    normal: dict[str, float] = {}
    for name, value in thresholds.items():
        if not isinstance(name, str):
            raise ValueError(f"expected the name of a metric, found {_shown(name)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"the threshold of `{name}` must be a number, but is {_shown(value)}")
        if metric_name(name) in normal:
            raise ValueError(f"`{metric_name(name)}` is given twice, in both spellings")
        normal[metric_name(name)] = float(value)
    return normal
