"""Forward server output, recorded model responses and usage between workers and the run's process.

The run's process starts servers, writes cassettes and adds up usage. Workers need the last server output,
because a turn that fails shows it, and the recorded responses of their own conversations. In return they send
the responses they record and the usage they measure.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from agentest.agents.server_process import ROOM_BYTES, RecentOutput
from agentest.domain.results import ModelUsage
from agentest.models.cassette import Cassettes
from agentest.models.port import CallKey, Ledger
from agentest.models.tape import CassetteEntry, CassetteError, CassetteMode, CassettePage, Entries, Tape
from agentest.support.redaction import Redactor
from agentest.workers.channel import Send, remote

COLLECTORS = "collectors"
_GATHER_S = 0.02
"""Minimum time between two messages with server output, so that busy servers send few, large messages."""


SUMMED_S = 0.05
"""How long a worker sums up the usage of live calls by scenario and role."""


def output_part(server: str) -> str:
    """Return the name of the part of a worker that is the server's `RecentOutput`."""
    return f"output of {server}"


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
                _output(each.name, send).end(each.exit_status)

    def close(self) -> None:
        """Stop forwarding."""
        if self._pause:
            self._pause.cancel()
        self._send = lambda _: None

    def _hear(self, server: str, lines: str) -> None:
        before = self._lines.get(server)
        self._lines[server] = _last_lines(lines if before is None else f"{before}\n{lines}")
        if self._pause is None:
            self._tell()

    def _end(self, server: str, status: int) -> None:
        self._send_lines()
        _output(server, self._send).end(status)

    def _tell(self) -> None:
        self._pause = asyncio.get_running_loop().call_later(_GATHER_S, self._tell) if self._lines else None
        self._send_lines()

    def _send_lines(self) -> None:
        waiting, self._lines = self._lines, {}
        for server, lines in waiting.items():
            _output(server, self._send).add(lines)


def _output(server: str, send: Send) -> RecentOutput:
    output: RecentOutput = remote(output_part(server), send)
    return output


def _last_lines(text: str) -> str:
    if len(text) <= ROOM_BYTES:
        return text
    tail = text[-ROOM_BYTES:]
    _, cut, complete = tail.partition("\n")
    return complete if cut else tail


class PageTape(Tape):
    """A worker's tape. Each conversation replays from the page that came with it. The run's process owns the
    files.
    """

    def __init__(
        self,
        mode: CassetteMode | None,
        redact: Redactor,
        send: Send,
        names: Mapping[str, str],
        on_failure: Callable[[CassetteError], None],
        agent_modes: Mapping[str, CassetteMode | None] | None = None,
    ) -> None:
        super().__init__(mode, redact, names, on_failure, agent_modes)
        self._run: RunCollectors = remote(COLLECTORS, send)
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
        self._run.record(entry, line)


class SendingLedger(Ledger):
    """A worker's ledger, which also reports every entry to the run's process.

    Args:
        on_report: reports other sums of live calls.
        exact: True to report each live call at once. Otherwise those of `SUMMED_S` are summed up.
    """

    def __init__(self, send: Send, on_report: Callable[[], None], *, exact: bool = False) -> None:
        super().__init__()
        self._on_report = on_report
        self._run: RunCollectors = remote(COLLECTORS, send)
        self._exact = exact
        self._sums: defaultdict[CallKey, ModelUsage] = defaultdict(ModelUsage)

    def add(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)
        if self._exact:
            self._run.add_usage(key, used)
            return
        if not self._sums:
            asyncio.get_running_loop().call_later(SUMMED_S, self.report)
        self._sums[CallKey(key.role, key.scope)] += used

    def report(self) -> None:
        """Report what was summed up."""
        for key, used in self._sums.items():
            self._run.add_usage(key, used)
        self._sums.clear()
        self._on_report()

    def add_replayed(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)
        self._run.add_replayed(key, used)


class RunCollectors:
    """Collect usage and recordings from workers, and clean up when a conversation ends.

    A live call counts soon after it was made, even if its conversation is lost with a worker. Replayed usage
    counts only when the conversation is done: another attempt replays it again, and the run has to end up
    with the usage of the original recording.

    Args:
        cassettes: recorded model responses; None if nothing is recorded or replayed.
    """

    def __init__(self, ledger: Ledger, cassettes: Cassettes | None = None) -> None:
        self._ledger = ledger
        self.cassettes = cassettes
        self._replayed: defaultdict[tuple[str, int], list[tuple[CallKey, ModelUsage]]] = defaultdict(list)

    def page(self, scope: str, number: int) -> CassettePage | None:
        """Return the recorded responses to send along with a conversation."""
        return self.cassettes.page(scope, number) if self.cassettes else None

    def record(self, entry: CassetteEntry, line: bytes) -> None:
        """Write a model response that a worker recorded, redacted, with its line."""
        assert self.cassettes
        with suppress(CassetteError):  # already reported through `on_failure`, which stops the run
            self.cassettes.write(entry, line)

    def add_usage(self, key: CallKey, used: ModelUsage) -> None:
        """Count the usage of live calls."""
        self._ledger.add(key, used)

    def add_replayed(self, key: CallKey, used: ModelUsage) -> None:
        """Count the usage of a replayed call when its conversation is done."""
        self._replayed[key.scope, key.conversation].append((key, used))

    def done(self, scope: str, number: int) -> None:
        """Record that the conversation is done."""
        for key, used in self._replayed.pop((scope, number), ()):
            self._ledger.add_replayed(key, used)
        if self.cassettes:
            self.cassettes.done(scope, number)

    def forget(self, scope: str, number: int) -> None:
        """Discard the replayed usage and the recordings of a conversation that was lost with its worker."""
        self._replayed.pop((scope, number), None)
        if self.cassettes:
            self.cassettes.forget(scope, number)
