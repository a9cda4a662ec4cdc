"""Read parts of a run through an index over its journal, which follows the file as it grows.

A run may have 10,000 conversations in 500 MB. The index has only the position of each conversation and the
caller's summary; the conversation itself is read again on demand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from tempfile import TemporaryFile
from threading import RLock
from typing import IO, Any

from agentest.domain.results import ConversationResult, ScenarioResult
from agentest.domain.verdict import Severities
from agentest.store.codec import CODECS, conversation_json, mark_vacuous
from agentest.store.reader import JournalError, Line, is_journal, read_checked, read_line, unfinished
from agentest.store.run_results import entries, with_severity
from agentest.store.shapes import (
    SCHEMA_VERSION,
    ConversationLine,
    EndLine,
    PlannedConversations,
    RunHead,
    RunLine,
    ScenarioLine,
)
from agentest.support.errors import UsageError
from agentest.support.json_text import Json, encoded
from agentest.support.lazy_dataclasses import dataclass
from agentest.version import __version__

_UNREADABLE = (JournalError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
_MOST_PROBLEMS = 20
_FIRST_BYTES = 64 * 1024 * 1024

_BEGIN = b'{"type"'

ConversationSummarizer = Callable[[Json], Json]  # summarizes a conversation in the format of results.json


@dataclass(slots=True)
class IndexedScenario:
    """A scenario with an agent, and its progress.

    Attributes:
        planned: the number of conversations; 0 if unknown.
        scenario: as in results.json, without conversations; None if it has not ended.
        rows: number of a conversation → the result of `ConversationSummarizer`.
    """

    name: str
    agent: str
    planned: int = 0
    scenario: Json | None = None
    rows: dict[int, Json] = field(default_factory=dict)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Number of a conversation → start and length of its line."""

    def end(self, scenario: Json) -> None:
        """Set the scenario's result, and mark conversations that the severity of their failures fails."""
        self.scenario = scenario
        unknown = scenario.get("severityUnknown", False)
        groups = [each for each in scenario["errors"] if unknown or each.get("fails")]
        failed = {id.rpartition("-")[0] for group in groups for id in group["occurrences"]}
        for row in self.rows.values():
            if row.get("conversationId") in failed:
                row["passed"] = False

    def graded(self, conversation: Json) -> Json:
        """Return a stored conversation with the severity of its failures."""
        if self.scenario is None:
            return conversation
        severe = {id for each in self.scenario["errors"] if each.get("fails") for id in each["occurrences"]}
        graded = not self.scenario.get("severityUnknown", False)
        return with_severity(conversation, Severities(frozenset(severe), graded))

    def lost(self) -> Json:
        """Return a placeholder for a scenario whose run was killed before its end."""
        return CODECS.write(unfinished((self.name, self.agent), len(self.rows), self.planned))


class ReaderClosed(Exception):
    """The reader was closed."""


class RunIndex:
    """An index of a run, which reads parts on demand.

    It is thread-safe. `changes` counts the updates.

    Args:
        path: a journal, or a results.json, which is read once as a whole.
        brief: summarizes each conversation.
    """

    def __init__(self, path: Path, brief: ConversationSummarizer) -> None:
        self.path = path
        self.changes = 0
        self.ended = False  # set on close, so that readers stop at the next line
        self._brief = brief
        self.lock = RLock()  # required for consistent access to several values that `refresh` changes
        self._spool: IO[bytes] | None = None
        self._begin()

    def _begin(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None
        self.run: RunLine | None = None
        self.head: Json | None = None
        self.scenarios: dict[tuple[str, str], IndexedScenario] = {}
        self.problems: list[str] = []  # descriptions of unreadable parts
        self._silent: frozenset[str] = frozenset()
        self._offset = 0
        self._line = 0
        self._file = (0, 0)

    @property
    def complete(self) -> bool:
        """True if the run has come to its end."""
        return self.head is not None

    @property
    def finished(self) -> int:
        """The number of finished scenarios."""
        return sum(each.scenario is not None for each in self.scenarios.values())

    def refresh(self) -> bool:
        """Read new lines. Returns True if there were any. Raises UsageError if the file is not a run."""
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
            # The first line is long, because it names all scenarios: wait for the rest of it.
            elif first.endswith(b"\n") or first[: len(_BEGIN)] != _BEGIN[: len(first)]:
                self._take_document(stat.st_size)
        self._file = file

    def _follow(self, content: IO[bytes]) -> None:
        content.seek(self._offset)
        for line in content:
            if self.ended:
                raise ReaderClosed
            if not line.endswith(b"\n"):
                return
            self._line += 1
            try:
                self._note(read_line(json.loads(line)), len(line))
            except UsageError:
                raise
            except _UNREADABLE as error:
                if self.run is None:
                    raise UsageError(
                        f"{self.path} is not a journal of this version of Agentest: {error}"
                    ) from None
                if len(self.problems) < _MOST_PROBLEMS:
                    self.problems.append(f"line {self._line} of {self.path.name} cannot be read: {error}")
            self._offset += len(line)

    def _note(self, read: Line, length: int) -> None:
        match read:
            case RunLine():
                if read.schema_version > SCHEMA_VERSION:
                    raise UsageError(
                        f"{self.path} was written by a later version of Agentest ({read.version}); this is "
                        f"{__version__}: install that one to look at it"
                    )
                self.run = read
                for planned in read.planned:
                    self._at(planned.scenario, planned.agent).planned = planned.conversations
            case ConversationLine():
                row = self._brief(self._converted(read.conversation))
                indexed = self._at(read.scenario, read.agent)
                indexed.rows[read.number] = row
                indexed.places[read.number] = self._offset, length
            case ScenarioLine():
                result = CODECS.read(ScenarioResult, read.scenario)
                self._at(result.name, result.agent).end(CODECS.write(result))
            case EndLine():
                head = CODECS.read(RunHead, read.run)
                self._silent = frozenset(name for name, each in head.agents.items() if each.no_call_seen)
                explored = {key: read.run[key] for key in ("findings", "explored") if key in read.run}
                self.head = CODECS.write(head) | explored

    def _at(self, name: str, agent: str) -> IndexedScenario:
        return self.scenarios.setdefault((name, agent), IndexedScenario(name, agent))

    def _converted(self, data: Json) -> Json:
        if self.run is not None and self.run.version == __version__:
            return data
        # The results of ADK's metrics are not part of the value.
        return {**data, **conversation_json(CODECS.read(ConversationResult, data), None, {})}

    def _take_document(self, size: int) -> None:
        document, run = read_checked(self.path)
        self._spool = TemporaryFile()  # noqa: SIM115 - it lives as long as the index
        head = CODECS.read(RunHead, document)
        planned = [
            PlannedConversations(scenario=each.name, agent=each.agent, conversations=each.planned)
            for each in run.scenarios
        ]
        self._note(
            RunLine(
                schema_version=SCHEMA_VERSION,
                version=head.version,
                started_at=head.started_at,
                agents=head.agents,
                models=head.models,
                mode=head.mode,
                planned=tuple(planned),
            ),
            0,
        )
        for entry in entries(document):
            identity = {"scenario": entry["name"], "agent": entry["agent"]}
            for number, conversation in enumerate(entry.pop("conversations"), start=1):
                read = ConversationLine(**identity, number=number, conversation=conversation)
                line = encoded(CODECS.write(read))
                self._spool.write(line)
                self._note(read, len(line))
                self._offset += len(line)
            self._note(ScenarioLine(scenario=entry), 0)
        self._note(EndLine(run=document), 0)
        self._offset = size

    def number_of(self, name: str, agent: str, conversation_id: str) -> int | None:
        """Return the number of the conversation with this id within its scenario; None if there is none."""
        indexed = self.scenarios.get((name, agent))
        for number, row in indexed.rows.items() if indexed else ():
            if row.get("conversationId") == conversation_id:
                return number
        return None

    def conversation(self, name: str, agent: str, number: int) -> Json:
        """Return one conversation in the format of results.json.

        Raises UsageError if it is no longer readable.
        """
        try:
            scenario = self.scenarios[name, agent]
            with self.path.open("rb") as journal:
                line = json.loads(self._line_at(journal, *scenario.places[number]))
                conversation = scenario.graded(self._converted(line["conversation"]))
        except (OSError, *_UNREADABLE) as error:
            raise UsageError(f"{self.path}: the conversation cannot be read any more ({error})") from None
        return mark_vacuous(conversation) if agent in self._silent else conversation

    def _line_at(self, journal: IO[bytes], start: int, length: int) -> bytes:
        with self.lock:
            file = self._spool or journal
            file.seek(start)
            return file.read(length)

    def search(self, text: str, stop: Callable[[], bool]) -> Iterator[tuple[str, str, str]]:
        """Yield scenario, agent and id of conversations whose transcripts contain a text, ignoring case."""
        needle = json.dumps(text, ensure_ascii=False)[1:-1].casefold()  # as in the file
        with self.path.open("rb") as journal:
            for indexed in list(self.scenarios.values()):
                for number, place in list(indexed.places.items()):
                    if stop() or self.ended:
                        return
                    if self._has(journal, place, needle, text.casefold()):
                        yield indexed.name, indexed.agent, indexed.rows[number]["conversationId"]

    def _has(self, journal: IO[bytes], place: tuple[int, int], needle: str, text: str) -> bool:
        try:
            line = self._line_at(journal, *place)
            # Most conversations do not contain the text at all, so they need no parsing.
            if needle not in line.decode(errors="replace").casefold():
                return False
            told = self._converted(json.loads(line)["conversation"])
            return any(text in each.casefold() for key in _TOLD for each in _texts(told.get(key)))
        except _UNREADABLE:
            return False

    def close(self) -> None:
        """Close the index. Running reads end soon."""
        self.ended = True
        if self._spool is not None:
            self._spool.close()


_TOLD = ("turns", "unfinishedTurn", "error", "initialState", "criteria", "labelledFailures")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
