"""Match regular expressions on agent output with a time limit.

Some expressions take forever on some texts, and Python's engine blocks the whole interpreter meanwhile. A
helper process therefore matches them with the same engine, and is ended in time.
"""

from __future__ import annotations

import atexit
import os
import pickle
import re
import sys
from contextlib import suppress
from subprocess import PIPE
from threading import BoundedSemaphore
from typing import IO, Literal

from agentest.support.interrupts import start_helper

_CPU_LIMIT_S = 1.0  # CPU time, not elapsed time, because a busy machine must not cause a timeout
_AT_ONCE = 4
_REPEATS = re.compile(r"[*+?{]")
_MAX_FAST_CHOICES = 6
_ANSWER_BYTES = 17
_PROGRAM = """
import pickle, re, signal, sys
limited = hasattr(signal, "setitimer")
if limited:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
while True:
    try:
        pattern, flags, method, text, seconds = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    if limited:
        signal.setitimer(signal.ITIMER_PROF, seconds)
    found = getattr(re.compile(pattern, flags), method)(text)
    if limited:
        signal.setitimer(signal.ITIMER_PROF, 0)
    begin, end = found.span() if found else (0, 0)
    sys.stdout.buffer.write((b"+" if found else b"-") + begin.to_bytes(8, "big") + end.to_bytes(8, "big"))
    sys.stdout.buffer.flush()
"""


class PatternTimeout(Exception):
    """It could not be decided in time whether the expression matches."""


class _Helper:
    """A process that matches one expression after another. It exits when its input ends."""

    def __init__(self) -> None:
        self._process = start_helper([sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=PIPE, stdout=PIPE)
        assert self._process.stdin
        assert self._process.stdout
        self._questions: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout

    def ask(self, question: tuple[object, ...]) -> bytes:
        """Return the helper's output; empty if it has exited."""
        try:
            pickle.dump(question, self._questions)
            self._questions.flush()
        except BrokenPipeError:
            return b""
        return self._answers.read(_ANSWER_BYTES)

    def close(self) -> None:
        self._process.kill()
        self._answers.close()
        with suppress(BrokenPipeError):
            self._questions.close()
        self._process.wait()


_places = BoundedSemaphore(_AT_ONCE)
_idle: list[_Helper] = []


def _close_all() -> None:
    while _idle:
        _idle.pop().close()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # they answer to the parent


def has_match(pattern: re.Pattern[str], text: str) -> bool:
    """Return True if the expression matches anywhere in the text. Blocks. Raises PatternTimeout."""
    return _match(pattern, "search", text) is not None


def first_match(pattern: re.Pattern[str], text: str) -> str | None:
    """Return the first match in the text; None if there is none. Blocks. Raises PatternTimeout."""
    span = _match(pattern, "search", text)
    return None if span is None else text[slice(*span)]


def matches_whole(pattern: re.Pattern[str], text: str) -> bool:
    """Return True if the expression matches the whole text. Blocks. Raises PatternTimeout."""
    return _match(pattern, "fullmatch", text) is not None


def _match(
    pattern: re.Pattern[str], method: Literal["search", "fullmatch"], text: str
) -> tuple[int, int] | None:
    # Without repetition and with few choices, no match takes long.
    if not _REPEATS.search(pattern.pattern) and pattern.pattern.count("|") <= _MAX_FAST_CHOICES:
        match: re.Match[str] | None = getattr(pattern, method)(text)
        return match.span() if match else None
    with _places:
        try:  # another thread may take the last one
            helper = _idle.pop()
        except IndexError:
            helper = _Helper()
        answer = helper.ask((pattern.pattern, pattern.flags & ~re.DEBUG, method, text, _CPU_LIMIT_S))
        if answer:
            _idle.append(helper)
        else:
            helper.close()
    if not answer:
        raise PatternTimeout(
            f"re.compile({pattern.pattern!r}) gave no answer within {_CPU_LIMIT_S:g} s on a text of "
            f"{len(text)} characters; write it so that no repetition stands inside another"
        )
    begin, end = (int.from_bytes(part, "big") for part in (answer[1:9], answer[9:]))
    return (begin, end) if answer[:1] == b"+" else None
