"""The agents of the lab: `/BUG/bug/v1/chat/completions`, and `/BUG/right/…` for the twin."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from benchmarks.explore_lab.bugs import BUGS
from benchmarks.explore_lab.talk import NeedCall

Messages = Sequence[Mapping[str, Any]]


def next_message(bug: str, is_right: bool, messages: Messages) -> dict[str, Any]:
    """What an agent says or calls next."""
    system = " ".join(_text(message) for message in messages if message["role"] in ("system", "developer"))
    agent = BUGS[bug].agent("" if is_right else bug.partition("_")[2], system)
    said: str = ""
    turns: list[tuple[str, list[tuple[str, Any]]]] = []
    for message in messages:
        if message["role"] == "user":
            turns.append((_text(message), []))
        elif message["role"] == "tool" and turns:
            turns[-1][1].append(("", _text(message)))
    for number, (text, answers) in enumerate(turns):
        try:
            said = agent.play(text, answers)
        except NeedCall as need:
            if number == len(turns) - 1:
                function = {"name": need.tool, "arguments": json.dumps(need.arguments)}
                called = {"id": f"call_{len(messages)}", "type": "function", "function": function}
                return {"role": "assistant", "content": None, "tool_calls": [called]}
    return {"role": "assistant", "content": said or "What can I do for you?"}


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return str(content or "")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        bug, form = self.path.split("/")[1:3]
        try:
            status, answer = (
                200,
                {"choices": [{"message": next_message(bug, form == "right", body["messages"])}]},
            )
        except Exception as error:  # noqa: BLE001 - a crash of an agent is a bug of the lab: its caller gets a 500
            status, answer = 500, {"error": f"{type(error).__name__}: {error}"}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """No log."""


@contextmanager
def serving() -> Iterator[int]:
    """Serve all agents on a port of loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Talked:
    """A conversation without HTTP: calls and replies."""

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)

    def count(self, tool: str, **args: Any) -> int:
        """How many calls of a tool had these arguments."""
        return sum(name == tool and args.items() <= given.items() for name, given in self.calls)


def talk(bug: str, is_right: bool, said: Sequence[str], tools: Mapping[str, Any], today: str = "") -> Talked:
    """Play a user and tools, for at most 30 calls. A list answers one call after another."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": today}]
    talked = Talked()
    for text in said:
        messages.append({"role": "user", "content": text})
        try:
            message = next_message(bug, is_right, messages)
            while called := message.get("tool_calls"):
                function = called[0]["function"]
                args = json.loads(function["arguments"])
                answer = tools[function["name"]]
                if isinstance(answer, list):
                    answer = answer[min(talked.count(function["name"]), len(answer) - 1)]
                talked.calls.append((function["name"], args))
                answer = answer(args) if isinstance(answer, Callable) else answer
                content = answer if isinstance(answer, str) else json.dumps(answer)
                messages += [message, {"role": "tool", "tool_call_id": called[0]["id"], "content": content}]
                if len(talked.calls) > 30:
                    return talked
                message = next_message(bug, is_right, messages)
        except Exception as error:  # noqa: BLE001 - as the server does
            talked.replies.append(f"HTTP 500 {error}")
            return talked
        messages.append(message)
        talked.replies.append(message["content"])
    return talked
