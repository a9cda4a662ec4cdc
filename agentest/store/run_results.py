"""The whole run: to the shape that is stored, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from agentest.domain.confidence import run_pass_rate
from agentest.domain.results import ModelUsage, RunResult, Status
from agentest.domain.root_causes import joins_of, root_causes
from agentest.domain.tool_visibility import Sight
from agentest.domain.verdict import run_status
from agentest.store.conversations import stored_time
from agentest.store.scenarios import scenario_of
from agentest.store.shapes import (
    SCHEMA_VERSION,
    Counts,
    Mode,
    RunHead,
    RunUsage,
    StoredAgent,
    StoredComparison,
    StoredEntry,
    StoredRun,
    StoredSlowTurn,
    Summary,
)

_SHOWN_SLOWEST = 5


def entries(run: StoredRun | StoredComparison) -> tuple[StoredEntry, ...]:
    """Each scenario with each agent."""
    if isinstance(run, StoredRun):
        return run.scenarios
    return tuple(entry for compared in run.scenarios for entry in compared.agents)


def mode_of(comparison: bool) -> Mode:
    return Mode.COMPARISON if comparison else Mode.SINGLE


def stored_head(result: RunResult) -> RunHead:
    """The run as it is stored, without its scenarios."""
    return RunHead(
        schema_version=SCHEMA_VERSION,
        mode=mode_of(result.comparison),
        version=result.version,
        started_at=result.started_at,
        interrupted=result.interrupted,
        stopped=result.stopped,
        models=result.models,
        agents=stored_agents(result.agents, result.sights, silent_agents(result)),
        calibration=result.calibrations,
        shard=result.shard,
        root_causes=root_causes(result),
        joining=result.joining,
        summary=summary(result),
    )


def run_of(run: StoredRun | StoredComparison) -> RunResult:
    """A stored run with its scenarios."""
    head = run.head
    return RunResult(
        scenarios=tuple(map(scenario_of, entries(run))),
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
        calibrations=head.calibration,
        shard=head.shard,
        joins=joins_of(head.root_causes),
        joining=head.joining,
        sights={name: agent.tool_calls for name, agent in head.agents.items() if agent.tool_calls},
    )


def stored_agents(
    names: Iterable[str], sights: Mapping[str, Sight], silent: Iterable[str] = ()
) -> dict[str, StoredAgent]:
    """The agents by name. `silent`: those of which no call was seen in the whole run."""
    unseen = set(silent)
    return {name: StoredAgent(tool_calls=sights[name], no_call_seen=name in unseen) for name in names}


def silent_agents(result: RunResult) -> set[str]:
    """The agents of which no call was seen in the whole run, though their scenarios expect some."""
    return {warning.agent for warning in result.silent}


def summary(result: RunResult) -> Summary:
    """The run in numbers."""
    per_agent = {agent: _counts(_of_agent(result, agent)) for agent in result.agents}
    return Summary(
        counts=_counts(result),
        duration_ms=result.duration_ms,
        usage=_usage(result.usage, result.usage_by_role),
        time=stored_time(result.time),
        slowest_turns=_slowest(result),
        warnings=result.verdict_warnings,
        unclaimed_calls=result.unclaimed,
        silent_agents=result.silent,
        unanswered_calls=result.unanswered,
        per_agent=per_agent if result.comparison else None,
    )


def _counts(result: RunResult) -> Counts:
    return Counts(
        passed=run_status(result) is Status.PASSED,
        total_scenarios=len(result.scenarios),
        passed_scenarios=len(result.with_status(Status.PASSED)),
        failed_scenarios=len(result.with_status(Status.FAILED)),
        errored_scenarios=len(result.with_status(Status.ERRORED)),
        skipped_scenarios=len(result.with_status(Status.SKIPPED)),
        llm_calls=result.usage.calls,
        agent_calls=result.agent_calls,
        pass_rate=run_pass_rate(result.scenarios),
    )


def _of_agent(result: RunResult, agent: str) -> RunResult:
    mine = tuple(s for s in result.scenarios if s.agent == agent)
    return replace(result, scenarios=mine, joining={})


def _usage(usage: ModelUsage, by_role: Mapping[str, ModelUsage]) -> RunUsage:
    return RunUsage(
        tokens=usage.tokens, total_tokens=usage.tokens.total_tokens, cost=usage.cost, by_role=by_role
    )


def _slowest(result: RunResult) -> tuple[StoredSlowTurn, ...]:
    return tuple(
        StoredSlowTurn(
            latency_ms=turn.latency_ms,
            first_token_ms=turn.first_token_ms,
            scenario=scenario.name,
            agent=scenario.agent,
            conversation_id=turn.conversation_id,
            turn_index=turn.turn_index,
        )
        for scenario, turn in result.slowest_turns(_SHOWN_SLOWEST)
    )
