"""The journal: a file that gets a line as soon as a conversation has finished.

A killed run loses no finished conversation, and a long run does not need to retain them in memory. Each line
is a JSON object: a `RunLine`, then `ConversationLine` and `ScenarioLine` objects, and finally an `EndLine`,
unless the run was killed. Their contents have the same format as in results.json.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Protocol

from agentest.domain.events import (
    ConversationFinished,
    Event,
    RunFinished,
    RunStarted,
    ScenarioAmended,
    ScenarioFinished,
    TimePassed,
)
from agentest.domain.reasons import measured_conversation
from agentest.domain.results import ScenarioResult
from agentest.store.codec import CODECS, conversation_json
from agentest.store.run_results import head_json, mode_of, stored_agents
from agentest.store.shapes import (
    CONVERSATION,
    SCHEMA_VERSION,
    EndLine,
    PlannedConversations,
    RunLine,
    ScenarioLine,
)
from agentest.support.files import make_folder
from agentest.support.json_text import encoded
from agentest.support.lazy_dataclasses import dataclass

MOST_WAITING = 256_000_000  # the bytes that may wait in memory for room on the disk


class RawFile(Protocol):
    """The methods of an unbuffered file that are needed here."""

    def write(self, data: memoryview, /) -> int | None: ...
    def seek(self, position: int, /) -> int: ...
    def read(self, size: int, /) -> bytes | None: ...
    def close(self) -> None: ...


def open_new(path: Path) -> RawFile:
    """Create a new, unbuffered file in the place of an old one, because buffers are lost with the process.

    The old one is removed instead of truncated, because another run may still use it. Links are not followed.
    Raises OSError.
    """
    make_folder(path.parent)
    path.unlink(missing_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)


@dataclass(eq=False)
class RetryingLineFile:
    """Lines in a file, in order; lines that could not be written yet are retained and retried.

    A line that was written partially is completed by the next attempt. Until then, the file ends with its
    first part, without a newline.
    """

    path: Path
    warn: Callable[[str], None]
    """Receives a message when a line cannot be written, when all are written again, and when lines are lost.
    """
    opened: Callable[[Path], RawFile] = open_new
    most_waiting: int = MOST_WAITING  # maximum number of bytes that wait in memory; further lines are lost
    lost: int = 0
    _file: RawFile | None = None
    _closed: bool = False
    _waiting: deque[bytes] = field(default_factory=deque)
    _written: int = 0  # the number of bytes in the file
    _first: int = 0  # the start of the first waiting line, at most `_written`
    _end: int = 0  # the start of the next line
    _late: bool = False

    def add(self, line: bytes) -> int | None:
        """Write a line, now or later. Returns its start, or None if it is lost."""
        if self._closed or self._end - self._first + len(line) > self.most_waiting:
            if not self.lost and not self._closed:
                self.warn(
                    f"{self.path}: {self.most_waiting:,} bytes already wait for disk space: "
                    f"lines from now on are lost"
                )
            self.lost += 1
            return None
        start = self._end
        self._waiting.append(line)
        self._end += len(line)
        self.flush()
        return start

    @property
    def size(self) -> int:
        """The bytes of all lines that were added."""
        return self._end

    def flush(self) -> bool:
        """Try to write the waiting lines. Returns True if none is left."""
        try:
            self._write()
        except OSError as error:
            if not self._late:
                self._late = True
                self.warn(
                    f"{self.path} cannot be written to ({error.strerror or error}): new lines "
                    f"stay in memory until there is space; a run that is killed now loses them"
                )
            return False
        if self._late:
            self._late = False
            self.warn(f"{self.path} could be written to again: nothing that waited is lost")
        return True

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of one line, from the file or from memory. Raises OSError."""
        if start < self._first:
            if self._file is None:
                raise OSError(f"{self.path} is closed")
            self._file.seek(start)
            return self._file.read(length) or b""
        at = self._first
        for line in self._waiting:
            if start < at + len(line):
                return line[start - at : start - at + length]
            at += len(line)
        raise OSError(f"{self.path} has no line at {start}")

    def close(self) -> None:
        """Close the file. Its lines can no longer be read."""
        self._closed = True
        self._waiting.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self) -> None:
        if self._file is None and self._waiting:
            self._file = self.opened(self.path)
        while self._waiting and self._file is not None:
            rest = memoryview(self._waiting[0])[self._written - self._first :]
            self._written += self._file.write(rest) or 0
            if self._written - self._first == len(self._waiting[0]):
                self._waiting.popleft()
                self._first = self._written


CONVERSATION_START = re.compile(
    rb'\{"type": "conversation", "scenario": ("(?:[^"\\]|\\.)*+"), "agent": ("(?:[^"\\]|\\.)*+"), '
    rb'"number": (\d+), (?:"measured": (\{.*?\}), )?"conversation": (?=\{)'
)
"""What precedes the conversation in its line: scenario, agent, number, and measurements if there are any."""


def conversation_in(line: bytes) -> tuple[bytes, bytes]:
    """Return the conversation of a journal's line, and its measurements, both as they are stored."""
    if begin := CONVERSATION_START.match(line):
        return line[begin.end() : -2], begin[4] or b""
    return encoded(json.loads(line)["conversation"]), b""


class Journal:
    """Writes the journal, and reads conversations from it until it is closed.

    Lines that cannot be written, because the disk is full, wait in memory and are read from there.

    Args:
        warn: receives a message as soon as that happens, and another when it is over.
        opened: opens the file.
        on_begun: called once when the file has its first line and the conversations of a resumed run. It may
            raise OSError; then it is called again later.
    """

    name = "journal"
    events = (
        *(RunStarted, ConversationFinished, ScenarioFinished, ScenarioAmended, RunFinished),
        TimePassed,  # another attempt at the beginning of the file
    )

    def __init__(
        self,
        path: Path,
        warn: Callable[[str], None] = lambda _: None,
        opened: Callable[[Path], RawFile] = open_new,
        on_begun: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self._file = RetryingLineFile(path, warn, opened)
        self._on_begun = on_begun
        self._began = False
        self._places: dict[tuple[str, str], array[int]] = {}
        """Scenario and agent → number, start and length of each conversation's line, in a flat array.

        Plain numbers, because nothing else grows with the run.
        """
        self._scenario_lines: dict[tuple[str, str], tuple[int, int]] = {}  # start and length of the last one

    def on_event(self, event: Event) -> None:
        """Write the event, if the journal has a line for it."""
        match event:
            case RunStarted():
                self._begin(event)
            case ConversationFinished():
                self._write_conversation(event)
            case ScenarioFinished():
                self._write_scenario(event.result)
            case ScenarioAmended():
                self._write_scenario(event.result, amended=True)
            case RunFinished():
                order = tuple((each.name, each.agent) for each in event.result.scenarios)
                end = EndLine(run=head_json(event.result), order=order)
                if not self._file.lost:
                    end = replace(end, start=self._file.size, index=list(self._index()))
                self._write(end)
        if not self._began and self._file.size and self.flush():
            with suppress(OSError):  # the next event tries again
                self._on_begun()
                self._began = True

    @property
    def held(self) -> int:
        """The number of conversations in the journal."""
        return sum(len(flat) for flat in self._places.values()) // 3

    def flush(self) -> bool:
        """Retry waiting lines. Returns True if all lines are in the file."""
        return self._file.flush() and not self._file.lost

    def conversations(self, scenario: ScenarioResult) -> Iterator[bytes]:
        """Yield the scenario's conversations in order, as JSON. Raises OSError, also if one is missing."""
        flat = self._places.get((scenario.name, scenario.agent), array("q"))
        numbers, expected = flat[::3], scenario.totals.conversations
        if expected and len(numbers) != expected:
            raise OSError(
                f"{self.path} holds {len(numbers)} of {expected} conversations of {scenario.name!r}"
            )
        for at in sorted(range(len(numbers)), key=numbers.__getitem__) if expected else ():
            start, length = flat[3 * at + 1 : 3 * at + 3]
            yield conversation_in(self._file.read(start, length))[0]

    def close(self) -> None:
        """Close the file. Conversations can no longer be read."""
        self._file.close()

    def _begin(self, event: RunStarted) -> None:
        self._write(
            RunLine(
                schema_version=SCHEMA_VERSION,
                version=event.version,
                started_at=event.started_at,
                agents=stored_agents(event.agents, event.visibilities),
                models=event.models,
                mode=mode_of(event.comparison),
                planned=tuple(
                    PlannedConversations(
                        scenario=name,
                        agent=agent,
                        conversations=count,
                        fingerprint=event.fingerprints.get((name, agent), ""),
                        usage=event.used.get((name, agent), {}),
                    )
                    for name, agent, count in event.planned
                ),
            )
        )
        for finished in event.kept:
            self._write_conversation(finished)

    def _write_conversation(self, event: ConversationFinished) -> None:
        body, measured = event.result, event.measured
        if not isinstance(body, bytes):
            measured = encoded(CODECS.write(measured_conversation(body)))
            body = encoded(conversation_json(body, event.case, event.thresholds))
        names = encoded({"type": CONVERSATION, "scenario": event.name, "agent": event.agent})
        figures = b', "measured": ' + measured if measured else b""
        head = b'%s, "number": %d%s, "conversation": ' % (names[:-1], event.number, figures)
        line = head + body + b"}\n"
        start = self._file.add(line)
        if start is not None:
            places = self._places.setdefault((event.name, event.agent), array("q"))
            places.extend((event.number, start, len(line)))

    def _write_scenario(self, result: ScenarioResult, *, amended: bool = False) -> None:
        start = self._file.size
        self._write(ScenarioLine(scenario=CODECS.write(result), amended=amended, totals=result.totals))
        self._scenario_lines[result.name, result.agent] = start, self._file.size - start

    def _index(self) -> Iterator[list[str | int]]:
        for key in dict.fromkeys((*self._scenario_lines, *self._places)):
            flat = self._places.get(key, array("q"))
            # In parts, because the texts of the numbers would take ten times the memory of the array.
            parts = (" ".join(map(str, flat[at : at + 999])) for at in range(0, len(flat), 999))
            yield [*key, *self._scenario_lines.get(key, (0, 0)), " ".join(parts)]

    def _write(self, line: RunLine | ScenarioLine | EndLine) -> None:
        self._file.add(encoded(CODECS.write(line)) + b"\n")
