"""Call user functions safely: they may block, hang, or raise anything."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import field
from functools import partial
from threading import Event, Thread
from typing import Any, Final, TypeVar

import anyio
from anyio.lowlevel import RunVar

from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentestError
from agentest.support.lazy_dataclasses import dataclass

_T = TypeVar("_T")
_AT_ONCE = 8
_LONG_CALL_S = 1.0
_places: RunVar[asyncio.Semaphore | None] = RunVar("agentest_places", None)


async def run_concurrently(functions: Sequence[Callable[[], Awaitable[_T]]]) -> list[_T]:
    """Run all functions concurrently and return their results in order."""
    if len(functions) <= 1:  # starting a task would cost more than the call
        return [await function() for function in functions]
    results: dict[int, _T] = {}

    async def ask(n: int) -> None:
        results[n] = await functions[n]()

    async with anyio.create_task_group() as tasks:
        for n in range(len(functions)):
            tasks.start_soon(ask, n)
    return [results[n] for n in range(len(functions))]


def ends_the_run(error: BaseException) -> bool:
    """Return True if an exception from a user function means that the run is being canceled.

    A function may also raise SystemExit, KeyboardInterrupt (signals do not arrive that way), pytest's
    exceptions, or the CancelledError of something it awaited. Passed on, those would end other conversations.
    """
    if not isinstance(error, asyncio.CancelledError | GeneratorExit) or not asyncio._get_running_loop():
        return False  # nothing cancels a thread without an event loop
    task = asyncio.current_task()
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

        from agentest.support.function_threads import call_in_thread

        call_in_thread(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for no function, because those that still run are hanging."""


_END_LIMIT_S = 2.0  # seconds that a canceled task may take to end


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> int:
    """Cancel tasks and wait until they end. Returns how many did not end because their code continues.

    Those are abandoned, because the event loop would wait forever for them when it closes.
    """
    for task in tasks:
        task.cancel()
    still = (await asyncio.wait(tasks, timeout=_END_LIMIT_S))[1] if tasks else set()
    for task in still:
        # Keep the loop from waiting for it, and the garbage collector from running its code again.
        asyncio.tasks._unregister_task(task)
        Thread(
            target=lambda _: Event().wait(), args=(task,), name="agentest left behind", daemon=True
        ).start()
    return len(still)


class FunctionTimeout(TimeoutError):
    """A user's function took too long. The message continues the words "the function"."""

    def __init__(self, late: str, at: str) -> None:
        super().__init__(f"{late} ({at})" if at else late)
        self.at = at


def blocked_at(error: BaseException | None) -> str:
    """Return where a function stood when its call was canceled, from the cancellation; "" if unknown."""
    return str(error.args[0]) if isinstance(error, asyncio.CancelledError) and error.args else ""


_timeouts: dict[int, tuple[object, int]] = {}
_MOST_TIMEOUTS = 3


async def result_of(
    function: Callable[..., Any], *args: Any, limit: TimeLimit, source: object | None = None
) -> Any:
    """Call a function, plain or async, and return its result. A plain function runs in a thread.

    The number of simultaneous calls is limited, because threads that compute slow down everything. A function
    that has taken too long in several conversations is called no more. Raises whatever the function raises,
    and FunctionTimeout.

    Args:
        source: what the scenario has, if `function` is made for each call.
    """
    source = function if source is None else source
    _, timeouts = _timeouts.get(id(source), (None, 0))
    late = f"gave no answer within {limit.seconds:g} s"
    if timeouts >= _MOST_TIMEOUTS:
        raise FunctionTimeout(f"{late} {timeouts} times, and is called no more", "")
    try:
        return await _result_of(function, *args, limit=limit)
    except TimeoutError as error:
        if not limit.expired:
            raise
        _timeouts[id(source)] = source, _timeouts.get(id(source), (source, 0))[1] + 1
        raise FunctionTimeout(late, blocked_at(error.__cause__)) from None


async def _result_of(function: Callable[..., Any], *args: Any, limit: TimeLimit) -> Any:
    from agentest.support.function_threads import BlockingTimer, in_thread

    if is_async(function):
        with limit:
            return await BlockingTimer().of(function(*args))

    leave = await _thread_slot()
    try:
        with limit:
            result = await in_thread(function, *args)
            leave()
            return await BlockingTimer().of(result) if inspect.isawaitable(result) else result
    finally:
        leave()


async def _thread_slot() -> Callable[[], None]:
    """Wait for permission to call a function. Returns a callable, safe to repeat, that gives it back.

    A call that takes long gives it back early, so that functions that hang do not block others.
    """
    places = _places.get(None) or asyncio.Semaphore(_AT_ONCE)
    _places.set(places)
    await places.acquire()
    slots = [places]

    def leave() -> None:
        early.cancel()
        if slots:
            slots.pop().release()

    early = asyncio.get_running_loop().call_later(_LONG_CALL_S, leave)
    return leave


class LoopIndependentFunction:
    """Makes a function that is bound to an event loop callable from any thread or loop."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._home = asyncio._get_running_loop()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return an awaitable in any event loop, or the result in a thread without one."""
        running = asyncio._get_running_loop()
        call = self._function(*args, **kwargs)
        if running is self._home or self._home is None:
            return call
        if running is None:
            return asyncio.run_coroutine_threadsafe(call, self._home).result()
        return _awaited_at(self._home, call)

    def plainly(self, *args: Any) -> Any:
        """Wait for the result in synchronous code, wherever it runs."""
        if self._home is not None and asyncio._get_running_loop() is not self._home:
            return asyncio.run_coroutine_threadsafe(self._function(*args), self._home).result()
        # The event loop is blocked until this returns, so the function runs in another thread.
        result = self._function(*args)
        is_async = inspect.iscoroutine(result)
        return NonWaitingExecutor().submit(asyncio.run, result).result() if is_async else result


async def _awaited_at(home: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, home))


def make_loop_independent(function: Callable[..., Any]) -> LoopIndependentFunction:
    """Wrap the function, unless it is wrapped already."""
    return function if isinstance(function, LoopIndependentFunction) else LoopIndependentFunction(function)


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if calling the function only creates a coroutine, so that no thread is needed."""
    while isinstance(function, partial):
        function = function.func
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(call)


@dataclass(frozen=True, slots=True)
class AcceptedValues:
    """The offered values that a function takes."""

    by_position: tuple[str, ...]
    by_name: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        return frozenset((*self.by_position, *self.by_name))

    def bound_to(self, function: Callable[..., Any], values: Callable[[str], Any]) -> partial[Any]:
        """Bind those values to the function, so that it can be called without arguments."""
        named = {name: values(name) for name in self.by_name}
        return partial(function, *map(values, self.by_position), **named)


def accepted_values(function: Callable[..., Any], offered: Sequence[str]) -> AcceptedValues:
    """Match offered values to a function's parameters: by name, and the others by position.

    A parameter with another name and a default keeps its default: `lambda reply, wanted=wanted: …` has
    captured it. Raises TypeError if the function takes none of the values, or requires more.
    """
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # a C function without a signature
        return AcceptedValues((offered[0],))
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return AcceptedValues(tuple(offered))
    left = [name for name in offered if name not in {p.name for p in parameters}]
    positions: list[str] = []
    names: list[str] = []
    kept_default = False
    for parameter in parameters:
        known = parameter.name if parameter.name in offered else _next_value(left, parameter, offered)
        kept_default = kept_default or known is None
        if known is not None:  # after a parameter that keeps its default, positions no longer match
            (names if kept_default or parameter.kind is _ONLY_NAMED else positions).append(known)
    if not positions and not names:
        raise TypeError(f"it takes no parameters; it is given {_listed(offered)}")
    return AcceptedValues(tuple(positions), tuple(names))


_ONLY_NAMED = inspect.Parameter.KEYWORD_ONLY


def _next_value(left: list[str], parameter: inspect.Parameter, offered: Sequence[str]) -> str | None:
    if parameter.kind is inspect.Parameter.VAR_KEYWORD or parameter.default is not inspect.Parameter.empty:
        return None
    if parameter.kind is _ONLY_NAMED or not left:
        raise TypeError(
            f"nothing is known for its parameter `{parameter.name}`; it is given {_listed(offered)}"
        )
    return left.pop(0)


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


USER_CODE: Final = object()  # marks code that belongs to no agent, so that nothing answers the tools it calls
_current: ContextVar[Any] = ContextVar("agentest_whose_code", default=None)


def current_code_owner() -> Any:
    """Return who answers tool calls of the current code: USER_CODE, or the value given to `code_owned_by`.

    None means unknown.
    """
    return _current.get()


@contextmanager
def code_owned_by(who: Any) -> Iterator[None]:
    """Attribute code that runs inside of the block to `who`."""
    token = _current.set(who)
    try:
        yield
    finally:
        _current.reset(token)


_runs_in_progress: list[object] = []


@contextmanager
def run_in_progress() -> Iterator[None]:
    """Prevent wrapped tools from running the real tool outside of a conversation during this block."""
    run = object()
    _runs_in_progress.append(run)
    try:
        yield
    finally:
        _runs_in_progress.remove(run)


def is_run_in_progress() -> bool:
    """Return True inside of any `run_in_progress` block of this process."""
    return bool(_runs_in_progress)


@dataclass(slots=True)
class _Attempt:
    over: anyio.Event = field(default_factory=anyio.Event)
    problem: AgentestError | None = None


class SharedAttempt:
    """One attempt at a time to make something, which all tasks that need it share."""

    def __init__(self) -> None:
        self._attempt: _Attempt | None = None

    async def until(self, is_made: Callable[[], bool], make: Callable[[], Awaitable[None]]) -> None:
        """Make it, or wait until another task has. An attempt that fails raises in every task that waits.

        If the task that makes it is cancelled, another one takes over.
        """
        while not is_made():
            if self._attempt is None:
                await self._make(make)
                continue
            attempt = self._attempt
            await attempt.over.wait()
            if attempt.problem:
                raise attempt.problem

    async def _make(self, make: Callable[[], Awaitable[None]]) -> None:
        attempt = self._attempt = _Attempt()
        try:
            await make()
        except AgentestError as error:
            attempt.problem = error
            raise
        finally:
            self._attempt = None
            attempt.over.set()
