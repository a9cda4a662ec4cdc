"""The layout in files of all values that are stored of a run.

`CODECS` encodes and decodes the values of `transcript` and `results` and those of `shapes`. The keys are
described in `schemas/results.schema.json`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from agentest.domain.figures import scenario_pass_hat_k, totals_of
from agentest.domain.metrics import GOAL
from agentest.domain.reasons import MeasuredConversation, conversation_passed, threshold_counted_trajectories
from agentest.domain.results import (
    AlignedRow,
    ArgumentDifference,
    AttackRate,
    CaseId,
    CauseExample,
    CausePlace,
    CheckResult,
    ConversationResult,
    CriterionResult,
    Deduplication,
    LabelledFailure,
    ModelUsage,
    QuotaUse,
    Reason,
    RootCause,
    ScenarioCause,
    ScenarioResult,
    Score,
    Skipped,
    SlowTurn,
    Status,
    Totals,
    TrajectoryResult,
    TrajectoryScore,
    TurnEvaluation,
    UniqueError,
    Unscored,
    Verdict,
    VerdictWarning,
)
from agentest.domain.transcript import (
    Blame,
    Conversation,
    Failure,
    ModelRequest,
    ModelToolCall,
    Remark,
    ServerOutput,
    TimeSpent,
    ToolCall,
    Turn,
    UnfinishedTurn,
)
from agentest.domain.verdict import with_severe_failures
from agentest.store.dataclass_codec import Codecs, Layout
from agentest.store.shapes import (
    Counts,
    RunHead,
    RunUsage,
    ScenarioLine,
    StoredAgent,
    StoredEvaluation,
    StoredSlowTurn,
    Summary,
)
from agentest.support.json_text import Json, plain
from agentest.support.lazy_dataclasses import replace


def conversation_json(
    result: ConversationResult, case: CaseId | None, thresholds: Mapping[str, float]
) -> Json:
    """Encode a conversation in JSON types.

    Args:
        case: the case of an evaluation set that the scenario comes from, if any.
        thresholds: the scenario's thresholds.
    """
    data = CODECS.write(result)
    if case:
        from agentest.store.adk_results import invocations_json

        data |= plain(invocations_json(thresholds, result))
    return data


def mark_vacuous(conversation: Json) -> Json:
    """Mark each trajectory of a stored conversation that matched only because no call was visible."""
    trajectories = [conversation["trajectory"], *conversation["perTurnTrajectory"]]
    for trajectory in filter(None, trajectories):  # the list grows
        if trajectory.get("withoutCalls"):
            trajectory["vacuous"] = True
        trajectories += trajectory.get("parts", ())
    return conversation


def _conversation_keys(result: ConversationResult) -> Json:
    metrics = dict(result.metrics)
    evaluation = StoredEvaluation(
        turn_evaluations=result.turns, goal_completion=metrics.pop(GOAL, None), conversation_metrics=metrics
    )
    counted = {id(each.result) for each in threshold_counted_trajectories(result)}
    return {
        "passed": conversation_passed(result),
        "evaluation": CODECS.write(evaluation),
        "trajectory": _trajectory_json(result.trajectory, counted) if result.trajectory else None,
        "perTurnTrajectory": [
            {"turnIndex": turn.turn_index, **_trajectory_json(turn.trajectory, counted)}
            for turn in result.turns
            if turn.trajectory
        ],
        "labelledFailures": [
            {key: value for key, value in CODECS.write(failure).items() if key != "conversationId"}
            for failure in result.failures
        ],
    }


def _trajectory_json(result: TrajectoryResult, counted: Collection[int]) -> Json:
    data = CODECS.write(result)
    if id(result) in counted:
        data["counted"] = True
    if result.parts and counted:
        data["parts"] = [_trajectory_json(part, counted) for part in result.parts]
    return data


def _with_evaluation(result: ConversationResult, data: Mapping[str, Any]) -> ConversationResult:
    evaluation, id = CODECS.read(StoredEvaluation, data["evaluation"]), result.conversation.conversation_id
    goal = evaluation.goal_completion
    trajectories = {
        each["turnIndex"]: CODECS.read(TrajectoryResult, each) for each in data["perTurnTrajectory"]
    }
    turns = evaluation.turn_evaluations
    if trajectories:
        turns = tuple(replace(turn, trajectory=trajectories.get(turn.turn_index)) for turn in turns)
    return replace(
        result,
        turns=turns,
        metrics={**({GOAL: goal} if goal else {}), **evaluation.conversation_metrics},
        trajectory=CODECS.read(TrajectoryResult, data["trajectory"]) if data["trajectory"] else None,
        failures=tuple(
            CODECS.read(LabelledFailure, {**each, "conversationId": id}) for each in data["labelledFailures"]
        ),
    )


def _failure_keys(conversation: Conversation) -> Json:
    failure = conversation.failure
    return {
        "error": failure.message if failure else None,
        "errorSource": str(failure.blame) if failure else None,
    }


def _with_failure(conversation: Conversation, data: Mapping[str, Any]) -> Conversation:
    error, source = data["error"], data["errorSource"]
    failure = None if error is None or source is None else Failure(Blame(source), error)
    return replace(conversation, failure=failure, invalid=data.get("invalid"))


def _scenario_keys(result: ScenarioResult) -> Json:
    failing_first = sorted(result.verdict.reasons, key=lambda reason: reason.status is not Status.FAILED)
    messages = [reason.message for reason in failing_first]
    keys: Json = {"passed": result.verdict.passed, "failures": messages}
    if result.verdict.reasons and not result.causes:
        from agentest.domain.root_causes import scenario_causes

        if causes := scenario_causes(result):
            keys["causes"] = [CODECS.write(cause) for cause in causes]
    if result.pass_rate:
        values = scenario_pass_hat_k(result.pass_rate)
        keys["passHatK"] = {str(k): value for k, value in enumerate(values, start=1)}
        keys["flaky"] = result.flaky
    if result.repeat:
        keys["decidedAfter"] = result.decided_after
    if result.case:
        from agentest.store.adk_results import case_json

        keys |= case_json(result.case, result)
    return keys


def _with_scenario_keys(result: ScenarioResult, data: Mapping[str, Any]) -> ScenarioResult:
    read = tuple(CODECS.read(ConversationResult, each) for each in data.get("conversations", ()))
    groups = Deduplication(result.errors, graded=not result.severity_unknown)
    conversations = with_severe_failures(read, groups)
    more: dict[str, Any] = {"decided_after": data.get("decidedAfter"), "totals": totals_of(conversations)}
    return replace(result, conversations=conversations, **more)


def _with_summary(result: TrajectoryResult, _: Mapping[str, Any]) -> TrajectoryResult:
    return replace(result, matched=bool(result.matched), summary=result.summary_in(result.summary))


_BRIEF = Layout(always=())
_ALWAYS_OF_TURN = ("tool_calls", "latency_ms", "retries", "requests")
_IN_REASONS: Mapping[type, Layout] = {
    TrajectoryResult: Layout(
        left_out=("alignment", "alignment_more", "score", "parts"),
        always=("missing_calls", "extra_calls", "ordering_issues", "forbidden_calls", "error"),
    ),
    CheckResult: _BRIEF,
}
"""Trajectories are stored with their conversation, so a copy in a reason has no alignment."""

CODECS = Codecs(
    {
        **dict.fromkeys((Remark, ModelToolCall, ServerOutput, AlignedRow, ArgumentDifference), _BRIEF),
        **dict.fromkeys((LabelledFailure, CriterionResult, Unscored, Verdict, AttackRate), _BRIEF),
        **dict.fromkeys((VerdictWarning, CausePlace, SlowTurn, Totals), _BRIEF),
        ToolCall: Layout(
            order=("name", "args", "result", "mocked", "seen_by", "also_seen_by", "call_id"),
            always=("invalid_arguments", "error", "seen_by"),
            names={"call_id": "id"},
        ),
        Turn: Layout(
            order=("turn_index", "user_message", "agent_message", *_ALWAYS_OF_TURN),
            always=(*_ALWAYS_OF_TURN, "usage", "remarks", "attachments"),
            digits={"model_cost": 9},
        ),
        UnfinishedTurn: Layout(always=("retries", "requests"), digits={"model_cost": 9}),
        ModelRequest: Layout(
            order=("model", "round", "status", "error", "begin_ms", "latency_ms"), always=("usage", "prompt")
        ),
        TimeSpent: Layout(
            always=("total_ms", "agent_ms", "user_ms", "tools_ms", "judges_ms"),
            derived=lambda time: {"ownMs": round(time.own_ms, 3)},
        ),
        Conversation: Layout(
            left_out=("failure", "time", "session_id", "invalid", "live_state", "sent"),
            required=("unfinished",),
            always=(),
            names={"ending": "endedBy", "unfinished": "unfinishedTurn", "user_calls": "userToolCalls"},
            derived=_failure_keys,
            completed=_with_failure,
        ),
        ConversationResult: Layout(
            flat=("conversation",),
            left_out=("turns", "metrics", "trajectory", "failures", "slim", "reasons"),
            always=("time",),
            derived=_conversation_keys,
            completed=_with_evaluation,
        ),
        TurnEvaluation: Layout(
            left_out=("trajectory", "reference"), required=("metrics", "checks"), always=()
        ),
        TrajectoryResult: Layout(
            order=("matched", "missing_calls", "extra_calls", "ordering_issues", "forbidden_calls"),
            required=("missing_calls", "extra_calls", "ordering_issues", "forbidden_calls"),
            always=("error",),
            names={"summary": "reason"},
            derived=lambda result: {"reason": result.reason} | ({"matched": None} if result.error else {}),
            completed=_with_summary,
        ),
        TrajectoryScore: Layout(derived=lambda score: {"f1": score.f1}),
        CheckResult: Layout(
            always=("error",),
            names={"summary": "reason"},
            derived=lambda check: {"reason": check.reason},
            completed=lambda check, _: replace(check, summary=check.summary_in(check.summary)),
        ),
        Score: Layout(left_out=("rubrics",), always=()),
        Skipped: Layout(names={"why": "skipped"}),
        ModelUsage: Layout(
            order=("calls", "retries"),
            flat=("tokens",),
            names={"cached": "cachedCalls", "saved": "savedCost"},
            digits={"cost": 6, "saved": 6},
            always=("calls", "retries", "cost"),
        ),
        ScenarioResult: Layout(
            order=("agent", "name", "file", "line", "tags", "goal", "profile", "duration_ms", "planned"),
            left_out=("conversations", "totals", "decided_after"),
            required=("tags", "duration_ms", "averages", "thresholds", "skipped_metrics", "errors", "usage"),
            flat=("verdict", "case"),
            always=("planned", "warnings"),
            names={"planned": "plannedConversations"},
            derived=_scenario_keys,
            completed=_with_scenario_keys,
        ),
        Reason: Layout(always=(), within=_IN_REASONS),
        UniqueError: Layout(
            always=("examples",),
            derived=lambda group: {"description": group.description, "count": group.count},
        ),
        ScenarioCause: Layout(always=("text",)),
        CauseExample: Layout(always=("conversation_id", "turn_index", "text")),
        RootCause: Layout(always=("agents", "places")),
        RunHead: Layout(always=("root_causes",)),
        Summary: Layout(flat=("counts",), always=("warnings", "changes")),
        QuotaUse: Layout(always=("refused", "waited_ms"), derived=lambda use: {"message": use.message}),
        Counts: Layout(always=(), digits={"agent_cost": 6}),
        RunUsage: Layout(flat=("tokens",), digits={"cost": 6}),
        StoredSlowTurn: Layout(flat=("turn",)),
        StoredAgent: Layout(always=("tool_calls",)),
        ScenarioLine: Layout(always=("type",)),
        MeasuredConversation: Layout(always=("latency",)),
    }
)
"""The codecs of all values. Costs are rounded, because their sum depends on the order of the answers."""
