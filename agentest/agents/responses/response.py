"""A response: its status, its reply, and its assembly from the events of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentest.agents.http_sender import EventStream
from agentest.agents.json_reader import (
    check_object,
    error_text,
    excerpt,
    mapping_at,
    objects_at,
    read_count,
    read_json,
    text_at,
    truncated_stream_error,
)
from agentest.agents.port import AgentReply, IgnoredCounter, NoReply
from agentest.agents.protocol_client import json_events
from agentest.agents.responses.items import (
    Item,
    check_approvals,
    check_outputs,
    is_call,
    items_of,
    read_calls,
    read_made,
    read_texts,
)
from agentest.domain.transcript import Remark, ToolCall, Usage
from agentest.support.errors import AgentError

RESPONSES_PLACE = "is the path right? Responses endpoints usually end with /v1/responses or /responses"
_RUNNING_STATUSES = ("queued", "in_progress")

Response = Mapping[str, Any]
"""A response as received. If it is incomplete, any field may be missing."""
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
"""Events `….delta` and `….done` → the key of the item that they extend."""
_TEXT_EVENTS = {"response.output_text": ("output_text", "text"), "response.refusal": ("refusal", "refusal")}
"""Events `….delta` and `….done` → the type and key of the message part that they extend."""
_REDUNDANT_EVENTS = (
    "response.content_part.",
    "response.output_text.annotation",
    "response.reasoning",
    "response.web_search_call.",
    "response.file_search_call.",
    "response.code_interpreter_call.",
    "response.image_generation_call.",
    "response.mcp_call.",
    "response.mcp_list_tools.",
    "response.shell_call_",
    "response.audio",
    "response.compaction",
    "keepalive",
    "ping",
)
"""Prefixes of events whose content is also in the finished item."""


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
    return read_made(objects_at(response, "output"), turn_index)


def reply_of(
    response: Response, turn_index: int, author: str, ignored: IgnoredCounter, before: Sequence[Item] = ()
) -> AgentReply:
    """Return the reply in a response.

    Args:
        response: the response.
        turn_index: the turn of the calls.
        author: the author of remarks.
        ignored: notes items and parts of unknown types.
        before: the earlier items of the conversation.

    Raises NoReply with the agent's calls if the response failed or is invalid.
    """
    try:
        if problem := _problem(response):
            raise AgentError(problem)
        items = items_of(response)
        check_outputs(items, before)
        check_approvals(items)
        (requests, made), (text, remarks) = read_calls(items, turn_index), read_texts(items, ignored)
    except AgentError as error:
        raise NoReply(str(error), observed=made_so_far(response, turn_index)) from None
    reported = response.get("usage")
    return AgentReply(
        text=text,
        tool_requests=requests,
        usage=Usage(
            read_count(reported, "input_tokens"),
            read_count(reported, "output_tokens"),
            read_count(mapping_at(reported, "input_tokens_details"), "cached_tokens"),
        ),
        observed=made,
        remarks=tuple(Remark(author, remark) for remark in remarks),
    )


def _problem(response: Response) -> str | None:
    """Return why a response is not a valid reply; None if it is."""
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
        return f"the agent's response is still {status!r}, and has no id by which it could be asked for"
    if status not in (None, "completed"):
        return f"the agent's response has the unknown status {excerpt(status)!r}"
    return _missing_output(response) if "output" not in response else None


def _missing_output(answer: Response) -> str:
    if answer.get("error"):
        return f"the agent's response failed: {error_text(answer['error'], 'code')}"
    return f"the agent's answer is no response: it has no `output`: {excerpt(answer)}"


class ResponseAssembly:
    """Assembles the response to one request. The received part is available at any time."""

    def __init__(self, ignored: IgnoredCounter) -> None:
        self._ignored = ignored
        self._head: Response = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._texts: dict[int, dict[int, dict[str, Any]]] = {}
        """Parts by the index of their item and their own index."""
        self._done: set[int] = set()

    async def read(self, stream: EventStream) -> Response:
        """Read the complete response. Raises AgentError if the stream ends before it."""
        received = False
        async for kind, event in json_events(stream):
            received = True
            if self._add(event, kind, stream):
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

    def _add(self, event: Mapping[str, Any], kind: str, stream: EventStream) -> bool:
        """Add an event and return whether it was the last."""
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
                stream.note_first_token()
        elif not kind.startswith(_REDUNDANT_EVENTS):
            self._ignored.note("event", kind)
        return False

    def _add_text(self, event: Mapping[str, Any], kind: str, key: str, step: str) -> bool:
        """Extend a part of a message and return whether it has text."""
        index = self._index(event, event.get("item_id"))
        self._items.setdefault(index, {"type": "message", "role": "assistant"})
        place = event.get("content_index")
        parts = self._texts.setdefault(index, {})
        part = parts.setdefault(place if isinstance(place, int) else 0, {"type": kind, key: ""})
        _extend(part, key, event, step)
        return bool(part.get(key))

    def _index(self, event: Mapping[str, Any], identifier: Any) -> int:
        """Return the index of an event's item: its own, that of the known id, or the last."""
        index = event.get("output_index")
        if isinstance(index, int):
            return index
        known = [i for i, item in self._items.items() if identifier and item.get("id") == identifier]
        if known:
            return known[0]
        is_new = "item" in event or not self._items
        return max(self._items, default=-1) + is_new

    def _item(self, index: int) -> Item:
        """Return an item with its streamed text, unless it already has content."""
        item, parts = self._items[index], self._texts.get(index)
        if not parts or item.get("content"):
            return item
        return {**item, "content": [part for _, part in sorted(parts.items())]}


def _call_key(item: Item) -> tuple[Any, ...]:
    return excerpt(item.get("type")), excerpt(item.get("call_id") or item.get("id"))


def _extend(target: dict[str, Any], key: str, event: Mapping[str, Any], step: str) -> None:
    """Add a delta to a text, or replace the text by that of a `done` event."""
    if step == "delta":
        target[key] = text_at(target, key) + text_at(event, "delta")
    elif isinstance(event.get(key), str):
        target[key] = event[key]
