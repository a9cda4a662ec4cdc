"""A model on loopback that speaks OpenAI's protocol, or follows its script."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer. `reset` breaks the connection instead; `cut` promises more bytes than it sends."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    reset: bool = False
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Received:
    """One received request; header names in lower case."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def form(self) -> str | None:
        """The type of `response_format`, or None."""
        asked = self.body.get("response_format")
        return asked["type"] if asked else None


Script = Sequence[Answer] | Callable[[Received], Answer]


def completion(content: Any, usage: Mapping[str, Any] | None = None, **message: Any) -> Answer:
    """A chat completion; `content` that is a dict is sent as JSON text."""
    text = json.dumps(content) if isinstance(content, dict) else content
    body = {
        "model": "scripted-1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text, **message}}],
        "usage": usage or {"prompt_tokens": 10, "completion_tokens": 5},
    }
    return Answer(json.dumps(body).encode())


def error(status: int, message: str = "no", headers: Mapping[str, str] | None = None, **more: Any) -> Answer:
    """An error in OpenAI's format. It requests an immediate retry unless `headers` differ."""
    body = {"error": {"message": message, "type": "error", "param": None, "code": None, **more}}
    return Answer(json.dumps(body).encode(), status, {"retry-after": "0"} if headers is None else headers)


RESET = Answer(reset=True)


class ModelServer:
    """Answers in order, the last one repeated, or by a function of the request. Stores its requests."""

    def __init__(self, *answers: Answer, script: Callable[[Received], Answer] | None = None) -> None:
        self.received: list[Received] = []
        self._answers = answers
        self._script = script
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler_for(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def base_url(self) -> str:
        return f"{self.origin}/v1"

    @property
    def forms(self) -> list[str | None]:
        """The requested answer formats, in order."""
        return [received.form for received in self.received]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, received: Received) -> Answer:
        with self._lock:
            self.received.append(received)
            if self._script is None:
                return self._answers[min(len(self.received), len(self._answers)) - 1]
        return self._script(received)


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: some tests break connections on purpose."""


def _handler_for(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = server.answer(Received(self.path, headers, body))
            if answer.reset:
                # With nothing to linger for, closing sends a reset.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
                return
            self.send_response(answer.status)
            given = {"content-type": "application/json", **answer.headers}
            given.setdefault("content-length", str(len(answer.body) + (100 if answer.cut else 0)))
            for name, value in given.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)
            self.wfile.flush()
            self.close_connection = self.close_connection or answer.cut

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    return Handler


def model_keys(model: ModelServer) -> dict[str, Any]:
    """The configuration keys for this model."""
    options = {"base_url": model.base_url, "api_key": "sk-secret-of-the-test"}
    return {"provider": "openai-compatible", "model": "m", "provider_options": options}


def best(received: Received) -> Answer:
    """Play the user for two turns, and give the best judgements."""
    schema = received.body["response_format"]["json_schema"]["schema"]
    if "should_stop" in schema["properties"]:
        said = sum(m["role"] == "assistant" for m in received.body["messages"])
        return completion({"message": f"message {said}" * (said < 2), "should_stop": said >= 2})
    if "groups" in schema["properties"]:
        return completion({"groups": []})
    return completion(_best_of(schema, schema.get("$defs", {})))


def _best_of(form: dict[str, Any], named: dict[str, Any]) -> Any:
    """The best answer for a schema: no label, and the last of its choices."""
    if "$ref" in form:
        form = named[form["$ref"].rpartition("/")[2]]
    if "properties" in form:
        return {name: _best_of(inner, named) for name, inner in form["properties"].items()}
    if form.get("type") == "array":
        return []
    options = form.get("enum")
    return options[-1] if options else None if "anyOf" in form else "good"
