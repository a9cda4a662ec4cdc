"""Run workers in forked processes on this machine.

Scenarios contain functions, which cannot be sent to another process, so workers are forked with everything
that was prepared. A separate process forks them at any time during the run. It is forked itself before the
event loop starts, and runs nothing that a fork could break.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from multiprocessing import connection, parent_process
from multiprocessing.context import ForkProcess
from typing import Any, cast

import anyio

from agentest.runner.prepare import Prepared
from agentest.support.errors import ExitCode, UsageError
from agentest.workers.channel import Link, Send
from agentest.workers.coordinator import WorkerEngine
from agentest.workers.worker import Worker
from agentest.workers.worker_pool import OnDisconnect, OnMessage

_FORK = multiprocessing.get_context("fork")
_PR_SET_PDEATHSIG = 1
_GRACE_S = 10.0  # seconds that workers may take to exit
_NEWS = struct.Struct("=ciq")
"""Report about a worker: a letter, the worker's number, and its process id or exit status."""
_STARTED, _ENDED = b"s", b"e"
_ORDER = struct.Struct("=i")

PARENT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the run's own process handles and passes on to workers as messages."""

MakeWorker = Callable[[int, Send], Worker]  # creates the worker with this number, from 0, in its own process


@contextmanager
def open_forked_engine(prepared: Prepared, size: int, *, earlier: bool) -> Iterator[WorkerEngine]:
    """Create the engine with `size` forked workers, which have all exited afterwards. Enter it before the
    event loop starts.

    Args:
        earlier: True if the conversations come from an earlier run.
    """

    def make(number: int, send: Send) -> Worker:
        return Worker(prepared, send, number=number + 1, earlier=earlier)

    ours, theirs = socket.socketpair()
    process = _FORK.Process(target=_run_nursery, args=(make, theirs, ours), name="agentest workers")
    # Signals to the process group wait until the new process handles them itself.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, PARENT_SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        theirs.close()
    try:
        yield WorkerEngine(ForkedWorkers(ours, size))
    finally:
        ours.close()  # the process exits after all workers have exited
        connection.wait([_exit_descriptor(process)], 2 * _GRACE_S)
        process.kill()
        process.join()


class ForkedWorkers:
    """Workers that are forked by one separate process, the nursery.

    Args:
        nursery: the socket connected to it.
    """

    called = "worker process"

    def __init__(self, nursery: socket.socket, size: int) -> None:
        self._nursery = nursery
        self.size = self.needed = size
        self._workers: list[_ForkedWorker] = []
        self._order_lock = anyio.Lock()
        self._report_bytes = b""

    async def connect(self, on_message: OnMessage, on_disconnect: OnDisconnect) -> _ForkedWorker:
        """Fork another worker and connect to it. Raises UsageError if that fails."""
        if not self._workers:
            self._nursery.setblocking(False)
            asyncio.get_running_loop().add_reader(self._nursery, self._read_reports)
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise _fork_error(error) from None
        with theirs:  # closed here so that the link ends with the worker, not with this process
            worker = _ForkedWorker(await Link.over(ours, on_message, on_disconnect))
            number = len(self._workers)
            self._workers.append(worker)
            try:
                await self._order_worker(number, theirs)
            except BaseException as error:
                await worker.close()
                if isinstance(error, OSError):
                    raise _fork_error(error) from None
                raise
        return worker

    async def _order_worker(self, number: int, end: socket.socket) -> None:
        """Request a worker once the socket accepts the order, because forking takes longer than ordering."""
        async with self._order_lock:
            while True:
                try:
                    socket.send_fds(self._nursery, [_ORDER.pack(number)], [end.fileno()])
                except BlockingIOError:
                    await anyio.wait_writable(self._nursery)
                else:
                    return

    def _read_reports(self) -> None:
        try:
            data = self._nursery.recv(4096)
        except BlockingIOError:
            return
        except ConnectionError:  # the nursery was killed before it read an order
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._nursery)
            for worker in self._workers:
                worker.end(None)
            return
        self._report_bytes += data
        while len(self._report_bytes) >= _NEWS.size:
            what, number, value = _NEWS.unpack_from(self._report_bytes)
            self._report_bytes = self._report_bytes[_NEWS.size :]
            if what == _STARTED:
                self._workers[number].begin(value)
            else:
                self._workers[number].end(value)


class _ForkedWorker:
    def __init__(self, link: Link) -> None:
        self._link = link
        self.send, self.close = link.send, link.close
        self._pid: int | None = None
        self._is_kill_requested = False
        self._status: int | None = None
        self._ended = anyio.Event()

    def kill(self) -> None:
        self._is_kill_requested = True  # its process may not be known yet
        if self._pid is not None and not self._ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def begin(self, pid: int) -> None:
        """Set the id of the worker's process."""
        self._pid = pid
        if self._is_kill_requested:
            self.kill()

    def end(self, status: int | None) -> None:
        """Record the exit status, if known. A negative status is the number of the signal that killed the
        process.
        """
        if not self._ended.is_set():
            self._status = status
            self._ended.set()
            self._link.end_reading()  # a child process of the worker may still have the other end open

    async def death(self) -> str:
        with anyio.move_on_after(_GRACE_S):
            await self._ended.wait()
        if self._status is None:
            return "ended"
        if self._status < 0:
            return f"was killed by {_signal_name(-self._status)}"
        return f"ended with status {self._status}"


def _fork_error(error: OSError) -> UsageError:
    if isinstance(error, ConnectionError):  # the workers have exited with it
        return UsageError("the process that starts workers was killed, by somebody or for lack of memory")
    return UsageError(f"no process can be forked any more: {error}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"


def _run_nursery(make: MakeWorker, line: socket.socket, others: socket.socket) -> None:
    others.close()
    _follow_parent()
    workers: dict[Any, tuple[int, ForkProcess]] = {}
    """Descriptor that becomes readable when a worker exits → the worker's number and process."""
    is_open = True
    while is_open or workers:
        watched = [line, *workers] if is_open else [*workers]
        all_ready = connection.wait(watched, None if is_open else _GRACE_S)
        if not all_ready:  # they were asked to exit and did not
            for _, process in workers.values():
                process.kill()
        for ready in all_ready:
            if ready is line:
                is_open = _fork_worker(make, line, workers)
            else:
                number, process = workers.pop(ready)
                process.join()
                if hasattr(os, "pidfd_open"):
                    os.close(cast("int", ready))
                _send_report(line, _ENDED, number, process.exitcode or 0)


def _exit_descriptor(process: Any) -> int:
    """Return a file descriptor that becomes readable when the process has exited.

    On systems without process file descriptors it is a pipe, which stays open as long as any of its children.
    """
    return os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else process.sentinel


def _send_report(line: socket.socket, what: bytes, number: int, value: int) -> None:
    with suppress(OSError):  # the reader is gone
        line.send(_NEWS.pack(what, number, value))


def _fork_worker(make: MakeWorker, line: socket.socket, workers: dict[Any, tuple[int, ForkProcess]]) -> bool:
    try:
        order, ends, _, _ = socket.recv_fds(line, _ORDER.size, 1)
    except ConnectionError:  # closed before everything that we sent was read
        return False
    if not order:
        return False
    (number,) = _ORDER.unpack(order)
    end = socket.socket(fileno=ends[0])
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, PARENT_SIGNALS)
    try:
        process = _FORK.Process(target=_run_worker, args=(make, number, end, line), name="agentest worker")
        process.start()
    except OSError:  # the system allows no more processes; the closed link tells the run
        _send_report(line, _ENDED, number, ExitCode.ERRORED)
        return True
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        end.close()
    workers[_exit_descriptor(process)] = number, process
    _send_report(line, _STARTED, number, process.pid or 0)
    return True


def _run_worker(make: MakeWorker, number: int, end: socket.socket, line: socket.socket) -> None:
    line.close()  # left open, it would hide that the run has ended
    _follow_parent()
    threading.Thread(target=_watch_parent, name="agentest parent", daemon=True).start()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Lines of several processes must not mix, as parts of lines do with PYTHONUNBUFFERED.
            stream.reconfigure(line_buffering=True, write_through=False)
    gc.freeze()  # collecting objects from before the fork would only copy their memory
    anyio.run(_work, make, number, end)


async def _work(make: MakeWorker, number: int, end: socket.socket) -> None:
    worker = make(number, lambda message: link.send(message))
    link = await Link.over(end, worker.receive, lambda: os._exit(ExitCode.ERRORED))
    await worker.run()
    await link.close()


def _follow_parent() -> None:
    # Use a handler, because programs that we start would inherit an ignored signal.
    for number in PARENT_SIGNALS:
        signal.signal(number, _ignore_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENT_SIGNALS)
    # The system kills this process when its parent exits: no thread runs while C code holds the lock.
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = parent_process()
    if parent and os.getppid() != parent.pid:  # it exited before the request
        os._exit(ExitCode.ERRORED)


def _ignore_signal(number: int, frame: object) -> None:
    """Ignore a signal to the process group, such as Ctrl-C: the parent decides what to do."""


def _watch_parent() -> None:
    parent = parent_process()
    if parent:
        parent.join()
        os._exit(ExitCode.ERRORED)
