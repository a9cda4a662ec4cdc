"""The MCP server over HTTP: streamable HTTP without sessions, and the older form with a stream of events.

Which conversation a call is of is never a matter of the connection: sessions are shared, opened for each
call, or gone, as clients like.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from agentest.config.agents.mock_servers import McpMock
from agentest.mock_servers.mcp.jsonrpc import INVALID_REQUEST, PARSE_ERROR, TOO_LARGE, RpcError
from agentest.mock_servers.mcp.methods import UNSUPPORTED_VERSION, Methods, Sender
from agentest.mock_servers.mcp.opening import opened_methods
from agentest.mock_servers.mcp.streams import Streams, tools_in
from agentest.mock_servers.opening import Opening
from agentest.mock_servers.web import headers_of, listen
from agentest.support.http.incoming import BodyRefused, read_body

PATH = "/mcp"
READ_BYTES = 64_000_000
"""What is read of a body: more than is taken, so that the answer can name the request that was too large."""
_REFUSED = frozenset({PARSE_ERROR, INVALID_REQUEST, UNSUPPORTED_VERSION})
"""Errors that are told with status 400, too."""


async def open_mcp_server(settings: McpMock, opening: Opening) -> str:
    """Serve the tools until the run ends. Returns the server's URL. Raises ConfigError."""
    server = _Server(await opened_methods(settings, opening))
    app = web.Application()
    for place in (PATH, f"{PATH}/", f"{PATH}/{{conversation}}"):
        app.router.add_post(place, server.post)
        app.router.add_delete(place, _no_session)
    for place in ("/sse", "/sse/{conversation}", f"{PATH}/sse", f"{PATH}/{{conversation}}/sse"):
        app.router.add_get(place, server.streams.open)
    app.router.add_post("/messages/{stream}", server.post_to_stream)
    app.on_shutdown.append(server.streams.close)
    place = opening.place("mcp_mock")
    origin = await listen(app, settings, place, opening.stack, opening.on_note, _not_from_here)
    return origin + PATH


async def _no_session(request: web.Request) -> web.Response:
    del request  # clients end their session by it, and there is none
    return web.Response()


class _Server:
    def __init__(self, methods: Methods) -> None:
        self._methods = methods
        self.streams = Streams()

    async def post(self, request: web.Request) -> web.Response:
        """Streamable HTTP: the answer is that of the request."""
        named = request.match_info.get("conversation")
        try:
            answer = await self._answer(request, None if named == "sse" else named, tools_in(request))
        except RpcError as error:
            return _refusal(error, 413 if error.code == TOO_LARGE else 400)
        if answer is None:
            return web.Response(status=202)
        return _json(answer, 400 if _code_of(answer) in _REFUSED else 200)

    async def post_to_stream(self, request: web.Request) -> web.Response:
        """The older form: the answer is an event of the stream."""
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
        """Raises RpcError for what is no JSON-RPC."""
        sender = Sender(headers=headers_of(request), conversation=conversation, tools=tools)
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
