"""A server on loopback that answers with given bytes, or not at all."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from project import free_port

from agentest.agents.protocol_probe import USER_AGENT

Connection = asyncio.StreamWriter
Answer = bytes | Callable[[Connection], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Request:
    line: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(slots=True)
class Wire:
    """The server's address and its received requests."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/chat/completions"


@asynccontextmanager
async def wire(*answers: Answer, host: str = "127.0.0.1", for_looks: bool = False) -> AsyncIterator[Wire]:
    """Answer requests with these answers in order, the last one repeated, and close each connection.

    Requests of protocol probes find nothing, unless the answers are `for_looks`.
    """
    opened, open_now = Wire(), set[Connection]()

    async def serve(reader: asyncio.StreamReader, writer: Connection) -> None:
        open_now.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            request = await _request(reader)
            if request.headers.get("user-agent") == USER_AGENT and not for_looks:
                writer.write(http(status="404 Not Found"))
                return writer.close()
            opened.requests.append(request)
            answer = answers[min(len(opened.requests), len(answers)) - 1]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    opened.port = server.sockets[0].getsockname()[1]
    try:
        yield opened
    finally:
        server.close()
        for writer in open_now:
            writer.transport.abort()


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *fields = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(line, headers, json.loads(body or b"{}"))


def http(
    body: bytes = b"",
    status: str = "200 OK",
    headers: Sequence[str] = ("content-type: application/json",),
    length: int | None = None,
) -> bytes:
    """An answer whose content-length may be wrong."""
    lines = [
        f"HTTP/1.1 {status}",
        *headers,
        "connection: close",
        f"content-length: {len(body) if length is None else length}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def completion(text: str = "Hello.") -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


async def reset(writer: Connection) -> None:
    """Reset the connection without sending a byte."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def hang(_: Connection) -> None:
    """Send nothing until the server is closed."""
    await asyncio.Event().wait()


def closed_port() -> int:
    """A port without a listener."""
    return free_port()
