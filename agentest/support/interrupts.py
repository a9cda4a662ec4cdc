"""Handle Ctrl-C (the first stops the work, the second the process) and guard against process exits."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple, Unpack

from agentest.support.errors import ExitCode, ProcessExitError

if TYPE_CHECKING:
    from subprocess import Popen

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

STOPPING = "stopping; once more ends at once"  # printed at the first Ctrl-C if stopping may take a moment
_SHOW_CURSOR = b"\x1b[?25h"
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_interrupts: list[int] = []
_holding: list[bool] = []
_listeners: list[tuple[Callable[[int], None], Callable[[], str]]] = []
"""What each run that is under way does at a signal, and its last words."""
_replaced: dict[int, Any] = {}


def hear() -> None:
    """Record Ctrl-C, SIGTERM and SIGHUP from now on, even if other code catches the exception."""
    _holding.clear()
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _interrupted)
            # Otherwise an exiting interpreter lets the signal end the process in place of the exit status.
            atexit.register(signal.signal, number, signal.SIG_IGN)


def was_interrupted() -> bool:
    """Return True if Ctrl-C was pressed outside of a run, which handles it itself."""
    return bool(_interrupts)


def run_event_loop(work: Callable[[Unpack[_Args]], Awaitable[_T]], *args: *_Args) -> _T:
    """Run the work in a new event loop, as `anyio.run` does.

    Ctrl-C is delayed until the loop is complete, because a partial loop would print a traceback when it is
    closed.
    """
    import anyio  # slow to import, and not needed by callers that record Ctrl-C from the first line on

    async def begin() -> _T:
        _holding.clear()
        if _interrupts:
            raise KeyboardInterrupt
        return await work(*args)

    _holding.append(True)
    try:
        return anyio.run(begin)
    finally:
        _holding.clear()


def hold() -> None:
    """Only record the next interrupt: the command has ended, and the process exits."""
    _holding.append(True)


def _interrupted(number: int, _: FrameType | None) -> None:
    if _interrupts:
        exit_immediately()
    _interrupts.append(number)
    if not _holding:
        raise KeyboardInterrupt


@contextmanager
def handled_signals(
    on_first: Callable[[], None], last_words: Callable[[], str], show: Callable[[str], bool] = lambda _: False
) -> Iterator[list[int]]:
    """Call `on_first` in the event loop at the first signal; write `last_words` and exit at the second.

    A third one exits while `last_words` is at work. Yields the list of signals received so far. Installs
    plain handlers instead of the loop's own, because the loop drops signals that arrive while it shuts down.
    Runs may overlap and end in any order: all of them hear a signal.

    Args:
        show: displays the message for the first signal; returns True if it did.
    """
    import asyncio  # slow to import, like anyio above

    received: list[int] = []
    loop = asyncio.get_running_loop()

    def handle(number: int) -> None:
        received.append(number)
        if len(received) > 1:
            exit_immediately(_last_words if len(received) == 2 else str)
        displayed = show(STOPPING)
        if not displayed or not os.isatty(2):  # on a terminal, a second copy would garble the display
            # Write to the descriptor: the interrupted code may hold the lock of sys.stderr.
            os.write(2, f"\nagentest: {STOPPING}\n".encode())
        loop.call_soon_threadsafe(on_first)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may install handlers
        yield received
        return
    _listeners.append(listener := (handle, last_words))
    for number in _SIGNALS if not _replaced else ():
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            _replaced[number] = signal.signal(number, _tell_listeners)
    try:
        yield received
    finally:
        while _replaced and len(_listeners) == 1:
            signal.signal(*_replaced.popitem())
        _listeners.remove(listener)


def _tell_listeners(number: int, _: object) -> None:
    for handle, _words in list(_listeners):
        handle(number)


def _last_words() -> str:
    return "".join(words() for _, words in _listeners)


def exit_immediately(last_words: Callable[[], str] = str) -> None:
    """End the process immediately and restore the terminal.

    Write directly to the file descriptors, because blocked code may hold the locks of the streams.
    """
    show_cursor()
    for restore in restore_terminal:
        restore()
    try:
        os.write(2, last_words().encode(sys.getfilesystemencoding(), "backslashreplace"))
    finally:
        end_process(ExitCode.INTERRUPTED)


def show_cursor() -> None:
    """Show the cursor, which the progress display hides."""
    if os.isatty(1) and os.environ.get("TERM") != "dumb":
        os.write(1, _SHOW_CURSOR)


def start_helper(words: Sequence[str], **options: Any) -> Popen[bytes]:
    """Start a program that Ctrl-C does not reach, and that exits with its input or at once."""
    from subprocess import DEVNULL, Popen  # slow to import

    streams = {"stdin": DEVNULL, "stdout": DEVNULL, "stderr": DEVNULL}
    return Popen(words, **{**streams, **options}, start_new_session=True)


restore_terminal: list[Callable[[], None]] = []
"""Functions that restore the terminal before the process ends immediately."""
end_process: Callable[[int], NoReturn] = os._exit
"""End the process immediately with a status, even after `guard_process_exit`."""

_EXIT_FUNCTIONS = ("_exit", "abort", "execv", "execve")
_SIGNAL_FUNCTIONS = {"kill": "pid", "killpg": "group", "raise_signal": ""}
"""Function that sends a signal → meaning of its first argument; "" if the signal goes to this process."""
_HARMLESS_SIGNALS = ("SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGWINCH")
"""Signals that do not end a process by default."""
_prevented: list[str] = []


def guard_process_exit() -> None:
    """Prevent user code from ending this process. Forked processes may exit normally."""
    process = os.getpid()
    for module in (os, importlib.import_module(os.name)):
        for name in (*_EXIT_FUNCTIONS, "kill", "killpg"):
            _guard(module, name, process)
    _guard(signal, "raise_signal", process)


def prevented_exits() -> list[str]:
    """Return one message for each place where user code tried to end the process."""
    return list(dict.fromkeys(_prevented))


def _guard(module: ModuleType, name: str, process: int) -> None:
    real = getattr(module, name, None)  # some systems lack some of them
    if real is not None:
        setattr(module, name, _guarded(f"{module.__name__}.{name}", name, real, process))


def _guarded(function: str, name: str, real: Callable[..., Any], process: int) -> Callable[..., Any]:
    def guarded(*args: Any, **options: Any) -> Any:
        if os.getpid() != process or not (name in _EXIT_FUNCTIONS or _would_end_process(name, args)):
            return real(*args, **options)
        caller = sys._getframe(1)
        arguments = ", ".join([*map(repr, args[:1]), *("…" for _ in args[1:2])])
        location = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        problem = f"{function}({arguments}) at {location} would have ended the run"
        _prevented.append(problem)
        raise ProcessExitError(f"{problem}; remove it")

    return guarded


def _would_end_process(name: str, args: tuple[Any, ...]) -> bool:
    *receiver, number = args or (0,)
    group = os.getpgrp() if hasattr(os, "getpgrp") else 0
    ours = {"pid": (os.getpid(), 0, -group), "group": (group, 0)}
    if (whose := _SIGNAL_FUNCTIONS[name]) and not set(receiver) & set(ours[whose]):
        return False
    try:
        left_to_system = signal.getsignal(number) is signal.SIG_DFL
    except (TypeError, ValueError):  # signal 0 only checks whether the process exists
        return False
    return left_to_system and signal.Signals(number).name not in _HARMLESS_SIGNALS
