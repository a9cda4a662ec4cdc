"""One run made of its parts: as events, of which reporters make its reports."""

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
from agentest.runner.plan import joined
from agentest.runner.tools import is_known
from agentest.runner.warnings import without
from agentest.store.reader import KILLED
from agentest.store.runs.finished import Place
from agentest.store.shapes import Mode, PlannedConversations, RunHead, StoredAgent

_LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A scenario with an agent, and the part that has it."""

    part: MergedPart
    place: Place

    @property
    def planned(self) -> PlannedConversations | None:
        """What was planned of it; None: it was not to run."""
        found = self.part.held.parts.get(self.place)
        return found.planned if found else None


@dataclass(frozen=True, kw_only=True)
class Whole:
    """The run that several are part of."""

    parts: Sequence[MergedPart]
    missing: str | None = None
    """What is not there; None: nothing."""

    @cached_property
    def entries(self) -> list[Entry]:
        """In the order in which the whole run would report them."""
        found = _once([Entry(part=part, place=place) for part in self.parts for place in part.places])
        if self.parts[0].record.part:
            return sorted(found, key=_by_plan)
        return sorted(found, key=_by_file)

    @cached_property
    def agents(self) -> dict[str, str]:
        """Name → where it was, those that were talked to."""
        addresses = {name: where for part in self.parts for name, where in part.record.agents.items()}
        return {each.place[1]: addresses.get(each.place[1], "") for each in self.entries if each.planned}

    @property
    def comparison(self) -> bool:
        """Whether several agents were compared."""
        return any(part.held.run.mode is Mode.COMPARISON for part in self.parts)

    @property
    def models(self) -> dict[str, str | None]:
        return {role: model for part in self.parts for role, model in part.held.run.models.items()}

    @property
    def started_at(self) -> str:
        """When the first of the parts started."""
        return min(part.held.run.started_at for part in self.parts)

    @property
    def duration_ms(self) -> float:
        """How long the longest part took: they ran beside each other. That of a killed one is not known."""
        return max(part.held.end.summary.duration_ms if part.held.end else 0.0 for part in self.parts)

    @property
    def calibrations(self) -> dict[str, JudgeCalibration]:
        return {metric: each for end in self._ends for metric, each in end.calibration.items()}

    @property
    def _ends(self) -> list[RunHead]:
        """Of the parts that came to their end."""
        return [part.held.end for part in self.parts if part.held.end]

    @property
    def unclaimed(self) -> tuple[RunWarning, ...]:
        return tuple(dict.fromkeys(warning for part in self.parts for warning in part.held.unclaimed))

    @property
    def stopped(self) -> str | None:
        """Why it is not complete."""
        whys = [part.held.end.stopped if part.held.end else KILLED for part in self.parts]
        return "; ".join(dict.fromkeys(why for why in (self.missing, *whys) if why)) or None

    @property
    def interrupted(self) -> bool:
        """Whether something is missing that was not to be: a shard, or what one was killed before."""
        return bool(self.missing) or any(
            part.held.end is None or part.held.end.interrupted for part in self.parts
        )

    def events(self) -> Iterator[Event]:
        """The events of the run, scenario after scenario; one at a time is in memory with its conversations.

        Raises UsageError where a conversation cannot be read.
        """
        yield self._started()
        scenarios: list[ScenarioResult] = []
        for entry in self.entries:
            result = entry.part.held.so_far(entry.place)
            yield ScenarioStarted(result.name, result.agent, result.planned)
            yield from self._conversations(entry, result)
            yield ScenarioFinished(result)
            scenarios.append(replace(result, conversations=()))
        amended = amended_of({(each.name, each.agent): each for each in scenarios})
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

    def _conversations(self, entry: Entry, result: ScenarioResult) -> Iterator[ConversationFinished]:
        part = entry.part.held.parts.get(entry.place)
        if part:
            events = entry.part.held.events(entry.place, iter(sorted(part.lines)))
            yield from (replace(event, case=result.case, thresholds=result.thresholds) for event in events)

    def _result(self, scenarios: tuple[ScenarioResult, ...]) -> RunResult:
        held = {(each.name, each.agent): each for each in scenarios}
        sights = sights_of(self.parts, list(self.agents), held)
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
            silent=silent_of(self.parts, held),
            unanswered=unanswered_of(self.parts, held),
            unclaimed=self.unclaimed,
            calibrations=self.calibrations,
            addresses=self.agents,
            joins=tuple(join for end in self._ends for join in joins_of(end.root_causes)),
            joining=joined(*(end.joining for end in self._ends)),
        )


def _once(entries: Sequence[Entry]) -> list[Entry]:
    """Without what is in several parts, as none could run it: a file that is broken."""
    return list({entry.place: entry for entry in reversed(entries)}.values())[::-1]


def _agent_place(entry: Entry) -> int:
    """Where the agent stands among those of its part, which have the order of the configuration."""
    agents = list(entry.part.held.run.agents)
    return agents.index(entry.place[1]) if entry.place[1] in agents else -1


def _by_plan(entry: Entry) -> tuple[int, int]:
    part = entry.part.record.part
    return (part.scenarios.get(entry.place[0], 0) if part else 0), _agent_place(entry)


def _by_file(entry: Entry) -> tuple[str, int]:
    """Those of one line keep the order of their parts. Where a killed run had not come, no file is known."""
    held = entry.part.held
    scenario = held.not_run.get(entry.place) or held.parts[entry.place].scenario
    return (scenario.file, scenario.line) if scenario else (_LAST, 0)


Held = Mapping[Place, ScenarioResult]
"""The scenarios of the whole run."""


def sights_of(parts: Sequence[MergedPart], agents: Sequence[str], held: Held) -> dict[str, Sight]:
    """How the calls of each agent came to be known in the whole run.

    An agent whose every turn told of its calls is one that reports them: that must be so in all parts.
    """
    known = {name: _sight_of(name, parts, held) for name in agents}
    return {name: sight for name, sight in known.items() if sight}


def _sight_of(name: str, parts: Sequence[MergedPart], held: Held) -> Sight | None:
    mine = [part for part in parts if name in part.held.run.agents]
    talked = [
        part for part in mine if any(held[place].totals.turns for place in part.places if place[1] == name)
    ]
    ends = [_sight_in(part, name) for part in talked]
    at_first = mine[0].held.run.agents[name].tool_calls
    return ends[0] if ends and len(set(ends)) == 1 else at_first


def _sight_in(part: MergedPart, name: str) -> Sight | None:
    end = part.held.end
    agents = end.agents if end and name in end.agents else part.held.run.agents
    return agents[name].tool_calls


def silent_of(parts: Sequence[MergedPart], held: Held) -> tuple[RunWarning, ...]:
    """The agents that were never seen to call a tool: one that was in any part is not silent."""
    called = {agent for (_, agent), each in held.items() if each.totals.slowest and each.totals.tool_calls}
    told = [w for part in parts if part.held.end for w in part.held.end.summary.silent_agents]
    return tuple(dict.fromkeys(warning for warning in told if warning.agent not in called))


def amended_of(held: Held) -> dict[Place, ScenarioResult]:
    """The scenarios of which another part refutes a warning.

    Each part warns of tools that it does not know, and of agents that it has seen to call none.
    """
    known = frozenset[str]().union(*(each.totals.called for each in held.values()))
    seen = {agent for (_, agent), each in held.items() if each.totals.called}
    now = {place: without(each, _refuted(each, known, seen)) for place, each in held.items()}
    return {place: each for place, each in now.items() if each is not held[place]}


def _refuted(
    result: ScenarioResult, known: frozenset[str], seen: Collection[str]
) -> Iterator[VerdictWarning]:
    for warning in result.verdict_warnings:
        silent = warning.code is WarningCode.NO_CALL_SEEN and warning.agent in seen
        unknown = warning.code is WarningCode.UNKNOWN_TOOL and all(is_known(t, known) for t in warning.tools)
        if silent or unknown:
            yield warning


def unanswered_of(parts: Sequence[MergedPart], held: Held) -> tuple[RunWarning, ...]:
    """The tools of which calls were answered with null."""
    del held
    return tuple(
        dict.fromkeys(w for part in parts if part.held.end for w in part.held.end.summary.unanswered_calls)
    )
