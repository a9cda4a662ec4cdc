"""The command line, with an agent whose tools are requests of an HTTP API."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote, unquote

import pytest
import yaml
from openapi_documents import SHOP, document, operation, parameter, written
from project import Project, free_port

AGENT = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError
from urllib.request import Request, urlopen

class Agent(BaseHTTPRequestHandler):
    def log_message(self, *parts): pass
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        told = []
        for each in asked["message"].split(";"):
            method, path = each.split()
            base, headers = os.environ["AGENTEST_REST_URL"], {"baggage": self.headers["baggage"]}
            try:
                with urlopen(Request(base + path, method=method, headers=headers)) as answer:
                    told.append(answer.read().decode())
            except HTTPError as error:
                told.append(f"{error.code} {error.read().decode()}")
        body = json.dumps({"reply": " ".join(told) or "done"}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Agent).serve_forever()
"""

ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}


class Real(BaseHTTPRequestHandler):
    """The real API."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        body = b'{"total": 3}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def shop(project: Project) -> Project:
    """A project that starts a program as its agent, with the API's address."""
    port = free_port()
    project.write("agent.py", AGENT)
    written(project.root, SHOP)
    command = f"exec {sys.executable} agent.py {port}"
    project.config(
        f"http://127.0.0.1:{port}/",
        agent={
            "type": "http",
            "endpoint": f"http://127.0.0.1:{port}/chat",
            "body": {"message": "{{message}}"},
            "reply": "reply",
            "restMock": {"openapi": "shop.json"},
            "server": {"command": command, "ready": f"tcp://127.0.0.1:{port}"},
        },
    )
    return project


def test_a_program_that_asks_an_api(shop: Project) -> None:
    """It finds the mocks by its environment; a forbidden request fails the scenario, another one passes."""
    shop.scenario(
        """
from agentest import HttpResponse
ban = {"match_mode": "contains", "expected": ["get_order"], "forbidden": ["cancel_order"]}
tools = {"get_order": sequence({"total": 3}, HttpResponse(404, "gone")), "cancel_order": None}
for name, end in {"good": "GET /orders/2", "bad": "DELETE /orders/2"}.items():
    scenario(name, turns=["GET /orders/1; " + end], tools=tools, trajectory=ban)
"""
    )
    ran = shop.run("--verbose")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "1 failed, 1 passed" in ran.stdout
    assert "tool calls: partly seen by us (rest_mock)" in ran.stdout, "the agent itself reports none"
    assert '404 {"error": "gone"}' in ran.stdout
    calls = {
        each["name"]: [c["name"] for c in each["conversations"][0]["turns"][0]["toolCalls"]]
        for each in shop.results["scenarios"]
    }
    assert calls == {"good": ["get_order", "get_order"], "bad": ["get_order", "cancel_order"]}


def test_a_ban_by_the_name_of_the_function(shop: Project) -> None:
    """An operation with an id by FastAPI can be banned by its function's name, even unmocked."""
    paths = {
        "/orders/{id}": {
            "get": operation("get_order_orders__id__get", parameter("id", "path")),
            "delete": operation("cancel_order_orders__id__delete", parameter("id", "path")),
        }
    }
    written(shop.root, document(paths))
    shop.scenario(
        """
for name, turn in {"good": "GET /orders/1", "bad": "DELETE /orders/1"}.items():
    scenario(name, turns=[turn], trajectory={"forbidden": ["cancel_order"]}, tools={"get_order": 1})
"""
    )
    ran = shop.run("--unmocked-tools", "passthrough")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert shop.scenario_result("good")["status"] == "passed"
    (banned,) = shop.scenario_result("bad")["conversations"]
    assert banned["trajectory"]["forbiddenCalls"] == ["cancel_order"]


def test_what_is_wrong_is_said_before_the_first_conversation(shop: Project) -> None:
    """A mock of no operation and a document with errors: exit status 2, and one message."""
    shop.scenario('scenario("a", turns=["GET /orders/1"], tools={"get_ordr": 1})\n')
    ran = shop.run()
    assert ran.returncode == 2
    assert "the mock 'get_ordr' of scenario 'a' (a.sim.py:2) is not an operation of shop.json" in ran.stderr
    assert "the nearest is 'get_order' (GET /orders/{id})" in ran.stderr
    written(shop.root, document({"/a": {"get": operation("a", {"$ref": "other.yaml#/A"})}}))
    shop.scenario('scenario("a", turns=["GET /orders/1"], tools={"a": 1})\n')
    ran = shop.run()
    assert ran.returncode == 2
    assert "rest_mock.openapi of agent 'agent': " in ran.stderr
    assert "shop.json:" in ran.stderr
    assert "`$ref` 'other.yaml#/A'" in ran.stderr
    assert not (Path(shop.root) / ".agentest" / "results.json").exists()
    shop.scenario('scenario("a", turns=["GET /orders/1"], expect={"never_says": "x"})\n')
    noted = "operations that no scenario names are not checked: "
    assert noted in shop.run().stderr


def test_recorded_operations_of_fastapi_have_the_names_of_their_functions(shop: Project) -> None:
    """Those that mocks may have, too; scenarios that know a tool by such a name are recorded by it."""
    long = "get_order_orders__id__get"
    written(shop.root, document({"/orders/{id}": {"get": operation(long, ID)}}))
    with HTTPServer(("127.0.0.1", 0), Real) as real:
        Thread(target=real.serve_forever, daemon=True).start()
        said = yaml.safe_load((shop.root / "agentest.config.yaml").read_text())
        said["agent"]["restMock"]["upstream"] = f"http://127.0.0.1:{real.server_port}"
        shop.write("agentest.config.yaml", yaml.safe_dump(said))
        told = shop.agentest("record-tools", "--say", "GET /orders/5", "--scenario", "first.sim.py")
        assert told.returncode == 0, told.stderr
        assert '"get_order": {"total": 3}' in (shop.root / "recorded_tools.py").read_text()
        (shop.root / "recorded_tools.py").rename(shop.root / "mine.py")
        first = (shop.root / "first.sim.py").read_text()
        shop.write("first.sim.py", first.replace("from recorded_tools", "from mine"))
        again = shop.run("--record-tools")
        assert again.returncode == 0, again.stdout
        real.shutdown()


def test_an_evaluation_set_calls_no_real_api(shop: Project) -> None:
    """Unmocked calls get null by default, which does not let the real API run."""
    said = yaml.safe_load((shop.root / "agentest.config.yaml").read_text())
    said["agent"]["restMock"]["upstream"] = "http://127.0.0.1:9/api"
    shop.write("agentest.config.yaml", yaml.safe_dump(said))
    case = [{"query": "GET /orders/5", "expected_tool_use": [], "reference": "null"}]
    shop.write("a.test.json", json.dumps(case))
    ran = shop.agentest("eval", "agent", "a.test.json", "--verbose", "--offline", "--reporter", "json")
    (call,) = shop.results["scenarios"][0]["conversations"][0]["turns"][0]["toolCalls"]
    assert (call["name"], call["result"], call["error"]) == ("get_order", None, None), ran.stderr


def test_no_credential_of_a_real_api_is_written_anywhere(shop: Project) -> None:
    """Neither the agent nor reports, journal or console get those of the file or of variables."""
    literal = {"user": "literal-us3r-password", "query": "literal-qu3ry-key", "sig": "literal-s1gnature"}
    env = {
        "DB_PASSWORD": "pa%2Fss-of-variable",
        "URL_KEY": "key-of-variable-1",
        "ACCESS_TOKEN": "token-of-variable-2",
        "SHOP_SECRET": "secret of variable/3",
        "MCP_TOKEN": "token-of-mcp-4",
    }
    said = yaml.safe_load((shop.root / "agentest.config.yaml").read_text())
    said["agent"]["restMock"]["upstream"] = (
        "http://bob:${DB_PASSWORD}@127.0.0.1:9/api?api_key=${URL_KEY}&access_token=${ACCESS_TOKEN}"
        f"&sig={literal['sig']}"
    )
    other = {**said["agent"], "name": "other", "headers": {"X-Api-Key": "literal-h3ader-key"}}
    other["restMock"] = {
        "openapi": "shop.json",
        "upstream": f"http://bob:{literal['user']}@127.0.0.1:9/?key={literal['query']}",
    }
    other["mcpMock"] = {
        "upstream": "http://ann:literal-mcp-passw0rd@127.0.0.1:9/mcp?token=${MCP_TOKEN}",
        "upstreamHeaders": {"Authorization": "Bearer literal-mcp-b3arer", "X-Secret": "${SHOP_SECRET}"},
    }
    other["server"] = {**other["server"], "env": {"API_TOKEN": "literal-env-t0ken"}}
    said |= {
        "unmockedTools": "passthrough",
        "reporters": ["console", "json", "html", "junit", "github-actions"],
    }
    shop.scenario('scenario("down", turns=["GET /orders/1; DELETE /orders/2"], expect={"says": ["done"]})')
    secrets = {
        *literal.values(), *env.values(), *map(unquote, env.values()), *map(quote, env.values()),
        "literal-h3ader-key", "literal-mcp-passw0rd", "literal-mcp-b3arer", "literal-env-t0ken",
    }  # fmt: skip
    texts: dict[str, str] = {}
    for number, agent in enumerate((said["agent"], other)):
        shop.write("agentest.config.yaml", yaml.safe_dump({**said, "agent": agent}))
        summary = shop.root / f"summary{number}.md"
        ran = shop.run("--verbose", env={**env, "GITHUB_STEP_SUMMARY": str(summary)})
        texts[f"console of {number}"] = ran.stdout + ran.stderr
    assert "502" in texts["console of 0"], texts["console of 0"]
    texts |= {
        str(path): path.read_text(errors="replace")
        for path in shop.root.rglob("*")
        if path.is_file() and path.name not in ("agentest.config.yaml", "agent.py")
    }
    assert len(texts) > 8
    found = [(name, secret) for name, text in texts.items() for secret in secrets if secret in text]
    assert found == []
