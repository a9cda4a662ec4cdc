"""An exception of our own servers is never the agent's failure."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from three_servers import three_servers

MCP = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "stock", "arguments": {}}}


@pytest.mark.parametrize(
    ("server", "line", "body"),
    [
        ("mcp", "POST /mcp HTTP/1.1", MCP),
        ("rest", "GET /orders HTTP/1.1", {}),
        ("rest", "POST /nowhere HTTP/1.1", {}),
    ],
)
def test_an_exception_of_a_server_ends_the_conversation(
    tmp_path: Path, server: str, line: str, body: object
) -> None:
    """The conversation learns of it with its traceback, and so does the user."""

    async def go() -> None:
        async with three_servers(tmp_path, broken=True) as servers:
            content = json.dumps(body).encode()
            kind = "content-type: application/json"
            headers = ("host: 127.0.0.1:PORT", kind, f"content-length: {len(content)}")
            status, _ = await servers.send(server, line, *headers, body=content)
            assert status == 500
            fault = str(servers.mocks.fault)
            assert "internal error: KeyError: 'a planted bug' (at " in fault
            assert "in broken_part, called at" in fault
            assert fault in servers.notes

    anyio.run(go)
