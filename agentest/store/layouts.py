"""How each stored value is laid out in its file: what its fields do not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.domain.end_reason import ending_of_older
from agentest.domain.results import (
    AlignedRow,
    CauseExample,
    CausePlace,
    CheckResult,
    CriterionResult,
    ErrorGroup,
    ModelUsage,
    Reason,
    RootCause,
    RunResult,
    ScenarioCause,
    Score,
    Skipped,
    TrajectoryResult,
    TurnEvaluation,
    Unscored,
    VerdictWarning,
)
from agentest.domain.transcript import (
    Conversation,
    Failure,
    Remark,
    ServerOutput,
    ToolCall,
    Turn,
    UnfinishedTurn,
)
from agentest.store.codec import Codecs, Layout
from agentest.store.lines import ScenarioLine
from agentest.store.shapes import (
    AdkCase,
    Counts,
    RunHead,
    RunUsage,
    StoredAgent,
    StoredCheck,
    StoredComparison,
    StoredConversation,
    StoredEntry,
    StoredFailure,
    StoredRun,
    StoredScenario,
    StoredSlowTurn,
    StoredTime,
    StoredTrajectory,
    StoredTrajectoryScore,
    Summary,
    TurnScores,
    TurnTrajectory,
)


def _agents(data: Any) -> Any:
    """Agents of a file of version 1, by name."""
    return {name: {} for name in data} if isinstance(data, list) else data


def _verdict_warnings(data: Any) -> Any:
    """The warnings that question a verdict: older files have texts of other warnings in their place."""
    return [each for each in data if not isinstance(each, str)]


_ALIGNMENT = ("alignment", "alignment_more")
_SEVERAL = ("broken", "counted", "name", "score", "parts")
_SIDES = ("mode", "expected", "forbidden", "actual")
_ALL_BUT_THE_MESSAGE = (
    *("conversation_id", "turn_index", "metric", "expected", "actual"),
    *("group", "check", "trajectory", "criterion"),
)

CODECS = Codecs(
    {
        Remark: Layout(only_if_set=("calls_before",)),
        ToolCall: Layout(
            order=("name", "args", "result", "mocked", "seen_by", "also_seen_by", "call_id"),
            only_if_set=(
                *("also_seen_by", "call_id", "duration_ms", "round"),
                *("raised", "approval", "by_real_tool"),
            ),
            names={"call_id": "id"},
        ),
        Turn: Layout(
            order=(
                "turn_index",
                "user_message",
                "agent_message",
                "tool_calls",
                "latency_ms",
                "retries",
                "requests",
            ),
            only_if_set=(
                "author",
                "state_after",
                "state_error",
                "model_calls",
                "first_token_ms",
                "tells_calls",
                "calls_hidden",
                "call_refused",
                "started_at",
                "user_ms",
                "tools_ms",
                "asked_calls",
                "redacted",
            ),
        ),
        UnfinishedTurn: Layout(
            only_if_set=("server_output", "started_at", "user_ms", "tools_ms", "agent_ms", "redacted")
        ),
        ServerOutput: Layout(only_if_set=("lines_before", "exit_status")),
        Score: Layout(
            left_out=("rubrics",), only_if_set=("samples", "labels", "outcome", "evidence", "severity")
        ),
        CriterionResult: Layout(only_if_set=("samples",)),
        ErrorGroup: Layout(only_if_set=("fails",)),
        StoredFailure: Layout(only_if_set=("severity",)),
        Unscored: Layout(only_if_set=("own_code",)),
        Skipped: Layout(names={"why": "skipped"}),
        ModelUsage: Layout(order=("calls", "retries"), flat=("tokens",), digits={"cost": 6}),
        StoredTime: Layout(flat=("spent",)),
        StoredTrajectoryScore: Layout(flat=("score",)),
        StoredTrajectory: Layout(only_if_set=(*_SIDES, "without_calls", "vacuous", *_ALIGNMENT, *_SEVERAL)),
        AlignedRow: Layout(only_if_set=("difference",)),
        TurnScores: Layout(only_if_set=("judged_ms",)),
        StoredCheck: Layout(only_if_set=("reply", "turn_index")),
        TurnTrajectory: Layout(flat=("trajectory",)),
        StoredConversation: Layout(
            only_if_set=(
                *("shortened", "initial_state", "criteria", "invalid"),
                *("checks", "mock_state", "inexact_state", "user_calls"),
                *("severe_failures", "severity_unknown"),
            ),
            names={"user_calls": "userToolCalls"},
            flat=("adk",),
            older={"ended_by": ending_of_older},
        ),
        AdkCase: Layout(flat=("case",)),
        StoredScenario: Layout(
            flat=("repeated", "adk"),
            only_if_set=(
                *("goal", "profile", "information", "causes", "reasons", "intervals"),
                *("pass_rate", "pass_hat_k", "flaky", "severity_unknown", "verdict_warnings"),
            ),
        ),
        Counts: Layout(only_if_set=("pass_rate",)),
        Reason: Layout(only_if_set=_ALL_BUT_THE_MESSAGE),
        TrajectoryResult: Layout(
            left_out=(*_ALIGNMENT, "score", "parts"), only_if_set=(*_SIDES, "broken", "without_calls", "name")
        ),
        CheckResult: Layout(only_if_set=("reply", "error", "turn_index")),
        StoredEntry: Layout(flat=("scenario",)),
        ScenarioLine: Layout(only_if_set=("amended",)),
        StoredAgent: Layout(only_if_set=("no_call_seen",)),
        StoredSlowTurn: Layout(only_if_set=("first_token_ms",)),
        RunUsage: Layout(flat=("tokens",), digits={"cost": 6}),
        Summary: Layout(
            flat=("counts",),
            only_if_set=("unclaimed_calls", "silent_agents", "unanswered_calls", "per_agent"),
            older={"warnings": _verdict_warnings},
        ),
        VerdictWarning: Layout(only_if_set=("agent", "file", "line", "tools")),
        ScenarioCause: Layout(only_if_set=("conversation_id", "turn_index")),
        CauseExample: Layout(only_if_set=("agent",)),
        CausePlace: Layout(only_if_set=("conversation_id", "turn_index")),
        RootCause: Layout(only_if_set=("labels",)),
        RunHead: Layout(older={"agents": _agents}, only_if_set=("calibration", "shard", "joining")),
        StoredRun: Layout(flat=("head",)),
        StoredComparison: Layout(flat=("head",)),
    }
)
"""The codecs of all values. Cost is rounded, as the sum depends on the order in which answers came."""

NOT_STORED: Mapping[type, tuple[str, ...]] = {
    Conversation: ("time", "session_id", "invalid", "live_state"),
    Failure: ("bypassed",),
    Score: ("rubrics",),
    TurnEvaluation: ("reference",),
    RunResult: ("addresses",),
}
"""Fields of `transcript` and `results` that have their default when they are read back.

Time and what makes a conversation invalid are stored once, with its result; rubrics and references are in
ADK's part of a case; the mocks' state itself is gone once it has been judged; a failure's message names the
real tools that ran. Addresses of agents are with the record of a run (`store.kept.record`). A trajectory is
stored with its conversation (`StoredTrajectory`); where a reason repeats it, that lacks the alignment.
"""
