"""The fake agent and the fake model, in a process of their own: `python -m benchmarks.server`.

HTTP/1.1 by hand on `asyncio.Protocol`: just enough for keep-alive POST requests with a content-length, and
fast enough not to be what is measured. Prints its ports as a line of JSON; answers every line on standard
input with a line of counters; ends when standard input does. Faults come by counting, never by chance: of 200
requests in a row always the same ones are answered wrongly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, process_time

from benchmarks.answers import BROKEN, agent_answer, model_answer
from benchmarks.fault_plan import HANG, RESET, Slots, parsed, slots

_BACKLOG = 4096
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER for no seconds


@dataclass(slots=True)
class Service:
    """One fake server: how it answers, after how long, and what it has counted."""

    answer: Callable[[bytes], bytes]
    latency_s: float
    faults: Slots = (None,)
    requests: int = 0
    connections: int = 0
    received_bytes: int = 0
    faulty: Counter[str] = field(default_factory=Counter)
    """Fault → how many requests met it."""
    under_way: int = 0
    most: int = 0
    """Under way at once."""
    first_at: float = 0.0
    last_at: float = 0.0

    def begin(self, length: int) -> None:
        """Count a request with a body of this length."""
        self.last_at = monotonic()
        self.first_at = self.first_at or self.last_at
        self.requests += 1
        self.received_bytes += length
        self.under_way += 1
        self.most = max(self.most, self.under_way)

    def next_fault(self) -> str | None:
        """What is wrong with the answer to the request that has just been counted."""
        fault = self.faults[self.requests % len(self.faults)]
        if fault:
            self.faulty[fault] += 1
        return fault

    def counters(self) -> dict[str, object]:
        return {
            "requests": self.requests,
            "connections": self.connections,
            "received_bytes": self.received_bytes,
            "faulty": dict(self.faulty),
            "most": self.most,
            "span_s": self.last_at - self.first_at,
        }


class Http(asyncio.Protocol):
    """One connection."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._service.connections += 1

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (body := self._next_body()) is not None:
            self._service.begin(len(body))
            fault = self._service.next_fault()
            if fault == HANG:
                continue
            answer = None if fault == RESET else BROKEN[fault] if fault else self._service.answer(body)
            if self._service.latency_s:
                asyncio.get_running_loop().call_later(self._service.latency_s, self._send, answer)
            else:
                self._send(answer)

    def _next_body(self) -> bytes | None:
        """Take the next whole request out of the buffer."""
        end = self._buffer.find(_HEAD_END)
        if end < 0:
            return None
        start = end + len(_HEAD_END)
        length = _content_length(bytes(self._buffer[:end]).lower())
        if len(self._buffer) < start + length:
            return None
        body = bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        return body

    def _send(self, answer: bytes | None) -> None:
        """Send an answer; None resets the connection."""
        self._service.under_way -= 1
        if not self._transport or self._transport.is_closing():
            return
        if answer is None:
            connection = self._transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()
        else:
            self._transport.write(answer)


def _content_length(head: bytes) -> int:
    at = head.find(_LENGTH)
    if at < 0:
        raise ValueError("the fake server reads only requests with a content-length")
    return int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0])


async def serve(agent: Service, model: Service) -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    ports = {}
    for name, service in (("agent", agent), ("model", model)):
        listening = await loop.create_server(partial(Http, service), "127.0.0.1", 0, backlog=_BACKLOG)
        ports[name] = listening.sockets[0].getsockname()[1]
    _tell(ports)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while await commands.readline():
        _tell({"agent": agent.counters(), "model": model.counters(), "cpu_s": process_time()})


def _tell(message: object) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    """Entry point of the servers' process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--agent-s", type=float, required=True)
    parser.add_argument("--model-s", type=float, required=True)
    for name in ("--agent-faults", "--model-faults"):
        parser.add_argument(name, type=lambda text: slots(parsed(text)), default="", help="kind=of 200,…")
    options = parser.parse_args()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    agent = Service(agent_answer, options.agent_s, options.agent_faults)
    model = Service(model_answer, options.model_s, options.model_faults)
    asyncio.run(serve(agent, model))


if __name__ == "__main__":
    main()
