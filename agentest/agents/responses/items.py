"""The items of a conversation: tool calls and their outputs, texts, and messages as items.

Calls are either requests that the caller answers, or calls that the agent made itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentest.agents.file_parts import audio_format, data_address, kind_of, name_of, web_address
from agentest.agents.json_reader import arguments_text, excerpt, read_arguments, read_result
from agentest.agents.port import IgnoredCounter
from agentest.domain.messages import Attachment, Message, ToolRequest, ToolResult, UserText
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Remark, ToolCall
from agentest.support.errors import AgentError
from agentest.support.lazy_dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallerTool:
    """A kind of call that the caller answers."""

    tool: str = ""
    """The tool's name; "" to use the item's `name`."""
    json_output: bool = False
    """True if the output is a JSON value instead of a text."""


_CALLER_TOOLS = {
    "function_call": _CallerTool(),
    "custom_tool_call": _CallerTool(),
    "computer_call": _CallerTool(tool="computer", json_output=True),
    "shell_call": _CallerTool(tool="shell", json_output=True),
    "local_shell_call": _CallerTool(tool="local_shell"),
    "apply_patch_call": _CallerTool(tool="apply_patch"),
}
"""Types of items that the caller answers. The server answers other calls itself (`web_search_call`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCalls:
    """The calls of one response, in order."""

    requests: tuple[ToolRequest, ...]
    """Calls that the caller answers."""
    made: tuple[ToolCall, ...]
    """Calls that the agent made itself."""


def is_call(item: Item) -> bool:
    """Return whether an item is a call or the output of a call."""
    kind = _kind(item)
    return kind.endswith((_CALL, _CALL + _OUTPUT))


def read_calls(items: Sequence[Item], turn_index: int) -> ResponseCalls:
    """Return the calls among a response's items. Raises AgentError for a call without a tool's name."""
    outputs = _outputs(items)
    requests: list[ToolRequest] = []
    made: list[ToolCall] = []
    for item in items:
        if not _kind(item).endswith(_CALL):
            continue
        output = _take_output(outputs, item)
        if output is None and _kind(item) in _CALLER_TOOLS:
            requests.append(_request(item))
        else:
            made.append(_made(item, output, turn_index))
    return ResponseCalls(requests=tuple(requests), made=tuple(made))


def read_made(items: Sequence[Item], turn_index: int) -> tuple[ToolCall, ...]:
    """Return the calls that the agent made, also in an incomplete response. Never raises."""
    return read_calls([item for item in items if _tool_name(item) is not None], turn_index).made


def check_outputs(items: Sequence[Item], before: Sequence[Item]) -> None:
    """Raise AgentError for an output of an unknown call, because checks of forbidden calls would miss it.

    Args:
        items: the items of a response.
        before: the earlier items of the conversation, which servers may repeat.
    """
    known = {_call_id(item) for item in (*before, *items) if _kind(item).endswith(_CALL)}
    for item in items:
        if _kind(item).endswith(_CALL + _OUTPUT) and _call_id(item) not in known:
            raise AgentError(
                f"a {_kind(item)} of the agent belongs to no call: {excerpt(item)} (expected a "
                f"{_kind(item).removesuffix(_OUTPUT)} with its `call_id`)"
            )


def with_ids(items: Sequence[Item], prefix: str) -> tuple[Item, ...]:
    """Return the items and add a `call_id` to calls for the caller that lack one."""
    return tuple(
        {**item, "call_id": item.get("id") or f"{prefix}_{index}"} if _lacks_id(item) else item
        for index, item in enumerate(items)
    )


def requested_by_id(items: Sequence[Item]) -> dict[str, Item]:
    """Return the calls that a caller may have to answer, by `call_id`."""
    return {item["call_id"]: item for item in items if _kind(item) in _CALLER_TOOLS}


def output_item(result: ToolResult, item: Item | None) -> dict[str, Any]:
    """Return a tool's result as an item of the next `input`.

    Args:
        result: the result.
        item: the call as received; None for a function call.
    """
    kind = _kind(item) if item else "function_call"
    value = read_result(result.text) if _CALLER_TOOLS[kind].json_output else result.text
    written = {"type": f"{kind}{_OUTPUT}", "call_id": result.request_id, "output": value}
    if kind == "local_shell_call":
        return {**written, "id": result.request_id}
    return {**written, "status": "completed"} if kind == "apply_patch_call" else written


def call_item(request: ToolRequest) -> dict[str, Any]:
    """Return an item for a call that was not received in this protocol's form."""
    return {
        "type": "function_call",
        "call_id": request.id,
        "name": request.name,
        "arguments": request.arguments,
    }


def _kind(item: Item) -> str:
    kind = item.get("type")
    return kind if isinstance(kind, str) else ""


def _call_id(item: Item) -> str:
    return excerpt(item.get("call_id") or item.get("id"))


def _lacks_id(item: Item) -> bool:
    identifier = item.get("call_id")
    return _kind(item) in _CALLER_TOOLS and not (isinstance(identifier, str) and identifier)


def _outputs(items: Sequence[Item]) -> dict[tuple[str, Any], list[Item]]:
    """Return the outputs by kind of call and id, in order."""
    outputs: dict[tuple[str, Any], list[Item]] = {}
    for item in items:
        if _kind(item).endswith(_CALL + _OUTPUT):
            key = (_kind(item).removesuffix(_OUTPUT), _call_id(item))
            outputs.setdefault(key, []).append(item)
    return outputs


def _take_output(outputs: dict[tuple[str, Any], list[Item]], call: Item) -> Item | None:
    """Remove and return the output of a call."""
    waiting = outputs.get((_kind(call), _call_id(call)))
    return waiting.pop(0) if waiting else None


def _tool_name(item: Item) -> str | None:
    kind = _kind(item)
    caller = _CALLER_TOOLS.get(kind)
    if (caller and caller.tool) or (caller is None and kind != "mcp_call"):
        return caller.tool if caller else kind.removesuffix(_CALL)
    name = item.get("name")
    return name if isinstance(name, str) and name else None


def _required_name(item: Item) -> str:
    name = _tool_name(item)
    if name is None:
        raise AgentError(f"a {_kind(item)} of the agent has no name: {excerpt(item)}")
    return name


def _request(item: Item) -> ToolRequest:
    return ToolRequest(item["call_id"], _required_name(item), _arguments_text(item))


def _arguments_text(item: Item) -> str:
    arguments = item.get("arguments") if _kind(item) == "function_call" else _arguments(item)[0]
    return arguments_text(arguments)


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
    return ToolCall(
        name=_required_name(item),
        args=args,
        result=_result(item) if output is None else read_result(output.get("output")),
        mocked=False,
        turn_index=turn_index,
        invalid_arguments=problem,
        error=_error(item),
        seen_by=SeenBy.AGENT,
        call_id=_id(item),
    )


def _id(item: Item) -> str | None:
    ids = (item.get("call_id"), item.get("id"))
    return next((identifier for identifier in ids if isinstance(identifier, str) and identifier), None)


def _result(item: Item) -> Any:
    result = next((item[key] for key in _RESULT_KEYS if item.get(key) is not None), None)
    if _kind(item) == _IMAGE_CALL and isinstance(result, str):
        return f"({len(result):,} characters of base64)"
    return read_result(result)


def _error(item: Item) -> str | None:
    if item.get("error"):
        return excerpt(item["error"])
    return "the call failed" if item.get("status") == "failed" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTexts:
    """The texts of a response."""

    reply: str | None
    remarks: tuple[str, ...]

    def remarks_of(self, author: str) -> tuple[Remark, ...]:
        """Return the remarks with their author."""
        return tuple(Remark(author, text) for text in self.remarks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    place: int
    text: str
    final: bool
    """False for commentary."""


def check_items(output: Any) -> list[Item]:
    """Return the items of an `output`. Raises AgentError if it is not a list of objects."""
    if not isinstance(output, list) or not all(isinstance(item, Mapping) for item in output):
        raise AgentError(f"the `output` of the agent's response is not a list of items: {excerpt(output)}")
    return output


def read_texts(items: Sequence[Item], ignored: IgnoredCounter) -> ResponseTexts:
    """Split the texts into reply and remarks. Raises AgentError.

    The reply is the text after the last call, or the last message if there is none.
    """
    messages = [m for index, item in enumerate(items) if (m := _message(index, item, ignored)) is not None]
    last_call = max((index for index, item in enumerate(items) if is_call(item)), default=-1)
    final = [m for m in messages if m.place > last_call and m.final] or messages[-1:]
    return ResponseTexts(
        reply="\n\n".join(m.text for m in final) or None,
        remarks=tuple(m.text for m in messages if m not in final),
    )


def approval_error(items: Sequence[Item]) -> str | None:
    """Return the error if the server requests approval for an MCP tool call; None if it does not."""
    for item in items:
        if item.get("type") == "mcp_approval_request":
            return (
                f"the agent asks for approval to call the MCP tool {item.get('name')!r}, which nobody here "
                "gives; set require_approval: never for its server, in body.tools or where the agent is made"
            )
    return None


def _message(index: int, item: Item, ignored: IgnoredCounter) -> _Message | None:
    kind = item.get("type", "message" if "content" in item else None)
    if kind != "message":
        if not is_call(item) and kind not in _SILENT_ITEMS:
            ignored.note("item", kind)
        return None
    if item.get("role", "assistant") != "assistant":
        ignored.note("message", f"role {item['role']}")
        return None
    text = _content(item.get("content"), ignored)
    return _Message(place=index, text=text, final=item.get("phase") != "commentary") if text.strip() else None


def _content(content: Any, ignored: IgnoredCounter) -> str:
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
    return [item for message in messages for item in _items_of_message(message, calls)]


def _items_of_message(message: Message, calls: Mapping[str, Item]) -> list[dict[str, Any]]:
    if isinstance(message, UserText):
        return [{"role": "user", "content": _written_content(message)}]
    if isinstance(message, ToolResult):
        return [output_item(message, calls.get(message.request_id))]
    message_items = [{"role": "assistant", "content": message.text}] if message.text else []
    return [*message_items, *map(call_item, message.tool_requests)]


def _written_content(message: UserText) -> str | list[dict[str, Any]]:
    if not message.attachments:
        return message.text
    text = [{"type": "input_text", "text": message.text}] if message.text else []
    return [*text, *map(_written_part, message.attachments)]


def _written_part(file: Attachment) -> dict[str, Any]:
    if kind_of(file).startswith("image/"):
        return {"type": "input_image", "detail": "auto", "image_url": web_address(file, _RECIPIENT)}
    if file.uri:
        return {"type": "input_file", "file_url": web_address(file, _RECIPIENT)}
    if form := audio_format(file):
        return {"type": "input_audio", "input_audio": {"data": file.base64, "format": form}}
    return {"type": "input_file", "filename": name_of(file), "file_data": data_address(file)}
