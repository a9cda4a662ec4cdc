"""An agent that a command starts at a free port: `{port}` in its settings."""

from __future__ import annotations

import sys
from typing import Any

from project import Project

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
    """An agent that runs the program above on a free port."""
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
