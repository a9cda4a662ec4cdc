"""Call user functions safely: they may block, hang, or raise anything."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import Event, Thread
from time import perf_counter
from types import coroutine
from typing import Any

from anyio.lowlevel import RunVar

from agentest.support.deadlines import TimeLimit
from agentest.support.function_threads import call_in_thread, in_thread
from agentest.support.functions import is_async

_LONG_STEP_S = 0.02
_AT_ONCE = 8
_LONG_CALL_S = 1.0
_places: RunVar[asyncio.Semaphore | None] = RunVar("agentest_places", None)


def ends_the_run(error: BaseException) -> bool:
    """Return True if an exception from a user function means that the run is being canceled.

    A function may also raise SystemExit, KeyboardInterrupt (signals do not arrive that way), pytest's
    exceptions, or the CancelledError of something it awaited. Passed on, those would end other conversations.
    """
    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without an event loop, which nothing cancels
        return False
    if isinstance(error, GeneratorExit):  # a coroutine is being closed, and no task runs it
        return task is None
    return task is None or task.cancelling() > 0


def message_of_error(error: BaseException) -> str:
    """Return an error's message. If the error's own code fails, the message is empty."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - user code may raise anything
        return ""


class NonWaitingExecutor(ThreadPoolExecutor):
    """An executor for user code that does not wait for functions that hang.

    With Python's executor, `asyncio.to_thread` with such a function would keep the loop from closing.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        context = copy_context()  # asyncio.to_thread copies the context, loop.run_in_executor does not

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = context.run(fn, *args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised again when the result is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

        call_in_thread(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for no function, because those that still run are hanging."""


class BlockingTimer:
    """Measures how long an awaitable blocks the event loop, counting only unusually long steps."""

    def __init__(self) -> None:
        self.blocked = 0.0
        """Seconds."""

    @coroutine
    def of(self, awaitable: Awaitable[Any]) -> Generator[Any, Any, Any]:
        """Await it and time every step between two waits."""
        running = awaitable.__await__()
        step: Callable[[], Any] = partial(next, running)
        while True:
            began = perf_counter()
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            finally:
                took = perf_counter() - began
                self.blocked += took if took > _LONG_STEP_S else 0.0
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001 - a cancellation of the awaitable
                step = partial(_timed_throw, running, error)
            else:
                step = partial(_timed_send, running, sent)


def _timed_send(running: Generator[Any, Any, Any], value: Any) -> Any:
    return next(running) if value is None else running.send(value)


def _timed_throw(running: Any, error: BaseException) -> Any:
    if not hasattr(running, "throw"):
        raise error
    return running.throw(error)


_END_LIMIT_S = 2.0
"""Seconds that a canceled task may take to end."""


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> int:
    """Cancel tasks and wait until they end. Returns how many did not end because their code continues.

    Those are abandoned, because the event loop would wait forever for them when it closes.
    """
    for task in tasks:
        task.cancel()
    still = (await asyncio.wait(tasks, timeout=_END_LIMIT_S))[1] if tasks else set()
    for task in still:
        _abandon(task)
    return len(still)


def _abandon(task: asyncio.Task[Any]) -> None:
    """Keep the event loop from waiting for a task, and the garbage collector from running its code again."""
    asyncio.tasks._unregister_task(task)
    Thread(target=lambda _: Event().wait(), args=(task,), name="agentest left behind", daemon=True).start()


async def result_of(function: Callable[..., Any], *args: Any, limit: TimeLimit) -> Any:
    """Call a function, plain or async, and return its result. A plain function runs in a thread.

    The number of simultaneous calls is limited, because threads that compute slow down everything. Raises
    whatever the function raises, and TimeoutError.
    """
    if is_async(function):
        with limit:
            return await function(*args)
    leave = await _place()
    try:
        with limit:
            result = await in_thread(function, *args)
            leave()
            return await result if inspect.isawaitable(result) else result
    finally:
        leave()


async def _place() -> Callable[[], None]:
    """Wait for permission to call a function. Returns a callable, safe to repeat, that gives it back.

    A call that takes long gives it back early, so that functions that hang do not block others.
    """
    places = _places.get(None) or asyncio.Semaphore(_AT_ONCE)
    _places.set(places)
    await places.acquire()
    taken = [places]

    def leave() -> None:
        early.cancel()
        if taken:
            taken.pop().release()

    early = asyncio.get_running_loop().call_later(_LONG_CALL_S, leave)
    return leave


class LoopIndependentFunction:
    """Makes a function that is bound to an event loop callable from any thread or loop."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._home = _running_loop()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return an awaitable in any event loop, or the result in a thread without one."""
        running = _running_loop()
        call = self._function(*args, **kwargs)
        if running is self._home or self._home is None:
            return call
        if running is None:
            return asyncio.run_coroutine_threadsafe(call, self._home).result()
        return _awaited_at(self._home, call)

    def plainly(self, *args: Any) -> Any:
        """Wait for the result in synchronous code, wherever it runs."""
        if self._home is not None and _running_loop() is not self._home:
            return asyncio.run_coroutine_threadsafe(self._function(*args), self._home).result()
        # The event loop is blocked until this returns, so the function runs in another thread.
        found = self._function(*args)
        return _run_in_new_loop(found) if inspect.iscoroutine(found) else found


async def _awaited_at(home: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, home))


def make_loop_independent(function: Callable[..., Any]) -> LoopIndependentFunction:
    """Wrap the function, unless it is wrapped already."""
    return function if isinstance(function, LoopIndependentFunction) else LoopIndependentFunction(function)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # a plain handler in its thread
        return None


def _run_in_new_loop(call: Coroutine[Any, Any, Any]) -> Any:
    found: list[Any] = []
    failed: list[BaseException] = []
    context = copy_context()

    def work() -> None:
        try:
            found.append(context.run(asyncio.run, call))
        except BaseException as error:  # noqa: BLE001 - raised again when the result is awaited
            failed.append(error)

    thread = Thread(target=work, name="agentest mock", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]
