"""One run made of its parts: as events, of which reporters make its reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from agentest.domain.results import JudgeCalibration, RunResult, RunWarning, ScenarioResult
from agentest.domain.root_causes import joins_of
from agentest.history.merging.parts import MergedPart
from agentest.history.merging.warnings import amended_of, sights_of, silent_of, unanswered_of
from agentest.runner.kept import joined
from agentest.store.journal_reading import KILLED
from agentest.store.lines import PlannedConversations
from agentest.store.runs.finished import Place
from agentest.store.shapes import Mode, RunHead, StoredAgent

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
