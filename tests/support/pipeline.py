"""A pipeline of three stages with ADK's protocol: deterministic, without a model."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


def said(author: str, text: str) -> dict[str, Any]:
    return {"author": author, "content": {"role": "model", "parts": [{"text": text}]}, "actions": {}}


class Pipeline:
    """Planner, executor and reviewer, each of which stores its result in the session's state.

    A task with "mute" in it makes the server refuse to report the state.
    """

    def __init__(self) -> None:
        self.sessions: dict[str, dict[str, Any]] = {}
        self.muted: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def agent(self) -> dict[str, Any]:
        """The `agent` section of a configuration."""
        endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {"name": "pipe", "type": "adk", "endpoint": endpoint, "app_name": "pipe"}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def create(self, session_id: str, state: dict[str, Any]) -> dict[str, Any]:
        self.sessions[session_id] = state
        return self.read(session_id)

    def read(self, session_id: str) -> dict[str, Any]:
        return {"id": session_id, "appName": "pipe", "state": self.sessions[session_id], "events": []}

    def run(self, session_id: str, task: str) -> list[dict[str, Any]]:
        state = self.sessions[session_id]
        if "mute" in task:
            self.muted.add(session_id)
        state["project_plan"] = f"plan: {task}"
        state["execution_plan"] = [{"step": "design", "done": False}, {"step": "build", "done": False}]
        state["review_result"] = {"approved": True, "rounds": state.get("rounds", 0) + 1}
        state["rounds"] = state.get("rounds", 0) + 1
        state.pop("draft", None)
        return [
            said("planner", f"The plan:\n  {task}"),
            said("executor", "1. design 2. build"),
            said("reviewer", "approved"),
        ]


def _handler_for(pipeline: Pipeline) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # headers and body leave in one piece

        def do_GET(self) -> None:
            session_id = self.path.rsplit("/", 1)[-1]
            if session_id in pipeline.muted:
                self._send(501, {"detail": "no"})
            elif session_id in pipeline.sessions:
                self._send(200, pipeline.read(session_id))
            else:
                self._send(404, {"detail": "Session not found"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            session_id = body["session_id"]
            if self.path == "/run":
                self._send(200, pipeline.run(session_id, body["new_message"]["parts"][0]["text"]))
            elif session_id in pipeline.sessions:
                self._send(409, {"detail": "Session already exists"})
            else:
                self._send(200, pipeline.create(session_id, body["state"]))

        def _send(self, status: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            """Do nothing."""

    return Handler
