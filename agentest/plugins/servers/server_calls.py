"""Calls of an agent that reach servers of ours: at mock servers, or as reports in the agent's spans.

`ServerCalls` gives a conversation its sources: one for each way in which its agent's calls arrive.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Mapping, Sequence
from contextlib import asynccontextmanager

from agentest.agents.call_source_addresses import Addresses
from agentest.agents.port import TurnContext
from agentest.conversation.turn_progress import CallSource, TurnProgress
from agentest.domain.changes import DESCRIPTION, InjectedFault, Injection
from agentest.domain.tool_visibility import Approve, SeenBy
from agentest.domain.transcript import ToolCall
from agentest.mocks.calls import RecordedCall
from agentest.mocks.resolver import MockResolver
from agentest.plugins.servers import port
from agentest.runner.call_sources import CallSources, LiveConversation
from agentest.scenarios.trajectory import is_one_tool
from agentest.support.errors import REAL_TOOLS_RUN, AgentestError, MockError, OwnFault, UnmockedToolError
from agentest.support.lazy_dataclasses import replace
from agentest.support.redaction import Redactor
from agentest.support.trace_context import TraceContext, in_turn, new_key


class ServerCalls(CallSources):
    """The calls of conversations at the servers of a run, which may be in another process."""

    def __init__(self, under_way: port.UnderWay) -> None:
        self._under_way = under_way

    @asynccontextmanager
    async def conversation(self, live: LiveConversation) -> AsyncIterator[Sequence[CallSource]]:
        """Wait until the servers let the conversation begin, and answer its calls until it is over."""
        traits, spec = live.unit.traits, live.spec
        shared = bool(spec.session and spec.session.session_id)  # by all conversations of the scenario
        who = port.Identity(
            key=new_key(),
            session_id=None if shared else spec.session_id,
            conversation_id=spec.conversation_id,
            scenario=spec.scenario,
            agent=live.unit.agent,
        )
        served = MockServerCalls(who, live.mocks, traits.tool_names)
        served.injections = live.unit.scenario.injections
        access = _model_access(live) if live.config.model_gateway else None
        async with self._under_way(who, served, live.outside, access) as period:
            served.addresses = period.addresses
            live.prepared.loaded.redact.learn((period.addresses.model or "").split("/")[3:4])
            sources: list[CallSource] = [served]
            if period.traces:
                # Spans are needed if nothing else shows the calls, or if the scenario bans a tool that the
                # agent may have from another source, because no list proves that it belongs to a mock server.
                banned = {tool for each in live.unit.scenario.trajectories for tool in each.banned_tools}
                kinds = any(not is_one_tool(tool) for tool in banned)  # may match more tools than are mocked
                beside = live.unit.traits.spans_count and (
                    kinds or bool(banned - live.unit.traits.tools.mock_servers.listed())
                )
                alone = live.unit.traits.visible_by_spans_only or beside
                sources.append(TracedCalls(live.mocks, period.traces, who.key, alone=alone))
            if period.model:
                served.seen_by, live.lane = SeenBy.MODEL, period.model.lane
                sources.append(ModelCalls(period.model, live.prepared.loaded.redact))
            yield sources
            if live.ended:
                timeout_ms = live.prepared.loaded.config.request_timeout_ms
                period.failed = live.ended.failure is not None
                # The agent was waited for in the turn that never closed.
                answered_ms = sum(turn.latency_ms for turn in live.ended.turns)
                if period.failed and live.ended.time.agent_ms - answered_ms >= timeout_ms:
                    period.at_work_s = timeout_ms / 1000


def _model_access(live: LiveConversation) -> port.ModelAccess:
    scenario, faults = live.unit.scenario, None
    timeout_s = live.prepared.loaded.config.request_timeout_ms / 1000
    if scenario.model_faults:
        # The agent has as much time again to go on without an answer.
        faults = port.ModelFaults(faults=scenario.model_faults, hang_s=timeout_s / 2)
    return port.ModelAccess(
        mocked=frozenset(scenario.tools),
        opening=scenario.turns[0].user_message if scenario.scripted else scenario.name,
        timeout_s=timeout_s,
        recorded=frozenset(each.name for each in scenario.recorded or ()),
        named=frozenset(scenario.named_tools),
        faults=faults,
        tape_key=live.key("agent"),
        recordings=live.models.recordings,
    )


class MockServerCalls(CallSource):
    """Answers the calls of the conversation `who` at mock servers, and assigns them to the current turn."""

    remedy = (
        "give all tools of the agent the address of the mock server ({{mcp_url}}, {{rest_url}}; for "
        "google-adk's server: --extra_plugins agentest_adk.MockTools)"
    )

    def __init__(self, who: port.Identity, mocks: MockResolver, own_tools: Container[str] = ()) -> None:
        self.who = who
        self.own_tools = own_tools
        self.seen_by = SeenBy.MOCK_SERVER
        self.addresses = Addresses()
        self.turn_index = 0
        """The current turn, else the last one: a call after the reply belongs to that turn."""
        self._mocks = mocks
        self._doubts: dict[int, str] = {}  # turn → why one of its calls may be missing
        self._ended: list[AgentestError] = []
        self._approve: Approve | None = None  # the scenario's answer if a real tool asks in this turn
        self.injections: Sequence[Injection] = ()
        self._listed: dict[str, InjectedFault] = {}
        """The injections that stood in listed descriptions since the last turn."""
        self._forwarded: list[tuple[RecordedCall, bool]] = []
        """Calls that were forwarded to a real tool, and True if there is one."""

    def begin_turn(self, turn_index: int) -> None:
        self.turn_index = turn_index

    @asynccontextmanager
    async def request(self, turn: TurnProgress, ctx: TurnContext) -> AsyncIterator[TurnContext]:
        """Mark requests with the turn, and count those that were sent with the mark."""
        self._approve = ctx.approve
        with in_turn(TraceContext(self.who.key, turn.turn_index)) as sent:
            try:
                yield replace(ctx, mocks_inside=True, servers=self.addresses)
            finally:
                turn.named += sent.requests
                turn.stays_open |= sent.stays_open

    async def check(self, cause_of: Exception | None = None) -> None:
        if self._ended:
            raise self._ended[0] from cause_of

    async def answer(self, call: port.ServedCall) -> port.ServedAnswer:
        """Record a call and answer it by the mocks. An error ends the conversation (`check`)."""
        try:
            if call.made:
                return self._observed(call.made, again=call.again)
            recorded, result = await self._mocks.serve(
                call.tool, call.arguments, self.turn_index, call.call_id, call.problem, self.seen_by
            )
        except AgentestError as error:
            # The error that ends the conversation names the consequence for the real tool.
            if isinstance(error, UnmockedToolError) and (call.would_run or call.caller_runs):
                error = UnmockedToolError(error.problem, REAL_TOOLS_RUN)
            return self._end(error)
        known = recorded.call
        if known.invalid_arguments:
            return port.ServedAnswer(how=port.CallOutcome.INVALID, message=known.invalid_arguments)
        if not known.mocked:
            number = len(self._forwarded)
            self._forwarded.append((recorded, call.caller_runs or call.would_run))
            approve = self._approve.get(call.tool) if isinstance(self._approve, Mapping) else self._approve
            return port.ServedAnswer(how=port.CallOutcome.REAL, number=number, approve=approve)
        if (http := recorded.http) is not None:
            how = port.CallOutcome.FAILED if http.failed else port.CallOutcome.ANSWERED
            headers = tuple(http.headers.items())
            return port.ServedAnswer(
                how=how, result=result, message=str(http), status=http.status, headers=headers
            )
        if known.error is not None:
            return port.ServedAnswer(how=port.CallOutcome.FAILED, message=result["error"])
        if call.check and (problem := call.check(result)):
            # The agent's reaction to an impossible answer is not evidence.
            return self._end(
                MockError(
                    f"the mock of tool {call.tool!r} answered what the real tool cannot answer: {problem}. "
                    "Correct the mock (a tool that fails is a mock that raises); or, where the tool has "
                    "changed, what was recorded of it"
                )
            )
        return port.ServedAnswer(how=port.CallOutcome.ANSWERED, result=result)

    def _observed(self, made: ToolCall, *, again: bool) -> port.ServedAnswer:
        made = replace(made, turn_index=self.turn_index, seen_by=self.seen_by)
        self._mocks.observe([made], may_repeat=again)
        return port.ServedAnswer(how=port.CallOutcome.REAL)

    def planted(self, tool: Mapping[str, object]) -> Mapping[str, object]:
        """Return a listed tool with what is injected into its description, and note it for the turn."""
        for each in self.injections:
            if each.path == DESCRIPTION and each.place == tool["name"]:
                text = str(tool.get("description", ""))
                if each.payload not in text:
                    tool = {**tool, "description": f"{text} {each.payload}".strip()}
                self._listed[each.label] = InjectedFault(each.label, 1)
        return tool

    async def complete(self, turn: TurnProgress) -> None:
        turn.faults += tuple(self._listed.values())
        self._listed.clear()

    def _end(self, error: AgentestError) -> port.ServedAnswer:
        self._ended.append(error)
        return port.ServedAnswer(how=port.CallOutcome.UNMOCKED, message=str(error))

    async def answered(self, number: int, answer: port.RealAnswer) -> None:
        if 0 <= number < len(self._forwarded):  # the number may come from another process
            call, ran = self._forwarded[number]
            result, failed, status = answer.result, answer.failed, answer.status
            self._mocks.note_real(
                call, result, failed=failed, status=status, ran=ran, approval=answer.approval
            )

    async def refused(self, why: str, *, ours: bool = False) -> None:
        """Note that a call was refused that may have belonged to the turn. `ours`: because we failed."""
        if ours:
            self._mocks.fault = OwnFault(why)
        self._doubts.setdefault(self.turn_index, why)

    def doubt_of(self, turn_index: int) -> str | None:
        # A refused call makes the later turns doubtful as well.
        return next((why for turn, why in self._doubts.items() if turn <= turn_index), None)


class ModelCalls(CallSource):
    """Tells the model gateway about the turns of a conversation, and each turn about its model calls.

    The tool calls themselves arrive at `MockServerCalls`.
    """

    def __init__(self, conversation: port.ModelConversation, redact: Redactor) -> None:
        self._conversation = conversation
        self._redact = redact

    @asynccontextmanager
    async def request(self, turn: TurnProgress, ctx: TurnContext) -> AsyncIterator[TurnContext]:
        with self._conversation.said(turn.user_message):
            await self._conversation.has_heard()
            yield ctx

    async def check(self, cause_of: Exception | None = None) -> None:
        if error := await self._conversation.error_of(cause_of):
            raise error from cause_of

    async def complete(self, turn: TurnProgress) -> None:
        traces = await self._conversation.end_turn()
        self._redact.learn(traces.secrets)
        if briefing := traces.briefing:
            instructions = self._redact(briefing.instructions)
            tools = tuple(
                replace(tool, description=self._redact(tool.description)) for tool in briefing.tools
            )
            traces = replace(traces, briefing=replace(briefing, instructions=instructions, tools=tools))
        _note(turn, traces)
        if traces.models:
            from agentest.models.budget import price_of

            priced = [(price_of(model), usage) for model, usage in traces.models.items()]
            costs = [price.cost(usage) for price, usage in priced if price]
            if len(costs) == len(priced):  # an unknown one makes the sum unknown
                turn.model_cost = (turn.model_cost or 0.0) + sum(costs)


def _note(turn: TurnProgress, traces: port.TurnTraces) -> None:
    turn.calls_hidden = turn.calls_hidden or traces.missing
    turn.usage = turn.usage if turn.usage.total_tokens else traces.usage
    turn.model_calls = traces.model_calls if turn.model_calls is None else turn.model_calls
    turn.model_requests += traces.model_requests
    turn.briefing = traces.briefing or turn.briefing
    turn.faults += traces.faults


class TracedCalls(CallSource):
    """Records the calls that an agent's spans report.

    Args:
        key: identifies the conversation in spans.
        alone: True if spans are the only source of the agent's calls, so that missing spans hide calls.
    """

    def __init__(self, mocks: MockResolver, spans: port.SpanSource, key: str, *, alone: bool) -> None:
        self._mocks = mocks
        self._spans = spans
        self._key = key
        self._alone = alone
        self._asked: dict[int, port.SpanRequest] = {}
        self._missing: dict[int, str] = {}  # turn → why its spans were incomplete when it closed
        self._late: dict[int, str] = {}  # the same for turns whose calls are known by now
        self._stays_open = False  # True if the spans of all turns end with the conversation
        self._recorded_spans: set[str] = set()  # spans whose calls are already recorded

    async def complete(self, turn: TurnProgress) -> None:
        """Wait for the spans of the turn and record their calls. Raises AgentError for an invalid name."""
        request = port.SpanRequest(
            key=self._key,
            turn_index=turn.turn_index,
            began_ns=turn.began_ns,
            asks=turn.reply_count,
            requests=turn.named,
            stays_open=turn.stays_open,
            wait=bool(turn.reply_count or turn.named),  # an agent that was never reached sends no spans
        )
        self._stays_open |= request.stays_open
        self._asked[request.turn_index] = request
        traces = await self._spans.spans_of(replace(request, wait=request.wait and not self._stays_open))
        if traces.missing:
            self._missing[request.turn_index] = traces.missing
        self._observe(traces)
        _note(turn, traces if self._alone else replace(traces, missing=None))

    async def complete_late(self) -> None:
        """Record the calls of spans that arrived after their turns had closed. Raises as `complete`."""
        for turn_index, request in self._asked.items():
            missing = turn_index in self._missing
            # Spans that were due in their turn have already been waited for.
            wait = self._stays_open and missing and not self._late
            traces = await self._spans.spans_of(replace(request, wait=wait))
            self._observe(traces)
            if missing and not traces.missing:
                self._late[turn_index] = self._missing[turn_index]

    def came_late(self, turn_index: int, hidden: str) -> bool:
        return self._late.get(turn_index) == hidden

    def _observe(self, traces: port.TurnTraces) -> None:
        new = [each for each in traces.calls if not each.spans & self._recorded_spans]
        self._mocks.observe([each.call for each in new])
        self._recorded_spans.update(*(each.spans for each in traces.calls))
