"""Agents behind a WebSocket, whatever their messages are: address, settings, and how to connect."""

from __future__ import annotations

from ssl import SSLError
from typing import ClassVar, Self

import aiohttp
import anyio
from pydantic import Field, ValidationInfo, field_validator, model_validator

from agentest.agents.error_hints import ProbeResponse, hint
from agentest.agents.http.requests import RequestTemplate
from agentest.agents.http_sender import DENIED, ErrorAdvisor
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AGENT_ANSWERED, AccessDenied
from agentest.agents.protocol_probe import EndpointProbe
from agentest.config.agents.over_http import HttpAgent
from agentest.config.fields import check_headers, check_url, example_url, normal_address
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, CannotSend, errors_as
from agentest.support.http.address_guard import RefusedAddress
from agentest.support.http.client import Client
from agentest.support.http.retries import (
    CONNECTION_ERRORS,
    describe,
    describe_shortage,
    find_shortage,
    has_cause,
    loss_before_response,
    pause_before_retry,
)
from agentest.support.http.websockets import RedirectRefused, WebSocket
from agentest.support.trace_context import note_request, turn_of_requests

_PLACE = "is the path that of the WebSocket?"
_RETRIED = (429, 502, 503, 504)
_SCHEMES = {"ws": "http", "wss": "https"}


def socket_address(value: str) -> str:
    """Return the address of a WebSocket. Raises ValueError."""
    scheme, _, rest = value.partition("://")
    if scheme not in _SCHEMES:
        raise ValueError(f"must start with ws:// or wss://, but is {value!r}; http:// is for other types")
    check_url(example_url(f"{_SCHEMES[scheme]}://{rest}").replace(" ", ""))
    return normal_address(value)


class SocketAgent(HttpAgent):
    """Base class of agents with one WebSocket per conversation."""

    templated: ClassVar[tuple[str, ...]] = ("endpoint", "headers", "body")

    subprotocols: list[str] = Field(default_factory=list)

    @field_validator("endpoint")
    @classmethod
    def _http_url(cls, value: str, info: ValidationInfo) -> str:
        return socket_address(value) if value else super()._http_url(value, info)

    @model_validator(mode="after")
    def _has_a_server(self) -> Self:
        if self.app is not None:
            raise ValueError("`app` is for agents over plain HTTP; start this one by `server`")
        return self


async def opening_message(endpoint: EndpointProbe) -> str | None:
    """Return what a WebSocket sends first, "" for nothing; None if no WebSocket opens where a GET fails."""
    response = await endpoint.get()
    if response is None or response.status not in (400, 403, 404, 405, 426):
        return None
    return await endpoint.websocket_greeting()


class WebSocketConnector:
    """Opens an agent's connections."""

    def __init__(self, config: SocketAgent, client: Client) -> None:
        self._config = config
        self._client = client
        self._advisor = ErrorAdvisor(config, client)
        self._request = RequestTemplate(
            endpoint=config.endpoint, method="GET", params={}, headers=config.sent_headers, body=None
        )

    async def connect(self, values: TurnValues, limit: TimeLimit) -> tuple[WebSocket, int]:
        """Open a connection. Returns it with the number of failed attempts. Raises AgentError, CannotSend."""
        request, turn = self._request.filled(values), turn_of_requests()
        named = {name.lower(): value for name, value in request.headers.items()}
        with errors_as(CannotSend, f"{request.url}: a header "):
            headers = list(check_headers({**named, **(turn.headers(named) if turn else {})}).items())
        for attempt in range(self._config.retries + 1):
            try:
                socket = await self._client.open_websocket(request.url, headers, self._config.subprotocols)
                self._advisor.has_answered = True
                AGENT_ANSWERED.set(True)
                note_request(stays_open=True)
                return socket, attempt
            except RefusedAddress as error:
                raise AgentError(str(error)) from None
            except CONNECTION_ERRORS as error:
                shortage, last = find_shortage(error), attempt == self._config.retries
                if shortage and last:
                    raise CannotSend(describe_shortage(request.url, shortage)) from None
                if isinstance(error, aiohttp.WSServerHandshakeError):
                    retryable = error.status in _RETRIED
                else:
                    retryable = bool(loss_before_response(error))
                if last or not (shortage or retryable):
                    problem = await self._problem(request.url, error)
                    is_denied = _denies_access(error) and not AGENT_ANSWERED.get()
                    raise (AccessDenied if is_denied else AgentError)(problem) from None
            with limit.paused():
                await anyio.sleep(pause_before_retry(attempt + 1))
        raise AssertionError("unreachable: the last attempt either connects or raises")

    async def _problem(self, url: str, error: BaseException) -> str:
        problem = _problem(url, error)
        if not isinstance(error, aiohttp.WSServerHandshakeError) or error.status == 101:
            return problem
        # ASGI servers send 403 for a path without a WebSocket, so treat it as 404.
        status = 404 if error.status == 403 else error.status
        refused = ProbeResponse(status=status, headers=error.headers or {}, body=b"")
        return await self._advisor.advised(problem, refused)


def _denies_access(error: BaseException) -> bool:
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return error.status in (200, *DENIED)
    return isinstance(error, RedirectRefused) or has_cause(error, SSLError)


def _problem(url: str, error: BaseException) -> str:
    if isinstance(error, RedirectRefused):
        return f"{url} opened no WebSocket, {error} (is that a login? `headers` are sent with the handshake)"
    if not isinstance(error, aiohttp.WSServerHandshakeError):
        return f"{url}: {describe(error)}"
    if error.status == 101:
        return f"{url} answered with an invalid handshake: {error.message}"
    if error.status == 200:
        return f"{url} answered as a web page or an API does, and opened no WebSocket ({_PLACE})"
    advice = _PLACE if error.status in (405, 426) else hint(error.status, _PLACE)
    if error.status == 403:  # many servers answer it at every path without a WebSocket
        advice = f"{_PLACE} If so: {advice}"
    return f"{url} opened no WebSocket, it answered {error.status}{f' ({advice})' if advice else ''}"
