"""An MCP server (streamable HTTP, without sessions) whose tools are answered by mocks."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from agentest.config.agents.mock_servers import McpMock
from agentest.support.json_text import json_text
from agentest.tool_servers.mcp.callers import ANSWERED, call_id_of, meta_of, runs_tools, told
from agentest.tool_servers.names import Names, names_of
from agentest.tool_servers.opening import Opening
from agentest.tool_servers.port import How, ServedAnswer, ServedCall
from agentest.tool_servers.web import MAX_BODY_BYTES, listen
from agentest.version import __version__

_PATH = "/mcp"
_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_NO_SUCH_METHOD = -32601


async def open_mcp_server(settings: McpMock, opening: Opening) -> str:
    """Serve the tools until the run ends. Returns the server's URL. Raises ConfigError."""
    server = _Server(opening)
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post(_PATH, server.post)
    app.router.add_post(_PATH + "/{conversation}", server.post)
    origin = await listen(app, settings.port, opening.place("mcp_mock"), opening.stack)
    return origin + _PATH


class _Server:
    def __init__(self, opening: Opening) -> None:
        self._opening = opening

    async def post(self, request: web.Request) -> web.Response:
        message = json.loads(await request.read())
        if "id" not in message:
            await self._note(request, message.get("method"), message.get("params") or {})
            return web.Response(status=202)
        answer = await self._answer(request, message.get("method"), message.get("params") or {})
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], **answer})

    async def _answer(self, request: web.Request, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                wanted = params.get("protocolVersion")
                version = wanted if wanted in _VERSIONS else _VERSIONS[-1]
                info = {"name": "agentest", "version": __version__}
                capabilities = {"tools": {"listChanged": False}}
                told = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
                return {"result": told}
            case "ping":
                return {"result": {}}
            case "tools/list":
                return {"result": {"tools": self._tools()}}
            case "tools/call":
                return {"result": await self._call(request, params)}
        return {"error": {"code": _NO_SUCH_METHOD, "message": f"there is no method {method!r}"}}

    def _tools(self) -> list[dict[str, Any]]:
        return [
            {"name": tool.name, "description": tool.description, "inputSchema": dict(tool.parameters)}
            for tool in self._opening.tools
        ]

    async def _call(self, request: web.Request, params: dict[str, Any]) -> dict[str, Any]:
        meta = meta_of(params)
        call = ServedCall(
            tool=params["name"], arguments=params.get("arguments") or {}, call_id=call_id_of(meta)
        )
        names, runs = _names(request, params), runs_tools(meta)
        answer = await self._opening.registry.answer(self._opening.group, names, call, caller_runs=runs)
        return _written(answer) | (told(answer) if runs else {})

    async def _note(self, request: web.Request, method: Any, params: dict[str, Any]) -> None:
        """Take what a caller tells of the real tool that it has run (`mcp.callers`)."""
        if method == ANSWERED and isinstance(number := params.get("number"), int):
            names, failed = _names(request, params), params.get("failed") is True
            await self._opening.registry.answered(
                self._opening.group, names, number, params.get("result"), failed=failed
            )


def _names(request: web.Request, params: dict[str, Any]) -> Names:
    headers = {name.lower(): value for name, value in request.headers.items()}
    return names_of(headers, request.match_info.get("conversation"), meta_of(params))


def _written(answer: ServedAnswer) -> dict[str, Any]:
    answered = answer.how is How.ANSWERED
    result = answer.result
    text = (result if isinstance(result, str) else json_text(result)) if answered else answer.message
    return {"content": [{"type": "text", "text": text}], "isError": not answered}
