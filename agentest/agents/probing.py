"""What an endpoint speaks: asked by requests that no agent answers with work.

Each protocol has a module `probe` with `async def probe(look: Look) -> Finding | None`.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin, urlsplit

import anyio

from agentest.agents.asgi.exchange import AppFailed
from agentest.support.deadlines import TimeLimit
from agentest.support.http.bodies import BadBody
from agentest.support.http.client import Client, Headers, Sender
from agentest.support.http.guard import RefusedAddress
from agentest.support.http.retries import CONNECTION_ERRORS

USER_AGENT = "agentest (looks what this server speaks)"
_TIMEOUT_S = 2.0
_READ_BYTES = 200_000
_NOT_OF_SOCKETS = ("accept", "accept-encoding", "content-type", "user-agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One answer, as far as it was read."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body's JSON value; None where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What an endpoint was found to speak."""

    settings: Mapping[str, Any]
    """What to write under `agent`: `type`, `endpoint`, and what else it needs."""
    because: str
    """What was seen, as the end of a sentence: "its /info names a LangGraph server"."""


def as_settings(settings: Mapping[str, Any]) -> str:
    """Settings as YAML on one line, to be copied: `type: a2a, endpoint: http://localhost:8000`."""
    return ", ".join(f"{key}: {_yaml(value)}" for key, value in settings.items())


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{as_settings(value)}}}"
    is_plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./:@+-]*", value) is not None
    return value if is_plain and not value.endswith(":") else json.dumps(value, ensure_ascii=False)


@dataclass(slots=True)
class Look:
    """Requests to one address, each sent once. Whatever fails is an answer of None."""

    url: str
    """The endpoint as it is configured."""
    client: Sender
    headers: Headers = ()
    only_gets: bool = False
    """Whether what is asked by POST is left unasked."""
    _seen: dict[tuple[str, str, bytes | None], Seen | None] = field(default_factory=dict)
    _opens: bool | None = None
    _one_at_a_time: anyio.Lock = field(default_factory=anyio.Lock)

    async def get(self, path: str = "") -> Seen | None:
        """The answer to a GET of a path of the same server ("" for the endpoint itself)."""
        return await self._send("GET", urljoin(self.url, path) if path else self.url, None)

    async def post_nothing(self, path: str = "") -> Seen | None:
        """The answer to a POST of `{}`, which a server that checks its input refuses."""
        if self.only_gets:
            return None
        return await self._send("POST", urljoin(self.url, path) if path else self.url, b"{}")

    async def places(self, *usual: str) -> AsyncIterator[str]:
        """Where to ask: at the endpoint ("") and, if nobody takes a POST there, at paths that are usual."""
        yield ""
        itself = await self.post_nothing()
        if itself is None or itself.status in (404, 405) or urlsplit(self.url).path in ("", "/"):
            for path in usual:
                yield path

    async def opens_websocket(self) -> bool:
        """Whether a WebSocket opens at the endpoint. Nothing is said there, and it is closed at once."""
        async with self._one_at_a_time:
            if self._opens is None:
                self._opens = await self._opened()
            return self._opens

    async def _opened(self) -> bool:
        if not isinstance(self.client, Client):
            return False  # an application in this process
        headers = [(name, value) for name, value in self.headers if name not in _NOT_OF_SOCKETS]
        headers.append(("user-agent", USER_AGENT))
        try:
            with TimeLimit(_TIMEOUT_S):
                socket = await self.client.open_websocket(self.url, headers)
                await socket.close()
                return True
        except (*CONNECTION_ERRORS, TimeoutError, RefusedAddress):
            return False

    async def _send(self, method: str, url: str, content: bytes | None) -> Seen | None:
        key = (method, url, content)
        async with self._one_at_a_time:  # many conversations may fail at once
            if key not in self._seen:
                self._seen[key] = await self._answer(method, url, content)
            return self._seen[key]

    async def _answer(self, method: str, url: str, content: bytes | None) -> Seen | None:
        ours = {"accept": "*/*", "content-type": "application/json", "user-agent": USER_AGENT}
        headers = [*((name, value) for name, value in self.headers if name not in ours), *ours.items()]
        try:
            with TimeLimit(_TIMEOUT_S):
                response = await self.client.send_direct(method, url, headers, content)
                try:
                    body = b""
                    async for piece in response.pieces():
                        body += piece
                        if len(body) >= _READ_BYTES:
                            break
                    return Seen(status=response.status_code, headers=response.headers, body=body)
                finally:
                    await response.aclose()
        except (*CONNECTION_ERRORS, BadBody, TimeoutError, RefusedAddress, AppFailed):
            return None  # that nothing answers there is what was asked
