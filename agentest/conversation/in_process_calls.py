"""Calls of code in this process: of a handler through its context, and of tools that look for the turn."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agentest.agents.port import InProcessTurn, TurnContext
from agentest.conversation.turn_progress import CallSource, TurnProgress
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall, Usage
from agentest.mocks.calls import PendingRealCall
from agentest.mocks.resolver import MockResolver
from agentest.support.calling import code_owned_by, make_loop_independent
from agentest.support.errors import AgentError, AgentestError, MockError
from agentest.support.importing import called_at
from agentest.support.json_text import NotJson, json_text, safe_repr
from agentest.support.lazy_dataclasses import replace


class InProcessCalls(CallSource):
    """Answers and records calls of an agent's code in this process; with `mocks_inside` all by mocks."""

    def __init__(self, mocks: MockResolver, *, mocks_inside: bool = False) -> None:
        self._mocks = mocks
        self._mocks_inside = mocks_inside
        self.remedy = "lead all tools of the agent to the mocks (agentest.mocks)" if mocks_inside else ""
        self._request: RequestCalls | None = None  # the last request, until its errors have been checked
        self._turns: list[InProcessTurn] = []

    @asynccontextmanager
    async def request(self, turn: TurnProgress, ctx: TurnContext) -> AsyncIterator[TurnContext]:
        calls = self._request = RequestCalls(turn.turn_index, self._mocks)
        this_turn = InProcessTurn()
        self._turns.append(this_turn)
        ctx = replace(
            ctx,
            resolve_tool=make_loop_independent(calls.resolve),
            record_tool=calls.record_tool,
            record_usage=calls.record_usage,
            real_call=calls.real_call,
            mocks_inside=ctx.mocks_inside or self._mocks_inside,
            in_process=this_turn,
        )
        InProcessTurn.in_progress.append(this_turn)
        try:
            with code_owned_by(ctx):
                yield ctx
        finally:
            InProcessTurn.in_progress.remove(this_turn)
            calls.close()
            turn.usage += calls.usage

    async def check(self, cause_of: Exception | None = None) -> None:
        for turn in self._turns:
            if turn.ended is not None:
                raise turn.ended from cause_of
        if self._request is not None:
            request, self._request = self._request, None
            request.check(cause_of)

    def close(self) -> None:
        for turn in self._turns:
            turn.is_over = True


class RequestCalls:
    """Calls an agent reports in one request (invalid ones are its error), and errors it may swallow."""

    def __init__(self, turn_index: int, mocks: MockResolver) -> None:
        self.usage = Usage()
        self._turn_index = turn_index
        self._mocks = mocks
        self._closed = False
        self._ended: list[AgentestError] = []
        self._waiting: list[str] = []
        self._made: list[tuple[Coroutine[Any, Any, Any], str, str]] = []
        """Each call with the tool's name and the agent's line that made it."""

    def resolve(self, name: str, args: Any = None) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that answers a call by its mock (`agents.port.ResolveTool`)."""
        call = self._answer(name, args)
        self._made.append((call, name, called_at(sys._getframe())))
        return call

    async def _answer(self, name: str, args: Any) -> Any:
        self._waiting.append(name)
        try:
            result = await self._mocks.resolve(name, {} if args is None else args, self._turn_index)
        except AgentestError as error:
            self._ended.append(error)
            raise
        self._waiting.remove(name)
        return result

    def check(self, cause_of: Exception | None = None) -> None:
        """Raise the error that ended the conversation, even if a handler has caught it.

        Raises AgentError for a call that the handler did not await, because no tool ran, and MockError for
        one that its mock has not answered. An agent's own error (`cause_of`) stays the error if it explains
        more than these.
        """
        missed = self._not_awaited()
        if cause_of is None:
            if self._ended:
                raise self._ended[0]
            if missed:
                raise AgentError(missed)
            return
        if self._waiting and not self._ended:
            raise MockError(f"the mock of tool {self._waiting[0]!r} did not answer: {cause_of}") from cause_of
        if missed:
            raise AgentError(f"{cause_of}; {missed}") from cause_of

    def _not_awaited(self) -> str:
        pending = [each for each in self._made if inspect.getcoroutinestate(each[0]) == inspect.CORO_CREATED]
        for call, _, _ in pending:
            call.close()
        if not pending:
            return ""
        _, name, location = pending[0]
        where = f"{location}: " if location else ""
        return (
            f"{where}the handler did not await ctx.resolve_tool({name!r}), so no tool ran: "
            f"write `await ctx.resolve_tool({name!r}, …)`"
        )

    def close(self) -> None:
        """Accept no more records: the agent has replied."""
        self._closed = True

    def record_tool(self, name: str, args: Mapping[str, Any] | None = None, result: Any = None) -> None:
        """Record a call that the agent made and answered itself, as JSON values. Raises AgentError."""
        if not isinstance(name, str) or not name:
            raise AgentError(f"record_tool: `name` must be the tool's name, found {safe_repr(name)}")
        self._check_open(f"record_tool({name!r})")
        if args is not None and not isinstance(args, Mapping):
            raise AgentError(
                f"record_tool({name!r}): `args` must be a mapping of arguments, found {safe_repr(args)}"
            )
        call = ToolCall(
            name,
            _plain(name, "args", dict(args or {})),
            _plain(name, "result", result),
            False,
            self._turn_index,
            seen_by=SeenBy.AGENT,
        )
        self._mocks.observe((call,))

    def real_call(self, name: str, args: Any) -> PendingRealCall | None:
        """Begin a call, perhaps after the reply, for the agent's own tool; None: mocks. Raises AgentError."""
        return self._mocks.real_call(name, args, self._turn_index)

    def record_usage(self, *, prompt_tokens: int = 0, completion_tokens: int = 0) -> None:
        """Add tokens to the usage of the turn. Raises AgentError."""
        self._check_open("record_usage")
        prompt = _tokens("prompt_tokens", prompt_tokens)
        self.usage += Usage(prompt, _tokens("completion_tokens", completion_tokens))

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise AgentError(f"{what}: the agent has answered already; record before the handler returns")


def _plain(name: str, what: str, value: Any) -> Any:
    try:
        return json.loads(json_text(value))
    except NotJson as error:
        call = _not_awaited(value)
        if call is None:
            problem = f"`{what}` cannot be written as JSON: {error}"
        else:
            problem = f"`{what}` is a call that was not awaited: write `await {call}(…)`"
        location = called_at(sys._getframe())
        at = f"{location}: " if location else ""
        raise AgentError(f"{at}record_tool({name!r}): {problem}") from None


def _not_awaited(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((name for name in map(_not_awaited, value) if name), None)
    return str(value.__name__) if inspect.iscoroutine(value) else None


def _tokens(name: str, count: Any) -> int:
    if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
        return count
    raise AgentError(f"record_usage: `{name}` must be a whole number of at least 0, found {safe_repr(count)}")
