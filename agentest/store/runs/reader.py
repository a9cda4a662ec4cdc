"""One run read in parts: an index over its journal, which is followed as the file grows.

A run may have 10,000 conversations in 500 MB. What is kept of each is where it stands and what the caller
makes of it; the conversation itself is read again when it is opened.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from threading import RLock
from typing import IO, Any

from agentest.store.codec import CODECS
from agentest.store.conversations import with_vacuous
from agentest.store.reader import JournalError, is_journal, read_line, read_results, unfinished
from agentest.store.run_results import entries, stored_scenario, with_severity
from agentest.store.shapes import (
    SCHEMA_VERSION,
    ConversationLine,
    EndLine,
    PlannedConversations,
    RunHead,
    RunLine,
    ScenarioLine,
    StoredConversation,
    StoredScenario,
)
from agentest.support.errors import UsageError
from agentest.support.json_text import Json, encoded
from agentest.version import __version__

_UNREADABLE = (JournalError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
_MOST_PROBLEMS = 20
_FIRST_BYTES = 64 * 1024 * 1024

_BEGIN = b'{"type"'
"""What a line of a journal begins with."""

Brief = Callable[[Json], Json]
"""What is kept of a conversation, as results.json has it."""


@dataclass(slots=True)
class KeptScenario:
    """A scenario with an agent, as far as it has come.

    Attributes:
        planned: how many conversations; 0: nobody knows.
        scenario: as in results.json, without conversations; None: it has not come to its end.
        rows: number of a conversation → what `Brief` makes of it.
    """

    name: str
    agent: str
    planned: int = 0
    scenario: Json | None = None
    rows: dict[int, Json] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    """Number of a conversation → its position in the index's list of places."""

    def end(self, scenario: Json) -> None:
        """Note what it came to, and which conversations did not pass by the severity of their failures."""
        self.scenario = scenario
        unknown = scenario.get("severityUnknown", False)
        groups = [each for each in scenario["errors"] if unknown or each.get("fails")]
        failed = {id.rpartition("-")[0] for group in groups for id in group["occurrences"]}
        for row in self.rows.values():
            if row.get("conversationId") in failed:
                row["passed"] = False

    def graded(self, conversation: Json) -> Json:
        """A conversation of it, as stored, with the severity of its failures."""
        if self.scenario is None:
            return conversation
        groups = [each for each in self.scenario["errors"] if each.get("fails")]
        severe = {id for group in groups for id in group["occurrences"]}
        return with_severity(conversation, severe, unknown=self.scenario.get("severityUnknown", False))

    def lost(self) -> Json:
        """What stands for it where its run was killed before its end."""
        return CODECS.write(
            stored_scenario(unfinished((self.name, self.agent), len(self.rows), self.planned))
        )


class Ended(Exception):
    """Whoever reads does not want to know any more."""


class RunIndex:
    """A run of which parts are asked for.

    It may be asked by several threads. `changes` counts how often there was something new.

    Args:
        path: a journal, or a results.json, which is read as a whole once.
        brief: what is kept of each conversation.
    """

    def __init__(self, path: Path, brief: Brief) -> None:
        self.path = path
        self.changes = 0
        self.ended = False
        """Set by whoever closes: what reads stops at the next line."""
        self._brief = brief
        self.lock = RLock()
        """Held by whoever looks at more than one thing that `refresh` changes."""
        self._spool: IO[bytes] | None = None
        self._begin()

    def _begin(self) -> None:
        """Know nothing, as before anything was read."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None
        self.run: RunLine | None = None
        self.head: Json | None = None
        self.scenarios: dict[tuple[str, str], KeptScenario] = {}
        self.problems: list[str] = []
        """What could not be read, in words."""
        self._silent: frozenset[str] = frozenset()
        self._places = array("q")
        """Start and length of the line of each conversation."""
        self._offset = 0
        self._line = 0
        self._file = (0, 0)

    @property
    def complete(self) -> bool:
        """Whether the run has come to its end."""
        return self.head is not None

    @property
    def finished(self) -> int:
        """How many scenarios have."""
        return sum(each.scenario is not None for each in self.scenarios.values())

    def refresh(self) -> bool:
        """Read what has come since; whether there was something. Raises UsageError where it is no run."""
        with self.lock:
            before = (self._offset, self._file)
            try:
                self._refresh()
            except FileNotFoundError:
                raise UsageError(f"{self.path} is not there any more: the run was removed") from None
            except OSError as error:
                raise UsageError(f"{self.path} cannot be read: {error.strerror}") from None
            changed = before != (self._offset, self._file)
            self.changes += changed
            return changed

    def _refresh(self) -> None:
        stat = self.path.stat()
        file = (stat.st_dev, stat.st_ino)
        if self._offset and (file != self._file or stat.st_size < self._offset):
            self._begin()  # another file has its name
        if self._offset == stat.st_size:
            return
        with self.path.open("rb") as content:
            first = b"" if self._offset else content.readline(_FIRST_BYTES)
            if self._offset or is_journal(first):
                self._follow(content)
            elif not _is_begun(first):
                self._take_document(stat.st_size)
        self._file = file

    def _follow(self, content: IO[bytes]) -> None:
        """Read the whole lines that are new; one that is not whole yet waits."""
        content.seek(self._offset)
        for line in content:
            if self.ended:
                raise Ended
            if not line.endswith(b"\n"):
                return
            self._take(line)
            self._offset += len(line)

    def _take(self, line: bytes) -> None:
        self._line += 1
        try:
            read = read_line(json.loads(line))
            self._note(read, len(line))
        except UsageError:
            raise
        except _UNREADABLE as error:
            if self.run is None:
                raise UsageError(
                    f"{self.path} is not a journal of this version of Agentest: {error}"
                ) from None
            if len(self.problems) < _MOST_PROBLEMS:
                self.problems.append(f"line {self._line} of {self.path.name} cannot be read: {error}")

    def _note(self, read: object, length: int) -> None:
        match read:
            case RunLine():
                self._check_form(read)
                self.run = read
                for planned in read.planned:
                    self._at(planned.scenario, planned.agent).planned = planned.conversations
            case ConversationLine():
                row = self._brief(self._normal(read.conversation))
                kept = self._at(read.scenario, read.agent)
                kept.rows[read.number] = row
                kept.places[read.number] = len(self._places) // 2
                self._places.extend((self._offset, length))
            case ScenarioLine():
                stored = CODECS.write(CODECS.read(StoredScenario, _dict(read.scenario)))
                self._at(stored["name"], stored["agent"]).end(stored)
            case EndLine():
                head = CODECS.read(RunHead, _dict(read.run))
                self._silent = frozenset(name for name, each in head.agents.items() if each.no_call_seen)
                self.head = CODECS.write(head)

    def _check_form(self, run: RunLine) -> None:
        if run.schema_version > SCHEMA_VERSION:
            raise UsageError(
                f"{self.path} was written by a later version of Agentest ({run.version}); this is "
                f"{__version__}: install that one to look at it"
            )

    def _at(self, name: str, agent: str) -> KeptScenario:
        return self.scenarios.setdefault((name, agent), KeptScenario(name, agent))

    def _normal(self, conversation: object) -> Json:
        """A conversation in the form of this version: what another one wrote is read and written again."""
        data = _dict(conversation)
        if self.run is not None and self.run.version == __version__:
            return data
        return CODECS.write(CODECS.read(StoredConversation, data))

    def _take_document(self, size: int) -> None:
        """A results.json: its conversations are laid into a file of our own, a line each."""
        run = read_results(self.path)
        self._spool = TemporaryFile()  # noqa: SIM115 - it lives as long as the index
        head = run.head
        planned = [
            PlannedConversations(
                scenario=entry.scenario.name,
                agent=entry.scenario.agent,
                conversations=entry.scenario.planned_conversations,
            )
            for entry in entries(run)
        ]
        self._note(
            RunLine(
                schema_version=SCHEMA_VERSION,
                version=__version__,
                started_at=head.started_at,
                agents=head.agents,
                models=head.models,
                mode=head.mode,
                planned=tuple(planned),
            ),
            0,
        )
        for entry in entries(run):
            place = {"scenario": entry.scenario.name, "agent": entry.scenario.agent}
            for number, conversation in enumerate(entry.conversations, start=1):
                stored = CODECS.write(conversation)
                line = encoded({"type": "conversation", **place, "number": number, "conversation": stored})
                self._spool.write(line)
                self._note(ConversationLine(**place, number=number, conversation=stored), len(line))
                self._offset += len(line)
            self._note(ScenarioLine(scenario=CODECS.write(entry.scenario)), 0)
        self._note(EndLine(run=CODECS.write(head)), 0)
        self._silent = frozenset()  # `read_results` has completed them
        self._offset = size

    def number_of(self, name: str, agent: str, conversation_id: str) -> int | None:
        """Which conversation of its scenario has this id; None: none."""
        kept = self.scenarios.get((name, agent))
        for number, row in kept.rows.items() if kept else ():
            if row.get("conversationId") == conversation_id:
                return number
        return None

    def conversation(self, name: str, agent: str, number: int) -> Json:
        """One conversation, as results.json has it. Raises UsageError where it cannot be read any more."""
        try:
            scenario = self.scenarios[name, agent]
            with self.path.open("rb") as journal:
                found = scenario.graded(self._read(journal, scenario.places[number]))
        except (OSError, *_UNREADABLE) as error:
            raise UsageError(f"{self.path}: the conversation cannot be read any more ({error})") from None
        if agent not in self._silent:
            return found
        return CODECS.write(with_vacuous(CODECS.read(StoredConversation, found)))

    def _read(self, journal: IO[bytes], position: int) -> Json:
        return self._normal(json.loads(self._line_at(journal, position))["conversation"])

    def _line_at(self, journal: IO[bytes], position: int) -> bytes:
        start, length = self._places[2 * position : 2 * position + 2]
        with self.lock:
            file = self._spool or journal
            file.seek(start)
            return file.read(length)

    def search(self, text: str, stop: Callable[[], bool]) -> Iterator[tuple[str, str, str]]:
        """Scenario, agent and id of the conversations in whose transcripts a text stands, in any case."""
        needle = _as_in_json(text)
        with self.path.open("rb") as journal:
            for kept in list(self.scenarios.values()):
                for number, position in list(kept.places.items()):
                    if stop() or self.ended:
                        return
                    if self._has(journal, position, needle, text.casefold()):
                        yield kept.name, kept.agent, kept.rows[number]["conversationId"]

    def _has(self, journal: IO[bytes], position: int, needle: str, text: str) -> bool:
        try:
            line = self._line_at(journal, position)
            # Most have it nowhere, and need not be parsed for that.
            may = needle in line.decode(errors="replace").casefold()
            return may and _tells(self._normal(json.loads(line)["conversation"]), text)
        except _UNREADABLE:
            return False

    def close(self) -> None:
        """Let it go. What still reads ends soon."""
        self.ended = True
        if self._spool is not None:
            self._spool.close()


def _is_begun(first: bytes) -> bool:
    """Whether this is the first line of a journal, and not whole yet: it names all scenarios of a run."""
    return not first.endswith(b"\n") and first[: len(_BEGIN)] == _BEGIN[: len(first)]


def _dict(data: object) -> Json:
    if not isinstance(data, dict):
        raise JournalError("is no line of a journal")
    return data


def _as_in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1].casefold()


_TOLD = ("turns", "unfinishedTurn", "error", "initialState", "criteria", "labelledFailures")


def _tells(conversation: Json, text: str) -> bool:
    """Whether the text stands in what was said, called and found, and not in the names of keys."""
    return any(text in each.casefold() for key in _TOLD for each in _texts(conversation.get(key)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
