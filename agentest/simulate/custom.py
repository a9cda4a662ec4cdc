"""An agent in Python: a function from messages to a message."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import anyio

from agentest.calling import ends_the_run, from_anywhere, in_thread
from agentest.errors import AgentError, AgentestError
from agentest.simulate.agents import AgentReply, Message, TurnContext
from agentest.simulate.completion import read_message


class CustomAgentClient:
    """Calls a handler. A plain function runs in a thread, so that it may block."""

    def __init__(
        self, name: str, handler: Callable[..., Any], timeout_s: float, threads: anyio.CapacityLimiter
    ) -> None:
        self.name = name
        self._handler = handler
        self._timeout_s = timeout_s
        self._threads = threads
        call = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004
        self._is_async = inspect.iscoroutinefunction(call)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The handler's answer. Raises AgentError; other AgentestErrors pass through."""
        started = perf_counter()
        ctx = replace(ctx, resolve_tool=from_anywhere(ctx.resolve_tool))
        answer = await self._in_time([dict(m) for m in messages], ctx)
        if perf_counter() - started > self._timeout_s:  # it blocked the event loop, and so its own time-out
            raise self._too_late()
        reply = AgentReply(answer) if isinstance(answer, str) else read_message(answer)
        return replace(reply, latency_ms=(perf_counter() - started) * 1000)

    async def _in_time(self, messages: list[Message], ctx: TurnContext) -> Any:
        try:
            with anyio.move_on_after(self._timeout_s) as scope:
                return await self._call(messages, ctx)
        except AgentestError:
            raise
        except BaseException as error:
            if ends_the_run(error):
                raise
            raise AgentError(f"the handler raised {type(error).__name__}: {error}") from error
        assert scope.cancelled_caught
        raise self._too_late()

    def _too_late(self) -> AgentError:
        return AgentError(f"the handler of agent {self.name!r} did not answer within {self._timeout_s:g} s")

    async def _call(self, messages: list[Message], ctx: TurnContext) -> Any:
        if self._is_async:
            return await self._handler(messages, ctx)
        async with self._threads:
            answer = await in_thread(self._handler, messages, ctx)
        return await answer if inspect.isawaitable(answer) else answer
