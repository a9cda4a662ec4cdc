"""Ctrl-C: the first one ends what is going on, the second one the process. Standard library only."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from agentest.errors import ExitCode

_SHOW_CURSOR = b"\x1b[?25h"
_heard: list[int] = []


def hear() -> None:
    """From now on keep Ctrl-C in mind, also where somebody else's code takes the exception for its own."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def heard() -> bool:
    """Whether Ctrl-C was pressed outside of a run, which handles it by itself."""
    return bool(_heard)


def _interrupted(number: int, _: FrameType | None) -> None:
    if _heard:
        end_at_once()
    _heard.append(number)
    raise KeyboardInterrupt


def end_at_once(last_words: str = "") -> None:
    """End the process without asking anybody, and leave the terminal in order.

    Straight to the files: whatever is blocking may hold the locks of the streams.
    """
    if os.isatty(1) and os.environ.get("TERM") != "dumb":
        os.write(1, _SHOW_CURSOR)  # who shows progress hides it
    if last_words:
        os.write(2, last_words.encode(sys.getfilesystemencoding(), "backslashreplace"))
    os._exit(ExitCode.INTERRUPTED)
