"""Agents at free ports: commands other than `run` that start the agent."""

from __future__ import annotations

import re
import sys
from typing import Any

from project import Project, answers

AGENT = """
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][-1]["content"]
        if said == "boom":
            print("it went boom", flush=True)
            self.send_response(500); self.end_headers()
            return
        text = f"{sys.argv[1]} {os.environ['PORT']} {os.getpid()}"
        out = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)
    def log_message(self, *a): pass
print("up", *sys.argv[1:], flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def agent(called: str = "agent", **server: Any) -> dict[str, Any]:
    """An agent of the program above, at a free port."""
    own = {
        "command": [sys.executable, "agent.py", "{port}", called],
        "ready": "http://127.0.0.1:{{port}}/",
        "env": {"PORT": "{{port}}"},
        **server,
    }
    return {"name": called, "endpoint": "http://127.0.0.1:{port}/v1", "retries": 0, "server": own}


def configure(project: Project, own: dict[str, Any], **keys: Any) -> None:
    project.write("agent.py", AGENT)
    project.config("", agent=own, **keys)


def test_doctor_and_chat(project: Project) -> None:
    """Other commands that start the agent start it at a free port, too."""
    configure(project, agent())
    project.scenario('scenario("a", turns=["hi"])')
    told = project.agentest("doctor")
    assert "http://127.0.0.1:{port}/v1 answers; its `server` was started" in told.stdout, told.stdout
    talked = project.agentest("chat", "--scenario", "a", typed="hello\n/quit\n")
    assert talked.returncode == 0, talked.stdout + talked.stderr
    (port, told) = re.findall(r"\b2\d{4}\b|\b3[01]\d{3}\b", talked.stdout)[:2]
    assert port == told
    assert not answers(int(port))
