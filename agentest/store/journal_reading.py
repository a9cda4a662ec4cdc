"""A journal as the document that its run would have written, in JSON types and unchecked.

A run that was killed left a journal without its end. What it had finished is kept; a scenario that it had not
finished is errored, and so is the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentest.domain.results import Reason, ReasonKind, RunResult, ScenarioResult, Status, Verdict
from agentest.store.document import by_name
from agentest.store.layouts import CODECS
from agentest.store.lines import ConversationLine, EndLine, RunLine, ScenarioLine
from agentest.store.run_results import summary
from agentest.store.scenarios import stored_scenario
from agentest.store.shapes import ComparedScenario, Mode, RunHead, StoredEntry, StoredRun, StoredScenario
from agentest.support.json_text import Json

KILLED = "killed before its end"

_LINES: Mapping[Any, type] = {
    "run": RunLine,
    "conversation": ConversationLine,
    "scenario": ScenarioLine,
    "end": EndLine,
}
_TYPE = CODECS.key(RunLine, "type")
_NAME = CODECS.key(StoredScenario, "name")
_AGENT = CODECS.key(StoredScenario, "agent")
_CONVERSATIONS = CODECS.key(StoredEntry, "conversations")
_SCENARIOS = CODECS.key(StoredRun, "scenarios")

_Place = tuple[str, str]
"""Names of a scenario and its agent."""


class JournalError(ValueError):
    """A line is not what Agentest writes; the message says which."""


class OtherVersionError(JournalError):
    """The first line is not what this version of Agentest writes."""


def is_journal(content: bytes) -> bool:
    """Whether a file is a journal, by its first line."""
    try:
        first = json.loads(content.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and _LINES.get(first.get(_TYPE)) is RunLine


@dataclass(slots=True)
class _Contents:
    """The lines of a journal."""

    run: RunLine | None = None
    end: Json | None = None
    scenarios: list[Json] = field(default_factory=list)
    conversations: dict[_Place, dict[int, Json]] = field(default_factory=dict)
    _places: dict[_Place, int] = field(default_factory=dict)
    """Where the last of the `scenarios` with this name and agent stands."""

    def add(self, data: Any) -> None:
        """Raises JournalError."""
        match read_line(data):
            case RunLine() as line:
                self.run = line
            case EndLine(run=dict(end)):
                self.end = end
            case ScenarioLine(scenario=dict(scenario), amended=True) if _is_place(_place(scenario)):
                self._amend(scenario)
            case ScenarioLine(scenario=dict(scenario)) if _is_place(_place(scenario)):
                self._places[_place(scenario)] = len(self.scenarios)
                self.scenarios.append(scenario)
            case ConversationLine(number=int(number), conversation=dict(conversation)) as line if _is_place(
                place := (line.scenario, line.agent)
            ):
                self.conversations.setdefault(place, {})[number] = conversation
            case _:
                raise JournalError("is no line of a journal")

    def _amend(self, scenario: Json) -> None:
        """Raises JournalError where the scenario has not finished."""
        at = self._places.get(_place(scenario))
        if at is None:
            raise JournalError("amends a scenario that has not finished")
        self.scenarios[at] = scenario

    @property
    def planned(self) -> dict[_Place, int]:
        """How many conversations were planned."""
        planned = self.run.planned if self.run else ()
        return {(each.scenario, each.agent): each.conversations for each in planned}


def read_line(data: Any) -> object:
    """One of the lines of `lines`. Raises JournalError."""
    cls = _LINES.get(data.get(_TYPE)) if isinstance(data, dict) else None
    if cls is None:
        raise JournalError("is no line of a journal")
    try:
        return CODECS.read(cls, data)
    except (LookupError, TypeError, ValueError, AttributeError):
        error = OtherVersionError if cls is RunLine else JournalError
        raise error("is no line of a journal") from None


def _place(scenario: Json) -> tuple[Any, Any]:
    return scenario.get(_NAME), scenario.get(_AGENT)


def _is_place(names: tuple[Any, Any]) -> bool:
    return all(isinstance(name, str) for name in names)


def journal_document(content: bytes) -> Json:
    """The document in the shape of results.json. Raises JournalError.

    Without its end its summary counts nothing yet: `reading` makes it from what has been checked.
    """
    contents = _Contents()
    for number, line in enumerate(_whole_lines(content), start=1):
        try:
            contents.add(json.loads(line))
        except OtherVersionError as error:
            raise OtherVersionError(f"line {number}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise JournalError(f"line {number}: {error}") from None
    if contents.run is None:
        raise JournalError("line 1: is not whole")
    head = contents.end
    if head is None:
        head = CODECS.write(_killed(contents.run))
    entries = list(_entries(contents))
    comparison = contents.run.mode is Mode.COMPARISON
    return {**head, _SCENARIOS: _compared(entries) if comparison else entries}


def _whole_lines(content: bytes) -> list[bytes]:
    """The lines, without a last one that was cut: it has no newline."""
    return content.split(b"\n")[:-1]


def _killed(run: RunLine) -> RunHead:
    """The head of a run that was killed, with a summary that counts nothing."""
    comparison = run.mode is Mode.COMPARISON
    nothing = RunResult(
        scenarios=(),
        agents=(),
        comparison=comparison,
        started_at=run.started_at,
        duration_ms=0.0,
        version=run.version,
    )
    return RunHead(
        schema_version=run.schema_version,
        mode=run.mode,
        version=run.version,
        started_at=run.started_at,
        interrupted=True,
        stopped=KILLED,
        models=run.models,
        agents=run.agents,
        summary=summary(nothing),
    )


def _compared(entries: list[Json]) -> list[Json]:
    """The entries by scenario."""
    name, agents = (CODECS.key(ComparedScenario, field) for field in ("name", "agents"))
    groups = by_name(entries, lambda entry: str(entry[_NAME]))
    return [{name: scenario, agents: group} for scenario, group in groups.items()]


def _entries(contents: _Contents) -> Iterator[Json]:
    """The scenarios in the order in which they were finished, then those that never were."""
    left: dict[_Place, dict[int, Json]] = dict(contents.conversations)
    if contents.end is None:
        left = {place: {} for place in contents.planned} | left
    for scenario in contents.scenarios:
        yield {**scenario, _CONVERSATIONS: _in_order(left.pop(_place(scenario), {}))}
    for place, conversations in left.items():
        result = unfinished(place, len(conversations), contents.planned.get(place, 0))
        yield {**CODECS.write(stored_scenario(result)), _CONVERSATIONS: _in_order(conversations)}


def _in_order(conversations: Mapping[int, Json]) -> list[Json]:
    return [conversations[number] for number in sorted(conversations)]


def unfinished(place: _Place, finished: int, planned: int) -> ScenarioResult:
    """What a run that was killed has of a scenario that it did not finish; without its conversations."""
    name, agent = place
    of = f" of {planned}" if planned else ""
    conversations = f"{finished}{of} finished conversation{'' if (planned or finished) == 1 else 's'}"
    message = f"the run was {KILLED}: of this scenario the journal holds {conversations}"
    reason = Reason(Status.ERRORED, ReasonKind.INTERRUPTED, message)
    return ScenarioResult(
        name=name,
        agent=agent,
        file="",
        line=0,
        verdict=Verdict(Status.ERRORED, (reason,)),
        planned=planned,
    )
