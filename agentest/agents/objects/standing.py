"""Where gates stand: in a context variable, which follows the agent's code into tasks and threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from agentest.agents.objects.gate import Gate
from agentest.agents.port import ResolveTool
from agentest.errors import AgentError
from agentest.support.calling import in_function_thread

_PLACED = "__agentest_gate__"
_current: ContextVar[Gate | None] = ContextVar("agentest_gate", default=None)
_homes: Counter[int] = Counter()
"""The threads whose event loops lead conversations, and how many gates stand there now."""


def current() -> Gate | None:
    """The gate of the conversation whose code this is; None outside of conversations.

    Raises AgentError in a thread of the user's that does not know its conversation, while there are any.
    """
    gate = _current.get()
    lost = gate is None and _homes and threading.get_ident() not in _homes and not in_function_thread()
    if lost:
        raise AgentError(
            f"a tool or agent was called in thread {threading.current_thread().name!r}, which does not know "
            "whose conversation it works for, so that mocks cannot answer; it was not run. Call it by "
            "asyncio.to_thread, or give the thread its context: contextvars.copy_context().run"
        )
    return gate


@contextmanager
def standing(gate: Gate | None) -> Iterator[None]:
    """Have a gate stand before all tools that are called from here on; None: none, for code of ours."""
    token, home = _current.set(gate), threading.get_ident()
    _homes[home] += 1
    try:
        yield
    finally:
        _current.reset(token)
        _homes[home] -= 1
        if not _homes[home]:
            del _homes[home]


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


def without_a_gate(resolve_tool: ResolveTool) -> ResolveTool:
    """Mocks may call the real tool: no gate stands before that."""

    async def resolve(name: str, args: Any) -> Any:
        with standing(None):
            return await resolve_tool(name, args)

    return resolve
