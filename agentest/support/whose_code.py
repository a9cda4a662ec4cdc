"""Whose code runs here: an agent's, whose tool calls somebody answers, or the user's own, like a mock's.

It is known by a context variable, which follows code into tasks, and into threads that are given a context.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

THE_USERS: Final = object()
"""Code that is no agent's: nobody answers the tools that it calls."""
_current: ContextVar[Any] = ContextVar("agentest_whose_code", default=None)


def whose_code() -> Any:
    """Who answers the tool calls of the code that runs here: THE_USERS, or what `code_of` was given.

    None: that is not known.
    """
    return _current.get()


@contextmanager
def code_of(who: Any) -> Iterator[None]:
    """Have what runs meanwhile be somebody's code."""
    token = _current.set(who)
    try:
        yield
    finally:
        _current.reset(token)
