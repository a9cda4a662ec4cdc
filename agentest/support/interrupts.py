"""Ctrl-C: the first one ends what is going on, the second one the process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar, TypeVarTuple, Unpack

from agentest.support.errors import ExitCode
from agentest.support.process_exit import end_process

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

STOPPING = "stopping; once more ends at once"
"""What is said at the first one, where what is going on takes a moment to end."""
_SHOW_CURSOR = b"\x1b[?25h"
_heard: list[int] = []
_holding: list[bool] = []


def hear() -> None:
    """From now on keep Ctrl-C in mind, also where somebody else's code takes the exception for its own."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def heard() -> bool:
    """Whether Ctrl-C was pressed outside of a run, which handles it by itself."""
    return bool(_heard)


def in_event_loop(work: Callable[[Unpack[_Args]], Awaitable[_T]], *args: *_Args) -> _T:
    """Run the work in an event loop of its own, as `anyio.run` does.

    Ctrl-C waits until there is a loop: half of one would print a traceback of its own as it goes.
    """
    import anyio  # takes its time: who listens for Ctrl-C from the first line on does without

    async def begin() -> _T:
        _holding.clear()
        if _heard:
            raise KeyboardInterrupt
        return await work(*args)

    _holding.append(True)
    try:
        return anyio.run(begin)
    finally:
        _holding.clear()


def _interrupted(number: int, _: FrameType | None) -> None:
    if _heard:
        end_at_once()
    _heard.append(number)
    if not _holding:
        raise KeyboardInterrupt


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C meanwhile: the first one interrupts, the second one ends the process."""
    if threading.current_thread() is not threading.main_thread():  # who calls from another one has handlers
        yield
        return
    terminated: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        if terminated or _heard:
            end_at_once()
        terminated.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_at_once(last_words: str = "") -> None:
    """End the process without asking anybody, and leave the terminal in order.

    Straight to the files: whatever is blocking may hold the locks of the streams.
    """
    if os.isatty(1) and os.environ.get("TERM") != "dumb":
        os.write(1, _SHOW_CURSOR)  # who shows progress hides it
    if last_words:
        os.write(2, last_words.encode(sys.getfilesystemencoding(), "backslashreplace"))
    end_process(ExitCode.INTERRUPTED)
