"""The client of an agent behind AG-UI, its conversations, and the text of a run's messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentest.agents.bypassed_tools import quote_tool_names
from agentest.agents.http_sender import EventStream, read_body
from agentest.agents.json_reader import excerpt, read_json, truncated_stream_error
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, ConversationalAgent, Resources, TurnContext
from agentest.config.agents.tools import AgentTool
from agentest.domain.messages import AgentMessage, Message, ToolRequest, ToolSpec, UserText
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import Remark, ToolCall, waiting
from agentest.mocks.binding import any_tool
from agentest.plugins.protocols.ag_ui.run import (
    REPORTED_ERROR_PREFIX,
    AgUiRun,
    Interrupt,
    StreamedCall,
    answers,
    approvals,
    asked_tools,
)
from agentest.plugins.protocols.ag_ui.settings import AgUiAgent
from agentest.plugins.protocols.ag_ui.thread import (
    AgUiState,
    Thread,
    Wire,
    calls_of,
    declared,
    new_id,
    with_ids,
    written,
)
from agentest.plugins.protocols.approvals import Approver, Decision
from agentest.plugins.protocols.protocol_client import ProtocolEndpoint, ProtocolTurn, json_events
from agentest.support.errors import AgentError, errors_as
from agentest.support.http.client import DirectResponse
from agentest.support.lazy_dataclasses import dataclass, replace

_BETWEEN_MESSAGES = "\n\n"
_PLACE = "is this the address at which the agent takes AG-UI runs, like http://localhost:8000/agent?"
_HANDED_OVER = (
    "have the agent hand the call over (take the tool from its own; ag-ui-adk: AGUIToolset; LangGraph: bind "
    "the tools of the state)"
)
_TOO_MANY_RUNS = re.compile(r"(?i)\bconcurren|\btoo many (?:runs|requests|sessions|executions)")


def open_agent(_: str, config: AgUiAgent, resources: Resources) -> ConversationalAgent:
    """Create the client of an agent behind AG-UI."""
    endpoint = _AgUiEndpoint(config, resources)
    return ConversationalAgent(config.name, lambda: AgUiConversation(endpoint), takes_history=True)


class _AgUiEndpoint(ProtocolEndpoint):
    def __init__(self, config: AgUiAgent, resources: Resources) -> None:
        left_out = " and its name in `client_tools`"
        super().__init__(config, resources, _PLACE, handed_over=_HANDED_OVER, left_out=left_out)
        self.config = config

    async def send(self, payload: Wire, run: AgUiRun, turn: _AgUiTurn) -> None:
        async def read_events(events: EventStream) -> None:
            is_ag_ui = False
            async for kind, event in json_events(events):
                event["type"] = kind
                if run.take(event):
                    is_ag_ui = True
                else:
                    self.ignored.note("event", kind)
                if run.spoke:
                    events.note_first_token()
                if run.finished:
                    return
            if not is_ag_ui:
                raise AgentError(f"the agent's stream ended without any event of AG-UI ({_PLACE})")
            raise truncated_stream_error("RUN_FINISHED or RUN_ERROR")

        async def read(response: DirectResponse) -> None:
            await read_body(response, True, _refuse_json, read_events)

        turn.add(await self.sender.post(self.config.endpoint, payload, read, values=turn.values))


def _refuse_json(body: bytes) -> None:
    data = read_json(body, _PLACE)
    if error := data.get("error") if isinstance(data, dict) else None:
        raise AgentError(f"the agent answered with an error: {excerpt(error)}")
    raise AgentError(
        f"the agent's answer is JSON, and AG-UI answers with server-sent events ({_PLACE}): {excerpt(data)}"
    )


@dataclass(slots=True, kw_only=True)
class _AgUiTurn(ProtocolTurn):
    body: Mapping[str, Any]  # the configured fields of its requests
    tools: tuple[ToolSpec, ...]  # the tools that are declared to the agent
    approver: Approver


class AgUiConversation:
    """Sends the messages of one conversation, each with the whole thread."""

    def __init__(self, endpoint: _AgUiEndpoint) -> None:
        self.name = endpoint.config.name
        self._endpoint = endpoint
        self._taken = 0  # the number of the conversation's messages that are in the thread
        self._thread = Thread()
        self._state = AgUiState({})
        self._settled: set[str] = set()
        """Ids of calls that were reported to the turn, or requested from Agentest."""
        self._waiting: tuple[StreamedCall, ...] = ()  # calls that wait for an approval
        self._decided: dict[str, Approval] = {}
        """Ids of calls that waited for an approval → the last decision."""
        self._open: list[Interrupt] = []  # questions without an answer

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the last messages. Each run has a time limit. Raises NoReply, MockBypassed, CannotSend."""
        config, values = self._endpoint.config, TurnValues(messages, ctx)
        turn = _AgUiTurn(
            ctx=ctx,
            values=values,
            body=self._endpoint.body.filled(values),
            tools=declared_tools(ctx, config),
            approver=Approver(ctx.approve, config.approvals),
        )
        if not self._taken:
            self._endpoint.own_tools.check_before(ctx)
            self._thread = Thread(with_ids(turn.body.get("messages", [])))
            given = ctx.session.state if ctx.session else {}
            self._state = AgUiState({**turn.body.get("state", {}), **given})
        decision: Decision | None = None
        for message in messages[self._taken :]:
            if self._open and isinstance(message, UserText):
                decision = self._decide(turn, message.text)
            elif not isinstance(message, AgentMessage) or not self._taken:
                self._thread.add(written(message))
        self._taken = len(messages)
        if self._open and decision is None and (decision := self._decide(turn)) is None:
            # The last run's other calls have their answers; now the user decides.
            return AgentReply(_questions(self._open), observed=self._waiting_calls(ctx))
        return await self._run_until_reply(turn, decision)

    def _decide(self, turn: _AgUiTurn, words: str | None = None) -> Decision | None:
        return turn.approver.decision(asked_tools(self._open, self._waiting), words)

    async def _run_until_reply(self, turn: _AgUiTurn, decision: Decision | None) -> AgentReply:
        while True:
            run, spoken, requests = await self._run(turn, decision)
            with errors_as(turn.no_reply, "", AgentError):
                decision = self._decide(turn) if self._open and not requests else None
            if decision is None:
                turn.observed += () if requests else self._waiting_calls(turn.ctx)
                turn.approvals = turn.approver.answered
                text = spoken.text
                if self._open and not requests:
                    text = _BETWEEN_MESSAGES.join(part for part in (text, _questions(self._open)) if part)
                elif not text and not requests and not turn.observed and run.result is not None:
                    text = excerpt(run.result)
                return turn.reply(
                    text,
                    tool_requests=requests,
                    author=spoken.author,
                    state=self._state.shown,
                    state_before=self._state.begun if self._state.told else None,
                    state_error=self._state.error,
                )
            if spoken.text:
                turn.remarks += (Remark(spoken.author or self.name, spoken.text),)

    async def _run(
        self, turn: _AgUiTurn, decision: Decision | None
    ) -> tuple[AgUiRun, AgentReply, tuple[ToolRequest, ...]]:
        payload = self._payload(turn, decision)
        run = AgUiRun(self._thread, self._state, self._waiting, frozenset(self._settled))
        try:
            await self._endpoint.send(payload, run, turn)
            turn.usage += run.usage
            spoken = read_spoken(run.messages, self.name, run.subagents)
            requests = self._sort_calls(run, turn)
        except AgentError as error:
            config, index = self._endpoint.config, turn.ctx.turn_index
            problem = str(error).replace(config.endpoint, "")
            hint = "" if run.begun else failure_hint(problem, turn.tools, config.gateway_advice)
            calls = [
                call.made(index, None if call.answered else "the run ended before it was answered")
                for call in run.seen
                if call not in self._waiting
            ]
            turn.retries += getattr(error, "retries", 0)
            raise turn.no_reply(f"{error}{hint}", calls) from None
        turn.remarks += spoken.remarks
        self._endpoint.own_tools.check_after(turn.observed, turn.ctx)
        return run, spoken, requests

    def _payload(self, turn: _AgUiTurn, decision: Decision | None) -> Wire:
        forwarded = dict(turn.body.get("forwardedProps", {}))
        resuming: Wire = {}
        if decision is not None:
            self._decided = approvals(self._open, self._waiting, decision)
            resuming, self._open = answers(self._open, self._waiting, decision), []
            if "command" in resuming:
                forwarded["command"] = resuming.pop("command")
        return {
            "context": [],
            **turn.body,
            "threadId": turn.ctx.session_id,
            "runId": new_id(),
            "messages": self._thread.messages,
            "tools": [declared(spec) for spec in turn.tools],
            "state": self._state.value,
            "forwardedProps": forwarded,
            **resuming,
        }

    def _sort_calls(self, run: AgUiRun, turn: _AgUiTurn) -> tuple[ToolRequest, ...]:
        self._open = list(run.interrupts)
        declared_names = {spec.name for spec in turn.tools}
        approval_ids = {interrupt.call_id for interrupt in self._open}
        requested: list[ToolRequest] = []
        undecided: list[StreamedCall] = []
        for call in run.calls:
            if not call.answered and (call.id in approval_ids or None in approval_ids):
                undecided.append(call)
                continue
            self._settled.add(call.id)
            if call.answered or call in self._waiting or self._is_made_by_agent(call, run, declared_names):
                made = replace(call.made(turn.ctx.turn_index), approval=self._decided.get(call.id))
                turn.observed += (made,)
            elif self._open and call.name not in declared_names:
                # The interrupt already asks the question of this call.
                self._endpoint.ignored.note("unanswered call", call.name)
            else:
                requested.append(ToolRequest(call.id, call.name, call.arguments))
        self._waiting = tuple(undecided)
        return tuple(requested)

    def _waiting_calls(self, ctx: TurnContext) -> tuple[ToolCall, ...]:
        return tuple(waiting(call.made(ctx.turn_index)) for call in self._waiting)

    def _is_made_by_agent(self, call: StreamedCall, run: AgUiRun, declared_names: set[str]) -> bool:
        if run.pending:
            return call.id not in run.pending
        return call.name not in declared_names and run.went_on_after(call)


def _questions(interrupts: Sequence[Interrupt]) -> str:
    return _BETWEEN_MESSAGES.join(interrupt.question for interrupt in interrupts)


def read_spoken(messages: Sequence[Wire], agent: str, subagents: Mapping[str, str]) -> AgentReply:
    """Split a run's texts into reply and remarks. `agent` is the author of messages without a name.

    The reply is the agent's text after its last call, or its last text. Texts of subagents are remarks;
    `subagents` has their names by the ids of their runs.
    """
    texts = {
        at: text
        for at, message in enumerate(messages)
        if message["role"] == "assistant" and (text := _content(message)).strip()
    }
    if not texts:
        return AgentReply(None, author=agent)
    last_call = max((at for at, m in enumerate(messages) if m["role"] == "tool" or calls_of(m)), default=-1)
    own_texts = [at for at in texts if "subagentRunId" not in messages[at]] or [*texts]
    reply = [at for at in own_texts if at > last_call] or own_texts[-1:]
    authors = {at: _author(messages[at], agent, subagents) for at in texts}
    remarks = tuple(Remark(authors[at], text) for at, text in texts.items() if at not in reply)
    text = _BETWEEN_MESSAGES.join(texts[at] for at in reply)
    return AgentReply(text, author=authors[reply[0]], remarks=remarks)


def _author(message: Wire, agent: str, subagents: Mapping[str, str]) -> str:
    name = message.get("name") or subagents.get(message.get("subagentRunId") or "")
    return name if isinstance(name, str) else agent


def _content(message: Wire) -> str:
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(text for text in texts if isinstance(text, str))
    if content is not None and not isinstance(content, str):
        raise AgentError(f"the `content` of a message of the agent is not a text: {excerpt(content)}")
    return content or ""


def declared_tools(ctx: TurnContext, config: AgUiAgent) -> tuple[ToolSpec, ...]:
    """Return the tools to declare to the agent.

    These are the tools in `client_tools`, by default the scenario's mocks. If mock servers or the model
    gateway answer for the agent's own tools, the default is empty, because two tools with one name conflict.
    The configuration's description and parameters (`tools`) override those of the mock.
    """
    known = {spec.name: spec for spec in ctx.tools}
    configured = {tool.name: tool for tool in config.tools or ()}
    by_default = () if config.mocks_reach_tools else tuple(known)
    names = by_default if config.client_tools is None else config.client_tools
    return tuple(_with_config(known.get(name) or any_tool(name), configured.get(name)) for name in names)


def _with_config(spec: ToolSpec, configured: AgentTool | None) -> ToolSpec:
    if configured is None:
        return spec
    parameters = spec.parameters if configured.parameters is None else configured.parameters
    return replace(spec, description=configured.description or spec.description, parameters=parameters)


def failure_hint(problem: str, declared: Sequence[ToolSpec], gateway_advice: str) -> str:
    """Return a hint for the error of a run that failed at once, "" for none.

    If the problem names declared tools, the hint is about them. If the agent reports any other error than too
    many runs, the hint lists all declared tools.
    """
    named = [spec.name for spec in declared if re.search(rf"(?<!\w){re.escape(spec.name)}(?!\w)", problem)]
    if named:
        others = [spec.name for spec in declared if spec.name not in named]
        return (
            f"; {quote_tool_names(named)}: declared to the agent, because the scenario mocks it. If the "
            f"agent has it itself, {gateway_advice} to mock it there, or set "
            f"`client_tools: {json.dumps(others)}` and leave the mock out, so that the agent's own tool runs"
        )
    if _TOO_MANY_RUNS.search(problem):
        return "; the agent accepts no more runs at once: lower `concurrency` (--concurrency)"
    if declared and REPORTED_ERROR_PREFIX in problem:
        return (
            f"; Agentest declared {quote_tool_names([spec.name for spec in declared])} to it. If it has one "
            f"of them itself, {gateway_advice} to mock it there, or list only the others in `client_tools`"
        )
    return ""
