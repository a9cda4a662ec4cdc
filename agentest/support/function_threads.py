"""Call user functions in threads, so that functions that block or hang delay nothing else.

A function gets a thread of its own until it has proved fast. From then on its calls go to a queue, which one
thread works through, so that one wake-up of the thread and one of the event loop serve many calls. If a
queued call takes long, it keeps that thread, and the calls behind it get threads of their own.

Two kinds of functions hang more than their thread. An async function that blocks stops its event loop: a
watching thread interrupts it. A call that never gives Python's lock back (`re.match(r"(a+)+$", …)`) stops all
threads: a timer of the process ends the run, and a shell prints where the function stands.
"""

from __future__ import annotations

import asyncio
import atexit
import faulthandler
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from subprocess import PIPE, Popen
from threading import Lock, Thread
from time import perf_counter
from types import FrameType, FunctionType, coroutine
from typing import IO, Any
from weakref import WeakKeyDictionary, WeakSet

from agentest.support.deadlines import FUNCTION_S
from agentest.support.errors import EventLoopBlocked
from agentest.support.importing import called_at
from agentest.support.interrupts import start_helper

_LONG_STEP_S = 0.02
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
    __slots__ = ("_call", "_context", "_error", "_result", "_thread", "done", "took")

    def __init__(self, call: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        self._call = call
        self._context = copy_context()
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread: int | None = None
        self.done = done
        self.took = 0.0

    def make(self) -> None:
        """Call the function in the current thread, unless the caller no longer waits."""
        if self.done.done():
            return
        began = perf_counter()
        self._thread = threading.get_ident()
        try:
            self._result = self._context.run(self._call)
        except BaseException as raised:  # noqa: BLE001 - raised again when the result is awaited
            self._error = raised
        self.took = perf_counter() - began

    def place(self) -> list[str]:
        """Return file and line in the user's files at which the function is now."""
        return [at] if (at := called_at(sys._current_frames().get(self._thread or 0))) else []

    def settle(self) -> None:
        if not self.done.done():
            self.done.set_result((self._result, self._error))


class _LoopQueue:
    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: deque[_FunctionCall] = deque()
        self._made: deque[_FunctionCall] = deque()
        self._scheduled = False  # True if the event loop is scheduled to process finished calls
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
_fast: WeakSet[FunctionType] = WeakSet()  # functions whose last call took almost no time


def _underlying_function(function: Callable[..., Any] | None) -> FunctionType | None:
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
    watch.calls += 1
    watch.arm()
    if known is not None and known in _fast:
        queue.add(call, loop)
    else:
        queue.call_alone(call, loop)
    fast = False
    try:
        result, error = await call.done
        fast = call.took < _FAST_S
    except asyncio.CancelledError:
        raise asyncio.CancelledError(*call.place()) from None
    finally:
        watch.calls -= 1
        if known is not None:
            (_fast.add if fast else _fast.discard)(known)
    if error is not None:
        raise error
    return result


_LAST_WORDS = r"""
places=$(grep '^  File ' | grep -v -F -e "$1" -e /site-packages/ -e /lib/python -e '"<')
[ "$places" ] || exit
echo "agentest: the run ends, because a function held Python's lock for $0 s of processor time:
$places
Have it work on less, or in a process of its own. The conversations before it: agentest run --resume"
"""
_ROUND_S = 1.0


class _Watch:
    """A thread that interrupts code that blocks an event loop, and shows the process that Python still runs.

    It counts its own rounds, so that a process that was stopped meanwhile interrupts nobody.
    """

    def __init__(self) -> None:
        self.calls = 0  # functions that run in threads
        self.steps: dict[int, float] = {}  # thread → when the step of the coroutine began that it runs now
        self._target: tuple[int, float] | None = None
        self._started = self._armed = False
        self._ours: set[int] = set()  # signals that no other code in this program uses

    def arm(self) -> None:
        """Watch while there are calls or steps."""
        if self._armed:
            return
        self._armed = True
        if not self._started:
            self._started = True
            if hasattr(signal, "setitimer"):
                if threading.current_thread() is threading.main_thread():
                    self._take(signal.SIGVTALRM, lambda: signal.signal(signal.SIGVTALRM, self._interrupt))
                self._take(signal.SIGPROF, _register_last_words)
            Thread(target=self._run, name="agentest watch", daemon=True).start()
        self._set_timer(2 * FUNCTION_S)

    def _take(self, number: int, register: Callable[[], object]) -> None:
        if signal.getsignal(number) == signal.SIG_DFL:
            with suppress(OSError):  # no shell can start: the run may end without last words
                register()
            self._ours.add(number)

    def _set_timer(self, seconds: float) -> None:
        if self._ours and signal.SIGPROF in self._ours:
            signal.setitimer(signal.ITIMER_PROF, seconds)

    def _run(self) -> None:
        seen: dict[int, tuple[float, int]] = {}
        while True:
            time.sleep(_ROUND_S)
            self._armed = False
            self._set_timer(2 * FUNCTION_S if self.calls or self.steps else 0)
            for thread, began in list(self.steps.items()):
                before, rounds = seen.get(thread, (began, 0))
                seen[thread] = began, rounds + 1 if before == began else 0
                if seen[thread][1] * _ROUND_S >= FUNCTION_S:
                    seen[thread], self._target = (began, 0), (thread, began)
                    self._end_step(thread)

    def _end_step(self, thread: int) -> None:
        if thread == threading.main_thread().ident and signal.SIGVTALRM in self._ours:
            signal.pthread_kill(thread, signal.SIGVTALRM)
        else:  # only at its next line of Python
            import ctypes

            blocked = ctypes.py_object(EventLoopBlocked)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), blocked)

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        thread = threading.get_ident()
        if self._target == (thread, self.steps.get(thread)):
            raise EventLoopBlocked(called_at(frame))


def _register_last_words() -> None:
    program = ["/bin/sh", "-c", _LAST_WORDS, f"{2 * FUNCTION_S:g}", str(Path(__file__).parents[1])]
    shell = start_helper(program, stdin=PIPE, stdout=2, stderr=None)
    assert shell.stdin
    faulthandler.register(signal.SIGPROF, file=shell.stdin, chain=True)
    atexit.register(_end_shell, shell, shell.stdin)


def _end_shell(shell: Popen[bytes], stdin: IO[bytes]) -> None:
    faulthandler.unregister(signal.SIGPROF)
    stdin.close()
    shell.wait()


watch = _Watch()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watch.__init__)  # type: ignore[misc]


class BlockingTimer:
    """Measures how long an awaitable blocks the event loop, counting only unusually long steps."""

    def __init__(self) -> None:
        self.blocked = 0.0  # seconds

    @coroutine
    def of(self, awaitable: Awaitable[Any]) -> Generator[Any, Any, Any]:
        """Await it and time every step between two waits."""
        running: Any = awaitable.__await__()
        step: Callable[[], Any] = partial(next, running)
        thread = threading.get_ident()
        while True:
            outer = watch.steps.get(thread)
            began = watch.steps[thread] = perf_counter()
            watch.arm()
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            finally:
                took = perf_counter() - began
                self.blocked += took if took > _LONG_STEP_S else 0.0
                if outer is None:
                    del watch.steps[thread]
                else:
                    watch.steps[thread] = outer
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001 - a cancellation of the awaitable
                step = partial(_throw, running, error)
            else:
                step = partial(next, running) if sent is None else partial(running.send, sent)


def _throw(running: Any, error: BaseException) -> Any:
    if not hasattr(running, "throw"):
        raise error
    return running.throw(error)
