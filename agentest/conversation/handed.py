"""The calls that an agent in this process hands to us while it answers: `ctx.resolve_tool`."""

from __future__ import annotations

from typing import Any

from agentest.errors import AgentError, AgentestError, MockError
from agentest.mocks.resolver import MockResolver


class HandedCalls:
    """The calls of one request, and what became of them: the agent may swallow that."""

    def __init__(self, turn_index: int, mocks: MockResolver) -> None:
        self._turn_index = turn_index
        self._mocks = mocks
        self._ended: list[AgentestError] = []
        self._waiting: list[str] = []

    async def resolve(self, name: str, args: Any = None) -> Any:
        """Answer a call by its mock (`agents.port.ResolveTool`)."""
        self._waiting.append(name)
        try:
            result = await self._mocks.resolve(name, {} if args is None else args, self._turn_index)
        except AgentestError as error:
            self._ended.append(error)
            raise
        self._waiting.remove(name)
        return result

    def check(self) -> None:
        """Raise what ended the conversation: a handler may have caught it, but it does end it."""
        if self._ended:
            raise self._ended[0]

    def check_answered(self, error: AgentError) -> None:
        """Raise MockError where the agent has come to an error as a mock had not answered it."""
        if self._waiting and not self._ended:
            raise MockError(f"the mock of tool {self._waiting[0]!r} did not answer: {error}") from error
