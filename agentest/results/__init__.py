"""Results: frozen values from one score up to the whole run.

`evaluate` makes scores and trajectories, `verdict` the verdicts, `run` puts them together, and `report` only
reads them.
"""

from agentest.results.evaluations import (
    NO_MODEL,
    STATE_CHECKS,
    CaseId,
    CheckResult,
    ConversationResult,
    Deduplication,
    ErrorExample,
    ErrorGroup,
    LabelledFailure,
    MetricResult,
    Reference,
    ReferenceCall,
    RubricScore,
    Score,
    Severity,
    Skipped,
    TrajectoryResult,
    TurnEvaluation,
    Unscored,
)
from agentest.results.run import (
    ROLES,
    ModelUsage,
    RunResult,
    RunWarning,
    ScenarioResult,
    SlowTurn,
    Totals,
)
from agentest.results.verdicts import (
    MetricVerdict,
    Reason,
    ReasonKind,
    Status,
    Verdict,
)

__all__ = [
    "NO_MODEL",
    "ROLES",
    "STATE_CHECKS",
    "CaseId",
    "CheckResult",
    "ConversationResult",
    "Deduplication",
    "ErrorExample",
    "ErrorGroup",
    "LabelledFailure",
    "MetricResult",
    "MetricVerdict",
    "ModelUsage",
    "Reason",
    "ReasonKind",
    "Reference",
    "ReferenceCall",
    "RubricScore",
    "RunResult",
    "RunWarning",
    "ScenarioResult",
    "Score",
    "Severity",
    "Skipped",
    "SlowTurn",
    "Status",
    "Totals",
    "TrajectoryResult",
    "TurnEvaluation",
    "Unscored",
    "Verdict",
]
