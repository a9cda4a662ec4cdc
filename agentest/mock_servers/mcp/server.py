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

from agentest.config.agents.mock_servers import McpMock
from agentest.mock_servers.listener import ServerInputs, headers_of, listen
from agentest.mock_servers.mcp.jsonrpc import INVALID_REQUEST, PARSE_ERROR, TOO_LARGE, RpcError
from agentest.mock_servers.mcp.methods import UNSUPPORTED_VERSION, MessageSender, Methods
from agentest.mock_servers.mcp.real_server import opened_methods
from agentest.support.http.bodies import BodyRefused, read_body

PATH = "/mcp"
READ_BYTES = 64_000_000
"""Bytes that are read of a body: more than the limit, so that the error can name the oversized request."""
_REFUSED = frozenset({PARSE_ERROR, INVALID_REQUEST, UNSUPPORTED_VERSION})
"""Errors that also have status 400."""


async def open_mcp_server(settings: McpMock, opening: ServerInputs) -> str:
    """Serve the tools until the run ends. Returns the server's URL. Raises ConfigError."""
    server = _Server(await opened_methods(settings, opening))
    app = web.Application()
    for route in (PATH, f"{PATH}/", f"{PATH}/{{conversation}}"):
        app.router.add_post(route, server.post)
        app.router.add_delete(route, _no_session)
    for route in ("/sse", "/sse/{conversation}", f"{PATH}/sse", f"{PATH}/{{conversation}}/sse"):
        app.router.add_get(route, server.streams.open)
    app.router.add_post("/messages/{stream}", server.post_to_stream)
    app.on_shutdown.append(server.streams.close)
    key = opening.key_location("mcp_mock")
    origin = await listen(app, settings, key, opening.stack, opening.on_note, _not_from_here)
    return origin + PATH


async def _no_session(request: web.Request) -> web.Response:
    del request  # clients end their session with it, but there is none
    return web.Response()


class _Server:
    def __init__(self, methods: Methods) -> None:
        self._methods = methods
        self.streams = Streams()

    async def post(self, request: web.Request) -> web.Response:
        """Streamable HTTP: the response to the request has the result."""
        named = request.match_info.get("conversation")
        try:
            answer = await self._answer(request, None if named == "sse" else named, tools_in(request))
        except RpcError as error:
            return _refusal(error, 413 if error.code == TOO_LARGE else 400)
        if answer is None:
            return web.Response(status=202)
        return _json(answer, 400 if _code_of(answer) in _REFUSED else 200)

    async def post_to_stream(self, request: web.Request) -> web.Response:
        """The older transport: an event of the stream has the result."""
        stream = self.streams.get(request.match_info["stream"])
        if stream is None:
            return web.Response(status=404, text="this stream of events has ended; open another one")
        try:
            answer = await self._answer(request, stream.conversation, stream.tools)
        except RpcError as error:
            answer = error.body(None)
        if answer is not None:
            stream.send(answer)
        return web.Response(status=202, text="Accepted")

    async def _answer(
        self, request: web.Request, conversation: str | None, tools: frozenset[str] | None
    ) -> Any:
        """Raises RpcError if the body is not JSON-RPC."""
        sender = MessageSender(headers=headers_of(request), conversation=conversation, tools=tools)
        return await self._methods.answers(await _body(request), sender)


async def _body(request: web.Request) -> bytes:
    try:
        return await read_body(request, READ_BYTES)
    except BodyRefused as error:
        raise RpcError(TOO_LARGE if error.status == 413 else PARSE_ERROR, f"the body {error}") from None


def _code_of(answer: Any) -> int | None:
    error = answer.get("error") if isinstance(answer, Mapping) else None
    return error["code"] if error else None


def _not_from_here(problem: str) -> web.Response:
    return _refusal(RpcError(INVALID_REQUEST, problem), 403)


def _refusal(error: RpcError, status: int) -> web.Response:
    return _json(error.body(None), status)


def _json(content: Any, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(content), status=status, content_type="application/json")


_ALIVE_S = 15.0
"""Clients consider a stream dead if nothing arrives for minutes."""


class Stream:
    """An open stream. A message of None ends it."""

    def __init__(self, request: web.Request) -> None:
        """Open a stream.

        The names in the address of `request` apply to all messages, which use another address.
        """
        self.conversation = request.match_info.get("conversation")
        self.tools = tools_in(request)
        self.waiting: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, message: Any) -> None:
        """Queue a message, or each message of a batch, because the transport has no batches."""
        for each in message if isinstance(message, list) else [message]:
            self.waiting.put_nowait(each)


class Streams:
    """The open streams, by an unguessable name."""

    def __init__(self) -> None:
        self._open: dict[str, Stream] = {}

    def get(self, name: str) -> Stream | None:
        return self._open.get(name)

    async def close(self, app: web.Application) -> None:
        """End all streams, because the server would wait for them."""
        del app
        for stream in self._open.values():
            stream.waiting.put_nowait(None)

    async def open(self, request: web.Request) -> web.StreamResponse:
        """Serve a stream for as long as the client is connected."""
        name, stream = token_hex(16), Stream(request)
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream", "cache-control": "no-store"}
        )
        await response.prepare(request)
        self._open[name] = stream
        try:
            await response.write(_event("endpoint", f"/messages/{name}"))
            await _send_all(stream, response)
        except ConnectionError:  # the client has disconnected
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
    """Return the tools that an address selects, as in `?tools=a,b`; None for all."""
    named = request.query.getall("tools", [])
    return frozenset(name.strip() for text in named for name in text.split(",") if name.strip()) or None


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
