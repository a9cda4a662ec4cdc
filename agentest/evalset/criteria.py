"""What an evaluation is held to: the criteria of a `test_config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentest.evalset.model import Rubric

STOP_SIGNAL = "</finished>"
MAX_INVOCATIONS = 20


class MatchType(StrEnum):
    """How tool calls are compared."""

    EXACT = "EXACT"
    IN_ORDER = "IN_ORDER"
    ANY_ORDER = "ANY_ORDER"


@dataclass(frozen=True, slots=True)
class Criterion:
    """A metric, the score it must reach, and how it is measured. Metrics use the options they know."""

    metric: str
    threshold: float
    match_type: MatchType = MatchType.EXACT
    ignore_args: bool = False
    any_args_where_absent: bool = False
    """Whether an expected call without arguments matches any (ADK-TypeScript's `expected_tool_calls`)."""
    judge_model: str | None = None
    """The model that the file names; the configured judge answers in its place."""
    num_samples: int | None = None
    """How often a judge is asked; None: the metric's own default."""
    rubrics: tuple[Rubric, ...] = ()
    evaluate_intermediate_nl_responses: bool = False
    include_intermediate_responses_in_final: bool = False
    stop_signal: str = STOP_SIGNAL
    given: Mapping[str, Any] = field(default_factory=dict)
    """The criterion as it was written, for custom evaluators."""


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A metric of the user's own: the import path of a function or of an Evaluator."""

    path: str
    info: Mapping[str, Any] | None = None
    description: str = ""


@dataclass(frozen=True, slots=True)
class UserSimulator:
    """How the simulated user is led. The configured user model answers in place of `model`."""

    model: str | None = None
    max_allowed_invocations: int = MAX_INVOCATIONS
    custom_instructions: str = ""


@dataclass(frozen=True, slots=True)
class Criteria:
    """Everything a `test_config.json` says."""

    criteria: tuple[Criterion, ...]
    custom: Mapping[str, CustomMetric] = field(default_factory=dict)
    user: UserSimulator = UserSimulator()  # noqa: RUF009 - frozen
    adapts: bool = False
    """Whether a criterion is left out for a case that has no data for it: so with the default criteria."""
    source: Path | None = None


DEFAULT = Criteria(
    (Criterion("tool_trajectory_avg_score", 1.0), Criterion("response_match_score", 0.8)), adapts=True
)
