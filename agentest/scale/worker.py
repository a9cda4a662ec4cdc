"""One process of `--workers`: runs unit after unit, and sends its events to the process that started it.

It ends with the run, or with that process."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from io import TextIOWrapper
from multiprocessing import parent_process
from socket import socket

import anyio

from agentest.errors import ExitCode, UsageError
from agentest.events import ConversationFinished, Event, ScenarioFinished
from agentest.http.client import open_client
from agentest.http.guard import AddressGuard
from agentest.llm.budget import Spending
from agentest.run.agents import connected_agents
from agentest.run.connections import Connections, open_models, open_recordings
from agentest.run.plan import Unit
from agentest.run.prepare import Prepared
from agentest.run.runner import run_units
from agentest.run.session import Session
from agentest.run.settings import settings_of
from agentest.run.sources import live_conversations
from agentest.run.stop import Stop
from agentest.scale.hosts import HostedConversations
from agentest.scale.links import Link, packed
from agentest.scale.messages import (
    Begin,
    CannotStart,
    Close,
    Closed,
    ConversationDone,
    Failed,
    Idle,
    Note,
    Question,
    Ready,
    Secrets,
    SpansTold,
    StopRun,
    UnitAssignment,
    UnitRequest,
    Wait,
    Withdrawn,
)
from agentest.store.conversations import conversation_json
from agentest.support.json_text import encoded

_PR_SET_PDEATHSIG = 1

PARENT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the parent process handles: it sends a StopRun."""


def work(prepared: Prepared, spending: Spending, end: socket, inherited: Sequence[socket]) -> None:
    """The life of a worker, from the fork on.

    Args:
        prepared: the run, with this worker's part of everything that is limited.
        end: our end of the socket pair.
        inherited: ends that are not ours; open, they would hide that other processes have ended.
    """
    for (
        number
    ) in PARENT_SIGNALS:  # a handler, as what is ignored would be ignored by the programs that we start, too
        signal.signal(number, _leave_to_parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENT_SIGNALS)
    for other in inherited:
        other.close()
    _die_with_parent()
    threading.Thread(target=_end_with_parent, name="agentest parent", daemon=True).start()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # lines of several processes must not mix
            stream.reconfigure(line_buffering=True)
    gc.freeze()  # looking through what was there before the fork would only copy it
    anyio.run(_run, prepared, spending, end)


async def _run(prepared: Prepared, spending: Spending, end: socket) -> None:
    await _Worker(prepared, spending).run(end)


def _leave_to_parent(number: int, frame: object) -> None:
    """Ignore a signal to the whole group, like Ctrl-C: the parent decides what to do."""


def _die_with_parent() -> None:
    """Have the system kill us when the parent has ended: no thread of ours runs while C code has the lock of
    the interpreter."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = parent_process()
    if parent and os.getppid() != parent.pid:  # it ended before we asked
        os._exit(ExitCode.ERRORED)


def _end_with_parent() -> None:
    """End when the parent ends, even while something blocks the event loop."""
    parent = parent_process()
    if parent:
        parent.join()
        os._exit(ExitCode.ERRORED)


class _Worker:
    def __init__(self, prepared: Prepared, spending: Spending) -> None:
        self._prepared = prepared
        self._spending = spending
        self._units = {unit.scope: unit for unit in prepared.plan.units}
        self._assigned: asyncio.Queue[Unit | None] = asyncio.Queue()
        self._closing = anyio.Event()
        self._stop = Stop(lambda s: self._link.send(StopRun(str(s.reason), s.status, s.interrupted)))
        self._link: Link
        self._hosted = HostedConversations(lambda message: self._link.send(message))

    async def run(self, end: socket) -> None:
        self._link = await Link.over(end, self._receive, lambda: os._exit(ExitCode.ERRORED))
        try:
            await self._run_units()
            self._link.send(Closed())
        except UsageError as error:
            self._link.send(CannotStart(str(error)))
        except Exception as error:  # noqa: BLE001 - the process's boundary: the run must learn of it
            self._link.send(Failed(_description(error)))
        await self._link.close()

    async def _run_units(self) -> None:
        session = self._session()
        async with AsyncExitStack() as stack:
            connections = await self._open(session, stack)
            self._link.send(Ready())
            custom = self._prepared.plan.custom
            await stack.enter_async_context(self._hosted.answering())
            await run_units(self, custom, session.settings, connections, session.emit, session.stop)
            self._link.send(Idle())
            await self._closing.wait()

    def _session(self) -> Session:
        options, config = self._prepared.request.options, self._prepared.loaded.config
        return Session(
            prepared=self._prepared,
            settings=settings_of(config, options, keep_conversations=False),
            emit=self._send_event,
            stop=self._stop,
            on_note=lambda text: self._link.send(Note(self._prepared.loaded.redact(text))),
        )

    async def _open(self, session: Session, stack: AsyncExitStack) -> Connections:
        """Connect to agents and models; the parent has started the servers and checked the recordings."""
        client = await stack.enter_async_context(open_client(AddressGuard()))
        agents = await connected_agents(self._prepared, client, stack, session.on_note, self._send_secrets)
        models, ledger = await open_models(session, open_recordings(session), stack, self._spending)
        return Connections(
            source=live_conversations(self._prepared, agents, models, registry=self._hosted),
            models=models,
            ledger=ledger,
            redact=self._prepared.loaded.redact,
        )

    async def next(self) -> Unit | None:
        """The next unit of the run, when the parent has read most events: more would only pile up."""
        await self._link.drained()
        self._link.send(UnitRequest())
        return await self._assigned.get()

    def _receive(
        self, message: UnitAssignment | StopRun | Close | Wait | Begin | Question | Withdrawn | SpansTold
    ) -> None:
        match message:
            case Wait() | Begin() | Question() | Withdrawn() | SpansTold():
                self._hosted.receive(message)
            case UnitAssignment():
                self._assigned.put_nowait(self._units[message.scope] if message.scope else None)
            case StopRun():
                self._stop(message.reason, message.status, interrupted=message.interrupted)
            case Close():
                self._closing.set()

    def _send_secrets(self, texts: Iterable[str]) -> None:
        self._link.send(Secrets(tuple(texts)))

    def _send_event(self, event: Event) -> None:
        match event:
            case ConversationFinished():
                self._link.send(_conversation_done(event))
            case ScenarioFinished():  # its conversations have been sent before
                self._link.send(ScenarioFinished(replace(event.result, conversations=())))
            case _:
                self._link.send(event)


def _conversation_done(event: ConversationFinished) -> ConversationDone:
    """The conversation as the run's reporters need it, encoded in this process.

    Raises ValueError where the user's values cannot be shown as text.
    """
    assert not isinstance(event.result, bytes)  # only the run's own process makes them so
    try:
        return ConversationDone(
            name=event.name,
            agent=event.agent,
            number=event.number,
            result=packed(event.result),
            json=encoded(conversation_json(event.result, event.case, event.thresholds)),
            failed=event.failed,
            used=event.used,
        )
    except Exception as error:
        which = event.result.conversation.conversation_id
        raise ValueError(f"conversation {which} cannot be written: {_description(error)}") from error


def _description(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
