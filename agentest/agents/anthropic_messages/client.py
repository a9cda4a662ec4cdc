"""The client of an agent that speaks Anthropic's Messages over HTTP, and its conversations."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from typing import Any

from agentest.agents.anthropic_messages.message import (
    MESSAGES_PLACE,
    PAUSED,
    Block,
    ReceivedMessage,
    blocks_of,
    cut_reason,
    ids_of_calls,
    is_use,
    made_so_far,
    read_blocks,
    read_message,
    usage_of,
)
from agentest.agents.bypassed_tools import BypassDetector, ids_of_mocked_calls
from agentest.agents.file_parts import kind_of, unsupported_file, web_address
from agentest.agents.http_sender import EventStream, HttpAnswer, HttpSender, read_body
from agentest.agents.json_reader import (
    TOO_DEEP,
    excerpt,
    read_any,
    read_arguments,
    read_event,
    truncated_stream_error,
)
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import Agent, AgentReply, IgnoredCounter, NoReply, Resources, TurnContext
from agentest.config.agents.model_apis import AnthropicMessagesAgent
from agentest.domain.messages import AgentMessage, Attachment, Message, ToolRequest, ToolResult, UserText
from agentest.domain.transcript import Remark, Usage
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import Template

_VERSION = ("anthropic-version", "2023-06-01")
_MAX_TOKENS = 4096
"""The limit for a reply if `body` has none, because the protocol requires one in every request."""
_MAX_PAUSES = 10


_HANDED_OVER = "have the agent answer with a tool_use alone, without its result (a tool of body.tools)"
_RECIPIENT = "an agent that speaks Anthropic's Messages"
WrittenMessage = dict[str, Any]
"""A message of a request, `{role, content}`. The content is a text or a list of blocks."""


def open_agent(_: str, config: AnthropicMessagesAgent, resources: Resources) -> MessagesClient:
    """Create the client of an agent that speaks Anthropic's Messages."""
    return MessagesClient(config, resources)


class MessagesClient:
    """Opens conversations with one endpoint. Stores nothing about them."""

    takes_attachments = True

    def __init__(self, config: AnthropicMessagesAgent, resources: Resources) -> None:
        self.name = config.name
        self.ignored = IgnoredCounter(config.name, resources)
        self.own_tools = BypassDetector(config.name, handed_over=_HANDED_OVER)
        self._on_note = resources.on_note
        self._noted_cuts: set[str] = set()
        self._endpoint = config.endpoint
        self._streaming = config.streaming
        self._sender = HttpSender(
            _with_version(config), resources.client, resources.timeout_s, MESSAGES_PLACE
        )
        self._body = Template(config.body)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        """Open one conversation, which stores the agent's blocks as received."""
        yield _MessagesConversation(self)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to a complete history in a new conversation. Raises NoReply, CannotSend, MockBypassed."""
        return await _MessagesConversation(self).reply(messages, ctx)

    def note_cut(self, message: ReceivedMessage) -> None:
        """Note once for each reason that messages were cut."""
        cut = cut_reason(message)
        if cut and cut not in self._noted_cuts:
            self._noted_cuts.add(cut)
            self._on_note(f"agent {self.name!r}: answers were cut before their end {cut}")

    async def send(
        self, messages: Sequence[Mapping[str, Any]], values: TurnValues, turn_index: int
    ) -> HttpAnswer[ReceivedMessage]:
        """Send a conversation and return the agent's message.

        Raises NoReply with the calls that the agent made before the error.
        """
        assembly = MessageAssembly(self.ignored)
        body = self._body.filled(values)
        all_messages = merged([*body.get("messages", []), *messages])
        streamed = {"stream": True} if self._streaming else {}

        async def read(response: DirectResponse) -> ReceivedMessage:
            return await read_body(response, self._streaming, read_message, assembly.read)

        try:
            payload = {"max_tokens": _MAX_TOKENS, **body, **streamed, "messages": all_messages}
            return await self._sender.post(self._endpoint, payload, read, values=values)
        except NoReply as error:
            raise NoReply(str(error), error.retries, made_so_far(assembly.message(), turn_index)) from None
        except RecursionError:
            raise NoReply(TOO_DEEP) from None


@dataclass(slots=True)
class _RoundReply:
    """The agent's blocks in one round. After pauses they come from several messages."""

    blocks: tuple[Block, ...] = ()
    usage: Usage = field(default_factory=Usage)
    latency_ms: float = 0.0
    first_token_ms: float | None = None
    retries: int = 0

    def add(self, received: HttpAnswer[ReceivedMessage]) -> None:
        """Add a message. Raises AgentError if it is invalid."""
        if self.first_token_ms is None and received.first_token_ms is not None:
            self.first_token_ms = self.latency_ms + received.first_token_ms
        self.latency_ms += received.latency_ms
        self.retries += received.retries
        self.usage += usage_of(received.value)
        self.blocks += blocks_of(received.value)


class _MessagesConversation:
    """One conversation with an agent."""

    def __init__(self, client: MessagesClient) -> None:
        self.name = client.name
        self._client = client
        self._history: list[WrittenMessage] = []
        """All messages of the conversation, without `body.messages`."""
        self._known = 0
        """The number of the turn loop's messages that are in the history."""
        self._call_ids: set[str] = set()
        """Ids of the calls in the history."""

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the last messages. Raises NoReply, CannotSend, MockBypassed."""
        if not self._known:
            self._client.own_tools.check_before(ctx)
        self._history += written(messages[self._known :])
        answer = await self._answer(TurnValues(messages, ctx), ctx.turn_index)
        try:
            content = read_blocks(answer.blocks, ctx.turn_index, self._client.ignored, self._call_ids)
        except AgentError as error:
            calls_so_far = made_so_far({"content": list(answer.blocks)}, ctx.turn_index)
            raise NoReply(str(error), answer.retries, calls_so_far) from None
        self._client.own_tools.check_after(content.made, ctx, ids_of_mocked_calls(messages))
        self._history.append(as_received(answer.blocks))
        self._call_ids |= ids_of_calls(answer.blocks)
        self._known = len(messages) + 1  # the reply will be the next of them
        return AgentReply(
            text=content.reply,
            tool_requests=content.requests,
            usage=answer.usage,
            latency_ms=answer.latency_ms,
            retries=answer.retries,
            observed=content.made,
            remarks=tuple(Remark(self.name, text) for text in content.remarks),
            first_token_ms=answer.first_token_ms,
        )

    async def _answer(self, values: TurnValues, turn_index: int) -> _RoundReply:
        """Send requests until the agent no longer pauses, and return all of its blocks."""
        answer = _RoundReply()
        for _ in range(_MAX_PAUSES + 1):
            before = made_so_far({"content": list(answer.blocks)}, turn_index)
            so_far = [as_received(answer.blocks)] if answer.blocks else []
            try:
                received = await self._client.send([*self._history, *so_far], values, turn_index)
            except NoReply as error:
                retries = answer.retries + error.retries
                raise NoReply(str(error), retries, (*before, *error.observed)) from None
            try:
                answer.add(received)
            except AgentError as error:
                calls_so_far = (*before, *made_so_far(received.value, turn_index))
                raise NoReply(str(error), answer.retries, calls_so_far) from None
            self._client.note_cut(received.value)
            if received.value.get("stop_reason") != PAUSED:
                return answer
        raise NoReply(
            f"the agent paused more than {_MAX_PAUSES} times (stop_reason: {PAUSED})",
            answer.retries,
            made_so_far({"content": list(answer.blocks)}, turn_index),
        )


def _with_version(config: AnthropicMessagesAgent) -> AnthropicMessagesAgent:
    """Add the header with the protocol's version to the settings, unless they have one."""
    if any(name.lower() == _VERSION[0] for name in config.headers):
        return config
    return config.model_copy(update={"headers": {**config.headers, _VERSION[0]: _VERSION[1]}})


def written(messages: Sequence[Message]) -> list[WrittenMessage]:
    """Return messages for a request, not merged. Raises CannotSend for a file that cannot be sent."""
    return [_written_message(message) for message in messages]


def as_received(blocks: Sequence[Mapping[str, Any]]) -> WrittenMessage:
    """Return the agent's message for further requests, in which the `input` of calls must be an object."""
    return {"role": "assistant", "content": [_with_object_input(block) for block in blocks]}


def merged(messages: Iterable[Mapping[str, Any]]) -> list[WrittenMessage]:
    """Merge messages so that roles alternate, as the protocol requires, and drop empty messages."""
    result: list[WrittenMessage] = []
    for message in messages:
        if not message["content"]:
            continue  # a message after a handover has no content
        if result and result[-1]["role"] == message["role"]:
            both = [*_blocks(result[-1]["content"]), *_blocks(message["content"])]
            result[-1] = {**result[-1], "content": both}
        else:
            result.append(dict(message))
    return result


def _written_message(message: Message) -> WrittenMessage:
    if isinstance(message, UserText):
        return {"role": "user", "content": _content(message)}
    if isinstance(message, ToolResult):
        return {"role": "user", "content": [_tool_result(message)]}
    return {"role": "assistant", "content": _agent_blocks(message)}


def _agent_blocks(message: AgentMessage) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": message.text}] if message.text else []
    return [*text, *map(_tool_use, message.tool_requests)]


def _tool_use(request: ToolRequest) -> dict[str, Any]:
    arguments, problem = read_arguments(request.arguments)
    return {
        "type": "tool_use",
        "id": request.id,
        "name": request.name,
        "input": {} if problem else arguments,
    }


def _tool_result(result: ToolResult) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": result.request_id, "content": result.text}
    return {**block, "is_error": True} if _has_failed(result.text) else block


def _has_failed(text: str) -> bool:
    """Return whether a tool failed: the result of a mock that raises is `{"error": …}`."""
    value = read_any(text)
    return isinstance(value, dict) and value.keys() == {"error"} and bool(value["error"])


def _with_object_input(block: Mapping[str, Any]) -> Mapping[str, Any]:
    if is_use(block) and not isinstance(block.get("input"), Mapping):
        return {**block, "input": {}}
    return block


def _blocks(content: str | Sequence[Any]) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _content(message: UserText) -> str | list[dict[str, Any]]:
    if not message.attachments:
        return message.text
    text = [{"type": "text", "text": message.text}] if message.text else []
    return [*text, *map(_file, message.attachments)]


def _file(file: Attachment) -> dict[str, Any]:
    kind = kind_of(file)
    if kind.startswith("image/"):
        return {"type": "image", "source": _source(file, kind)}
    name = {"title": file.name} if file.name else {}
    if kind == "application/pdf":
        return {"type": "document", "source": _source(file, kind), **name}
    if kind.startswith("text/") and not file.uri:
        data = b64decode(file.base64).decode("utf-8", errors="replace")
        source = {"type": "text", "media_type": "text/plain", "data": data}
        return {"type": "document", "source": source, **name}
    raise unsupported_file(file, _RECIPIENT, "it takes images, PDFs and texts alone")


def _source(file: Attachment, kind: str) -> dict[str, str]:
    if file.uri:
        return {"type": "url", "url": web_address(file, _RECIPIENT)}
    return {"type": "base64", "media_type": kind, "data": file.base64}


_DELTA_KEYS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}
"""Types of deltas → the key that the delta extends, in the delta and in its block."""


class MessageAssembly:
    """Assembles the message of one response. The received part is available at any time."""

    def __init__(self, ignored: IgnoredCounter) -> None:
        self._ignored = ignored
        self._head: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._replaced: list[dict[str, Any]] = []
        """Blocks whose index a later block reused."""
        self._inputs: dict[int, str] = {}
        """Indexes of blocks → the JSON texts of their `input`."""

    async def read(self, stream: EventStream) -> ReceivedMessage:
        """Read the complete message. Raises AgentError if the stream ends before it."""
        received = False
        async for event in stream:
            data = event.data.strip()
            if data and data != "[DONE]":
                received = True
                content = read_event(data)
                if self._add(content, str(content.get("type") or event.name), stream):
                    return self.message()
        raise truncated_stream_error("message_stop", received)

    def message(self) -> ReceivedMessage:
        """Return the message as received so far."""
        last = [self._block(index) for index in sorted(self._blocks)]
        return {**self._head, "content": [*self._replaced, *last]}

    def _add(self, event: Mapping[str, Any], kind: str, stream: EventStream) -> bool:
        """Add an event and return whether it was the last."""
        match kind:
            case "message_start":
                self._head = _object(event, "message")
            case "message_delta":
                self._add_end(event)
            case "content_block_start":
                self._start_block(_index(event), _object(event, "content_block"))
            case "content_block_delta":
                if self._add_delta(_index(event), _object(event, "delta")):
                    stream.note_first_token()
            case "message_stop":
                return True
            case "error":
                self._head = {**self._head, "error": event.get("error") or dict(event)}
                return True
            case "content_block_stop" | "ping":
                pass
            case _:
                return self._add_unknown(event, kind)
        return False

    def _start_block(self, index: int, block: dict[str, Any]) -> None:
        if index in self._blocks:
            self._replaced.append(self._block(index))
            self._inputs.pop(index, None)
        self._blocks[index] = block

    def _add_unknown(self, event: Mapping[str, Any], kind: str) -> bool:
        if event.get("error") and "type" not in event:
            self._head = {**self._head, "error": event["error"]}
            return True
        self._ignored.note("event", kind)
        return False

    def _add_end(self, event: Mapping[str, Any]) -> None:
        """Store the message's end and its final token counts, which replace earlier ones."""
        usage = {**_without_nulls(self._head.get("usage")), **_without_nulls(event.get("usage"))}
        self._head = {**self._head, **_without_nulls(event.get("delta")), "usage": usage}

    def _add_delta(self, index: int, delta: Mapping[str, Any]) -> bool:
        """Extend a block and return whether the delta was text."""
        kind = delta.get("type")
        if kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + _text(delta.get("partial_json"))
        elif isinstance(kind, str) and kind in _DELTA_KEYS:
            key = _DELTA_KEYS[kind]
            block = self._blocks.setdefault(index, {"type": key})
            block[key] = _text(block.get(key)) + _text(delta.get(key))
        elif kind == "citations_delta":
            block = self._blocks.setdefault(index, {"type": "text", "text": ""})
            block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
        else:
            self._ignored.note("delta", kind)
        return kind == "text_delta" and bool(delta.get("text"))

    def _block(self, index: int) -> dict[str, Any]:
        """Return a block with its parsed `input`, or the input's text if it is not JSON."""
        block = self._blocks[index]
        if not self._inputs.get(index, "").strip():
            return block
        return {**block, "input": read_any(self._inputs[index])}


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    if not isinstance(index, int):
        raise AgentError(f"an event of the agent's stream has no `index`: {excerpt(event)}")
    return index


def _object(event: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = event.get(key)
    if not isinstance(value, Mapping):
        raise AgentError(f"an event of the agent's stream has no `{key}`: {excerpt(event)}")
    return dict(value)


def _without_nulls(value: Any) -> dict[str, Any]:
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
