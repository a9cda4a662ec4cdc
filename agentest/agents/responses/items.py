"""The items of a response: tool calls and their outputs, texts, and the reply that they form.

Calls are either requests that the caller answers, or calls that the agent made itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentest.agents.file_parts import audio_format, data_address, kind_of, name_of, web_address
from agentest.agents.json_reader import (
    arguments_text,
    excerpt,
    is_list_of_objects,
    read_arguments,
    read_result,
    text_at,
)
from agentest.agents.port import IgnoredCounter
from agentest.agents.protocol_client import agent_call, content_parts
from agentest.domain.messages import Attachment, Message, ToolRequest, ToolResult, UserText
from agentest.domain.transcript import ToolCall
from agentest.support.errors import AgentError

Item = Mapping[str, Any]
"""An item of a response's `output`, as received."""

_CALL = "_call"
_OUTPUT = "_output"
_METADATA_KEYS = {
    "type",
    "id",
    "call_id",
    "status",
    "name",
    "response_id",
    "agent_reference",
    "created_by",
    "caller",
    "async",
    "namespace",
    "environment",
    "pending_safety_checks",
}
_RESULT_KEYS = ("output", "outputs", "result", "results")
_IMAGE_CALL = "image_generation_call"
_SILENT_ITEMS = (
    "reasoning",
    "compaction",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "additional_tools",
    "program",
    "program_output",
    "tool_search_output",
)
"""Types of items without text or calls. Requests send them back with the others."""
_REASONING_PARTS = ("reasoning_text", "summary_text")
_RECIPIENT = "an agent that speaks Responses"


_CALLER_TOOLS = {
    "function_call": "",
    "custom_tool_call": "",
    "computer_call": "computer",
    "shell_call": "shell",
    "local_shell_call": "local_shell",
    "apply_patch_call": "apply_patch",
}
"""Types of items that the caller answers → the tool, "" to use the item's `name`. The server answers other
calls itself (`web_search_call`)."""
_JSON_OUTPUTS = ("computer_call", "shell_call")
"""Types of calls whose output is a JSON value instead of a text."""


def is_call(item: Item) -> bool:
    """Return whether an item is a call or the output of a call."""
    kind = _kind(item)
    return kind.endswith((_CALL, _CALL + _OUTPUT))


def read_calls(
    items: Sequence[Item], turn_index: int
) -> tuple[tuple[ToolRequest, ...], tuple[ToolCall, ...]]:
    """Return the calls that the caller answers, and those that the agent made itself.

    Raises AgentError for a call without a tool's name.
    """
    outputs: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        if _is_output(item):
            outputs.setdefault((_kind(item).removesuffix(_OUTPUT), _call_id(item)), []).append(item)
    requests: list[ToolRequest] = []
    made: list[ToolCall] = []
    for item in items:
        if not _kind(item).endswith(_CALL):
            continue
        waiting = outputs.get((_kind(item), _call_id(item)))
        output = waiting.pop(0) if waiting else None
        if output is None and _kind(item) in _CALLER_TOOLS:
            arguments = item.get("arguments") if _kind(item) == "function_call" else _arguments(item)[0]
            requests.append(ToolRequest(item["call_id"], _required_name(item), arguments_text(arguments)))
        else:
            made.append(_made(item, output, turn_index))
    return tuple(requests), tuple(made)


def read_made(items: Sequence[Item], turn_index: int) -> tuple[ToolCall, ...]:
    """Return the calls that the agent made, also in an incomplete response. Never raises."""
    return read_calls([item for item in items if _tool_name(item)], turn_index)[1]


def check_outputs(items: Sequence[Item], before: Sequence[Item]) -> None:
    """Raise AgentError for an output of an unknown call, because checks of forbidden calls would miss it.

    Args:
        items: the items of a response.
        before: the earlier items of the conversation, which servers may repeat.
    """
    known = {_call_id(item) for item in (*before, *items) if _kind(item).endswith(_CALL)}
    for item in items:
        if _is_output(item) and _call_id(item) not in known:
            raise AgentError(
                f"a {_kind(item)} of the agent belongs to no call: {excerpt(item)} (expected a "
                f"{_kind(item).removesuffix(_OUTPUT)} with its `call_id`)"
            )


def requested_by_id(items: Sequence[Item]) -> dict[str, Item]:
    """Return the calls that a caller may have to answer, by `call_id`."""
    return {item["call_id"]: item for item in items if _kind(item) in _CALLER_TOOLS}


def _is_output(item: Item) -> bool:
    return _kind(item).endswith(_CALL + _OUTPUT)


def _kind(item: Item) -> str:
    return text_at(item, "type")


def _call_id(item: Item) -> str:
    return excerpt(item.get("call_id") or item.get("id"))


def _tool_name(item: Item) -> str:
    """Return the name of the tool that a call calls, "" if it is missing."""
    kind = _kind(item)
    tool = _CALLER_TOOLS.get(kind, "" if kind == "mcp_call" else kind.removesuffix(_CALL))
    return tool or text_at(item, "name")


def _required_name(item: Item) -> str:
    name = _tool_name(item)
    if not name:
        raise AgentError(f"a {_kind(item)} of the agent has no name: {excerpt(item)}")
    return name


def _arguments(item: Item) -> tuple[Any, str | None]:
    """Return a call's arguments and the problem with them."""
    if "arguments" in item:
        return read_arguments(item["arguments"])
    for key in ("action", "operation"):
        if isinstance(item.get(key), Mapping):
            return dict(item[key]), None
    hidden = {*_METADATA_KEYS, *_RESULT_KEYS, "error"}
    return {key: value for key, value in item.items() if key not in hidden and value is not None}, None


def _made(item: Item, output: Item | None, turn_index: int) -> ToolCall:
    args, problem = _arguments(item)
    failed = "the call failed" if item.get("status") == "failed" else None
    return agent_call(
        _required_name(item),
        args,
        turn_index,
        result=_result(item) if output is None else read_result(output.get("output")),
        problem=problem,
        error=excerpt(item["error"]) if item.get("error") else failed,
        call_id=text_at(item, "call_id") or text_at(item, "id") or None,
    )


def _result(item: Item) -> Any:
    result = next((item[key] for key in _RESULT_KEYS if item.get(key) is not None), None)
    if _kind(item) == _IMAGE_CALL and isinstance(result, str):
        return f"({len(result):,} characters of base64)"
    return read_result(result)


def items_of(response: Mapping[str, Any]) -> tuple[Item, ...]:
    """Return the items of a finished response in the form for the next request. Raises AgentError.

    Calls for the caller that lack a `call_id` get one.
    """
    output = response.get("output")
    if not is_list_of_objects(output):
        raise AgentError(f"the `output` of the agent's response is not a list of items: {excerpt(output)}")
    prefix = f"call_{response.get('id') or 'of_agent'}"
    return tuple(
        {**item, "call_id": item.get("id") or f"{prefix}_{index}"}
        if _kind(item) in _CALLER_TOOLS and not text_at(item, "call_id")
        else item
        for index, item in enumerate(output)
    )


def read_texts(items: Sequence[Item], ignored: IgnoredCounter) -> tuple[str | None, tuple[str, ...]]:
    """Split the texts into reply and remarks. Raises AgentError.

    The reply is the text after the last call, or the last message if there is none. Commentary is a remark.
    """
    texts = {index: text for index, item in enumerate(items) if (text := _text(item, ignored)).strip()}
    last_call = max((index for index, item in enumerate(items) if is_call(item)), default=-1)
    final = [at for at in texts if at > last_call and items[at].get("phase") != "commentary"]
    final = final or list(texts)[-1:]
    reply = "\n\n".join(texts[at] for at in final) or None
    return reply, tuple(text for at, text in texts.items() if at not in final)


def check_approvals(items: Sequence[Item]) -> None:
    """Raise AgentError if the server requests approval for an MCP tool call."""
    for item in items:
        if item.get("type") == "mcp_approval_request":
            raise AgentError(
                f"the agent asks for approval to call the MCP tool {item.get('name')!r}, which nobody here "
                "gives; set require_approval: never for its server, in body.tools or where the agent is made"
            )


def _text(item: Item, ignored: IgnoredCounter) -> str:
    kind = item.get("type", "message" if "content" in item else None)
    if kind != "message":
        if not is_call(item) and kind not in _SILENT_ITEMS:
            ignored.note("item", kind)
        return ""
    if item.get("role", "assistant") != "assistant":
        ignored.note("message", f"role {item['role']}")
        return ""
    content = item.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "".join(_part(part, ignored) for part in content)
    raise AgentError(f"the `content` of a message of the agent is no list of parts: {excerpt(content)}")


def _part(part: Any, ignored: IgnoredCounter) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise AgentError(f"a part of the agent's message is not an object: {excerpt(part)}")
    kind = part.get("type")
    if kind in _REASONING_PARTS:
        return ""
    text = part.get("refusal" if kind == "refusal" else "text")
    if isinstance(text, str):
        return text
    if kind in ("output_text", "refusal"):
        raise AgentError(f"a part of the agent's message has no text: {excerpt(part)}")
    ignored.note("part", kind)
    return ""


def written(messages: Sequence[Message], calls: Mapping[str, Item]) -> list[dict[str, Any]]:
    """Return the messages as items. Raises CannotSend for a file that the protocol cannot send.

    Args:
        messages: the messages to send.
        calls: the received calls by id, which determine the types of their outputs.
    """
    items: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, UserText):
            items.append({"role": "user", "content": content_parts(message, "input_text", _file)})
        elif isinstance(message, ToolResult):
            items.append(output_item(message, calls.get(message.request_id)))
        else:
            if message.text:
                items.append({"role": "assistant", "content": message.text})
            items += map(_call_item, message.tool_requests)
    return items


def output_item(result: ToolResult, item: Item | None) -> dict[str, Any]:
    """Return a tool's result as an item of the next `input`.

    Args:
        result: the result.
        item: the call as received; None for a function call.
    """
    kind = _kind(item) if item else "function_call"
    value = read_result(result.text) if kind in _JSON_OUTPUTS else result.text
    written = {"type": f"{kind}{_OUTPUT}", "call_id": result.request_id, "output": value}
    if kind == "local_shell_call":
        return {**written, "id": result.request_id}
    return {**written, "status": "completed"} if kind == "apply_patch_call" else written


def _call_item(request: ToolRequest) -> dict[str, Any]:
    call = {"call_id": request.id, "name": request.name, "arguments": request.arguments}
    return {"type": "function_call", **call}


def _file(file: Attachment) -> dict[str, Any]:
    if kind_of(file).startswith("image/"):
        return {"type": "input_image", "detail": "auto", "image_url": web_address(file, _RECIPIENT)}
    if file.uri:
        return {"type": "input_file", "file_url": web_address(file, _RECIPIENT)}
    if form := audio_format(file):
        return {"type": "input_audio", "input_audio": {"data": file.base64, "format": form}}
    return {"type": "input_file", "filename": name_of(file), "file_data": data_address(file)}
