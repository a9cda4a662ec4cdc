"""Time limits that exclude the time in which this program itself was delayed.

While an event loop does not run (the process was stopped, code blocks it, threads keep the interpreter busy),
it neither reads responses nor sends requests, so a peer is not to blame for the delay. A heartbeat measures
these delays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

_BEAT_S = 0.05
_TOLERANCE_S = 0.02
"""Lateness of a heartbeat that does not count as a delay, because timers are inexact."""
_RECANCEL_S = 1.0
"""Seconds after which code that ignored its cancellation is canceled again."""
_RECENT_S = 1.0
"""Seconds after a delay in which failures may still result from it, because of unread buffers."""


class _Heartbeat:
    """Measures how long an event loop was delayed. It beats only while it has users.

    It has no reference to the loop, which would keep the loop alive. Callers run in it.
    """

    def __init__(self) -> None:
        self._users = 0
        self._beating = False
        self._next = 0.0
        self._total = 0.0
        self._ended = self._length = 0.0
        """End and length of the last delay."""

    def held_up(self, now: float) -> float:
        """Return the total delay in seconds, including one that has just ended."""
        return self._total + self._late(now)

    def held_up_before(self, now: float) -> float:
        """Return the total delay without one that has just ended."""
        return self._total - (self._length if now - self._ended < _RECENT_S else 0.0)

    def enter(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._beating:
            self._arm(loop)
        elif not self._users:  # the loop may not have run since the last user left
            self._next = loop.time() + _BEAT_S
        self._users += 1

    def leave(self) -> None:
        self._users -= 1

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beating, self._next = True, loop.time() + _BEAT_S
        loop.call_at(self._next, self._beat)

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if late := self._late(now):
            self._total += late
            self._ended, self._length = now, late
        self._beating = False
        if self._users:
            self._arm(loop)

    def _late(self, now: float) -> float:
        late = now - self._next
        return late if self._beating and late > _TOLERANCE_S else 0.0


_pulses: WeakKeyDictionary[asyncio.AbstractEventLoop, _Heartbeat] = WeakKeyDictionary()


class Clock:
    """Elapsed time inside of a `with` block, without delays of this program."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heartbeat = _pulses.get(self._loop) or _pulses.setdefault(self._loop, _Heartbeat())
        self._took: tuple[float, float] | None = None

    def __enter__(self) -> Self:
        now = self._began = self._loop.time()
        self._heartbeat.enter(self._loop)
        self._before, self._recently = self._heartbeat.held_up(now), self._heartbeat.held_up_before(now)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._took = self.elapsed, self.elapsed_in_all
        self._heartbeat.leave()

    @property
    def elapsed(self) -> float:
        """Return seconds until now or the end of the block, without delays."""
        if self._took is not None:
            return self._took[0]
        now = self._loop.time()
        return max(0.0, now - self._began - (self._heartbeat.held_up(now) - self._before))

    @property
    def elapsed_in_all(self) -> float:
        """Return the same with delays."""
        return self._loop.time() - self._began if self._took is None else self._took[1]

    @property
    def delay(self) -> float:
        """Return seconds of delay that may have caused a failure now, including a delay just before the
        block.
        """
        return self._heartbeat.held_up(self._loop.time()) - self._recently


class TimeLimit(Clock):
    """`with TimeLimit(seconds):` raises TimeoutError when the block takes longer.

    The limit is checked again when the timer fires, because after a delay all timers fire at once.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._cancels = 0
        self._paused_at: float | None = None
        self._uncounted = 0.0

    @property
    def elapsed(self) -> float:
        """Return seconds until now, without delays and pauses."""
        if self._took is not None:  # the value stored at the end excludes pauses
            return self._took[0]
        until = super().elapsed if self._paused_at is None else self._paused_at
        return until - self._uncounted

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside of the block. Pauses do not overlap."""
        began = self._paused_at = super().elapsed
        try:
            yield
        finally:
            self._uncounted += super().elapsed - began
            self._paused_at = None

    @property
    def expired(self) -> bool:
        """True if the limit was reached. The block may also raise a TimeoutError of its own."""
        return self._cancels > 0

    @property
    def ends_at(self) -> float:
        """End of the limit on the event loop's clock if there are no further delays."""
        return self._loop.time() + self._seconds - self.elapsed

    def __enter__(self) -> Self:
        super().__enter__()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit needs a task to cancel")
        self._task, self._cancelling = task, task.cancelling()
        self._timer = self._loop.call_at(self._began + self._seconds, self._on_time)
        return self

    def _on_time(self) -> None:
        left = self._seconds - self.elapsed
        if left <= 0:
            self._cancels += 1
            self._task.cancel()
            left = _RECANCEL_S
        self._timer = self._loop.call_later(left, self._on_time)

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        super().__exit__()
        self._timer.cancel()
        left = [self._task.uncancel() for _ in range(self._cancels)]
        # Another cancellation takes precedence over this one.
        if left and left[-1] <= self._cancelling and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error
