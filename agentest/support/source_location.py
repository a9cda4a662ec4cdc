"""Where in the user's own files something went wrong, is called or stands: `booking.sim.py:12`."""

from __future__ import annotations

import inspect
import sys
import traceback
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from agentest.support.importing import is_users_file


def raised_at(error: BaseException, code: Any = None) -> str:
    """File and line of the innermost place in the user's files that the error went through.

    Args:
        code: the function or object that was asked, whose own place is told where the error went through
            no file of the user's.

    "" where neither is known.
    """
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [f"{Path(file).name}:{line}" for file, line in places if is_users_file(file)]
    return own[-1] if own else defined_at(code)


def called_at() -> str:
    """File and line of the nearest caller in the user's own files; "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""


def defined_at(code: Any) -> str:
    """File and line of a function of the user's; "" for anything else."""
    while isinstance(code, partial):
        code = code.func
    found = getattr(inspect.unwrap(code) if inspect.isroutine(code) else None, "__code__", None)
    if found is None or not is_users_file(found.co_filename):
        return ""
    return f"{Path(found.co_filename).name}:{found.co_firstlineno}"
