"""Calling functions that are not ours: they may block, hang, and raise anything."""

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
    """Whether what a user's function raised is meant for the run: it is being cancelled.

    A function may also raise SystemExit, KeyboardInterrupt (signals do not come that way), pytest's own, or
    the CancelledError of something that it waited for; passed on, that would end the other conversations.
    """
    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a thread without a loop, which nothing cancels
        return False
    if isinstance(error, GeneratorExit):  # a coroutine is closed: no task runs it
        return task is None
    return task is None or task.cancelling() > 0


def words_of(error: BaseException) -> str:
    """An error's message. Its code may be anybody's: where that fails, the message is empty."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - whatever its code raises
        return ""


class LeavingExecutor(ThreadPoolExecutor):
    """An event loop's executor for code that is not ours: a function that hangs in it is left to itself.

    With Python's own, `asyncio.to_thread` of such a function would keep the loop from closing.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        context = copy_context()  # as asyncio.to_thread has it, and loop.run_in_executor has not

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = context.run(fn, *args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised again where the result is waited for
                future.set_exception(error)
            else:
                future.set_result(result)

        call_in_thread(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for nobody: what is still running is what hangs."""


class Steps:
    """Counts for how long an awaitable has held the event loop itself, in steps longer than any need be."""

    def __init__(self) -> None:
        self.blocked = 0.0
        """Seconds."""

    @coroutine
    def of(self, awaitable: Awaitable[Any]) -> Generator[Any, Any, Any]:
        """Await it: every step that it takes between two waits is timed."""
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
            except BaseException as error:  # noqa: BLE001 - a cancellation, meant for what is awaited
                step = partial(_thrown, running, error)
            else:
                step = partial(_sent, running, sent)


def _sent(running: Generator[Any, Any, Any], value: Any) -> Any:
    return next(running) if value is None else running.send(value)


def _thrown(running: Any, error: BaseException) -> Any:
    if not hasattr(running, "throw"):
        raise error
    return running.throw(error)


_TO_END_S = 2.0
"""How long a task may take to end that is cancelled."""


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> int:
    """Cancel tasks, and wait for their end. Returns how many did not end, as their code goes on all the same.

    Those are left behind: the event loop does not wait for them when it closes, as it would for ever.
    """
    for task in tasks:
        task.cancel()
    still = (await asyncio.wait(tasks, timeout=_TO_END_S))[1] if tasks else set()
    for task in still:
        _leave_behind(task)
    return len(still)


def _leave_behind(task: asyncio.Task[Any]) -> None:
    """Have nobody wait for a task, and nobody clear it away, which would run its code once more."""
    asyncio.tasks._unregister_task(task)
    Thread(target=lambda _: Event().wait(), args=(task,), name="agentest left behind", daemon=True).start()


async def result_of(function: Callable[..., Any], *args: Any, limit: TimeLimit) -> Any:
    """What a function returns, be it plain or async: a plain one is called in a thread, as it may block.

    Only some are called at once: there may be very many, and threads that compute hold up everything. Raises
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
    """Take one of the few places in which functions are called. Returns how to leave it, once or again.

    Whoever takes long leaves it to others, so that functions that hang do not keep anybody waiting.
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


class FromAnywhere:
    """A function, async where an event loop runs, that can be called from any other place."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._home = _running_loop()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """To be awaited in any event loop; in a thread without one, the result."""
        running = _running_loop()
        call = self._function(*args, **kwargs)
        if running is self._home or self._home is None:
            return call
        if running is None:
            return asyncio.run_coroutine_threadsafe(call, self._home).result()
        return _awaited_at(self._home, call)

    def plainly(self, *args: Any) -> Any:
        """The result, for code that is not async, wherever it runs: it waits."""
        if self._home is not None and _running_loop() is not self._home:
            return asyncio.run_coroutine_threadsafe(self._function(*args), self._home).result()
        # The event loop stands still until this returns: the function is called elsewhere.
        found = self._function(*args)
        return _in_a_loop_of_its_own(found) if inspect.iscoroutine(found) else found


async def _awaited_at(home: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, home))


def from_anywhere(function: Callable[..., Any]) -> FromAnywhere:
    """The function for any place; one that is so already as it is."""
    return function if isinstance(function, FromAnywhere) else FromAnywhere(function)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # a plain handler in its thread
        return None


def _in_a_loop_of_its_own(call: Coroutine[Any, Any, Any]) -> Any:
    found: list[Any] = []
    failed: list[BaseException] = []
    context = copy_context()

    def work() -> None:
        try:
            found.append(context.run(asyncio.run, call))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            failed.append(error)

    thread = Thread(target=work, name="agentest mock", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]
