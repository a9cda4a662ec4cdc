"""Call user functions in threads, so that functions that block or hang delay nothing else.

A function gets a thread of its own until it has proved fast. From then on its calls go to a queue, which one
thread works through, so that one wake-up of the thread and one of the event loop serve many calls. If a
queued call takes long, it keeps that thread, and the calls behind it get threads of their own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

_THREAD_NAME = "agentest function"
_MAX_IDLE = 32
_FAST_S = 0.001
_CHECK_INTERVAL_S = 0.01


Work = Callable[[], None]

_idle: list[SimpleQueue[Work]] = []
"""Queues of threads that wait for a function. A thread whose function hangs never returns here."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # threads do not survive a fork


def call_in_thread(work: Work) -> None:
    """Run `work` in a free thread and return at once. It must not raise."""
    try:
        queue = _idle.pop()
    except IndexError:
        queue = SimpleQueue()
        # A function that hangs in a daemon thread does not keep the program from exiting.
        Thread(target=_work_through, args=(queue,), name=_THREAD_NAME, daemon=True).start()
    queue.put(work)


def _work_through(queue: SimpleQueue[Work]) -> None:
    while True:
        queue.get()()
        if len(_idle) >= _MAX_IDLE:
            return
        _idle.append(queue)


def in_function_thread() -> bool:
    """Return True in a thread that calls functions, whose context variables are those of the caller."""
    return threading.current_thread().name == _THREAD_NAME


class _FunctionCall:
    __slots__ = ("_call", "_context", "_error", "_result", "done", "took")

    def __init__(self, call: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        self._call = call
        self._context = copy_context()
        self._result: Any = None
        self._error: BaseException | None = None
        self.done = done
        self.took = 0.0

    def make(self) -> None:
        """Call the function in the current thread, unless the caller no longer waits."""
        if self.done.done():
            return
        began = perf_counter()
        try:
            self._result = self._context.run(self._call)
        except BaseException as raised:  # noqa: BLE001 - raised again when the result is awaited
            self._error = raised
        self.took = perf_counter() - began

    def settle(self) -> None:
        if not self.done.done():
            self.done.set_result((self._result, self._error))


class _LoopQueue:
    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: deque[_FunctionCall] = deque()
        self._made: deque[_FunctionCall] = deque()
        self._scheduled = False
        """True if the event loop is scheduled to process finished calls."""
        self._turn = 0
        """Number of threads that have served the queue. One that was stuck no longer serves it."""
        self._at_work = False
        self._begun = self._seen = 0
        """Number of started calls now, and at the last check whether the queue is stuck."""
        self._watched = False

    def add(self, call: _FunctionCall, loop: asyncio.AbstractEventLoop) -> None:
        """Queue a call. It runs after those before it, or earlier if one of them takes long."""
        with self._lock:
            self._waiting.append(call)
            if self._at_work:
                return
            self._at_work = True
        call_in_thread(partial(self._work, self._turn, loop))
        if not self._watched:
            self._watched = True
            loop.call_later(_CHECK_INTERVAL_S, self._watch, loop)

    def _work(self, turn: int, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._lock:
                if turn != self._turn:  # another thread has taken over
                    return
                if not self._waiting:
                    self._at_work = False
                    return
                call = self._waiting.popleft()
                self._begun += 1
            self._make(call, loop)

    def call_alone(self, call: _FunctionCall, loop: asyncio.AbstractEventLoop) -> None:
        """Run a call in a thread of its own."""
        call_in_thread(partial(self._make, call, loop))

    def _make(self, call: _FunctionCall, loop: asyncio.AbstractEventLoop) -> None:
        call.make()
        self._made.append(call)
        if self._scheduled:  # reset before it collects, so it finds this call as well
            return
        self._scheduled = True
        with suppress(RuntimeError):  # the loop is closed and nobody waits any more
            loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._scheduled = False
        while self._made:
            self._made.popleft().settle()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """If one call has run since the last check, give the calls behind it threads of their own."""
        stuck: list[_FunctionCall] = []
        with self._lock:
            self._watched = self._at_work
            if not self._at_work:
                return
            if self._begun == self._seen:
                stuck = [*self._waiting]
                self._waiting.clear()
                self._turn += 1
                self._at_work = self._watched = False
            self._seen = self._begun
        for call in stuck:
            self.call_alone(call, loop)
        if self._watched:
            loop.call_later(_CHECK_INTERVAL_S, self._watch, loop)


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopQueue] = WeakKeyDictionary()
_fast: WeakSet[FunctionType] = WeakSet()
"""Functions whose last call took almost no time."""


def _underlying_function(function: Callable[..., Any] | None) -> FunctionType | None:
    """Return the underlying function of a bound method or a partial, which are new objects for each call."""
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return function if isinstance(function, FunctionType) else None


async def in_thread(function: Callable[..., Any], *args: Any, users: Callable[..., Any] | None = None) -> Any:
    """Call a function in a thread that runs nothing else meanwhile. If canceled, the function continues
    there.

    Args:
        users: the user's function that `function` calls, whose speed counts; None if it is `function` itself.
    """
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop) or _queues.setdefault(loop, _LoopQueue())
    call = _FunctionCall(partial(function, *args), loop.create_future())
    known = _underlying_function(function if users is None else users)
    if known is not None and known in _fast:
        queue.add(call, loop)
    else:
        queue.call_alone(call, loop)
    fast = False
    try:
        result, error = await call.done
        fast = call.took < _FAST_S
    finally:
        if known is not None:
            (_fast.add if fast else _fast.discard)(known)
    if error is not None:
        raise error
    return result
