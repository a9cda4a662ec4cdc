"""The client of a backend that speaks the Vercel AI SDK's stream protocols over HTTP, as `useChat` does.

The backend runs its own tools and reports their calls. It requests calls of tools without `execute`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from typing import Any

from agentest.agents.ai_sdk.parts import (
    ASKED,
    DECIDED,
    DENIED,
    DONE,
    FAILED,
    STREAMING,
    WAITS,
    AssistantMessage,
    Part,
    is_tool,
    new_id,
    tool_name,
)
from agentest.agents.ai_sdk.stream import TEXT_STREAM_HIDES_CALLS, AiSdkSender, StreamResult
from agentest.agents.approvals import (
    MOST_APPROVALS,
    TOO_MANY_QUESTIONS,
    Decision,
    decision_of_setting,
    decision_of_user,
)
from agentest.agents.http_sender import HttpAnswer
from agentest.agents.json_reader import excerpt, read_any
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.config.agents.frontends import AiSdkAgent
from agentest.domain.messages import Attachment, Message, ToolRequest, ToolResult, UserText
from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import WAITS_FOR_APPROVAL, Remark, ToolCall, Usage
from agentest.support.errors import CannotSend
from agentest.support.lazy_dataclasses import dataclass


def open_agent(_: str, config: AiSdkAgent, resources: Resources) -> AiSdkClient:
    """Create the client of a backend of the AI SDK."""
    return AiSdkClient(config, resources)


class AiSdkClient:
    """Opens conversations with one backend. Stores nothing about them."""

    takes_attachments = True

    def __init__(self, config: AiSdkAgent, resources: Resources) -> None:
        self.name = config.name
        self._exchange = AiSdkSender(config, resources)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[AiSdkConversation]:
        """Open one conversation, which stores the messages with the parts that the agent sent."""
        yield AiSdkConversation(self._exchange)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to a conversation's only message. Raises NoReply, CannotSend, MockBypassed."""
        return await AiSdkConversation(self._exchange).reply(messages, ctx)


@dataclass(slots=True)
class _StreamTotals:
    """The sums and lists over all streams of one reply."""

    latency_ms: float = 0.0
    first_token_ms: float | None = None
    retries: int = 0
    is_text: bool = False
    usage: Usage = field(default_factory=Usage)
    model_calls: int | None = None
    observed: tuple[ToolCall, ...] = ()
    said: tuple[str, ...] = ()

    def add(self, answer: HttpAnswer[StreamResult]) -> None:
        """Add the timing and usage of one stream."""
        if self.first_token_ms is None and answer.first_token_ms is not None:
            self.first_token_ms = self.latency_ms + answer.first_token_ms
        self.latency_ms += answer.latency_ms
        self.retries += answer.retries
        self.is_text = self.is_text or answer.value.is_text
        self.usage += answer.value.usage
        if answer.value.model_calls:
            self.model_calls = (self.model_calls or 0) + answer.value.model_calls


class AiSdkConversation:
    """One conversation with a backend."""

    def __init__(self, exchange: AiSdkSender) -> None:
        self.name = exchange.name
        self._exchange = exchange
        self._messages: list[Wire | AssistantMessage] = []
        self._version_4 = exchange.version == 4

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the user's last message or to the last tool results.

        Raises NoReply, CannotSend, MockBypassed.
        """
        if not self._messages:
            self._exchange.own_tools.check_before(ctx)
        current, total = self._current(), _StreamTotals()
        if isinstance(messages[-1], ToolResult):
            self._fill_results(current, messages)
            if waiting(current) and self._exchange.approvals == "ask":
                return self._reply(current, total, ctx)
        else:
            self._take_message(current, messages[-1])
        decision = decision_of_setting(self._exchange.approvals)
        for _ in range(MOST_APPROVALS):
            if decision is not None:
                _decide_waiting(self._current(), decision)
            current = await self._send(total, messages, ctx)
            if requested_calls(current) or not waiting(current) or decision is None:
                return self._reply(current, total, ctx)
        raise NoReply(TOO_MANY_QUESTIONS, total.retries, total.observed)

    def _current(self) -> AssistantMessage:
        """Return the message that the agent continues: its last, or a new one after a user message."""
        last = self._messages[-1] if self._messages else None
        return last if isinstance(last, AssistantMessage) else AssistantMessage(self._exchange.on_unknown)

    def _take_message(self, current: AssistantMessage, message: Message) -> None:
        """Take the user's message as the decision about waiting calls, or add it to the messages."""
        assert isinstance(message, UserText)
        if waiting(current):
            _decide_waiting(current, decision_of_user(message.text))
        else:
            self._messages.append(user_message(message))

    def _fill_results(self, current: AssistantMessage, messages: Sequence[Message]) -> None:
        for message in reversed(messages):
            if not isinstance(message, ToolResult):
                break
            part = current.tool(message.request_id)
            assert part is not None, "only calls of this message were handed to us"
            fill_result(part, message)
            current.set_done(part)

    async def _send(
        self, total: _StreamTotals, messages: Sequence[Message], ctx: TurnContext
    ) -> AssistantMessage:
        """Send all messages and add the stream to the message that it continues."""
        current = self._current()
        before = len(current.parts)
        result = StreamResult(current)
        payload = self._payload(ctx.session_id)
        try:
            answer = await self._exchange.send(payload, result, TurnValues(messages, ctx))
        except NoReply as error:
            raise self._no_reply(str(error), total.retries + error.retries, total, current, ctx) from None
        if self._messages[-1] is not current:
            self._messages.append(current)
        self._version_4 = self._version_4 or result.is_version_4
        total.add(answer)
        if result.is_text and ctx.tools:
            self._exchange.own_tools.unreachable = _unreachable(self.name)
            raise CannotSend(self._exchange.own_tools.unreachable)
        self._take_calls(total, current, ctx)
        total.said += tuple(texts(current.parts[before:]))
        return current

    def _no_reply(
        self, problem: str, retries: int, total: _StreamTotals, current: AssistantMessage, ctx: TurnContext
    ) -> NoReply:
        calls = made(current, ctx.turn_index)
        return NoReply(problem, retries, (*total.observed, *calls))

    def _take_calls(self, total: _StreamTotals, current: AssistantMessage, ctx: TurnContext) -> None:
        """Add the calls that the agent has made. Raises MockBypassed."""
        calls = made(current, ctx.turn_index)
        total.observed += calls
        self._exchange.own_tools.check_after(total.observed, ctx)

    def _payload(self, session_id: str) -> dict[str, Any]:
        wire = [m.wire() if isinstance(m, AssistantMessage) else m for m in self._messages]
        last = self._messages[-1]
        continued = {"messageId": last.id} if isinstance(last, AssistantMessage) else {}
        return {
            "id": session_id,
            "messages": to_version_4(wire) if self._version_4 else wire,
            "trigger": "submit-message",
            **continued,
        }

    def _reply(self, current: AssistantMessage, total: _StreamTotals, ctx: TurnContext) -> AgentReply:
        requests, pending_calls = requested_calls(current), waiting(current)
        *before, last = total.said or ("",)
        if pending_calls and not requests:
            last = "\n\n".join(part for part in (last, question(pending_calls)) if part)
        return AgentReply(
            text=last or None,
            tool_requests=requests,
            usage=total.usage,
            latency_ms=total.latency_ms,
            retries=total.retries,
            model_calls=total.model_calls,
            observed=total.observed + undecided(current, ctx.turn_index),
            remarks=remarks(before, self.name),
            first_token_ms=total.first_token_ms,
            calls_hidden=TEXT_STREAM_HIDES_CALLS if total.is_text else None,
        )


def _unreachable(agent: str) -> str:
    return (
        f"the scenario has mocks, and agent {agent!r} answered with a text stream, which hands over no call: "
        "its real tools run. Have it answer with a UI message stream (toUIMessageStreamResponse), or leave "
        "the mocks out and set tool_visibility: unseen"
    )


def _decide_waiting(current: AssistantMessage, decision: Decision) -> None:
    for part in waiting(current):
        fill_decision(part, decision.approved, None if decision.approved else decision.reason)


_BETWEEN = "\n\n"
_DENIED = "the call was denied"
Wire = dict[str, Any]


def texts(parts: Sequence[Part]) -> list[str]:
    """Return the texts between tool calls, one for each group of adjacent text parts."""
    groups: list[list[str]] = [[]]
    for part in parts:
        if is_tool(part):
            groups.append([])
        elif part["type"] == "text" and part["text"].strip():
            groups[-1].append(part["text"])
    return [_BETWEEN.join(group) for group in groups if group]


def remarks(before: Sequence[str], agent: str) -> tuple[Remark, ...]:
    """Return the texts before the reply as remarks of the agent."""
    return tuple(Remark(agent, text) for text in before)


def requested_calls(message: AssistantMessage) -> tuple[ToolRequest, ...]:
    """Return the calls that the agent requests: without output, approval or execution by its provider."""
    return tuple(
        ToolRequest(part["toolCallId"], tool_name(part), _arguments(part))
        for part in message.parts
        if is_tool(part) and part["state"] == ASKED and not _is_of_the_server(part)
    )


def _is_of_the_server(part: Part) -> bool:
    return bool(part.get("providerExecuted")) or "approval" in part


def _arguments(part: Part) -> str:
    arguments = part.get("input")
    return arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)


def waiting(message: AssistantMessage) -> list[Part]:
    """Return the calls that wait for approval."""
    return [
        part
        for part in message.parts
        if is_tool(part) and part["state"] == WAITS and not part["approval"].get("isAutomatic")
    ]


def question(parts: Sequence[Part]) -> str:
    """Return the agent's request for approvals as the text of a reply."""
    return _BETWEEN.join(map(_approval_question, parts))


def _approval_question(part: Part) -> str:
    reason = part["approval"].get("requestReason")
    why = f" ({reason})" if reason else ""
    return f"The agent asks for approval to call {tool_name(part)} with {excerpt(part.get('input'))}{why}."


def made(message: AssistantMessage, turn_index: int) -> tuple[ToolCall, ...]:
    """Return finished calls that were not reported before, also denied ones, and mark them as done."""
    finished = [p for p in message.parts if is_tool(p) and _is_finished(p) and not message.is_done(p)]
    for part in finished:
        message.set_done(part)
    return tuple(_call(part, message, turn_index) for part in finished)


def undecided(message: AssistantMessage, turn_index: int) -> tuple[ToolCall, ...]:
    """Return the calls that wait for approval as calls of the current turn."""
    return tuple(_call(part, message, turn_index) for part in waiting(message))


def _is_denied(part: Part) -> bool:
    return part["state"] == DENIED or (part["state"] == DECIDED and not part["approval"].get("approved"))


def _is_finished(part: Part) -> bool:
    """Return whether a call needs neither a result nor an approval after the stream has ended."""
    return part["state"] not in (ASKED, WAITS) or (part["state"] == ASKED and _is_of_the_server(part))


def _call(part: Part, message: AssistantMessage, turn_index: int) -> ToolCall:
    state, invalid, args = part["state"], None, part.get("input")
    if state == STREAMING:
        args, invalid = message.unfinished_input(part["toolCallId"]), "its input was cut"
    error = part.get("errorText") if state == FAILED else _DENIED if _is_denied(part) else None
    if state == WAITS:
        error = WAITS_FOR_APPROVAL
    return ToolCall(
        name=tool_name(part),
        args={} if args is None else args,
        result=part.get("output") if state == DONE else None,
        mocked=False,
        turn_index=turn_index,
        invalid_arguments=invalid,
        error=error,
        seen_by=SeenBy.AGENT,
        call_id=part["toolCallId"],
        approval=_approval(part),
    )


def _approval(part: Part) -> Approval | None:
    if part["state"] == WAITS:
        return Approval.PENDING
    if _is_denied(part):
        return Approval.DENIED
    return Approval.GRANTED if part.get("approval", {}).get("approved") else None


def user_message(message: UserText) -> Wire:
    """Return a user message as JSON. Files without an address become data URLs."""
    text = [{"type": "text", "text": message.text}] if message.text or not message.attachments else []
    return {"id": new_id(), "role": "user", "parts": [*text, *map(_file, message.attachments)]}


def _file(file: Attachment) -> Part:
    name = {"filename": file.name} if file.name else {}
    address = file.uri or f"data:{file.mime_type};base64,{file.base64}"
    return {"type": "file", "mediaType": file.mime_type, **name, "url": address}


def fill_result(part: Part, result: ToolResult) -> None:
    """Add a mock's result to the part of its call. The result of a mock that raises is an error."""
    value = read_any(result.text)
    if isinstance(value, dict) and value.keys() == {"error"} and isinstance(value["error"], str):
        part.update(state=FAILED, errorText=value["error"])
    else:
        part.update(state=DONE, output=value)


def fill_decision(part: Part, approved: bool, reason: str | None) -> None:
    """Add the decision about an approval request to the part of its call."""
    why = {} if reason is None else {"reason": reason}
    part.update(state=DECIDED, approval={**part["approval"], "approved": approved, **why})


def to_version_4(messages: Sequence[Wire]) -> list[Wire]:
    """Convert messages to AI SDK 4: with the text in `content`, and tool calls as invocations."""
    return [_old_message(message) for message in messages]


def _old_message(message: Wire) -> Wire:
    parts = [old for part in message["parts"] if (old := _old_part(part)) is not None]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    made = [part["toolInvocation"] for part in parts if part["type"] == "tool-invocation"]
    files = [part for part in message["parts"] if part["type"] == "file"]
    return {
        "id": message["id"],
        "role": message["role"],
        "content": "".join(texts),
        "parts": parts,
        **({"toolInvocations": made} if made else {}),
        **({"experimental_attachments": [*map(_old_file, files)]} if files else {}),
    }


def _old_part(part: Part) -> Part | None:
    if is_tool(part):
        return {"type": "tool-invocation", "toolInvocation": _invocation(part)}
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    return {"type": "step-start"} if part["type"] == "step-start" else None


def _invocation(part: Part) -> Part:
    call = {"toolCallId": part["toolCallId"], "toolName": tool_name(part), "args": part.get("input")}
    if part["state"] == DONE:
        return {"state": "result", **call, "result": part["output"]}
    if part["state"] in (FAILED, DENIED):
        return {"state": "result", **call, "result": {"error": part.get("errorText", "denied")}}
    return {"state": "call", **call}


def _old_file(part: Part) -> Part:
    return {"contentType": part["mediaType"], "url": part["url"], "name": part.get("filename", "file")}
