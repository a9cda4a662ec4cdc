"""Out-of-band calls: tool calls of a conversation that do not arrive through its agent's protocol.

They arrive through interceptors in this process or through mock servers, or spans report them. The agent may
swallow an error that ends the conversation there, so the turn loop checks for it here.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agentest.agents.bypassed_tools import quote_tool_names
from agentest.agents.in_process.tool_gate import ToolGate, gate_for_lookup
from agentest.agents.port import MockBypassed, TurnContext
from agentest.conversation.turn_progress import TurnProgress
from agentest.domain.messages import ToolSpec
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall, Turn, arguments_untold
from agentest.mock_servers.port import (
    REFUSED,
    Addresses,
    CallOutcome,
    Identity,
    ServedAnswer,
    ServedCall,
    SpanRequest,
    SpanSource,
    TurnTraces,
)
from agentest.mocks.calls import RecordedCall, tool_called
from agentest.mocks.resolver import MockResolver
from agentest.support.errors import REAL_TOOLS_RUN, AgentestError, MockError, UnmockedToolError
from agentest.support.json_schema import schema_validator
from agentest.support.json_text import NotJson, json_text
from agentest.support.replacing import replace
from agentest.support.trace_context import TraceContext, in_turn

_SERVED = (
    "give all tools of the agent the address of the mock server ({{mcp_url}}, {{rest_url}}; for "
    "google-adk's server: --extra_plugins agentest_adk.MockTools)"
)
_IN_PROCESS = "lead all tools of the agent to the mocks (agentest.mocks)"
_HANDED_OVER = "have the agent hand the call to its caller (a handler: ctx.resolve_tool)"
"""How mocks can answer calls that the agent would run itself."""


class OutOfBandCalls:
    """The out-of-band calls of one conversation.

    Args:
        agent: the agent's name.
        mocks, served, mocks_inside: as in `TurnLoop`.
    """

    def __init__(
        self, agent: str, mocks: MockResolver, served: ServedConversation | None, *, mocks_inside: bool
    ) -> None:
        self._agent = agent
        self._remedy = _SERVED if served else _IN_PROCESS if mocks_inside else _HANDED_OVER
        self._mocks = mocks
        self._tools = mocks.specs()
        self._served = served
        self._mocks_inside = mocks_inside or served is not None
        self._gates: list[ToolGate] = []
        self._late_reasons: Mapping[int, str] = {}
        """Turn → why its calls were hidden when it closed, for turns whose calls are known by now."""

    def begin_turn(self, turn_index: int) -> None:
        """Assign calls that reach servers to this turn from now on."""
        if self._served:
            self._served.turn_index = turn_index

    def reaching(self, ctx: TurnContext) -> TurnContext:
        """Add the server addresses and an interceptor to the context of a request."""
        ctx = replace(
            ctx,
            mocks_inside=self._mocks_inside,
            servers=self._served.addresses if self._served else None,
        )
        self._gates.append(ToolGate(ctx))
        return replace(ctx, gate=self._gates[-1])

    @contextmanager
    def asking(self, turn: TurnProgress) -> Iterator[None]:
        """Mark requests with the turn, count them, and let tools find the last interceptor."""
        with in_turn(self._served.trace if self._served else None) as sent, gate_for_lookup(self._gates[-1]):
            try:
                yield
            finally:
                turn.named += sent.requests
                turn.stays_open |= sent.stays_open

    def check_gates(self) -> None:
        """Raise the error that ended the conversation at an interceptor."""
        for gate in self._gates:
            if gate.ended is not None:
                raise gate.ended

    def check(self) -> None:
        """Raise the error that ended the conversation at a server or an interceptor."""
        if self._served:
            self._served.check()
        self.check_gates()

    def check_told(self, turn_index: int) -> None:
        """Raise MockBypassed if the agent's protocol reports a call that a mock should have answered."""
        self._check_no_bypass(turn_index)

    def _check_no_bypass(self, turn_index: int) -> None:
        own = self._served.own if self._served else ()
        calls = self._mocks.calls_of(turn_index)
        if not self._mocks_inside:  # only frameworks lengthen the names of tools
            mocked = {tool.name for tool in self._tools}
            calls = tuple(call for call in calls if call.name in mocked)
        check_no_bypass(self._agent, self._tools, calls, own, way=self._remedy)

    async def see_spans(self, turn: TurnProgress) -> None:
        """Wait for the spans of an answered turn, and record their calls. Raises MockBypassed."""
        if self._served is None or self._served.traced is None:
            return
        turn.note_traces(await self._served.traced.see(turn.asked(self._served.who.key)))
        self._check_no_bypass(turn.turn_index)

    async def see_late_spans(self, turns: tuple[Turn, ...]) -> None:
        """Record the calls of spans that arrived after their turn had closed.

        Waits for spans that end only with the conversation. Raises MockBypassed.
        """
        if self._served is None or self._served.traced is None:
            return
        self._late_reasons = await self._served.traced.see_late()
        for turn in turns:
            self._check_no_bypass(turn.turn_index)

    def close(self, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        """Close the interceptors. Returns the turns, including calls that became known late."""
        for gate in self._gates:
            gate.close()
        return tuple(map(self._with_late_calls, turns))

    def _with_late_calls(self, turn: Turn) -> Turn:
        mended = turn.calls_hidden == self._late_reasons.get(turn.turn_index)
        return replace(
            turn,
            tool_calls=self._mocks.calls_of(turn.turn_index),
            asked_calls=self._mocks.asked_in(turn.turn_index),
            calls_hidden=None if mended else turn.calls_hidden,
            call_refused=self.doubt_of(turn.turn_index),
        )

    def doubt_of(self, turn_index: int) -> str | None:
        """Return why calls of a turn may be missing because they were refused; None if none were."""
        return self._served.doubt_of(turn_index) if self._served else None


class ServedConversation:
    """Answers one conversation's calls at mock servers, and assigns them to the current turn.

    Args:
        who: identifies the conversation.
        own: names of the agent's own tools, as its calls have them.
    """

    def __init__(self, who: Identity, mocks: MockResolver, own: Container[str] = ()) -> None:
        self.who = who
        self.addresses = Addresses()
        self.turn_index = 0
        """The current turn, else the last one: a call after the reply belongs to that turn."""
        self.traced: TracedConversation | None = None
        """The spans of its agent; None: none are received."""
        self._mocks = mocks
        self.own = own
        self._doubts: dict[int, str] = {}
        """Turn → why one of its calls may be missing."""
        self._ended: list[AgentestError] = []
        self._forwarded: list[tuple[RecordedCall, bool]] = []
        """Calls that were forwarded to a real tool, and True if there is one."""

    @property
    def trace(self) -> TraceContext:
        """Return the trace context that marks requests with the turn."""
        return TraceContext(self.who.key, self.turn_index)

    def check(self) -> None:
        """Raise the error of a call that ended the conversation, as the agent may have ignored it."""
        if self._ended:
            raise self._ended[0]

    async def answer(self, call: ServedCall) -> ServedAnswer:
        """Record a call and answer it by the mocks. An error ends the conversation (`check`)."""
        try:
            recorded, result = await self._mocks.serve(
                call.tool, call.arguments, self.turn_index, call.call_id, call.problem
            )
        except AgentestError as error:
            self._ended.append(_ending_error(error, call))
            return ServedAnswer(how=CallOutcome.UNMOCKED, message=str(self._ended[-1]))
        known = recorded.call
        if known.invalid_arguments:
            return ServedAnswer(how=CallOutcome.INVALID, message=known.invalid_arguments)
        if not known.mocked:
            self._forwarded.append((recorded, call.caller_runs or call.would_run))
            return ServedAnswer(how=CallOutcome.REAL, number=len(self._forwarded) - 1)
        if (http := recorded.http) is not None:
            how = CallOutcome.FAILED if http.failed else CallOutcome.ANSWERED
            headers = tuple(http.headers.items())
            return ServedAnswer(
                how=how, result=result, message=str(http), status=http.status, headers=headers
            )
        if known.error is not None:
            return ServedAnswer(how=CallOutcome.FAILED, message=result["error"])
        if call.check and (problem := call.check(result)):
            return self._wrongly_mocked(call, problem)
        return ServedAnswer(how=CallOutcome.ANSWERED, result=result)

    def _wrongly_mocked(self, call: ServedCall, problem: str) -> ServedAnswer:
        """End the conversation, because the agent's reaction to an impossible answer is not evidence."""
        error = MockError(
            f"the mock of tool {call.tool!r} answered what the real tool cannot answer: {problem}. Correct "
            "the mock (a tool that fails is a mock that raises); or, where the tool has changed, what was "
            "recorded of it"
        )
        self._ended.append(error)
        return ServedAnswer(how=CallOutcome.UNMOCKED, message=str(error))

    async def answered(self, number: int, result: object, *, failed: bool, status: int | None = None) -> None:
        """Record the real tool's answer to a forwarded call."""
        if 0 <= number < len(self._forwarded):  # the number may come from another process
            call, ran = self._forwarded[number]
            self._mocks.note_real(call, result, failed=failed, status=status, ran=ran)

    async def refused(self, why: str) -> None:
        """Note that a call was refused that may have belonged to the turn."""
        self._doubts.setdefault(self.turn_index, why)

    def doubt_of(self, turn_index: int) -> str | None:
        """Return why calls may be missing: one was refused in this turn or an earlier one."""
        return next((why for turn, why in self._doubts.items() if turn <= turn_index), None)


def check_no_bypass(
    agent: str,
    mocks: Sequence[ToolSpec],
    calls: Sequence[ToolCall],
    own: Container[str] = (),
    *,
    way: str = "",
) -> None:
    """Raise MockBypassed if the agent made a call that a mock should have answered.

    Ignores calls that the agent's framework rejected before a tool ran.

    Args:
        own: names of the agent's own tools, which are not mistaken for mocks with a similar name.
        way: how mocks can answer such an agent's calls, as an instruction.
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


def _ending_error(error: AgentestError, call: ServedCall) -> AgentestError:
    """Return the error that ends the conversation, with the consequence for the real tool."""
    if isinstance(error, UnmockedToolError) and (call.would_run or call.caller_runs):
        return UnmockedToolError(error.problem, REAL_TOOLS_RUN)
    return error


def _called_past_mocks(call: ToolCall) -> bool:
    """Return True if the agent made a call itself without asking for a mock's answer."""
    return call.ran and not call.mocked and call.seen_by in (SeenBy.AGENT, SeenBy.SPANS)


def _refused(agent: str, name: str, told: str) -> str:
    return (
        f"agent {agent!r} called {name!r}, and got no answer of a mock: it was told {told!r}. What it would "
        "have done with an answer is not known"
    )


def _bypassed(agent: str, names: Mapping[str, str], way: str) -> str:
    """`names`: the agent's name of a tool → the mock that should have answered."""
    other = next((name for name, mock in names.items() if name != mock), None)
    allowed = f"it may run, remove its mock; otherwise {way}"
    if other is not None:
        allowed = (
            f"{other!r} is not the tool of mock {names[other]!r}, list it in the agent's `tools`; " + way
        )
    return (
        f"agent {agent!r} ran {quote_tool_names(tuple(names))} itself: no mock was asked, and the "
        f"real tool ran. If {allowed}"
    )


class TracedConversation:
    """Records the calls that an agent's spans report.

    Args:
        alone: True if spans are the only source of the agent's calls, so that missing spans hide calls.
    """

    def __init__(self, mocks: MockResolver, source: SpanSource, *, alone: bool) -> None:
        self._mocks = mocks
        self._source = source
        self._alone = alone
        self._asked: dict[int, SpanRequest] = {}
        self._missing: dict[int, str] = {}
        """Turn → why its spans were incomplete when it closed."""
        self._stays_open = False
        """True if the spans of all turns end with the conversation."""
        self._recorded_spans: set[str] = set()
        """Spans whose calls are already recorded."""

    async def see(self, asked: SpanRequest) -> TurnTraces:
        """Wait for the spans of a turn and record their calls. Raises AgentError for an invalid tool name."""
        self._stays_open |= asked.stays_open
        self._asked[asked.turn_index] = asked
        told = await self._source.spans_of(replace(asked, wait=asked.wait and not self._stays_open))
        if told.missing:
            self._missing[asked.turn_index] = told.missing
        self._observe(told)
        return told if self._alone else replace(told, missing=None)

    async def see_late(self) -> Mapping[int, str]:
        """Record the calls of spans that arrived after their turns had closed. Raises as `see`.

        Returns:
            Turn → why its calls were hidden, for turns whose calls are known by now.
        """
        mended: dict[int, str] = {}
        for turn_index, asked in self._asked.items():
            missing = turn_index in self._missing
            # Spans that were due in their turn have already been waited for.
            wait = self._stays_open and missing and not mended
            told = await self._source.spans_of(replace(asked, wait=wait))
            self._observe(told)
            if missing and not told.missing:
                mended[turn_index] = self._missing[turn_index]
        return mended

    def _observe(self, told: TurnTraces) -> None:
        new = [each for each in told.calls if not each.spans & self._recorded_spans]
        self._mocks.observe([each.call for each in new])
        self._recorded_spans.update(*(each.spans for each in told.calls))


_FRAMEWORKS_WORDS = re.compile(
    r"validation errors? for|field required|input should be|invalid_type|is a required property"
    r"|is not of type|additional properties are not allowed|mandatory input parameters"
    r"|invalid (?:input|arguments|tool call|tool parameters)|did not match (?:expected )?schema"
    r"|does not match (?:expected )?schema|unknown tool|no such tool|not a valid tool|tool \S+ not found"
    r"|unexpected keyword argument|fix the errors and try again",
    re.IGNORECASE,
)
"""How frameworks word a rejected call: pydantic-ai, LangGraph, google-adk, the AI SDK, FastMCP and the
libraries that they check arguments with.
"""
_OPENS_WRONG = re.compile(
    r"error|invalid|unknown tool|no such tool|not found|not a valid|not match|unexpected", re.IGNORECASE
)
_OPENING_CHARS = 100
"""A rejection appears within this many characters; later text may belong to a tool's result."""
_SOUNDS_WRONG = re.compile(r"error|invalid|required|missing|expected|fail|not allowed", re.IGNORECASE)
_SHOWN_CHARS = 4000


def refused_by_us(call: ToolCall) -> str | None:
    """Return a mock server's refusal, as the agent reports it; None if there was none."""
    text = _text(call)
    at = text.find(REFUSED)
    return text[at:].splitlines()[0].rstrip('"}] ') if at >= 0 else None


def refused_by_framework(call: ToolCall, parameters: Mapping[str, Any]) -> bool:
    """Return True if a framework seems to have rejected a call before any tool ran: its arguments do not fit.

    Args:
        parameters: the JSON Schema of the tool's arguments, as far as known.
    """
    text = _text(call)
    opens_wrong = call.error is not None or _OPENS_WRONG.search(text[:_OPENING_CHARS])
    if opens_wrong and _FRAMEWORKS_WORDS.search(text):
        return True
    if arguments_untold(call):
        return False  # unknown whether the arguments fit
    sounds_wrong = call.error is not None or call.result is None or _SOUNDS_WRONG.search(text) is not None
    return sounds_wrong and not _fits(call.args, parameters)


def _text(call: ToolCall) -> str:
    """Return the agent's report of the answer as text."""
    result = call.result
    if not isinstance(result, str):
        try:
            result = json_text(result)
        except NotJson:
            result = repr(result)
    return f"{call.error or ''} {result}"[:_SHOWN_CHARS]


def _fits(args: Any, parameters: Mapping[str, Any]) -> bool:
    try:
        return bool(schema_validator(parameters, lambda *_: True).is_valid(args))
    except Exception:  # noqa: BLE001 - jsonschema raises many kinds for an invalid schema
        return True
