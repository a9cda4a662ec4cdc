"""An A2A agent on loopback with the answers of a test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from stopping import stop

CARD = "/.well-known/agent-card.json"
Json = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """A JSON-RPC error."""

    code: int
    message: str = "no"
    data: Any = None


@dataclass(frozen=True)
class Stream:
    """Server-sent events: results, `Told`, and texts sent unchanged."""

    events: Sequence[Any]
    cut: bool = False
    """Hang up within the body."""


@dataclass(frozen=True)
class Http:
    """An answer that is not A2A."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A received request."""

    path: str
    method: str
    """The method of JSON-RPC; over HTTP+JSON the path's last part, for a GET the path."""
    params: Any
    headers: Mapping[str, str]
    accept: str = ""


Answer = Callable[[Asked], Any]


@dataclass
class A2aServer:
    """The address, the received requests and the answers."""

    answer: Answer
    cards: Mapping[str, Any] = field(default_factory=dict)
    """Path → card, in which `{port}` is this one's. Other GETs are answered 404, but for those of tasks."""
    rest: bool = False
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    card_paths: list[str] = field(default_factory=list)
    """Which cards were asked for, in order."""

    @property
    def methods(self) -> list[str]:
        return [one.method for one in self.asked]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and not (self.rest and "/tasks/" in request.path):
            return self._card(request.path_qs)
        asked = await self._read(request)
        self.asked.append(asked)
        answered = self.answer(asked)
        if isinstance(answered, Http):
            return web.Response(status=answered.status, text=answered.body, headers=answered.headers)
        if isinstance(answered, Stream):
            return await self._stream(request, answered)
        return web.json_response(self._wrapped(answered))

    def _card(self, path: str) -> web.Response:
        self.card_paths.append(path)
        card = self.cards.get(path)
        if card is None:
            return web.Response(status=404)
        text = json.dumps(card).replace("{port}", self.url.rpartition(":")[2])
        return web.Response(text=text, content_type="application/json")

    async def _read(self, request: web.Request) -> Asked:
        body = json.loads(await request.read() or b"{}")
        accept = request.headers.get("accept", "")
        if self.rest:
            return Asked(request.path, request.path.rpartition("/")[2], body, request.headers, accept)
        return Asked(request.path, body.get("method", ""), body.get("params"), request.headers, accept)

    async def _stream(self, request: web.Request, stream: Stream) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in stream.events:
            text = event if isinstance(event, str) else self._event(event)
            await response.write(text.encode())
        if stream.cut and request.transport:
            request.transport.close()
        return response

    def _event(self, event: Any) -> str:
        name = "event: error\n" if isinstance(event, Told) else ""
        return f"{name}data: {json.dumps(self._wrapped(event))}\n\n"

    def _wrapped(self, answered: Any) -> Any:
        if isinstance(answered, Told):
            error = {"code": answered.code, "message": answered.message, "data": answered.data}
            return {"jsonrpc": "2.0", "id": "1", "error": error}
        return answered if self.rest else {"jsonrpc": "2.0", "id": "1", "result": answered}


@asynccontextmanager
async def serving(server: A2aServer) -> AsyncIterator[A2aServer]:
    """The server, listening."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await stop(runner)


def card(url: str = "/", *, version: str = "1.0", binding: str = "JSONRPC", **more: Any) -> Json:
    """A card of 1.x with one interface."""
    interface = {"url": url, "protocolBinding": binding, "protocolVersion": version}
    return {"name": "shop", "supportedInterfaces": [interface], "capabilities": {}, **more}


def old_card(url: str = "/", **more: Any) -> Json:
    """A card of 0.3."""
    return {"name": "shop", "url": url, "protocolVersion": "0.3.0", "preferredTransport": "JSONRPC", **more}


def text(said: str, **more: Any) -> Json:
    """A part."""
    return {"text": said, **more}


def data(value: Any, **metadata: Any) -> Json:
    """A part."""
    return {"data": value, "metadata": metadata}


def message(*parts: Json | str, user: bool = False, **more: Any) -> Json:
    """A message of the agent, with a new id unless one is given."""
    read = [text(part) if isinstance(part, str) else part for part in parts]
    return {"role": "ROLE_USER" if user else "ROLE_AGENT", "parts": read, **more}


def artifact(id: str, *parts: Json | str, **more: Any) -> Json:
    """An artifact."""
    read = [text(part) if isinstance(part, str) else part for part in parts]
    return {"artifactId": id, "parts": read, **more}


def status(state: str, said: Json | str | None = None) -> Json:
    """A status, its state written as 1.0 does."""
    state = state if state.startswith("TASK_STATE") else f"TASK_STATE_{state.upper().replace('-', '_')}"
    told = message(said, messageId=f"m-{said}") if isinstance(said, str) else said
    return {"state": state, **({} if told is None else {"message": told})}


def task(state: str = "completed", said: Json | str | None = None, id: str = "t-1", **more: Any) -> Json:
    """A task in a result of 1.0."""
    return {"task": {"id": id, "contextId": "ctx-1", "status": status(state, said), **more}}


def update(state: str, said: Json | str | None = None, **more: Any) -> Json:
    """A change of a task's status, as in streams of 1.0."""
    return {"statusUpdate": {"taskId": "t-1", "contextId": "ctx-1", "status": status(state, said), **more}}


def piece(id: str, *parts: Json | str, **more: Any) -> Json:
    """A change of a task's artifact."""
    told = {"taskId": "t-1", "contextId": "ctx-1", "artifact": artifact(id, *parts), **more}
    return {"artifactUpdate": told}


def old(result: Json) -> Json:
    """The same in the spelling of 0.3."""
    ((kind, content),) = result.items()
    names = {"statusUpdate": "status-update", "artifactUpdate": "artifact-update"}
    return {"kind": names.get(kind, kind), **_old(content)}


def _old(value: Any) -> Any:
    if isinstance(value, list):
        return [_old(item) for item in value]
    if isinstance(value, dict):
        kind = next((name for name in ("text", "data") if name in value), None)
        return {**{key: _old(item) for key, item in value.items()}, **({"kind": kind} if kind else {})}
    if isinstance(value, str) and value.startswith(("TASK_STATE_", "ROLE_")):
        return value.removeprefix("TASK_STATE_").removeprefix("ROLE_").lower().replace("_", "-")
    return value
