"""An agent in Python: a function from messages to a message."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread

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
        ctx = replace(ctx, resolve_tool=_from_anywhere(ctx.resolve_tool))
        try:
            with anyio.fail_after(self._timeout_s):
                answer = await self._call([dict(m) for m in messages], ctx)
        except TimeoutError:
            raise AgentError(
                f"the handler of agent {self.name!r} did not answer within {self._timeout_s:g} s"
            ) from None
        except AgentestError:
            raise
        except Exception as error:
            raise AgentError(f"the handler raised {type(error).__name__}: {error}") from error
        reply = AgentReply(answer) if isinstance(answer, str) else read_message(answer)
        return replace(reply, latency_ms=(perf_counter() - started) * 1000)

    async def _call(self, messages: list[Message], ctx: TurnContext) -> Any:
        if self._is_async:
            return await self._handler(messages, ctx)
        answer = await anyio.to_thread.run_sync(
            self._handler, messages, ctx, abandon_on_cancel=True, limiter=self._threads
        )
        return await answer if inspect.isawaitable(answer) else answer


def _from_anywhere(resolve_tool: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """`resolve_tool` that can be awaited in the event loop and called plainly in a handler's thread."""

    def resolve(name: str, args: Any = None) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # in the handler's thread
            return anyio.from_thread.run(resolve_tool, name, args)
        return resolve_tool(name, args)

    return resolve
