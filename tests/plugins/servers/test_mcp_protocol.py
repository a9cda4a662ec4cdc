"""The MCP mock server for clients: every message is answered as the protocol requires."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import pytest
from mcp_mock import KEY, McpServer, mcp_server

HEAD = {"jsonrpc": "2.0", "id": 1}
STATELESS = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}


def request(method: Any, params: Any = None, **more: Any) -> dict[str, Any]:
    return {**HEAD, "method": method, **({} if params is None else {"params": params}), **more}


def fits(answer: Any, expected: Any) -> bool:
    """Whether the answer has all that is expected of it, at any depth."""
    if isinstance(expected, dict):
        return isinstance(answer, dict) and all(fits(answer.get(k), v) for k, v in expected.items())
    return bool(answer == expected)


MESSAGES: dict[str, tuple[Any, int, Any]] = {
    **{
        f"initialize {version}": (
            request("initialize", {"protocolVersion": version}),
            200,
            {"result": {"protocolVersion": version, "serverInfo": {"name": "agentest"}}},
        )
        for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
    },
    "a version that nobody knows": (
        request("initialize", {"protocolVersion": "1999-01-01"}),
        200,
        {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}},
    ),
    "ping": (request("ping"), 200, {"id": 1, "result": {}}),
    "an id that is a text": (request("ping", id="a"), 200, {"id": "a", "result": {}}),
    "discover": (
        request("server/discover", {"_meta": STATELESS}),
        200,
        {"result": {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "capabilities": {}}},
    ),
    "a list without a session": (
        request("tools/list", {"_meta": STATELESS}),
        200,
        {"result": {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}},
    ),
    "a call without a session": (
        request("tools/call", {"_meta": STATELESS, "name": "slots"}),
        200,
        {"result": {"resultType": "complete", "isError": False}},
    ),
    "a stateless version that nobody knows": (
        request("tools/list", {"_meta": {"io.modelcontextprotocol/protocolVersion": "2099-01-01"}}),
        400,
        {"id": 1, "error": {"code": -32022, "data": {"requested": "2099-01-01"}}},
    ),
    "no prompts": (request("prompts/list"), 200, {"result": {"prompts": []}}),
    "no resources": (request("resources/list"), 200, {"result": {"resources": []}}),
    "no templates": (request("resources/templates/list"), 200, {"result": {"resourceTemplates": []}}),
    "an unknown method": (request("tools/burn"), 200, {"id": 1, "error": {"code": -32601}}),
    "a second page": (request("tools/list", {"cursor": "2"}), 200, {"error": {"code": -32602}}),
    "a call of nothing": (request("tools/call", {"arguments": {}}), 200, {"error": {"code": -32602}}),
    "parameters that are a list": (request("tools/call", [1]), 200, {"error": {"code": -32602}}),
    "no JSON": (b"{", 400, {"id": None, "error": {"code": -32700}}),
    "a number that is none": (b'{"id": NaN}', 400, {"id": None, "error": {"code": -32700}}),
    "no text": (b"\xff\xfe\x00", 400, {"id": None, "error": {"code": -32700}}),
    "nested without end": (b"[" * 200_000, 400, {"id": None, "error": {"code": -32700}}),
    "no message": (7, 400, {"id": None, "error": {"code": -32600}}),
    "a message without a method": ({"jsonrpc": "2.0", "id": 3}, 400, {"id": 3, "error": {"code": -32600}}),
    "a method that is a number": (request(5), 400, {"id": 1, "error": {"code": -32600}}),
    "an id that is null": (request("ping", id=None), 400, {"id": None, "error": {"code": -32600}}),
    "an id that is infinite": (
        b'{"id": 1e999, "method": "ping"}',
        400,
        {"id": None, "error": {"code": -32700}},
    ),
    "an empty batch": ([], 400, {"id": None, "error": {"code": -32600}}),
    "a notification": ({"jsonrpc": "2.0", "method": "notifications/initialized"}, 202, None),
    "an answer to what nobody asked": ({**HEAD, "result": {}}, 202, None),
    "a batch that would hold up everybody": ([1] * 1001, 400, {"id": None, "error": {"code": -32600}}),
    "a batch of notifications": ([{"jsonrpc": "2.0", "method": "notifications/cancelled"}], 202, None),
}


def test_every_message_has_its_answer() -> None:
    """Requests are answered, notifications are not, and others are refused with a reason."""

    async def all_of_them() -> None:
        async with mcp_server({"slots": ["09:00"]}) as server:
            for name, (body, status, expected) in MESSAGES.items():
                response = await server.post(body)
                assert response.status_code == status, name
                if expected is None:
                    assert response.content == b"", name
                else:
                    assert fits(response.json(), expected), (name, response.text)

    anyio.run(all_of_them)


def test_a_batch_is_answered_whole() -> None:
    """Each request of a batch has its answer, an invalid one an error, and a notification none."""

    async def batch() -> Any:
        async with mcp_server({"slots": ["09:00"]}) as server:
            told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            call = request("tools/call", {"name": "slots"}, id=2)
            return (await server.post([request("ping"), told, call, 5])).json()

    answers = anyio.run(batch)
    assert [answer["id"] for answer in answers] == [1, 2, None]
    assert answers[1]["result"]["content"] == [{"type": "text", "text": '["09:00"]'}]
    assert answers[2]["error"]["code"] == -32600


def test_an_invalid_origin_is_refused() -> None:
    """It does not count as this machine."""

    async def sent() -> int:
        async with mcp_server() as server:
            headers = {"origin": "http://[::1"}
            return (await server.post(b"{}", **headers)).status_code

    assert anyio.run(sent) == 403


def test_other_requests_than_messages() -> None:
    """Clients learn, with the expected statuses, that there are no streams and no sessions."""

    async def look(server: McpServer, method: str, path: str = "/mcp") -> int:
        response = await server.client.send_direct(method, server.origin + path, (), None)
        await response.aclose()
        return response.status_code

    async def all_of_them() -> None:
        async with mcp_server() as server:
            assert await look(server, "GET") == 405
            assert await look(server, "DELETE") == 200
            assert await look(server, "DELETE", f"/mcp/{KEY}") == 200
            assert await look(server, "GET", "/nothing") == 404
            for path in ("/mcp", "/mcp/", f"/mcp/{KEY}", "/mcp/sse"):  # clients that guess try them, too
                assert await server.ask("ping", path) == {}

    anyio.run(all_of_them)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example", 403),
        ("null", 403),
        ("http://localhost:5173", 200),
        ("http://127.0.0.1", 200),
        ("http://[::1]:80", 200),
    ],
)
def test_pages_from_elsewhere_are_refused(origin: str, status: int) -> None:
    """A page in a browser whose name was made to lead here calls no tool."""

    async def call() -> None:
        async with mcp_server({"slots": []}) as server:
            response = await server.post(request("tools/call", {"name": "slots"}), origin=origin)
            assert response.status_code == status
            assert len(server.calls) == (status == 200)

    anyio.run(call)


def test_a_request_that_is_too_large_is_answered() -> None:
    """Arguments of more than 10 MB are an error that the model reads, and the call is in the record."""

    async def call() -> None:
        async with mcp_server({"save": "saved"}) as server:
            result = await server.call("save", {"text": "x" * 10_500_000})
            assert result["isError"]
            text = result["content"][0]["text"]
            assert text == "invalid arguments: the request has 10.5 MB, more than 10 MB"
            (recorded,) = server.mocks.record.of_turn(0)
            assert recorded.invalid_arguments == "the request has 10.5 MB, more than 10 MB"
            assert len(str(recorded.args)) < 100

    anyio.run(call)


def test_a_conversation_is_named_by_the_path() -> None:
    """The address of a conversation is its own: a call at that of another one is refused, and reported."""

    async def call() -> None:
        async with mcp_server({"slots": ["09:00"]}) as server:
            assert not (await server.call("slots", path=f"/mcp/{KEY}"))["isError"]
            refused = await server.call("slots", path="/mcp/" + "f" * 24)
            assert refused["isError"]
            assert "not a conversation of this run" in refused["content"][0]["text"]
            assert len(server.calls) == 1
            assert list(server.registry.unclaimed.values()) == [1]

    anyio.run(call)


def test_many_calls_at_once() -> None:
    """Calls that come at once are all answered, each with its own arguments."""

    async def calls() -> None:
        async with mcp_server({"echo": lambda args: args["n"]}) as server:
            found: dict[int, Any] = {}

            async def one(number: int) -> None:
                found[number] = (await server.call("echo", {"n": number}))["content"][0]["text"]

            async with anyio.create_task_group() as tasks:
                for number in range(40):
                    tasks.start_soon(one, number)
            assert found == {number: str(number) for number in range(40)}

    anyio.run(calls)


def test_a_header_in_several_lines() -> None:
    """An extra baggage line of the client does not hide ours: the call names its conversation."""

    async def call() -> None:
        async with mcp_server({"slots": 3}) as server:
            lines = [("baggage", f"agentest.conversation={KEY}"), ("baggage", "tenant=a")]
            body = json.dumps(request("tools/call", {"name": "slots"}))
            async with httpx.AsyncClient() as client:
                answer = await client.post(server.url, content=body, headers=lines)
            assert answer.json()["result"]["content"][0]["text"] == "3"
            assert not server.registry.groups[0].admission.exclusive
            assert server.notes == []

    anyio.run(call)
