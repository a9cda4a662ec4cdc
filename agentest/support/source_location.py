"""Locations in the user's files for messages: `booking.sim.py:12`."""

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
    """Return file and line of the innermost frame of an error in the user's files.

    Returns "" if there is none.

    Args:
        code: a function or object whose definition is used if no frame is in the user's files.
    """
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [f"{Path(file).name}:{line}" for file, line in places if is_users_file(file)]
    return own[-1] if own else defined_at(code)


def called_at() -> str:
    """Return file and line of the nearest caller in the user's files; "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""


def defined_at(code: Any) -> str:
    """Return file and line of a user function; "" for anything else."""
    while isinstance(code, partial):
        code = code.func
    found = getattr(inspect.unwrap(code) if inspect.isroutine(code) else None, "__code__", None)
    if found is None or not is_users_file(found.co_filename):
        return ""
    return f"{Path(found.co_filename).name}:{found.co_firstlineno}"
