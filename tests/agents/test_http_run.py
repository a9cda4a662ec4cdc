"""`agentest run` with an agent of type http: what the run shows, stores and redacts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from project import Project

TOKEN = "token-98765"


class Shop(BaseHTTPRequestHandler):
    """A login, a chat that reports its calls, and a chat that leaks secrets."""

    protocol_version = "HTTP/1.1"
    logins: ClassVar[list[str]] = []

    def log_message(self, *_: Any) -> None:
        """Do nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        if self.path == "/login":
            self.logins.append(body["user"])
            return self._answer(200, {"access": {"token": TOKEN}}, "sid=cookie-43210; Path=/")
        authorization, cookies = self.headers.get("authorization"), self.headers.get("cookie", "")
        if authorization != f"Bearer {TOKEN}" or "cookie-43210" not in cookies:
            return self._answer(401, {"detail": "no"})
        said = body["message"]
        if said == "fail":
            return self._answer(500, {"error": f"cannot go on for {authorization} with {cookies}"})
        calls = [{"tool": said, "input": {"n": 1}, "output": "ok"}] if said.startswith("pay") else []
        return self._answer(200, {"answer": {"text": f"You said: {said}"}, "steps": calls})

    def _answer(self, status: int, value: Any, cookie: str | None = None) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        if cookie:
            self.send_header("set-cookie", cookie)
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


SCENARIOS = """
scenario("pays", turns=["Hi", "pay_5"], trajectory={"expected": ["pay_5"]}, conversations_per_scenario=2)
scenario("must not pay", turns=["pay_5"], trajectory={"forbidden": ["pay_5"]})
scenario("fails", turns=["fail"])
"""


def configured(project: Project, url: str, **keys: Any) -> None:
    agent = {
        "type": "http",
        "headers": {"Authorization": "Bearer {{token}}"},
        "body": {"message": "{{message}}"},
        "reply": "answer.text",
        "setup": {
            "per": "run",
            "endpoint": "/login",
            "body": {"user": "me"},
            "save": {"token": "access.token"},
        },
    }
    project.config(f"{url}/chat", agent={**agent, "endpoint": f"{url}/chat", **keys})
    project.scenario(SCENARIOS)


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_a_run(tmp_path: Path, url: str, options: tuple[str, ...]) -> None:
    """Calls are recorded and judged, the forbidden one fails, and no report has the token or cookie."""
    project = Project(tmp_path)
    configured(project, url, tool_calls="steps[].{name: tool, args: input, result: output}")
    run = project.run("--verbose", *options)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "tool calls: reported by the agent" in run.stdout
    statuses = {s["name"]: s["status"] for s in project.results["scenarios"]}
    assert statuses == {"pays": "passed", "must not pay": "failed", "fails": "failed"}
    assert "answered 500" in run.stdout
    assert "cannot go on for Bearer [redacted] with sid=[redacted]" in run.stdout
    written = run.stdout + run.stderr + (tmp_path / ".agentest" / "results.json").read_text()
    assert TOKEN not in written
    assert "cookie-43210" not in written


def test_an_agent_that_reports_no_calls(tmp_path: Path, url: str) -> None:
    """A forbidden call is errored, never passed; mocks are refused before the first conversation."""
    project = Project(tmp_path)
    configured(project, url)
    run = project.run("--scenario", "must not")
    assert run.returncode == 2
    assert "calls of agent 'agent' cannot be seen" in run.stdout
    project.scenario('scenario("mocked", turns=["Hi"], tools={"pay": 1})')
    run = project.run()
    assert run.returncode == 2
    assert "mocks" in run.stderr
