"""A response: its items, its status, the reply in it, and its assembly from the events of a stream.

Items are texts, tool calls and their outputs. Calls are either requests that the caller answers, or calls
that the agent made itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentest.agents.http_sender import EventStream
from agentest.agents.json_reader import (
    arguments_text,
    check_object,
    error_text,
    excerpt,
    is_list_of_objects,
    mapping_at,
    objects_at,
    read_arguments,
    read_json,
    read_result,
    text_at,
    truncated_stream_error,
)
from agentest.agents.port import AgentReply, IgnoredCounter, NoReply
from agentest.domain.messages import Attachment, Message, ToolRequest, ToolResult, UserText
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import ARGUMENTS_UNKNOWN, Remark, ToolCall
from agentest.plugins.protocols.model_messages import CLIENT_TOOLS, usage_of
from agentest.plugins.protocols.protocol_client import agent_call, json_events
from agentest.support.errors import AgentError

RESPONSES_PLACE = "is the path right? Responses endpoints usually end with /v1/responses or /responses"
_RUNNING_STATUSES = ("queued", "in_progress")

Response = Mapping[str, Any]  # a response as received. If it is incomplete, any field may be missing.
_END_EVENTS = {
    "response.completed": "completed",
    "response.failed": "failed",
    "response.incomplete": "incomplete",
    "response.cancelled": "cancelled",
}
_BEGIN_EVENTS = ("response.created", "response.queued", "response.in_progress")
_FIELD_EVENTS = {
    "response.function_call_arguments": "arguments",
    "response.mcp_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
    "response.code_interpreter_call_code": "code",
}
_TEXT_EVENTS = {"response.output_text": ("output_text", "text"), "response.refusal": ("refusal", "refusal")}
"""Events `….delta` and `….done` → the type and key of the message part that they extend."""
_REDUNDANT_EVENTS = re.compile(
    r"response\.(content_part\.|output_text\.annotation|reasoning|mcp_list_tools\.|\w+_call[._]|audio|compaction)"
    r"|keepalive|ping"
)

Item = Mapping[str, Any]  # an item of a response's `output`, as received

_CALL = "_call"
_OUTPUT = "_output"
_APPROVAL_REQUEST = "mcp_approval_request"
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
    "approval_request_id",
}
_RESULT_KEYS = ("output", "outputs", "result", "results")
_SILENT_ITEMS = (
    "reasoning",
    "compaction",
    "mcp_list_tools",
    _APPROVAL_REQUEST,
    "mcp_approval_response",
    "additional_tools",
    "program",
    "program_output",
    "tool_search_output",
)
"""Types of items without text or calls. Requests send them back with the others."""
_REASONING_PARTS = ("reasoning_text", "summary_text")
_RECIPIENT = "an agent that speaks Responses"


_CALLER_TOOLS = {"function_call": "", "custom_tool_call": "", **CLIENT_TOOLS}
"""Types of items that the caller answers → the tool, "" to use the item's `name`. The server answers other
calls itself (`web_search_call`)."""
_JSON_OUTPUTS = ("computer_call", "shell_call")


def check_response(answer: Any) -> Response:
    """Return the response in an answer. Raises AgentError if it is none."""
    response = check_object(answer)
    if not response.keys() & {"output", "status"}:
        raise AgentError(_missing_output(response))
    return response


def is_running(response: Response) -> bool:
    """Return whether the response is queued or in progress."""
    return response.get("status") in _RUNNING_STATUSES


def made_so_far(response: Response, turn_index: int) -> tuple[ToolCall, ...]:
    """Return the calls that the agent has made, in a response of any status. Never raises."""
    items = filter(_tool_name, objects_at(response, "output"))
    return read_calls(_with_call_ids(response, items), turn_index)[1]


def reply_of(
    response: Response, turn_index: int, author: str, ignored: IgnoredCounter, before: Sequence[Item] = ()
) -> AgentReply:
    """Return the reply in a response. `before` are the earlier items of the conversation.

    Raises NoReply with the agent's calls if the response failed or is invalid.
    """
    try:
        if problem := _problem(response):
            raise AgentError(problem)
        items = items_of(response)
        check_outputs(items, before)
        for item in items:
            if item.get("type") == _APPROVAL_REQUEST:
                raise AgentError(
                    f"the agent asks for approval to call the MCP tool {item.get('name')!r}, which "
                    f"Agentest does not give; set require_approval: never for its server, in "
                    f"body.tools or where the agent is made"
                )
        (requests, made), (text, remarks) = read_calls(items, turn_index), read_texts(items, ignored)
    except AgentError as error:
        raise NoReply(str(error), observed=made_so_far(response, turn_index)) from None
    return AgentReply(
        text=text,
        tool_requests=requests,
        usage=usage_of(response),
        observed=made,
        remarks=tuple(Remark(author, remark) for remark in remarks),
    )


def _problem(response: Response) -> str | None:
    status = response.get("status")
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = excerpt(details.get("reason")) if isinstance(details, Mapping) else "no reason is given"
        hint = "; raise body.max_output_tokens, if it is yours" if reason == "max_output_tokens" else ""
        return f"the agent's response is incomplete ({reason}): it was cut before its end{hint}"
    if status == "cancelled":
        return "the agent's response was cancelled"
    if status == "failed" or response.get("error"):
        return f"the agent's response failed: {error_text(response.get('error'), 'code')}"
    if status in _RUNNING_STATUSES:
        return f"the agent's response is still {status!r}, and has no id with which it could be retrieved"
    if status not in (None, "completed"):
        return f"the agent's response has the unknown status {excerpt(status)!r}"
    return _missing_output(response) if "output" not in response else None


def _missing_output(answer: Response) -> str:
    if answer.get("error"):
        return f"the agent's response failed: {error_text(answer['error'], 'code')}"
    return f"the agent's answer is not a response: it has no `output`: {excerpt(answer)}"


class ResponseAssembly:
    """Assembles the response to one request. The received part is available at any time."""

    def __init__(self, ignored: IgnoredCounter) -> None:
        self._ignored = ignored
        self._head: Response = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._texts: dict[int, dict[int, dict[str, Any]]] = {}
        """Parts by the index of their item and their own index."""
        self._index_of: dict[str, int] = {}  # the id of an item → its index
        self._last_index = -1

    async def read(self, stream: EventStream) -> Response:
        """Read the complete response. Raises AgentError if the stream ends before it."""
        received = False
        async for kind, event in json_events(stream, ends_at_done=True):
            received = True
            if self.add(event, kind, stream.note_first_token):
                return self.response()
        raise truncated_stream_error("response.completed, response.failed or response.incomplete", received)

    def take(self, body: bytes) -> Response:
        """Read the complete response in a body. Raises AgentError."""
        return self.replace(check_response(read_json(body, RESPONSES_PLACE)))

    def replace(self, response: Response) -> Response:
        """Replace everything with a complete response and return it."""
        self._head, self._items = response, {}
        return response

    def response(self) -> Response:
        """Return the response as received so far."""
        items = [self._item(index) for index in sorted(self._items)]
        output = self._head.get("output")
        if not isinstance(output, list) or not output:
            return {**self._head, "output": items} if items or output is None else self._head
        known = {_call_key(item) for item in output if isinstance(item, Mapping)}
        missing = [item for item in items if is_call(item) and _call_key(item) not in known]
        return {**self._head, "output": [*missing, *output]} if missing else self._head

    def add(self, event: Mapping[str, Any], kind: str, on_text: Callable[[], None]) -> bool:
        """Add an event and return True if the response has ended. `on_text` is called with each text."""
        if kind in _END_EVENTS:
            self._head = {**self._head, **mapping_at(event, "response"), "status": _END_EVENTS[kind]}
            return True
        if kind == "error" or (event.get("error") and "type" not in event):
            self._head = {**self._head, "status": "failed", "error": event.get("error") or dict(event)}
            return True
        name, _, step = kind.rpartition(".")
        if kind in _BEGIN_EVENTS:
            self._head = mapping_at(event, "response")
        elif kind in ("response.output_item.added", "response.output_item.done"):
            item = event.get("item")
            if not isinstance(item, Mapping):
                raise AgentError(f"an event of the agent's stream has no `item`: {excerpt(event)}")
            index = self._index(event, item.get("id"))
            self._items[index] = {**(self._items.get(index, {}) if step == "done" else {}), **item}
        elif step in ("delta", "done") and name in _FIELD_EVENTS:
            field = self._items.setdefault(self._index(event, event.get("item_id")), {})
            _extend(field, _FIELD_EVENTS[name], event, step)
        elif step in ("delta", "done") and name in _TEXT_EVENTS:
            if self._add_text(event, *_TEXT_EVENTS[name], step):
                on_text()
        elif not _REDUNDANT_EVENTS.match(kind):
            self._ignored.note("event", kind)
        return False

    def _add_text(self, event: Mapping[str, Any], kind: str, key: str, step: str) -> bool:
        index = self._index(event, event.get("item_id"))
        self._items.setdefault(index, {"type": "message", "role": "assistant"})
        place = event.get("content_index")
        parts = self._texts.setdefault(index, {})
        part = parts.setdefault(place if isinstance(place, int) else 0, {"type": kind, key: ""})
        _extend(part, key, event, step)
        return bool(part.get(key))

    def _index(self, event: Mapping[str, Any], identifier: Any) -> int:
        index, key = event.get("output_index"), excerpt(identifier) if identifier else ""
        if not isinstance(index, int):
            is_new = "item" in event or not self._items
            index = self._index_of.get(key, self._last_index + is_new)
        if key and "item" in event:
            self._index_of.setdefault(key, index)
        self._last_index = max(self._last_index, index)
        return index

    def _item(self, index: int) -> Item:
        item, parts = self._items[index], self._texts.get(index)
        if not parts or item.get("content"):
            return item
        return {**item, "content": [part for _, part in sorted(parts.items())]}


def _call_key(item: Item) -> tuple[Any, ...]:
    return excerpt(item.get("type")), excerpt(item.get("call_id") or item.get("id"))


def _extend(target: dict[str, Any], key: str, event: Mapping[str, Any], step: str) -> None:
    if step == "delta":
        target[key] = text_at(target, key) + text_at(event, "delta")
    elif isinstance(event.get(key), str):
        target[key] = event[key]


def is_call(item: Item) -> bool:
    """Return whether an item is a call or the output of a call."""
    return _kind(item).endswith((_CALL, _CALL + _OUTPUT))


def read_calls(
    items: Sequence[Item], turn_index: int
) -> tuple[tuple[ToolRequest, ...], tuple[ToolCall, ...]]:
    """Return the calls that the caller answers, and those that the agent made itself or asks approval for.

    Raises AgentError for a call without a tool's name.
    """
    outputs: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        if _is_output(item):
            outputs.setdefault((_kind(item).removesuffix(_OUTPUT), _call_id(item)), []).append(item)
    requests: list[ToolRequest] = []
    made: list[ToolCall] = []
    for item in items:
        if not _kind(item).endswith((_CALL, _APPROVAL_REQUEST)):
            continue
        waiting = outputs.get((_kind(item), _call_id(item)))
        output = waiting.pop(0) if waiting else None
        if output is None and _kind(item) in _CALLER_TOOLS:
            arguments = item.get("arguments") if _kind(item) == "function_call" else _arguments(item)[0]
            requests.append(ToolRequest(item["call_id"], _required_name(item), arguments_text(arguments)))
        else:
            made.append(_made(item, output, turn_index))
    return tuple(requests), tuple(made)


def check_outputs(items: Sequence[Item], before: Sequence[Item]) -> None:
    """Raise AgentError for an output of an unknown call, because checks of forbidden calls would miss it.

    Servers may repeat the earlier items of the conversation (`before`).
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
    kind = _kind(item)
    tool = _CALLER_TOOLS.get(kind, "" if kind.startswith("mcp_") else kind.removesuffix(_CALL))
    return tool or text_at(item, "name")


def _required_name(item: Item) -> str:
    name = _tool_name(item)
    if not name:
        raise AgentError(f"a {_kind(item)} of the agent has no name: {excerpt(item)}")
    return name


def _arguments(item: Item) -> tuple[Any, str | None]:
    if "arguments" in item:
        return read_arguments(item["arguments"])
    for key in ("action", "operation"):
        if isinstance(item.get(key), Mapping):
            return dict(item[key]), None
    hidden = {*_METADATA_KEYS, *_RESULT_KEYS, "error"}
    given = {key: value for key, value in item.items() if key not in hidden and value is not None}
    return (given, None) if given else (None, ARGUMENTS_UNKNOWN)


def _made(item: Item, output: Item | None, turn_index: int) -> ToolCall:
    args, problem = _arguments(item)
    failed = "the call failed" if item.get("status") == "failed" else None
    asked = text_at(item, "approval_request_id")
    return agent_call(
        name=_required_name(item),
        args=args,
        turn_index=turn_index,
        result=_result(item) if output is None else read_result(output.get("output")),
        invalid_arguments=problem,
        error=excerpt(item["error"]) if item.get("error") else failed,
        call_id=asked or text_at(item, "call_id") or text_at(item, "id") or None,
        approval=Approval.PENDING
        if _kind(item) == _APPROVAL_REQUEST
        else Approval.GRANTED
        if asked
        else None,
    )


def _result(item: Item) -> Any:
    result = next((item[key] for key in _RESULT_KEYS if item.get(key) is not None), None)
    if _kind(item) == "image_generation_call" and isinstance(result, str):
        return f"({len(result):,} characters of base64)"
    return read_result(result)


def items_of(response: Mapping[str, Any]) -> tuple[Item, ...]:
    """Return the items of a finished response in the form for the next request. Raises AgentError.

    Calls for the caller that lack a `call_id` get one.
    """
    output = response.get("output")
    if not is_list_of_objects(output):
        raise AgentError(f"the `output` of the agent's response is not a list of items: {excerpt(output)}")
    return _with_call_ids(response, output)


def _with_call_ids(response: Response, items: Iterable[Item]) -> tuple[Item, ...]:
    prefix = f"call_{response.get('id') or 'of_agent'}"
    return tuple(
        {**item, "call_id": item.get("id") or f"{prefix}_{index}"}
        if _kind(item) in _CALLER_TOOLS and not text_at(item, "call_id")
        else item
        for index, item in enumerate(items)
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
    raise AgentError(f"the `content` of a message of the agent is not a list of parts: {excerpt(content)}")


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

    `calls` are the received calls by id, which determine the types of their outputs.
    """
    items: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, UserText):
            items.append({"role": "user", "content": message.content("input_text", _file)})
        elif isinstance(message, ToolResult):
            items.append(output_item(message, calls.get(message.request_id)))
        else:
            if message.text:
                items.append({"role": "assistant", "content": message.text})
            items += (
                {"type": "function_call", "call_id": each.id, "name": each.name, "arguments": each.arguments}
                for each in message.tool_requests
            )
    return items


def output_item(result: ToolResult, item: Item | None) -> dict[str, Any]:
    """Return the result of a call as an item of the next `input`. The call is None for a function call."""
    kind = _kind(item) if item else "function_call"
    value = read_result(result.text) if kind in _JSON_OUTPUTS else result.text
    written = {"type": f"{kind}{_OUTPUT}", "call_id": result.request_id, "output": value}
    if kind == "local_shell_call":
        return {**written, "id": result.request_id}
    return {**written, "status": "completed"} if kind == "apply_patch_call" else written


def _file(file: Attachment) -> dict[str, Any]:
    if file.kind.startswith("image/"):
        return {"type": "input_image", "detail": "auto", "image_url": file.web_address(_RECIPIENT)}
    if file.uri:
        return {"type": "input_file", "file_url": file.web_address(_RECIPIENT)}
    if form := file.audio_format:
        return {"type": "input_audio", "input_audio": {"data": file.base64, "format": form}}
    return {"type": "input_file", "filename": file.file_name, "file_data": file.data_address}
