"""The report for programs: `results.json`, whose shape `schemas/results.schema.json` describes."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from agentest.results import (
    CaseId,
    CheckResult,
    ConversationResult,
    ErrorGroup,
    LabelledFailure,
    MetricResult,
    ModelUsage,
    Reason,
    RunResult,
    ScenarioResult,
    Score,
    Skipped,
    Status,
    TrajectoryResult,
    TurnEvaluation,
)
from agentest.sight import Sight
from agentest.store.adk_case import case_json, invocations_json
from agentest.support.json_text import Json, encoded, plain, well_formed
from agentest.transcript import Conversation, TimeSpent, ToolCall, Turn, UnfinishedTurn, Usage
from agentest.verdict import conversation_passed, run_status

SCHEMA_VERSION = 2


_GOAL_COMPLETION = "goal_completion"


_SHOWN_SLOWEST = 5


T = TypeVar("T")


Conversations = Callable[[ScenarioResult], Iterable[bytes]]
"""A scenario's conversations in their order, each as JSON."""


def kept_conversations(scenario: ScenarioResult) -> Iterator[bytes]:
    """The conversations that the scenario's result holds."""
    return (encoded(of_scenario(scenario, found)) for found in scenario.conversations)


def document(result: RunResult, conversations: Conversations) -> Iterator[bytes]:
    """The run as a file, piece by piece: a run of many conversations has no place in memory.

    One scenario a line, and one conversation a line.
    """
    head = json.dumps(head_json(result), ensure_ascii=False, indent=2, allow_nan=False)
    conversations = completed_by(result, conversations)
    yield well_formed(head).encode().removesuffix(b"\n}") + b',\n  "scenarios": ['
    if result.comparison:
        groups = by_name(result.scenarios, lambda scenario: scenario.name)
        yield from _separated(_compared(name, found, conversations) for name, found in groups.items())
    else:
        yield from _separated(_streamed(scenario, conversations) for scenario in result.scenarios)
    yield b"\n  ]\n}\n"


def completed_by(result: RunResult, conversations: Conversations) -> Conversations:
    """The conversations with what is known only at the end of the run."""
    silent = _silent(result)

    def completed(scenario: ScenarioResult) -> Iterable[bytes]:
        pieces = conversations(scenario)
        if scenario.agent not in silent:
            return pieces
        return (encoded(with_vacuous(json.loads(piece))) for piece in pieces)

    return completed


def with_vacuous(conversation: Json) -> Json:
    """A conversation with an agent that was never seen to call a tool: what held by that alone is marked."""
    return {
        **conversation,
        "trajectory": _vacuous(conversation["trajectory"]),
        "perTurnTrajectory": [_vacuous(found) for found in conversation["perTurnTrajectory"]],
    }


def _vacuous(trajectory: Json | None) -> Json | None:
    return {**trajectory, "vacuous": True} if trajectory and trajectory.get("withoutCalls") else trajectory


def _compared(
    name: str, scenarios: Sequence[ScenarioResult], conversations: Conversations
) -> Iterator[bytes]:
    yield b'{"name": ' + encoded(name) + b', "agents": ['
    yield from _separated(_streamed(scenario, conversations) for scenario in scenarios)
    yield b"]}"


def _streamed(scenario: ScenarioResult, conversations: Conversations) -> Iterator[bytes]:
    yield encoded(scenario_json(scenario)).removesuffix(b"}") + b', "conversations": ['
    yield from _separated((piece,) for piece in conversations(scenario))
    yield b"]}"


def _separated(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """The items, each on a line of its own."""
    for n, item in enumerate(items):
        yield b",\n" if n else b"\n"
        yield from item


def to_json(result: RunResult) -> Json:
    """The whole run in JSON types, as the schema describes it. It must still have its conversations."""
    conversations = completed_by(result, kept_conversations)
    scenarios = [
        {**scenario_json(s), "conversations": [json.loads(piece) for piece in conversations(s)]}
        for s in result.scenarios
    ]
    return {**head_json(result), "scenarios": placed(scenarios, result.comparison)}


def placed(scenarios: Sequence[Json], comparison: bool) -> list[Json]:
    """`scenarios` of the document: as they are, or in a comparison `[{name, agents: [scenario]}]`."""
    if not comparison:
        return list(scenarios)
    groups = by_name(scenarios, lambda scenario: str(scenario["name"]))
    return [{"name": name, "agents": agents} for name, agents in groups.items()]


def by_name(scenarios: Iterable[T], name_of: Callable[[T], str]) -> dict[str, list[T]]:
    """Scenarios of one name together; names and scenarios in the order in which they came."""
    groups: dict[str, list[T]] = {}
    for scenario in scenarios:
        groups.setdefault(name_of(scenario), []).append(scenario)
    return groups


def head_json(result: RunResult) -> Json:
    """The run in JSON types, without its scenarios."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "mode": "comparison" if result.comparison else "single",
        "version": result.version,
        "startedAt": result.started_at,
        "interrupted": result.interrupted,
        "stopped": result.stopped,
        "models": dict(result.models),
        "agents": agents_json(result.agents, result.sights, _silent(result)),
        "summary": summary_json(result),
    }


def agents_json(
    names: Iterable[str], sights: Mapping[str, Sight], silent: Container[str] = frozenset()
) -> Json:
    """What is told of each agent, by name. `silent`: those of which no call was seen in the whole run."""
    return {
        name: {"toolCalls": sights[name].value, **({"noCallSeen": True} if name in silent else {})}
        for name in names
    }


def _silent(result: RunResult) -> set[str]:
    return {warning.agent for warning in result.silent}


def of_scenario(scenario: ScenarioResult, found: ConversationResult) -> Json:
    """A conversation of a scenario in JSON types."""
    return conversation_json(found, scenario.case, scenario.thresholds)


def conversation_json(
    found: ConversationResult, case: CaseId | None, thresholds: Mapping[str, float]
) -> Json:
    """A conversation in JSON types."""
    return {**_conversation(found), **plain(invocations_json(case, thresholds, found))}


def summary_json(result: RunResult) -> Json:
    """The run in numbers, in JSON types."""
    summary = {
        **_counts(result),
        "durationMs": _milliseconds(result.duration_ms),
        "usage": _run_usage(result),
        "time": _time(result.time),
        "slowestTurns": _slowest(result),
        "warnings": [warning.message for warning in result.silent],
    }
    if result.comparison:
        summary["perAgent"] = {agent: _counts(_of_agent(result, agent)) for agent in result.agents}
    return summary


def _time(time: TimeSpent) -> Json:
    return {
        "totalMs": _milliseconds(time.total_ms),
        "agentMs": _milliseconds(time.agent_ms),
        "userMs": _milliseconds(time.user_ms),
        "toolsMs": _milliseconds(time.tools_ms),
        "judgesMs": _milliseconds(time.judges_ms),
        "ownMs": _milliseconds(time.own_ms),
    }


def _slowest(result: RunResult) -> list[Json]:
    return [
        {
            "latencyMs": _milliseconds(turn.latency_ms),
            "scenario": scenario.name,
            "agent": scenario.agent,
            "conversationId": turn.conversation_id,
            "turnIndex": turn.turn_index,
        }
        for scenario, turn in result.slowest_turns(_SHOWN_SLOWEST)
    ]


def _counts(result: RunResult) -> Json:
    return {
        "passed": run_status(result) is Status.PASSED,
        "totalScenarios": len(result.scenarios),
        **{f"{status}Scenarios": len(result.with_status(status)) for status in Status},
        "llmCalls": result.usage.calls,
        "agentCalls": result.agent_calls,
    }


def _of_agent(result: RunResult, agent: str) -> RunResult:
    return replace(result, scenarios=tuple(s for s in result.scenarios if s.agent == agent))


def _run_usage(result: RunResult) -> Json:
    tokens = result.usage.tokens
    return {
        **_tokens(tokens),
        "totalTokens": tokens.total_tokens,
        "cost": _cost(result.usage),
        "byRole": _by_role(result.usage_by_role),
    }


def _cost(usage: ModelUsage) -> float | None:
    # Rounded, as the sum depends on the order in which answers came.
    return None if usage.cost is None else round(usage.cost, 6)


def _by_role(usage: Mapping[str, ModelUsage]) -> Json:
    return {
        role: {"calls": used.calls, "retries": used.retries, **_tokens(used.tokens), "cost": _cost(used)}
        for role, used in usage.items()
    }


def _tokens(usage: Usage) -> Json:
    return {
        "promptTokens": usage.prompt_tokens,
        "completionTokens": usage.completion_tokens,
        "cachedTokens": usage.cached_tokens,
    }


def scenario_json(result: ScenarioResult) -> Json:
    """A scenario in JSON types, without its conversations."""
    return {
        "agent": result.agent,
        "name": result.name,
        "file": result.file,
        "line": result.line,
        "tags": list(result.tags),
        "status": result.verdict.status.value,
        "passed": result.verdict.passed,
        "durationMs": _milliseconds(result.duration_ms),
        "plannedConversations": result.planned,
        "averages": plain(result.averages),
        "thresholds": plain(result.thresholds),
        "skippedMetrics": dict(result.skipped_metrics),
        "errors": [_error_group(e) for e in result.errors],
        "failures": _failures(result.verdict.reasons),
        "warnings": list(result.warnings),
        "usage": _by_role(result.usage),
        **case_json(result),
    }


def _failures(reasons: Sequence[Reason]) -> list[str]:
    """The failing reasons' texts first, then those of the rest."""
    return [r.message for r in sorted(reasons, key=lambda r: r.status is not Status.FAILED)]


def _error_group(group: ErrorGroup) -> Json:
    return {
        "label": group.label,
        "severity": group.severity.label,
        "occurrences": list(group.occurrences),
        "explanation": group.explanation,
    }


def _conversation(result: ConversationResult) -> Json:
    conversation = result.conversation
    failure = conversation.failure
    return {
        "conversationId": conversation.conversation_id,
        "passed": conversation_passed(result),
        "endedBy": conversation.ending.value,
        "error": failure.message if failure else None,
        "errorSource": failure.blame.value if failure else None,
        **_turns(conversation),
        "evaluation": _evaluation(result),
        "trajectory": _trajectory(result.trajectory) if result.trajectory else None,
        "perTurnTrajectory": [
            {"turnIndex": turn.turn_index, **_trajectory(turn.trajectory)}
            for turn in result.turns
            if turn.trajectory
        ],
        "labelledFailures": [_labelled_failure(f) for f in result.failures],
        "time": _time(result.time),
        **({"shortened": True} if conversation.shortened else {}),
    }


def _turns(conversation: Conversation) -> Json:
    unfinished = conversation.unfinished
    return {
        "turns": [_turn(turn) for turn in conversation.turns],
        "unfinishedTurn": _unfinished_turn(unfinished) if unfinished else None,
    }


def _turn(turn: Turn) -> Json:
    return {
        "turnIndex": turn.turn_index,
        "userMessage": turn.user_message,
        "agentMessage": turn.agent_message,
        "toolCalls": [_tool_call(call) for call in turn.tool_calls],
        "latencyMs": _milliseconds(turn.latency_ms),
        "retries": turn.retries,
        "requests": turn.requests,
        "usage": _tokens(turn.usage),
        "remarks": [{"author": remark.author, "text": remark.text} for remark in turn.remarks],
    }


def _unfinished_turn(turn: UnfinishedTurn) -> Json:
    return {
        "turnIndex": turn.turn_index,
        "userMessage": turn.user_message,
        "toolCalls": [_tool_call(call) for call in turn.tool_calls],
        "retries": turn.retries,
        "requests": turn.requests,
    }


def _tool_call(call: ToolCall) -> Json:
    return {
        "name": call.name,
        "args": plain(call.args),
        "result": plain(call.result),
        "mocked": call.mocked,
        "seenBy": call.seen_by.value,
        "turnIndex": call.turn_index,
        "invalidArguments": call.invalid_arguments,
        "error": call.error,
    }


def _evaluation(result: ConversationResult) -> Json:
    metrics = {name: _metric(found) for name, found in result.metrics.items()}
    return {
        "turnEvaluations": [_turn_evaluation(turn) for turn in result.turns],
        "goalCompletion": metrics.pop(_GOAL_COMPLETION, None),
        "conversationMetrics": metrics,
    }


def _turn_evaluation(turn: TurnEvaluation) -> Json:
    return {
        "turnIndex": turn.turn_index,
        "metrics": {name: _metric(found) for name, found in turn.metrics.items()},
        "checks": [_check(check) for check in turn.checks],
    }


def _metric(result: MetricResult) -> Json:
    if isinstance(result, Skipped):
        return {"skipped": result.why}
    if not isinstance(result, Score):
        return {"error": result.error}
    samples = {"samples": plain(result.samples)} if result.samples else {}
    return {"value": plain(result.value), "reason": result.reason, **samples}


def _check(check: CheckResult) -> Json:
    return {"check": check.check, "passed": check.passed, "reason": check.reason, "error": check.error}


def _trajectory(result: TrajectoryResult) -> Json:
    return {
        "matched": None if result.error else result.matched,
        "missingCalls": list(result.missing_calls),
        "extraCalls": list(result.extra_calls),
        "orderingIssues": list(result.ordering_issues),
        "forbiddenCalls": list(result.forbidden_calls),
        "reason": result.reason,
        "error": result.error,
        **({"withoutCalls": True} if result.without_calls else {}),
    }


def _labelled_failure(failure: LabelledFailure) -> Json:
    return {
        "id": failure.id,
        "turnIndex": failure.turn_index,
        "metric": failure.metric,
        "label": failure.label,
        "reason": failure.reason,
    }


def _milliseconds(value: float) -> float:
    return round(value, 3)
