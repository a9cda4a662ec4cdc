"""A scripted agent that serves real HTTP on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from agentest.support.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Raw:
    """A raw HTTP response. With `close`, the connection is cut after `body`."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    content_length: int | None = None
    """Value of the header Content-Length; default: the actual length."""
    close: bool = False


AgentAnswer = str | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Raw
"""A text, one or several tool calls (see `tool_call`), a whole message, or Raw."""


def tool_call(name: str, /, **args: Any) -> dict[str, Any]:
    """Return a tool call for the script of a ScriptedAgent. The agent adds the id when it sends the call."""
    return {"type": "function", "function": {"name": name, "arguments": json.dumps(args)}}


class ScriptedAgent:
    """A chat-completions agent on loopback that answers from a script.

    Args:
        script: responses in order, or a function that maps a request's JSON body to a response. The position
            in a list is the number of assistant messages in the request, so conversations can run
            concurrently. After the end of the list, the last response is repeated.

    `requests` contains the received bodies in order.
    """

    def __init__(
        self, script: Sequence[AgentAnswer] | Callable[[dict[str, Any]], AgentAnswer], name: str = "agent"
    ) -> None:
        self.name = name
        self.requests: list[dict[str, Any]] = []
        self._script = script
        self._server = _AgentServer(("127.0.0.1", 0), _handler_for(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def endpoint(self) -> str:
        """The agent's URL, for the configuration key `endpoint`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/chat/completions"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, body: dict[str, Any]) -> AgentAnswer:
        """Return the response to a request."""
        self.requests.append(body)
        if callable(self._script):
            return self._script(body)
        replies = sum(1 for message in body.get("messages", []) if message.get("role") == "assistant")
        return self._script[min(replies, len(self._script) - 1)]


class _AgentServer(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: in many tests, clients close the connection on purpose."""


def _handler_for(agent: ScriptedAgent) -> type[BaseHTTPRequestHandler]:
    class TurnHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # send headers and body in one write

        def do_GET(self) -> None:
            self._send(Raw(b'{"status": "ok"}'))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            request = json.loads(body)
            answer = agent.answer(request)
            self._send(answer if isinstance(answer, Raw) else _completion(answer, request))

        def _send(self, raw: Raw) -> None:
            self.send_response(raw.status)
            self.send_header("content-type", raw.content_type)
            length = len(raw.body) if raw.content_length is None else raw.content_length
            self.send_header("content-length", str(length))
            for name, value in raw.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw.body)
            self.wfile.flush()
            self.close_connection = self.close_connection or raw.close

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing, to keep the test's own output readable."""

    return TurnHandler


def _completion(answer: AgentAnswer, request: Mapping[str, Any]) -> Raw:
    message = _message(answer, request.get("messages", []))
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    body = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
    }
    return Raw(json.dumps(body).encode())


def _message(answer: Any, messages: Sequence[Any]) -> Mapping[str, Any]:
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    calls = [answer] if isinstance(answer, Mapping) and "function" in answer else answer
    if isinstance(calls, Mapping):
        return calls
    numbered = [{"id": f"call_{len(messages)}_{i}", **call} for i, call in enumerate(calls)]
    return {"role": "assistant", "content": None, "tool_calls": numbered}
