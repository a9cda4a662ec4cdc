"""Read results.json and journals, as a whole or only the finished part of an interrupted run."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import field, replace
from functools import cached_property, lru_cache
from importlib.resources import files
from itertools import chain, islice, pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from agentest.domain.end_reason import Ending
from agentest.domain.events import ConversationFinished
from agentest.domain.figures import totals_of
from agentest.domain.reasons import MeasuredConversation, measured_conversation
from agentest.domain.results import (
    ConversationResult,
    Reason,
    ReasonKind,
    RunResult,
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
        is_ours = path.name == JOURNAL or is_journal(first)
        return _run_in(index_journal(path)) if is_ours else read_checked(path)[1]
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
_name: Callable[[bytes], str] = lru_cache(maxsize=16_384)(json.loads)


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
    places: dict[Place, array[int] | tuple[int, int]] = field(default_factory=dict)
    """Number, start and length of each conversation's line, flat: in memory, or where the index has them."""

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

    @classmethod
    def begun(cls, path: Path, line: bytes) -> StoredJournal:
        """Return a journal of which only the first line was read. Raises JournalError."""
        run = _read_line(line)
        if not isinstance(run, RunLine):
            raise JournalError("is not the first line of a journal")
        if run.schema_version != SCHEMA_VERSION:
            raise JournalError(f"it has form {run.schema_version}, this version {SCHEMA_VERSION}")
        return cls(path=path, run=run)

    def take(self, line: bytes, start: int) -> None:
        """Note what a further line has. Raises JournalError."""
        if (begin := CONVERSATION_START.match(line)) and line.endswith(b"}}\n"):
            self._add((_name(begin[1]), _name(begin[2])), int(begin[3]), start, len(line))
            return
        content, reasons = _without_reasons(line, self.path, start)
        match read := _read_line(content):
            case EndLine(run=dict(head)):
                self.document, self.end, self.order = head, CODECS.read(RunHead, head), read.order
            case ConversationLine(
                scenario=str(name), agent=str(agent), number=int(number), conversation=dict()
            ):
                self._add((name, agent), number, start, len(line))
            case ScenarioLine(scenario={"name": str(name), "agent": str(agent)}):
                result = CODECS.read(ScenarioResult, read.scenario)
                if reasons:
                    result = replace(result, verdict=replace(result.verdict, reasons=reasons))
                self.scenarios[name, agent] = replace(result, totals=read.totals or result.totals)
            case _:
                raise JournalError("is not a line of a journal")

    def _add(self, key: Place, *place: int) -> None:
        flat = self.places.setdefault(key, array("q"))
        assert isinstance(flat, array)
        flat.extend(place)

    def lines(self, key: Place) -> dict[int, tuple[int, int]]:
        """Return number → start and length of the lines with a scenario's conversations, in order."""
        flat = self.in_order(key)
        return dict(zip(flat[::3], zip(flat[1::3], flat[2::3], strict=True), strict=True))

    def in_order(self, key: Place) -> array[int]:
        """Return number, start and length of the lines in order, flat; of two with one number the later."""
        flat = self.places.get(key, array("q"))
        numbers = map(int, _read_at(self.path, flat).split()) if isinstance(flat, tuple) else iter(flat)
        last = {place[0]: place for place in zip(numbers, numbers, numbers, strict=True)}
        return array("q", chain.from_iterable(map(last.__getitem__, sorted(last))))

    def conversations(
        self,
        key: Place,
        most: int | None = None,
        finish: Callable[[ConversationResult], ConversationResult] = lambda read: read,
        *,
        silent: bool = False,
    ) -> StoredConversations:
        """Return the first stored conversations of a scenario, in order, as they were judged.

        Args:
            finish: completes a conversation with what is known only at the end of its scenario.
            silent: see `so_far`.
        """

        def decode(line: bytes) -> ConversationResult:
            data = json.loads(line)["conversation"]
            return finish(CODECS.read(ConversationResult, mark_vacuous(data) if silent else data))

        last = None if most is None else 3 * most
        stored = StoredConversations(self.path, lambda: self.in_order(key)[:last], decode)
        stored.is_changed = self.run.version != __version__
        return stored

    def events(self, key: Place, numbers: Iterable[int]) -> Iterator[ConversationFinished]:
        """Yield conversations in their stored form. Raises UsageError."""
        lines = self.lines(key)
        with self.path.open("rb") as journal:
            for number in numbers:
                body, measured = conversation_in(_at(journal, lines[number]))
                yield ConversationFinished(*key, body, number, measured=measured)

    def so_far(self, key: Place, *, silent: bool = False) -> ScenarioResult:
        """Return the scenario's result so far. Its conversations are read when they are used.

        Args:
            silent: mark expected calls that matched only because none was visible in the whole run.
        """
        planned = self.planned[key].conversations if key in self.planned else 0
        result = self.scenarios.get(key) or unfinished(key, len(self.lines(key)), planned)
        severities = Severities.of(result.errors, graded=not result.severity_unknown)
        stored = self.conversations(key, finish=severities.mark, silent=silent)
        is_summed = result.totals.conversations or key not in self.places
        return replace(result, conversations=stored, totals=result.totals if is_summed else totals_of(stored))


_AT_ONCE = 100
_Item = TypeVar("_Item")


class StoredItems(Sequence[_Item]):
    """Parts of a journal, each of which is read when it is used.

    Reading raises UsageError if the journal is damaged or was removed.

    Args:
        find: returns number, start and length of each part, in a flat array.
        decode: returns the value of a part.
    """

    is_changed = False  # whether these values are no longer, or not yet, what this version writes

    def __init__(self, path: Path, find: Callable[[], array[int]], decode: Callable[[bytes], _Item]) -> None:
        self._path = path
        self._find = find
        self._decode = decode

    @cached_property
    def _places(self) -> array[int]:
        return self._find()

    def mapped(self, change: Callable[[_Item], _Item]) -> Self:
        """Return the items with a change that is made when one is read."""
        mapped, decode = copy(self), self._decode
        mapped._decode = lambda part: change(decode(part))
        mapped.is_changed = True
        return mapped

    def stored_texts(self, wanted: Callable[[bytes], bool] | None = None) -> Iterator[bytes]:
        """Yield the parts, or the wanted ones, as JSON, those of many at once."""
        parts = filter(wanted, self._read())
        while several := list(islice(parts, _AT_ONCE)):
            yield b", ".join(several)

    def __len__(self) -> int:
        return len(self._places) // 3

    def __getitem__(self, index: Any, /) -> Any:
        at = range(len(self))[index]
        found = list(map(self._decoded, self._read(at if isinstance(at, range) else [at])))
        return found if isinstance(at, range) else found[0]

    def __iter__(self) -> Iterator[_Item]:
        return map(self._decoded, self._read())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def _read(self, numbers: Iterable[int] | None = None) -> Iterator[bytes]:
        places = self._places
        try:
            with self._path.open("rb") as journal:
                for at in range(0, len(places), 3) if numbers is None else (3 * n for n in numbers):
                    journal.seek(places[at + 1])
                    yield journal.read(places[at + 2])
        except OSError as error:
            raise self._damaged(error) from None

    def _decoded(self, part: bytes) -> _Item:
        try:
            return self._decode(part)
        except _UNREADABLE as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> UsageError:
        return UsageError(f"{self._path} is damaged: a conversation cannot be read ({error})")


class StoredConversations(StoredItems[ConversationResult]):
    """The conversations of a stored scenario, which are lines of the journal."""

    def as_stored(self) -> Iterator[bytes] | None:
        """Return the conversations without what is known only at the end of the run; None if changed."""
        return None if self.is_changed else (conversation_in(line)[0] for line in self._read())

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
                raise self._damaged(error) from None


def is_quoted(line: bytes) -> bool:
    """True if the console may quote a conversation: it did not pass, or has failures."""
    before = line[: line.find(b', "conversation": {')]  # quotation marks in names are escaped
    return b', "measured": {"passed": true' not in before or b'"failures": ' in before


_LONG_LINE = 8192
# What others wrote comes behind these in a scenario's line, and in a text the quotation marks are escaped.
_REASONS, _NEXT_REASON = b', "reasons": [', re.compile(rb', (?=\{"status": )')
_FAILURES = re.compile(
    rb'\], "passed": (?:true|false), "failures": \[(?:"(?:[^"\\]++|\\.)*+"(?:, )?)*+\]', re.DOTALL
)


def _without_reasons(line: bytes, path: Path, start: int) -> tuple[bytes, Sequence[Reason]]:
    """Return a long line of a scenario without reasons and failures, and the reasons, to be read later."""
    is_long = len(line) > _LONG_LINE and line.startswith(b'{"type": "scenario", ')
    end = _FAILURES.search(line) if is_long else None
    begin = line.find(_REASONS, 0, end.start()) if end else -1
    if end is None or begin < 0:
        return line, ()
    span = begin + len(_REASONS), end.start()

    def find() -> array[int]:
        content = _read_at(path, (start + span[0], span[1] - span[0]))
        cuts = [(0, 0), *(each.span() for each in _NEXT_REASON.finditer(content)), (len(content), 0)]
        bounds = ((before[1], after[0]) for before, after in pairwise(cuts))
        return array("q", (n for first, last in bounds for n in (0, start + span[0] + first, last - first)))

    reasons = StoredItems(path, find, lambda part: CODECS.read(Reason, json.loads(part)))
    return line[:begin] + b', "passed": false, "failures": []' + line[end.end() :], reasons


def _read_line(line: bytes) -> Line:
    data = json.loads(line)
    try:
        return CODECS.read(_LINES[data["type"]], data)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise JournalError("is not a line of a journal") from None


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
        for number, line in enumerate(journal, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                if index is None:
                    index = StoredJournal.begun(path, line)
                else:
                    index.take(line, start)
            except _UNREADABLE as error:
                if index is None or unreadable is None:
                    raise JournalError(f"line {number}: {error}") from None
                unreadable.append(f"line {number}: {error}")
            start += len(line)
    if index is None:
        raise JournalError("line 1: is not whole, as the run ended before its first conversation")
    return index


_INDEXED = re.compile(
    rb'\[("(?:[^"\\]|\\.)*+"), ("(?:[^"\\]|\\.)*+"), (\d+), (\d+), "([\d ]*)"\](?:, |\]\}\n\Z)'
)
"""An entry of the index: scenario, agent, start and length of its line, the places of its conversations."""


def _through_index(path: Path, journal: BinaryIO) -> StoredJournal | None:
    """Read a journal through the index in its last line; None if it has none, or has changed since.

    The places of conversations stay in the file until they are used.
    """
    with mmap(journal.fileno(), 0, access=ACCESS_READ) as content:
        start = content.rfind(b"\n", 0, len(content) - 1) + 1
        mark = b', "start": %d, "index": [' % start
        if (at := content.rfind(mark, start)) < 0:
            return None
        end = content[start:at] + b"}"
        lines = [(0, content.find(b"\n") + 1)]
        places: dict[Place, array[int] | tuple[int, int]] = {}
        at += len(mark)
        while entry := _INDEXED.match(content, at):
            at = entry.end()
            lines += [(int(entry[3]), int(entry[4]))] if entry[4] != b"0" else []
            if entry[5]:
                places[json.loads(entry[1]), json.loads(entry[2])] = entry.start(5), len(entry[5])
        if at != len(content):
            return None
    index = StoredJournal.begun(path, _at(journal, lines[0]))
    for place in lines[1:]:
        index.take(_at(journal, place), place[0])
    index.take(end, start)
    index.places = places
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


def _at(journal: BinaryIO, line: tuple[int, int]) -> bytes:
    start, length = line
    journal.seek(start)
    return journal.read(length)


def _read_at(path: Path, place: tuple[int, int]) -> bytes:
    try:
        with path.open("rb") as journal:
            return _at(journal, place)
    except OSError as error:
        raise unreadable(path, error) from None


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
