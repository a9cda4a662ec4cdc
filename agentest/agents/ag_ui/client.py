"""The client of an agent behind AG-UI, its conversations, and the text of a run's messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agentest.agents.ag_ui.calls import Interrupt, StreamedCall, answers, approvals
from agentest.agents.ag_ui.requests import AgUiRequest, AgUiSender, declared_tools, failure_hint, own_tools
from agentest.agents.ag_ui.run import AgUiRun
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
from agentest.agents.bypassed_tools import BypassDetector
from agentest.agents.json_reader import shown
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import Agent, AgentReply, NoReply, Resources, TurnContext
from agentest.config.agents.ag_ui import AgUiAgent
from agentest.domain.messages import AgentMessage, Message, ToolRequest, UserText
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import Remark, ToolCall, Usage, waiting
from agentest.support.errors import AgentError
from agentest.support.replacing import replace

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
        """Reply to a complete history in a new thread. Raises NoReply, MockBypassed, CannotSend."""
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
            seen = tuple(call.made_or_begun(ctx.turn_index) for call in run.seen if call not in self._waiting)
            raise NoReply(f"{error}{hint}", retries, (*total.observed, *seen)) from None
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
        approval_ids = {one.call_id for one in self._open}
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
            text = shown(run.result)
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
    return BETWEEN_MESSAGES.join(one.question for one in interrupts)


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
    own = [text for text in texts if not text.of_subagent] or texts
    return [text for text in own if text.at > last_call] or [own[-1]]


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
        raise AgentError(f"the `content` of a message of the agent is not a text: {shown(content)}")
    return content or ""
