"""Ctrl-C: the first one ends what is going on, the second one the process."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from traceback import extract_stack
from types import FrameType, ModuleType
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

from agentest.support.errors import ExitCode, ProcessExitError

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


end_process: Callable[[int], NoReturn] = os._exit
"""Ends the process at once with a status, also after `guard_process_exit`."""

_ENDS = ("_exit", "abort", "execv", "execve")
"""The other functions that replace the program call one of the last two."""
_SIGNALLED = {"kill": "pid", "killpg": "group", "raise_signal": ""}
"""Function that sends a signal → what its first argument says of the receiver; "": it is this process."""
_ARE_NO_END = ("SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGWINCH")
"""Signals that end no process that leaves them to the system."""
_prevented: list[str] = []


def guard_process_exit() -> None:
    """Keep user code from ending this process. Processes that are forked from it may end as they like."""
    process = os.getpid()
    for module in (os, importlib.import_module(os.name)):
        for name in (*_ENDS, "kill", "killpg"):
            _guard(module, name, process)
    _guard(signal, "raise_signal", process)


def prevented_exits() -> list[str]:
    """Where user code tried to end the process, one message for each place."""
    return list(dict.fromkeys(_prevented))


def _guard(module: ModuleType, name: str, process: int) -> None:
    real = getattr(module, name, None)  # no system has all of them
    if real is not None:
        setattr(module, name, _guarded(f"{module.__name__}.{name}", name, real, process))


def _guarded(shown: str, name: str, real: Callable[..., Any], process: int) -> Callable[..., Any]:
    def guarded(*args: Any, **options: Any) -> Any:
        if os.getpid() != process or not (name in _ENDS or _ends_us(name, args)):
            return real(*args, **options)
        caller = extract_stack(sys._getframe(1), limit=1)[0]
        given = ", ".join([*map(repr, args[:1]), *("…" for _ in args[1:2])])
        problem = f"{shown}({given}) at {caller.filename}:{caller.lineno} would have ended the run"
        _prevented.append(problem)
        raise ProcessExitError(f"{problem}; remove it")

    return guarded


def _ends_us(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a signal goes to this process, or to its whole group, and nothing here takes it."""
    *receiver, number = args or (0,)
    group = os.getpgrp() if hasattr(os, "getpgrp") else 0
    ours = {"pid": (os.getpid(), 0, -group), "group": (group, 0)}
    if (whose := _SIGNALLED[name]) and not set(receiver) & set(ours[whose]):
        return False
    try:
        left_to_system = signal.getsignal(number) is signal.SIG_DFL
    except (TypeError, ValueError):  # 0 only looks whether the process is there
        return False
    return left_to_system and signal.Signals(number).name not in _ARE_NO_END
