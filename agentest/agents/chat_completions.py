"""Client for agents that speak OpenAI's chat completions over HTTP.

`to_wire` and `from_wire` convert messages. The Python agents use them, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from agentest.agents.http_sender import EventStream, HttpAnswer, HttpSender, read_body
from agentest.agents.json_reader import (
    arguments_text,
    excerpt,
    is_list_of_objects,
    mapping_at,
    objects_at,
    read_any,
    read_count,
    read_event,
    read_object,
    text_at,
    truncated_stream_error,
)
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.domain.messages import AgentMessage, Attachment, Message, ToolRequest, ToolResult, UserText
from agentest.domain.transcript import Usage
from agentest.plugin import if_command
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse, Sender
from agentest.support.lazy_dataclasses import replace
from agentest.support.templates import NO_VALUES, Template, Values

_STREAM_OPTIONS = "stream_options"
_REJECTED = (400, 422)
WireMessage = dict[str, Any]  # a chat-completions message in JSON form
_ReadReply = Callable[[DirectResponse], Awaitable[AgentReply]]
_NON_TEXT_PARTS = ("thinking", "redacted_thinking", "reasoning", "tool_use", "tool_call")
"""Types of `content` parts that do not belong to the reply's text."""
_WHOM = "a chat-completions agent"
_PLACE = "is the path right? chat-completions endpoints usually end with /v1/chat/completions"


def open_agent(_: str, config: ChatCompletionsAgent, resources: Resources) -> ChatCompletionsClient:
    return ChatCompletionsClient(config, resources.client, resources.timeout_s)


class ChatCompletionsClient:
    """Sends conversations to one endpoint. Stores no conversation state.

    Requests token usage from streaming agents. If an agent rejects the option, later requests omit it.
    """

    takes_attachments = takes_history = True

    def __init__(self, config: ChatCompletionsAgent, client: Sender, timeout_s: float) -> None:
        self.name = config.name
        self._endpoint = config.endpoint
        self._streaming = config.streaming
        self._sends_state = config.send_session_state
        self._sender = HttpSender(config, client, timeout_s, _PLACE)
        self._asks_for_tokens = config.streaming and _STREAM_OPTIONS not in config.body
        self._has_reported_tokens = False
        self._body = Template(config.body)
        self._has_placeholders = bool(self._body.names) or self._sender.has_placeholders
        self._settings = config.body
        self._streamed = {"stream": True} if config.streaming else {}

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Return the agent's reply. Raises NoReply. Each attempt has the full time-out."""
        values, body = NO_VALUES, self._settings
        if self._has_placeholders:
            from agentest.agents.placeholders import TurnValues

            values = TurnValues(messages, ctx)
            body = self._body.filled(values)
        payload = {**body, **self._streamed, "messages": [*body.get("messages", []), *to_wire(messages)]}
        if self._sends_state and ctx.session and ctx.session.state:
            state = dict(ctx.session.state)
            payload["metadata"] = {**body.get("metadata", {}), "session_state": state}
        names = {tool.name for tool in ctx.tools}
        if "tools" in body:
            names.update(text_at(mapping_at(tool, "function"), "name") for tool in objects_at(body, "tools"))
        read = partial(self._read, names)
        if self._asks_for_tokens:
            answered = await self._request_with_usage(payload, values, read)
        else:
            answered = await self._sender.post(self._endpoint, payload, read, values=values)
        return replace(
            answered.value,
            latency_ms=answered.latency_ms,
            retries=answered.retries,
            first_token_ms=answered.first_token_ms,
        )

    async def _request_with_usage(
        self, payload: dict[str, Any], values: Values, read: _ReadReply
    ) -> HttpAnswer[AgentReply]:
        with_usage = {**payload, _STREAM_OPTIONS: {"include_usage": True}}
        read_or_rejected = partial(self._read_or_rejected, read)
        first = await self._sender.post(
            self._endpoint, with_usage, read_or_rejected, _REJECTED, values=values
        )
        problem, before = first.value, first.retries + 1
        if isinstance(problem, AgentReply):
            self._has_reported_tokens = True
            return HttpAnswer(problem, first.latency_ms, first.retries, first.first_token_ms)
        if self._has_reported_tokens and _STREAM_OPTIONS not in problem:
            raise NoReply(problem, first.retries)
        # Retry without the option. A rejection now has another cause.
        try:
            second = await self._sender.post(self._endpoint, payload, read, values=values)
        except NoReply as error:
            raise NoReply(str(error), before + error.retries, error.observed) from None
        self._asks_for_tokens = False
        return replace(second, retries=before + second.retries)

    async def _read_or_rejected(self, read: _ReadReply, response: DirectResponse) -> AgentReply | str:
        if response.status_code in _REJECTED:
            return await self._sender.problem(response)
        return await read(response)

    def _read(self, names: Collection[str], response: DirectResponse) -> Awaitable[AgentReply]:
        return read_body(response, self._streaming, read_completion, partial(read_stream, names=names))


def read_completion(body: bytes) -> AgentReply:
    """Parse the body of a chat completion. Raises AgentError if it is invalid."""
    data = read_object(body, _PLACE)
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        error = data.get("error")
        other = (
            f"which chat completions have{if_command('doctor', '; `agentest doctor` finds out its protocol')}"
        )
        problem = f"an error: {excerpt(error)}" if error else f"no `choices`, {other}: {excerpt(data)}"
        raise AgentError(f"the agent answered with {problem}")
    message = from_wire(choices[0].get("message"))
    return AgentReply(
        text=message.text, tool_requests=message.tool_requests, usage=read_usage(data.get("usage"))
    )


def read_usage(reported: Any) -> Usage:
    """Return the reported token counts. A missing or invalid count is 0."""
    return Usage(read_count(reported, "prompt_tokens"), read_count(reported, "completion_tokens"))


async def read_stream(events: EventStream, names: Collection[str] = ()) -> AgentReply:
    """Assemble the reply from deltas. Raises AgentError, also if there is no `[DONE]` or `finish_reason`.

    Args:
        names: tools that may be called, as for `StreamedCalls`.
    """
    parts = _Deltas(names)
    async for event in events:
        for piece in _pieces(event.data):
            if piece == "[DONE]":
                return parts.reply()
            if piece and parts.add(read_event(piece)):  # some servers send empty events as keep-alive
                events.note_first_token()
    if parts.finished:
        return parts.reply()
    raise truncated_stream_error("[DONE] and without a finish_reason", parts.received)


def _pieces(data: str) -> list[str]:
    lines = [line.strip() for line in data.split("\n")]
    careless = len(lines) > 1 and all(
        line == "[DONE]" or isinstance(read_any(line), Mapping) for line in lines if line
    )
    return lines if careless else [data.strip()]


class _Deltas:
    def __init__(self, names: Collection[str]) -> None:
        from agentest.agents.stream_assembly import StreamedCalls

        self._text: list[str] = []
        self._calls = StreamedCalls(names)
        self._usage = Usage()
        self.finished = False
        self.received = False
        self._foreign: Mapping[str, Any] | None = None  # the first event that is not one of chat completions

    def add(self, event: Mapping[str, Any]) -> bool:
        """Add an event. Returns True if it contained text."""
        self.received = True
        if event.get("error"):
            raise AgentError(f"the agent's stream reports an error: {excerpt(event['error'])}")
        if event.get("usage"):
            self._usage = read_usage(event["usage"])
        choices = event.get("choices")
        if "choices" not in event and "usage" not in event:
            self._foreign = self._foreign or event
        if not choices:
            return False  # an event with usage only has no choices
        if not isinstance(choices, list) or not isinstance(choices[0], Mapping):
            raise AgentError(f"`choices` in the agent's stream is not a list of objects: {excerpt(choices)}")
        choice = choices[0]
        self.finished = self.finished or bool(choice.get("finish_reason"))
        delta = choice.get("delta", choice.get("message")) or {}
        if not isinstance(delta, Mapping):
            raise AgentError(f"a `delta` in the agent's stream is not an object: {excerpt(delta)}")
        if text := read_text(delta):
            self._text.append(text)
        calls = delta.get("tool_calls") if delta.get("tool_calls") is not None else []
        if not is_list_of_objects(calls):
            raise AgentError(f"`tool_calls` in the agent's stream is not a list of objects: {excerpt(calls)}")
        for piece in calls:
            if not isinstance(piece.get("function") or {}, Mapping):
                raise AgentError(f"a tool call in the agent's stream has no function: {excerpt(piece)}")
        self._calls.add(calls)
        return bool(text)

    def reply(self) -> AgentReply:
        calls = self._calls.calls
        if self._foreign is not None and not (self._text or calls or self.finished):
            from agentest.agents.reply_detection import places_of_text

            place = next(iter(places_of_text(self._foreign)), "…")
            raise AgentError(
                f"the agent's stream has no `choices`: {excerpt(self._foreign)}. If this form is its own: "
                f"`type: http` with `delta: {place}`, the text of each event"
            )
        return AgentReply(
            text="".join(self._text) or None, tool_requests=read_tool_requests(calls), usage=self._usage
        )


def to_wire(messages: Sequence[Message]) -> list[WireMessage]:
    """Convert messages to chat-completions form. The caller may modify the result."""
    return [_message_to_wire(message) for message in messages]


def _message_to_wire(message: Message) -> WireMessage:
    if isinstance(message, UserText):
        return {"role": "user", "content": message.content("text", _attachments_part)}
    if isinstance(message, ToolResult):
        return {"role": "tool", "tool_call_id": message.request_id, "content": message.text}
    if not message.tool_requests:
        return {"role": "assistant", "content": message.text}
    calls = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
        for one in message.tool_requests
    ]
    return {"role": "assistant", "content": message.text, "tool_calls": calls}


def from_wire(message: Any) -> AgentMessage:
    """Parse an assistant message. Raises AgentError if it is invalid."""
    if not isinstance(message, Mapping):
        raise AgentError(f"the agent's `message` is not an object: {excerpt(message)}")
    return AgentMessage(read_text(message), read_tool_requests(message.get("tool_calls")))


def read_text(message: Mapping[str, Any]) -> str | None:
    """Return the text of a message or a streamed delta. A refusal counts as text."""
    content = message.get("content")
    if content is None:
        return text_at(message, "refusal") if isinstance(message.get("refusal"), str) else None
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(part) for part in content)
    raise AgentError(f"the agent's `content` is neither text, a list of parts nor null: {excerpt(content)}")


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise AgentError(f"a part of the agent's `content` is not an object: {excerpt(part)}")
    text = part.get("text", part.get("refusal"))
    if isinstance(text, str):
        return text
    kind = part.get("type")
    if kind in _NON_TEXT_PARTS:
        return ""
    if kind in ("text", "output_text"):
        raise AgentError(f"a text part of the agent's `content` has no text: {excerpt(part)}")
    return f"[{kind if isinstance(kind, str) else 'unknown part'}]"


def read_tool_requests(calls: Any) -> tuple[ToolRequest, ...]:
    """Return the tool requests in a message's `tool_calls`. Raises AgentError."""
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise AgentError(f"the agent's `tool_calls` is not a list: {excerpt(calls)}")
    return tuple(_tool_request(call) for call in calls)


def _tool_request(call: Any) -> ToolRequest:
    function = mapping_at(call, "function")
    name = text_at(function, "name")
    if not name:
        raise AgentError(f"a tool call of the agent has no function name: {excerpt(call)}")
    return ToolRequest(text_at(call, "id"), name, arguments_text(function.get("arguments")))


def _attachments_part(file: Attachment) -> dict[str, Any]:
    if file.kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": file.web_address(_WHOM)}}
    if file.uri:
        raise file.unsupported(_WHOM, "only images can be sent to it by their address")
    if form := file.audio_format:
        return {"type": "input_audio", "input_audio": {"data": file.base64, "format": form}}
    return {"type": "file", "file": {"filename": file.file_name, "file_data": file.data_address}}
