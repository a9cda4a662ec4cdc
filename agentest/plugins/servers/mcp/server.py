"""The MCP server over HTTP: streamable HTTP without sessions, and the older transport with event streams.

The connection never determines the conversation of a call, because clients may share sessions, open one for
each call, or drop them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

import anyio
from aiohttp import web

from agentest.agents.listener import headers_of, listen
from agentest.config.agents.companion_servers import McpMock
from agentest.plugins.servers.active_conversations import ServerInputs
from agentest.plugins.servers.mcp.methods import (
    INVALID_REQUEST,
    PARSE_ERROR,
    TOO_LARGE,
    UNSUPPORTED_VERSION,
    MessageSender,
    Methods,
    RpcError,
)
from agentest.plugins.servers.mcp.real_server import opened_methods
from agentest.support.http.bodies import BodyRefused, read_body

PATH = "/mcp"
READ_BYTES = 64_000_000
"""Bytes that are read of a body: more than the limit, so that the error can name the oversized request."""
_REFUSED = frozenset({PARSE_ERROR, INVALID_REQUEST, UNSUPPORTED_VERSION})


async def open_mcp_server(settings: McpMock, opening: ServerInputs) -> str:
    """Serve the tools until the run ends. Returns the server's URL. Raises ConfigError."""
    server = _Server(await opened_methods(settings, opening))
    app = web.Application()

    async def no_session(_: web.Request) -> web.Response:
        return web.Response()  # clients end their session with it, but there is none

    def not_from_here(problem: str) -> web.Response:
        return _json(RpcError(INVALID_REQUEST, problem).body(None), 403)

    for route in (PATH, f"{PATH}/", f"{PATH}/{{conversation}}"):
        app.router.add_post(route, server.post)
        app.router.add_delete(route, no_session)
    for route in ("/sse", "/sse/{conversation}", f"{PATH}/sse", f"{PATH}/{{conversation}}/sse"):
        app.router.add_get(route, server.open_stream)
    app.router.add_post("/messages/{stream}", server.post_to_stream)
    app.on_shutdown.append(server.close)
    key = opening.key_location("mcp_mock")
    origin = await listen(
        app, settings, key, opening.stack, opening.on_note, not_from_here, on_fault=opening.report_fault
    )
    return origin + PATH


class _Server:
    def __init__(self, methods: Methods) -> None:
        self._methods = methods
        self._streams: dict[str, Stream] = {}  # the open streams, by an unguessable name

    async def post(self, request: web.Request) -> web.Response:
        named = request.match_info.get("conversation")
        try:
            answer = await self._answer(request, None if named == "sse" else named, tools_in(request))
        except RpcError as error:
            return _json(error.body(None), 413 if error.code == TOO_LARGE else 400)
        if answer is None:
            return web.Response(status=202)
        failure = answer.get("error") if isinstance(answer, Mapping) else None
        return _json(answer, 400 if failure and failure["code"] in _REFUSED else 200)

    async def post_to_stream(self, request: web.Request) -> web.Response:
        stream = self._streams.get(request.match_info["stream"])
        if stream is None:
            return web.Response(status=404, text="this stream of events has ended; open another one")
        try:
            answer = await self._answer(request, stream.conversation, stream.tools)
        except RpcError as error:
            answer = error.body(None)
        # The transport has no batches.
        for each in answer if isinstance(answer, list) else [] if answer is None else [answer]:
            stream.waiting.put_nowait(each)
        return web.Response(status=202, text="Accepted")

    async def _answer(
        self, request: web.Request, conversation: str | None, tools: frozenset[str] | None
    ) -> Any:
        sender = MessageSender(headers=headers_of(request), conversation=conversation, tools=tools)
        try:
            body = await read_body(request, READ_BYTES)
        except BodyRefused as error:
            raise RpcError(TOO_LARGE if error.status == 413 else PARSE_ERROR, f"the body {error}") from None
        return await self._methods.answers(body, sender)

    async def open_stream(self, request: web.Request) -> web.StreamResponse:
        name, stream = token_hex(16), Stream(request)
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream", "cache-control": "no-store"}
        )
        await response.prepare(request)
        self._streams[name] = stream
        try:
            await response.write(_event("endpoint", f"/messages/{name}"))
            await _send_all(stream, response)
        except ConnectionError:  # the client has disconnected
            pass
        finally:
            del self._streams[name]
        return response

    async def close(self, _: web.Application) -> None:
        """End all streams, because the server would wait for them."""
        for stream in self._streams.values():
            stream.waiting.put_nowait(None)


def _json(content: Any, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(content), status=status, content_type="application/json")


_ALIVE_S = 15.0  # clients consider a stream dead if nothing arrives for minutes


class Stream:
    """An open stream. The names in its address apply to all messages, which use another address."""

    def __init__(self, request: web.Request) -> None:
        self.conversation = request.match_info.get("conversation")
        self.tools = tools_in(request)
        self.waiting: asyncio.Queue[Any] = asyncio.Queue()  # messages to send; None ends the stream


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
    """Return the tools that an address selects, as in `?tools=a,b`; None for all."""
    named = request.query.getall("tools", [])
    return frozenset(name.strip() for text in named for name in text.split(",") if name.strip()) or None


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
