"""Small hand-written servers: requests, responses and how they are served."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import parse_qs


class Asked(NamedTuple):
    """A request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, str]:
        """The fields of a form, URL-encoded or multipart."""
        kind = self.headers.get("content-type", "")
        if "multipart" not in kind:
            return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}
        parts = self.body.split(b"--" + kind.partition("boundary=")[2].strip('"').encode())
        fields = {}
        for part in parts[1:-1]:
            head, _, value = part.partition(b"\r\n\r\n")
            fields[head.split(b'name="')[1].split(b'"')[0].decode()] = value.removesuffix(b"\r\n").decode()
        return fields


class Given(NamedTuple):
    """A response."""

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = {}


StandIn = Callable[[Asked], Given | None]
"""Answers a request. None, like an exception, closes the connection without an answer."""
NOT_FOUND = Given({"detail": "Not Found"}, 404)


@contextmanager
def standing_in(answer: StandIn, asked: list[Asked] | None = None) -> Iterator[str]:
    """The address of a server. `asked` receives its requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Asked(self.command, self.path, headers, self.rfile.read(length))
            if asked is not None:
                asked.append(request)
            try:
                given = answer(request)
            except (LookupError, TypeError, AttributeError, ValueError):  # a naive server dies of these
                given = None
            if given is None:
                self.close_connection = True
                return
            is_json = not isinstance(given.body, bytes | str)
            text = json.dumps(given.body) if is_json else given.body
            content = text.encode() if isinstance(text, str) else text
            self.send_response(given.status)
            kind = "application/json" if is_json else "text/plain"
            for name, value in {"content-type": kind, **given.headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Do nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def reply_to(text: str) -> str:
    return f"You said: {text}"


def at(method: str, path: str, answer: StandIn, document: Any = None) -> StandIn:
    """A server with one route and optionally an OpenAPI document."""

    def routed(request: Asked) -> Given | None:
        if document is not None and (request.method, request.path) == ("GET", "/openapi.json"):
            return Given(document)
        if request.path.partition("?")[0] != path:
            return NOT_FOUND
        return answer(request) if request.method == method else Given({"detail": "Method Not Allowed"}, 405)

    return routed


def document(
    *paths: tuple[str, Mapping[str, Any], list[str]],
    kind: str = "application/json",
    gets: tuple[str, ...] = (),
) -> Any:
    """An OpenAPI document like FastAPI's: paths, properties of their bodies, and required ones."""
    posts = {
        path: {
            "post": {
                "requestBody": {
                    "content": {kind: {"schema": {"properties": dict(properties), "required": required}}}
                },
                "responses": {"200": {"content": {"application/json": {"schema": {}}}}},
            }
        }
        for path, properties, required in paths
    }
    return {"openapi": "3.1.0", "paths": {**posts, **{path: {"get": {}} for path in gets}}}


def missing(*fields: str, where: str = "body") -> Given:
    """A refusal like FastAPI's."""
    detail = [{"type": "missing", "loc": [where, name], "msg": "Field required"} for name in fields]
    return Given({"detail": detail}, 422)


def last_user_text(messages: list[Any]) -> str:
    text: str = messages[-1]["content"]
    return text


def completion_of(text: str) -> Given:
    message = {"role": "assistant", "content": text}
    return Given({"object": "chat.completion", "choices": [{"index": 0, "message": message}]})


def events(*values: Any, kind: str = "text/event-stream", **headers: str) -> Given:
    lines = "".join(
        f"data: {json.dumps(value) if not isinstance(value, str) else value}\n\n" for value in values
    )
    return Given(lines, 200, {"content-type": kind, **headers})
