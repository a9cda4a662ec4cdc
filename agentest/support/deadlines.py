"""Time limits that exclude the time in which this program itself was delayed.

While an event loop does not run (the process was stopped, code blocks it, threads keep the interpreter busy),
it neither reads responses nor sends requests, so a peer is not to blame for the delay. A heartbeat measures
these delays, and watches all limits, because a timer for each would cost more than the heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary, ref

FUNCTION_S = 60.0  # seconds that a user function may take: a check, a matcher, one step of an async function
_BEAT_S = 0.05
_TOLERANCE_S = 0.02  # lateness of a heartbeat that does not count as a delay, because timers are inexact
_INSTANT_S = 1e-6
_RECANCEL_S = 1.0  # seconds after which code that ignored its cancellation is canceled again
_RECENT_S = 1.0  # seconds after a delay in which failures may still result from it, because of unread buffers


class _Heartbeat:
    """Measures how long an event loop was delayed, and ends its time limits.

    It beats only while there are limits. It has no strong reference to the loop, which would keep the loop
    alive. Callers run in it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = ref(loop)
        self.limits: set[TimeLimit] = set()
        self._check_at = inf  # no limit ends before this time
        self._beating = False
        self._next = 0.0
        self._total = 0.0
        self._ended = self._length = 0.0

    def held_up(self, now: float) -> float:
        """Return the total delay in seconds, including one that has just ended."""
        late = now - self._next
        return self._total + late if self._beating and late > _TOLERANCE_S else self._total

    def enter(
        self, limit: TimeLimit, loop: asyncio.AbstractEventLoop, now: float, ends_at: float
    ) -> tuple[float, float]:
        """Watch a limit. Returns the total delay, and the same without a delay that has just ended."""
        total = before_last = self._total
        if not self._beating:
            self._arm(loop, now)
        elif not self.limits:  # the loop may not have run since the last limit ended
            self._next = now + _BEAT_S
        elif now - self._next > _TOLERANCE_S:
            total += now - self._next
        self.limits.add(limit)
        if ends_at < self._check_at:
            self._check_by(ends_at, loop)
        if now - self._ended < _RECENT_S:
            before_last -= self._length
        return total, before_last

    def _check_by(self, time: float, loop: asyncio.AbstractEventLoop) -> None:
        self._check_at = time
        if time < self._next:
            loop.call_at(time, self._check)

    def _arm(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        self._beating, self._next = True, min(now + _BEAT_S, self._check_at)
        loop.call_at(self._next, self._beat)

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = self.held_up(now) - self._total
        if late:
            self._total += late
            self._ended, self._length = now, late
        self._beating = False
        if now >= self._check_at:
            self._check()
        if self.limits:
            self._arm(loop, now)

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._check_by(min([limit.check(now) for limit in self.limits], default=inf), loop)


_heartbeats: WeakKeyDictionary[asyncio.AbstractEventLoop, _Heartbeat] = WeakKeyDictionary()
_last_used: _Heartbeat | None = None  # a program has one loop that matters, and threads may have others


def _heartbeat_of(loop: asyncio.AbstractEventLoop) -> _Heartbeat:
    global _last_used
    _last_used = _heartbeats.get(loop) or _heartbeats.setdefault(loop, _Heartbeat(loop))
    return _last_used


class TimeLimit:
    """`with TimeLimit(seconds):` raises TimeoutError when the block takes longer.

    Delays of this program and pauses do not count.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._cancels = 0
        self._ended: tuple[float, float] | None = None  # end of the block, and the loop's total delay then
        self._paused_at: float | None = None
        self._uncounted = 0.0

    def __enter__(self) -> Self:
        self._loop = loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("a time limit needs a task to cancel")
        self._task, self._cancelling = task, task.cancelling()
        heartbeat = _last_used
        if heartbeat is None or heartbeat.loop() is not loop:
            heartbeat = _heartbeat_of(loop)
        self._heartbeat = heartbeat
        now = self._began = loop.time()
        self._before, self._recently = heartbeat.enter(self, loop, now, now + self.seconds)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        now = self._loop.time()
        self._ended = now, self._heartbeat.held_up(now)
        self._heartbeat.limits.remove(self)
        if self._cancels:
            left = [self._task.uncancel() for _ in range(self._cancels)]
            # Another cancellation takes precedence over this one.
            if left[-1] <= self._cancelling and isinstance(error, asyncio.CancelledError):
                raise TimeoutError from error

    def check(self, now: float) -> float:
        """Cancel the block if its time is up, again if the code ignored that. Return when to check again."""
        left = self.seconds - self._elapsed_at(now)
        if left < _INSTANT_S:
            self._cancels += 1
            self._task.cancel()
            left = _RECANCEL_S
        return now + left

    @property
    def elapsed(self) -> float:
        """Return seconds until now or the end of the block, without delays and pauses."""
        return self._elapsed_at(self._loop.time())

    def _elapsed_at(self, now: float) -> float:
        if self._paused_at is not None:
            return self._paused_at
        now, held_up = self._ended or (now, self._heartbeat.held_up(now))
        return max(0.0, now - self._began - (held_up - self._before)) - self._uncounted

    @property
    def elapsed_in_all(self) -> float:
        """Return the same with delays and pauses."""
        return (self._ended[0] if self._ended else self._loop.time()) - self._began

    @property
    def delay(self) -> float:
        """Seconds of delay, also just before the block, that may have caused a failure now."""
        return self._heartbeat.held_up(self._loop.time()) - self._recently

    def paused(self) -> Pause:
        """Exclude the time inside of the block. Pauses do not overlap."""
        return Pause(self)

    def counts_for(self, task: asyncio.Task[object] | None) -> bool:
        """Return True if the limit is one of this task and not paused."""
        return self._task is task and self._paused_at is None

    def pause(self) -> None:
        """Stop counting the time."""
        self._paused_at = self.elapsed

    def resume(self) -> None:
        """Count the time again."""
        before, self._paused_at = self._paused_at or 0.0, None
        self._uncounted += self.elapsed - before

    @property
    def expired(self) -> bool:
        """True if the limit was reached. The block may also raise a TimeoutError of its own."""
        return self._cancels > 0

    @property
    def ends_at(self) -> float:
        """When the limit ends, in seconds of the event loop's clock. It moves while the limit is paused."""
        return self._loop.time() + self.seconds - self.elapsed


@contextmanager
def uncounted() -> Iterator[None]:
    """Exclude the time inside of the block from all limits of this task that are not paused already."""
    task = asyncio.current_task()
    heartbeat = _heartbeats.get(asyncio.get_running_loop())
    limits = [limit for limit in heartbeat.limits if limit.counts_for(task)] if heartbeat else []
    for limit in limits:
        limit.pause()
    try:
        yield
    finally:
        for limit in limits:
            limit.resume()


class Pause:
    """A block whose time a limit excludes. A generator would cost more than a request may."""

    __slots__ = ("_limit",)

    def __init__(self, limit: TimeLimit) -> None:
        self._limit = limit

    def __enter__(self) -> None:
        self._limit.pause()

    def __exit__(self, *_: object) -> None:
        self._limit.resume()
