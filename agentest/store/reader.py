"""Read results.json and journals, as a whole or only the finished part of an interrupted run."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, overload

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
from agentest.domain.verdict import Severities
from agentest.store.codec import CODECS, mark_vacuous
from agentest.store.journal import CONVERSATION_START
from agentest.store.run_results import by_name, run_of, stored_head
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
from agentest.support.json_text import Json, encoded, json_or
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


class OtherVersionError(JournalError):
    """The first line is not in the format of this version."""


def is_journal(content: bytes) -> bool:
    """True if the first line shows that a file is a journal."""
    first = json_or(content.partition(b"\n")[0])
    return isinstance(first, dict) and _LINES.get(first.get("type")) is RunLine


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedPart:
    """The finished part of a scenario with an agent."""

    planned: PlannedConversations
    lines: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Number of a conversation → start and length of its line in the journal, in order."""
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
    def parts(self) -> Mapping[Place, FinishedPart]:
        """One part for every planned scenario and agent."""
        planned = {(each.scenario, each.agent): each for each in self.run.planned}
        return {
            key: FinishedPart(planned=each, lines=self.lines(key), scenario=self.scenarios.get(key))
            for key, each in planned.items()
        }

    @property
    def not_run(self) -> Mapping[Place, ScenarioResult]:
        """Scenarios that needed no run: skipped ones, and files that did not load."""
        return {key: each for key, each in self.scenarios.items() if key not in self.parts}

    @property
    def unclaimed(self) -> tuple[RunWarning, ...]:
        """Warnings about unclaimed calls, if the run came to its end."""
        return self.end.summary.unclaimed_calls if self.end else ()

    def lines(self, key: Place) -> dict[int, tuple[int, int]]:
        """Return number → start and length of the lines with a scenario's conversations, in order."""
        flat = self.places.get(key, ())
        return dict(sorted(zip(flat[::3], zip(flat[1::3], flat[2::3], strict=True), strict=True)))

    def conversations(self, key: Place) -> dict[int, ConversationResult]:
        """Return number → result for all stored conversations. Raises UsageError."""
        lines = self.lines(key)
        stored = StoredConversations(self.path, lines.values(), lambda read: read, silent=False)
        return dict(zip(lines, stored, strict=True))

    def result(self, key: Place) -> ScenarioResult | None:
        """Return the scenario's result with its conversations, if it has a verdict."""
        return self.so_far(key) if self.parts[key].decided else None

    def events(self, key: Place, numbers: Iterator[int]) -> Iterator[ConversationFinished]:
        """Yield conversations in their stored form. Raises UsageError."""
        name, agent = key
        with self.path.open("rb") as journal:
            for number in numbers:
                body, measured = _stored(_at(journal, self.parts[key].lines[number]))
                yield ConversationFinished(name, agent, body, number, measured=measured)

    def so_far(self, key: Place, *, silent: bool = False) -> ScenarioResult:
        """Return the scenario's result so far. Its conversations are read when they are used.

        Args:
            silent: mark expected calls that matched only because none was visible in the whole run.
        """
        lines, part = self.lines(key), self.parts.get(key)
        planned = part.planned.conversations if part else 0
        result = self.scenarios.get(key) or unfinished(key, len(lines), planned)
        severities = Severities.of(result.errors, graded=not result.severity_unknown)
        is_changed = self.run.version != __version__
        stored = StoredConversations(
            self.path, lines.values(), severities.mark, silent=silent, is_changed=is_changed
        )
        is_summed = result.totals.conversations or not lines
        return replace(result, conversations=stored, totals=result.totals if is_summed else totals_of(stored))


_LINES_AT_ONCE = 100


def _stored(line: bytes) -> tuple[bytes, bytes]:
    """Return the conversation of a journal's line, and its measurements, both as they are stored."""
    if begin := CONVERSATION_START.match(line):
        return line[begin.end() : -2], begin[4] or b""
    return encoded(json.loads(line)["conversation"]), b""


class StoredConversations(Sequence[ConversationResult]):
    """The conversations of a stored scenario, each of which is read from the journal when it is used.

    Reading raises UsageError if the journal is damaged or was removed.

    Args:
        lines: start and length of each conversation's line.
        finish: completes a conversation with what is known only at the end of its scenario and its run.
        is_changed: whether what the journal has is no longer, or not yet, what this version writes.
    """

    def __init__(
        self,
        path: Path,
        lines: Iterable[tuple[int, int]],
        finish: Callable[[ConversationResult], ConversationResult],
        *,
        silent: bool,
        is_changed: bool = False,
    ) -> None:
        self._path = path
        self.is_changed = is_changed
        self._lines = list(lines)
        self._finish = finish
        self._silent = silent

    def mapped(self, change: Callable[[ConversationResult], ConversationResult]) -> StoredConversations:
        """Return the conversations with a change that is made when one is read."""
        finish = self._finish
        return StoredConversations(
            self._path, self._lines, lambda read: change(finish(read)), silent=self._silent, is_changed=True
        )

    def as_stored(self) -> Iterator[bytes] | None:
        """Return the conversations without what is known only at the end of the run; None if changed."""
        return None if self.is_changed else (_stored(line)[0] for line in self._read(self._lines))

    def stored_texts(self) -> Iterator[str]:
        """Yield the lines with the conversations, many at once."""
        for first in range(0, len(self._lines), _LINES_AT_ONCE):
            lines = self._read(self._lines[first : first + _LINES_AT_ONCE])
            yield b"".join(lines).decode(errors="replace")

    def measured(self) -> Iterator[MeasuredConversation]:
        """Yield the measurements of each conversation, which are read without it where the line has them."""
        for line in self._read(self._lines):
            begin = CONVERSATION_START.match(line)
            if begin is None or not begin[4]:
                yield measured_conversation(self._decoded(line))
                continue
            try:
                yield CODECS.read(MeasuredConversation, json.loads(begin[4]))
            except _UNREADABLE as error:
                raise _damaged(self._path, error) from None

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int, /) -> ConversationResult: ...
    @overload
    def __getitem__(self, index: slice, /) -> StoredConversations: ...
    def __getitem__(self, index: int | slice, /) -> ConversationResult | StoredConversations:
        if isinstance(index, slice):
            kept = self._lines[index]
            return StoredConversations(
                self._path, kept, self._finish, silent=self._silent, is_changed=self.is_changed
            )
        return next(map(self._decoded, self._read([self._lines[index]])))

    def __iter__(self) -> Iterator[ConversationResult]:
        return map(self._decoded, self._read(self._lines))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def _read(self, lines: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        try:
            with self._path.open("rb") as journal:
                for line in lines:
                    yield _at(journal, line)
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


def index_journal(path: Path) -> StoredJournal:
    """Read a journal apart from its conversations. An incomplete last line is skipped.

    Raises JournalError with the number of the line, and OSError.
    """
    index, start = None, 0
    keys: dict[tuple[bytes, bytes], Place] = {}
    with path.open("rb") as journal:
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
            except OtherVersionError as error:
                raise OtherVersionError(f"line {number}: {error}") from None
            except _UNREADABLE as error:
                raise JournalError(f"line {number}: {error}") from None
            start += len(line)
    if index is None:
        raise JournalError("line 1: is not whole")
    return index


def _with_line(index: StoredJournal | None, line: Line, path: Path, start: int, length: int) -> StoredJournal:
    if isinstance(line, RunLine):
        if line.schema_version != SCHEMA_VERSION:
            raise OtherVersionError(f"it has form {line.schema_version}, this version {SCHEMA_VERSION}")
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
            if line.amended and (result.name, result.agent) not in index.scenarios:
                raise JournalError("amends a scenario that has not finished")
            index.scenarios[result.name, result.agent] = replace(result, totals=line.totals or result.totals)
    return index


def _run_in(journal: StoredJournal) -> RunResult:
    head = journal.end or _killed_head(journal.run)
    run = run_of({**(journal.document or CODECS.write(head)), "mode": Mode.SINGLE, "scenarios": []})
    planned = () if journal.end else journal.parts
    silent = {name for name, each in head.agents.items() if each.no_call_seen}
    scenarios = [
        journal.so_far(key, silent=key[1] in silent)
        for key in dict.fromkeys((*journal.order, *journal.scenarios, *planned, *journal.places))
    ]
    if journal.run.version != __version__:  # see at once whether all of them can be read
        scenarios = [replace(each, conversations=tuple(each.conversations)) for each in scenarios]
    if journal.run.mode is Mode.COMPARISON:
        scenarios = [each for group in by_name(scenarios, lambda each: each.name).values() for each in group]
    return replace(run, scenarios=tuple(scenarios), comparison=journal.run.mode is Mode.COMPARISON)


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
