"""An agent that each worker starts, on its own port (`agent.server.per_worker`)."""

from __future__ import annotations

import sys
from typing import Any

from project import Project

AGENT = """
import json, os, signal, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

def tool(item, headers):
    params = {"name": "stock", "arguments": {"item": item}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    kind = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    asked = Request(os.environ["AGENTEST_MCP_URL"], json.dumps(message).encode(), {**kind, **headers})
    with urlopen(asked) as answer:
        return json.load(answer)["result"]["content"][0]["text"]

def tell(headers):  # one span, of the request that it was sent
    _, trace, parent, _ = headers["traceparent"].split("-")
    span = {"traceId": trace, "spanId": os.urandom(8).hex(), "parentSpanId": parent,
            "name": f"of {os.getpid()}", "startTimeUnixNano": "1", "endTimeUnixNano": "2", "attributes": []}
    body = json.dumps({"resource_spans": [{"scope_spans": [{"spans": [span]}]}]}).encode()
    url = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
    urlopen(Request(url, body, {"content-type": "application/json"}))

def reply(said, headers):
    word, _, rest = said.partition(" ")
    if word == "meet":  # an agent of another worker
        Path(f"met-{os.getpid()}").touch()
        while len(list(Path().glob("met-*"))) < 2:
            time.sleep(0.01)
    if word == "hang":
        Path(f"hangs-{os.getpid()}").touch()
        threading.Event().wait()
    if word == "kill" and not Path("killed").exists():  # the worker that started this agent
        Path("killed").write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGKILL)
        threading.Event().wait()
    if word == "die":
        Path("died").touch()
        os._exit(3)
    if word == "after":  # the other one has died, and its turn has failed
        while not Path("died").exists():
            time.sleep(0.01)
        time.sleep(1)
    if word == "tell":
        tell(headers)
    if word == "stock":
        return tool(rest, {"baggage": headers["baggage"]})
    if word == "stray":
        return tool(rest, {"x-agentest-conversation": "nobody"})
    return f"{sys.argv[1]} {os.getpid()} {os.getppid()}"

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][-1]["content"]
        if said == "boom":
            print(f"{os.getpid()} went boom", flush=True)
            self.send_response(500); self.end_headers()
            return
        message = {"role": "assistant", "content": reply(said, self.headers)}
        out = json.dumps({"choices": [{"message": message}]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)
    def log_message(self, *a): pass

ThreadingHTTPServer.daemon_threads = True
print("up", os.getpid(), flush=True)  # before anybody can connect: what is asked may kill whoever reads this
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
WORKERS = ("--workers", "2")


def configure(project: Project, source: str = AGENT, **keys: Any) -> None:
    """Write the agent's program and a configuration with it."""
    project.write("agent.py", source)
    server = {
        "command": [sys.executable, "agent.py", "{port}"],
        "ready": "tcp://127.0.0.1:{port}",
        "name": "bot",
        "per_worker": True,
    }
    agent = {"endpoint": "http://127.0.0.1:{port}/v1", "retries": 0, "server": server, **keys}
    project.config("", agent=agent)


def turns(project: Project) -> list[list[str]]:
    """The replies of agents: their port, their process id, and that of their worker."""
    held = [each for scenario in project.results["scenarios"] for each in scenario["conversations"]]
    return [turn["agentMessage"].split() for each in held for turn in each["turns"]]
