"""A real MCP server over streamable HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agentest.mock_servers.mcp.upstream import SessionLost, UpstreamError, reply_to
from agentest.support.deadlines import TimeLimit
from agentest.support.http.bodies import BadBody
from agentest.support.http.client import Client, DirectResponse
from agentest.support.http.guard import RefusedAddress
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.http.sse import events
from agentest.support.json_text import json_text
from agentest.support.redact import without_credentials
from agentest.support.text import shortened

_SESSION = "mcp-session-id"
_SHOWN_CHARS = 200
_LAST_WORDS_S = 2.0


class HttpTransport:
    """Requests to one address. What it is told to send along, like credentials, goes with each."""

    def __init__(self, client: Client, url: str, headers: Mapping[str, str]) -> None:
        self._client = client
        self._url = url
        self._headers = {name.lower(): value for name, value in headers.items()}
        self._session: str | None = None
        self._version: str | None = None
        self.shown = f"the real MCP server at {without_credentials(url)}"

    def agreed(self, version: str | None) -> None:
        self._version = version
        if version is None:
            self._session = None

    async def ask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        response = await self._send(message)
        try:
            self._check(response)
            self._session = response.headers.get(_SESSION, self._session)
            return await self._answer(response, message["id"])
        except BadBody as error:
            raise UpstreamError(f"{self.shown}: the answer {error}") from None
        except CONNECTION_ERRORS as error:
            raise UpstreamError(f"{self.shown}: its answer was cut off ({describe(error)})") from None
        finally:
            await response.aclose()

    async def tell(self, message: Mapping[str, Any]) -> None:
        response = await self._send(message)
        try:
            self._check(response)
        finally:
            await response.aclose()

    async def close(self) -> None:
        """End the session, which the server keeps otherwise for as long as it likes."""
        if self._session is None:
            return
        with suppress(RefusedAddress, *CONNECTION_ERRORS), TimeLimit(_LAST_WORDS_S):
            headers = list(self._all_headers().items())
            await (await self._client.send_direct("DELETE", self._url, headers, None)).aclose()

    async def _send(self, message: Mapping[str, Any]) -> DirectResponse:
        try:
            return await self._client.send_direct(
                "POST", self._url, list(self._all_headers().items()), json_text(message).encode()
            )
        except RefusedAddress as error:
            raise UpstreamError(f"{self.shown}: {error}") from None
        except CONNECTION_ERRORS as error:
            raise UpstreamError(f"{self.shown} cannot be reached: {describe(error)}") from None

    def _all_headers(self) -> dict[str, str]:
        known = {_SESSION: self._session, "mcp-protocol-version": self._version}
        return {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **{name: value for name, value in known.items() if value},
            **self._headers,
        }

    def _check(self, response: DirectResponse) -> None:
        """Raise for a status that is none of success."""
        status = response.status_code
        if status == 404 and (self._session or not self._version):
            raise SessionLost
        if status in (401, 403):
            raise UpstreamError(
                f"{self.shown} answered {status}: it wants credentials. Write them into the agent's "
                "`mcp_mock`: upstream_headers: {Authorization: Bearer ${TOKEN}}"
            )
        if 300 <= status < 400:
            where = response.headers.get("location", "nowhere")
            raise UpstreamError(f"{self.shown} answered {status}: it is at {where}; write that URL")
        if status >= 400:
            raise UpstreamError(f"{self.shown} answered {status}: is it its streamable HTTP endpoint?")

    async def _answer(self, response: DirectResponse, request_id: Any) -> Mapping[str, Any]:
        if "text/event-stream" not in response.headers.get("content-type", ""):
            return self._message(b"".join([piece async for piece in response.pieces()]))
        async for event in events(response.pieces()):
            if not event.data:
                continue
            message = self._message(event.data.encode())
            if message.get("id") == request_id and "method" not in message:
                return message
            if reply := reply_to(message):
                await self.tell(reply)
        raise UpstreamError(f"{self.shown}: its stream ended without the answer")

    def _message(self, text: bytes) -> Mapping[str, Any]:
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            shown = shortened(text[:1000].decode(errors="replace"), _SHOWN_CHARS)
            raise UpstreamError(f"{self.shown} answered no MCP message: {shown!r}")
        return message
