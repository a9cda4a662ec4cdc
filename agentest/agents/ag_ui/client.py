"""The client of an agent behind AG-UI, its conversations, and the text of a run's messages."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from typing import Any

from agentest.agents.ag_ui.calls import Interrupt, StreamedCall, answers, approvals
from agentest.agents.ag_ui.run import REPORTED_ERROR_PREFIX, AgUiRun
from agentest.agents.ag_ui.thread import (
    AgUiState,
    Thread,
    Wire,
    calls_of,
    declared,
    new_id,
    with_ids,
    written,
)
from agentest.agents.approvals import (
    MOST_APPROVALS,
    TOO_MANY_QUESTIONS,
    Decision,
    decision_of_setting,
    decision_of_user,
)
from agentest.agents.bypassed_tools import BypassDetector, quote_tool_names
from agentest.agents.http_sender import EventStream, HttpAnswer, HttpSender, read_body
from agentest.agents.json_reader import excerpt, read_event, read_json, truncated_stream_error
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import Agent, AgentReply, IgnoredCounter, NoReply, Resources, TurnContext
from agentest.config.agents.frontends import AgUiAgent
from agentest.config.agents.tools import AgentTool
from agentest.domain.messages import AgentMessage, Message, ToolRequest, ToolSpec, UserText
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import Remark, ToolCall, Usage, waiting
from agentest.mocks.binding import any_tool
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.http.sse import Event
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.templates import Template, Values

BETWEEN_MESSAGES = "\n\n"


def open_agent(_: str, config: AgUiAgent, resources: Resources) -> AgUiClient:
    """Create the client of an agent behind AG-UI."""
    return AgUiClient(config, resources)


class AgUiClient:
    """Opens conversations with one endpoint. They share the record of tools that the agent runs itself."""

    takes_attachments = True

    def __init__(self, config: AgUiAgent, resources: Resources) -> None:
        self.name = config.name
        self._config = config
        self._sending = AgUiSender(config, resources)
        self._own_tools = own_tools(config.name)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        """Open one conversation. Nothing needs to be closed: threads do not end in AG-UI."""
        yield self._new_conversation()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Return the reply of the agent to a complete history, in a new thread.

        Raises NoReply, MockBypassed or CannotSend.
        """
        return await self._new_conversation().reply(messages, ctx)

    def _new_conversation(self) -> AgUiConversation:
        return AgUiConversation(self._config, self._sending, self._own_tools)


@dataclass(slots=True)
class _ReplyTotals:
    """The sums and lists over all runs of one reply."""

    latency_ms: float = 0.0
    retries: int = 0
    usage: Usage = field(default_factory=Usage)
    first_token_ms: float | None = None
    observed: tuple[ToolCall, ...] = ()
    remarks: tuple[Remark, ...] = ()


class AgUiConversation:
    """Sends the messages of one conversation, each with the whole thread."""

    def __init__(self, config: AgUiAgent, sending: AgUiSender, own_tools: BypassDetector) -> None:
        """`own_tools` is shared by all conversations."""
        self.name = config.name
        self._config = config
        self._sending = sending
        self._own_tools = own_tools
        self._taken = 0
        """The number of the conversation's messages that are in the thread."""
        self._thread = Thread()
        self._state = AgUiState({})
        self._settled: set[str] = set()
        """Ids of calls that were reported to the turn, or requested from Agentest."""
        self._waiting: tuple[StreamedCall, ...] = ()
        """Calls that wait for an approval."""
        self._decided: dict[str, Approval] = {}
        """Ids of calls that waited for an approval → the last decision."""
        self._open: list[Interrupt] = []
        """Questions without an answer."""

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the last messages. Raises NoReply, MockBypassed, CannotSend.

        The time limit applies to each run, not to their sum.
        """
        values = TurnValues(messages, ctx)
        body: dict[str, Any] = self._sending.body.filled(values)
        if not self._taken:
            self._begin(body, ctx)
        decision = self._take_messages(messages[self._taken :])
        self._taken = len(messages)
        if self._open and decision is None:
            # The last run's other calls have their answers; now the user decides.
            return AgentReply(_questions(self._open), observed=self._waiting_calls(ctx))
        return await self._run_until_reply(body, ctx, values, decision)

    def _begin(self, body: Mapping[str, Any], ctx: TurnContext) -> None:
        self._own_tools.check_before(ctx)
        self._thread = Thread(with_ids(body.get("messages", [])))
        self._state = AgUiState({**body.get("state", {}), **(ctx.session.state if ctx.session else {})})

    def _take_messages(self, messages: Sequence[Message]) -> Decision | None:
        """Add new messages to the thread. A user's answer to an open question is returned instead."""
        decision: Decision | None = None
        for message in messages:
            if self._open and isinstance(message, UserText):
                decision = decision_of_user(message.text)
            elif not isinstance(message, AgentMessage) or not self._taken:
                self._thread.add(written(message))
        return decision

    async def _run_until_reply(
        self, body: Mapping[str, Any], ctx: TurnContext, values: TurnValues, decision: Decision | None
    ) -> AgentReply:
        total = _ReplyTotals()
        for _ in range(MOST_APPROVALS):
            run, spoken, requests = await self._run(body, ctx, values, decision, total)
            if not self._open or requests or self._config.approvals == "ask":
                total.observed += () if requests else self._waiting_calls(ctx)
                return self._reply(run, spoken, requests, total)
            if spoken.text:
                total.remarks += (Remark(spoken.author, spoken.text),)
            decision = decision_of_setting(self._config.approvals)
        raise NoReply(TOO_MANY_QUESTIONS, total.retries, total.observed)

    async def _run(
        self,
        body: Mapping[str, Any],
        ctx: TurnContext,
        values: TurnValues,
        decision: Decision | None,
        total: _ReplyTotals,
    ) -> tuple[AgUiRun, SpokenTexts, tuple[ToolRequest, ...]]:
        """Execute one run and add its result to `total`, the thread and the state."""
        tools = declared_tools(ctx, self._config)
        payload = self._payload(body, ctx, [declared(spec) for spec in tools], decision)
        run = AgUiRun(self._thread, self._state, self._waiting, frozenset(self._settled))
        try:
            answered = await self._sending.send(AgUiRequest(payload, values), run)
            spoken = read_spoken(run.messages, self.name, run.subagents)
            requests = self._sort_calls(run, ctx, total)
        except (NoReply, AgentError) as error:
            retries = total.retries + getattr(error, "retries", 0)
            hint = "" if run.begun else failure_hint(_without_address(error, self._config.endpoint), tools)
            calls_so_far = tuple(
                call.made_or_begun(ctx.turn_index) for call in run.seen if call not in self._waiting
            )
            raise NoReply(f"{error}{hint}", retries, (*total.observed, *calls_so_far)) from None
        if total.first_token_ms is None and answered.first_token_ms is not None:
            total.first_token_ms = total.latency_ms + answered.first_token_ms
        total.latency_ms += answered.latency_ms
        total.retries += answered.retries
        total.usage += run.usage
        total.remarks += spoken.remarks
        self._own_tools.check_after(total.observed, ctx)
        return run, spoken, requests

    def _payload(
        self, body: Mapping[str, Any], ctx: TurnContext, tools: list[Wire], decision: Decision | None
    ) -> Wire:
        forwarded = dict(body.get("forwardedProps", {}))
        resuming: Wire = {}
        if decision is not None:
            self._decided = approvals(self._open, self._waiting, decision)
            resuming, self._open = answers(self._open, decision), []
            forwarded.update({key: resuming.pop(key) for key in ("command",) if key in resuming})
        return {
            "context": [],
            **body,
            "threadId": ctx.session_id,
            "runId": new_id(),
            "messages": self._thread.messages,
            "tools": tools,
            "state": self._state.value,
            "forwardedProps": forwarded,
            **resuming,
        }

    def _sort_calls(self, run: AgUiRun, ctx: TurnContext, total: _ReplyTotals) -> tuple[ToolRequest, ...]:
        """Sort the run's calls: made by the agent, requested from Agentest, or waiting for approval."""
        self._open = list(run.interrupts)
        declared_names = {spec.name for spec in declared_tools(ctx, self._config)}
        approval_ids = {interrupt.call_id for interrupt in self._open}
        requested: list[StreamedCall] = []
        undecided: list[StreamedCall] = []
        for call in run.calls:
            if not call.answered and (call.id in approval_ids or None in approval_ids):
                undecided.append(call)
            elif call.answered or call in self._waiting or self._is_made_by_agent(call, run, declared_names):
                made = replace(call.made(ctx.turn_index), approval=self._decided.get(call.id))
                total.observed += (made,)
                self._settled.add(call.id)
            elif self._open and call.name not in declared_names:
                # The interrupt already asks the question of this call.
                self._sending.ignored.note("unanswered call", call.name)
                self._settled.add(call.id)
            else:
                requested.append(call)
                self._settled.add(call.id)
        self._waiting = tuple(undecided)
        return tuple(call.requested() for call in requested)

    def _waiting_calls(self, ctx: TurnContext) -> tuple[ToolCall, ...]:
        return tuple(waiting(call.made(ctx.turn_index)) for call in self._waiting)

    def _is_made_by_agent(self, call: StreamedCall, run: AgUiRun, declared_names: set[str]) -> bool:
        """Return whether the agent made a call without a result itself and does not wait for one."""
        if run.pending:
            return call.id not in run.pending
        return call.name not in declared_names and run.went_on_after(call)

    def _reply(
        self, run: AgUiRun, spoken: SpokenTexts, requests: tuple[ToolRequest, ...], total: _ReplyTotals
    ) -> AgentReply:
        text = spoken.text
        if self._open and not requests:
            text = BETWEEN_MESSAGES.join(part for part in (text, _questions(self._open)) if part)
        elif not text and not requests and not total.observed and run.result is not None:
            text = excerpt(run.result)
        return AgentReply(
            text=text or None,
            tool_requests=requests,
            usage=total.usage,
            latency_ms=total.latency_ms,
            retries=total.retries,
            observed=total.observed,
            remarks=total.remarks,
            author=spoken.author,
            state=self._state.shown,
            state_before=self._state.begun if self._state.told else None,
            state_error=self._state.error,
            first_token_ms=total.first_token_ms,
        )


def _questions(interrupts: Sequence[Interrupt]) -> str:
    return BETWEEN_MESSAGES.join(interrupt.question for interrupt in interrupts)


def _without_address(error: Exception, endpoint: str) -> str:
    return str(error).replace(endpoint, "")


@dataclass(frozen=True, slots=True)
class SpokenTexts:
    """The reply and the remarks of a run. `text` is empty if the agent sent no text."""

    text: str
    author: str
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True, slots=True)
class _TextMessage:
    at: int
    text: str
    author: str
    of_subagent: bool


def read_spoken(messages: Sequence[Wire], agent: str, subagents: Mapping[str, str]) -> SpokenTexts:
    """Split a run's texts into reply and remarks.

    The reply is the agent's text after its last call, or its last text. Texts of subagents are remarks.

    Args:
        messages: the run's messages.
        agent: the author of messages without a name.
        subagents: the names of subagents, by the ids of their runs.
    """
    texts = [
        _TextMessage(at, text, _author(message, agent, subagents), "subagentRunId" in message)
        for at, message in enumerate(messages)
        if message["role"] == "assistant" and (text := _content(message)).strip()
    ]
    if not texts:
        return SpokenTexts("", agent)
    reply = _reply_texts(texts, _last_call(messages))
    remarks = tuple(Remark(text.author, text.text) for text in texts if text not in reply)
    return SpokenTexts(BETWEEN_MESSAGES.join(text.text for text in reply), reply[0].author, remarks)


def _reply_texts(texts: Sequence[_TextMessage], last_call: int) -> list[_TextMessage]:
    own_texts = [text for text in texts if not text.of_subagent] or texts
    return [text for text in own_texts if text.at > last_call] or [own_texts[-1]]


def _last_call(messages: Sequence[Wire]) -> int:
    calls = (at for at, m in enumerate(messages) if m["role"] == "tool" or calls_of(m))
    return max(calls, default=-1)


def _author(message: Wire, agent: str, subagents: Mapping[str, str]) -> str:
    name = message.get("name") or subagents.get(message.get("subagentRunId") or "")
    return name if isinstance(name, str) else agent


def _content(message: Wire) -> str:
    """Return a message's text. Its content is a text, missing, or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(text for text in texts if isinstance(text, str))
    if content is not None and not isinstance(content, str):
        raise AgentError(f"the `content` of a message of the agent is not a text: {excerpt(content)}")
    return content or ""


AG_UI_PLACE = "is this the address at which the agent takes AG-UI runs, like http://localhost:8000/agent?"
_TOO_MANY_RUNS = re.compile(r"(?i)\bconcurren|\btoo many (?:runs|requests|sessions|executions)")


@dataclass(frozen=True, slots=True)
class AgUiRequest:
    """The request for one run, and the values for placeholders in the agent's headers."""

    payload: Wire
    values: Values


class AgUiSender:
    """Sends requests for runs to one endpoint. Stores nothing about conversations."""

    def __init__(self, config: AgUiAgent, resources: Resources) -> None:
        self.body = Template(config.body)
        self._endpoint = config.endpoint
        self._sender = HttpSender(config, resources.client, resources.timeout_s, AG_UI_PLACE)
        self.ignored = IgnoredCounter(config.name, resources)

    async def send(self, request: AgUiRequest, run: AgUiRun) -> HttpAnswer[None]:
        """Send a request and add its events to `run`. Raises NoReply; `run` then has the earlier events."""

        async def stream(events: EventStream) -> None:
            await self._read(events, run)

        async def read(response: DirectResponse) -> None:
            await read_body(response, True, _refuse_json, stream)

        return await self._sender.post(self._endpoint, request.payload, read, values=request.values)

    async def _read(self, events: EventStream, run: AgUiRun) -> None:
        known = 0
        async for event in events:
            if event.data.strip() in ("", "[DONE]"):
                continue  # some servers keep the connection alive with empty events
            wire = _read_wire(event)
            if run.take(wire):
                known += 1
            else:
                self.ignored.note("event", wire["type"])
            if run.spoke:
                events.note_first_token()
            if run.finished:
                return
        if not known:
            raise AgentError(f"the agent's stream ended without any event of AG-UI ({AG_UI_PLACE})")
        raise truncated_stream_error("RUN_FINISHED or RUN_ERROR")


def _read_wire(event: Event) -> Wire:
    wire = read_event(event.data)
    if not isinstance(wire.get("type"), str):
        wire["type"] = event.name
    return wire


def _refuse_json(body: bytes) -> None:
    """Raise AgentError with the body: AG-UI responses are always streams."""
    data = read_json(body, AG_UI_PLACE)
    error = data.get("error") if isinstance(data, dict) else None
    if error:
        raise AgentError(f"the agent answered with an error: {excerpt(error)}")
    raise AgentError(
        "the agent's answer is JSON, and AG-UI answers with server-sent events "
        f"({AG_UI_PLACE}): {excerpt(data)}"
    )


def own_tools(agent: str) -> BypassDetector:
    """Create the record of tools that an agent behind AG-UI runs itself."""
    return BypassDetector(
        agent,
        handed_over="have the agent hand the call over (take the tool from its own; ag-ui-adk: AGUIToolset; "
        "LangGraph: bind the tools of the state)",
        left_out=" and its name in `client_tools`",
    )


def declared_tools(ctx: TurnContext, config: AgUiAgent) -> tuple[ToolSpec, ...]:
    """Return the tools to declare to the agent.

    These are the tools in `client_tools`, by default the scenario's mocks. If mock servers replace the
    agent's tools, the default is empty, because two tools with one name conflict. The configuration's
    description and parameters (`tools`) override those of the mock.
    """
    known = {spec.name: spec for spec in ctx.tools}
    configured = {tool.name: tool for tool in config.tools or ()}
    by_default = () if config.mock_servers else tuple(known)
    names = by_default if config.client_tools is None else config.client_tools
    return tuple(_with_config(known.get(name) or any_tool(name), configured.get(name)) for name in names)


def _with_config(spec: ToolSpec, configured: AgentTool | None) -> ToolSpec:
    if configured is None:
        return spec
    parameters = spec.parameters if configured.parameters is None else configured.parameters
    return replace(spec, description=configured.description or spec.description, parameters=parameters)


def failure_hint(problem: str, declared: Sequence[ToolSpec]) -> str:
    """Return a hint for the error of a run that failed at once, "" for none.

    Args:
        problem: the error's text. If it names declared tools, the hint is about them. If the agent reports
            any other error than too many runs, the hint lists all declared tools.
        declared: the tools that the request declared.
    """
    named = [spec.name for spec in declared if re.search(rf"(?<!\w){re.escape(spec.name)}(?!\w)", problem)]
    if named:
        others = [spec.name for spec in declared if spec.name not in named]
        return (
            f"; {quote_tool_names(named)}: declared to the agent since the scenario mocks it. If the agent "
            f"has it itself: take it from the agent, or set `client_tools: {json.dumps(others)}` and leave "
            "the mock out (the agent's own tool then runs)"
        )
    if _TOO_MANY_RUNS.search(problem):
        return "; it takes no more at once: lower `concurrency` (--concurrency)"
    if declared and REPORTED_ERROR_PREFIX in problem:
        return (
            f"; declared to it: {quote_tool_names([spec.name for spec in declared])}. "
            "If it has one of that name itself, `client_tools` says which to declare"
        )
    return ""
