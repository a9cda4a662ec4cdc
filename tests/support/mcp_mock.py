"""An MCP mock server outside of a run, with one running conversation and a client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from agentest.agents.call_source_addresses import Addresses
from agentest.config.agents.companion_servers import McpMock
from agentest.mocks.resolver import MockResolver
from agentest.plugins.servers.active_conversations import Registry, ServerGroup, ServerInputs
from agentest.plugins.servers.mcp.server import open_mcp_server
from agentest.plugins.servers.port import Identity
from agentest.plugins.servers.server_calls import MockServerCalls
from agentest.scenarios.definition import scenario
from agentest.support.http.client import Client, open_client

KEY = "0123456789abcdef01234567"
"""The conversation under way."""


@dataclass(slots=True)
class McpServer:
    """A server, the recorded calls of its conversation, and the final notes for the user."""

    url: str
    client: Client
    mocks: MockResolver
    served: MockServerCalls
    registry: Registry
    notes: list[str] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return self.url.removesuffix("/mcp")

    async def post(self, body: Any, path: str = "/mcp", **headers: str) -> httpx.Response:
        """Post a body: bytes unchanged, anything else as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with httpx.AsyncClient(timeout=None, verify=False) as client:
            return await client.post(self.origin + path, content=content, headers=headers)

    async def ask(self, method: str, path: str = "/mcp", **params: Any) -> Any:
        """The result of a request. Raises AssertionError for an error."""
        message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        answer = (await self.post(message, path)).json()
        assert answer["id"] == 7
        assert "error" not in answer, answer
        return answer["result"]

    async def call(self, name: str, arguments: Any = None, path: str = "/mcp") -> Any:
        """The result of a tool call."""
        return await self.ask("tools/call", path, name=name, arguments=arguments)

    @property
    def calls(self) -> list[tuple[str, Any, Any]]:
        """Name, arguments and result of each call that was recorded."""
        return [(call.name, call.args, call.result) for call in self.mocks.record.of_turn(0)]


@asynccontextmanager
async def mcp_server(
    mocks: Mapping[str, Any] | None = None,
    /,
    *,
    root: Path = Path(),
    recorded: Sequence[Any] | None = None,
    unmocked: Literal["error", "passthrough"] = "error",
    only_way: bool = True,
    **settings: Any,
) -> AsyncIterator[McpServer]:
    """A server with the mocks of a conversation.

    Args:
        recorded: tools that are written into the file `tools` in `root`.
        only_way: whether mocks reach the tools by this server alone.
        settings: of `mcp_mock`.
    """
    if recorded is not None:
        (root / "tools.json").write_text(json.dumps(recorded), encoding="utf-8")
        settings["tools"] = "tools.json"
    resolver = MockResolver(
        scenario("s", turns=["hello"], tools=mocks or {}).tools,
        scenario="s",
        conversation_id="c-1",
        unmocked_tools=unmocked,
    )
    who = Identity(key=KEY, session_id=None, conversation_id="c-1", scenario="s", agent="shop")
    notes: list[str] = []
    group = ServerGroup(("shop",), Addresses(), exclusive=False)
    registry, served = Registry((group,), notes.append), MockServerCalls(who, resolver)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_client())
        opening = ServerInputs(
            registry=registry,
            group=group,
            tools=resolver.specs(),
            only_way=only_way,
            passthrough=unmocked == "passthrough",
            root=root,
            outputs=root / "outputs",
            client=client,
            stack=stack,
            on_note=notes.append,
            redact=str,
        )
        url = await open_mcp_server(McpMock(**settings), opening)
        await stack.enter_async_context(registry.under_way(who, served))
        yield McpServer(url, client, resolver, served, registry, notes)
