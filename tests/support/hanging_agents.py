"""Agents whose answers never end."""

from __future__ import annotations

import json
import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from project import Project, interrupt, wait_until

CARD = {
    "name": "shop",
    "url": "http://127.0.0.1/a2a",
    "protocolVersion": "0.3.0",
    "preferredTransport": "JSONRPC",
    "capabilities": {"streaming": True},
}
TASK = {"kind": "task", "id": "t-1", "contextId": "c-1", "status": {"state": "working"}}
A2A = {"type": "a2a"}
GRAPH = {"type": "langgraph", "assistant_id": "shop"}
PLAIN = {"type": "chat_completions", "streaming": True}
BEGINNINGS = {
    "/a2a": f"data: {json.dumps({'jsonrpc': '2.0', 'id': '1', 'result': TASK})}\n\n",
    "/runs/stream": f"event: metadata\ndata: {json.dumps({'run_id': 'r-1'})}\n\n",
    "/chat": f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'role': 'assistant'}}]})}\n\n",
}
"""The end of an address → how its answer begins, which never ends."""


class Hanging:
    """Agents that start to answer and never end, until they are cancelled or disconnected."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled: list[str] = []
        self.left = 0
        """How many of the answers had nobody who reads them any more."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def agent(self, settings: dict[str, Any]) -> dict[str, Any]:
        paths = {"a2a": "/a2a", "langgraph": "", "chat_completions": "/chat"}
        root = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {**settings, "endpoint": f"{root}{paths[settings['type']]}", "retries": 0}


def _has_unread(connection: socket.socket) -> bool:
    """Return whether the other end, on this machine, has unread data."""
    ports = f":{connection.getpeername()[1]:04X}", f":{connection.getsockname()[1]:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(
        row[1].endswith(ports[0]) and row[2].endswith(ports[1]) and int(row[4].split(":")[1], 16)
        for row in rows
    )


def _handler_for(hanging: Hanging) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(CARD if self.path.endswith("agent-card.json") else {"values": {}, "next": []})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if body.get("method") == "tasks/cancel":
                hanging.cancelled.append(body["params"]["id"])
                self._answer(
                    {"jsonrpc": "2.0", "id": "1", "result": {**TASK, "status": {"state": "canceled"}}}
                )
            elif self.path.endswith("/cancel"):
                hanging.cancelled.append(self.path.split("/")[-2])
                self._answer({})
            else:
                self._hang(next(begin for end, begin in BEGINNINGS.items() if self.path.endswith(end)))

        def _hang(self, beginning: str) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(beginning.encode())
            self.wfile.flush()
            wait_until(lambda: not _has_unread(self.connection))
            hanging.begun += 1
            select.select([self.connection], [], [])  # readable: the client has hung up
            hanging.left += 1
            self.close_connection = True

        def _answer(self, value: Any) -> None:
            text = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def check_timed_out_turn(project: Project, agent: dict[str, Any], cancelled: list[str]) -> None:
    """Check that a timeout is the agent's error, and that its server is told to stop."""
    project.scenario('scenario("s", turns=["Hi"], expect={"says": "x"})')
    with Hanging() as hanging:
        project.config("", agent=hanging.agent(agent), request_timeout_ms=500)
        ran = project.run()
        wait_until(lambda: hanging.left == 1)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "request_timeout_ms" in ran.stdout
    assert hanging.cancelled == cancelled


def check_interrupted_run(
    project: Project, agent: dict[str, Any], cancelled: list[str], *arguments: str
) -> None:
    """Check that Ctrl-C also cancels requests on the server."""
    project.scenario('scenario("s", turns=["Hi"], expect={"says": "x"})')
    with Hanging() as hanging:
        project.config("", agent=hanging.agent(agent))
        with project.start(*arguments) as process:
            wait_until(lambda: hanging.begun == 1)
            status, out, err = interrupt(process)
        wait_until(lambda: hanging.left == 1)
    assert status == 130, out + err
    assert hanging.cancelled == cancelled


def check_stopped_run(project: Project, agent: dict[str, Any], cancelled: list[str]) -> None:
    """Check the same for --fail-fast, after another agent has failed."""
    project.write(
        "slow.py",
        "async def fails(messages, ctx):\n"
        "    import anyio\n    from pathlib import Path\n"
        "    while not Path('begun').exists():\n        await anyio.sleep(0.01)\n    return 'no'\n",
    )
    project.scenario(
        'scenario("s", turns=["Hi"], expect={"says": "x"})\n'
        'scenario("t", turns=["Hi"], agent="slow", expect={"says": "x"})'
    )
    with Hanging() as hanging:
        slow = {"type": "custom", "handler": "slow:fails"}
        project.config("", agent=hanging.agent(agent), agents={"slow": slow})
        with project.start("--fail-fast") as process:
            wait_until(lambda: hanging.begun == 1)
            project.write("begun", "")
            out, err = process.communicate()
        wait_until(lambda: hanging.left == 1)
    assert process.returncode == 1, out + err
    assert hanging.cancelled == cancelled
