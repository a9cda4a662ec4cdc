"""Client for agents that speak OpenAI's Realtime API over a WebSocket, in text.

A response has the items of a Responses response, so its events are put together as those of one are. Servers
have two spellings: the beta's (`modalities`, `response.text.delta`) and today's (`output_modalities`,
`response.output_text.delta`); the first message of the server shows which one it has.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any
from wave import Error as WaveError
from wave import open as open_wave

from agentest.agents.bypassed_tools import BypassDetector, ids_of_mocked_calls
from agentest.agents.json_reader import error_text, excerpt, mapping_at, objects_at, read_event, text_at
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import (
    AgentReply,
    ConversationalAgent,
    IgnoredCounter,
    NoReply,
    Resources,
    TurnContext,
)
from agentest.domain.messages import Attachment, Message, ToolResult, ToolSpec, UserText
from agentest.plugins.protocols import response_items as wire
from agentest.plugins.protocols.protocol_client import agent_call
from agentest.plugins.protocols.realtime.settings import RealtimeAgent
from agentest.plugins.protocols.sockets import WebSocketConnector
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError
from agentest.support.http.bodies import MAX_BODY_BYTES
from agentest.support.http.client import Client
from agentest.support.http.websockets import NotText, SocketClosed, WebSocket
from agentest.support.json_text import json_or
from agentest.support.templates import Template

_HANDED_OVER = "have the server hand over the call (a function in body.tools)"
_HIDES = (
    "the server handed no call over, and calls of tools that it runs itself would not be seen. If it runs "
    "none itself, write tool_visibility: returned"
)
_NAMELESS = "the server reported the result of a tool that it ran itself, but not its name"
_RECIPIENT = "an agent that speaks Realtime"
_TEXTS = {
    "response.text": "response.output_text",
    "response.audio_transcript": "response.output_text",
    "response.output_audio_transcript": "response.output_text",
}
"""Events with text → the event of a response in which it stands. A transcript is the text of audio."""
_SKIPPED = (
    *("session.", "conversation.", "input_audio_buffer.", "output_audio_buffer.", "rate_limits."),
    *("response.audio.", "response.output_audio."),
)


def open_agent(_: str, config: RealtimeAgent, resources: Resources) -> ConversationalAgent:
    """Return the client of an agent that speaks Realtime."""
    assert isinstance(resources.client, Client), "an `app` is refused with the configuration"
    endpoint = _RealtimeEndpoint(config, WebSocketConnector(config, resources.client), resources)
    return ConversationalAgent(config.name, lambda: _RealtimeConversation(endpoint))


class _RealtimeEndpoint:
    def __init__(self, config: RealtimeAgent, connector: WebSocketConnector, resources: Resources) -> None:
        self.name = config.name
        self.endpoint = config.endpoint
        self.session = Template(config.body)
        self.connector = connector
        self.timeout_s = resources.timeout_s
        self.is_visible = config.tool_visibility is not None
        self.ignored = IgnoredCounter(config.name, resources)
        self.own_tools = BypassDetector(config.name, handed_over=_HANDED_OVER)


class _RealtimeConversation:
    def __init__(self, client: _RealtimeEndpoint) -> None:
        self.name = client.name
        self._client = client
        self._socket: WebSocket | None = None
        self._items: list[wire.Item] = []  # the items of all responses
        self._known = 0  # the number of the turn loop's messages that the server has
        self._is_done: dict[str, bool] = {}
        """Id of an announced response → True if it is done; its further events are repetitions."""
        self._added: dict[tuple[str, str], wire.Item] = {}
        """Type and call id → an item that the server added to the conversation."""
        self._answered: set[str] = set()  # ids of the calls that we have answered
        self._shows_calls = False
        """True once the server has handed a call over or reported one. Tools in its session show nothing."""

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        client, limit = self._client, TimeLimit(self._client.timeout_s)
        assembly, retries, first_ms = wire.ResponseAssembly(client.ignored), 0, None
        if not self._known:
            client.own_tools.check_before(ctx)
        new = [
            item
            for message in messages[self._known :]
            for item in _items_of_message(message, wire.requested_by_id(self._items))
        ]
        self._answered |= {each["call_id"] for each in new if "call_id" in each}
        try:
            with limit:
                if self._socket is None:
                    values = TurnValues(messages, ctx)
                    self._socket, retries = await client.connector.connect(values, limit)
                    await self._begin(self._socket, values, ctx.tools)
                for item in new:
                    await _send(self._socket, "conversation.item.create", item=item)
                await _send(self._socket, "response.create")
                first_ms = await self._receive(self._socket, assembly, limit)
            response = assembly.response()
            reply = wire.reply_of(response, ctx.turn_index, self.name, client.ignored, self._items)
            self._items += wire.items_of(response)
            reply = self._with_own_calls(reply, ctx.turn_index)
        except NoReply as error:
            raise NoReply(f"{client.endpoint}: {error}", retries, error.observed) from None
        except (TimeoutError, SocketClosed, AgentError, NotText) as error:
            made = wire.made_so_far(assembly.response(), ctx.turn_index)
            raise NoReply(f"{client.endpoint}: {self._problem(error)}", retries, made) from None
        client.own_tools.check_after(reply.observed, ctx, ids_of_mocked_calls(messages))
        self._known = len(messages) + 1  # the reply will be the next of them
        return replace(reply, latency_ms=limit.elapsed * 1000, first_token_ms=first_ms, retries=retries)

    async def _receive(
        self, socket: WebSocket, assembly: wire.ResponseAssembly, limit: TimeLimit
    ) -> float | None:
        """Read the events of one response. Returns when its text began. Raises AgentError."""
        received_chars = 0
        text_ms: list[float] = []
        while True:
            text = await socket.next()
            received_chars += len(text)
            if received_chars > MAX_BODY_BYTES:
                raise AgentError(f"the messages of one response are larger than {MAX_BODY_BYTES // 2**20} MB")
            event = read_event(text)
            kind = text_at(event, "type")
            response_id = text_at(event, "response_id") or text_at(mapping_at(event, "response"), "id")
            if kind == "response.created":
                self._is_done[response_id] = False
            if kind == "error":
                raise AgentError(_error(event))
            if self._is_done.get(response_id) or kind.startswith(_SKIPPED):
                self._note(event)
                continue
            if kind == "response.done":
                response = _finished(mapping_at(event, "response"))
                kind, event = f"response.{response['status']}", {"response": response}
                if response_id in self._is_done:
                    self._is_done[response_id] = True
            else:
                name, _, step = kind.rpartition(".")
                kind = f"{_TEXTS.get(name, name)}.{step}"
                event = {**event, "text": event.get("transcript", event.get("text"))}
            if assembly.add(event, kind, lambda: text_ms.append(limit.elapsed * 1000)):
                return text_ms[0] if text_ms else None

    def _note(self, event: Mapping[str, Any]) -> None:
        item = mapping_at(event, "item")
        self._added.setdefault((text_at(item, "type"), text_at(item, "call_id")), item)

    def _with_own_calls(self, reply: AgentReply, turn_index: int) -> AgentReply:
        added, self._added = self._added, {}
        outputs = {
            known: text_at(item, "output")
            for (kind, known), item in added.items()
            if kind == "function_call_output" and known not in self._answered
        }
        asked = tuple(each for each in reply.tool_requests if each.id not in outputs)
        ours = self._answered | {each.id for each in asked}
        own = tuple(
            agent_call(
                name=text_at(item, "name"),
                args=json_or(text_at(item, "arguments")),
                turn_index=turn_index,
                result=None if (output := outputs.pop(known, None)) is None else json_or(output, output),
                call_id=known,
            )
            for (kind, known), item in added.items()
            if kind == "function_call" and known not in ours
        )
        observed = (*reply.observed, *own)
        self._shows_calls |= bool(asked or observed) or self._client.is_visible
        hidden = _NAMELESS if outputs else "" if self._shows_calls else _HIDES
        return replace(reply, observed=observed, tool_requests=asked, calls_hidden=hidden)

    def _problem(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no response.done within {self._client.timeout_s:g} s (request_timeout_ms)"
        if isinstance(error, SocketClosed):
            return f"the connection {error} before the response was done"
        return str(error)

    async def _begin(self, socket: WebSocket, values: TurnValues, mocks: Sequence[ToolSpec]) -> None:
        created = read_event(await socket.next())
        if created.get("type") != "session.created":
            raise AgentError(
                _error(created)
                if created.get("type") == "error"
                else f"the first message of the server is not session.created, but: {excerpt(created)}"
            )
        given = mapping_at(created, "session")
        is_beta = "modalities" in given and "output_modalities" not in given
        session: dict[str, Any] = {"modalities": ["text"]} if is_beta else {"type": "realtime"}
        if not is_beta:
            session["output_modalities"] = ["text"]
        session |= self._client.session.filled(values)
        if mocks and not objects_at(given, "tools"):
            session.setdefault("tools", [_function(spec) for spec in mocks])
        await _send(socket, "session.update", session=session)


def _finished(response: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response of a `response.done` in the form of a Responses response. Raises AgentError."""
    status, details = response.get("status"), mapping_at(response, "status_details")
    if status not in ("completed", "failed", "incomplete", "cancelled"):
        raise AgentError(f"response.done has the unknown status {excerpt(status)!r}")
    usage = mapping_at(response, "usage")
    return {
        **response,
        "error": details.get("error"),
        "incomplete_details": {"reason": details.get("reason")},
        "usage": {**usage, "input_tokens_details": usage.get("input_token_details")},
        "output": [_in_text(item) for item in objects_at(response, "output")],
    }


def _in_text(item: wire.Item) -> wire.Item:
    if item.get("type") != "message" or isinstance(item.get("content"), str):
        return item
    parts = [
        {"type": "output_text", "text": part.get("transcript") or part.get("text") or ""}
        for part in objects_at(item, "content")
    ]
    return {**item, "content": parts}


def _error(event: Mapping[str, Any]) -> str:
    return f"the server reports an error: {error_text(event.get('error') or event, 'code')}"


async def _send(socket: WebSocket, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}, ensure_ascii=False))


def _function(spec: ToolSpec) -> dict[str, Any]:
    parameters = dict(spec.parameters)
    return {"type": "function", "name": spec.name, "description": spec.description, "parameters": parameters}


def _items_of_message(message: Message, calls: Mapping[str, wire.Item]) -> list[dict[str, Any]]:
    """Return a message as items. Raises CannotSend for a file that the protocol cannot send."""
    if isinstance(message, UserText):
        content = message.content("input_text", _file)
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        return [{"type": "message", "role": "user", "content": parts}]
    if isinstance(message, ToolResult):
        return [wire.output_item(message, calls.get(message.request_id))]
    return []  # the server has its own messages


def _file(file: Attachment) -> dict[str, Any]:
    if file.kind.startswith("image/"):
        return {"type": "input_image", "image_url": file.web_address(_RECIPIENT)}
    if not file.kind.startswith("audio/") or file.uri or file.audio_format == "mp3":
        raise file.unsupported(_RECIPIENT, "it takes images, and audio as WAV or in the session's format")
    return {"type": "input_audio", "audio": _samples(file) if file.audio_format == "wav" else file.base64}


def _samples(file: Attachment) -> str:
    """Return the samples of a WAV file, without its header, in base64. Raises CannotSend."""
    try:
        with open_wave(BytesIO(b64decode(file.base64))) as sound:
            return b64encode(sound.readframes(sound.getnframes())).decode()
    except (WaveError, EOFError) as error:
        raise file.unsupported(_RECIPIENT, f"it is not a WAV file ({error})") from None
