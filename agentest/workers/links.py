"""Messages between the processes of a run: each end of a socket pair receives what the other one sends.

Sending never blocks, so that two ends that both send much cannot wait for each other. The user's own values
(arguments of a Python agent, values of mocks) travel as JSON: reading a message neither needs nor runs the
user's code.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, reduce
from io import BytesIO
from operator import attrgetter
from types import FunctionType
from typing import Any, Self

import anyio

from agentest.domain.transcript import ToolCall, besides_values
from agentest.support.json_text import plain

_LENGTH_BYTES = 8
_WRAPPED_LEVELS = 20
"""More than a message adds to the levels of its values."""

Send = Callable[[object], None]


class Link(asyncio.Protocol):
    """One end. Messages arrive in the order in which they were sent.

    Args:
        on_message: receives every message of the other end.
        on_disconnect: is called once, when the other end is closed and all its messages have arrived; not
            after `close`.
    """

    def __init__(self, on_message: Callable[[Any], None], on_disconnect: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_disconnect = on_disconnect
        self._outgoing: list[object] = []
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport
        self._closing = False
        self._closed = anyio.Event()

    @classmethod
    async def over(
        cls, end: socket.socket, on_message: Callable[[Any], None], on_disconnect: Callable[[], None]
    ) -> Self:
        """A link over one end of a socket pair, which it closes with itself."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(on_message, on_disconnect), sock=end)
        return link

    def send(self, message: object) -> None:
        """Send a message, with all others of this moment: one by one they cost several times as much.

        The message is lost if the other end is closed.
        """
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(message)

    def _flush(self) -> None:
        messages, self._outgoing = self._outgoing, []
        if messages and not self._closed.is_set():
            body = packed_together(messages)
            self._transport.write(len(body).to_bytes(_LENGTH_BYTES) + body)

    async def close(self) -> None:
        """Close this end when the other end has read everything."""
        self._closing = True
        self._flush()
        self._transport.close()
        await self._closed.wait()

    def end_reading(self) -> None:
        """Read what the other end has sent until now, and no more: it disconnects then."""
        end = self._transport.get_extra_info("socket")
        with suppress(OSError):  # it is closed
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


def packed_together(messages: list[object]) -> bytes:
    """The messages of one moment. One whose values cannot be shown as text must not keep back the others.

    It is an event of a turn that is left out: the whole conversation, which is packed before it is sent, has
    the same values, and ends the worker with a message that names it.
    """
    try:
        return packed(messages)
    except Exception:  # noqa: BLE001 - classes of the user raise what they like
        return packed([message for message in messages if _can_be_packed(message)])


def _can_be_packed(message: object) -> bool:
    try:
        packed(message)
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def can_be_sent(value: object) -> bool:
    """Whether a value can go to another process: one that is nested thousands of levels deep cannot."""
    message = reduce(lambda inner, _: [inner], range(_WRAPPED_LEVELS), value)
    try:
        packed(message)
    except RecursionError:
        return False
    return True


def packed(value: object) -> bytes:
    """A value of ours as bytes, for `pickle.loads`. Values of the user in it become JSON.

    Raises what the user's own classes raise where they are shown as text.
    """
    out = BytesIO()
    _Packer(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


class _Packer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is ToolCall:
            return _tool_call, (_as_json([value.args, value.result]), *besides_values(value))
        named = value if isinstance(value, type | FunctionType) else kind
        ours = named.__module__.partition(".")[0] in ("agentest", "copyreg")
        if not ours:
            return _from_json, (_as_json(value),)
        values_of = _reader_of(kind)
        return NotImplemented if values_of is None else (kind, values_of(value))


def _values_of(kind: Any) -> Callable[[Any], tuple[object, ...]] | None:
    """Reads the values that make an instance of a plain dataclass; None where that is not all there is to it.

    The way in which dataclasses with slots are packed by themselves takes several times as long.
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


_reader_of: Callable[[Any], Callable[[Any], tuple[object, ...]] | None] = cache(_values_of)


def _as_json(value: object) -> str:
    return json.dumps(plain(value))


def _from_json(text: str) -> Any:
    return json.loads(text)


def _tool_call(values: str, name: str, *rest: Any) -> ToolCall:
    args, result = json.loads(values)
    return ToolCall(name, args, result, *rest)
