"""Read single keys from the terminal for `agentest run --watch`, and restore the terminal afterwards."""

from __future__ import annotations

import codecs
import os
import re
import select
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from agentest.support.interrupts import restore_terminal, show_cursor
from agentest.support.terminal import rewrite_row, tell

try:
    import termios
except ImportError:  # on Windows
    HAS_TERMINALS = False
else:
    HAS_TERMINALS = True

QUIT = frozenset("q\x04")  # the keys that quit: q and Ctrl-D
ENTER = frozenset("\r\n")
_ESCAPE = "\x1b"
_ERASE = frozenset("\x7f\b")
_SEQUENCES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.)")
_BACKGROUND_POLL_S = 0.2


class Keys:
    """Keys pressed in a terminal, in order. Without a terminal there are none."""

    def __init__(self) -> None:
        self.pressed = threading.Event()  # set while keys have not been taken
        self.is_terminal = False
        self._keys: deque[str] = deque()
        self._changed = threading.Condition()
        self._is_waiting = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Collect all keys in the block. Outside of it, a key that quits interrupts the program."""
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def take(self) -> str:
        """Return the next key; "" if there is none."""
        with self._changed:
            key = self._keys.popleft() if self._keys else ""
            if not self._keys:
                self.pressed.clear()
            return key

    def keep_first(self) -> None:
        """Forget the keys that have not been taken, except for the first."""
        with self._changed:
            while len(self._keys) > 1:
                self._keys.pop()

    @property
    def quits(self) -> bool:
        """True if a key that quits has not been taken."""
        return not QUIT.isdisjoint(self._keys)

    def read_line(self, prompt: str) -> str:
        """Return a typed line; "" if Escape or Ctrl-D cancels it."""
        text = ""
        while True:
            rewrite_row(f"{prompt}{text}"[-(shutil.get_terminal_size().columns - 1) :])
            key = self._next()
            if key in ENTER or key == _ESCAPE or key in QUIT - {"q"}:
                tell("")
                return text if key in ENTER else ""
            if key in _ERASE:
                text = text[:-1]
            elif key == "\x15":  # Ctrl-U
                text = ""
            elif key.isprintable():
                text += key

    def add(self, text: str) -> None:
        """Add pressed keys."""
        for key in _SEQUENCES.sub("", text):
            if key in QUIT and not self._is_waiting:
                main = threading.main_thread().ident
                if main is not None:
                    signal.pthread_kill(main, signal.SIGINT)
                return
            with self._changed:
                self._keys.append(key)
                self.pressed.set()
                self._changed.notify_all()

    def _next(self) -> str:
        while not (key := self.take()):
            with self._changed:
                self._changed.wait_for(lambda: bool(self._keys), timeout=_BACKGROUND_POLL_S)
        return key


@contextmanager
def open_keys() -> Iterator[Keys]:
    """Read keys in the block if standard input and standard error are a terminal."""
    keys = Keys()
    if not HAS_TERMINALS or not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        yield keys
        return
    keys.is_terminal = True
    fd = sys.stdin.fileno()
    wake, woken = os.pipe()
    with _single_keys(fd) as resume:
        reader = threading.Thread(target=_read, args=(fd, wake, keys.add, resume), name="keys", daemon=True)
        reader.start()
        try:
            yield keys
        finally:
            os.write(woken, b".")
            reader.join()
            os.close(wake)
            os.close(woken)


def _is_terminal(stream: Any) -> bool:
    try:
        return stream is not None and bool(stream.isatty())
    except ValueError:  # it is closed
        return False


@contextmanager
def _single_keys(fd: int) -> Iterator[Callable[[], None]]:
    """Deliver each key at once and without an echo, except while the process is suspended.

    Yields a function that does so again.
    """
    process, before = os.getpid(), list[list[Any]]()

    def resume(_: object = None, __: object = None) -> None:
        if os.getpid() != process or not _is_in_foreground(fd):  # a forked worker, or another job has it
            return
        with suppress(OSError, termios.error):
            if not before:
                before.append(termios.tcgetattr(fd))
            mode = termios.tcgetattr(fd)
            mode[3] &= ~(termios.ICANON | termios.ECHO)
            mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
            termios.tcsetattr(fd, termios.TCSANOW, mode)

    def restore() -> None:
        if os.getpid() == process and before and _is_in_foreground(fd):
            with suppress(OSError, termios.error):
                termios.tcsetattr(fd, termios.TCSANOW, before[0])

    def suspend(number: int, _: FrameType | None) -> None:
        restore()
        show_cursor()
        # The default action leaves a process running that no shell could resume.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, suspend)
        resume()

    handlers: dict[int, Callable[[int, FrameType | None], object]] = {
        signal.SIGTSTP: suspend,
        signal.SIGCONT: resume,
    }
    replaced = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    restore_terminal.append(restore)
    resume()
    try:
        yield resume
    finally:
        restore_terminal.remove(restore)
        for number, handler in replaced.items():
            signal.signal(number, handler)
        restore()  # last, because the handler of a pending signal may run until here


def _is_in_foreground(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:  # it controls no jobs
        return True


def _read(fd: int, wake: int, add: Callable[[str], None], resume: Callable[[], None]) -> None:
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    in_background = False
    try:
        while True:
            watched = [wake] if in_background else [fd, wake]  # reading would stop a job in the background
            readable, _, _ = select.select(watched, [], [], _BACKGROUND_POLL_S)
            if wake in readable:
                return
            was_in_background, in_background = in_background, not _is_in_foreground(fd)
            if was_in_background and not in_background:  # no signal reports this
                resume()
            if fd in readable and not in_background:
                data = os.read(fd, 4096)
                if not data:
                    return
                add(decode(data))
    except OSError:
        return
