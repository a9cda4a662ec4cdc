"""What a conversation answers to the mock servers: calls that its agent makes itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from agentest.agents.own_tools import named_tools
from agentest.agents.port import MockBypassed
from agentest.errors import REAL_TOOLS_RUN, AgentestError, MockError, UnmockedToolError
from agentest.mocks.calls import RecordedCall
from agentest.mocks.resolver import MockResolver
from agentest.sight import SeenBy
from agentest.support.trace_context import TraceContext
from agentest.tool_servers.port import Addresses, How, Identity, ServedAnswer, ServedCall
from agentest.transcript import ToolCall


class Served:
    """A conversation's part of the servers: it answers their calls, and knows in which turn it is."""

    def __init__(self, who: Identity, mocks: MockResolver) -> None:
        self.who = who
        self.addresses = Addresses()
        self.turn_index = 0
        """The turn under way, else the last one: a call that comes after the reply is one of its turn."""
        self._mocks = mocks
        self._ended: list[AgentestError] = []
        self._real: list[RecordedCall] = []

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
            self._real.append(recorded)
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

    async def answered(self, number: int, result: object, *, failed: bool) -> None:
        """Note what the real tool answered to a call that was left to it."""
        if 0 <= number < len(self._real):  # it may come from outside
            self._mocks.note_real(self._real[number], result, failed=failed)


def check_no_bypass(agent: str, mocked: Collection[str], calls: Iterable[ToolCall]) -> None:
    """Raise MockBypassed where mocks should have answered calls of a turn, and the real tool has run.

    Args:
        mocked: names of tools.
    """
    names = [call.name for call in calls if call.name in mocked and _called_past_mocks(call)]
    if names:
        raise MockBypassed(_bypassed(agent, list(dict.fromkeys(names))), ())


def _ends(error: AgentestError, call: ServedCall) -> AgentestError:
    """What ends the conversation, with what would happen to the tool otherwise."""
    if isinstance(error, UnmockedToolError) and call.caller_runs:
        return UnmockedToolError(error.problem, REAL_TOOLS_RUN)
    return error


def _called_past_mocks(call: ToolCall) -> bool:
    """Whether the agent was seen to make a call itself that we were not asked for."""
    return not call.mocked and call.seen_by in (SeenBy.AGENT, SeenBy.SPANS)


def _bypassed(agent: str, names: Sequence[str]) -> str:
    return (
        f"agent {agent!r} ran {named_tools(names)} itself: no mock was asked, and the real tool ran. Either "
        "give all its tools the address of the mock server ({{mcp_url}}, {{rest_url}}; google-adk's server "
        "needs the plugin alone: --extra_plugins agentest_adk.MockTools), in process lead them all to the "
        "mocks (agentest.mocks); or, where the real tool may run, leave its mock out"
    )
