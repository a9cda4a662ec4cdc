"""`agentest mock-server tools` and `stdio`: the tools of a real MCP server, and the mocks as a program."""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_answers import BOOKING, SLOTS
from mcp_mock import KEY, McpServer, mcp_server
from project import Project
from real_mcp import program

from agentest.plugins.servers.command import serve

CHANGED = {
    **BOOKING,
    "inputSchema": {
        "type": "object",
        "properties": {"date": {"type": "string"}, "party_size": {"type": "integer"}},
        "required": ["date", "party_size"],
    },
}


def configured(tmp_path: Path, *tools: Any, **settings: Any) -> Project:
    project = Project(tmp_path)
    mock = {"upstream": program([tools]), "tools": "tools.json", **settings}
    server = {"command": "true", "ready": "tcp://127.0.0.1:9"}
    agent = {"endpoint": "http://127.0.0.1:9/v1", "server": server, "mcpMock": mock}
    project.config("http://127.0.0.1:9/v1", agent=agent)
    return project


def test_tools_are_stored_and_compared(tmp_path: Path) -> None:
    """The command writes the file, keeps it if nothing changed, and prints changes; --check reports them by
    exit status without writing."""
    project = configured(tmp_path, SLOTS, BOOKING)
    file = tmp_path / "tools.json"
    first = project.agentest("mock-server", "tools", "--check")
    assert (first.returncode, file.exists()) == (2, False)
    assert "mcp_mock.tools of agent 'agent': tools.json is missing: run" in first.stderr
    written = project.agentest("mock-server", "tools")
    assert written.returncode == 0, written.stderr
    assert "tools.json: 2 tools of the real MCP server (command " in written.stdout
    assert json.loads(file.read_text()) == {"tools": [BOOKING, SLOTS]}
    same = project.agentest("mock-server", "tools", "--check", "--agent", "agent")
    assert (same.returncode, same.stdout.strip().rpartition(", ")[2]) == (0, "as recorded")

    project = configured(tmp_path, CHANGED)
    before = file.read_text()
    changed = project.agentest("mock-server", "tools", "--check")
    assert (changed.returncode, file.read_text()) == (1, before)
    assert changed.stdout.splitlines()[1:] == [
        "  the real server's `create_booking` has a new `inputSchema.properties.party_size`: "
        '{"type": "integer"}',
        "  the real server's `create_booking` has another `inputSchema.required`: "
        '["date", "party_size"], recorded as ["date"]',
        "  the real server's `slots` is gone",
        "agentest mock-server tools updates the file",
    ]
    assert project.agentest("mock-server", "tools").returncode == 0
    assert json.loads(file.read_text()) == {"tools": [CHANGED]}


@pytest.mark.parametrize(
    ("settings", "words", "problem"),
    [
        ({"upstream": None}, (), "no agent has a real MCP server in its settings: write mcp_mock: {upstream"),
        ({"tools": None}, (), "mcp_mock of agent 'agent' does not say where its tools are defined"),
        ({}, ("--agent", "shop"), "there is no agent 'shop'"),
        ({"upstream": "http://127.0.0.1:9/mcp"}, (), "cannot be reached: connection refused"),
        ({"upstreamHeaders": {"a": "b"}}, (), "`upstream_headers` go with an `upstream` that is a URL"),
        ({"upstrem": "x"}, (), "did you mean `upstream`?"),
    ],
    ids=["no server", "no file", "no agent", "nobody", "headers", "unknown key"],
)
def test_what_cannot_be_asked(settings: Any, words: Any, problem: str, tmp_path: Path) -> None:
    """One message that names the key and the next step, and exit status 2."""
    ended = configured(tmp_path, SLOTS, **settings).agentest("mock-server", "tools", *words)
    assert ended.returncode == 2
    assert problem in ended.stderr


def test_a_program_without_an_address_says_so(tmp_path: Path) -> None:
    """If an agent does not pass the address on, the program says what is missing and exits."""
    project = Project(tmp_path)
    ended = project.agentest("mock-server", "stdio")
    assert ended.returncode == 2
    assert "AGENTEST_MCP_URL is not set" in ended.stderr
    wrong = project.agentest("mock-server", "stdio", "localhost:80")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    problem = wrong.stderr.strip()
    assert "is not the URL of a mock server" in problem


def lines(*messages: Any) -> io.BytesIO:
    return io.BytesIO(b"".join(json.dumps(message).encode() + b"\n" for message in messages))


def request(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def answers(out: io.BytesIO) -> dict[Any, Any]:
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    return {answer["id"]: answer for answer in found}


def test_lines_are_passed_on_with_their_conversation() -> None:
    """Each message is posted and its answer printed; the trace in the environment names the conversation."""
    out = io.BytesIO()

    async def talk() -> McpServer:
        async with mcp_server({"slots": ["09:00"]}) as server:
            told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            call = request(2, "tools/call", name="slots")
            said = lines(request(1, "initialize", protocolVersion="2025-06-18"), told, call)
            environ = {"BAGGAGE": f"agentest.conversation={KEY}", "TRACEPARENT": "none"}
            await anyio.to_thread.run_sync(serve, server.url, environ, said, out)
            return server

    server = anyio.run(talk)
    found = answers(out)
    assert found.keys() == {1, 2}
    assert found[2]["result"]["content"][0]["text"] == '["09:00"]'
    assert (server.calls, server.notes) == ([("slots", {}, ["09:00"])], [])


def test_a_missing_mock_server_is_an_error_for_requests(capsys: pytest.CaptureFixture[str]) -> None:
    """Requests get an error, and notifications nothing."""
    out = io.BytesIO()
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    serve("http://127.0.0.1:9/mcp", {}, lines(request(1, "ping"), told), out)
    assert answers(out)[1]["error"]["message"].startswith(
        "the mock server at http://127.0.0.1:9/mcp cannot be"
    )
    assert "cannot be reached" in capsys.readouterr().err


def test_what_is_no_mock_server_is_told() -> None:
    """A wrong address, like that of a page, gives the client an error and no broken line."""
    out = io.BytesIO()

    async def talk() -> None:
        async with mcp_server() as server:
            await anyio.to_thread.run_sync(serve, server.origin, {}, lines(request(1, "ping")), out)

    anyio.run(talk)
    assert "is not a mock server: it answered b'404: Not Found'" in answers(out)[1]["error"]["message"]


class _Agent(BaseHTTPRequestHandler):
    """Calls tools at the address that it is sent: `slots; pay` calls two."""

    def do_POST(self) -> None:
        import urllib.request

        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = []
        for name in body["message"].split("; "):
            message = json.dumps(request(1, "tools/call", name=name, arguments={})).encode()
            with urllib.request.urlopen(body["mcp"], message) as answer:
                said.append(json.load(answer)["result"]["content"][0]["text"])
        content = json.dumps({"reply": ", ".join(said)}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the tests' own output is read."""


def test_a_run_with_recorded_tools(tmp_path: Path) -> None:
    """Conversations with recorded tools: what fits passes, a banned call fails, a wrong mock is errored. A
    mock that the list lacks is refused before the first conversation."""
    promise = {"type": "object", "properties": {"free": {"type": "array"}}, "required": ["free"]}
    recorded = [{**SLOTS, "outputSchema": promise}, {"name": "pay", "inputSchema": {"type": "object"}}]
    (tmp_path / "tools.json").write_text(json.dumps(recorded))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Agent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    project = Project(tmp_path)
    endpoint = f"http://127.0.0.1:{server.server_port}/chat"
    body = {"message": "{{message}}", "mcp": "{{mcp_url}}"}
    agent = {"type": "http", "endpoint": endpoint, "body": body, "reply": "reply"}
    project.config(endpoint, agent={**agent, "mcp_mock": {"tools": "tools.json"}})
    project.scenario(
        """
for n, free in enumerate([["9"], ["9"], "nine"]):
    scenario(f"s{n}", turns=["slots; pay" if n == 1 else "slots"],
             tools={"slots": {"free": free}, "pay": {"ok": True}},
             trajectory={"forbidden": ["pay"]})
"""
    )
    try:
        ended = project.run()
        results = project.results
        project.scenario('scenario("typo", turns=["slots"], tools={"slotz": 1})')
        refused = project.run()
    finally:
        server.shutdown()
        server.server_close()
    assert refused.returncode == 2
    assert "tool 'slotz' has a mock of scenario 'typo' (a.sim.py:2)" in refused.stderr
    assert "mcp_mock.tools (tools.json) of agent 'agent' does not list it" in refused.stderr
    assert "Did you mean 'slots'?" in refused.stderr
    assert project.results == results, "no conversation was begun"
    statuses = {name: project.scenario_result(name)["status"] for name in ("s0", "s1", "s2")}
    assert statuses == {"s0": "passed", "s1": "failed", "s2": "errored"}, ended.stdout
    assert "`free`: 'nine' is not of type 'array'" in ended.stdout
    calls = project.scenario_result("s1")["conversations"][0]["turns"][0]["toolCalls"]
    assert [(call["name"], call["seenBy"], call["mocked"]) for call in calls] == [
        ("slots", "mock-server", True),
        ("pay", "mock-server", True),
    ]
