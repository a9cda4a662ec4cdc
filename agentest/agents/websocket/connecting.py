"""Connecting to an agent's WebSocket: again where that is safe, with what a refusal means."""

from __future__ import annotations

import aiohttp
import anyio

from agentest.agents.hints import hint
from agentest.agents.http.requests import RequestTemplate
from agentest.agents.http_sender import advisor_of
from agentest.agents.placeholders import TurnValues
from agentest.agents.probing import Seen
from agentest.config.agents.websocket import WebSocketAgent
from agentest.config.fields import check_headers
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, CannotSend
from agentest.support.http.client import Client
from agentest.support.http.guard import RefusedAddress
from agentest.support.http.retries import (
    CONNECTION_ERRORS,
    describe,
    own_shortage,
    pause_before_retry,
    was_refused,
)
from agentest.support.http.shortages import shortage_told
from agentest.support.http.websockets import RedirectRefused, WebSocket
from agentest.support.trace_context import note_request, turn_of_requests

_PLACE = "is the path that of the WebSocket?"
_AGAIN = (429, 502, 503, 504)


class Connector:
    """Makes the connections of an agent."""

    def __init__(self, config: WebSocketAgent, client: Client) -> None:
        self._config = config
        self._client = client
        self._advisor = advisor_of(config, client)
        self._request = RequestTemplate(
            endpoint=config.endpoint, method="GET", params={}, headers=config.headers, body=None
        )

    async def connect(self, values: TurnValues, limit: TimeLimit) -> tuple[WebSocket, int]:
        """A connection, and how many attempts failed before. Raises AgentError, CannotSend."""
        request = self._request.filled(values)
        try:
            headers = list(check_headers(_naming_the_turn(dict(request.headers))).items())
        except ValueError as error:
            raise CannotSend(f"{request.url}: a header {error}") from None
        for attempt in range(self._config.retries + 1):
            try:
                socket = await self._client.open_websocket(request.url, headers, self._config.subprotocols)
                self._advisor.has_answered = True
                note_request(stays_open=True)
                return socket, attempt
            except RefusedAddress as error:
                raise AgentError(str(error)) from None
            except CONNECTION_ERRORS as error:
                shortage, last = own_shortage(error), attempt == self._config.retries
                if shortage and last:
                    raise CannotSend(shortage_told(request.url, shortage)) from None
                if last or not (shortage or _may_be_repeated(error)):
                    raise AgentError(await self._problem(request.url, error)) from None
            with limit.paused():
                await anyio.sleep(pause_before_retry(attempt + 1))
        raise AssertionError("unreachable: the last attempt either connects or raises")

    async def _problem(self, url: str, error: BaseException) -> str:
        problem = _problem(url, error)
        if not isinstance(error, aiohttp.WSServerHandshakeError) or error.status == 101:
            return problem
        # 403 says that nobody is there: so do servers of ASGI for a path without a WebSocket.
        status = 404 if error.status == 403 else error.status
        refused = Seen(status=status, headers=error.headers or {}, body=b"")
        return await self._advisor.advised(problem, refused)


def _naming_the_turn(headers: dict[str, str]) -> dict[str, str]:
    turn = turn_of_requests()
    if turn is None:
        return headers
    own = {name.lower(): value for name, value in headers.items()}
    return {**own, **turn.headers(own)}


def _may_be_repeated(error: BaseException) -> bool:
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return error.status in _AGAIN
    return was_refused(error)


def _problem(url: str, error: BaseException) -> str:
    if isinstance(error, RedirectRefused):
        return f"{url} opened no WebSocket, {error} (is that a login? `headers` are sent with the handshake)"
    if not isinstance(error, aiohttp.WSServerHandshakeError):
        return f"{url}: {describe(error)}"
    if error.status == 101:
        return f"{url} answered with a handshake that is none: {error.message}"
    if error.status == 200:
        return f"{url} answered as a web page or an API does, and opened no WebSocket ({_PLACE})"
    advice = _hint(error.status)
    return f"{url} opened no WebSocket, it answered {error.status}{f' ({advice})' if advice else ''}"


def _hint(status: int) -> str:
    if status in (405, 426):
        return _PLACE
    # Many servers refuse a WebSocket so at every path that has none.
    return f"{_PLACE} If so: {hint(status, _PLACE)}" if status == 403 else hint(status, _PLACE)
