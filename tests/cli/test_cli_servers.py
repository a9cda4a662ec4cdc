"""Servers of a run: start order, output in failed turns, end, and restart by --watch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from project import Project, answers, free_port, interrupt, wait_until

import agentest

SCHEMA = Path(agentest.__file__).parent / "schemas" / "results.schema.json"
AGENT = """
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = body["messages"][-1]["content"]
        print(f"asked {said} with {os.environ.get('DB_PASSWORD')}\\n", end="", flush=True)
        if said == "die":
            os._exit(3)
        if said == "boom":
            self.send_response(500); self.end_headers(); self.wfile.write(b"oops")
            print("Traceback: it went boom", flush=True)
            return
        reply = {"choices": [{"message": {"role": "assistant", "content": "VERSION"}}]}
        out = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)
    def log_message(self, *a): pass
with open("order.txt", "a") as order:
    order.write(sys.argv[2] + "\\n")
print("up", sys.argv[2], flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

BROKEN = 'open("broken.txt", "w").close(); raise SystemExit("cannot start")'


def program(called: str, port: int, **keys: Any) -> dict[str, Any]:
    """A server that runs the program above."""
    command = [sys.executable, "agent.py", str(port), called]
    return {"command": command, "ready": f"http://127.0.0.1:{port}/", **keys}


def configure(project: Project, own: dict[str, Any], **keys: Any) -> None:
    agent = {"endpoint": f"{own['ready']}v1", "retries": 0, "server": own}
    project.config(agent["endpoint"], agent=agent, **keys)


@pytest.mark.parametrize("more", [(), ("--workers", "2")], ids=["one process", "workers"])
@pytest.mark.slow
def test_output_of_servers(project: Project, more: tuple[str, ...]) -> None:
    """Servers start in order, each has its log, and a failed turn shows its last lines."""
    ports = [free_port() for _ in range(3)]
    project.write("agent.py", AGENT)
    named = {"queue": program("second", ports[1]), "api": program("first", ports[2])}
    own = program("own", ports[0], name="bot", env={"DB_PASSWORD": "hunter2hunter2"})
    configure(project, own, servers=named, concurrency=2, reporters=["console", "json", "junit"])
    project.scenario('scenario("fine", turns=["hi"])\nscenario("bad", turns=["hi", "boom"])')
    done = project.run(*more)
    assert done.returncode == 1, done.stdout + done.stderr
    assert (project.root / "order.txt").read_text().split() == ["second", "first", "own"]
    assert not any(map(answers, ports))
    (run,) = (project.root / ".agentest" / "runs").iterdir()
    logs = {path.name: path.read_text() for path in (run / "servers").iterdir()}
    assert logs["queue.log"] == "up second\n"
    assert logs["bot.log"].startswith("up own\nasked hi with [redacted]\n")
    (held,) = project.scenario_result("bad")["conversations"]
    (output,) = held["unfinishedTurn"]["serverOutput"]
    assert output["server"] == "bot"
    # The other conversation may ask meanwhile.
    of_the_turn = [line for line in output["lines"] if "asked hi" not in line]
    assert of_the_turn[-2:] == ["asked boom with [redacted]", "Traceback: it went boom"]
    for text in (done.stdout, (project.root / ".agentest" / "junit.xml").read_text()):
        assert "server bot printed meanwhile" in text
        assert "Traceback: it went boom" in text
    jsonschema.validate(project.results, json.loads(SCHEMA.read_text()))
    show = project.agentest("show", "--verbose").stdout  # read back from the file
    assert "server bot printed meanwhile" in show
    assert "hunter2" not in done.stdout + done.stderr + json.dumps(project.results)


def test_a_server_that_dies(project: Project) -> None:
    """A dead server is reported at once, and later failed turns name it, even without a run folder."""
    port, other = free_port(), free_port()
    project.write("agent.py", AGENT)
    project.write("out", "a file in the place of the folder")
    own = program("own", port)
    configure(project, own, reporters=["console"], output_dir="out", concurrency=1)
    project.scenario('scenario("a", turns=["die"])\nscenario("b", turns=["hi"])')
    done = project.run()
    assert done.returncode == 1, done.stdout + done.stderr
    name = f"{Path(sys.executable).name}-agent"
    assert done.stdout.count(f"(server {name!r} had exited with status 3)\n    turn 1") == 0
    assert done.stdout.count(f"(server {name!r} had exited with status 3)  1 scenario") == 2
    assert f"server {name} exited with status 3, printed meanwhile (1 line):" in done.stdout
    assert "asked die with None" in done.stdout
    assert "the agent's server exited with status 3 during the run" in done.stderr
    configure(
        project,
        own,
        servers=[{"command": "echo no such database; exit 4", "ready": f"tcp://127.0.0.1:{other}"}],
    )
    done = project.run()
    assert done.returncode == 2
    assert "server 'echo-no': the server command" in done.stderr
    assert "exited with status 4 before it was ready\nIts last output:\nno such database" in done.stderr


@pytest.mark.slow
def test_watch_restarts_servers(project: Project) -> None:
    """An edit of a file in `watch` runs the new code; a failed start is reported and retried."""
    port = free_port()
    source = project.write("agent.py", AGENT)
    configure(project, program("own", port, watch=["agent.py"]))
    project.scenario('scenario("s", turns=["hi"])')

    def replied(text: str) -> bool:
        try:
            (held,) = project.scenario_result("s")["conversations"]
        except (OSError, ValueError):
            return False
        return bool(held["turns"][0]["agentMessage"] == text)

    def edited(text: str, until: Callable[[], bool]) -> None:
        # Written again now and then, until it is seen: the watcher may not have begun to look yet.
        polls = count()

        def seen() -> bool:
            if next(polls) % 30 == 0:
                source.write_text(text)
            return until()

        wait_until(seen)

    process = project.start("--watch")
    try:
        wait_until(lambda: replied("VERSION"))
        edited(BROKEN, (project.root / "broken.txt").exists)
        edited(AGENT.replace("VERSION", "second"), lambda: replied("second"))
    finally:
        code, _, err = interrupt(process)
    assert code == 130
    assert "agentest: agent.py changed: running again" in err
    assert "exited with status 1 before it was ready\nIts last output:\ncannot start" in err
    wait_until(lambda: not answers(port))
