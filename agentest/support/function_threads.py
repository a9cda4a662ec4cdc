"""Threads in which functions are called that are not ours: they may block and hang, and then hold up nobody.

A function has a thread to itself until it has proved fast. From then on it stands in a row: one thread calls
all that wait there, one after another, so that one wake-up of a thread, and one of the event loop, does for
many calls. When a call in the row turns out to take long it keeps that thread, and those behind it get
threads of their own.
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
_PATIENCE_S = 0.01
"""How often it is looked whether a row stands still."""


class _FunctionThread:
    """A thread that calls one function after another.

    It is a daemon: a function that hangs must not keep the program from ending.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        Thread(target=self._run, name=_THREAD_NAME, daemon=True).start()

    def call(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while True:
            self._work.get()()
            if len(_idle) >= _MAX_IDLE:
                return
            _idle.append(self)


_idle: list[_FunctionThread] = []
"""Threads that wait for a function. One whose function hangs is never among them: nobody waits for it."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # threads do not live on in a fork


def call_in_thread(work: Callable[[], None]) -> None:
    """Have a thread do this that nothing else is in, and wait for nothing. It must not raise."""
    try:
        thread = _idle.pop()
    except IndexError:
        thread = _FunctionThread()
    thread.call(work)


def in_function_thread() -> bool:
    """Whether this is a thread in which functions are called: what they know of their context is right."""
    return threading.current_thread().name == _THREAD_NAME


class _Call:
    """One call of a function, and what came of it."""

    __slots__ = ("_call", "_context", "_error", "_result", "done", "took")

    def __init__(self, call: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        self._call = call
        self._context = copy_context()
        self._result: Any = None
        self._error: BaseException | None = None
        self.done = done
        self.took = 0.0

    def make(self) -> None:
        """Call the function, in whichever thread; one that nobody waits for any more is not called."""
        if self.done.done():
            return
        began = perf_counter()
        try:
            self._result = self._context.run(self._call)
        except BaseException as raised:  # noqa: BLE001 - raised again where the result is waited for
            self._error = raised
        self.took = perf_counter() - began

    def settle(self) -> None:
        """In the event loop: say what came of it to whoever waits."""
        if not self.done.done():
            self.done.set_result((self._result, self._error))


class _Row:
    """The calls in one event loop of functions that have proved fast."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: deque[_Call] = deque()
        self._made: deque[_Call] = deque()
        self._told = False
        """Whether the event loop is to look at what was made."""
        self._turn = 0
        """Counts the threads that have had the row: one that was stuck has it no more."""
        self._at_work = False
        self._begun = self._seen = 0
        """How many calls have begun, and how many had at the last look whether the row stands still."""
        self._watched = False

    def add(self, call: _Call, loop: asyncio.AbstractEventLoop) -> None:
        """Make a call when those before it have been made, or one of them takes long."""
        with self._lock:
            self._waiting.append(call)
            if self._at_work:
                return
            self._at_work = True
        call_in_thread(partial(self._work, self._turn, loop))
        if not self._watched:
            self._watched = True
            loop.call_later(_PATIENCE_S, self._watch, loop)

    def _work(self, turn: int, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._lock:
                if turn != self._turn:  # others have taken over
                    return
                if not self._waiting:
                    self._at_work = False
                    return
                call = self._waiting.popleft()
                self._begun += 1
            call.make()
            self._tell(call, loop)

    def call_alone(self, call: _Call, loop: asyncio.AbstractEventLoop) -> None:
        """Make a call in a thread of its own."""
        call_in_thread(partial(self._alone, call, loop))

    def _alone(self, call: _Call, loop: asyncio.AbstractEventLoop) -> None:
        call.make()
        self._tell(call, loop)

    def _tell(self, call: _Call, loop: asyncio.AbstractEventLoop) -> None:
        self._made.append(call)
        if self._told:  # set back before it looks: it finds this call, too
            return
        self._told = True
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._told = False
        while self._made:
            self._made.popleft().settle()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Where one call has lasted since the last look, give those behind it threads of their own."""
        stuck: list[_Call] = []
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
            loop.call_later(_PATIENCE_S, self._watch, loop)


_rows: WeakKeyDictionary[asyncio.AbstractEventLoop, _Row] = WeakKeyDictionary()
_fast: WeakSet[FunctionType] = WeakSet()
"""The functions whose last call took next to no time."""


def _known(function: Callable[..., Any] | None) -> FunctionType | None:
    """The function itself behind one that is made anew for each call: a method, or one with its arguments."""
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return function if isinstance(function, FunctionType) else None


async def in_thread(function: Callable[..., Any], *args: Any, users: Callable[..., Any] | None = None) -> Any:
    """Call a function in a thread that nothing else is in meanwhile. Cancelled, it leaves the thread to it.

    Args:
        users: the user's function that this one calls, which may have proved fast; None: this one itself.
    """
    loop = asyncio.get_running_loop()
    row = _rows.get(loop) or _rows.setdefault(loop, _Row())
    call = _Call(partial(function, *args), loop.create_future())
    known = _known(function if users is None else users)
    if known is not None and known in _fast:
        row.add(call, loop)
    else:
        row.call_alone(call, loop)
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
