"""The channel between the run's process and one worker on a Ray cluster.

Only the run's process can make calls. It delivers its messages with one call and polls for the worker's
messages with another, which returns when there are some. Sending never blocks on either end.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio

from agentest.support.lazy_dataclasses import dataclass
from agentest.workers.channel import BatchedSender

_T = TypeVar("_T")

ANSWERED_WITHIN_S = 20.0  # seconds that a worker without new messages may delay the response to a poll


@dataclass(frozen=True, slots=True)
class ReachLimits:
    """Time limits for a worker that cannot be reached."""

    pause_s: float = 0.2  # seconds before the next call
    out_of_reach_s: float = 60.0
    """Seconds after which the worker is given up, whether calls fail or never return."""


_LIMITS = ReachLimits()


class WorkerUnreachable(Exception):
    """A call failed and may be repeated."""


class WorkerEnded(Exception):
    """The worker has ended. The text says how, as words that follow "the worker"."""


class RemoteWorker(Protocol):
    """The worker's end as remote calls. Methods raise WorkerUnreachable and WorkerEnded."""

    async def receive(self, batch: MessageBatch) -> None:
        """Deliver messages."""

    async def take(self, acknowledged: int) -> MessageBatch | None:
        """Acknowledge all messages before this number and return those that follow, or None for now."""

    def kill(self) -> None:
        """Kill the worker immediately."""


class RunEnd(BatchedSender):
    """The end of the channel in the run's process.

    Args:
        on_message: receives every message from the worker.
        on_disconnect: called once when the worker has died, or has closed its end and all its messages have
            arrived; not called after `close`.
        begun: set when the worker has started or cannot start; no call is made before. None if it has
            started.
    """

    def __init__(
        self,
        callee: RemoteWorker,
        on_message: Callable[[Any], None],
        on_disconnect: Callable[[], None],
        patience: ReachLimits = _LIMITS,
        begun: asyncio.Event | None = None,
    ) -> None:
        super().__init__()
        self._callee = callee
        self._patience = patience
        self._begun = begun
        self._on_message = on_message
        self._on_disconnect = on_disconnect
        self._outbox = Outbox()
        self._inbox = Inbox()
        self._something = asyncio.Event()
        self._over = anyio.Event()
        self._closing = False
        self._death = ""
        self._tasks = [asyncio.create_task(self._run(work)) for work in (self._hand_over, self._ask)]

    def _write(self, body: bytes) -> None:
        if not self._over.is_set():
            self._outbox.add(body)
            self._something.set()

    async def close(self) -> None:
        """Close this end after the worker has received everything, and end the worker."""
        self._closing = True
        self._flush()
        self._outbox.close()
        self._something.set()
        try:
            await asyncio.wait(self._tasks[:1])
        finally:
            self._end()
            self._callee.kill()

    def kill(self) -> None:
        """Kill the worker immediately; it disconnects afterwards."""
        self._callee.kill()
        self._disconnect("was ended")

    async def death(self) -> str:
        """Return how the worker ended, as words that follow "the worker"."""
        await self._over.wait()
        return self._death

    async def _run(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except WorkerEnded as error:
            self._disconnect(str(error))
        except Exception as error:  # noqa: BLE001 - the task is not awaited, so the run has to be notified here
            self._callee.kill()
            self._disconnect(f"sent what cannot be handled: {type(error).__name__}: {error}")

    async def _hand_over(self) -> None:
        while not self._outbox.done:
            self._something.clear()
            batch = self._outbox.batch()
            if batch is None:
                await self._something.wait()
            elif batch.last:
                return
            else:
                await self._until_reached(partial(self._callee.receive, batch))
                self._outbox.acknowledge(batch.end)

    async def _ask(self) -> None:
        while True:
            batch = await self._until_reached(partial(self._callee.take, self._inbox.next))
            if batch is None:
                continue
            if batch.last:
                self._disconnect("closed its end")
                return
            for body in self._inbox.accept(batch):
                for message in pickle.loads(body):
                    self._on_message(message)

    async def _until_reached(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a call while the worker is out of reach, and return its result. Raises WorkerEnded."""
        if self._begun:
            await self._begun.wait()
        clock, within_s = asyncio.get_running_loop().time, self._patience.out_of_reach_s
        deadline = clock() + within_s
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await call()
            except TimeoutError:
                problem = "a call was not answered"
            except WorkerUnreachable as error:
                problem = str(error)
            if clock() >= deadline:
                self._callee.kill()  # it may still be running
                raise WorkerEnded(f"was out of reach for {within_s:.0f} s: {problem}")
            await anyio.sleep(self._patience.pause_s)

    def _disconnect(self, how: str) -> None:
        if self._over.is_set():
            return
        self._death = how
        self._end()
        if not self._closing:
            self._on_disconnect()

    def _end(self) -> None:
        self._over.set()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()


class WorkerEnd(BatchedSender):
    """The worker's end. One thread runs its event loop; calls from the run's process arrive in others.

    Args:
        on_broken: receives the error if a message could not be handled.
    """

    def __init__(self, on_broken: Callable[[Exception], None]) -> None:
        super().__init__()
        self._early: list[Any] = []
        self._on_message: Callable[[Any], None] = self._early.append
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        """Context of the event loop's thread. In a call's own context, anyio would not find the event loop.
        """
        self._outbox = Outbox()
        self._inbox = Inbox()
        self._changed = threading.Condition()
        self._asked = 0
        self._read = asyncio.Event()

    # In the event loop:

    def listen(self, on_message: Callable[[Any], None]) -> None:
        """Deliver every message to `on_message` in the event loop, starting with those that have arrived."""
        for message in self._early:
            on_message(message)
        self._on_message = on_message

    def _write(self, body: bytes) -> None:
        with self._changed:
            self._outbox.add(body)
            self._changed.notify_all()

    async def close(self) -> None:
        """Close this end after the other end has read everything."""
        self._flush()
        with self._changed:
            self._outbox.close()
            self._changed.notify_all()
        self._look()
        await self._read.wait()

    def _look(self) -> None:
        with self._changed:
            if self._outbox.done:
                self._read.set()

    def _deliver(self, body: bytes) -> None:
        try:
            for message in pickle.loads(body):
                self._on_message(message)
        except Exception as error:  # noqa: BLE001 - an error in a callback would go unnoticed
            self._on_broken(error)

    # In threads of calls:

    def receive(self, batch: MessageBatch) -> None:
        """Accept messages from the run's process."""
        with self._changed:
            for body in self._inbox.accept(batch):  # inside the lock, so that two calls keep their order
                self._in_loop(partial(self._deliver, body))

    def take(self, acknowledged: int, wait_s: float = ANSWERED_WITHIN_S) -> MessageBatch | None:
        """Return the messages from this number on once there are any. All before it count as received.

        Returns None after `wait_s` seconds, or when a later call takes the place of this one.
        """
        with self._changed:
            self._asked += 1
            mine = self._asked
            self._outbox.acknowledge(acknowledged)
            self._in_loop(self._look)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._asked != mine or self._outbox.batch() is not None, wait_s)
            return self._outbox.batch() if self._asked == mine else None

    def _in_loop(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended and nobody listens
            self._loop.call_soon_threadsafe(callback, context=self._context)


_MAX_BATCH_BYTES = 8_000_000
"""Maximum size of a batch, unless a single message is larger. A batch is in memory several times."""


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages that are sent together."""

    number: int  # number of the first message
    bodies: tuple[bytes, ...]
    last: bool = False  # True if nothing follows because the sender has closed its end

    @property
    def end(self) -> int:
        """Number of the message that follows."""
        return self.number + len(self.bodies)


class Outbox:
    """Messages that the other end may not have received yet. Not thread-safe."""

    def __init__(self) -> None:
        self._bodies: deque[bytes] = deque()
        self._number = 0  # number of the first message
        self._closing = False

    def add(self, body: bytes) -> None:
        """Append a message."""
        self._bodies.append(body)

    def close(self) -> None:
        """Accept no more messages."""
        self._closing = True

    @property
    def done(self) -> bool:
        """True if the outbox is closed and the other end has received everything."""
        return self._closing and not self._bodies

    def acknowledge(self, number: int) -> None:
        """Record that the other end has all messages before this number."""
        while self._number < number:
            self._bodies.popleft()
            self._number += 1

    def batch(self) -> MessageBatch | None:
        """Return the messages to send, again until they are acknowledged, or None."""
        size, bodies = 0, list[bytes]()
        for body in self._bodies:
            size += len(body)
            if bodies and size > _MAX_BATCH_BYTES:
                break
            bodies.append(body)
        return MessageBatch(self._number, tuple(bodies), self.done) if bodies or self.done else None


class Inbox:
    """Counts the messages that one end has received."""

    def __init__(self) -> None:
        self.next = 0  # number of the next message

    def accept(self, batch: MessageBatch) -> tuple[bytes, ...]:
        """Return the messages of a batch that were not received before."""
        if batch.number > self.next:
            raise ValueError(f"message {batch.number} has come before message {self.next}")
        new = batch.bodies[self.next - batch.number :]
        self.next += len(new)
        return new
