"""Read results.json and journals, as a whole or only the finished part of an interrupted run."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property
from importlib.resources import files
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO

from agentest.domain.end_reason import Ending
from agentest.domain.events import (
    ConversationFinished,
    Event,
    RunFinished,
    RunStarted,
    ScenarioFinished,
    ScenarioStarted,
)
from agentest.domain.figures import totals_of
from agentest.domain.reasons import MeasuredConversation, measured_conversation
from agentest.domain.results import (
    ConversationResult,
    Reason,
    ReasonKind,
    RunResult,
    RunWarning,
    ScenarioResult,
    Status,
    Verdict,
)
from agentest.domain.transcript import Blame, Conversation, Failure
from agentest.domain.verdict import Severities
from agentest.store.codec import CODECS, mark_vacuous
from agentest.store.journal import CONVERSATION_START, conversation_in
from agentest.store.run_results import by_name, run_of, silent_agents
from agentest.store.runs.folder import JOURNAL, RESULTS, read_record
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
from agentest.support.files import check_user_file, read_user_bytes
from agentest.support.json_text import Json, json_or
from agentest.support.lazy_dataclasses import dataclass
from agentest.version import __version__

_UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
_SHORTENED = "it was stored without the ends of texts over 1,000,000 characters, so it is not judged again"


def read_results(path: Path) -> RunResult:
    """Read the run in a results.json or a journal.

    The conversations in a journal are read when they are used. A results.json in a run's folder has the same
    content as the journal beside it, which is read in its place if it is whole.

    Raises UsageError with the position at which the file is not in Agentest's format.
    """
    record, first = read_record(path.parent) if path.name == RESULTS else None, b""
    try:
        check_user_file(path, most=None)
        with suppress(OSError, JournalError):
            if record and record.ended and (beside := index_journal(path.with_name(JOURNAL))).end:
                return _run_in(beside)
        with path.open("rb") as file:
            first = file.readline()
        return _run_in(index_journal(path)) if is_journal(first) else read_checked(path)[1]
    except OSError as error:
        raise unreadable(path, error) from None
    except JournalError as error:
        raise _not_ours(path, str(error), json_or(first)) from None


def read_checked(path: Path) -> tuple[Json, RunResult]:
    """Read a results.json and the run in it. Raises UsageError."""
    try:
        document = json.loads(read_user_bytes(path, most=None).decode())
        return document, _checked_run(document, path)
    except OSError as error:
        raise unreadable(path, error) from None
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
        raise _not_ours(path, f"{problem.json_path}: {problem.message[:200]}", document)
    return run_of(document)


class UnreadableRunError(UsageError):
    """The file is a run of Agentest, but damaged or of another version."""


def _not_ours(path: Path, problem: str, head: Any) -> UsageError:
    made = UnreadableRunError if isinstance(head, dict) and "schemaVersion" in head else UsageError
    return made(f"{path} is not a results.json or a journal of this version of Agentest: {problem}")


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


def is_journal(content: bytes) -> bool:
    """True if the first line shows that a file is a journal."""
    first = json_or(content.partition(b"\n")[0])
    return isinstance(first, dict) and _LINES.get(first.get("type")) is RunLine


@dataclass(kw_only=True)
class StoredJournal:
    """The finished part of a run: what its journal has apart from conversations, and where those are."""

    path: Path
    run: RunLine
    document: Json | None = None  # the head of results.json in JSON types; None if the run was killed
    end: RunHead | None = None  # the same as a value
    scenarios: dict[Place, ScenarioResult] = field(default_factory=dict)
    """Without conversations, in the order in which they ended; an earlier version wrote no totals."""
    order: tuple[Place, ...] = ()  # that of the plan; empty if the run was killed
    places: dict[Place, array[int]] = field(default_factory=dict)
    """Number, start and length of each conversation's line, in a flat array."""

    @cached_property
    def planned(self) -> Mapping[Place, PlannedConversations]:
        """Every planned scenario and agent."""
        return {(each.scenario, each.agent): each for each in self.run.planned}

    @property
    def not_run(self) -> Mapping[Place, ScenarioResult]:
        """Scenarios that needed no run: skipped ones, and files that did not load."""
        return {key: each for key, each in self.scenarios.items() if key not in self.planned}

    def is_decided(self, key: Place) -> bool:
        """True if the scenario has a verdict that covers all its conversations."""
        reasons = self.scenarios[key].verdict.reasons if key in self.scenarios else None
        return reasons is not None and not any(each.kind is ReasonKind.INTERRUPTED for each in reasons)

    @property
    def unclaimed(self) -> tuple[RunWarning, ...]:
        """Warnings about unclaimed calls, if the run came to its end."""
        return self.end.summary.unclaimed_calls if self.end else ()

    def lines(self, key: Place) -> dict[int, tuple[int, int]]:
        """Return number → start and length of the lines with a scenario's conversations, in order."""
        flat = self.places.get(key, ())
        return dict(sorted(zip(flat[::3], zip(flat[1::3], flat[2::3], strict=True), strict=True)))

    def _in_order(self, key: Place) -> array[int]:
        return array("q", (part for number, line in self.lines(key).items() for part in (number, *line)))

    def conversations(self, key: Place, most: int) -> StoredConversations:
        """Return the first stored conversations of a scenario as they were judged, in order."""
        return StoredConversations(self.path, self._in_order(key)[: 3 * most])

    def events(self, key: Place, numbers: Iterable[int]) -> Iterator[ConversationFinished]:
        """Yield conversations in their stored form. Raises UsageError."""
        name, agent = key
        lines = self.lines(key)
        with self.path.open("rb") as journal:
            for number in numbers:
                body, measured = conversation_in(_at(journal, lines[number]))
                yield ConversationFinished(name, agent, body, number, measured=measured)

    def so_far(self, key: Place, *, silent: bool = False) -> ScenarioResult:
        """Return the scenario's result so far. Its conversations are read when they are used.

        Args:
            silent: mark expected calls that matched only because none was visible in the whole run.
        """
        flat = self._in_order(key)
        planned = self.planned[key].conversations if key in self.planned else 0
        result = self.scenarios.get(key) or unfinished(key, len(flat) // 3, planned)
        severities = Severities.of(result.errors, graded=not result.severity_unknown)
        is_changed = self.run.version != __version__
        stored = StoredConversations(self.path, flat, severities.mark, silent=silent, is_changed=is_changed)
        is_summed = result.totals.conversations or not flat
        return replace(result, conversations=stored, totals=result.totals if is_summed else totals_of(stored))


_LINES_AT_ONCE = 100
_MOST_KNOWN = 20_000


class StoredConversations(Sequence[ConversationResult]):
    """The conversations of a stored scenario, each of which is read from the journal when it is used.

    Reading raises UsageError if the journal is damaged or was removed.

    Args:
        places: number, start and length of each conversation's line, in a flat array.
        finish: completes a conversation with what is known only at the end of its scenario and its run.
        is_changed: whether what the journal has is no longer, or not yet, what this version writes.
    """

    def __init__(
        self,
        path: Path,
        places: array[int],
        finish: Callable[[ConversationResult], ConversationResult] = lambda read: read,
        *,
        silent: bool = False,
        is_changed: bool = False,
    ) -> None:
        self._path = path
        self.is_changed = is_changed
        self._places = places
        self._finish = finish
        self._silent = silent

    def mapped(self, change: Callable[[ConversationResult], ConversationResult]) -> StoredConversations:
        """Return the conversations with a change that is made when one is read."""
        finish = self._finish
        return StoredConversations(
            self._path, self._places, lambda read: change(finish(read)), silent=self._silent, is_changed=True
        )

    def as_stored(self) -> Iterator[bytes] | None:
        """Return the conversations without what is known only at the end of the run; None if changed."""
        return None if self.is_changed else (conversation_in(line)[0] for line in self._read())

    def stored_texts(self) -> Iterator[str]:
        """Yield the parts of the conversations' lines, many at once, and each only once: few are new."""
        known: set[bytes] = set()
        for first in range(0, len(self), _LINES_AT_ONCE):
            lines = self._read(range(len(self))[first : first + _LINES_AT_ONCE])
            # No text in JSON contains this separator, because its quotation marks are escaped.
            new = {part for line in lines for part in line.split(b', "')} - known
            if len(known) < _MOST_KNOWN:
                known |= new
            yield b"\n\0\n".join(new).decode(errors="replace")

    def measured(self) -> Iterator[MeasuredConversation]:
        """Yield the measurements of each conversation, which are read without it where the line has them."""
        for line in self._read():
            begin = CONVERSATION_START.match(line)
            if begin is None or not begin[4]:
                yield measured_conversation(self._decoded(line))
                continue
            try:
                yield CODECS.read(MeasuredConversation, json.loads(begin[4]))
            except _UNREADABLE as error:
                raise _damaged(self._path, error) from None

    def __len__(self) -> int:
        return len(self._places) // 3

    def __getitem__(self, index: Any, /) -> Any:
        at = range(len(self))[index]
        found = list(map(self._decoded, self._read(at if isinstance(at, range) else [at])))
        return found if isinstance(at, range) else found[0]

    def __iter__(self) -> Iterator[ConversationResult]:
        return map(self._decoded, self._read())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def _read(self, numbers: Iterable[int] | None = None) -> Iterator[bytes]:
        try:
            with self._path.open("rb") as journal:
                for at in range(len(self)) if numbers is None else numbers:
                    yield _at(journal, (self._places[3 * at + 1], self._places[3 * at + 2]))
        except OSError as error:
            raise _damaged(self._path, error) from None

    def _decoded(self, line: bytes) -> ConversationResult:
        try:
            data = json.loads(line)["conversation"]
            result = CODECS.read(ConversationResult, mark_vacuous(data) if self._silent else data)
        except _UNREADABLE as error:
            raise _damaged(self._path, error) from None
        return self._finish(result)


def _damaged(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path} is damaged: a conversation cannot be read ({error})")


def read_line(data: Any) -> Line:
    """Decode one line of a journal. Raises JournalError."""
    cls = _LINES.get(data.get("type")) if isinstance(data, dict) else None
    if cls is None:
        raise JournalError("is not a line of a journal")
    try:
        line = CODECS.read(cls, data)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise JournalError("is not a line of a journal") from None
    match line:
        case RunLine() | EndLine(run=dict()) | ScenarioLine(scenario={"name": str(), "agent": str()}):
            return line
        case ConversationLine(scenario=str(), agent=str(), number=int(), conversation=dict()):
            return line
    raise JournalError("is not a line of a journal")


def index_journal(path: Path, unreadable: list[str] | None = None) -> StoredJournal:
    """Read a journal apart from its conversations. An incomplete last line is skipped.

    The last line of a whole journal says where the others are; others are read from the first line on.

    Args:
        unreadable: receives the problems of lines that cannot be read, which are skipped.

    Raises JournalError with the number of the line, and OSError.
    """
    with path.open("rb") as journal:
        with suppress(OSError, *_UNREADABLE):  # what is wrong is found below, with the number of the line
            if indexed := _through_index(path, journal):
                return indexed
        index, start = None, journal.seek(0)
        keys: dict[tuple[bytes, bytes], Place] = {}
        for number, line in enumerate(journal, start=1):
            if not line.endswith(b"\n"):
                break
            begin = CONVERSATION_START.match(line) if line.endswith(b"}}\n") else None
            try:
                if begin is None or index is None:
                    index = _with_line(index, read_line(json.loads(line)), path, start, len(line))
                else:
                    names = begin[1], begin[2]
                    if names not in keys:
                        keys[names] = json.loads(names[0]), json.loads(names[1])
                    flat = index.places.setdefault(keys[names], array("q"))
                    flat.extend((int(begin[3]), start, len(line)))
            except _UNREADABLE as error:
                if index is None or unreadable is None:
                    raise JournalError(f"line {number}: {error}") from None
                unreadable.append(f"line {number}: {error}")
            start += len(line)
    if index is None:
        raise JournalError("line 1: is not whole")
    return index


def _through_index(path: Path, journal: BinaryIO) -> StoredJournal | None:
    """Read a journal through the index in its last line; None if it has none, or has changed since."""
    with mmap(journal.fileno(), 0, access=ACCESS_READ) as content:
        start = content.rfind(b"\n", 0, len(content) - 1) + 1
        end = json_or(content[start:-1])
        if not isinstance(end, dict) or end.get("start") != start:
            return None
        index, first = None, (0, content.find(b"\n") + 1)
        for at, length in [first, *((at, length) for *_, at, length, _ in end["index"] if length)]:
            line = read_line(json.loads(content[at : at + length]))
            index = _with_line(index, line, path, at, length)
    index = _with_line(index, read_line(end), path, start, 0)
    places = {(name, agent): array("q", map(int, text.split())) for name, agent, *_, text in end["index"]}
    return replace(index, places={key: flat for key, flat in places.items() if flat})


def _with_line(index: StoredJournal | None, line: Line, path: Path, start: int, length: int) -> StoredJournal:
    if isinstance(line, RunLine):
        if line.schema_version != SCHEMA_VERSION:
            raise JournalError(f"it has form {line.schema_version}, this version {SCHEMA_VERSION}")
        return StoredJournal(path=path, run=line)
    if index is None:
        raise JournalError("is not the first line of a journal")
    match line:
        case EndLine():
            index.document, index.end = line.run, CODECS.read(RunHead, line.run)
            index.order = line.order
        case ConversationLine():
            flat = index.places.setdefault((line.scenario, line.agent), array("q"))
            flat.extend((line.number, start, length))
        case ScenarioLine():
            result = CODECS.read(ScenarioResult, line.scenario)
            index.scenarios[result.name, result.agent] = replace(result, totals=line.totals or result.totals)
    return index


def _run_in(journal: StoredJournal) -> RunResult:
    line, comparison = journal.run, journal.run.mode is Mode.COMPARISON
    if journal.document is None:
        run = RunResult(
            scenarios=(),
            agents=tuple(line.agents),
            comparison=comparison,
            started_at=line.started_at,
            duration_ms=0.0,
            version=line.version,
            models=line.models,
            interrupted=True,
            stopped=KILLED,
            visibilities={name: each.tool_calls for name, each in line.agents.items() if each.tool_calls},
        )
    else:
        run = run_of({**journal.document, "mode": Mode.SINGLE, "scenarios": []})
    planned = () if journal.end else journal.planned
    silent = silent_agents(run)
    scenarios = [
        journal.so_far(key, silent=key[1] in silent)
        for key in dict.fromkeys((*journal.order, *journal.scenarios, *planned, *journal.places))
    ]
    if line.version != __version__:  # see at once whether all of them can be read
        scenarios = [replace(each, conversations=tuple(each.conversations)) for each in scenarios]
    if comparison:
        scenarios = [each for group in by_name(scenarios, lambda each: each.name).values() for each in group]
    return replace(run, scenarios=tuple(scenarios), comparison=comparison)


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


def events_of(result: RunResult, *, conversations: bool = True) -> Iterator[Event]:
    """Yield the events of a stored run, scenario by scenario. Its concurrency is unknown, so it is 0.

    Args:
        conversations: yield an event for each conversation, too.
    """
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
        visibilities=result.visibilities,
        calibrations=result.calibrations,
    )
    for scenario in result.scenarios:
        yield ScenarioStarted(scenario.name, scenario.agent, scenario.planned)
        for number, conversation in enumerate(scenario.conversations if conversations else (), start=1):
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


def _at(journal: Any, line: tuple[int, int]) -> bytes:
    start, length = line
    journal.seek(start)
    content: bytes = journal.read(length)
    return content


def read_finished(path: Path) -> StoredJournal:
    """Read the finished part of a journal's run. An incomplete last line is skipped.

    Raises UsageError if it is not a journal of this version.
    """
    try:
        return index_journal(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except JournalError as error:
        raise UsageError(f"{path} is not a journal of this version of Agentest: {error}") from None
