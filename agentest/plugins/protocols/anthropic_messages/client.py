"""The client of an agent that speaks Anthropic's Messages over HTTP."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from agentest.agents.bypassed_tools import ids_of_mocked_calls
from agentest.agents.http_sender import EventStream, HttpAnswer, read_body
from agentest.agents.json_reader import (
    TOO_DEEP,
    arguments_text,
    error_text,
    excerpt,
    is_list_of_objects,
    mapping_at,
    objects_at,
    read_any,
    read_arguments,
    read_object,
    text_at,
    truncated_stream_error,
)
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, ConversationalAgent, IgnoredCounter, Resources, TurnContext
from agentest.domain.messages import Attachment, Message, ToolRequest, ToolResult, UserText
from agentest.domain.transcript import Remark, ToolCall
from agentest.plugins.protocols.anthropic_messages.settings import AnthropicMessagesAgent
from agentest.plugins.protocols.model_messages import usage_of
from agentest.plugins.protocols.protocol_client import (
    TOOL_USE,
    ProtocolEndpoint,
    ProtocolTurn,
    StreamedBlocks,
    is_call,
    is_result,
    json_events,
    made_calls,
    results_by_id,
)
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse

_PLACE = "is the path right? Anthropic's Messages endpoints usually end with /v1/messages"
_VERSION = {"anthropic-version": "2023-06-01"}
_MAX_TOKENS = 4096
"""The limit for a reply if `body` has none, because the protocol requires one in every request."""
_MAX_PAUSES = 10
_PAUSED = "pause_turn"
_HANDED_OVER = "have the agent answer with a tool_use alone, without its result (a tool of body.tools)"
_RECIPIENT = "an agent that speaks Anthropic's Messages"
_CUT_HINTS = {
    "max_tokens": "raise body.max_tokens",
    "model_context_window_exceeded": "the conversation is longer than its model can read",
}
_SILENT_BLOCKS = ("thinking", "redacted_thinking", "container_upload", "compaction")

WrittenMessage = dict[str, Any]
"""A message of a request, `{role, content}`. The content is a text or a list of blocks."""
ReceivedMessage = Mapping[str, Any]  # a message as received. If it is incomplete, any field may be missing.
Block = Mapping[str, Any]  # a block of a message's `content`, as received


def open_agent(_: str, config: AnthropicMessagesAgent, resources: Resources) -> ConversationalAgent:
    """Create the client of an agent that speaks Anthropic's Messages."""
    endpoint = _MessagesEndpoint(config, resources)
    return ConversationalAgent(config.name, lambda: _MessagesConversation(endpoint), takes_history=True)


class _MessagesEndpoint(ProtocolEndpoint):
    def __init__(self, config: AnthropicMessagesAgent, resources: Resources) -> None:
        super().__init__(config, resources, _PLACE, handed_over=_HANDED_OVER)
        has_version = any(name.lower() in _VERSION for name in config.sent_headers)
        self._headers = {} if has_version else _VERSION
        self._url = config.endpoint
        self._streaming = config.streaming

    async def send(
        self, messages: Sequence[WrittenMessage], turn: ProtocolTurn, assembly: MessageAssembly
    ) -> HttpAnswer[ReceivedMessage]:
        body = self.body.filled(turn.values)
        streamed = {"stream": True} if self._streaming else {}
        all_messages = merged([*body.get("messages", []), *messages])
        payload = {"max_tokens": _MAX_TOKENS, **body, **streamed, "messages": all_messages}

        async def read(response: DirectResponse) -> ReceivedMessage:
            return await read_body(response, self._streaming, assembly.take, assembly.read)

        return await self.sender.post(self._url, payload, read, values=turn.values, headers=self._headers)


class _MessagesConversation:
    def __init__(self, endpoint: _MessagesEndpoint) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint
        self._history: list[WrittenMessage] = []  # all messages of the conversation, without `body.messages`
        self._known = 0  # the number of the turn loop's messages that are in the history
        self._call_ids: set[str] = set()  # ids of the calls in the history

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        if not self._known:
            self._endpoint.own_tools.check_before(ctx)
        self._history += map(_written, messages[self._known :])
        turn, blocks = ProtocolTurn(ctx=ctx, values=TurnValues(messages, ctx)), list[Block]()
        await self._receive(blocks, turn)
        try:
            reply = read_blocks(blocks, ctx.turn_index, self.name, self._endpoint.ignored, self._call_ids)
        except AgentError as error:
            raise turn.no_reply(error, made_calls(blocks, ctx.turn_index)) from None
        self._endpoint.own_tools.check_after(reply.observed, ctx, ids_of_mocked_calls(messages))
        self._history.append(as_received(blocks))
        self._call_ids |= _ids_of_calls(blocks)
        self._known = len(messages) + 1  # the reply will be the next of them
        turn.observed, turn.remarks = reply.observed, reply.remarks
        return turn.reply(reply.text, tool_requests=reply.tool_requests)

    async def _receive(self, blocks: list[Block], turn: ProtocolTurn) -> None:
        turn_index = turn.ctx.turn_index
        for _ in range(_MAX_PAUSES + 1):
            so_far = [as_received(blocks)] if blocks else []
            assembly = MessageAssembly(self._endpoint.ignored)
            try:
                message = turn.add(await self._endpoint.send([*self._history, *so_far], turn, assembly))
                turn.usage += usage_of(message)
                blocks += blocks_of(message)
            except RecursionError:
                raise turn.no_reply(TOO_DEEP, made_calls(blocks, turn_index)) from None
            except AgentError as error:
                calls = (*made_calls(blocks, turn_index), *made_so_far(assembly.message(), turn_index))
                raise turn.no_reply(error, calls) from None
            if cut := _cut_reason(message):
                self._endpoint.notes.add(cut, f"answers were cut before their end {cut}")
            if message.get("stop_reason") != _PAUSED:
                return
        problem = f"the agent paused more than {_MAX_PAUSES} times (stop_reason: {_PAUSED})"
        raise turn.no_reply(problem, made_calls(blocks, turn_index))


def as_received(blocks: Sequence[Block]) -> WrittenMessage:
    """Return the agent's message for further requests, in which the `input` of calls must be an object."""
    content = [
        {**block, "input": {}} if is_call(block) and not isinstance(block.get("input"), Mapping) else block
        for block in blocks
    ]
    return {"role": "assistant", "content": content}


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


def _blocks(content: str | Sequence[Any]) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _written(message: Message) -> WrittenMessage:
    if isinstance(message, UserText):
        return {"role": "user", "content": message.content("text", _file)}
    if isinstance(message, ToolResult):
        block = {"type": "tool_result", "tool_use_id": message.request_id, "content": message.text}
        value = read_any(message.text)
        # The result of a mock that raises is `{"error": …}`.
        has_failed = isinstance(value, dict) and value.keys() == {"error"} and bool(value["error"])
        return {"role": "user", "content": [{**block, "is_error": True} if has_failed else block]}
    text = _blocks(message.text) if message.text else []
    return {"role": "assistant", "content": [*text, *map(_tool_use, message.tool_requests)]}


def _tool_use(request: ToolRequest) -> Block:
    arguments, problem = read_arguments(request.arguments)
    return {"type": TOOL_USE, "id": request.id, "name": request.name, "input": {} if problem else arguments}


def _file(file: Attachment) -> Block:
    kind = file.kind
    name = {"title": file.name} if file.name else {}
    if kind.startswith("image/"):
        return {"type": "image", "source": _source(file, kind)}
    if kind == "application/pdf":
        return {"type": "document", "source": _source(file, kind), **name}
    if kind.startswith("text/") and not file.uri:
        data = b64decode(file.base64).decode("utf-8", errors="replace")
        source = {"type": "text", "media_type": "text/plain", "data": data}
        return {"type": "document", "source": source, **name}
    raise file.unsupported(_RECIPIENT, "it takes only images, PDFs and texts")


def _source(file: Attachment, kind: str) -> dict[str, str]:
    if file.uri:
        return {"type": "url", "url": file.web_address(_RECIPIENT)}
    return {"type": "base64", "media_type": kind, "data": file.base64}


class MessageAssembly:
    """Assembles the message of one response. The received part is available at any time."""

    def __init__(self, ignored: IgnoredCounter) -> None:
        self._ignored = ignored
        self._head: ReceivedMessage = {}
        self._complete: list[Block] = []  # the blocks of a message that was received whole
        self._streamed = StreamedBlocks()

    def take(self, body: bytes) -> ReceivedMessage:
        """Read the complete message in a body. Raises AgentError."""
        message = read_object(body, _PLACE)
        _check_form(message)
        self._head, self._complete = message, objects_at(message, "content")
        return message

    async def read(self, stream: EventStream) -> ReceivedMessage:
        """Read the complete message. Raises AgentError if the stream ends before it."""
        received = False
        async for kind, event in json_events(stream):
            received = True
            if self._add(event, kind, stream):
                return self.message()
        raise truncated_stream_error("message_stop", received)

    def message(self) -> ReceivedMessage:
        """Return the message as received so far."""
        return {**self._head, "content": [*self._complete, *self._streamed.blocks]}

    def _add(self, event: Mapping[str, Any], kind: str, stream: EventStream) -> bool:
        match kind:
            case "message_start":
                self._head = _object(event, "message")
            case "message_delta":
                # The final token counts replace earlier ones.
                usage = {**_without_nulls(self._head, "usage"), **_without_nulls(event, "usage")}
                self._head = {**self._head, **_without_nulls(event, "delta"), "usage": usage}
            case "content_block_start":
                self._streamed.start(_index(event), _object(event, "content_block"))
            case "content_block_delta":
                delta = _object(event, "delta")
                if not self._streamed.grow(_index(event), delta):
                    self._ignored.note("delta", delta.get("type"))
                if delta.get("type") == "text_delta" and bool(delta.get("text")):
                    stream.note_first_token()
            case "message_stop":
                return True
            case "content_block_stop" | "ping":
                pass
            case _ if kind == "error" or (event.get("error") and "type" not in event):
                self._head = {**self._head, "error": event.get("error") or dict(event)}
                return True
            case _:
                self._ignored.note("event", kind)
        return False


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


def _without_nulls(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: item for name, item in mapping_at(value, key).items() if item is not None}


def made_so_far(message: ReceivedMessage, turn_index: int) -> tuple[ToolCall, ...]:
    """Return the calls that already have results, in a message of any state. Never raises."""
    return made_calls(objects_at(message, "content"), turn_index)


def blocks_of(message: ReceivedMessage) -> tuple[Block, ...]:
    """Return the content in the form for further requests. Raises AgentError for an invalid message.

    Requested calls that lack an id get one.
    """
    _check_form(message)
    content = message["content"]
    if isinstance(content, str):
        content = _blocks(content) if content else []
    if not is_list_of_objects(content):
        raise AgentError(f"the `content` of the agent's message is not a list of blocks: {excerpt(content)}")
    prefix = f"toolu_{message.get('id') or 'of_agent'}"
    blocks = tuple(
        {**block, "id": f"{prefix}_{at}"} if _kind(block) == TOOL_USE and not text_at(block, "id") else block
        for at, block in enumerate(content)
    )
    if problem := _problem(message, blocks):
        raise AgentError(problem)
    return blocks


def _check_form(message: ReceivedMessage) -> None:
    if message.get("type") == "error" or message.get("error"):
        raise AgentError(f"the agent answered with an error: {error_text(message.get('error'), 'type')}")
    if "content" not in message:
        raise AgentError(f"the agent's answer is not a message: it has no `content`: {excerpt(message)}")
    if message.get("role", "assistant") != "assistant":
        raise AgentError(
            f"the agent's answer is a message of the role {message['role']!r}: {excerpt(message)}"
        )


def _cut_reason(message: ReceivedMessage) -> str | None:
    hint = _CUT_HINTS.get(text_at(message, "stop_reason"))
    return f"(stop_reason: {message['stop_reason']}): {hint}" if hint else None


def _problem(message: ReceivedMessage, blocks: tuple[Block, ...]) -> str | None:
    has_text = any(str(block.get("text") or "").strip() for block in blocks)
    ends_in_call = bool(blocks) and is_call(blocks[-1])
    if (cut := _cut_reason(message)) and (not has_text or ends_in_call):
        what = "in the middle of a call" if ends_in_call else "before it said anything"
        return f"the agent's answer was cut {what} {cut}"
    if message.get("stop_reason") == "refusal" and not has_text:
        why = mapping_at(message, "stop_details").get("explanation")
        return (
            f"the agent refused to answer, without a text (stop_reason: refusal){f': {why}' if why else ''}"
        )
    return None


def read_blocks(
    blocks: Sequence[Block],
    turn_index: int,
    author: str,
    ignored: IgnoredCounter,
    called: Collection[str] = (),
) -> AgentReply:
    """Return the reply in blocks. Results of earlier calls (ids in `called`) may come later.

    The reply is the last text, and earlier ones are remarks. Adjacent text blocks form one text, because
    citations split texts. Raises AgentError for a call without a name, a result of an unknown call, and a
    text block without text.
    """
    texts = [""]
    for block in blocks:
        if is_call(block) or is_result(block):
            texts.append("")
        else:
            texts[-1] += _text(block, ignored)
    nonblank = tuple(text for text in texts if text.strip())
    _check_calls(blocks, called)
    answered = results_by_id(blocks)
    return AgentReply(
        text=nonblank[-1] if nonblank else None,
        remarks=tuple(Remark(author, text) for text in nonblank[:-1]),
        tool_requests=tuple(
            ToolRequest(block["id"], block["name"], arguments_text(block.get("input")))
            for block in blocks
            if _kind(block) == TOOL_USE and excerpt(block.get("id")) not in answered
        ),
        observed=made_calls(blocks, turn_index),
    )


def _text(block: Block, ignored: IgnoredCounter) -> str:
    if _kind(block) == "text":
        if not isinstance(block.get("text"), str):
            raise AgentError(f"a text block of the agent has no text: {excerpt(block)}")
        return str(block["text"])
    if _kind(block) not in _SILENT_BLOCKS:
        ignored.note("content block", block.get("type"))
    return ""


def _check_calls(blocks: Sequence[Block], called: Collection[str]) -> None:
    """Raise AgentError for unidentified calls, because checks of forbidden calls would miss them."""
    for block in blocks:
        if is_call(block) and not text_at(block, "name"):
            raise AgentError(f"a {_kind(block)} of the agent has no name: {excerpt(block)}")
    known = {*called, *_ids_of_calls(blocks)}
    for block in blocks:
        if is_result(block) and excerpt(block.get("tool_use_id")) not in known:
            raise AgentError(
                f"a {_kind(block)} of the agent belongs to no call: {excerpt(block)} (expected a block "
                "with its `tool_use_id` as `id`, and the tool's name)"
            )


def _ids_of_calls(blocks: Sequence[Block]) -> set[str]:
    return {excerpt(block.get("id")) for block in blocks if is_call(block)}


def _kind(block: Block) -> str:
    return text_at(block, "type")
