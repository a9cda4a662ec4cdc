"""Where gates stand: in a context variable, which follows the agent's code into tasks and threads.

A gate stands before all tools of an agent object. Handlers and applications have one that is asked for: by
tools that a line of their code has led to it (`objects.lines`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from os import environ
from typing import Any

from agentest.agents.in_process.gate import Gate
from agentest.support.errors import AgentError, MockError
from agentest.support.function_threads import in_function_thread
from agentest.support.whose_code import THE_USERS, code_of, whose_code

_PLACED = "__agentest_gate__"
_SERVED = ("AGENTEST_MCP_URL", "AGENTEST_REST_URL")
"""What a process finds in its environment that a run has started, with mock servers beside it."""
_homes: Counter[int] = Counter()
"""The threads whose event loops lead conversations, and how many gates stand there now."""
_asked_for: list[Gate] = []
"""The gates that may be asked for now."""
_runs: list[object] = []
"""The runs that are under way in this process."""


@dataclass(frozen=True, slots=True)
class _ForWhoAsks:
    """A gate that stands before no tool but those that ask for it."""

    gate: Gate


def current() -> Gate | None:
    """The gate of the conversation whose code this is; None outside of conversations.

    Raises AgentError in a thread of the user's that does not know its conversation, while there are any.
    """
    who = whose_code()
    if isinstance(who, Gate):
        return who
    if who is not None:
        return None
    if _homes and threading.get_ident() not in _homes and not in_function_thread():
        raise AgentError(
            f"a tool or agent was called in thread {threading.current_thread().name!r}, which does not know "
            "whose conversation it works for, so that mocks cannot answer; it was not run. Call it by "
            "asyncio.to_thread, or give the thread its context: contextvars.copy_context().run"
        )
    return None


def asked(name: str, given: Gate | None = None) -> Gate | None:
    """The gate that a tool asks for; None: the real one runs, as no run is under way, or a mock calls it.

    Args:
        name: the tool's, for errors.
        given: the gate of the conversation, where the code says which that is.

    Raises MockError where it is not known whose call it is; conversations that it may be of end with it.
    """
    who = whose_code()
    if who is THE_USERS or isinstance(who, Gate):  # which stands before it already
        return None
    if given is not None:
        return given
    if isinstance(who, _ForWhoAsks):
        return who.gate
    if _runs:
        raise _lost(name)
    if any(environ.get(variable) for variable in _SERVED):
        raise MockError(
            f"tool {name!r} was not run: Agentest has started this process, and its mocks are at the mock "
            "server ($AGENTEST_MCP_URL, $AGENTEST_REST_URL), not in here. Let the tool call that; or run "
            "the agent in Agentest's process (`app`, or type: custom)"
        )
    return None


def _lost(name: str) -> MockError:
    error = MockError(
        f"tool {name!r} was called where it is not known for which conversation, in thread "
        f"{threading.current_thread().name!r}, so that mocks cannot answer; it was not run. Call it in the "
        "task of the request, by asyncio.to_thread, or with its context: contextvars.copy_context().run; "
        "or give ctx to agentest.mocks"
    )
    for gate in tuple(_asked_for):
        gate.end_turn(error)
    return error


@contextmanager
def standing(gate: Gate) -> Iterator[None]:
    """Have a gate stand before all tools that are called from here on."""
    home = threading.get_ident()
    _homes[home] += 1
    try:
        with code_of(gate):
            yield
    finally:
        _homes[home] -= 1
        if not _homes[home]:
            del _homes[home]


@contextmanager
def to_be_asked_for(gate: Gate) -> Iterator[None]:
    """Have tools that ask for a gate find this one in what is called from here on."""
    _asked_for.append(gate)
    try:
        with code_of(_ForWhoAsks(gate)):
            yield
    finally:
        _asked_for.remove(gate)


@contextmanager
def run_under_way() -> Iterator[None]:
    """Have no tool that asks for a gate run the real one without a conversation."""
    run = object()
    _runs.append(run)
    try:
        yield
    finally:
        _runs.remove(run)


def place(owner: Any, method: str, gated: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Lead a method of a framework's class by the gate, once and for all: without a gate it is what it was.

    Args:
        gated: makes the method to be called from the one that was there.
    """
    original = owner.__dict__[method]
    if hasattr(original, _PLACED):
        return
    made = wraps(original)(gated(original))
    setattr(made, _PLACED, True)
    setattr(owner, method, made)
