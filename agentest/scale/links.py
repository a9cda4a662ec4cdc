"""Messages between the processes of a run: each end of a socket pair hears what the other one sends.

Sending never blocks, so that two ends that both have much to say cannot wait for each other. What is the
user's own (arguments of a Python agent, values of mocks) travels as JSON: reading a message neither needs nor
runs anybody else's code.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
from collections.abc import Callable
from io import BytesIO
from types import FunctionType
from typing import Any, Self

import anyio

from agentest.support.json_text import plain
from agentest.transcript import ToolCall

_LENGTH_BYTES = 8


class Link(asyncio.Protocol):
    """One end. Messages are heard in the order in which they were sent.

    Args:
        hear: is called with every message of the other end.
        lost: is called once, when the other end is closed and everything was heard; not after `close`.
    """

    def __init__(self, hear: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._hear = hear
        self._lost = lost
        self._outgoing: list[object] = []
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport
        self._may_write = anyio.Event()
        self._may_write.set()
        self._closing = False
        self._closed = anyio.Event()

    @classmethod
    async def over(cls, end: socket.socket, hear: Callable[[Any], None], lost: Callable[[], None]) -> Self:
        """A link over one end of a socket pair, which it closes with itself."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(hear, lost), sock=end)
        return link

    def send(self, message: object) -> None:
        """Send a message, with all others of this moment: one by one they cost several times as much.

        It is lost where the other end is closed.
        """
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(message)

    def _flush(self) -> None:
        if self._outgoing and not self._closed.is_set():
            body = packed(self._outgoing)
            self._transport.write(len(body).to_bytes(_LENGTH_BYTES) + body)
        self._outgoing.clear()

    async def drained(self) -> None:
        """Wait until most of what was sent has been taken."""
        await self._may_write.wait()

    async def close(self) -> None:
        """Close this end when everything has been taken."""
        self._closing = True
        self._flush()
        self._transport.close()
        await self._closed.wait()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        self._may_write.set()
        self._closed.set()
        if not self._closing:
            self._closing = True
            self._lost()

    def pause_writing(self) -> None:
        self._may_write = anyio.Event()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start, held = 0, len(self._buffer)
        while held - start >= _LENGTH_BYTES:
            body = start + _LENGTH_BYTES
            end = body + int.from_bytes(self._buffer[start:body])
            if end > held:
                break
            for message in pickle.loads(self._buffer[body:end]):
                self._hear(message)
            start = end
        del self._buffer[:start]


def packed(value: object) -> bytes:
    """A value of ours as bytes, for `pickle.loads`. What is the user's in it is JSON afterwards.

    Raises what the user's own classes raise where they are shown as text.
    """
    out = BytesIO()
    _Packer(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


class _Packer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is ToolCall:
            about = (value.name, value.mocked, value.turn_index)
            rest = (value.invalid_arguments, value.error, value.seen_by)
            return _tool_call, (_as_json([value.args, value.result]), *about, *rest)
        named = value if isinstance(value, type | FunctionType) else kind
        ours = named.__module__.partition(".")[0] in (__package__, "copyreg")
        return NotImplemented if ours else (_from_json, (_as_json(value),))


def _as_json(value: object) -> str:
    return json.dumps(plain(value))


def _from_json(text: str) -> Any:
    return json.loads(text)


def _tool_call(given: str, name: str, *rest: Any) -> ToolCall:
    args, result = json.loads(given)
    return ToolCall(name, args, result, *rest)
