"""One process of `--workers`: takes unit after unit of the run, and sends what happens to the process that
started it. It ends with the run, or with that process."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
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
from agentest.run.plan import Unit
from agentest.run.prepare import Prepared
from agentest.run.runner import Ports, run_units
from agentest.run.session import connected, open_ports, settings
from agentest.run.stop import Stop
from agentest.scale.links import Link, packed
from agentest.scale.messages import (
    Close,
    Done,
    Failed,
    Given,
    Held,
    Idle,
    Note,
    Ready,
    Refused,
    StopNow,
    Take,
)
from agentest.store.conversations import conversation_json
from agentest.support.json_text import encoded

_PR_SET_PDEATHSIG = 1


HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What whoever started us hears, and tells us of."""


def work(prepared: Prepared, spending: Spending, end: socket, inherited: Sequence[socket]) -> None:
    """The life of a worker, from the fork on.

    Args:
        prepared: the run, with this worker's part of everything that is limited.
        end: our end of the socket pair.
        inherited: ends that are not ours; open, they would hide that others are gone.
    """
    for number in HEARD:  # a handler, as what is ignored would be ignored by the programs that we start, too
        signal.signal(number, _leave_to_parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    for other in inherited:
        other.close()
    _die_with_parent()
    threading.Thread(target=_end_with_parent, name="agentest parent", daemon=True).start()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, TextIOWrapper
        ):  # lines of several processes are told apart only if they are whole
            stream.reconfigure(line_buffering=True)
    gc.freeze()  # looking through what was there before the fork would only copy it
    anyio.run(_run, prepared, spending, end)


async def _run(prepared: Prepared, spending: Spending, end: socket) -> None:
    await _Worker(prepared, spending).run(end)


def _leave_to_parent(number: int, frame: object) -> None:
    """A signal to the whole group, like Ctrl-C: who started us says what becomes of it."""


def _die_with_parent() -> None:
    """Have the system kill us when who started us is gone: no thread of ours runs while C code has the lock
    of the interpreter."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = parent_process()
    if parent and os.getppid() != parent.pid:  # gone before we asked
        os._exit(ExitCode.ERRORED)


def _end_with_parent() -> None:
    """Whatever is going on here, even if it blocks the event loop."""
    parent = parent_process()
    if parent:
        parent.join()
        os._exit(ExitCode.ERRORED)


class _Worker:
    def __init__(self, prepared: Prepared, spending: Spending) -> None:
        self._prepared = prepared
        self._spending = spending
        self._units = {unit.scope: unit for unit in prepared.plan.units}
        self._given: asyncio.Queue[Unit | None] = asyncio.Queue()
        self._closing = anyio.Event()
        self._stop = Stop(lambda s: self._link.send(StopNow(str(s.reason), s.status, s.interrupted)))
        self._link: Link

    async def run(self, end: socket) -> None:
        self._link = await Link.over(end, self._hear, lambda: os._exit(ExitCode.ERRORED))
        try:
            await self._take_part()
            self._link.send(Done())
        except UsageError as error:
            self._link.send(Refused(str(error)))
        except Exception as error:  # noqa: BLE001 - the process's boundary: the run must hear of it
            self._link.send(Failed(_told(error)))
        await self._link.close()

    async def _take_part(self) -> None:
        async with AsyncExitStack() as stack:
            ports = await self._open(stack)
            self._link.send(Ready())
            how = replace(settings(self._prepared), keep_conversations=False)
            await run_units(self, self._prepared.plan.custom, how, ports, self._send, self._stop)
            self._link.send(Idle())
            await self._closing.wait()

    async def _open(self, stack: AsyncExitStack) -> Ports:
        client = await stack.enter_async_context(open_client(AddressGuard()))
        agents = connected(self._prepared, client)
        return await open_ports(
            self._prepared,
            agents,
            stack,
            self._stop,
            self._note,
            self._send,
            spending=self._spending,
            tape_is_checked=True,
        )

    async def take(self) -> Unit | None:
        """The next unit of the run, when this worker's events have been heard: more would only pile up."""
        await self._link.drained()
        self._link.send(Take())
        return await self._given.get()

    def _hear(self, message: Given | StopNow | Close) -> None:
        match message:
            case Given():
                self._given.put_nowait(self._units[message.scope] if message.scope else None)
            case StopNow():
                self._stop(message.reason, message.status, interrupted=message.interrupted)
            case Close():
                self._closing.set()

    def _note(self, text: str) -> None:
        self._link.send(Note(text))

    def _send(self, event: Event) -> None:
        match event:
            case ConversationFinished():
                self._link.send(_held(event))
            case ScenarioFinished():  # its conversations have been sent before
                self._link.send(ScenarioFinished(replace(event.result, conversations=())))
            case _:
                self._link.send(event)


def _held(event: ConversationFinished) -> Held:
    """The conversation as the reporters of the run need it: what each of them costs is paid here.

    Raises ValueError where the user's values cannot be shown as text.
    """
    assert not isinstance(event.result, bytes)  # only the run's own process makes them so
    try:
        json = encoded(conversation_json(event.result, event.case, event.thresholds))
        return Held(event.name, event.agent, event.number, packed(event.result), json)
    except Exception as error:
        which = event.result.conversation.conversation_id
        raise ValueError(f"conversation {which} cannot be written: {_told(error)}") from error


def _told(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
