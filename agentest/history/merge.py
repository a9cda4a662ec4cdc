"""Merge several runs into one, as a stream of events from which reporters write its reports."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from agentest.domain.events import (
    Event,
    RunFinished,
    RunStarted,
    ScenarioAmended,
    ScenarioFinished,
    ScenarioStarted,
)
from agentest.domain.results import (
    QuotaUse,
    RunResult,
    RunWarning,
    ScenarioResult,
    VerdictWarning,
    WarningCode,
    total_usage,
)
from agentest.domain.shards import ShardedRun
from agentest.domain.tool_visibility import ToolVisibility
from agentest.runner.known_tools import is_known
from agentest.runner.verdict_warnings import without
from agentest.store.reader import KILLED, Place, StoredJournal, read_finished
from agentest.store.run_results import joins_of
from agentest.store.runs.folder import (
    JOURNAL,
    RECORD,
    RunKind,
    RunRecord,
    StoredRunFolder,
    read_record,
    run_file,
)
from agentest.store.shapes import Mode, PlannedConversations, RunHead
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, quoted_names

ALLOW = "--allow-missing"


@dataclass(frozen=True, kw_only=True)
class MergedPart:
    """A run that becomes part of another run."""

    folder: Path
    record: RunRecord

    @property
    def name(self) -> str:
        """Name of the run in messages."""
        shard = f" (shard {self.record.shard})" if self.record.shard else ""
        return f"{self.record.id}{shard}"

    @cached_property
    def journal(self) -> StoredJournal:
        """Content of the run's journal. Raises UsageError if it cannot be read or is incomplete."""
        finished = read_finished(self.folder / JOURNAL)
        if finished.end is None and self.record.ended:
            raise UsageError(f"{finished.path} is not whole: its run ended, and the journal has no end")
        for key in filter(finished.is_decided, finished.planned):
            if len(finished.lines(key)) < finished.scenarios[key].planned:
                raise UsageError(
                    f"{finished.path} is not whole: it lacks conversations of scenario {key[0]!r}"
                )
        return finished

    @property
    def places(self) -> list[Place]:
        """Scenario names and agents, in the planned order, followed by those that did not run."""
        return [*self.journal.planned, *self.journal.not_run]


def find_parts(
    references: Sequence[str], output_dir: Path, cwd: Path
) -> tuple[Sequence[MergedPart], Sequence[str]]:
    """Find the runs that the RUN arguments mean, and return notes about runs that are left out.

    Args:
        references: each is an id or a prefix of one, `latest`, a run's folder, or a folder with several runs.
        output_dir: folder in which ids are searched.
        cwd: folder that relative paths start from.

    Raises UsageError.
    """
    parts: list[MergedPart] = []
    notes: list[str] = []
    for reference in references:
        path = cwd / reference
        if path.is_dir() and not (path / RECORD).is_file():
            below = [_part(folder) for folder in _folders_below(path, reference)]
            shards = [part for part in below if part.record.shard]
            if shards and len(shards) < len(below):
                left_out = [part.name for part in below if not part.record.shard]
                notes.append(f"{reference}: left out, as no shards: {', '.join(left_out)}")
            parts += shards or below
        else:
            file = run_file(reference, output_dir, cwd)
            if not (file.parent / RECORD).is_file():
                raise UsageError(
                    f"{reference} is not in the folder of a run: name a run by its id (agentest runs) or "
                    "folder"
                )
            parts.append(_part(file.parent))
    resumed = {part.record.resumed: part for part in parts if part.record.resumed}
    for part in parts:
        if later := resumed.get(part.record.id):
            notes.append(f"{part.name}: left out, as {later.record.id} went on with it")
    return [part for part in parts if part.record.id not in resumed], notes


def part_names(parts: Sequence[MergedPart]) -> str:
    """Return the names of up to four runs, and the number of the others."""
    names = ", ".join(part.name for part in parts[:4])
    return names + (f" and {count(len(parts) - 4, 'more run')}" if len(parts) > 4 else "")


def check_parts(parts: Sequence[MergedPart]) -> None:
    """Raise UsageError if the runs cannot be parts of one run."""
    ids = Counter(part.record.id for part in parts)
    for part in parts:
        if ids[part.record.id] > 1:
            raise UsageError(f"merge: run {part.name} is named twice; a run cannot be merged with itself")
    not_merged = [part for part in parts if part.record.kind is not RunKind.MERGE]
    _check_same(not_merged, "kind", lambda part: part.record.kind)
    _check_same(parts, "version of Agentest", lambda part: part.record.version)
    _check_same(parts, "commit", lambda part: part.record.commit)
    for role in dict.fromkeys(role for part in parts for role in part.record.models):
        _check_same(parts, f"model of the {role}", partial(_model, role))
    shards = [part for part in parts if part.record.part]
    if shards and len(shards) < len(parts):
        others = [part for part in parts if part.record.part is None]
        raise UsageError(
            f"merge: shards go together with shards alone, which these are not: {part_names(others)}"
        )
    if shards:
        _check_shards(shards)
    elif len(parts) == 1:
        raise UsageError(f"merge: {parts[0].name} is the only run, and whole: there is nothing to merge")
    _check_overlap(parts)


def missing_shards_text(parts: Sequence[MergedPart]) -> str | None:
    """Return which shards are missing and how many scenarios they contain; None if none is missing."""
    first = parts[0].record.part
    if first is None:
        return None
    have = {part.shard.number for part in _shards(parts)}
    missing_shards = [
        f"{number}/{first.shard.of}" for number in range(1, first.shard.of + 1) if number not in have
    ]
    if not missing_shards:
        return None
    missing = first.whole - sum(len(part.scenarios) for part in _shards(parts))
    shards = "shard {} is" if len(missing_shards) == 1 else "shards {} are"
    which, total = shards.format(", ".join(missing_shards)), count(first.whole, "scenario")
    return f"{which} missing, with {missing} of {total}"


def check_complete(parts: Sequence[MergedPart], *, allow_missing: bool) -> str | None:
    """Return what is missing if that is allowed; otherwise raise UsageError."""
    problem = missing_shards_text(parts)
    if problem and not allow_missing:
        raise UsageError(
            f"merge: {problem}; name all shards, or take those that are there, as an errored run: {ALLOW}"
        )
    return problem


def _folders_below(path: Path, reference: str) -> list[Path]:
    folders = []
    for folder, below, files in os.walk(path):
        if RECORD in files:
            below.clear()
            folders.append(Path(folder))
    if not folders:
        raise UsageError(f"{reference}: no run is in this folder; a run's folder has {RECORD} and {JOURNAL}")
    return sorted(folders)


def _part(folder: Path) -> MergedPart:
    record = read_record(folder)
    if record is None:
        raise UsageError(f"{folder} is not a run's folder: it has no {RECORD} that can be read")
    if StoredRunFolder(folder).under_way:
        raise UsageError(f"{record.id}: the run is still under way; wait for its end")
    if not (folder / JOURNAL).is_file():
        raise UsageError(f"{folder} has no {JOURNAL}: take the whole folder of a run")
    return MergedPart(folder=folder, record=record)


def _shards(parts: Sequence[MergedPart]) -> Iterator[ShardedRun]:
    return (part.record.part for part in parts if part.record.part)


def _check_same(parts: Sequence[MergedPart], what: str, value_of: Callable[[MergedPart], str | None]) -> None:
    known = [(part, value) for part in parts if (value := value_of(part)) is not None]
    for part, value in known:
        first, expected = known[0]
        if value != expected:
            raise UsageError(
                f"merge: the runs are not of one {what}: {first.name} is of {expected}, {part.name} of "
                f"{value}; merge runs of one state alone"
            )


def _model(role: str, part: MergedPart) -> str | None:
    return part.record.models[role] or "none" if role in part.record.models else None


def _check_shards(parts: Sequence[MergedPart]) -> None:
    first, expected = parts[0], next(_shards(parts))
    by_number: dict[int, MergedPart] = {}
    for part, known in zip(parts, _shards(parts), strict=True):
        if known.shard.of != expected.shard.of:
            raise UsageError(f"merge: the runs are shards of different splits: {first.name} and {part.name}")
        if known.shard.number in by_number:
            raise UsageError(
                f"merge: shard {known.shard} is there twice: {by_number[known.shard.number].record.id} and "
                f"{part.record.id}; name the runs that belong together"
            )
        by_number[known.shard.number] = part
        if known.plan != expected.plan:
            raise UsageError(
                f"merge: {first.name} and {part.name} are shards of different runs: scenarios, their agents, "
                "files or numbers of conversations are not the same"
            )
        if known.made_of != expected.made_of:
            raise UsageError(
                f"merge: {first.name} and {part.name} are shards of different runs: the contents of files or "
                "the configuration are not the same"
            )


def _check_overlap(parts: Sequence[MergedPart]) -> None:
    earlier: dict[Place, MergedPart] = {}
    both: list[tuple[MergedPart, MergedPart, Place]] = []
    for part in parts:
        for place in part.places:
            other = earlier.setdefault(place, part)
            ran = place not in part.journal.not_run or place not in other.journal.not_run
            if other is not part and ran:
                both.append((other, part, place))
    if both:
        first, second, _ = both[0]
        shared = quoted_names(name for *_, (name, _) in both)
        raise UsageError(
            f"merge: {first.name} and {second.name} overlap: both have {shared}"
            f"{_split_difference(first, second)}"
        )
    # A complete set of shards lacks scenarios if they were split differently.
    known = list(_shards(parts))
    if not known or missing_shards_text(parts):
        return
    missing = known[0].whole - sum(len(part.scenarios) for part in known)
    if missing:
        raise UsageError(
            f"merge: {missing} of {count(known[0].whole, 'scenario')} are in none of the shards"
            f"{_split_difference(*_split_differently(parts))}"
        )


def _split_differently(parts: Sequence[MergedPart]) -> tuple[MergedPart, MergedPart]:
    first = parts[0]
    split_by = first.record.part and first.record.part.split_by
    other = (part for part in parts if part.record.part and part.record.part.split_by != split_by)
    return first, next(other, first)


def _split_difference(first: MergedPart, second: MergedPart) -> str:
    a, b = first.record.part, second.record.part
    if a is None or b is None or a.split_by == b.split_by:
        return ""
    return (
        f"; {first.record.shard} was split by {a.split_by}, {second.record.shard} by {b.split_by}: give all "
        "shards the same --shard-by, a file or `counts`"
    )


_AFTER_ALL_FILES = "\U0010ffff"
ScenarioResults = Mapping[Place, ScenarioResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedEntry:
    """A scenario with an agent, and the part that contains it."""

    part: MergedPart
    place: Place

    @property
    def planned(self) -> PlannedConversations | None:
        """Planned conversations; None if the scenario was not going to run."""
        return self.part.journal.planned.get(self.place)


@dataclass(frozen=True, kw_only=True)
class MergedRun:
    """The run that consists of all parts."""

    parts: Sequence[MergedPart]
    missing: str | None = None  # description of missing parts; None if the run is complete

    @cached_property
    def entries(self) -> list[MergedEntry]:
        """Scenarios in the order in which a single run would report them."""
        entries: dict[Place, MergedEntry] = {}
        for part in self.parts:
            for place in part.places:
                entries.setdefault(place, MergedEntry(part=part, place=place))
        return sorted(entries.values(), key=_by_plan if self.parts[0].record.part else _by_file)

    @cached_property
    def agents(self) -> dict[str, str]:
        """Maps each agent that was called to its address."""
        addresses = {name: where for part in self.parts for name, where in part.record.agents.items()}
        return {each.place[1]: addresses.get(each.place[1], "") for each in self.entries if each.planned}

    @property
    def models(self) -> dict[str, str | None]:
        return {role: model for part in self.parts for role, model in part.journal.run.models.items()}

    @property
    def started_at(self) -> str:
        """Start time of the first part."""
        return min(part.journal.run.started_at for part in self.parts)

    @property
    def _common(self) -> dict[str, Any]:
        """What the start and the end of the run have in common."""
        journals = [part.journal for part in self.parts]
        return {
            "version": self.parts[0].record.version,
            "started_at": self.started_at,
            "models": self.models,
            "comparison": any(each.run.mode is Mode.COMPARISON for each in journals),
            "calibrations": {metric: each for end in self._ends for metric, each in end.calibration.items()},
        }

    @property
    def _ends(self) -> list[RunHead]:
        return [part.journal.end for part in self.parts if part.journal.end]

    def events(self) -> Iterator[Event]:
        """Yield the events of the run, scenario by scenario, with one scenario's conversations in memory.

        Raises UsageError if a conversation cannot be read.
        """
        yield self._started()
        scenarios: list[ScenarioResult] = []
        for entry in self.entries:
            journal = entry.part.journal
            result = journal.so_far(entry.place)
            yield ScenarioStarted(result.name, result.agent, result.planned)
            for event in journal.events(entry.place, journal.lines(entry.place) if entry.planned else ()):
                yield replace(event, case=result.case, thresholds=result.thresholds)
            yield ScenarioFinished(result)
            scenarios.append(replace(result, conversations=()))
        amended = _without_disproved_warnings({(each.name, each.agent): each for each in scenarios})
        for at, each in enumerate(scenarios):
            if now := amended.get((each.name, each.agent)):
                yield ScenarioAmended(now, each.verdict.status)
                scenarios[at] = now
        yield RunFinished(self._result(tuple(scenarios)))

    def _started(self) -> RunStarted:
        planned = [each.planned for each in self.entries if each.planned]
        agents = {name: each for part in self.parts for name, each in part.journal.run.agents.items()}
        return RunStarted(
            agents=self.agents,
            scenarios=len(self.entries),
            conversations=sum(each.conversations for each in planned),
            concurrency=0,
            planned=tuple((each.scenario, each.agent, each.conversations) for each in planned),
            fingerprints={(each.scenario, each.agent): each.fingerprint for each in planned},
            used={(each.scenario, each.agent): each.usage for each in planned if each.usage},
            visibilities={name: each.tool_calls for name, each in agents.items() if each.tool_calls},
            **self._common,
        )

    def _result(self, scenarios: tuple[ScenarioResult, ...]) -> RunResult:
        results = {(each.name, each.agent): each for each in scenarios}
        visibilities = {name: _visibility_of(name, self.parts, results) for name in self.agents}
        called = {
            agent for (_, agent), each in results.items() if each.totals.slowest and each.totals.tool_calls
        }
        ends, is_whole = self._ends, len(self._ends) == len(self.parts) and not self.missing
        warnings = _unique(end.summary.silent_agents for end in ends)
        whys = [
            self.missing,
            *(part.journal.end.stopped if part.journal.end else KILLED for part in self.parts),
        ]
        return RunResult(
            scenarios=scenarios,
            agents=tuple(self.agents),
            duration_ms=max((end.summary.duration_ms for end in ends), default=0.0),  # they ran at once
            interrupted=not is_whole or any(end.interrupted for end in ends),
            stopped="; ".join(dict.fromkeys(filter(None, whys))) or None,
            visibilities={name: each for name, each in visibilities.items() if each},
            silent=tuple(warning for warning in warnings if warning.agent not in called),
            unanswered=_unique(end.summary.unanswered_calls for end in ends),
            unclaimed=_unique(end.summary.unclaimed_calls for end in ends),
            addresses=self.agents,
            joins=tuple(join for end in ends for join in joins_of(end.root_causes)),
            joining=total_usage(end.joining for end in ends),
            quotas=_quotas_of(ends),
            **self._common,
        )


def _quotas_of(ends: Iterable[RunHead]) -> tuple[QuotaUse, ...]:
    """Add up the use of each quota. Two keys for one model are two quotas, in the same order in all parts."""
    parts: dict[tuple[str, int], list[QuotaUse]] = {}
    for end in ends:
        keys = Counter[str]()
        for each in end.summary.quotas:
            keys[each.model] += 1
            parts.setdefault((each.model, keys[each.model]), []).append(each)
    return tuple(
        replace(
            uses[-1],
            requests=sum(each.requests for each in uses),
            tokens=sum(each.tokens for each in uses),
            refused=sum(each.refused for each in uses),
            waited_ms=max(each.waited_ms for each in uses),
            learnt_per_minute=sum(each.learnt_per_minute or 0 for each in uses) or None,
        )
        for uses in parts.values()
    )


def _visibility_of(name: str, parts: Sequence[MergedPart], results: ScenarioResults) -> ToolVisibility | None:
    """Return the tool visibility of an agent over the whole run.

    It counts as reporting its calls only if it did so in every turn of all parts.
    """
    with_agent = [part for part in parts if name in part.journal.run.agents]
    ends = set()
    for part in with_agent:
        if any(results[place].totals.turns for place in part.places if place[1] == name):
            end = part.journal.end
            agents = end.agents if end and name in end.agents else part.journal.run.agents
            ends.add(agents[name].tool_calls)
    return ends.pop() if len(ends) == 1 else with_agent[0].journal.run.agents[name].tool_calls


def _unique(warnings: Iterable[Iterable[RunWarning]]) -> tuple[RunWarning, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(warnings)))


def _without_disproved_warnings(results: ScenarioResults) -> dict[Place, ScenarioResult]:
    known = frozenset[str]().union(*(each.totals.called | each.totals.offered for each in results.values()))
    active_agents = {agent for (_, agent), each in results.items() if each.totals.called}

    def is_disproved(warning: VerdictWarning) -> bool:
        if warning.code is WarningCode.NO_CALL_SEEN:
            return warning.agent in active_agents
        return warning.code is WarningCode.UNKNOWN_TOOL and all(is_known(t, known) for t in warning.tools)

    now = {
        place: without(each, filter(is_disproved, each.verdict_warnings)) for place, each in results.items()
    }
    return {place: each for place, each in now.items() if each is not results[place]}


def _by_plan(entry: MergedEntry) -> tuple[int, int]:
    part, (name, agent) = entry.part.record.part, entry.place
    agents = list(entry.part.journal.run.agents)
    return part.scenarios.get(name, 0) if part else 0, agents.index(agent) if agent in agents else -1


def _by_file(entry: MergedEntry) -> tuple[str, int]:
    results = entry.part.journal
    scenario = results.scenarios.get(entry.place)
    return (scenario.file, scenario.line) if scenario else (_AFTER_ALL_FILES, 0)
