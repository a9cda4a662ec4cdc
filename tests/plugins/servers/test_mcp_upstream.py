"""The real MCP server behind the mock server: listed once, compared, and called for unmocked tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from http_agents import served, stream
from mcp_answers import ANSWERS, BOOKING, SLOTS
from mcp_mock import mcp_server
from real_mcp import ELICITING, RealServer, program, real_server

from agentest.agents.port import TurnContext
from agentest.conversation.turn_progress import TurnProgress
from agentest.domain.tool_visibility import Approval
from agentest.plugins.servers.mcp.real_server import differences
from agentest.plugins.servers.mcp.upstream import HttpTransport, Upstream, UpstreamError
from agentest.support.errors import ConfigError, UnmockedToolError
from agentest.support.http.client import open_client


def test_the_tools_are_listed_once_and_kept(tmp_path: Path) -> None:
    """All pages go into the file, sorted; the next run reads it, and the real server is not needed."""

    async def runs() -> list[Any]:
        async with real_server() as real:
            settings = {"upstream": real.url, "upstream_headers": {"Authorization": "Bearer t0ken"}}
            async with mcp_server(root=tmp_path, tools="real/tools.json", **settings) as server:
                assert "real/tools.json was not there: the tools of the real MCP server" in server.notes[0]
            assert (real.sessions, real.ended) == (1, 1)
            methods = [method for method, _ in real.seen if method]
            listings = ["tools/list", "tools/list"]
            assert methods == ["initialize", "notifications/initialized", *listings]
            assert all(headers["authorization"] == "Bearer t0ken" for _, headers in real.seen)
            assert real.seen[1][1]["mcp-protocol-version"] == "2025-03-26"
            assert [each.get("result", each.get("error", {}).get("code")) for each in real.answered] == [
                {},
                -32601,
            ] * 2
        async with mcp_server(root=tmp_path, tools="real/tools.json", upstream=real.url) as server:
            return list((await server.ask("tools/list"))["tools"])

    assert anyio.run(runs) == [BOOKING, SLOTS]
    kept = (tmp_path / "real/tools.json").read_text()
    assert kept == json.dumps({"tools": [BOOKING, SLOTS]}, indent=2) + "\n"


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_unmocked_calls_reach_the_real_tool(way: str) -> None:
    """Under passthrough the real server's result is passed on as it is, and recorded as not mocked."""

    async def calls() -> None:
        async with real_server() as real:
            upstream: Any = real.url if way == "http" else program()
            async with mcp_server({"slots": ["mine"]}, unmocked="passthrough", upstream=upstream) as server:
                assert (await server.call("slots"))["content"][0]["text"] == '["mine"]'
                for name in ("create_booking", "photo", "fail"):
                    assert await server.call(name, {"date": "x"}) == ANSWERS[name], name
                missing = await server.call("burn")
                assert missing == {"content": [{"type": "text", "text": "no such tool"}], "isError": True}
                recorded = [(c.name, c.mocked, c.result) for c in server.mocks.record.of_turn(0)]
                assert recorded[:4] == [
                    ("slots", True, ["mine"]),
                    ("create_booking", False, {"id": 1}),
                    ("photo", False, ANSWERS["photo"]["content"]),
                    ("fail", False, "no way"),
                ]
                assert server.mocks.record.of_turn(0)[3].error == '"no way"'

    anyio.run(calls)


def _approving(approve: Any) -> tuple[TurnProgress, TurnContext]:
    return TurnProgress(0, "hello"), TurnContext("c-1", "s", 0, session_id="s-1", approve=approve)


@pytest.mark.parametrize(
    ("approve", "answer", "approval"),
    [
        (True, {"action": "accept", "content": {"sure": True, "how": "card", "note": "-"}}, Approval.GRANTED),
        ({"create_booking": False, "slots": True}, {"action": "decline"}, Approval.DENIED),
        ({"slots": True}, None, None),
        (None, None, None),
    ],
)
def test_the_scenario_answers_what_a_real_tool_asks(approve: Any, answer: Any, approval: Any) -> None:
    properties = {
        "sure": {"type": "boolean"},
        "how": {"type": "string", "enum": ["card", "cash"]},
        "note": {"type": "string", "default": "-"},
        "name": {"type": "string"},
    }

    async def call() -> None:
        async with (
            real_server(RealServer(elicits={"properties": properties})) as real,
            mcp_server(unmocked="passthrough", upstream=real.url) as server,
            server.served.request(*_approving(approve)),
        ):
            await server.call("create_booking", {"date": "x"})
            found = next(each for each in real.answered if each["id"] == 98)
            assert found.get("result") == answer
            assert ("error" in found) is (answer is None)
            assert [call.approval for call in server.mocks.record.of_turn(0)] == [approval]

    anyio.run(call)


def test_a_program_that_asks_is_answered() -> None:
    async def call() -> None:
        upstream = program(text=ELICITING)
        async with (
            mcp_server(unmocked="passthrough", upstream=upstream) as server,
            server.served.request(*_approving(True)),
        ):
            assert (await server.call("slots"))["content"][0]["text"] == "accept"
            assert [call.approval for call in server.mocks.record.of_turn(0)] == [Approval.GRANTED]

    anyio.run(call)


def test_without_passthrough_the_real_tool_never_runs() -> None:
    """By default an unmocked call ends the conversation, whatever real server there is."""

    async def call() -> None:
        async with real_server() as real, mcp_server(upstream=real.url) as server:
            assert (await server.call("slots"))["isError"]
            with pytest.raises(UnmockedToolError):
                await server.served.check()
            assert "tools/call" not in [method for method, _ in real.seen]

    anyio.run(call)


def test_a_session_that_was_lost_is_begun_anew() -> None:
    """A restarted server gets a new session; if it always forgets, that is an error."""

    async def call() -> None:
        async with (
            real_server() as real,
            mcp_server(unmocked="passthrough", upstream=real.url) as server,
        ):
            real.forgets = 1
            assert not (await server.call("slots")).get("isError")
            assert real.sessions == 2
            real.forgets = 9
            result = await server.call("slots")
            assert "forgets each session" in result["content"][0]["text"]

    anyio.run(call)


def test_a_dead_program_is_reported_with_its_log() -> None:
    """Waiting calls get an error with its exit status and last log lines."""

    async def call() -> None:
        async with mcp_server(unmocked="passthrough", upstream=program()) as server:
            for _ in range(2):
                text = (await server.call("die"))["content"][0]["text"]
                assert "ended with status 3; its log ends with: a word of the log" in text
            assert server.mocks.record.of_turn(0)[0].error

    anyio.run(call)


@pytest.mark.parametrize(
    ("upstream", "problem"),
    [
        ("http://127.0.0.1:9/mcp", "cannot be reached: connection refused"),
        (["no-such-program-13"], "cannot be started"),
        ("python -c 'x", "is not a command"),
        (["python", "-c", "raise SystemExit('no key')"], "ended with status 1; its log ends with: no key"),
    ],
)
def test_a_real_server_that_is_not_there(upstream: Any, problem: str) -> None:
    """The run does not begin: the key, what is wrong, and what to do."""

    async def open_it() -> None:
        async with mcp_server(upstream=upstream):
            pass

    with pytest.raises(ConfigError) as error:
        anyio.run(open_it)
    assert str(error.value).startswith("mcp_mock.upstream of agent 'shop': ")
    assert problem in str(error.value)


async def _not_found(_: web.Request) -> web.Response:
    return web.Response(status=404)


async def _unknown(_: web.Request) -> web.Response:
    return web.Response(status=401)


async def _moved(_: web.Request) -> web.Response:
    return web.Response(status=307, headers={"location": "/mcp/"})


async def _broken(_: web.Request) -> web.Response:
    return web.Response(status=500)


async def _page(_: web.Request) -> web.Response:
    return web.Response(text="<html>hello")


async def _refuses(_: web.Request) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "go away"}})


async def _says_nothing(_: web.Request) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": 1, "result": {}})


async def _cut(request: web.Request) -> web.StreamResponse:
    return await stream(request, [": hello\n\n"])


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (_not_found, "has no MCP server: it answered 404"),
        (_unknown, "wants credentials. Write them into the agent's `mcp_mock`: upstream_headers"),
        (_moved, "answered 307: it is at /mcp/; write that URL"),
        (_broken, "answered 500"),
        (_page, "answered no MCP message: '<html>hello'"),
        (_refuses, "answered `initialize` with: go away"),
        (_says_nothing, "answered `initialize` with no `protocolVersion`"),
        (_cut, "its stream ended without the answer"),
    ],
    ids=["404", "401", "307", "500", "page", "refuses", "nothing", "cut"],
)
def test_other_servers(answer: Any, problem: str) -> None:
    """Each wrong answer is described, without the credentials of the address."""

    async def ask() -> None:
        async with served({"POST /mcp": answer}) as url, open_client() as client:
            place = url.replace("://", "://me:s3cret@") + "/mcp"
            await Upstream(HttpTransport(client, place, {})).list_tools()

    with pytest.raises(UpstreamError) as error:
        anyio.run(ask)
    assert problem in str(error.value)
    assert "s3cret" not in str(error.value)


def test_invalid_tools_are_refused() -> None:
    """A tool without a schema is reported as an error of the real server."""

    async def open_it() -> None:
        async with real_server(RealServer(pages=[[{"name": "a"}]])) as real, mcp_server(upstream=real.url):
            pass

    with pytest.raises(ConfigError, match="lists tool 'a' has no `inputSchema`"):
        anyio.run(open_it)


def booking(properties: Any, required: Any = (), **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"name": "book", "inputSchema": schema, **more}


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({}, {}, []),
        ({"properties": {"a": TEXT, "b": TEXT}}, {"properties": {"b": TEXT, "a": TEXT}}, []),
        (
            {},
            {"properties": {"size": NUMBER}, "required": ["size"]},
            [
                'a new `inputSchema.properties.size`: {"type": "integer"}',
                'another `inputSchema.required`: ["size"], recorded as []',
            ],
        ),
        ({"required": ["a", "b"]}, {"required": ["b", "a"]}, []),
        ({"properties": {"size": NUMBER}}, {}, ["no `inputSchema.properties.size` any more"]),
        (
            {"properties": {"a": TEXT}},
            {"properties": {"a": {**NUMBER, "enum": [1]}}},
            [
                'another `inputSchema.properties.a.type`: "integer", recorded as "string"',
                "a new `inputSchema.properties.a.enum`: [1]",
            ],
        ),
        ({}, {"description": "Books."}, ['a new `description`: "Books."']),
        ({"description": "Books."}, {}, ["no `description` any more"]),
        (
            {"outputSchema": TEXT},
            {"outputSchema": NUMBER},
            ['another `outputSchema.type`: "integer", recorded as "string"'],
        ),
    ],
)
def test_differences_are_described(old: Any, new: Any, told: list[str]) -> None:
    """They have the place of each change, and the values there."""
    tools = [booking(**{"properties": {}, **each}) for each in (old, new)]
    assert differences(tools[:1], tools[1:]) == [f"`book` has {line}" for line in told]


def test_tools_come_and_go() -> None:
    """Removed and new tools are named, sorted by name."""
    assert differences([booking({}), SLOTS], [BOOKING, SLOTS]) == [
        "`book` is gone",
        "`create_booking` is new",
    ]
