"""The calls of a conversation that do not come through its agent's protocol.

Tools within the agent ask at gates in this process or at mock servers, and spans tell of those that asked
nobody. The agent may swallow what ends the conversation there, so the turn loop asks for it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from agentest.agents.in_process.gate import Gate
from agentest.agents.in_process.standing import to_be_asked_for
from agentest.agents.port import TurnContext
from agentest.conversation.progress import TurnProgress
from agentest.conversation.serving import Served, check_no_bypass
from agentest.domain.transcript import Turn
from agentest.mocks.resolver import MockResolver
from agentest.support.replacing import replace
from agentest.support.trace_context import in_turn

_SERVED = (
    "give all tools of the agent the address of the mock server ({{mcp_url}}, {{rest_url}}; google-adk's "
    "server takes the plugin agentest_adk.MockTools)"
)
_IN_PROCESS = "lead all tools of the agent to the mocks (agentest.mocks)"
_HANDED_OVER = "have the agent hand the call to its caller (a handler: ctx.resolve_tool)"
"""How mocks answer calls that an agent would run itself."""


class CallsElsewhere:
    """The calls of one conversation that come to gates and servers, and those that spans tell of."""

    def __init__(self, agent: str, mocks: MockResolver, served: Served | None, *, mocks_inside: bool) -> None:
        """The parameters are as in `TurnLoop`; `agent` is its name."""
        self._agent = agent
        self._way = _SERVED if served else _IN_PROCESS if mocks_inside else _HANDED_OVER
        self._mocks = mocks
        self._tools = mocks.specs()
        self._served = served
        self._mocks_inside = mocks_inside or served is not None
        self._gates: list[Gate] = []
        self._mended: Mapping[int, str] = {}
        """Turn → why its calls were hidden when it closed; they are known by now."""

    def begin_turn(self, turn_index: int) -> None:
        """Calls that come to servers are of this turn from now on."""
        if self._served:
            self._served.turn_index = turn_index

    def reaching(self, ctx: TurnContext) -> TurnContext:
        """The context of a request, with what leads tools within the agent to us: addresses, and a gate."""
        ctx = replace(
            ctx,
            mocks_inside=self._mocks_inside,
            servers=self._served.addresses if self._served else None,
        )
        self._gates.append(Gate(ctx))
        return replace(ctx, gate=self._gates[-1])

    @contextmanager
    def asking(self, turn: TurnProgress) -> Iterator[None]:
        """While the agent is asked: requests name the turn, and are counted, and tools find the last gate."""
        with in_turn(self._served.trace if self._served else None) as sent, to_be_asked_for(self._gates[-1]):
            try:
                yield
            finally:
                turn.named += sent.requests
                turn.stays_open |= sent.stays_open

    def check_gates(self) -> None:
        """Raise what has ended the conversation at a gate."""
        for gate in self._gates:
            if gate.ended is not None:
                raise gate.ended

    def check(self) -> None:
        """Raise what has ended the conversation, wherever that call was made."""
        if self._served:
            self._served.check()
        self.check_gates()

    def check_told(self, turn_index: int) -> None:
        """Raise MockBypassed where the agent's protocol tells of a call that a mock should have answered."""
        self._check_no_bypass(turn_index)

    def _check_no_bypass(self, turn_index: int) -> None:
        own = self._served.own if self._served else ()
        calls = self._mocks.calls_of(turn_index)
        if not self._mocks_inside:  # a longer name is of another tool where no framework makes names
            mocked = {tool.name for tool in self._tools}
            calls = tuple(call for call in calls if call.name in mocked)
        check_no_bypass(self._agent, self._tools, calls, own, way=self._way)

    async def see_spans(self, turn: TurnProgress) -> None:
        """Wait for the spans of a turn that was answered, and note what they tell. Raises MockBypassed."""
        if self._served is None or self._served.traced is None:
            return
        turn.note_traces(await self._served.traced.see(turn.asked(self._served.who.key)))
        self._check_no_bypass(turn.turn_index)

    async def see_late_spans(self, turns: tuple[Turn, ...]) -> None:
        """Note what came when its turn had closed; what stays open to the end ends a span by now.

        Raises MockBypassed.
        """
        if self._served is None or self._served.traced is None:
            return
        self._mended = await self._served.traced.see_late()
        for turn in turns:
            self._check_no_bypass(turn.turn_index)

    def close(self, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        """Answer no more calls at gates. Returns the turns, with the calls that are known of only now."""
        for gate in self._gates:
            gate.close()
        return tuple(map(self._with_late_calls, turns))

    def _with_late_calls(self, turn: Turn) -> Turn:
        mended = turn.calls_hidden == self._mended.get(turn.turn_index)
        return replace(
            turn,
            tool_calls=self._mocks.calls_of(turn.turn_index),
            asked_calls=self._mocks.asked_in(turn.turn_index),
            calls_hidden=None if mended else turn.calls_hidden,
            call_refused=self.doubt_of(turn.turn_index),
        )

    def doubt_of(self, turn_index: int) -> str | None:
        """Why calls of a turn may be lacking that we refused; None: none were."""
        return self._served.doubt_of(turn_index) if self._served else None
