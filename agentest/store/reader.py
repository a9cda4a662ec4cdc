"""Read results.json and journals, as a whole or only the finished part of an interrupted run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from agentest.domain.end_reason import Ending
from agentest.domain.events import (
    ConversationFinished,
    Event,
    RunFinished,
    RunStarted,
    ScenarioFinished,
    ScenarioStarted,
)
from agentest.domain.results import (
    ConversationResult,
    ModelUsage,
    Reason,
    ReasonKind,
    RunResult,
    RunWarning,
    ScenarioResult,
    Status,
    Verdict,
)
from agentest.domain.transcript import Blame, Conversation, Failure
from agentest.store.codec import CODECS, with_conversations
from agentest.store.journal import conversation_line_start
from agentest.store.run_results import by_name, run_of, stored_head
from agentest.store.runs.folder import JOURNAL, read_record
from agentest.store.shapes import (
    SCHEMA_VERSION,
    ConversationLine,
    EndLine,
    Mode,
    PlannedConversations,
    RunHead,
    RunLine,
    ScenarioLine,
)
from agentest.support.errors import UsageError
from agentest.support.files import read_user_bytes
from agentest.support.json_text import Json, encoded, json_or
from agentest.support.lazy_dataclasses import dataclass
from agentest.version import __version__

_T = TypeVar("_T")
_UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
_SHORTENED = "it was stored without the ends of texts over 1,000,000 characters, so it is not judged again"


def read_results(path: Path) -> RunResult:
    """Read the run in a results.json or a journal.

    Raises UsageError with the position at which the file is not in Agentest's format.
    """
    return read_checked(path)[1]


def read_checked(path: Path) -> tuple[Json, RunResult]:
    """Read a results.json, or a journal in its format, and the run in it. Raises UsageError."""
    try:
        content = read_user_bytes(path, most=None)
        document = journal_document(content) if is_journal(content) else json.loads(content.decode())
        return document, _checked_run(document, path)
    except OSError as error:
        raise unreadable(path, error) from None
    except OtherVersionError as error:
        raise _not_ours(path, str(error)) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from None


def unreadable(path: Path, error: OSError) -> UsageError:
    """Return the error for unreadable results, with a hint at the run's journal if it exists."""
    journal = path.with_name(JOURNAL)
    if not isinstance(error, FileNotFoundError) or path.name == JOURNAL or not journal.is_file():
        return UsageError(f"{path} cannot be read: {error.strerror}")
    return UsageError(
        f"{path} is not there: the last run was one without `--reporter json`, or did not end; take its "
        f"journal instead: {journal}"
    )


def conversations_of(run: RunResult) -> dict[tuple[str, str], tuple[Conversation, ...]]:
    """Return the conversations of a run by scenario and agent, to judge them again or to export them."""
    return {
        (each.name, each.agent): tuple(usable(stored.conversation) for stored in each.conversations)
        for each in run.scenarios
        if each.conversations
    }


def usable(conversation: Conversation) -> Conversation:
    """Return a stored conversation. If texts were cut, it has failed, because it cannot be judged again."""
    if not conversation.shortened or conversation.failure:
        return conversation
    return replace(conversation, ending=Ending.ERROR, failure=Failure(Blame.INTERNAL, _SHORTENED))


def _checked_run(document: Any, path: Path) -> RunResult:
    """Validate and decode the document. Raises UsageError if it violates the schema.

    A file that this version has written into a stored run's folder is not validated, because nothing else
    writes there and validation takes ten times as long as the rest, unless its content does not fit there.
    """
    record = read_record(path.parent)
    if record is not None and record.version == __version__:
        with suppress(LookupError, TypeError, ValueError, AttributeError):
            return run_of(document)
    from jsonschema.validators import (
        validator_for,  # takes a tenth of a second: only commands that read files pay
    )

    schema = json.loads(files("agentest").joinpath("schemas/results.schema.json").read_text("utf-8"))
    problem = next(iter(validator_for(schema)(schema).iter_errors(document)), None)
    if problem:
        alternatives = problem.context or ()
        other = {each.schema_path[0] for each in alternatives if list(each.path) == ["mode"]}
        problem = next((each for each in alternatives if each.schema_path[0] not in other), problem)
        raise _not_ours(path, f"{problem.json_path}: {problem.message[:200]}")
    return run_of(document)


def _not_ours(path: Path, problem: str) -> UsageError:
    return UsageError(f"{path} is not a results.json or a journal of this version of Agentest: {problem}")


KILLED = "killed before its end"

Line = RunLine | ConversationLine | ScenarioLine | EndLine
_LINES: Mapping[Any, type[Line]] = {
    "run": RunLine,
    "conversation": ConversationLine,
    "scenario": ScenarioLine,
    "end": EndLine,
}
Place = tuple[str, str]  # names of a scenario and its agent


class JournalError(ValueError):
    """A line is not in Agentest's format; the message identifies the line."""


class OtherVersionError(JournalError):
    """The first line is not in the format of this version."""


def is_journal(content: bytes) -> bool:
    """True if the first line shows that a file is a journal."""
    first = json_or(content.partition(b"\n")[0])
    return isinstance(first, dict) and _LINES.get(first.get("type")) is RunLine


@dataclass(slots=True)
class _Contents:
    run: RunLine | None = None
    end: Json | None = None
    scenarios: list[Json] = field(default_factory=list)
    conversations: dict[Place, dict[int, Json]] = field(default_factory=dict)
    _places: dict[Place, int] = field(default_factory=dict)

    def add(self, line: Line) -> None:
        """Add a line. Raises JournalError if it amends a scenario that has not finished."""
        match line:
            case RunLine():
                self.run = line
            case EndLine():
                self.end = line.run
            case ConversationLine():
                key = line.scenario, line.agent
                self.conversations.setdefault(key, {})[line.number] = line.conversation
            case ScenarioLine():
                key = line.scenario["name"], line.scenario["agent"]
                if not line.amended:
                    self._places[key] = len(self.scenarios)
                    self.scenarios.append(line.scenario)
                elif key in self._places:
                    self.scenarios[self._places[key]] = line.scenario
                else:
                    raise JournalError("amends a scenario that has not finished")

    @property
    def planned(self) -> dict[Place, int]:
        """The planned numbers of conversations."""
        planned = self.run.planned if self.run else ()
        return {(each.scenario, each.agent): each.conversations for each in planned}


def read_line(data: Any) -> Line:
    """Decode one line of a journal. Raises JournalError."""
    cls = _LINES.get(data.get("type")) if isinstance(data, dict) else None
    if cls is None:
        raise JournalError("is not a line of a journal")
    try:
        line = CODECS.read(cls, data)
    except (LookupError, TypeError, ValueError, AttributeError):
        error = OtherVersionError if cls is RunLine else JournalError
        raise error("is not a line of a journal") from None
    match line:
        case RunLine() | EndLine(run=dict()):
            return line
        case ScenarioLine(scenario={"name": str(), "agent": str()}):
            return line
        case ConversationLine(scenario=str(), agent=str(), number=int(), conversation=dict()):
            return line
    raise JournalError("is not a line of a journal")


def read_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, int, Line]]:
    """Yield start, length and content of each line of a journal, without an incomplete last one.

    Raises JournalError with the number of the line.
    """
    start = 0
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            break
        try:
            yield start, len(line), read_line(json.loads(line))
        except OtherVersionError as error:
            raise OtherVersionError(f"line {number}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise JournalError(f"line {number}: {error}") from None
        start += len(line)


def journal_document(content: bytes) -> Json:
    """Convert a journal to the format of results.json. Raises JournalError.

    Without an end line the summary is empty.
    """
    contents = _Contents()
    for number, (_, _, line) in enumerate(read_lines(BytesIO(content)), start=1):
        try:
            contents.add(line)
        except JournalError as error:
            raise JournalError(f"line {number}: {error}") from None
    if contents.run is None:
        raise JournalError("line 1: is not whole")
    head = CODECS.write(_killed_head(contents.run)) if contents.end is None else contents.end
    entries = list(_entries(contents))
    if contents.run.mode is Mode.COMPARISON:
        groups = by_name(entries, lambda entry: str(entry["name"]))
        entries = [{"name": name, "agents": group} for name, group in groups.items()]
    return {**head, "scenarios": entries}


def _killed_head(run: RunLine) -> RunHead:
    nothing = RunResult(
        scenarios=(),
        agents=(),
        comparison=run.mode is Mode.COMPARISON,
        started_at=run.started_at,
        duration_ms=0.0,
        version=run.version,
        models=run.models,
        interrupted=True,
        stopped=KILLED,
    )
    return replace(stored_head(nothing), schema_version=run.schema_version, agents=run.agents)


def _entries(contents: _Contents) -> Iterator[Json]:
    left: dict[Place, dict[int, Json]] = dict(contents.conversations)
    if contents.end is None:
        left = {key: {} for key in contents.planned} | left
    for scenario in contents.scenarios:
        yield {**scenario, "conversations": _in_order(left.pop((scenario["name"], scenario["agent"]), {}))}
    for key, conversations in left.items():
        result = unfinished(key, len(conversations), contents.planned.get(key, 0))
        yield {**CODECS.write(result), "conversations": _in_order(conversations)}


def _in_order(conversations: Mapping[int, Json]) -> list[Json]:
    return [conversations[number] for number in sorted(conversations)]


def unfinished(key: Place, finished: int, planned: int) -> ScenarioResult:
    """Return the result of a scenario that a killed run did not finish, without its conversations."""
    name, agent = key
    of_planned = f" of {planned}" if planned else ""
    conversations = f"{finished}{of_planned} finished conversation{'' if (planned or finished) == 1 else 's'}"
    message = f"the run was {KILLED}: the journal contains {conversations}"
    reason = Reason(Status.ERRORED, ReasonKind.INTERRUPTED, message)
    return ScenarioResult(
        name=name, agent=agent, file="", line=0, verdict=Verdict(Status.ERRORED, (reason,)), planned=planned
    )


def events_of(result: RunResult) -> Iterator[Event]:
    """Yield the events of a stored run, scenario by scenario. Its concurrency is unknown, so it is 0."""
    yield RunStarted(
        version=result.version,
        started_at=result.started_at,
        agents={name: result.addresses.get(name, "") for name in result.agents},
        scenarios=len(result.scenarios),
        conversations=sum(scenario.planned for scenario in result.scenarios),
        concurrency=0,
        models=result.models,
        comparison=result.comparison,
        planned=tuple((each.name, each.agent, each.planned) for each in result.scenarios),
        files=Counter(each.file for each in result.scenarios),
        visibilities=result.visibilities,
        calibrations=result.calibrations,
    )
    for scenario in result.scenarios:
        yield ScenarioStarted(scenario.name, scenario.agent, scenario.planned)
        for number, conversation in enumerate(scenario.conversations, start=1):
            yield ConversationFinished(
                name=scenario.name,
                agent=scenario.agent,
                result=conversation,
                number=number,
                case=scenario.case,
                thresholds=scenario.thresholds,
            )
        yield ScenarioFinished(scenario)
    yield RunFinished(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedPart:
    """The finished part of a scenario with an agent."""

    planned: PlannedConversations
    lines: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Number of a conversation → start and length of its line in the journal."""
    scenario: ScenarioResult | None = None
    """The scenario without its conversations; None if there was no verdict, not even a partial one."""

    @property
    def decided(self) -> bool:
        """True if the verdict covers all conversations."""
        return self.scenario is not None and not any(
            reason.kind is ReasonKind.INTERRUPTED for reason in self.scenario.verdict.reasons
        )

    @property
    def lacks_conversations(self) -> bool:
        """True if the verdict is based on more conversations than the journal contains."""
        return self.decided and self.scenario is not None and len(self.lines) < self.scenario.planned

    @property
    def usage(self) -> Mapping[str, ModelUsage]:
        """The known model usage."""
        return self.scenario.usage if self.scenario else self.planned.usage


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedParts:
    """The finished part of a run."""

    path: Path
    parts: Mapping[Place, FinishedPart]  # one part for every planned scenario and agent
    run: RunLine
    end: RunHead | None = None  # the last line; None if the run was killed
    not_run: Mapping[Place, ScenarioResult] = field(default_factory=dict)
    """Scenarios that needed no run: skipped ones, and files that did not load."""
    unclaimed: tuple[RunWarning, ...] = ()  # warnings about unclaimed calls, if the run came to its end

    def conversations(self, key: Place) -> dict[int, ConversationResult]:
        """Return number → result for all stored conversations. Raises UsageError."""
        lines = self.parts[key].lines
        try:
            with self.path.open("rb") as journal:
                read = {number: json.loads(_at(journal, lines[number])) for number in sorted(lines)}
            return {n: CODECS.read(ConversationResult, line["conversation"]) for n, line in read.items()}
        except (OSError, *_UNREADABLE) as error:
            raise UsageError(f"{self.path} is damaged: a conversation cannot be read ({error})") from None

    def result(self, key: Place) -> ScenarioResult | None:
        """Return the scenario's result with its conversations, if it has a verdict. Raises UsageError."""
        part = self.parts[key]
        return self.so_far(key) if part.scenario and part.decided else None

    def events(self, key: Place, numbers: Iterator[int]) -> Iterator[ConversationFinished]:
        """Yield conversations in their stored form. Raises UsageError."""
        name, agent = key
        with self.path.open("rb") as journal:
            for number in numbers:
                line = _at(journal, self.parts[key].lines[number])
                head = conversation_line_start(name, agent, number)
                if line.startswith(head) and line.endswith(b"}\n"):
                    body = line[len(head) : -2]
                else:
                    body = encoded(json.loads(line)["conversation"])
                yield ConversationFinished(name, agent, body, number)

    def so_far(self, key: Place) -> ScenarioResult:
        """Return the scenario's result so far with its conversations. Raises UsageError."""
        part = self.parts.get(key)
        if part is None:
            return self.not_run[key]
        conversations = self.conversations(key).values()
        planned = part.planned.conversations
        return with_conversations(
            part.scenario or unfinished(key, len(conversations), planned), conversations
        )


def _at(journal: Any, line: tuple[int, int]) -> bytes:
    start, length = line
    journal.seek(start)
    content: bytes = journal.read(length)
    return content


def _read_numbered(number: int, cls: type[_T], data: Json) -> _T:
    try:
        return CODECS.read(cls, data)
    except _UNREADABLE as error:
        raise JournalError(f"line {number}: {error}") from None


def read_finished(path: Path) -> FinishedParts:
    """Read the finished part of a journal's run. An incomplete last line is skipped.

    Raises UsageError if it is not a journal of this version.
    """
    run, end = None, None
    lines: dict[Place, dict[int, tuple[int, int]]] = {}
    scenarios: dict[Place, ScenarioResult] = {}
    try:
        with path.open("rb") as journal:
            for number, (start, length, line) in enumerate(read_lines(journal), start=1):
                match line:
                    case RunLine():
                        run = line
                        if run.schema_version != SCHEMA_VERSION:
                            raise ValueError(
                                f"it has form {run.schema_version}, this version {SCHEMA_VERSION}"
                            )
                    case ConversationLine():
                        lines.setdefault((line.scenario, line.agent), {})[line.number] = start, length
                    case ScenarioLine():
                        result = _read_numbered(number, ScenarioResult, line.scenario)
                        scenarios[result.name, result.agent] = result
                    case EndLine():
                        end = _read_numbered(number, RunHead, line.run)
        if run is None:
            raise ValueError("its first line is not whole")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except _UNREADABLE as error:
        raise UsageError(f"{path} is not a journal of this version of Agentest: {error}") from None
    parts = {
        (each.scenario, each.agent): FinishedPart(
            planned=each,
            lines=lines.get((each.scenario, each.agent), {}),
            scenario=scenarios.get((each.scenario, each.agent)),
        )
        for each in run.planned
    }
    return FinishedParts(
        path=path,
        parts=parts,
        run=run,
        end=end,
        not_run={key: each for key, each in scenarios.items() if key not in parts},
        unclaimed=end.summary.unclaimed_calls if end else (),
    )
