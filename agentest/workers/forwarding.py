"""Forward server output, recorded model responses and usage between workers and the run's process.

The run's process starts servers, writes cassettes and adds up usage. Workers need the last server output,
because a turn that fails shows it, and the recorded responses of their own conversations. In return they send
the responses they record and the usage they measure. Messages are as fast as shared memory and also reach
other machines.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from agentest.agents.server_output import ROOM_BYTES, RecentOutput
from agentest.domain.results import ModelUsage
from agentest.models.cassette import Cassettes
from agentest.models.port import CallKey, Ledger
from agentest.models.tape import (
    CassetteEntry,
    CassetteError,
    CassetteMode,
    CassettePage,
    Entries,
    Tape,
)
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import Redactor
from agentest.workers.channel import Send

_GATHER_S = 0.02
"""Minimum time between two messages with server output, so that busy servers send few, large messages."""


@dataclass(frozen=True, slots=True)
class OutputLines:
    """Run to worker: the last lines that a server has printed since the previous message."""

    server: str
    lines: str


@dataclass(frozen=True, slots=True)
class ServerExited:
    """Run to worker: a server has exited unexpectedly."""

    server: str
    status: int


class OutputForwarder:
    """Forward server output from the run's process to all workers.

    Args:
        send: sends a message to all workers; called in the event loop.
    """

    def __init__(self, servers: Iterable[RecentOutput], send: Send) -> None:
        self._servers = tuple(servers)
        self._send = send
        self._lines: dict[str, str] = {}
        self._pause: asyncio.TimerHandle | None = None
        for each in self._servers:
            each.follow(partial(self._hear, each.name), partial(self._end, each.name))

    def welcome(self, send: Send) -> None:
        """Report exited servers to a new worker. Earlier output belongs to none of its turns."""
        for each in self._servers:
            if each.exit_status is not None:
                send(ServerExited(each.name, each.exit_status))

    def close(self) -> None:
        """Stop forwarding."""
        if self._pause:
            self._pause.cancel()
        self._send = _ignore

    def _hear(self, server: str, lines: str) -> None:
        before = self._lines.get(server)
        self._lines[server] = _last_lines(lines if before is None else f"{before}\n{lines}")
        if self._pause is None:
            self._tell()

    def _end(self, server: str, status: int) -> None:
        self._send_lines()
        self._send(ServerExited(server, status))

    def _tell(self) -> None:
        self._pause = asyncio.get_running_loop().call_later(_GATHER_S, self._tell) if self._lines else None
        self._send_lines()

    def _send_lines(self) -> None:
        waiting, self._lines = self._lines, {}
        for server, lines in waiting.items():
            self._send(OutputLines(server, lines))


class ForwardedOutput:
    """Server output as a worker knows it from the run's process."""

    def __init__(self, servers: Iterable[RecentOutput]) -> None:
        self._servers = {each.name: each for each in servers}

    def receive(self, message: OutputLines | ServerExited) -> None:
        match message:
            case OutputLines():
                self._servers[message.server].add(message.lines)
            case ServerExited():
                self._servers[message.server].end(message.status)


def _last_lines(text: str) -> str:
    """Return the last complete lines, up to the amount that is stored anyway."""
    if len(text) <= ROOM_BYTES:
        return text
    tail = text[-ROOM_BYTES:]
    _, cut, complete = tail.partition("\n")
    return complete if cut else tail


def _ignore(_: object) -> None:
    """Ignore a message."""


@dataclass(frozen=True, slots=True)
class AnswerRecorded:
    """Worker to run: a model response recorded for one of the worker's conversations, redacted, with its
    line.
    """

    entry: CassetteEntry
    line: bytes


class PageTape(Tape):
    """A worker's tape. Each conversation replays from the page that came with it. The run's process owns the
    files.
    """

    def __init__(
        self,
        mode: CassetteMode,
        redact: Redactor,
        send: Send,
        names: Mapping[str, str],
        on_failure: Callable[[CassetteError], None],
    ) -> None:
        super().__init__(mode, redact, names, on_failure)
        self._send = send
        self._pages: dict[tuple[str, int], tuple[CassettePage, tuple[Entries, ...]]] = {}
        """Conversation → its page, and the page's answers by slot."""

    def begin(self, scope: str, number: int, page: CassettePage) -> None:
        """Start a conversation with its page."""
        layers = ({each.request.slot: each for each in part} for part in (page.salvaged, page.recorded))
        self._pages[scope, number] = page, tuple(layers)

    def end(self, scope: str, number: int) -> None:
        """Remove a conversation that has finished or was given up."""
        self.forget(scope, number)
        self._pages.pop((scope, number), None)

    def layers(self, scope: str, number: int) -> Iterable[Entries]:
        return self._pages[scope, number][1]

    def page(self, scope: str, number: int) -> CassettePage:
        return self._pages[scope, number][0]

    def write(self, entry: CassetteEntry, line: bytes) -> None:
        self._send(AnswerRecorded(entry, line))


class RecordingCollector:
    """Hand out recorded responses to conversations, and write the responses that workers record."""

    def __init__(self, cassettes: Cassettes) -> None:
        self._cassettes = cassettes

    def page(self, scope: str, number: int) -> CassettePage:
        """Return the recorded responses to send along with a conversation."""
        return self._cassettes.page(scope, number)

    def receive(self, message: AnswerRecorded) -> None:
        """Write a recorded response. A file that cannot be written stops the run through the `Cassettes`
        callback.
        """
        with suppress(CassetteError):  # already reported through `on_failure`
            self._cassettes.write(message.entry, message.line)

    def done(self, scope: str, number: int) -> None:
        """Record that the conversation is done."""
        self._cassettes.done(scope, number)

    def forget(self, scope: str, number: int) -> None:
        """Discard the recordings of a conversation that was lost with its worker; the next attempt records
        again.
        """
        self._cassettes.forget(scope, number)


@dataclass(frozen=True, slots=True)
class UsageReported:
    """Worker to run: the usage of a call, live or replayed."""

    key: CallKey
    used: ModelUsage
    replayed: bool = False


class SendingLedger(Ledger):
    """A worker's ledger, which also sends every entry to the run's process."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def add(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)
        self._send(UsageReported(key, used))

    def add_replayed(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)
        self._send(UsageReported(key, used, replayed=True))


class UsageCollector:
    """Add the usage that workers report to the run's ledger.

    A live call counts as soon as it was made, even if its conversation is lost with a worker. Replayed usage
    counts only when the conversation is done: another attempt replays it again, and the run has to end up
    with the usage of the original recording.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._replayed: defaultdict[tuple[str, int], list[UsageReported]] = defaultdict(list)

    def receive(self, message: UsageReported) -> None:
        key = message.key
        if message.replayed:
            self._replayed[key.scope, key.conversation].append(message)
        else:
            self._ledger.add(key, message.used)

    def done(self, scope: str, number: int) -> None:
        """Count the replayed usage of a finished conversation."""
        for each in self._replayed.pop((scope, number), ()):
            self._ledger.add_replayed(each.key, each.used)

    def forget(self, scope: str, number: int) -> None:
        """Discard the replayed usage of a conversation that was lost with its worker."""
        self._replayed.pop((scope, number), None)
