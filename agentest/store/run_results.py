"""Convert runs and scenarios to the stored form and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from agentest.domain.confidence import run_pass_rate, totals_of, with_figures
from agentest.domain.results import (
    ModelUsage,
    Reason,
    RunResult,
    ScenarioResult,
    Status,
    UniqueError,
    Verdict,
)
from agentest.domain.root_causes import joins_of, root_causes, scenario_causes
from agentest.domain.tool_visibility import Sight
from agentest.domain.verdict import metric_verdicts, run_status, with_severe_failures
from agentest.store.adk_results import case_json
from agentest.store.codec import CODECS
from agentest.store.conversations import conversation_json, result_of, stored_time, with_vacuous
from agentest.store.shapes import (
    SCHEMA_VERSION,
    AdkCase,
    ComparedScenario,
    Counts,
    Mode,
    Repeated,
    RunHead,
    RunUsage,
    StoredAgent,
    StoredComparison,
    StoredConversation,
    StoredEntry,
    StoredRun,
    StoredScenario,
    StoredSlowTurn,
    Summary,
)
from agentest.support.json_text import Json, encoded, well_formed

_SHOWN_SLOWEST = 5


def entries(run: StoredRun | StoredComparison) -> tuple[StoredEntry, ...]:
    """Return each scenario with each agent."""
    if isinstance(run, StoredRun):
        return run.scenarios
    return tuple(entry for compared in run.scenarios for entry in compared.agents)


def mode_of(comparison: bool) -> Mode:
    return Mode.COMPARISON if comparison else Mode.SINGLE


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
        agents=stored_agents(result.agents, result.sights, silent_agents(result)),
        calibration=result.calibrations,
        shard=result.shard,
        root_causes=root_causes(result),
        joining=result.joining,
        summary=summary(result),
    )


def run_of(run: StoredRun | StoredComparison) -> RunResult:
    """Return a stored run with its scenarios."""
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
    """Return the agents by name. `silent` has those without a visible call in the whole run."""
    unseen = set(silent)
    return {name: StoredAgent(tool_calls=sights[name], no_call_seen=name in unseen) for name in names}


def silent_agents(result: RunResult) -> set[str]:
    """Return the agents without a visible call in the whole run, although their scenarios expect some."""
    return {warning.agent for warning in result.silent}


def summary(result: RunResult) -> Summary:
    """Summarize the run in numbers."""
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


def stored_scenario(result: ScenarioResult) -> StoredScenario:
    """Return the stored form of a scenario, without its conversations."""
    return StoredScenario(
        agent=result.agent,
        name=result.name,
        file=result.file,
        line=result.line,
        tags=result.tags,
        goal=result.goal,
        profile=result.profile,
        status=result.verdict.status,
        passed=result.verdict.passed,
        duration_ms=result.duration_ms,
        planned_conversations=result.planned,
        averages=result.averages,
        thresholds=result.thresholds,
        skipped_metrics=result.skipped_metrics,
        information=result.information,
        errors=result.errors,
        severity_unknown=result.severity_unknown,
        causes=scenario_causes(result),
        failures=_messages(result.verdict.reasons),
        reasons=result.verdict.reasons,
        warnings=result.warnings,
        verdict_warnings=result.verdict_warnings,
        usage=result.usage,
        intervals=result.intervals,
        pass_rate=result.pass_rate,
        pass_hat_k={str(k): value for k, value in result.pass_hat_k.items()},
        flaky=result.flaky if result.pass_rate else None,
        repeated=Repeated(repeat=result.repeat, decided_after=result.decided_after)
        if result.repeat
        else None,
        adk=CODECS.read(AdkCase, case_json(result)) if result.case else None,
    )


def _messages(reasons: Sequence[Reason]) -> tuple[str, ...]:
    """Return the messages of the failing reasons, followed by the others."""
    failing_first = sorted(reasons, key=lambda reason: reason.status is not Status.FAILED)
    return tuple(reason.message for reason in failing_first)


def scenario_of(entry: StoredEntry) -> ScenarioResult:
    """Return a stored scenario with its conversations."""
    stored = entry.scenario
    conversations = with_severe_failures(
        tuple(map(result_of, entry.conversations)), stored.errors, graded=not stored.severity_unknown
    )
    result = ScenarioResult(
        name=stored.name,
        agent=stored.agent,
        file=stored.file,
        line=stored.line,
        verdict=Verdict(stored.status, stored.reasons),
        conversations=conversations,
        averages=stored.averages,
        thresholds=stored.thresholds,
        metric_verdicts=metric_verdicts(stored.averages, stored.thresholds, exact=stored.adk is not None),
        errors=stored.errors,
        severity_unknown=stored.severity_unknown,
        causes=stored.causes,
        skipped_metrics=stored.skipped_metrics,
        information=stored.information,
        tags=stored.tags,
        goal=stored.goal,
        profile=stored.profile,
        duration_ms=stored.duration_ms,
        usage=stored.usage,
        case=stored.adk.case if stored.adk else None,
        totals=totals_of(conversations),
        planned=stored.planned_conversations,
        warnings=stored.warnings,
        verdict_warnings=stored.verdict_warnings,
        intervals=stored.intervals,
        pass_rate=stored.pass_rate,
        pass_hat_k={int(k): value for k, value in stored.pass_hat_k.items()},
        flaky=bool(stored.flaky),
        repeat=stored.repeated.repeat if stored.repeated else None,
        decided_after=stored.repeated.decided_after if stored.repeated else None,
    )
    # Files of older versions have none.
    has_figures = stored.pass_rate is not None or stored.intervals
    return result if has_figures else with_figures(result, conversations)


def severe_failures(groups: Iterable[UniqueError]) -> frozenset[str]:
    """Return the ids of failures in groups that fail their scenario."""
    return frozenset(id for group in groups if group.fails for id in group.occurrences)


def with_severity(conversation: Json, severe: Collection[str], *, unknown: bool) -> Json:
    """Add the severity of its failures to a stored conversation.

    Args:
        severe: the ids of the failures that fail the scenario.
        unknown: True if the severity of the scenario's failures is unknown.
    """
    failures = [failure["id"] for failure in conversation["labelledFailures"]]
    found = [id for id in failures if id in severe]
    unknown = unknown and bool(failures)
    if not found and not unknown:
        return conversation
    marks = {"severeFailures": found} if found else {}
    return {**conversation, "passed": False, **marks, **({"severityUnknown": True} if unknown else {})}


T = TypeVar("T")


Conversations = Callable[[ScenarioResult], Iterable[bytes]]
"""Returns a scenario's conversations in order, each as JSON."""


def conversations_in_memory(scenario: ScenarioResult) -> Iterator[bytes]:
    """Yield the conversations in the scenario's result."""
    return (
        encoded(conversation_json(result, scenario.case, scenario.thresholds))
        for result in scenario.conversations
    )


def document(result: RunResult, conversations: Conversations) -> Iterator[bytes]:
    """Yield the document piece by piece, because a large run does not fit in memory.

    Each scenario and each conversation starts on a line of its own.
    """
    conversations = completed_by(result, conversations)
    head = json.dumps(CODECS.write(_without_scenarios(result)), ensure_ascii=False, indent=2, allow_nan=False)
    yield well_formed(head).encode().removesuffix(b"]\n}")
    if result.comparison:
        groups = by_name(result.scenarios, lambda scenario: scenario.name)
        yield from _separated(_compared(name, group, conversations) for name, group in groups.items())
    else:
        yield from _separated(_streamed(scenario, conversations) for scenario in result.scenarios)
    yield b"\n  ]\n}\n"


def completed_by(result: RunResult, conversations: Conversations) -> Conversations:
    """Add facts to the conversations that are known only at the end of their scenario or of the run."""
    silent = silent_agents(result)

    def completed(scenario: ScenarioResult) -> Iterable[bytes]:
        pieces = conversations(scenario)
        severe, unknown = severe_failures(scenario.errors), scenario.severity_unknown
        if severe or unknown:
            pieces = (encoded(with_severity(json.loads(each), severe, unknown=unknown)) for each in pieces)
        return map(_with_vacuous, pieces) if scenario.agent in silent else pieces

    return completed


def _with_vacuous(piece: bytes) -> bytes:
    conversation = CODECS.read(StoredConversation, json.loads(piece))
    return encoded(CODECS.write(with_vacuous(conversation)))


def _without_scenarios(result: RunResult) -> StoredRun | StoredComparison:
    head = stored_head(result)
    return StoredComparison(head=head) if result.comparison else StoredRun(head=head)


def _compared(
    name: str, scenarios: Sequence[ScenarioResult], conversations: Conversations
) -> Iterator[bytes]:
    yield _open_list(ComparedScenario(name=name))
    yield from _separated(_streamed(scenario, conversations) for scenario in scenarios)
    yield b"]}"


def _streamed(scenario: ScenarioResult, conversations: Conversations) -> Iterator[bytes]:
    yield _open_list(StoredEntry(scenario=stored_scenario(scenario)))
    yield from _separated((piece,) for piece in conversations(scenario))
    yield b"]}"


def _open_list(value: StoredEntry | ComparedScenario) -> bytes:
    """Return a value up to its last field, an empty list, so that the items can follow."""
    return encoded(CODECS.write(value)).removesuffix(b"]}")


def _separated(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the items, each on a line of its own."""
    for n, item in enumerate(items):
        yield b",\n" if n else b"\n"
        yield from item


def by_name(scenarios: Iterable[T], name_of: Callable[[T], str]) -> dict[str, list[T]]:
    """Group scenarios by name, in their original order."""
    groups: dict[str, list[T]] = {}
    for scenario in scenarios:
        groups.setdefault(name_of(scenario), []).append(scenario)
    return groups
