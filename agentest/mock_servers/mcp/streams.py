"""The older form of MCP over HTTP (2024-11-05): a stream of events, and an address to post messages to."""

from __future__ import annotations

import asyncio
import json
from secrets import token_hex
from typing import Any

import anyio
from aiohttp import web

_ALIVE_S = 15.0
"""Clients take a stream for dead on which nothing comes for minutes."""


class Stream:
    """An open stream. A message of None ends it."""

    def __init__(self, request: web.Request) -> None:
        """`request` opens it: what its address names is true of all messages, which are posted elsewhere."""
        self.conversation = request.match_info.get("conversation")
        self.tools = tools_in(request)
        self.waiting: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, message: Any) -> None:
        """Send a message when its turn has come; each of a batch alone, as the form has none."""
        for each in message if isinstance(message, list) else [message]:
            self.waiting.put_nowait(each)


class Streams:
    """The open streams, by a name that nobody can guess."""

    def __init__(self) -> None:
        self._open: dict[str, Stream] = {}

    def get(self, name: str) -> Stream | None:
        return self._open.get(name)

    async def close(self, app: web.Application) -> None:
        """End all streams: the server waits for them otherwise."""
        del app
        for stream in self._open.values():
            stream.waiting.put_nowait(None)

    async def open(self, request: web.Request) -> web.StreamResponse:
        """Hold a stream for as long as the client listens."""
        name, stream = token_hex(16), Stream(request)
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream", "cache-control": "no-store"}
        )
        await response.prepare(request)
        self._open[name] = stream
        try:
            await response.write(_event("endpoint", f"/messages/{name}"))
            await _send_all(stream, response)
        except ConnectionError:  # the client has gone
            pass
        finally:
            del self._open[name]
        return response


async def _send_all(stream: Stream, response: web.StreamResponse) -> None:
    while True:
        text = b": alive\n\n"
        with anyio.move_on_after(_ALIVE_S):
            message = await stream.waiting.get()
            if message is None:
                return
            text = _event("message", json.dumps(message))
        await response.write(text)


def tools_in(request: web.Request) -> frozenset[str] | None:
    """The tools that an address names, as `?tools=a,b`: it stands for one of several servers. None: all."""
    named = request.query.getall("tools", [])
    return frozenset(name.strip() for text in named for name in text.split(",") if name.strip()) or None


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
