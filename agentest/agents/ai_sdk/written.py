"""Messages as backends of the AI SDK want them, and answers of mocks put into their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentest.agents.ai_sdk.parts import DECIDED, DENIED, DONE, FAILED, Part, is_tool, new_id, tool_name
from agentest.agents.reading import read_any
from agentest.domain.messages import Attachment, ToolResult, UserText

Wire = dict[str, Any]


def user_message(said: UserText) -> Wire:
    """What the user writes, with files as data addresses."""
    text = [{"type": "text", "text": said.text}] if said.text or not said.attachments else []
    return {"id": new_id(), "role": "user", "parts": [*text, *map(_file, said.attachments)]}


def _file(file: Attachment) -> Part:
    name = {"filename": file.name} if file.name else {}
    address = file.uri or f"data:{file.mime_type};base64,{file.base64}"
    return {"type": "file", "mediaType": file.mime_type, **name, "url": address}


def fill(part: Part, result: ToolResult) -> None:
    """Put the answer of a mock into the part of its call. What a mock that raises answers is an error."""
    value = read_any(result.text)
    if isinstance(value, dict) and value.keys() == {"error"} and isinstance(value["error"], str):
        part.update(state=FAILED, errorText=value["error"])
    else:
        part.update(state=DONE, output=value)


def decide(part: Part, approved: bool, reason: str | None) -> None:
    """Put the answer to an approval request into the part of its call."""
    why = {} if reason is None else {"reason": reason}
    part.update(state=DECIDED, approval={**part["approval"], "approved": approved, **why})


def version_4(messages: Sequence[Wire]) -> list[Wire]:
    """The messages as AI SDK 4 has them: a text beside the parts, and tool calls as invocations."""
    return [_old(message) for message in messages]


def _old(message: Wire) -> Wire:
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
