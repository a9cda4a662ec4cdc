"""Calling functions that are not ours: they may block, hang, and raise anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import Any


def ends_the_run(error: BaseException) -> bool:
    """Whether what a user's function raised is meant for the run: it is being cancelled.

    A function may also raise SystemExit, KeyboardInterrupt (signals do not come that way), pytest's own, or
    the CancelledError of something that it waited for; passed on, that would end the other conversations.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, GeneratorExit)


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a thread of its own. Cancelled, it leaves the thread to itself.

    The thread is a daemon: a function that hangs must not keep the program from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((result, error))

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, *args)
        except BaseException as raised:  # noqa: BLE001 - raised again where the result is waited for
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    Thread(target=work, name=f"agentest {getattr(function, '__name__', 'handler')}", daemon=True).start()
    result, error = await done
    if error is not None:
        raise error
    return result


def from_anywhere(function: Callable[..., Any]) -> Callable[..., Any]:
    """An async function that can be awaited in any event loop, and called plainly in a thread without one."""
    home = asyncio.get_running_loop()

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # a plain handler in its thread
            return asyncio.run_coroutine_threadsafe(function(*args, **kwargs), home).result()
        if running is home:
            return function(*args, **kwargs)
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function(*args, **kwargs), home))

    return call
