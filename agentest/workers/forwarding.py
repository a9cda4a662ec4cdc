"""What servers print, told to the workers: a turn that fails there shows it.

The run's own process starts the servers and reads what they print. A worker keeps the last of it, as it would
had it read it itself; messages are as prompt as memory that processes share, and reach other machines.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentest.agents.server_output import ROOM_BYTES, Printed
from agentest.domain.results import ModelUsage
from agentest.models.cassette import Cassettes
from agentest.models.cassette_file import Asked, Entries, Entry
from agentest.models.port import CallKey, Ledger, Question
from agentest.models.tape import (
    AskedTimes,
    CassetteError,
    MeasuringLedger,
    Mode,
    Page,
    as_kept,
    by_slot,
    found,
    missing_from,
)
from agentest.support.redaction import Redactor
from agentest.workers.channel import Send

_GATHER_S = 0.02
"""The least time between two messages on what is printed: a server that prints much sends few, but large."""


@dataclass(frozen=True, slots=True)
class LinesPrinted:
    """To a worker: the last of what a server has printed since the message before."""

    server: str
    lines: str


@dataclass(frozen=True, slots=True)
class ServerEnded:
    """To a worker: a server has ended, and not by our doing."""

    server: str
    status: int


class PrintedDesk:
    """In the run's own process: tells all workers what servers print.

    Args:
        send: sends a message to all workers. Called in the event loop.
    """

    def __init__(self, servers: Iterable[Printed], send: Send) -> None:
        self._servers = tuple(servers)
        self._send = send
        self._lines: dict[str, str] = {}
        self._pause: asyncio.TimerHandle | None = None
        for each in self._servers:
            each.follow(partial(self._hear, each.name), partial(self._end, each.name))

    def welcome(self, send: Send) -> None:
        """Tell a new worker which servers have ended. What they printed belongs to no turn of it."""
        for each in self._servers:
            if each.exit_status is not None:
                send(ServerEnded(each.name, each.exit_status))

    def close(self) -> None:
        """Tell nothing more."""
        if self._pause:
            self._pause.cancel()
        self._send = _nothing

    def _hear(self, server: str, lines: str) -> None:
        before = self._lines.get(server)
        self._lines[server] = _last(lines if before is None else f"{before}\n{lines}")
        if self._pause is None:
            self._tell()

    def _end(self, server: str, status: int) -> None:
        self._send_lines()
        self._send(ServerEnded(server, status))

    def _tell(self) -> None:
        self._pause = asyncio.get_running_loop().call_later(_GATHER_S, self._tell) if self._lines else None
        self._send_lines()

    def _send_lines(self) -> None:
        waiting, self._lines = self._lines, {}
        for server, lines in waiting.items():
            self._send(LinesPrinted(server, lines))


class PrintedHere:
    """In a worker: keeps what it is told of the servers."""

    def __init__(self, servers: Iterable[Printed]) -> None:
        self._servers = {each.name: each for each in servers}

    def receive(self, message: LinesPrinted | ServerEnded) -> None:
        match message:
            case LinesPrinted():
                self._servers[message.server].add(message.lines)
            case ServerEnded():
                self._servers[message.server].end(message.status)


def _last(text: str) -> str:
    """The last whole lines of it, as far as they are kept anyway."""
    if len(text) <= ROOM_BYTES:
        return text
    kept = text[-ROOM_BYTES:]
    _, cut, whole = kept.partition("\n")
    return whole if cut else kept


def _nothing(_: object) -> None:
    """Whoever is not told any more."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """From a worker: an answer that a conversation of it has recorded, without secrets, and its line."""

    entry: Entry
    line: bytes


class _OpenPage:
    """The page of a conversation under way, by slot."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.recorded: Entries = by_slot(page.recorded)
        self.salvaged: Entries = by_slot(page.salvaged)


class PagesTape:
    """In a worker: the tape of its conversations, each of which answers from its own page.

    Args:
        names: scope → the scenario's name as `--scenario` takes it.
        on_failure: receives every CassetteError before it is raised, to stop the run at the first.
    """

    def __init__(
        self,
        mode: Mode,
        redact: Redactor,
        send: Send,
        names: Mapping[str, str],
        on_failure: Callable[[CassetteError], None],
    ) -> None:
        self.mode = mode
        self._redact = redact
        self._send = send
        self._names = names
        self._on_failure = on_failure
        self._times = AskedTimes()
        self._pages: dict[tuple[str, int], _OpenPage] = {}

    def begin(self, scope: str, number: int, page: Page) -> None:
        """A conversation begins, which nothing was asked for yet."""
        self._pages[scope, number] = _OpenPage(page)

    def end(self, scope: str, number: int) -> None:
        """The conversation is done, or given up."""
        self._times.forget(scope, number)
        self._pages.pop((scope, number), None)

    def asked(self, question: Question, model: str, parameters: Mapping[str, Any]) -> Asked:
        return self._times.asked(question, model, parameters)

    def find(self, asked: Asked) -> Entry | None:
        own = self._page_of(asked)
        return found((own.salvaged, own.recorded), asked, self.mode)

    def keep(self, entry: Entry) -> Entry:
        entry, line = as_kept(entry, self._redact)
        self._send(Recorded(entry, line))
        return entry

    def missing(self, asked: Asked) -> CassetteError:
        own, scope = self._page_of(asked), asked.key.scope
        error = missing_from(own.page, own.recorded, asked, self._names.get(scope, scope))
        self._on_failure(error)
        return error

    def close(self, *, finished: bool = True) -> None:
        """There is nothing to do: the files are not ours."""

    def _page_of(self, asked: Asked) -> _OpenPage:
        return self._pages[asked.key.scope, asked.key.conversation]


class RecordingDesk:
    """In the run's own process: gives conversations their pages, and writes what workers record."""

    def __init__(self, cassettes: Cassettes) -> None:
        self._cassettes = cassettes

    def page(self, scope: str, number: int) -> Page:
        """What goes with a conversation to the worker that is to hold it."""
        return self._cassettes.page(scope, number)

    def receive(self, message: Recorded) -> None:
        """Write the answer. A file that cannot be written stops the run, by what Cassettes were given."""
        with suppress(CassetteError):  # its `on_failure` has reported it
            self._cassettes.write(message.entry, message.line)

    def done(self, scope: str, number: int) -> None:
        """The conversation is done."""
        self._cassettes.done(scope, number)

    def forget(self, scope: str, number: int) -> None:
        """The conversation was lost with its worker: held again, it records everything again."""
        self._cassettes.forget(scope, number)


@dataclass(frozen=True, slots=True)
class Used:
    """From a worker: what a call took, or had taken whose recorded answer was given."""

    key: CallKey
    used: ModelUsage
    replayed: bool = False


class SendingLedger(MeasuringLedger):
    """A worker's ledger, which sends whatever is added to it."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def add(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)
        self._send(Used(key, used))

    def add_replayed(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)
        self._send(Used(key, used, replayed=True))


class UsageDesk:
    """In the run's own process: adds what workers send to its ledger.

    A live call counts once it was made, also of a conversation that its worker took along when it died. What
    was replayed counts with the conversation, when it is done: held again, it is replayed again, and the
    whole run is to have taken what it took when it was recorded.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._replayed: defaultdict[tuple[str, int], list[Used]] = defaultdict(list)

    def receive(self, message: Used) -> None:
        key = message.key
        if message.replayed:
            self._replayed[key.scope, key.conversation].append(message)
        else:
            self._ledger.add(key, message.used)

    def done(self, scope: str, number: int) -> None:
        """The conversation is done: what was replayed for it counts."""
        for each in self._replayed.pop((scope, number), ()):
            self._ledger.add_replayed(each.key, each.used)

    def forget(self, scope: str, number: int) -> None:
        """The conversation was lost with its worker: it is held again, or has no answers."""
        self._replayed.pop((scope, number), None)
