"""The client of a backend that speaks the Vercel AI SDK's stream protocols over HTTP, as `useChat` does.

The backend runs its own tools and reports their calls. It requests calls of tools without `execute`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentest.agents.json_reader import excerpt, read_any
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, ConversationalAgent, NoReply, Resources, TurnContext
from agentest.domain.messages import AgentMessage, Attachment, Message, ToolRequest, ToolResult, UserText
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import WAITS_FOR_APPROVAL, Remark, ToolCall
from agentest.plugins.protocols.ai_sdk.settings import AiSdkAgent
from agentest.plugins.protocols.ai_sdk.stream import (
    ASKED,
    DECIDED,
    DENIED,
    DONE,
    FAILED,
    PLACE,
    STREAMING,
    WAITS,
    AssistantMessage,
    Part,
    StreamResult,
    is_tool,
    new_id,
    read_stream,
    tool_name,
)
from agentest.plugins.protocols.approvals import Approver
from agentest.plugins.protocols.protocol_client import ProtocolEndpoint, ProtocolTurn, agent_call
from agentest.support.errors import AgentError, CannotSend, errors_as
from agentest.support.http.client import DirectResponse
from agentest.support.lazy_dataclasses import dataclass

_BETWEEN = "\n\n"
_HANDED_OVER = "take `execute` from the tool, so that the backend hands its calls to the client"
_TEXT_STREAM_HIDES_CALLS = (
    "it answered with a text stream, which reports none. To see them, have it answer with a UI message "
    "stream (toUIMessageStreamResponse). Otherwise remove the checks of calls"
)
_ACCEPT = {"accept": "text/event-stream, text/plain, application/json"}
Wire = dict[str, Any]


def open_agent(_: str, config: AiSdkAgent, resources: Resources) -> ConversationalAgent:
    """Create the client of a backend of the AI SDK."""
    backend = _Backend(config, resources)
    return ConversationalAgent(config.name, lambda: AiSdkConversation(backend), takes_history=True)


class _Backend(ProtocolEndpoint):
    def __init__(self, config: AiSdkAgent, resources: Resources) -> None:
        super().__init__(config, resources, PLACE, handed_over=_HANDED_OVER)
        self.config = config

    async def send(self, payload: Wire, result: StreamResult, turn: _StreamTotals) -> None:
        async def read(response: DirectResponse) -> None:
            await read_stream(response, result)

        body, url = {**self.body.filled(turn.values), **payload}, self.config.endpoint
        turn.add(await self.sender.post(url, body, read, values=turn.values, headers=_ACCEPT))


@dataclass(slots=True, kw_only=True)
class _StreamTotals(ProtocolTurn):
    is_text: bool = False
    model_calls: int = 0
    said: tuple[str, ...] = ()


class AiSdkConversation:
    """One conversation with a backend."""

    def __init__(self, backend: _Backend) -> None:
        self.name = backend.config.name
        self._backend = backend
        self._messages: list[Wire | AssistantMessage] = []

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the user's message or the last tool results. Raises NoReply, CannotSend, MockBypassed."""
        if not self._messages:
            self._backend.own_tools.check_before(ctx)
            self._messages += earlier_wire(messages[:-1])
        current, message = self._current(), messages[-1]
        total = _StreamTotals(ctx=ctx, values=TurnValues(messages, ctx))
        approver = Approver(ctx.approve, self._backend.config.approvals)
        if isinstance(message, ToolResult):
            self._fill_results(current, messages)
            if waiting(current) and not _decide_waiting(current, approver):
                return self._reply(current, total)
        else:
            assert isinstance(message, UserText)
            if not _decide_waiting(current, approver, message.text):
                self._messages.append(user_message(message))
        goes_on = True
        while goes_on:
            current = await self._send(total)
            with errors_as(total.no_reply, "", AgentError):
                goes_on = not requested_calls(current) and _decide_waiting(current, approver)
        total.approvals = approver.answered
        return self._reply(current, total)

    def _current(self) -> AssistantMessage:
        last = self._messages[-1] if self._messages else None
        return last if isinstance(last, AssistantMessage) else AssistantMessage(self._backend.ignored.note)

    def _fill_results(self, current: AssistantMessage, messages: Sequence[Message]) -> None:
        for message in reversed(messages):
            if not isinstance(message, ToolResult):
                break
            part = current.tool(message.request_id)
            assert part is not None, "only calls of this message were handed to us"
            value = read_any(message.text)
            # The result of a mock that raises is an error.
            if isinstance(value, dict) and value.keys() == {"error"} and isinstance(value["error"], str):
                part.update(state=FAILED, errorText=value["error"])
            else:
                part.update(state=DONE, output=value)
            current.set_done(part)

    async def _send(self, total: _StreamTotals) -> AssistantMessage:
        """Send all messages and add the stream to the message that it continues. Raises MockBypassed."""
        ctx = total.ctx
        current, own_tools = self._current(), self._backend.own_tools
        before = len(current.parts)
        result = StreamResult(current)
        wire = [m.wire() if isinstance(m, AssistantMessage) else m for m in self._messages]
        last = self._messages[-1]
        payload = {
            "id": ctx.session_id,
            "messages": wire,
            "trigger": "submit-message",
            **({"messageId": last.id} if isinstance(last, AssistantMessage) else {}),
        }
        try:
            await self._backend.send(payload, result, total)
        except NoReply as error:
            raise total.no_reply(error, made(current, ctx.turn_index)) from None
        if last is not current:
            self._messages.append(current)
        total.is_text = total.is_text or result.is_text
        total.usage += result.usage
        total.model_calls += result.model_calls
        if result.is_text and ctx.tools:
            own_tools.unreachable = (
                f"the scenario has mocks, and agent {self.name!r} answered with a text stream, which hands "
                "over no call: its real tools run. Have it answer with a UI message stream "
                "(toUIMessageStreamResponse), or leave the mocks out and set tool_visibility: unseen"
            )
            raise CannotSend(own_tools.unreachable)
        total.observed += made(current, ctx.turn_index)
        own_tools.check_after(total.observed, ctx)
        total.said += tuple(texts(current.parts[before:]))
        return current

    def _reply(self, current: AssistantMessage, total: _StreamTotals) -> AgentReply:
        requests, pending_calls = requested_calls(current), waiting(current)
        *before, last = total.said or ("",)
        if pending_calls and not requests:
            last = _BETWEEN.join(filter(None, (last, *map(_approval_question, pending_calls))))
        total.observed += tuple(_call(part, current, total.ctx.turn_index) for part in pending_calls)
        total.remarks = tuple(Remark(self.name, text) for text in before)
        return total.reply(
            last,
            tool_requests=requests,
            model_calls=total.model_calls or None,
            calls_hidden=_TEXT_STREAM_HIDES_CALLS if total.is_text else None,
        )


def _decide_waiting(current: AssistantMessage, approver: Approver, words: str | None = None) -> bool:
    parts = waiting(current)
    decision = approver.decision([*map(tool_name, parts)], words) if parts else None
    if decision is None:
        return False
    for part in parts:
        one = decision.about(tool_name(part))
        why = {} if one.approved else {"reason": one.reason}
        part.update(state=DECIDED, approval={**part["approval"], "approved": one.approved, **why})
    return True


def texts(parts: Sequence[Part]) -> list[str]:
    """Return the texts between tool calls, one for each group of adjacent text parts."""
    groups: list[list[str]] = [[]]
    for part in parts:
        if is_tool(part):
            groups.append([])
        elif part["type"] == "text" and part["text"].strip():
            groups[-1].append(part["text"])
    return [_BETWEEN.join(group) for group in groups if group]


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


def _is_finished(part: Part) -> bool:
    return part["state"] not in (ASKED, WAITS) or (part["state"] == ASKED and _is_of_the_server(part))


def _call(part: Part, message: AssistantMessage, turn_index: int) -> ToolCall:
    state, problem, args, error = part["state"], None, part.get("input"), None
    approved = part.get("approval", {}).get("approved")
    approval = Approval.GRANTED if approved else None
    if state == STREAMING:
        args, problem = message.unfinished_input(part["toolCallId"]), "its input was cut"
    elif state == FAILED:
        error = part.get("errorText")
    elif state == WAITS:
        error, approval = WAITS_FOR_APPROVAL, Approval.PENDING
    elif state == DENIED or (state == DECIDED and not approved):
        error, approval = "the call was denied", Approval.DENIED
    return agent_call(
        name=tool_name(part),
        args={} if args is None else args,
        turn_index=turn_index,
        result=part.get("output") if state == DONE else None,
        invalid_arguments=problem,
        error=error,
        call_id=part["toolCallId"],
        approval=approval,
    )


def user_message(message: UserText) -> Wire:
    """Return a user message as JSON. Files without an address become data URLs."""
    text = [{"type": "text", "text": message.text}] if message.text or not message.attachments else []
    return {"id": new_id(), "role": "user", "parts": [*text, *map(_file, message.attachments)]}


def earlier_wire(messages: Sequence[Message]) -> list[Wire]:
    """Return the messages from before the first turn as JSON; a call is in one part with its result."""
    results = {each.request_id: each.text for each in messages if isinstance(each, ToolResult)}
    wire: list[Wire] = []
    for each in messages:
        if isinstance(each, UserText):
            wire.append(user_message(each))
        elif isinstance(each, AgentMessage):
            parts: list[Part] = [{"type": "text", "text": each.text, "state": "done"}] if each.text else []
            for call in each.tool_requests:
                made = {"toolCallId": call.id, "state": DONE, "input": read_any(call.arguments)}
                parts.append({"type": f"tool-{call.name}", **made, "output": read_any(results[call.id])})
            wire.append({"id": new_id(), "role": "assistant", "parts": parts})
    return wire


def _file(file: Attachment) -> Part:
    name = {"filename": file.name} if file.name else {}
    address = file.uri or file.data_address
    return {"type": "file", "mediaType": file.mime_type, **name, "url": address}
