"""The channel between the run's process and a worker, and its end over a socket pair.

A message is a method call on an object of the other end, and returns nothing. Sending never blocks, so two
ends that both send a lot cannot deadlock. User values (arguments of a Python agent, results of mocks) travel
as JSON, so reading a message neither needs nor runs the user's code.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, reduce
from io import BytesIO
from operator import attrgetter
from types import FunctionType
from typing import Any, Self

import anyio

from agentest.domain.transcript import ToolCall, get_call_metadata
from agentest.models.tape import CassettePage
from agentest.support.json_text import plain
from agentest.support.lazy_dataclasses import dataclass

_LENGTH_BYTES = 8
_WRAPPED_LEVELS = 20  # upper bound for the nesting levels that a message adds around its values

Send = Callable[[object], None]
Part = str | int  # name of an object at the other end, or the id of a conversation's order


def remote(part: Part, send: Send) -> Any:
    """Return a stand-in for an object at the other end. Calling its methods sends messages."""
    return _RemotePart(part, send)


class _RemotePart:
    __slots__ = ("_part", "_send")

    def __init__(self, part: Part, send: Send) -> None:
        self._part = part
        self._send = send

    def __getattr__(self, method: str) -> Callable[..., None]:
        def call(*args: object, **options: object) -> None:
            self._send((self._part, method, args, options))

        return call


def deliver(message: Any, *parts: Mapping[Any, object]) -> None:
    """Make the call that a message contains, unless the part no longer exists."""
    part, method, args, options = message
    for each in parts:
        if part in each:
            getattr(each[part], method)(*args, **options)
            return


class BatchedSender:
    """Sends the messages of one event loop iteration together: each alone costs several times as much."""

    def __init__(self) -> None:
        self._outgoing: list[object] = []

    def send(self, message: object) -> None:
        """Send a message. It is lost if the other end is closed, or if a value in it cannot become text."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(message)

    def _flush(self) -> None:
        messages, self._outgoing = self._outgoing, []
        if messages:
            self._write_packed(messages)

    def _write_packed(self, messages: list[object]) -> None:
        try:
            body = packed(messages)
        except Exception:  # noqa: BLE001 - user classes may raise anything
            for each in messages if len(messages) > 1 else ():
                self._write_packed([each])
        else:
            self._write(body)

    def _write(self, body: bytes) -> None:
        raise NotImplementedError


class Link(BatchedSender, asyncio.Protocol):
    """One end of the channel. Messages arrive in the order in which they were sent.

    Args:
        on_message: receives every message from the other end.
        on_disconnect: called once when the other end has closed and all its messages have arrived; not called
            after `close`.
    """

    def __init__(self, on_message: Callable[[Any], None], on_disconnect: Callable[[], None]) -> None:
        super().__init__()
        self._on_message = on_message
        self._on_disconnect = on_disconnect
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport
        self._closing = False
        self._closed = anyio.Event()

    @classmethod
    async def over(
        cls, end: socket.socket, on_message: Callable[[Any], None], on_disconnect: Callable[[], None]
    ) -> Self:
        """Create a link over one end of a socket pair. The link closes the socket when it closes."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(on_message, on_disconnect), sock=end)
        return link

    def _write(self, body: bytes) -> None:
        if not self._closed.is_set():
            self._transport.write(len(body).to_bytes(_LENGTH_BYTES) + body)

    async def close(self) -> None:
        """Close this end after the other end has read everything."""
        self._closing = True
        self._flush()
        self._transport.close()
        await self._closed.wait()

    def end_reading(self) -> None:
        """Stop reading after what the other end has sent so far, and then disconnect."""
        end = self._transport.get_extra_info("socket")
        with suppress(OSError):  # already closed
            end.shutdown(socket.SHUT_RD)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        self._closed.set()
        if not self._closing:
            self._closing = True
            self._on_disconnect()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start, received = 0, len(self._buffer)
        while received - start >= _LENGTH_BYTES:
            body = start + _LENGTH_BYTES
            end = body + int.from_bytes(self._buffer[start:body])
            if end > received:
                break
            for message in pickle.loads(self._buffer[body:end]):
                self._on_message(message)
            start = end
        del self._buffer[:start]


def can_be_sent(value: object) -> bool:
    """Return True unless a value is nested too deeply to be sent to another process."""
    message = reduce(lambda inner, _: [inner], range(_WRAPPED_LEVELS), value)
    try:
        packed(message)
    except RecursionError:
        return False
    return True


def packed(value: object) -> bytes:
    """Pack a value as bytes for `pickle.loads`, with user values converted to JSON.

    Raises whatever the user's classes raise while they are converted to text.
    """
    out = BytesIO()
    _MessagePickler(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


class _MessagePickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind: Any = type(value)
        if kind is ToolCall:
            values = json.dumps(plain([value.args, value.result]))
            return _unpack_tool_call, (values, *get_call_metadata(value))
        named = value if isinstance(value, type | FunctionType) else kind
        ours = named.__module__.partition(".")[0] in ("agentest", "copyreg")
        if not ours:
            return _from_json, (json.dumps(plain(value)),)
        values_of = _field_getter_of(kind)
        return NotImplemented if values_of is None else (kind, values_of(value))


@cache
def _field_getter_of(kind: Any) -> Callable[[Any], tuple[object, ...]] | None:
    """Return a getter for the constructor arguments of a plain dataclass, or None if `kind` is anything else.

    Pickle's default handling of dataclasses with slots takes several times as long.
    """
    if not is_dataclass(kind) or "__slots__" not in vars(kind) or hasattr(kind, "__post_init__"):
        return None
    made_of = fields(kind)
    if not made_of or any(field.kw_only or not field.init for field in made_of):
        return None
    names = [field.name for field in made_of]
    if len(names) == 1:
        return lambda value: (getattr(value, names[0]),)
    return attrgetter(*names)


def _from_json(text: str) -> Any:
    return json.loads(text)


def _unpack_tool_call(values: str, name: str, *rest: Any) -> ToolCall:
    args, result = json.loads(values)
    return ToolCall(name, args, result, *rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationOrder:
    """The order to run a conversation and have it judged."""

    id: int  # unique for every attempt to run a conversation
    scope: str
    number: int
    ids_end: str = ""
    """Suffix of the conversation's id, because agents may know an earlier attempt with the same number."""
    page: CassettePage | None = None
    """Recorded model responses for this conversation; None if nothing is recorded or replayed."""
    earlier: bytes | None = None
    """The packed conversation of an earlier run to judge again; None to run a new conversation."""
