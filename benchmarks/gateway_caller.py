"""What stands around the gateway: agents that call it over HTTP/1.1 by hand, and the fake model behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter

from benchmarks.answers import http_answer, model_answer
from benchmarks.gateway_payloads import ID, TOKEN, Api, encoded

_EVENT_S = 0.002
"""Between two events of a stream, so that each comes by itself."""
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST = b"0\r\n\r\n"
_OUR_OWN = b'"response_format"'
"""Is in requests of our own judges only."""


@asynccontextmanager
async def fake_model(api: Api, *, streams: bool) -> AsyncIterator[int]:
    """Serve one answer, each time with another id. Yields the port."""
    numbers = count(10**9)
    whole = encoded(api.answer)
    pieces = api.pieces() if streams else []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
                body = await reader.readexactly(length)
                known = str(next(numbers)).encode()
                if _OUR_OWN in body:
                    writer.write(model_answer(body))
                elif not pieces:
                    writer.write(http_answer(whole.replace(ID.encode(), known)))
                else:
                    writer.write(_STREAM)
                    began = perf_counter()
                    for number, piece in enumerate(pieces, 1):
                        piece = piece.replace(ID.encode(), known)
                        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                        await asyncio.sleep(began + number * _EVENT_S - perf_counter())
                    writer.write(_LAST)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@dataclass
class Agent:
    """One agent with a connection to each of the servers that it calls."""

    api: Api
    number: int
    streams: bool
    _connections: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=dict)

    async def call(self, port: int, turns: int) -> float:
        """Call the model in a turn. Returns the milliseconds until the answer's end.

        Raises ValueError unless the answer is whole and a success.
        """
        reader, writer = await self._connection(port)
        path = self.api.stream_path if self.streams else self.api.path
        body = self.api.body(self.number, turns, streams=self.streams)
        head = f"POST /{TOKEN}{path} HTTP/1.1\r\n"
        head += f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer sk-benchmark\r\n"
        head += f"Content-Type: application/json\r\nAccept: */*\r\nContent-Length: {len(body)}\r\n\r\n"
        began = perf_counter()
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not answer.startswith(b"http/1.1 200"):
            raise ValueError(f"{answer.decode()}{(await reader.read(2000)).decode()}")
        if self.streams:
            await reader.readuntil(_LAST)
        else:
            length = int(answer.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            await reader.readexactly(length)
        return (perf_counter() - began) * 1000

    async def _connection(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if port not in self._connections:
            self._connections[port] = await asyncio.open_connection("127.0.0.1", port)
        return self._connections[port]

    def close(self) -> None:
        for _, writer in self._connections.values():
            writer.close()


async def calls(agents: Sequence[Agent], port: int, turns: int, times: int) -> None:
    """Let all agents call at once, each so many times one after another."""

    async def one_after_another(agent: Agent) -> None:
        for _ in range(times):
            await agent.call(port, turns)

    async with asyncio.TaskGroup() as tasks:
        for agent in agents:
            tasks.create_task(one_after_another(agent))
