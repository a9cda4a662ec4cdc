"""All three servers of one agent, with a running conversation and the real API behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from openapi_documents import SHOP, written

from agentest import scenario
from agentest.agents.call_source_addresses import Addresses
from agentest.config.agents.companion_servers import McpMock, RestMock, Traces
from agentest.domain.transcript import ToolCall
from agentest.mocks.resolver import MockResolver
from agentest.plugins.servers.active_conversations import Registry, ServerGroup, ServerInputs
from agentest.plugins.servers.mcp.server import open_mcp_server
from agentest.plugins.servers.port import Identity
from agentest.plugins.servers.rest.server import open_rest_server
from agentest.plugins.servers.server_calls import MockServerCalls
from agentest.plugins.servers.traces.server import open_traces_server
from agentest.support.http.client import open_client


@dataclass
class Servers:
    """Their ports, the recorded calls, and the requests to the real API."""

    ports: dict[str, int]
    mocks: MockResolver
    group: ServerGroup
    notes: list[str]
    real: list[str] = field(default_factory=list)

    @property
    def calls(self) -> list[ToolCall]:
        return list(self.mocks.record.of_turn(0))

    async def send(self, server: str, line: str, *headers: str, body: bytes = b"") -> tuple[int, bool]:
        """Send a request unchanged. Returns the status, and whether the connection was closed then.

        Args:
            headers: `PORT` stands for the port of the server.
        """
        port = self.ports[server]
        head = "".join(f"{each}\r\n" for each in (line, *headers)).replace("PORT", str(port))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(head.encode("latin-1") + b"\r\n" + body)
            told = await reader.readuntil(b"\r\n\r\n")
            closed = b"connection: close" in told.lower() or told.startswith(b"HTTP/1.0")
            return int(told.split()[1]), closed
        finally:
            writer.close()


def broken_part(*_: object, **__: object) -> Any:
    raise KeyError("a planted bug")


class BrokenRegistry(Registry):
    async def answer(self, *_: Any, **__: Any) -> Any:
        broken_part()


@asynccontextmanager
async def three_servers(
    root: Path, mocks: dict[str, Any] | None = None, *, broken: bool = False, **settings: Any
) -> AsyncIterator[Servers]:
    """Servers with these settings. Calls without a mock go to a real API, which answers 200.

    Args:
        broken: what the servers hand calls to raises KeyError.
    """
    resolver = MockResolver(
        scenario("s", turns=["hello"]).tools,
        scenario="s",
        conversation_id="c-1",
        unmocked_tools="passthrough",
    )
    who = Identity(key="a" * 24, session_id=None, conversation_id="c-1", scenario="s", agent="shop")
    group, notes = ServerGroup(("shop",), Addresses(), exclusive=True), list[str]()
    registry = (BrokenRegistry if broken else Registry)((group,), notes.append)
    served = MockServerCalls(who, resolver)
    real: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        real.append(f"{request.method} {request.path_qs} {request.headers.get('authorization', '')}".strip())
        return web.json_response({"real": True})

    async with AsyncExitStack() as stack:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        upstream = f"http://127.0.0.1:{runner.addresses[0][1]}"
        opening = ServerInputs(
            registry=registry,
            group=group,
            tools=resolver.specs(),
            only_way=False,
            passthrough=True,
            root=root,
            outputs=root / "outputs",
            client=await stack.enter_async_context(open_client()),
            stack=stack,
            on_note=notes.append,
            redact=str,
        )
        rest = RestMock(openapi=str(written(root, SHOP)), upstream=upstream, **settings)
        urls = {
            "mcp": await open_mcp_server(McpMock(**settings), opening),
            "rest": await open_rest_server(rest, opening),
            "otlp": await open_traces_server(Traces(**settings), opening),
        }
        await stack.enter_async_context(registry.under_way(who, served))
        ports = {name: int(url.split(":")[2].partition("/")[0]) for name, url in urls.items()}
        yield Servers(ports, resolver, group, notes, real)
