"""What a conversation answers to the mock servers: calls that its agent makes itself."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from agentest.agents.own_tools import named_tools
from agentest.agents.port import MockBypassed
from agentest.conversation.not_run import refused_by_framework, refused_by_us
from agentest.conversation.traced import Traced
from agentest.domain.messages import ToolSpec
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.mock_servers.port import Addresses, How, Identity, ServedAnswer, ServedCall
from agentest.mocks.calls import RecordedCall
from agentest.mocks.one_call import tool_called
from agentest.mocks.resolver import MockResolver
from agentest.support.errors import REAL_TOOLS_RUN, AgentestError, MockError, UnmockedToolError
from agentest.support.trace_context import TraceContext


class Served:
    """A conversation's part of the servers: it answers their calls, and knows in which turn it is."""

    def __init__(self, who: Identity, mocks: MockResolver, own: Container[str] = ()) -> None:
        self.who = who
        self.addresses = Addresses()
        self.turn_index = 0
        """The turn under way, else the last one: a call that comes after the reply is one of its turn."""
        self.traced: Traced | None = None
        """What its agent's spans tell; None: nobody receives any."""
        self._mocks = mocks
        self.own = own
        """Names of tools that the agent is known to have, as its calls have them."""
        self._doubts: dict[int, str] = {}
        """Turn → why a call of it may be lacking."""
        self._ended: list[AgentestError] = []
        self._real: list[tuple[RecordedCall, bool]] = []
        """Calls that were left to the real tool, each with whether there is one."""

    @property
    def trace(self) -> TraceContext:
        """The turn as requests name it."""
        return TraceContext(self.who.key, self.turn_index)

    def check(self) -> None:
        """Raise what a call has ended the conversation with: the agent was told, and may have gone on."""
        if self._ended:
            raise self._ended[0]

    async def answer(self, call: ServedCall) -> ServedAnswer:
        """Record a call and answer it by the mocks. What it raises ends the conversation (`check`)."""
        try:
            recorded, result = await self._mocks.serve(
                call.tool, call.arguments, self.turn_index, call.call_id, call.problem
            )
        except AgentestError as error:
            self._ended.append(_ends(error, call))
            return ServedAnswer(how=How.UNMOCKED, message=str(self._ended[-1]))
        known = recorded.call
        if known.invalid_arguments:
            return ServedAnswer(how=How.INVALID, message=known.invalid_arguments)
        if not known.mocked:
            self._real.append((recorded, call.caller_runs or call.would_run))
            return ServedAnswer(how=How.REAL, number=len(self._real) - 1)
        if (http := recorded.http) is not None:
            how = How.FAILED if http.failed else How.ANSWERED
            headers = tuple(http.headers.items())
            return ServedAnswer(
                how=how, result=result, message=str(http), status=http.status, headers=headers
            )
        if known.error is not None:
            return ServedAnswer(how=How.FAILED, message=result["error"])
        if call.check and (problem := call.check(result)):
            return self._wrongly_mocked(call, problem)
        return ServedAnswer(how=How.ANSWERED, result=result)

    def _wrongly_mocked(self, call: ServedCall, problem: str) -> ServedAnswer:
        """End the conversation: what an agent makes of an answer that cannot be says nothing of it."""
        error = MockError(
            f"the mock of tool {call.tool!r} answered what the real tool cannot answer: {problem}. Correct "
            "the mock (a tool that fails is a mock that raises); or, where the tool has changed, what was "
            "recorded of it"
        )
        self._ended.append(error)
        return ServedAnswer(how=How.UNMOCKED, message=str(error))

    async def answered(self, number: int, result: object, *, failed: bool, status: int | None = None) -> None:
        """Note what the real tool answered to a call that was left to it."""
        if 0 <= number < len(self._real):  # it may come from outside
            call, ran = self._real[number]
            self._mocks.note_real(call, result, failed=failed, status=status, ran=ran)

    async def refused(self, why: str) -> None:
        """Note that a call was refused that may have been of the turn."""
        self._doubts.setdefault(self.turn_index, why)

    def doubt_of(self, turn_index: int) -> str | None:
        """Why calls of a turn may be lacking: one was refused in it, or before, of which the rest comes."""
        return next((why for turn, why in self._doubts.items() if turn <= turn_index), None)


def check_no_bypass(
    agent: str,
    mocks: Sequence[ToolSpec],
    calls: Sequence[ToolCall],
    own: Container[str] = (),
    *,
    way: str = "",
) -> None:
    """Raise MockBypassed where mocks should have answered calls of a turn, and did not.

    A call that no tool has run, as the agent's framework refused it, is none of those.

    Args:
        own: names of tools that the agent has, whose calls are of no mock with a name alike.
        way: how mocks answer such an agent's calls, as an instruction.
    """
    mocked = {tool.name: tool.parameters for tool in mocks}
    names: dict[str, str] = {}
    for call in filter(_called_past_mocks, calls):
        tool = tool_called(call.name, mocked, own)
        if tool is None:
            continue
        if told := refused_by_us(call):
            raise MockBypassed(_refused(agent, call.name, told))
        if not refused_by_framework(call, mocked[tool]):
            names[call.name] = tool
    if names:
        raise MockBypassed(_bypassed(agent, names, way), tools=tuple(names))


def _ends(error: AgentestError, call: ServedCall) -> AgentestError:
    """What ends the conversation, with what would happen to the tool otherwise."""
    if isinstance(error, UnmockedToolError) and (call.would_run or call.caller_runs):
        return UnmockedToolError(error.problem, REAL_TOOLS_RUN)
    return error


def _called_past_mocks(call: ToolCall) -> bool:
    """Whether the agent was seen to make a call itself that we were not asked for."""
    return call.ran and not call.mocked and call.seen_by in (SeenBy.AGENT, SeenBy.SPANS)


def _refused(agent: str, name: str, told: str) -> str:
    return (
        f"agent {agent!r} called {name!r}, and got no answer of a mock: it was told {told!r}. What it would "
        "have done with an answer is not known"
    )


def _bypassed(agent: str, names: Mapping[str, str], way: str) -> str:
    """`names`: what the agent calls a tool → the mock that should have answered."""
    other = next((name for name, mock in names.items() if name != mock), None)
    allowed = f"it may run, remove its mock; otherwise {way}"
    if other is not None:
        allowed = (
            f"{other!r} is not the tool of mock {names[other]!r}, list it in the agent's `tools`; " + way
        )
    return (
        f"agent {agent!r} ran {named_tools(tuple(names))} itself: no mock was asked, and the real tool ran. "
        f"If {allowed}"
    )
