"""Conversion between the AI SDK's messages and Agentest's values.

Parts of an assistant's message become texts, remarks and tool calls. User messages, tool results and
decisions become parts, also in the form of AI SDK 4.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from agentest.agents.json_reader import read_any, shown
from agentest.domain.messages import Attachment, ToolRequest, ToolResult, UserText
from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import WAITS_FOR_APPROVAL, Remark, ToolCall

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
    given = part.get("input")
    return given if isinstance(given, str) else json.dumps({} if given is None else given)


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
    return f"The agent asks for approval to call {tool_name(part)} with {shown(part.get('input'))}{why}."


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
