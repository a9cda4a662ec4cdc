"""The gateway's HTTP server, which agents use as the address of their model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from agentest.config.agents.mock_servers import ModelGateway
from agentest.mock_servers.listener import ServerInputs, listen
from agentest.mock_servers.model_gateway.addresses import Target, target_of
from agentest.mock_servers.model_gateway.conversation import GatewayConversation
from agentest.mock_servers.model_gateway.exchange import GatewayError, ModelExchange
from agentest.mock_servers.model_gateway.placement import Unplaced, place
from agentest.mock_servers.model_gateway.traffic import GatewayTraffic
from agentest.mock_servers.model_gateway.wire_form import Json, WireForm
from agentest.support.http.address_guard import RefusedAddress
from agentest.support.http.bodies import BodyRefused, read_body
from agentest.support.http.client import Client, DirectResponse, Headers
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.lazy_dataclasses import dataclass

MAX_BODY_BYTES = 64_000_000
_HOP_BY_HOP = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_RESPONSE_ID = re.compile(r"(?<=/responses/)[^/?]+")
_FINAL = {"x-should-retry": "false"}
"""Tells the clients of OpenAI and Anthropic that a repetition gets the same answer."""


async def open_model_gateway(settings: ModelGateway, opening: ServerInputs) -> str:
    """Serve the gateway until the run ends. Returns its origin. Raises ConfigError."""
    traffic = GatewayTraffic(
        agent=opening.group.agents[0],
        on_request=lambda: opening.registry.reach(opening.group, "model_gateway", ()),
        mocks=settings.mocks,
        allows_real=opening.passthrough or not settings.mocks,
        on_note=opening.on_note,
    )
    app = gateway_application(settings, traffic, opening.client)
    origin = await listen(
        app, settings, opening.key_location("model_gateway"), opening.stack, opening.on_note
    )
    traffic.state.origin = origin
    opening.group.model_traffic = traffic
    return origin


def gateway_application(settings: ModelGateway, traffic: GatewayTraffic, client: Client) -> web.Application:
    """Create the gateway's web application."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _Gateway(settings, traffic, client).handle)
    return app


class _Gateway:
    def __init__(self, settings: ModelGateway, traffic: GatewayTraffic, client: Client) -> None:
        self._settings = settings
        self._traffic = traffic
        traffic.state.memory, traffic.state.on_note = settings.memory, traffic.on_note
        self._client = client

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer any request."""
        try:
            path = _with_model(request.path, self._settings.override.model)
            target = target_of(path, request.query_string, self._settings.upstream)
        except ValueError as error:
            return _json_error(404, str(error), None)
        try:
            data = await read_body(request, MAX_BODY_BYTES)
        except BodyRefused as error:
            return _json_error(error.status, f"the body {error}", target.form)
        url = _RESPONSE_ID.sub(lambda known: self._traffic.last_id(known[0]), target.url)
        upstream = _Upstream(self._client, request.method, url, _passed_headers(request))
        reply = _Reply(request, target.form)
        try:
            if target.form is None or request.method != "POST":
                await _pass_on(upstream, data, reply)
            else:
                await self._model_request(target, target.form, data, upstream, reply)
        except GatewayError as error:
            await reply.refuse(error.status, str(error))
        return reply.response

    async def _model_request(
        self, target: Target, form: WireForm, data: bytes, upstream: _Upstream, reply: _Reply
    ) -> None:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise GatewayError(f"the request is not JSON: {error}", 400) from None
        if not isinstance(body, dict):
            raise GatewayError("the request is not a JSON object", 400)
        self._traffic.state.reached = True
        self._traffic.on_request()
        body = form.overridden(body, self._settings.override)
        read = form.request(body, target.url)
        owner = self._traffic.named(target.conversation) if target.conversation else None
        if target.conversation and owner is None:
            raise GatewayError("the conversation that this address names has ended", 409)
        traffic = self._traffic
        placed = owner or place(read, traffic.active, traffic.ended, traffic.state.owners)
        if isinstance(placed, Unplaced):
            await self._traffic.note_unplaced(placed, offers_tools=bool(read.tools))
            if placed.tool:
                raise GatewayError(
                    f"Agentest did not pass this request to the model: {placed.why}, and it offers the tool "
                    f"{placed.tool!r}, which must not run",
                    409,
                )
            await _pass_on(upstream, json.dumps(body, ensure_ascii=False).encode(), reply)
            return
        if read.unmockable and self._offers_mocked(placed, read.tools):
            raise GatewayError(f"mocks cannot answer the calls of this request: {read.unmockable}", 400)
        with placed.requested(read):
            await ModelExchange(form, read, placed, upstream, reply).run()

    def _offers_mocked(self, conversation: GatewayConversation, tools: Mapping[str, Json]) -> bool:
        return any(map(conversation.guards, tools))


@dataclass(frozen=True, slots=True)
class _Upstream:
    """Implements `exchange.ModelApi` over HTTP."""

    client: Client
    method: str
    url: str
    headers: Headers

    async def send(self, body: Json) -> DirectResponse:
        return await self.send_bytes(json.dumps(body, ensure_ascii=False).encode())

    async def send_bytes(self, data: bytes | None) -> DirectResponse:
        try:
            return await self.client.send_direct(self.method, self.url, self.headers, data)
        except RefusedAddress as error:
            raise GatewayError(str(error)) from None
        except CONNECTION_ERRORS as error:
            raise GatewayError(
                f"the gateway cannot reach the model at {self.url.partition('?')[0]}: {describe(error)}"
            ) from None


class _Reply:
    """Implements `exchange.Reply` for one request."""

    def __init__(self, request: web.Request, form: WireForm | None) -> None:
        self._request = request
        self._form = form
        self._headers: list[tuple[str, str]] = [("Content-Type", "text/event-stream")]
        self._status = 200
        self.response: web.StreamResponse = web.Response(status=500)
        self.begun = False

    def like(self, response: DirectResponse) -> None:
        self._status, self._headers = response.status_code, _response_headers(response)

    async def write(self, data: bytes) -> None:
        if not self.begun:
            self.begun = True
            self.response = web.StreamResponse(status=self._status, headers=_multi(self._headers))
            await self.response.prepare(self._request)
        await self.response.write(data)

    async def whole(self, response: DirectResponse, body: bytes) -> None:
        self.response = web.Response(
            status=response.status_code, headers=_multi(_response_headers(response)), body=body
        )

    async def refuse(self, status: int, message: str) -> None:
        if not self.begun:
            self.response = _json_error(status, message, self._form)


def _with_model(path: str, model: str | None) -> str:
    """Return a path with another model, where an API has the model in its paths."""
    return re.sub(r"(?<=models/)[^/:]+(?=:)", lambda _: model, path) if model else path


async def _pass_on(upstream: _Upstream, data: bytes, reply: _Reply) -> None:
    """Send a request to the model's API unchanged, and its response to the agent as it comes."""
    response = await upstream.send_bytes(data or None)
    try:
        reply.like(response)
        async for piece in response.pieces():
            await reply.write(piece)
        await reply.write(b"")
    finally:
        await response.aclose()


def _passed_headers(request: web.Request) -> Headers:
    return tuple((name, value) for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP)


def _response_headers(response: DirectResponse) -> list[tuple[str, str]]:
    left_out = _HOP_BY_HOP | {"content-encoding", "date", "server"}
    return [(name, value) for name, value in response.headers.items() if name.lower() not in left_out]


def _multi(headers: list[tuple[str, str]]) -> Any:
    from multidict import CIMultiDict

    return CIMultiDict(headers)


def _json_error(status: int, message: str, form: WireForm | None) -> web.Response:
    body = form.error(status, message) if form else {"error": {"message": message}}
    return web.json_response(body, status=status, headers=_FINAL)
