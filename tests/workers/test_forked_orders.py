"""Messages between the run's process and the one that forks its workers, played by the test."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from anyio import to_thread
from project import DEADLINE_S

from agentest.support.errors import UsageError
from agentest.workers.processes import _ENDED, _NEWS, _ORDER, ForkedWorkers


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The sockets of the run and of the forking process."""
    run, nursery = socket.socketpair()
    nursery.settimeout(DEADLINE_S)
    with run, nursery:
        yield run, nursery


def _ignore(message: Any) -> None:
    """Do nothing."""


def test_many_workers_with_slow_forking(
    line: tuple[socket.socket, socket.socket],
) -> None:
    """Orders beyond the socket's capacity wait until some have been read."""
    run, nursery = line
    size, read = 400, []

    def fork_slowly(may_begin: threading.Event) -> None:
        may_begin.wait(DEADLINE_S)
        for _ in range(size):
            order, ends, _, _ = socket.recv_fds(nursery, _ORDER.size, 1)
            read.append(_ORDER.unpack(order)[0])
            socket.close(ends[0])

    async def go() -> None:
        fleet, may_begin, connected = ForkedWorkers(run, size), threading.Event(), []

        async def connect() -> None:
            for _ in range(size):
                connected.append(await fleet.connect(_ignore, lambda: None))

        with anyio.fail_after(DEADLINE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(to_thread.run_sync, fork_slowly, may_begin)
                tasks.start_soon(connect)
                before = -1
                while len(connected) > before:  # until it can order no more
                    before = len(connected)
                    await anyio.wait_all_tasks_blocked()
                may_begin.set()
        for worker in connected:
            await worker.close()
        assert read == [*range(size)]

    anyio.run(go)


def test_a_worker_may_end_while_it_is_ordered(line: tuple[socket.socket, socket.socket]) -> None:
    """An immediate message is received even if the run is busy."""
    run, nursery = line
    told = threading.Event()

    def fork_nobody() -> None:
        _, ends, _, _ = socket.recv_fds(nursery, _ORDER.size, 1)
        nursery.send(_NEWS.pack(_ENDED, 0, 2))
        socket.close(ends[0])
        told.set()

    async def go() -> None:
        loop, gone = asyncio.get_running_loop(), anyio.Event()
        problems: list[Any] = []
        loop.set_exception_handler(lambda _, context: problems.append(context))

        def be_slow() -> None:
            if not told.wait(0.05):
                loop.call_soon(be_slow)

        with anyio.fail_after(DEADLINE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(to_thread.run_sync, fork_nobody)
                await anyio.wait_all_tasks_blocked()
                loop.call_soon(be_slow)
                worker = await ForkedWorkers(run, 1).connect(_ignore, gone.set)
            await gone.wait()
            assert await worker.death() == "ended with status 2"
        await worker.close()
        assert problems == []

    anyio.run(go)


def test_a_missing_forking_process(line: tuple[socket.socket, socket.socket]) -> None:
    """The caller is told that no worker starts, and nothing is left of it."""
    run, nursery = line
    nursery.close()

    async def go() -> None:
        gone: list[bool] = []
        fleet = ForkedWorkers(run, 1)
        for _ in range(2):
            with pytest.raises(UsageError, match="the process that starts workers was killed"):
                await fleet.connect(_ignore, lambda: gone.append(True))
        await anyio.wait_all_tasks_blocked()
        assert gone == []

    anyio.run(go)
