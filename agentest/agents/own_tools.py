"""Tools that an agent was seen to run itself: where a scenario mocks one of them, the real tool would run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentest.agents.port import MockBypassed, TurnContext
from agentest.errors import CannotSend
from agentest.messages import Message, ToolResult
from agentest.transcript import ToolCall

_WAY = "\n  - "


class OwnTools:
    """What one agent was seen to run itself, in all its conversations."""

    def __init__(self, agent: str, handed_over: str) -> None:
        """`handed_over` says how such an agent hands a call to its caller, as an instruction."""
        self._agent = agent
        self._handed_over = handed_over
        self._names: dict[str, None] = {}

    def check_before(self, ctx: TurnContext) -> None:
        """Raise CannotSend where a scenario mocks a tool that the agent runs itself: it would run again."""
        if names := self._mocked(self._names, ctx):
            raise CannotSend(
                f"this conversation was not begun: in another one agent {self._agent!r} ran {_tools(names)} "
                "itself, which the scenario mocks, and the real tool would run again. That conversation says "
                "what can be done"
            )

    def check_after(
        self, observed: Sequence[ToolCall], messages: Sequence[Message], ctx: TurnContext
    ) -> None:
        """Raise MockBypassed where the agent made a call itself that the scenario mocks.

        Args:
            observed: the calls that it made; it may repeat those that it asked for before.
            messages: of the conversation until then.
        """
        answered = {message.request_id for message in messages if isinstance(message, ToolResult)}
        own = [call.name for call in observed if call.call_id is None or call.call_id not in answered]
        self._names |= dict.fromkeys(own)
        if names := self._mocked(own, ctx):
            raise MockBypassed(self._bypassed(names), observed)

    def _mocked(self, names: Iterable[str], ctx: TurnContext) -> list[str]:
        mocked = {tool.name for tool in ctx.tools}
        return [name for name in dict.fromkeys(names) if name in mocked]

    def _bypassed(self, names: Sequence[str]) -> str:
        ways = (
            "if the real tool may run: leave its mock out (`tools`, --mocks)",
            f"if it must not: {self._handed_over}",
            "if none of its tools can be mocked: tool_visibility: reported says so before a run begins",
        )
        return (
            f"agent {self._agent!r} ran {_tools(names)} itself: the scenario's mock was ignored, and the "
            f"real tool ran. Ways out:{''.join(f'{_WAY}{way}' for way in ways)}"
        )


def _tools(names: Sequence[str]) -> str:
    return f"tool{'' if len(names) == 1 else 's'} {', '.join(map(repr, names))}"
