"""Client for agents behind a WebSocket, with the message format that the configuration describes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio

from agentest.agents.error_hints import ProbeResponse, hint
from agentest.agents.http.requests import RequestTemplate
from agentest.agents.http_sender import DENIED, ErrorAdvisor
from agentest.agents.json_reader import read_any
from agentest.agents.message_mapping import MessagePaths, TurnReader, last_results
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import (
    AGENT_ANSWERED,
    AccessDenied,
    Agent,
    AgentNotes,
    AgentReply,
    NoReply,
    Resources,
    TurnContext,
)
from agentest.agents.reply_paths import text_of
from agentest.config.agents.dialogue import WebSocketAgent
from agentest.config.fields import check_headers
from agentest.domain.messages import Message
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, CannotSend
from agentest.support.http.address_guard import RefusedAddress
from agentest.support.http.bodies import MAX_BODY_BYTES
from agentest.support.http.client import Client
from agentest.support.http.retries import (
    CONNECTION_ERRORS,
    describe,
    describe_shortage,
    find_shortage,
    is_tls_error,
    pause_before_retry,
    was_refused,
)
from agentest.support.http.websockets import NotText, RedirectRefused, SocketClosed, WebSocket
from agentest.support.json_path import JsonPath
from agentest.support.templates import Template, without
from agentest.support.text import count
from agentest.support.trace_context import note_request, turn_of_requests

if TYPE_CHECKING:
    from agentest.config.agents.model_apis import RealtimeAgent

_PLACE = "is the path that of the WebSocket?"
_RETRIED = (429, 502, 503, 504)


def open_agent(_: str, config: WebSocketAgent, resources: Resources) -> WebSocketClient:
    """Return the client of an agent behind a WebSocket."""
    assert isinstance(resources.client, Client), "an `app` is refused with the configuration"
    notes = AgentNotes(config.name, resources.on_note)
    client = WebSocketClient(config, WebSocketConnector(config, resources.client), resources.timeout_s, notes)
    resources.closing.callback(client.note_late_messages)
    return client


class WebSocketClient:
    """Opens conversations. Stores no conversation state."""

    def __init__(
        self, config: WebSocketAgent, connector: WebSocketConnector, timeout_s: float, notes: AgentNotes
    ) -> None:
        self.name = config.name
        self.config = config
        self.connector = connector
        self.timeout_s = timeout_s
        self.notes = notes
        self.form = MessagePaths.of(config)
        self.session = None if config.session is None else JsonPath(config.session)
        self.welcome = None if config.welcome is None else JsonPath(config.welcome)
        self.late = 0
        """Number of messages that arrived after the end of a turn, over all conversations."""

    def note_late_messages(self) -> None:
        """Add a note about messages that were dropped, because they may have been the rest of a reply."""
        if self.late:
            self.notes.add(
                "late messages",
                f"{count(self.late, 'message')} came after the end of a turn, and belonged to no reply. If "
                "they are the rest of one, set `done` to what is true for the last message of a turn",
            )

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Run a single turn in its own conversation. Raises NoReply."""
        async with self.conversation() as conversation:
            return await conversation.reply(messages, ctx)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        """Open a conversation. Its connection opens with the first message."""
        conversing = WebSocketConversation(self)
        try:
            yield conversing
        finally:
            await conversing.close()


class WebSocketConversation:
    """One conversation over one connection."""

    def __init__(self, client: WebSocketClient) -> None:
        self.name = client.name
        self._client = client
        self._socket: WebSocket | None = None
        self._hearing: TurnReader | None = None
        self._session_id: str | None = None
        self._retries = 0
        self._turns = 0

    async def close(self) -> None:
        """Close the connection. Never raises."""
        if self._socket is not None:
            self._client.late += len(self._socket.waiting()) if self._turns else 0
            await self._socket.close()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Return the reply to a user message or to tool results. Raises NoReply."""
        hearing = self._hearing or TurnReader(self._client.form, ctx.turn_index, self._client.notes)
        self._hearing = hearing
        limit = TimeLimit(self._client.timeout_s)
        try:
            with limit:
                first = await self._exchange(messages, ctx, hearing, limit)
            if not hearing.done:
                reply = hearing.requests()
            else:
                self._hearing, self._turns = None, self._turns + 1
                reply = hearing.answer()
        except TimeoutError:
            raise self._no_reply(self._timeout_message(hearing), hearing) from None
        except SocketClosed as error:
            problem = f"the connection {error} before the turn was done; {self._last_message_text(hearing)}"
            raise self._no_reply(problem, hearing) from None
        except (AgentError, NotText) as error:
            raise self._no_reply(str(error), hearing) from None
        retries, self._retries = self._retries, 0
        return replace(reply, latency_ms=limit.elapsed * 1000, first_token_ms=first, retries=retries)

    def _no_reply(self, problem: str, hearing: TurnReader) -> NoReply:
        return hearing.no_reply(f"{self._client.config.endpoint}: {problem}", self._retries)

    def _timeout_message(self, hearing: TurnReader) -> str:
        done = "`done` is true" if self._client.config.done else "there is a `reply`"
        seconds = f"{self._client.timeout_s:g} s (request_timeout_ms)"
        return f"no message for which {done} within {seconds}; {self._last_message_text(hearing)}"

    def _last_message_text(self, hearing: TurnReader) -> str:
        """Describe the agent's last message. If there is none, suggest a JSON `body`."""
        came = hearing.what_came()
        as_text = not self._turns and hearing.is_silent and self._client.config.body == "{{message}}"
        return f"{came}; it was sent plain text: where it takes JSON, `body` says which" if as_text else came

    async def _exchange(
        self, messages: Sequence[Message], ctx: TurnContext, hearing: TurnReader, limit: TimeLimit
    ) -> float | None:
        """Send the next message and read the answer. Returns the ms until the first text."""
        if self._socket is None:
            values = TurnValues(messages, ctx)
            self._socket, self._retries = await self._client.connector.connect(values, limit)
            await self._wait_for_welcome(self._socket)
        results = last_results(messages)
        if results:
            for result in results:
                await self._socket.send(_encoded(self._client.form.response(result)))
        else:
            self._discard_late_messages(self._socket, hearing)
            await self._socket.send(self._request_text(messages, ctx))
        return await self._receive(self._socket, hearing, limit)

    def _discard_late_messages(self, socket: WebSocket, hearing: TurnReader) -> None:
        """Discard messages that arrived between turns, except for the calls that they report."""
        late = [_decoded(text) for text in socket.waiting()]
        for message in late:
            self._note_session(message)
            hearing.hear_late(message)
        self._client.late += len(late) if self._turns else 0

    async def _wait_for_welcome(self, socket: WebSocket) -> None:
        while self._client.welcome is not None:
            message = _decoded(await socket.next())
            self._note_session(message)
            if self._client.welcome.holds(message):
                return

    def _request_text(self, messages: Sequence[Message], ctx: TurnContext) -> str:
        known = {} if self._session_id is None else {"session_id": self._session_id}
        unknown = {"session_id"} if self._client.session is not None and not known else set[str]()
        body = Template(without(self._client.config.body, unknown))
        return _encoded(body.filled(TurnValues(messages, ctx, known)))

    async def _receive(self, socket: WebSocket, hearing: TurnReader, limit: TimeLimit) -> float | None:
        first: float | None = None
        received_chars = 0
        while not hearing.done and not hearing.asks:
            text = await socket.next()
            received_chars += len(text)
            if received_chars > MAX_BODY_BYTES:
                raise AgentError(f"the messages of one turn are larger than {MAX_BODY_BYTES // 2**20} MB")
            message = _decoded(text)
            self._note_session(message)
            if hearing.hear(message) and first is None:
                first = limit.elapsed * 1000
        return first

    def _note_session(self, message: Any) -> None:
        if self._client.session is not None and self._session_id is None:
            self._session_id = text_of(self._client.session.find(message)) or None


def _encoded(message: Any) -> str:
    """Encode a message: text unchanged, other values as JSON."""
    return message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)


def _decoded(text: str) -> Any:
    """Decode a message: a JSON object, list or text; any other message unchanged."""
    value = read_any(text)
    return value if isinstance(value, dict | list | str) else text


class WebSocketConnector:
    """Opens an agent's connections."""

    def __init__(self, config: WebSocketAgent | RealtimeAgent, client: Client) -> None:
        self._config = config
        self._client = client
        self._advisor = ErrorAdvisor(config, client)
        self._request = RequestTemplate(
            endpoint=config.endpoint, method="GET", params={}, headers=config.sent_headers, body=None
        )

    async def connect(self, values: TurnValues, limit: TimeLimit) -> tuple[WebSocket, int]:
        """Open a connection. Returns it with the number of failed attempts. Raises AgentError, CannotSend."""
        request, turn = self._request.filled(values), turn_of_requests()
        named = {name.lower(): value for name, value in request.headers.items()}
        try:
            headers = list(check_headers({**named, **(turn.headers(named) if turn else {})}).items())
        except ValueError as error:
            raise CannotSend(f"{request.url}: a header {error}") from None
        for attempt in range(self._config.retries + 1):
            try:
                socket = await self._client.open_websocket(request.url, headers, self._config.subprotocols)
                self._advisor.has_answered = True
                AGENT_ANSWERED.set(True)
                note_request(stays_open=True)
                return socket, attempt
            except RefusedAddress as error:
                raise AgentError(str(error)) from None
            except CONNECTION_ERRORS as error:
                shortage, last = find_shortage(error), attempt == self._config.retries
                if shortage and last:
                    raise CannotSend(describe_shortage(request.url, shortage)) from None
                if isinstance(error, aiohttp.WSServerHandshakeError):
                    retryable = error.status in _RETRIED
                else:
                    retryable = was_refused(error)
                if last or not (shortage or retryable):
                    problem = await self._problem(request.url, error)
                    is_denied = _denies_access(error) and not AGENT_ANSWERED.get()
                    raise (AccessDenied if is_denied else AgentError)(problem) from None
            with limit.paused():
                await anyio.sleep(pause_before_retry(attempt + 1))
        raise AssertionError("unreachable: the last attempt either connects or raises")

    async def _problem(self, url: str, error: BaseException) -> str:
        problem = _problem(url, error)
        if not isinstance(error, aiohttp.WSServerHandshakeError) or error.status == 101:
            return problem
        # ASGI servers send 403 for a path without a WebSocket, so treat it as 404.
        status = 404 if error.status == 403 else error.status
        refused = ProbeResponse(status=status, headers=error.headers or {}, body=b"")
        return await self._advisor.advised(problem, refused)


def _denies_access(error: BaseException) -> bool:
    """Return True if a handshake shows a wrong address or login, and nothing about the agent."""
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return error.status in (200, *DENIED)
    return isinstance(error, RedirectRefused) or is_tls_error(error)


def _problem(url: str, error: BaseException) -> str:
    if isinstance(error, RedirectRefused):
        return f"{url} opened no WebSocket, {error} (is that a login? `headers` are sent with the handshake)"
    if not isinstance(error, aiohttp.WSServerHandshakeError):
        return f"{url}: {describe(error)}"
    if error.status == 101:
        return f"{url} answered with an invalid handshake: {error.message}"
    if error.status == 200:
        return f"{url} answered as a web page or an API does, and opened no WebSocket ({_PLACE})"
    advice = _PLACE if error.status in (405, 426) else hint(error.status, _PLACE)
    if error.status == 403:  # many servers answer it at every path without a WebSocket
        advice = f"{_PLACE} If so: {advice}"
    return f"{url} opened no WebSocket, it answered {error.status}{f' ({advice})' if advice else ''}"
