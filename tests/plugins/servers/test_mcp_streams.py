"""The older form of MCP over HTTP: answers come as events of a stream that the client has opened."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp_mock import KEY, McpServer, mcp_server

from agentest.support.http.sse import Event, events


@asynccontextmanager
async def stream(server: McpServer, path: str) -> AsyncIterator[tuple[str, AsyncIterator[Event]]]:
    """The address for messages, and the events with the answers."""
    response = await server.client.send_direct("GET", server.origin + path, (), None)
    try:
        assert response.headers["content-type"] == "text/event-stream"
        coming = events(response.pieces())
        first = await anext(coming)
        assert first.name == "endpoint"
        yield first.data, coming
    finally:
        await response.aclose()


async def answer(coming: AsyncIterator[Event]) -> Any:
    event = await anext(coming)
    assert event.name == "message"
    return json.loads(event.data)


CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "slots"}}


@pytest.mark.parametrize(
    ("path", "named"),
    [("/sse", False), ("/mcp/sse", False), (f"/sse/{KEY}", True), (f"/mcp/{KEY}/sse", True)],
)
def test_answers_are_events(path: str, named: bool) -> None:
    """Answers to posts arrive on the stream; a conversation in the stream's path owns all its calls."""

    async def talk() -> None:
        async with mcp_server({"slots": ["09:00"]}) as server, stream(server, path) as (place, coming):
            response = await server.post(CALL, place)
            assert (response.status_code, response.text) == (202, "Accepted")
            found = await answer(coming)
            assert (found["id"], found["result"]["isError"]) == (1, False)
            assert bool(server.notes) is not named  # a call without a name makes the agent exclusive

    anyio.run(talk)


def test_wrong_messages_and_batches_are_events_too() -> None:
    """An answer to a batch comes as one event each, and what is not JSON is refused on the stream."""

    async def talk() -> None:
        async with mcp_server({"slots": []}) as server, stream(server, "/sse") as (place, coming):
            await server.post([CALL, {**CALL, "id": 2}], place)
            assert [(await answer(coming))["id"] for _ in range(2)] == [1, 2]
            await server.post(b"{", place)
            assert (await answer(coming))["error"]["code"] == -32700

    anyio.run(talk)


def test_an_address_may_name_tools() -> None:
    """An agent with several servers gets, at each address, only that server's tools."""

    async def listed(server: McpServer, path: str) -> Any:
        return (await server.post({**CALL, "method": "tools/list", "params": {}}, path)).json()

    async def talk() -> None:
        async with mcp_server({"slots": [], "book": {}, "pay": {}}) as server:
            some = await listed(server, f"/mcp/{KEY}?tools=pay,slots")
            assert [tool["name"] for tool in some["result"]["tools"]] == ["slots", "pay"]
            assert len((await listed(server, "/mcp?tools="))["result"]["tools"]) == 3
            wrong = (await listed(server, "/mcp?tools=slot"))["error"]
            assert "the address names the tool 'slot', which is not served; did you mean `slots`?" in str(
                wrong
            )
            async with stream(server, "/sse?tools=book") as (place, coming):
                await server.post({**CALL, "method": "tools/list", "params": {}}, place)
                assert [tool["name"] for tool in (await answer(coming))["result"]["tools"]] == ["book"]

    anyio.run(talk)


def test_a_stream_that_has_ended_takes_nothing() -> None:
    """A post to an ended stream gets advice to open another; the server's end closes open ones."""

    async def talk() -> None:
        async with mcp_server() as server:
            assert (await server.post(CALL, "/messages/none")).status_code == 404
            response = await server.client.send_direct("GET", server.origin + "/sse", (), None)
        assert b"endpoint" in b"".join([piece async for piece in response.pieces()])
        await response.aclose()

    anyio.run(talk)
