"""Regular expressions on what an agent wrote, with a time limit.

Some expressions take for ever on some texts, and Python's engine holds the whole interpreter meanwhile: no
other thread gets on. So they are matched in a helper process, by the same engine, which ends in time.
"""

from __future__ import annotations

import atexit
import os
import pickle
import re
import sys
from contextlib import suppress
from subprocess import DEVNULL, PIPE, Popen
from threading import BoundedSemaphore
from typing import IO, Literal

_LIMIT_S = 1.0
"""Of the processor, not of the clock: a busy machine is nobody's fault."""
_AT_ONCE = 4
_REPEATS = re.compile(r"[*+?{]")
_FEW_CHOICES = 6
"""So many `|` at most double the work six times."""
_ANSWER_BYTES = 17
"""`+` or `-`, and where the match begins and ends."""
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
    """Whether the expression matches could not be decided."""


class _Helper:
    """A process that matches one expression after another. It ends with us: its input does."""

    def __init__(self) -> None:
        # A session of its own: Ctrl-C in the terminal is not for it.
        self._process = Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._questions: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout

    def ask(self, question: tuple[object, ...]) -> bytes:
        """What the program writes, or nothing where the process has ended."""
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


def searches(pattern: re.Pattern[str], text: str) -> bool:
    """Whether the expression matches somewhere in the text. Blocks. Raises PatternTimeout."""
    return _match(pattern, "search", text) is not None


def found_in(pattern: re.Pattern[str], text: str) -> str | None:
    """The first part of the text that the expression matches. Blocks. Raises PatternTimeout."""
    span = _match(pattern, "search", text)
    return None if span is None else text[slice(*span)]


def matches_whole(pattern: re.Pattern[str], text: str) -> bool:
    """Whether the expression matches the whole text. Blocks. Raises PatternTimeout."""
    return _match(pattern, "fullmatch", text) is not None


def _match(
    pattern: re.Pattern[str], method: Literal["search", "fullmatch"], text: str
) -> tuple[int, int] | None:
    """Where the match begins and ends; None: there is none."""
    # Without repetition, and with few choices, nothing can take long.
    if not _REPEATS.search(pattern.pattern) and pattern.pattern.count("|") <= _FEW_CHOICES:
        match: re.Match[str] | None = getattr(pattern, method)(text)
        return match.span() if match else None
    question = (pattern.pattern, pattern.flags & ~re.DEBUG, method, text, _LIMIT_S)
    with _places:
        answer = _asked(question)
    if not answer:
        raise PatternTimeout(
            f"re.compile({pattern.pattern!r}) gave no answer within {_LIMIT_S:g} s on a text of {len(text)} "
            "characters; write it so that no repetition stands inside another"
        )
    begin, end = (int.from_bytes(part, "big") for part in (answer[1:9], answer[9:]))
    return (begin, end) if answer[:1] == b"+" else None


def _asked(question: tuple[object, ...]) -> bytes:
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    answer = helper.ask(question)
    if answer:
        _idle.append(helper)
    else:
        helper.close()
    return answer
