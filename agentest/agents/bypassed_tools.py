"""Tools that an agent was seen to run itself: where a scenario mocks one of them, the real tool would run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from agentest.agents.port import MockBypassed, TurnContext
from agentest.domain.messages import Message, ToolResult
from agentest.domain.transcript import ToolCall
from agentest.support.errors import CannotSend


class OwnTools:
    """What one agent was seen to run itself, in all its conversations."""

    def __init__(self, agent: str, *, handed_over: str, left_out: str = "") -> None:
        """What to tell users to do.

        Args:
            handed_over: how such an agent hands a call to its caller, as an instruction.
            left_out: what is to be removed with the mock, where the real tool may run.
        """
        self._agent = agent
        self._handed_over = handed_over
        self._left_out = left_out
        self._names: dict[str, None] = {}
        self.unreachable: str | None = None
        """Why no mock can answer it at all, as one conversation has shown."""

    def check_before(self, ctx: TurnContext) -> None:
        """Raise CannotSend where a scenario mocks a tool that the agent runs itself: it would run again.

        Where mocks may have answered what it runs itself, the turn loop, which knows, checks that.
        """
        if self.unreachable and ctx.tools:
            raise CannotSend(f"this conversation was not begun: {self.unreachable}")
        if names := self._mocked(self._names, ctx):
            raise CannotSend(
                f"this conversation was not begun: in another one agent {self._agent!r} ran "
                f"{named_tools(names)} itself, which the scenario mocks, and the real tool would run again. "
                "That conversation says what can be done"
            )

    def check_after(
        self, observed: Sequence[ToolCall], ctx: TurnContext, not_run: Collection[str] = ()
    ) -> None:
        """Raise MockBypassed where the agent made a call itself that the scenario mocks.

        Args:
            observed: the calls that it tells of.
            not_run: ids of those among them that mocks have answered.
        """
        own = [call.name for call in observed if call.ran and call.call_id not in not_run]
        self._names |= dict.fromkeys(own)
        if names := self._mocked(own, ctx):
            raise MockBypassed(self._bypassed(names), observed, tools=names)

    def _mocked(self, names: Iterable[str], ctx: TurnContext) -> list[str]:
        mocked = set() if ctx.mocks_inside else {tool.name for tool in ctx.tools}
        return [name for name in dict.fromkeys(names) if name in mocked]

    def _bypassed(self, names: Sequence[str]) -> str:
        return (
            f"agent {self._agent!r} ran {named_tools(names)} itself: the scenario's mock was ignored, and "
            f"the real tool ran. If it may run, remove its mock{self._left_out}; otherwise "
            f"{self._handed_over}"
        )


def answered_by_us(messages: Sequence[Message]) -> frozenset[str]:
    """Ids of the calls that mocks have answered."""
    return frozenset(message.request_id for message in messages if isinstance(message, ToolResult))


def named_tools(names: Sequence[str]) -> str:
    """`tool 'find'`, or `tools 'find', 'book'`."""
    return f"tool{'' if len(names) == 1 else 's'} {', '.join(map(repr, names))}"
