"""Real MCP servers of tests: over HTTP with sessions, streams and pages, and as a program."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from http_agents import served, stream
from mcp_answers import BOOKING, SLOTS, result_of


@dataclass(slots=True)
class RealServer:
    """An HTTP server that requires its session id, and answers with streams of events."""

    pages: Sequence[Sequence[Any]] = ((BOOKING,), (SLOTS,))
    forgets: int = 0
    """How many requests are refused as if of an old session."""
    sessions: int = 0
    ended: int = 0
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Method and headers of each message."""
    answered: list[Any] = field(default_factory=list)
    """What it was answered to its own requests."""
    url: str = ""
    elicits: dict[str, Any] | None = None
    """The schema of what it asks the user during calls of tools."""

    async def post(self, request: web.Request) -> web.StreamResponse:
        message = await request.json()
        self.seen.append((message.get("method", ""), {k.lower(): v for k, v in request.headers.items()}))
        if "method" not in message:
            self.answered.append(message)
        elif message["method"] == "initialize":
            self.sessions += 1
            return web.json_response(
                result_of(message, self.pages), headers={"Mcp-Session-Id": f"s{self.sessions}"}
            )
        elif request.headers.get("Mcp-Session-Id") != f"s{self.sessions}":
            return web.Response(status=400)
        elif self.forgets and "id" in message:
            self.forgets -= 1
            return web.Response(status=404)
        if "id" not in message or "method" not in message:
            return web.Response(status=202)
        return await self._streamed(request, message)

    async def _streamed(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        """The answer, after a notification and two requests of the server."""
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
        asked: list[Any] = [
            {"jsonrpc": "2.0", "id": 99, "method": method} for method in ("ping", "roots/list")
        ]
        if self.elicits is not None and message["method"] == "tools/call":
            params = {"message": "Really?", "requestedSchema": self.elicits}
            asked.append({"jsonrpc": "2.0", "id": 98, "method": "elicitation/create", "params": params})
        messages = [note, *asked, result_of(message, self.pages)]
        return await stream(request, [f"event: message\ndata: {json.dumps(each)}\n\n" for each in messages])

    async def delete(self, request: web.Request) -> web.Response:
        self.ended += request.headers.get("Mcp-Session-Id") == f"s{self.sessions}"
        return web.Response()


@asynccontextmanager
async def real_server(server: RealServer | None = None) -> AsyncIterator[RealServer]:
    server = server or RealServer()
    async with served({"POST /mcp": server.post, "DELETE /mcp": server.delete}) as url:
        server.url = f"{url}/mcp"
        yield server


ELICITING = """
import json, sys
sys.path.insert(0, {path!r})
from mcp_answers import result_of
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "tools/call":
        ask = {{"jsonrpc": "2.0", "id": "e", "method": "elicitation/create", "params": {{"message": "?"}}}}
        print(json.dumps(ask), flush=True)
        reply = json.loads(sys.stdin.readline())
        content = [{{"type": "text", "text": str(reply.get("result", {{}}).get("action"))}}]
        answer = {{"jsonrpc": "2.0", "id": message["id"], "result": {{"content": content}}}}
        print(json.dumps(answer), flush=True)
    elif "id" in message and "method" in message:
        print(json.dumps(result_of(message, {pages!r})), flush=True)
"""
PROGRAM = """
import json, sys
sys.path.insert(0, {path!r})
from mcp_answers import result_of
print("listening on standard input", flush=True)
print("a word of the log", file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "tools/call" and message["params"]["name"] == "die":
        sys.exit(3)
    if "id" in message and "method" in message:
        ask = {{"jsonrpc": "2.0", "id": "p", "method": "ping"}}
        print(json.dumps(ask), json.dumps(result_of(message, {pages!r})), sep="\\n", flush=True)
"""


def program(pages: Sequence[Sequence[Any]] = ((BOOKING,), (SLOTS,)), text: str = PROGRAM) -> list[str]:
    """The command of a stdio server, which also prints other output."""
    return [sys.executable, "-S", "-c", text.format(path=str(Path(__file__).parent), pages=pages)]
