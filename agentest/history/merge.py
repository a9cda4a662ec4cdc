"""Merge several runs into one, as a stream of events from which reporters write its reports."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from agentest.domain.events import (
    ConversationFinished,
    Event,
    RunFinished,
    RunStarted,
    ScenarioAmended,
    ScenarioFinished,
    ScenarioStarted,
)
from agentest.domain.results import (
    JudgeCalibration,
    RunResult,
    RunWarning,
    ScenarioResult,
    VerdictWarning,
    WarningCode,
)
from agentest.domain.root_causes import joins_of
from agentest.domain.tool_visibility import Sight
from agentest.history.merge_parts import MergedPart
from agentest.runner.plan import total_usage
from agentest.runner.tools import is_known
from agentest.runner.warnings import without
from agentest.store.reader import KILLED
from agentest.store.runs.finished_parts import Place
from agentest.store.shapes import Mode, PlannedConversations, RunHead, StoredAgent

_AFTER_ALL_FILES = "\U0010ffff"
ScenarioResults = Mapping[Place, ScenarioResult]
"""The scenarios of the whole run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedEntry:
    """A scenario with an agent, and the part that contains it."""

    part: MergedPart
    place: Place

    @property
    def planned(self) -> PlannedConversations | None:
        """Planned conversations; None if the scenario was not going to run."""
        found = self.part.held.parts.get(self.place)
        return found.planned if found else None


@dataclass(frozen=True, kw_only=True)
class MergedRun:
    """The run that consists of all parts."""

    parts: Sequence[MergedPart]
    missing: str | None = None
    """Description of missing parts; None if the run is complete."""

    @cached_property
    def entries(self) -> list[MergedEntry]:
        """Scenarios in the order in which a single run would report them."""
        found = _without_duplicates(
            [MergedEntry(part=part, place=place) for part in self.parts for place in part.places]
        )
        if self.parts[0].record.part:
            return sorted(found, key=_by_plan)
        return sorted(found, key=_by_file)

    @cached_property
    def agents(self) -> dict[str, str]:
        """Maps each agent that was called to its address."""
        addresses = {name: where for part in self.parts for name, where in part.record.agents.items()}
        return {each.place[1]: addresses.get(each.place[1], "") for each in self.entries if each.planned}

    @property
    def comparison(self) -> bool:
        """True if several agents were compared."""
        return any(part.held.run.mode is Mode.COMPARISON for part in self.parts)

    @property
    def models(self) -> dict[str, str | None]:
        return {role: model for part in self.parts for role, model in part.held.run.models.items()}

    @property
    def started_at(self) -> str:
        """Start time of the first part."""
        return min(part.held.run.started_at for part in self.parts)

    @property
    def duration_ms(self) -> float:
        """Duration of the longest part, because parts run in parallel. Unknown durations count as 0."""
        return max(part.held.end.summary.duration_ms if part.held.end else 0.0 for part in self.parts)

    @property
    def calibrations(self) -> dict[str, JudgeCalibration]:
        return {metric: each for end in self._ends for metric, each in end.calibration.items()}

    @property
    def _ends(self) -> list[RunHead]:
        """Ends of the parts that are complete."""
        return [part.held.end for part in self.parts if part.held.end]

    @property
    def unclaimed(self) -> tuple[RunWarning, ...]:
        return tuple(dict.fromkeys(warning for part in self.parts for warning in part.held.unclaimed))

    @property
    def stopped(self) -> str | None:
        """Reason why the run is incomplete; None if it is complete."""
        whys = [part.held.end.stopped if part.held.end else KILLED for part in self.parts]
        return "; ".join(dict.fromkeys(why for why in (self.missing, *whys) if why)) or None

    @property
    def interrupted(self) -> bool:
        """True if a shard is missing, or a part was interrupted or killed."""
        return bool(self.missing) or any(
            part.held.end is None or part.held.end.interrupted for part in self.parts
        )

    def events(self) -> Iterator[Event]:
        """Yield the events of the run, scenario by scenario, with one scenario's conversations in memory.

        Raises UsageError if a conversation cannot be read.
        """
        yield self._started()
        scenarios: list[ScenarioResult] = []
        for entry in self.entries:
            result = entry.part.held.so_far(entry.place)
            yield ScenarioStarted(result.name, result.agent, result.planned)
            yield from self._conversations(entry, result)
            yield ScenarioFinished(result)
            scenarios.append(replace(result, conversations=()))
        amended = scenarios_without_disproved_warnings({(each.name, each.agent): each for each in scenarios})
        for at, each in enumerate(scenarios):
            if now := amended.get((each.name, each.agent)):
                yield ScenarioAmended(now, each.verdict.status)
                scenarios[at] = now
        yield RunFinished(self._result(tuple(scenarios)))

    def _started(self) -> RunStarted:
        planned = [each.planned for each in self.entries if each.planned]
        return RunStarted(
            version=self.parts[0].record.version,
            started_at=self.started_at,
            agents=self.agents,
            scenarios=len(self.entries),
            conversations=sum(each.conversations for each in planned),
            concurrency=0,
            models=self.models,
            comparison=self.comparison,
            planned=tuple((each.scenario, each.agent, each.conversations) for each in planned),
            fingerprints={(each.scenario, each.agent): each.fingerprint for each in planned},
            used={(each.scenario, each.agent): each.usage for each in planned if each.usage},
            sights={name: each.tool_calls for name, each in self._agents_at_first.items() if each.tool_calls},
            calibrations=self.calibrations,
        )

    @property
    def _agents_at_first(self) -> Mapping[str, StoredAgent]:
        return {name: each for part in self.parts for name, each in part.held.run.agents.items()}

    def _conversations(self, entry: MergedEntry, result: ScenarioResult) -> Iterator[ConversationFinished]:
        part = entry.part.held.parts.get(entry.place)
        if part:
            events = entry.part.held.events(entry.place, iter(sorted(part.lines)))
            yield from (replace(event, case=result.case, thresholds=result.thresholds) for event in events)

    def _result(self, scenarios: tuple[ScenarioResult, ...]) -> RunResult:
        results = {(each.name, each.agent): each for each in scenarios}
        sights = tool_visibility_of(self.parts, list(self.agents), results)
        return RunResult(
            scenarios=scenarios,
            agents=tuple(self.agents),
            comparison=self.comparison,
            started_at=self.started_at,
            duration_ms=self.duration_ms,
            version=self.parts[0].record.version,
            models=self.models,
            interrupted=self.interrupted,
            stopped=self.stopped,
            sights=sights,
            silent=silent_agent_warnings(self.parts, results),
            unanswered=unanswered_call_warnings(self.parts, results),
            unclaimed=self.unclaimed,
            calibrations=self.calibrations,
            addresses=self.agents,
            joins=tuple(join for end in self._ends for join in joins_of(end.root_causes)),
            joining=total_usage(*(end.joining for end in self._ends)),
        )


def tool_visibility_of(
    parts: Sequence[MergedPart], agents: Sequence[str], results: ScenarioResults
) -> dict[str, Sight]:
    """Return the tool visibility of each agent over the whole run.

    An agent counts as reporting its calls only if it did so in every turn of all parts.
    """
    known = {name: _visibility_of(name, parts, results) for name in agents}
    return {name: sight for name, sight in known.items() if sight}


def silent_agent_warnings(parts: Sequence[MergedPart], results: ScenarioResults) -> tuple[RunWarning, ...]:
    """Return warnings about agents without any tool call, unless another part has seen one."""
    called = {agent for (_, agent), each in results.items() if each.totals.slowest and each.totals.tool_calls}
    warnings = [w for part in parts if part.held.end for w in part.held.end.summary.silent_agents]
    return tuple(dict.fromkeys(warning for warning in warnings if warning.agent not in called))


def scenarios_without_disproved_warnings(results: ScenarioResults) -> dict[Place, ScenarioResult]:
    """Return the scenarios with a warning that another part disproves.

    Each part warns about tools that it does not know and about agents without tool calls.
    """
    known = frozenset[str]().union(*(each.totals.called for each in results.values()))
    seen = {agent for (_, agent), each in results.items() if each.totals.called}
    now = {place: without(each, _disproved_warnings(each, known, seen)) for place, each in results.items()}
    return {place: each for place, each in now.items() if each is not results[place]}


def unanswered_call_warnings(parts: Sequence[MergedPart], results: ScenarioResults) -> tuple[RunWarning, ...]:
    """Return warnings about tools whose calls were answered with null."""
    del results
    return tuple(
        dict.fromkeys(w for part in parts if part.held.end for w in part.held.end.summary.unanswered_calls)
    )


def _without_duplicates(entries: Sequence[MergedEntry]) -> list[MergedEntry]:
    """Remove duplicates: a file that does not load is part of every shard."""
    return list({entry.place: entry for entry in reversed(entries)}.values())[::-1]


def _agent_position(entry: MergedEntry) -> int:
    """Return the agent's position in its part, which has the order of the configuration."""
    agents = list(entry.part.held.run.agents)
    return agents.index(entry.place[1]) if entry.place[1] in agents else -1


def _by_plan(entry: MergedEntry) -> tuple[int, int]:
    part = entry.part.record.part
    return (part.scenarios.get(entry.place[0], 0) if part else 0), _agent_position(entry)


def _by_file(entry: MergedEntry) -> tuple[str, int]:
    """Sort by file and line. Entries that a killed run did not reach have no known file and come last."""
    results = entry.part.held
    scenario = results.not_run.get(entry.place) or results.parts[entry.place].scenario
    return (scenario.file, scenario.line) if scenario else (_AFTER_ALL_FILES, 0)


def _visibility_of(name: str, parts: Sequence[MergedPart], results: ScenarioResults) -> Sight | None:
    mine = [part for part in parts if name in part.held.run.agents]
    talked = [
        part for part in mine if any(results[place].totals.turns for place in part.places if place[1] == name)
    ]
    ends = [_visibility_in_part(part, name) for part in talked]
    at_first = mine[0].held.run.agents[name].tool_calls
    return ends[0] if ends and len(set(ends)) == 1 else at_first


def _visibility_in_part(part: MergedPart, name: str) -> Sight | None:
    end = part.held.end
    agents = end.agents if end and name in end.agents else part.held.run.agents
    return agents[name].tool_calls


def _disproved_warnings(
    result: ScenarioResult, known: frozenset[str], seen: Collection[str]
) -> Iterator[VerdictWarning]:
    for warning in result.verdict_warnings:
        silent = warning.code is WarningCode.NO_CALL_SEEN and warning.agent in seen
        unknown = warning.code is WarningCode.UNKNOWN_TOOL and all(is_known(t, known) for t in warning.tools)
        if silent or unknown:
            yield warning
