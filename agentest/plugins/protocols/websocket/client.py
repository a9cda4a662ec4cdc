"""Client for agents behind a WebSocket, with the message format that the configuration describes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from agentest.agents.json_reader import read_any
from agentest.agents.placeholders import PartialValues, TurnValues, ValuesOrNone, holds_for
from agentest.agents.port import AgentNotes, AgentReply, ConversationalAgent, NoReply, Resources, TurnContext
from agentest.agents.reply_detection import text_of
from agentest.config.agents.http_requests import names_in
from agentest.domain.messages import Message
from agentest.plugins.protocols.dialogue import MessagePaths, TurnReader, check_no_error, last_results
from agentest.plugins.protocols.sockets import WebSocketConnector
from agentest.plugins.protocols.websocket.settings import SocketMessage, WebSocketAgent
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, CannotSend
from agentest.support.http.bodies import MAX_BODY_BYTES
from agentest.support.http.client import Client
from agentest.support.http.websockets import NotText, SocketClosed, WebSocket
from agentest.support.jmespath_expressions import JsonPath, PathTemplate
from agentest.support.templates import Template, Values, without
from agentest.support.text import count, turn_name


def open_agent(_: str, config: WebSocketAgent, resources: Resources) -> ConversationalAgent:
    """Return the client of an agent behind a WebSocket."""
    assert isinstance(resources.client, Client), "an `app` is refused with the configuration"
    notes = AgentNotes(config.name, resources.on_note)
    client = WebSocketClient(config, WebSocketConnector(config, resources.client), resources.timeout_s, notes)
    resources.closing.callback(client.note_late_messages)
    return ConversationalAgent(config.name, lambda: WebSocketConversation(client), takes_attachments=False)


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
        self.answer = None if config.ping is None else _pong(config.ping, config.pong)
        self.saved = {name: JsonPath(path) for name, path in config.save.items()}
        self.late_names = frozenset(config.saved_names) | ({"session_id"} if config.session else set())
        """Names without a value until a message has one."""
        lists = {"hello": config.hello, "first": config.first, "then": config.then}
        outgoing = {key: [_Outgoing(f"{key}[{i}]", m) for i, m in enumerate(lists[key])] for key in lists}
        self.hello = outgoing["hello"]
        self.then = outgoing["then"] or [_Outgoing("body", SocketMessage(send=config.body))]
        self.first = outgoing["first"] or self.then
        self.late = 0  # number of messages that arrived after the end of a turn, over all conversations

    def note_late_messages(self) -> None:
        """Add a note about messages that were dropped, because they may have been the rest of a reply."""
        if self.late:
            self.notes.add(
                "late messages",
                f"{count(self.late, 'message')} came after the end of a turn, and belonged to no reply. If "
                "they are the rest of one, set `done` to what is true for the last message of a turn",
            )


class _Outgoing:
    def __init__(self, place: str, message: SocketMessage) -> None:
        self.place = place
        self.send = message.send
        self.wait = None if message.wait is None else PathTemplate(message.wait)
        self.condition = None if message.condition is None else PathTemplate(message.condition)
        self.has_message = not names_in(message.send).isdisjoint(("message", "messages"))


class WebSocketConversation:
    """One conversation over one connection."""

    def __init__(self, client: WebSocketClient) -> None:
        self.name = client.name
        self._client = client
        self._socket: WebSocket | None = None
        self._hearing: TurnReader | None = None
        self._saved: dict[str, Any] = {}
        self._waits_for: str | None = None
        """The key of the path for which a message has to arrive before the turn goes on."""
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
                await self._exchange(messages, ctx, hearing, limit)
            if hearing.done:
                self._hearing, self._turns = None, self._turns + 1
            reply = hearing.reply(limit, self._retries)
            self._retries = 0
            return reply
        except TimeoutError:
            raise self._no_reply(self._timeout_message(hearing), hearing) from None
        except SocketClosed as error:
            problem = f"the connection {error} before the turn was done; {self._last_message_text(hearing)}"
            raise self._no_reply(problem, hearing) from None
        except (AgentError, NotText) as error:
            raise self._no_reply(str(error), hearing) from None

    def _no_reply(self, problem: str, hearing: TurnReader) -> NoReply:
        return hearing.no_reply(f"{self._client.config.endpoint}: {problem}", self._retries)

    def _timeout_message(self, hearing: TurnReader) -> str:
        done = "`done` is true" if self._client.config.done else "there is a `reply`"
        done = f"`{self._waits_for}` is true" if self._waits_for else done
        seconds = f"{self._client.timeout_s:g} s (request_timeout_ms)"
        return f"no message for which {done} within {seconds}; {self._last_message_text(hearing)}"

    def _last_message_text(self, hearing: TurnReader) -> str:
        came = hearing.what_came()
        config = self._client.config
        is_plain = config.body == "{{message}}" and not config.then
        as_text = not self._turns and hearing.is_silent and is_plain
        return f"{came}; it was sent plain text: where it takes JSON, `body` says which" if as_text else came

    async def _exchange(
        self, messages: Sequence[Message], ctx: TurnContext, hearing: TurnReader, limit: TimeLimit
    ) -> None:
        client, values = self._client, TurnValues(messages, ctx, self._saved)
        if self._socket is None:
            self._socket, self._retries = await client.connector.connect(values, limit)
            if client.answer is not None:
                self._socket.answer = client.answer
            incoming = _Incoming(self._socket, self._note_connecting, limit, None)
            if client.welcome is not None:
                await self._wait_for("welcome", client.welcome, incoming)
            await self._send_all(client.hello, values, incoming)
        incoming = _Incoming(self._socket, self._note_saved, limit, hearing)
        if results := last_results(messages):
            for result in results:
                await self._socket.send(_encoded(client.form.response(result)))
            if client.config.after_tools is not None:
                await self._socket.send(self._text_of(client.config.after_tools, values))
        else:
            late = [_decoded(text) for text in self._socket.waiting()]
            for message in late:
                self._note_saved(message)
                hearing.hear_late(message)
            self._client.late += len(late) if self._turns else 0
            outgoing = client.then if self._turns else client.first
            has_message = await self._send_all(outgoing, values, incoming)
            if not has_message and any(each.has_message for each in outgoing):
                raise CannotSend(
                    f"{turn_name(ctx.turn_index)}: no message with the user's text was sent, because its "
                    f"condition (`if` in `{outgoing[0].place.partition('[')[0]}`) is false"
                )
        while not incoming.is_over:
            await incoming.next()

    async def _send_all(self, outgoing: Sequence[_Outgoing], values: Values, incoming: _Incoming) -> bool:
        has_message = False
        for each in outgoing:
            if each.condition and not holds_for(each.condition, self._saved, values):
                continue
            await incoming.socket.send(self._text_of(each.send, values))
            has_message = has_message or each.has_message
            if each.wait is not None:
                path = each.wait.filled(ValuesOrNone(values))
                await self._wait_for(f"{each.place}.wait", path, incoming)
            if incoming.is_over:
                break
        return has_message

    async def _wait_for(self, key: str, path: JsonPath, incoming: _Incoming) -> None:
        self._waits_for = key
        while not (path.holds(await incoming.next()) or incoming.is_over):
            pass
        self._waits_for = None

    def _text_of(self, template: Any, values: Values) -> str:
        absent = self._client.late_names - self._saved.keys()
        return _encoded(Template(without(template, absent)).filled(PartialValues(values, absent)))

    def _note_connecting(self, message: Any) -> None:
        self._note_saved(message)
        check_no_error(self._client.form.error, message)

    def _note_saved(self, message: Any) -> None:
        client = self._client
        if client.session is not None and "session_id" not in self._saved:
            session_id = text_of(client.session.find(message))
            self._saved |= {"session_id": session_id} if session_id else {}
        for name, path in client.saved.items():
            if (value := path.find(message)) not in (None, "", False):
                self._saved[name] = value


class _Incoming:
    """The messages that the agent sends in a turn, or without a reader while the connection opens."""

    def __init__(
        self, socket: WebSocket, note: Callable[[Any], None], limit: TimeLimit, hearing: TurnReader | None
    ) -> None:
        self.socket = socket
        self._note = note
        self._limit = limit
        self._hearing = hearing
        self._chars = 0

    @property
    def is_over(self) -> bool:
        return self._hearing is not None and self._hearing.is_over

    async def next(self) -> Any:
        text = await self.socket.next()
        self._chars += len(text)
        if self._chars > MAX_BODY_BYTES:
            raise AgentError(f"the messages of one turn are larger than {MAX_BODY_BYTES // 2**20} MB")
        message = _decoded(text)
        self._note(message)
        if self._hearing:
            self._hearing.hear(message, self._limit)
        return message


def _pong(ping_path: str, template: Any) -> Callable[[str], str | None]:
    ping, pong = JsonPath(ping_path), Template(template)
    paths = {name: JsonPath(name.removeprefix("ping.")) for name in pong.names}

    def answer(text: str) -> str | None:
        message = _decoded(text)
        if not ping.holds(message):
            return None
        return _encoded(pong.filled({name: path.find(message) for name, path in paths.items()}))

    return answer


def _encoded(message: Any) -> str:
    return message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)


def _decoded(text: str) -> Any:
    value = read_any(text)
    return value if isinstance(value, dict | list | str) else text
