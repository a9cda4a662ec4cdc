"""Agents with their own tools next to a mock server: no ban passes because a call was invisible."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.request import Request, urlopen

import pytest
from jsonschema import validate
from project import Project, free_port

from agentest import scenario
from agentest.domain.results import ScenarioResult, Status
from agentest.domain.results.run import WarningCode
from agentest.testing import run_scenarios

SCHEMA = json.loads((Path(__file__).parents[3] / "agentest" / "schemas" / "results.schema.json").read_text())
HIDDEN = "calls of agent 'agent' cannot be seen"


class Shop:
    """An HTTP agent. Each word of a message is a tool of the MCP server, or `own:refund` of its own;
    `connect` only lists the server's tools, and `hello` does nothing."""

    def __init__(self, wired: str | None = None) -> None:
        """`wired`: the real tool that it always runs."""
        self.wired = wired
        self.refunds = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def settings(self, **keys: Any) -> dict[str, Any]:
        """The agent in a configuration."""
        return {
            "type": "http",
            "endpoint": f"http://127.0.0.1:{self._server.server_address[1]}/",
            "body": {"message": "{{message}}", "mcp": "{{mcp_url}}"},
            "reply": "reply",
            "mcp_mock": True,
            **keys,
        }

    def reply(self, message: str, mcp: str) -> str:
        """Call the tool of each word."""
        for word in message.split() if self.wired is None else [f"own:{self.wired}"]:
            if word.startswith("own:"):
                self.refunds += 1
            elif word == "connect":
                _post(mcp, "tools/list", {})
            elif word != "hello":
                _post(mcp, "tools/call", {"name": word, "arguments": {}})
        return "Done."


def _post(url: str, method: str, params: dict[str, Any]) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    with urlopen(Request(url, json.dumps(message).encode(), headers)) as answer:
        answer.read()


def _handler_for(shop: Shop) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            reply = json.dumps({"reply": shop.reply(body["message"], body["mcp"])}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    listed = [{"name": name, "inputSchema": {"type": "object"}} for name in ("stock", "pay")]
    made.write("tools.json", json.dumps(listed))
    return made


LISTED = {"mcp_mock": {"tools": "tools.json"}}
TOOLS = "tools={'stock': 1, 'pay': 1}"
# What an own call could change → what is expected of the scenario, with and without the server's own list.
OPEN: dict[str, str] = {
    "a ban": '{"forbidden": ["refund"]}',
    "a glob": '{"forbidden": ["ref*"]}',
    "a limit": '{"max_calls_per_tool": {"refund": 0}}',
    "a limit of each tool": '{"max_calls_per_tool": 1}',
    "a limit of all": '{"max_calls": 3}',
    "strict": '{"expected": ["stock"]}',
    "unordered": '{"match_mode": "unordered", "expected": ["stock"]}',
    "within": '{"match_mode": "within", "expected": ["stock"]}',
    "writes": '{"match_mode": "unordered", "expected": [], "reads": ["stock"]}',
    "an expectation": '{"match_mode": "contains", "expected": ["stock", "refund"]}',
    "a least number": '{"min_calls": 2}',
    "an order": '{"never_after": ["stock", "refund"]}',
}
SETTLED: dict[str, tuple[str, str]] = {
    "a ban of a listed tool": ('{"forbidden": ["pay"]}', "passed"),
    "a limit of a listed tool": ('{"max_calls_per_tool": {"stock": 1}}', "passed"),
    "a call that was made": ('{"match_mode": "contains", "expected": ["stock"]}', "passed"),
    "in order": ('{"match_mode": "in_order", "expected": ["stock"]}', "passed"),
    "the first": ('{"match_mode": "contains", "expected": [call("stock", nth=1)]}', "passed"),
    "a call that was not made": ('{"match_mode": "contains", "expected": ["pay"]}', "failed"),
    "in order, not made": ('{"match_mode": "in_order", "expected": ["stock", "pay"]}', "failed"),
    "strict, not made": ('{"expected": ["stock", "pay"]}', "failed"),
    "a broken ban": ('{"forbidden": ["stock"]}', "failed"),
    "a broken limit": ('{"max_calls": 0}', "failed"),
    "strict, one too many": ('{"expected": []}', "failed"),
    "an order of listed tools": ('{"never_after": ["stock", "pay"]}', "passed"),
    "enough calls": ('{"min_calls": 1}', "passed"),
}
HEAD = "from agentest import call\n"
TOLD = {"tool_calls": "calls"}
"""Says that the agent reports its calls, which this one never does."""


def statuses(project: Project) -> dict[str, str]:
    return {each["name"]: each["status"] for each in project.results["scenarios"]}


def test_results_that_an_unseen_call_could_change_are_errored(project: Project) -> None:
    """The agent refunds by its own tool and calls a listed one."""
    for name, trajectory in OPEN.items():
        project.scenario(
            f'{HEAD}scenario("{name}", turns=["stock own:refund"], {TOOLS}, trajectory={trajectory})',
            f"{name.replace(' ', '_').replace(',', '')}.sim.py",
        )
    with Shop() as shop:
        project.config("", agent=shop.settings(**LISTED))
        ran = project.run()
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert shop.refunds == len(OPEN)
    assert statuses(project) == dict.fromkeys(OPEN, "errored")
    assert f"{HIDDEN} (tool_visibility: partial)" in ran.stdout
    assert "tool calls: partly seen by us (mcp_mock)" in ran.stdout
    assert project.results["agents"]["agent"]["toolCalls"] == "partial"
    validate(project.results, SCHEMA)


def test_what_the_list_proves_is_judged(project: Project) -> None:
    """Calls of tools that the server's own list has are all seen: they hold, and they fail."""
    for name, (trajectory, _) in SETTLED.items():
        project.scenario(
            f'{HEAD}scenario("{name}", turns=["stock own:refund"], {TOOLS}, trajectory={trajectory})',
            f"{name.replace(' ', '_').replace(',', '')}.sim.py",
        )
    with Shop() as shop:
        project.config("", agent=shop.settings(**LISTED))
        ran = project.run()
    assert statuses(project) == {name: status for name, (_, status) in SETTLED.items()}, ran.stdout
    validate(project.results, SCHEMA)


def test_an_agent_that_reports_none_of_its_calls(project: Project) -> None:
    """If it does not report calls that the mock server answered, it may hide its own, too."""
    for name, trajectory in OPEN.items():
        project.scenario(
            f'{HEAD}scenario("{name}", turns=["stock own:refund"], {TOOLS}, trajectory={trajectory})',
            f"{name.replace(' ', '_').replace(',', '')}.sim.py",
        )
    held = '{"match_mode": "contains", "expected": ["stock"], "forbidden": ["pay"]}'
    project.scenario(f'scenario("listed", turns=["stock"], {TOOLS}, trajectory={held})', "listed.sim.py")
    ban = 'trajectory={"forbidden": ["refund"]}'
    later = '["stock", {"user_message": "own:refund", "trajectory": {"forbidden": ["refund"]}}]'
    project.scenario(f'scenario("later", turns={later}, {TOOLS})', "later.sim.py")
    project.scenario(f'scenario("silent", turns=["own:refund"], {TOOLS}, {ban})', "silent.sim.py")
    with Shop() as shop:
        project.config("", agent=shop.settings(**LISTED, **TOLD))
        ran = project.run()
    assert ran.returncode == 2, ran.stdout + ran.stderr
    found = statuses(project)
    assert {name: found[name] for name in OPEN} == dict.fromkeys(OPEN, "errored")
    assert (found["listed"], found["later"]) == ("passed", "errored")
    assert f"{HIDDEN}: it reported none of its calls to `mcp_mock`" in ran.stdout
    assert project.results["agents"]["agent"]["toolCalls"] == "partial"
    # What this conversation alone does not show questions its verdict.
    assert found["silent"] == "passed"
    warnings = project.results["summary"]["warnings"]
    assert "silent" in [w["scenario"] for w in warnings if w["code"] == "partial-visibility"]
    validate(project.results, SCHEMA)


@pytest.mark.parametrize(
    ("keys", "status"),
    [({}, "errored"), (LISTED, "refused"), ({"tool_visibility": "reported"}, "passed")],
    ids=["no list", "a list", "the user's word"],
)
def test_a_mock_does_not_prove_a_tool_to_be_the_servers(
    project: Project, keys: dict[str, Any], status: str
) -> None:
    """The agent's own refund runs, though a scenario mocks and forbids it: nothing passes but by the user's
    word that all tools are behind the mock server."""
    ban = 'tools={"refund": 1}, trajectory={"forbidden": ["refund"]}'
    project.scenario(f'scenario("s", turns=["connect own:refund"], {ban})')
    with Shop() as shop:
        project.config("", agent=shop.settings(**keys))
        ran = project.run()
    if status == "refused":
        assert (ran.returncode, shop.refunds) == (2, 0)
        assert "tool 'refund' has a mock of scenario 's'" in ran.stderr
    else:
        assert statuses(project) == {"s": status}, ran.stdout
        assert (ran.returncode == 0) is (status == "passed")


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["here", "workers"])
def test_a_server_without_connections(project: Project, arguments: tuple[str, ...]) -> None:
    """An agent that uses the real server is errored, whatever the list and the user say."""
    ban = f'{TOOLS}, trajectory={{"forbidden": ["pay"]}}'
    project.scenario(f'scenario("a", turns=["own:pay"], {ban})\nscenario("b", turns=["hello"], {ban})')
    with Shop() as shop:
        project.config("", agent=shop.settings(**LISTED, tool_visibility="reported"))
        ran = project.run(*arguments)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert statuses(project) == {"a": "errored", "b": "errored"}
    assert "no client ever connected to mcp_mock of agent 'agent'" in ran.stdout
    assert "in place of the real server's: {{mcp_url}} or AGENTEST_MCP_URL\n" in ran.stdout


def test_each_mock_server_needs_a_client(project: Project) -> None:
    """An agent that gets one of two mock servers has the other one's tools from elsewhere."""
    answer = {"200": {"description": "ok"}}
    operations = {"/cancel": {"post": {"operationId": "cancel", "responses": answer}}}
    document = {"openapi": "3.0.0", "info": {"title": "x", "version": "1"}, "paths": operations}
    project.write("api.json", json.dumps(document))
    tools = 'tools={"stock": 1, "cancel": 1}'
    project.scenario(
        f'scenario("both", turns=["stock own:cancel"], {tools}, trajectory={{"forbidden": ["cancel"]}})\n'
        'scenario("one", turns=["stock"], tools={"stock": 1}, trajectory={"forbidden": ["pay"]})'
    )
    with Shop() as shop:
        keys = {"rest_mock": {"openapi": "api.json", "port": free_port()}}
        project.config("", agent=shop.settings(**LISTED, **keys))
        ran = project.run()
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert statuses(project) == {"both": "errored", "one": "passed"}
    assert "no client ever connected to rest_mock of agent 'agent'" in ran.stdout
    assert "in place of the real server's: {{rest_url}} or AGENTEST_REST_URL\n" in ran.stdout


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["here", "workers"])
def test_each_agent_needs_a_client(project: Project, arguments: tuple[str, ...]) -> None:
    """Of two agents with one mock server, the one that uses the real server is errored."""
    project.scenario(f'scenario("a", turns=["stock"], {TOOLS}, trajectory={{"forbidden": ["pay"]}})')
    with Shop() as shop, Shop(wired="pay") as other:
        mock = {**LISTED["mcp_mock"], "port": free_port()}
        agent = shop.settings(mcp_mock=mock)
        project.config("", agent=agent, compare=[{"name": "real", "endpoint": other.settings()["endpoint"]}])
        ran = project.run(*arguments)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    (compared,) = project.results["scenarios"]
    found = {each["agent"]: each["status"] for each in compared["agents"]}
    assert (found, other.refunds) == ({"agent": "passed", "real": "errored"}, 1)
    assert "no client ever connected to mcp_mock of agent 'real'" in ran.stdout


def test_a_client_that_connects_late(project: Project) -> None:
    """A scenario that needs no tool passes once any conversation shows that the agent is connected."""
    ban = f'{TOOLS}, trajectory={{"forbidden": ["pay"]}}'
    project.scenario(f'scenario("a", turns=["hello"], {ban})\nscenario("b", turns=["stock"], {ban})')
    with Shop() as shop:
        project.config("", agent=shop.settings(**LISTED), concurrency=1)
        ran = project.run()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert statuses(project) == {"a": "passed", "b": "passed"}


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({"type": "http", "endpoint": "http://h", "body": "{{message}}"}, "`tool_calls`"),
        ({"type": "websocket", "endpoint": "ws://h"}, "`tool_calls`"),
        ({"type": "command", "command": ["cat"]}, "`tool_calls`"),
        ({"endpoint": "http://h"}, "traces: true"),
    ],
    ids=["http", "websocket", "command", "chat_completions"],
)
@pytest.mark.parametrize("visibility", ["reported", "returned"])
def test_a_visibility_that_nothing_supports(
    project: Project, agent: dict[str, Any], said: str, visibility: str
) -> None:
    """No ban passes because a call was invisible: the exit status is 2, with ways to fix it."""
    if visibility == "returned" and "type" not in agent:
        visibility = "reported"
    project.scenario('scenario("s", turns=["hi"], trajectory={"forbidden": ["pay"]})')
    project.config("", agent={"name": "bot", **agent, "tool_visibility": visibility})
    ran = project.run()
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert f"tool_visibility: {visibility}" in ran.stderr or "tool_visibility" in ran.stderr
    assert said in ran.stderr
    if visibility == "reported":
        assert "'bot'" in ran.stderr


def test_what_stays_unproven_questions_the_verdict() -> None:
    """A scenario that passes under partial visibility names the mocks that the agent may not have called; one
    that it errs has no such warning."""
    bans = {"open": None, "banned": {"forbidden": ["pay"]}}
    made = [
        scenario(name, turns=["stock"], tools={"stock": 1, "pay": 1}, **({"trajectory": ban} if ban else {}))
        for name, ban in bans.items()
    ]
    with Shop() as shop:
        results = run_scenarios(made, agent=shop.settings(), strict=False).scenarios
        vouched = run_scenarios(made, agent=shop.settings(tool_visibility="reported")).scenarios
    assert [result.verdict.status for result in results] == [Status.PASSED, Status.ERRORED]
    partial = [_partial(result) for result in results]
    assert ["in place of these mocks: pay" in text for text in partial[0]] == [True]
    assert partial[1] == []
    assert [_partial(result) for result in vouched] == [[], []]


def _partial(result: ScenarioResult) -> list[str]:
    found = result.verdict_warnings
    return [each.message for each in found if each.code is WarningCode.PARTIAL_VISIBILITY]
