"""Calling an agent in this process: within its time, with what it raises as its own error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio

from agentest.support.calling import Steps, end_tasks, ends_the_run, words_of
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, AgentestError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """What was answered, and how long that took."""

    value: T
    latency_ms: float


async def answer_in_time(
    call: Callable[[Steps], Awaitable[T]], timeout_s: float, who: str, name: str
) -> Timed[T]:
    """What `call` answers. Raises AgentError; other AgentestErrors pass through.

    The call has a task of its own: one that swallows its cancellation is left behind, and the run goes on.

    Args:
        call: gets a counter, through whose `of` it awaits what is the agent's own.
        who: what answers, in messages, like "the handler".
        name: the agent's.
    """
    limit, steps = TimeLimit(timeout_s), Steps()
    too_late = f"{who} of agent {name!r} did not answer within {timeout_s:g} s"
    task = asyncio.ensure_future(_outcome(call(steps)))
    try:
        with limit:
            await asyncio.wait((task,))
    except TimeoutError:
        raise AgentError(too_late + await _ended(task)) from None
    except BaseException:  # the run ends
        with anyio.CancelScope(shield=True):
            await end_tasks((task,))
        raise
    value = _value(task, who)
    # What holds up the event loop is not the agent's doing, but for what it did in it itself.
    took = min(limit.elapsed + steps.blocked, limit.elapsed_in_all)
    if took > timeout_s:
        raise AgentError(too_late)
    return Timed(value, took * 1000)


async def _outcome(call: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    """What the call answers or raises, as a value: a task that raises SystemExit would end the event loop."""
    try:
        return await call, None
    except BaseException as error:
        if ends_the_run(error):
            raise
        return None, error


async def _ended(task: asyncio.Task[Any]) -> str:
    """End a call that is too late. Returns what to say of one that does not end."""
    if not await end_tasks((task,)):
        return ""
    return (
        "; it was cancelled, swallowed that, and goes on: it was left behind, and nobody sees what it does "
        "now. Where it catches asyncio.CancelledError, it must raise it again"
    )


def _value(task: asyncio.Task[tuple[T | None, BaseException | None]], who: str) -> Any:
    """What the call answered. Raises AgentError for what it raised; AgentestErrors pass through."""
    if task.cancelled():
        raise AgentError(f"{who} cancelled the task that it runs in")
    value, error = task.result()
    if error is None:
        return value
    if isinstance(error, AgentestError):
        raise error
    raise AgentError(f"{who} raised {type(error).__name__}: {words_of(error)}") from error
