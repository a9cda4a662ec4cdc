"""Convert runs to the format of results.json and back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from agentest.domain.figures import agent_effort, run_pass_rate
from agentest.domain.results import CauseJoin, RootCause, RunResult, ScenarioResult, Status
from agentest.domain.tool_visibility import ToolVisibility
from agentest.domain.verdict import Severities, run_status
from agentest.store.codec import CODECS, conversation_json, mark_vacuous
from agentest.store.shapes import (
    SCHEMA_VERSION,
    Counts,
    Mode,
    RunHead,
    RunUsage,
    StoredAgent,
    StoredSlowTurn,
    Summary,
)
from agentest.support.json_text import Json, encoded, well_formed

_SHOWN_SLOWEST = 5


def entries(document: Mapping[str, Any]) -> list[Json]:
    """Return each scenario with each agent, as in results.json."""
    scenarios: list[Json] = document["scenarios"]
    if document["mode"] == Mode.SINGLE:
        return scenarios
    return [entry for compared in scenarios for entry in compared["agents"]]


def mode_of(comparison: bool) -> Mode:
    return Mode.COMPARISON if comparison else Mode.SINGLE


def joins_of(causes: Iterable[RootCause]) -> tuple[CauseJoin, ...]:
    """Return the joins that a model made for these causes."""
    return tuple(CauseJoin(title=each.title, labels=each.labels) for each in causes if each.labels)


def causes_of_run(result: RunResult) -> tuple[RootCause, ...]:
    """Return the root causes of a run, worst first."""
    if not any(each.errors or each.causes or each.verdict.reasons for each in result.scenarios):
        return ()
    from agentest.domain.root_causes import root_causes

    return root_causes(result)


def stored_head(result: RunResult) -> RunHead:
    """Return the stored form of the run, without its scenarios."""
    return RunHead(
        schema_version=SCHEMA_VERSION,
        mode=mode_of(result.comparison),
        version=result.version,
        started_at=result.started_at,
        interrupted=result.interrupted,
        stopped=result.stopped,
        models=result.models,
        agents=stored_agents(result.agents, result.visibilities, silent_agents(result)),
        calibration=result.calibrations,
        shard=result.shard,
        root_causes=causes_of_run(result),
        joining=result.joining,
        summary=summary(result),
    )


def run_of(document: Mapping[str, Any]) -> RunResult:
    """Decode a results.json that is valid according to the schema."""
    head = CODECS.read(RunHead, document)
    explored = None
    if "explored" in document:
        from agentest.store.exploration import read_exploration

        explored = read_exploration(document)
    return RunResult(
        scenarios=tuple(CODECS.read(ScenarioResult, entry) for entry in entries(document)),
        agents=tuple(head.agents),
        comparison=head.mode is Mode.COMPARISON,
        started_at=head.started_at,
        duration_ms=head.summary.duration_ms,
        version=head.version,
        models=head.models,
        interrupted=head.interrupted,
        stopped=head.stopped,
        unclaimed=head.summary.unclaimed_calls,
        silent=head.summary.silent_agents,
        unanswered=head.summary.unanswered_calls,
        quotas=head.summary.quotas,
        changes=head.summary.changes,
        calibrations=head.calibration,
        shard=head.shard,
        joins=joins_of(head.root_causes),
        joining=head.joining,
        explored=explored,
        visibilities={name: agent.tool_calls for name, agent in head.agents.items() if agent.tool_calls},
    )


def stored_agents(
    names: Iterable[str], visibilities: Mapping[str, ToolVisibility], silent: Iterable[str] = ()
) -> dict[str, StoredAgent]:
    """Return the agents by name. `silent` has those without a visible call in the whole run."""
    unseen = set(silent)
    return {name: StoredAgent(tool_calls=visibilities[name], no_call_seen=name in unseen) for name in names}


def silent_agents(result: RunResult) -> set[str]:
    """Return the agents without a visible call in the whole run, although their scenarios expect some."""
    return {warning.agent for warning in result.silent}


def summary(result: RunResult) -> Summary:
    """Summarize the run in numbers."""
    per_agent = {}
    for agent in result.agents if result.comparison else ():
        mine = tuple(scenario for scenario in result.scenarios if scenario.agent == agent)
        counts = _counts(replace(result, scenarios=mine, joining={}))
        effort = agent_effort(mine)
        per_agent[agent] = (
            replace(counts, agent_turn_ms=effort.turn_ms, agent_cost=effort.cost) if effort else counts
        )
    tokens = result.usage.tokens
    return Summary(
        counts=_counts(result),
        duration_ms=result.duration_ms,
        usage=RunUsage(
            tokens=tokens,
            total_tokens=tokens.total_tokens,
            cost=result.usage.cost,
            by_role=result.usage_by_role,
        ),
        time=result.time,
        slowest_turns=tuple(
            StoredSlowTurn(turn=turn, scenario=scenario.name, agent=scenario.agent)
            for scenario, turn in result.slowest_turns(_SHOWN_SLOWEST)
        ),
        warnings=result.verdict_warnings,
        unclaimed_calls=result.unclaimed,
        silent_agents=result.silent,
        unanswered_calls=result.unanswered,
        quotas=tuple(quota for quota in result.quotas if quota.message),
        changes=result.changes,
        per_agent=per_agent if result.comparison else None,
    )


def _counts(result: RunResult) -> Counts:
    number = Counter(scenario.verdict.status for scenario in result.scenarios)
    return Counts(
        passed=run_status(result) is Status.PASSED,
        total_scenarios=len(result.scenarios),
        passed_scenarios=number[Status.PASSED],
        failed_scenarios=number[Status.FAILED],
        errored_scenarios=number[Status.ERRORED],
        skipped_scenarios=number[Status.SKIPPED],
        llm_calls=result.usage.calls,
        agent_calls=result.agent_calls,
        pass_rate=run_pass_rate(result.scenarios),
    )


def with_severity(conversation: Json, severities: Severities) -> Json:
    """Add the severity of its failures to a stored conversation."""
    failures = [failure["id"] for failure in conversation["labelledFailures"]]
    severe_failures = [id for id in failures if id in severities.severe]
    unknown = bool(failures) and not severities.graded
    if not severe_failures and not unknown:
        return conversation
    marks = {"severeFailures": severe_failures} if severe_failures else {}
    return {**conversation, "passed": False, **marks, **({"severityUnknown": True} if unknown else {})}


T = TypeVar("T")


Conversations = Callable[[ScenarioResult], Iterable[bytes]]


def head_json(result: RunResult) -> Json:
    """Return the head of a run, with what it explored."""
    head: Json = CODECS.write(stored_head(result))
    if result.explored:
        from agentest.store.exploration import exploration_keys

        head |= exploration_keys(result.explored)
    return head


def conversations_in_memory(scenario: ScenarioResult) -> Iterable[bytes]:
    """Yield the conversations in the scenario's result. Those of a stored run are not decoded for it."""
    stored: Iterable[bytes] | None = getattr(scenario.conversations, "as_stored", lambda: None)()
    if stored is not None:
        return stored
    of_scenario = scenario.case, scenario.thresholds
    return (encoded(conversation_json(each, *of_scenario)) for each in scenario.conversations)


def document(result: RunResult, conversations: Conversations) -> Iterator[bytes]:
    """Yield the document piece by piece, because a large run does not fit in memory.

    Each scenario and each conversation starts on a line of its own.
    """
    conversations = completed_by(result, conversations)
    head = {**head_json(result), "scenarios": []}
    text = json.dumps(head, ensure_ascii=False, indent=2, allow_nan=False)
    yield well_formed(text).encode().removesuffix(b"]\n}")
    if result.comparison:
        groups = by_name(result.scenarios, lambda scenario: scenario.name)
        yield from _separated(
            _with_list({"name": name}, "agents", (_streamed(each, conversations) for each in group))
            for name, group in groups.items()
        )
    else:
        yield from _separated(_streamed(scenario, conversations) for scenario in result.scenarios)
    yield b"\n  ]\n}\n"


def completed_by(result: RunResult, conversations: Conversations) -> Conversations:
    """Add facts to the conversations that are known only at the end of their scenario or of the run."""
    silent = silent_agents(result)

    def completed(scenario: ScenarioResult) -> Iterable[bytes]:
        severities = Severities.of(scenario.errors, graded=not scenario.severity_unknown)
        is_silent = scenario.agent in silent
        for piece in conversations(scenario):
            if not (severities or is_silent):
                yield piece
                continue
            conversation = with_severity(json.loads(piece), severities)
            yield encoded(mark_vacuous(conversation) if is_silent else conversation)

    return completed


def _streamed(scenario: ScenarioResult, conversations: Conversations) -> Iterator[bytes]:
    pieces = ((piece,) for piece in conversations(scenario))
    return _with_list(CODECS.write(scenario), "conversations", pieces)


def _with_list(data: Json, key: str, items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    yield encoded({**data, key: []}).removesuffix(b"]}")
    yield from _separated(items)
    yield b"]}"


def _separated(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    for n, item in enumerate(items):
        yield b",\n" if n else b"\n"
        yield from item


def by_name(scenarios: Iterable[T], name_of: Callable[[T], str]) -> dict[str, list[T]]:
    """Group scenarios by name, in their original order."""
    groups: dict[str, list[T]] = {}
    for scenario in scenarios:
        groups.setdefault(name_of(scenario), []).append(scenario)
    return groups
