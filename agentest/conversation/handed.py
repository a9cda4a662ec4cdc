"""The calls that an agent in this process hands to us while it answers: `ctx.resolve_tool`."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import Any

from agentest.mocks.resolver import MockResolver
from agentest.support.errors import AgentError, AgentestError, MockError
from agentest.support.raised_at import called_at


class HandedCalls:
    """The calls of one request, and what became of them: the agent may swallow that."""

    def __init__(self, turn_index: int, mocks: MockResolver) -> None:
        self._turn_index = turn_index
        self._mocks = mocks
        self._ended: list[AgentestError] = []
        self._waiting: list[str] = []
        self._made: list[tuple[Coroutine[Any, Any, Any], str, str]] = []
        """Each call, with the tool's name and where the agent made it."""

    def resolve(self, name: str, args: Any = None) -> Coroutine[Any, Any, Any]:
        """Answer a call by its mock when it is awaited (`agents.port.ResolveTool`)."""
        call = self._answer(name, args)
        self._made.append((call, name, called_at()))
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

    def check(self) -> None:
        """Raise what ended the conversation: a handler may have caught it, but it does end it.

        Raises AgentError for a call that the handler did not await: no tool ran.
        """
        missed = self._not_awaited()
        if self._ended:
            raise self._ended[0]
        if missed:
            raise AgentError(missed)

    def check_answered(self, error: AgentError) -> None:
        """Raise what lies behind an error of the agent: a call without an answer, or one not awaited.

        Raises MockError for the first and AgentError for the second.
        """
        missed = self._not_awaited()
        if self._waiting and not self._ended:
            raise MockError(f"the mock of tool {self._waiting[0]!r} did not answer: {error}") from error
        if missed:
            raise AgentError(f"{error}; {missed}") from error

    def _not_awaited(self) -> str:
        """What to say of the first call that was made and not awaited; "": there is none. Closes them all."""
        found = [each for each in self._made if inspect.getcoroutinestate(each[0]) == inspect.CORO_CREATED]
        for call, _, _ in found:
            call.close()
        if not found:
            return ""
        _, name, place = found[0]
        where = f"{place}: " if place else ""
        return (
            f"{where}the handler did not await ctx.resolve_tool({name!r}), so no tool ran: "
            f"write `await ctx.resolve_tool({name!r}, …)`"
        )
