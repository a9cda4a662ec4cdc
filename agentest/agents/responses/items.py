"""The items of a response that are calls: who answers each, what it is called, and its output's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.agents.file_parts import audio_format, data_address, kind_of, name_of, web_address
from agentest.agents.json_reader import arguments_text, read_arguments, read_result, shown
from agentest.agents.port import Ignored
from agentest.domain.messages import Attachment, Message, ToolRequest, ToolResult, UserText
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Remark, ToolCall
from agentest.support.errors import AgentError

Item = Mapping[str, Any]
"""An item of a response's `output`, as it came."""

_CALL = "_call"
_OUTPUT = "_output"
_ABOUT_THE_ITEM = {
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
_RESULTS = ("output", "outputs", "result", "results")
_IMAGE = "image_generation_call"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForTheCaller:
    """A kind of call that the caller answers."""

    tool: str = ""
    """What the tool is called; "": as the item's `name` says."""
    json_output: bool = False
    """Whether the output is a JSON value, not a text."""


_FOR_THE_CALLER = {
    "function_call": _ForTheCaller(),
    "custom_tool_call": _ForTheCaller(),
    "computer_call": _ForTheCaller(tool="computer", json_output=True),
    "shell_call": _ForTheCaller(tool="shell", json_output=True),
    "local_shell_call": _ForTheCaller(tool="local_shell"),
    "apply_patch_call": _ForTheCaller(tool="apply_patch"),
}
"""Type of an item → who is asked by it. Other calls (`web_search_call`) the server has answered itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The calls of one response, in order."""

    requests: tuple[ToolRequest, ...]
    """For the caller to answer."""
    made: tuple[ToolCall, ...]
    """By the agent itself."""


def is_call(item: Item) -> bool:
    """Whether an item is a call, or the output of one."""
    kind = _kind(item)
    return kind.endswith((_CALL, _CALL + _OUTPUT))


def read_calls(items: Sequence[Item], turn_index: int) -> Calls:
    """The calls among a response's items. Raises AgentError for one without a tool's name."""
    outputs = _outputs(items)
    requests: list[ToolRequest] = []
    made: list[ToolCall] = []
    for item in items:
        if not _kind(item).endswith(_CALL):
            continue
        answered = _taken(outputs, item)
        if answered is None and _kind(item) in _FOR_THE_CALLER:
            requests.append(_request(item))
        else:
            made.append(_made(item, answered, turn_index))
    return Calls(requests=tuple(requests), made=tuple(made))


def read_made(items: Sequence[Item], turn_index: int) -> tuple[ToolCall, ...]:
    """The calls that the agent made, of a response that may be no whole one: nothing is raised."""
    return read_calls([item for item in items if _named(item) is not None], turn_index).made


def check_outputs(items: Sequence[Item], before: Sequence[Item]) -> None:
    """Refuse an output of a call that nobody told of: bans would miss it. Raises AgentError.

    Args:
        before: the items of the conversation until then; servers may tell what is in them once more.
    """
    known = {_call_id(item) for item in (*before, *items) if _kind(item).endswith(_CALL)}
    for item in items:
        if _kind(item).endswith(_CALL + _OUTPUT) and _call_id(item) not in known:
            raise AgentError(
                f"a {_kind(item)} of the agent belongs to no call: {shown(item)} (expected a "
                f"{_kind(item).removesuffix(_OUTPUT)} with its `call_id`)"
            )


def with_ids(items: Sequence[Item], prefix: str) -> tuple[Item, ...]:
    """The items; calls for the caller that lack a `call_id`, by which outputs are told apart, get one."""
    return tuple(
        {**item, "call_id": item.get("id") or f"{prefix}_{place}"} if _lacks_id(item) else item
        for place, item in enumerate(items)
    )


def asked_by_id(items: Sequence[Item]) -> dict[str, Item]:
    """The calls that a caller may have to answer, by `call_id`."""
    return {item["call_id"]: item for item in items if _kind(item) in _FOR_THE_CALLER}


def output_item(result: ToolResult, item: Item | None) -> dict[str, Any]:
    """What a tool answered, as an item of the next `input`. `item`: its call; None is a plain function's."""
    kind = _kind(item) if item else "function_call"
    value = read_result(result.text) if _FOR_THE_CALLER[kind].json_output else result.text
    written = {"type": f"{kind}{_OUTPUT}", "call_id": result.request_id, "output": value}
    if kind == "local_shell_call":
        return {**written, "id": result.request_id}
    return {**written, "status": "completed"} if kind == "apply_patch_call" else written


def call_item(request: ToolRequest) -> dict[str, Any]:
    """A call that was never received in this protocol's form."""
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
    return shown(item.get("call_id") or item.get("id"))


def _lacks_id(item: Item) -> bool:
    identifier = item.get("call_id")
    return _kind(item) in _FOR_THE_CALLER and not (isinstance(identifier, str) and identifier)


def _outputs(items: Sequence[Item]) -> dict[tuple[str, Any], list[Item]]:
    """The outputs by kind of call and id, in order."""
    found: dict[tuple[str, Any], list[Item]] = {}
    for item in items:
        if _kind(item).endswith(_CALL + _OUTPUT):
            key = (_kind(item).removesuffix(_OUTPUT), _call_id(item))
            found.setdefault(key, []).append(item)
    return found


def _taken(outputs: dict[tuple[str, Any], list[Item]], call: Item) -> Item | None:
    """The output of a call, which no other call has."""
    waiting = outputs.get((_kind(call), _call_id(call)))
    return waiting.pop(0) if waiting else None


def _named(item: Item) -> str | None:
    """The name of the tool that an item calls."""
    kind = _kind(item)
    caller = _FOR_THE_CALLER.get(kind)
    if (caller and caller.tool) or (caller is None and kind != "mcp_call"):
        return caller.tool if caller else kind.removesuffix(_CALL)
    name = item.get("name")
    return name if isinstance(name, str) and name else None


def _name(item: Item) -> str:
    name = _named(item)
    if name is None:
        raise AgentError(f"a {_kind(item)} of the agent has no name: {shown(item)}")
    return name


def _request(item: Item) -> ToolRequest:
    return ToolRequest(item["call_id"], _name(item), _arguments_text(item))


def _arguments_text(item: Item) -> str:
    given = item.get("arguments") if _kind(item) == "function_call" else _arguments(item)[0]
    return arguments_text(given)


def _arguments(item: Item) -> tuple[Any, str | None]:
    """What a call was given, and what is wrong with it."""
    if "arguments" in item:
        return read_arguments(item["arguments"])
    for key in ("action", "operation"):
        if isinstance(item.get(key), Mapping):
            return dict(item[key]), None
    hidden = {*_ABOUT_THE_ITEM, *_RESULTS, "error"}
    return {key: value for key, value in item.items() if key not in hidden and value is not None}, None


def _made(item: Item, output: Item | None, turn_index: int) -> ToolCall:
    args, problem = _arguments(item)
    return ToolCall(
        name=_name(item),
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
    """What tells this call from others."""
    ids = (item.get("call_id"), item.get("id"))
    return next((given for given in ids if isinstance(given, str) and given), None)


def _result(item: Item) -> Any:
    found = next((item[key] for key in _RESULTS if item.get(key) is not None), None)
    if _kind(item) == _IMAGE and isinstance(found, str):
        return f"({len(found):,} characters of base64)"
    return read_result(found)


def _error(item: Item) -> str | None:
    if item.get("error"):
        return shown(item["error"])
    return "the call failed" if item.get("status") == "failed" else None


_NOT_SAID = (
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
"""Items that neither say nor call anything. They are resent with the others."""
_NO_TEXT_PARTS = ("reasoning_text", "summary_text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The texts of a response."""

    reply: str | None
    remarks: tuple[str, ...]

    def remarks_of(self, author: str) -> tuple[Remark, ...]:
        return tuple(Remark(author, text) for text in self.remarks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    place: int
    text: str
    final: bool
    """Whether it is no mere commentary."""


def check_items(output: Any) -> list[Item]:
    """The items of an `output`. Raises AgentError for what is no list of objects."""
    if not isinstance(output, list) or not all(isinstance(item, Mapping) for item in output):
        raise AgentError(f"the `output` of the agent's response is not a list of items: {shown(output)}")
    return output


def read_said(items: Sequence[Item], ignored: Ignored) -> Said:
    """The reply is what follows the last call, or else the last that was said. Raises AgentError."""
    messages = [m for place, item in enumerate(items) if (m := _message(place, item, ignored)) is not None]
    last_call = max((place for place, item in enumerate(items) if is_call(item)), default=-1)
    final = [m for m in messages if m.place > last_call and m.final] or messages[-1:]
    return Said(
        reply="\n\n".join(m.text for m in final) or None,
        remarks=tuple(m.text for m in messages if m not in final),
    )


def approval_asked(items: Sequence[Item]) -> str | None:
    """What is wrong where the server asks for leave to call a tool of an MCP server."""
    for item in items:
        if item.get("type") == "mcp_approval_request":
            return (
                f"the agent asks for approval to call the MCP tool {item.get('name')!r}, which nobody here "
                "gives; set require_approval: never for its server, in body.tools or where the agent is made"
            )
    return None


def _message(place: int, item: Item, ignored: Ignored) -> _Message | None:
    kind = item.get("type", "message" if "content" in item else None)
    if kind != "message":
        if not is_call(item) and kind not in _NOT_SAID:
            ignored.note("item", kind)
        return None
    if item.get("role", "assistant") != "assistant":
        ignored.note("message", f"role {item['role']}")
        return None
    text = _content(item.get("content"), ignored)
    return _Message(place=place, text=text, final=item.get("phase") != "commentary") if text.strip() else None


def _content(content: Any, ignored: Ignored) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "".join(_part(part, ignored) for part in content)
    raise AgentError(f"the `content` of a message of the agent is no list of parts: {shown(content)}")


def _part(part: Any, ignored: Ignored) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise AgentError(f"a part of the agent's message is not an object: {shown(part)}")
    kind = part.get("type")
    if kind in _NO_TEXT_PARTS:
        return ""
    text = part.get("refusal" if kind == "refusal" else "text")
    if isinstance(text, str):
        return text
    if kind in ("output_text", "refusal"):
        raise AgentError(f"a part of the agent's message has no text: {shown(part)}")
    ignored.note("part", kind)
    return ""


_WHOM = "an agent that speaks Responses"


def written(messages: Sequence[Message], calls: Mapping[str, Item]) -> list[dict[str, Any]]:
    """The messages as items. Raises CannotSend for a file without a form here.

    Args:
        calls: the calls as they came, by id: their outputs have the same kind.
    """
    return [item for message in messages for item in _items(message, calls)]


def _items(message: Message, calls: Mapping[str, Item]) -> list[dict[str, Any]]:
    if isinstance(message, UserText):
        return [{"role": "user", "content": _written_content(message)}]
    if isinstance(message, ToolResult):
        return [output_item(message, calls.get(message.request_id))]
    said = [{"role": "assistant", "content": message.text}] if message.text else []
    return [*said, *map(call_item, message.tool_requests)]


def _written_content(message: UserText) -> str | list[dict[str, Any]]:
    if not message.attachments:
        return message.text
    text = [{"type": "input_text", "text": message.text}] if message.text else []
    return [*text, *map(_written_part, message.attachments)]


def _written_part(file: Attachment) -> dict[str, Any]:
    if kind_of(file).startswith("image/"):
        return {"type": "input_image", "detail": "auto", "image_url": web_address(file, _WHOM)}
    if file.uri:
        return {"type": "input_file", "file_url": web_address(file, _WHOM)}
    if form := audio_format(file):
        return {"type": "input_audio", "input_audio": {"data": file.base64, "format": form}}
    return {"type": "input_file", "filename": name_of(file), "file_data": data_address(file)}
