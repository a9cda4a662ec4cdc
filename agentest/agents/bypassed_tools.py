"""Bypass detection for tools that an agent runs itself although a scenario mocks them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from agentest.agents.port import MockBypassed, TurnContext
from agentest.domain.messages import Message, ToolResult
from agentest.domain.transcript import ToolCall
from agentest.support.errors import CannotSend


class BypassDetector:
    """The tools that one agent was seen to run itself, over all its conversations."""

    def __init__(self, agent: str, *, handed_over: str, left_out: str = "") -> None:
        """Set the instructions for error messages.

        Args:
            handed_over: how such an agent can hand a call to its client.
            left_out: what to remove together with the mock if the real tool may run.
        """
        self._agent = agent
        self._how_to_hand_over = handed_over
        self._also_remove = left_out
        self._names: dict[str, None] = {}
        self.unreachable: str | None = None
        """Why mocks cannot reach this agent at all, if a conversation has shown that."""

    def check_before(self, ctx: TurnContext) -> None:
        """Raise CannotSend if the scenario mocks a tool that the agent runs itself, since it would run again.

        Tools are not checked here if mocks may have answered such calls: the turn loop checks those.
        """
        if self.unreachable and ctx.tools:
            raise CannotSend(f"this conversation was not begun: {self.unreachable}")
        if names := self._mocked(self._names, ctx):
            raise CannotSend(
                f"this conversation was not begun: in another one agent {self._agent!r} ran "
                f"{quote_tool_names(names)} itself, which the scenario mocks, and the real tool would run "
                "again. That conversation says what can be done"
            )

    def check_after(
        self, observed: Sequence[ToolCall], ctx: TurnContext, not_run: Collection[str] = ()
    ) -> None:
        """Raise MockBypassed if the agent itself ran a tool that the scenario mocks.

        Args:
            observed: the calls that the agent reported.
            not_run: ids of observed calls that mocks have answered.
        """
        own = [call.name for call in observed if call.ran and call.call_id not in not_run]
        self._names |= dict.fromkeys(own)
        if names := self._mocked(own, ctx):
            raise MockBypassed(self._bypass_message(names), observed, tools=names)

    def _mocked(self, names: Iterable[str], ctx: TurnContext) -> list[str]:
        mocked = set() if ctx.mocks_inside else {tool.name for tool in ctx.tools}
        return [name for name in dict.fromkeys(names) if name in mocked]

    def _bypass_message(self, names: Sequence[str]) -> str:
        return (
            f"agent {self._agent!r} ran {quote_tool_names(names)} itself: the scenario's mock was ignored, "
            f"and the real tool ran. If it may run, remove its mock{self._also_remove}; otherwise "
            f"{self._how_to_hand_over}"
        )


def ids_of_mocked_calls(messages: Sequence[Message]) -> frozenset[str]:
    """Return the ids of calls that mocks have answered."""
    return frozenset(message.request_id for message in messages if isinstance(message, ToolResult))


def quote_tool_names(names: Sequence[str]) -> str:
    """Return `tool 'find'`, or `tools 'find', 'book'`."""
    return f"tool{'' if len(names) == 1 else 's'} {', '.join(map(repr, names))}"
