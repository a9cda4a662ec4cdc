"""Calling an agent in this process: within its time, with what it raises as its own error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from agentest.errors import AgentError, AgentestError
from agentest.support.calling import Steps, ends_the_run, words_of
from agentest.support.deadlines import TimeLimit

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

    Args:
        call: gets a counter, through whose `of` it awaits what is the agent's own.
        who: what answers, in messages, like "the handler".
        name: the agent's.
    """
    limit, steps = TimeLimit(timeout_s), Steps()
    too_late = AgentError(f"{who} of agent {name!r} did not answer within {timeout_s:g} s")
    try:
        with limit:
            value = await call(steps)
    except AgentestError:
        raise
    except BaseException as error:
        if ends_the_run(error):
            raise
        if limit.expired and isinstance(error, TimeoutError):
            raise too_late from None
        raise AgentError(f"{who} raised {type(error).__name__}: {words_of(error)}") from error
    # What holds up the event loop is not the agent's doing, but for what it did in it itself.
    took = min(limit.elapsed + steps.blocked, limit.elapsed_in_all)
    if took > timeout_s:
        raise too_late
    return Timed(value, took * 1000)
