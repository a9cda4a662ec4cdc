"""WebSockets for text, with the size limits of bodies and the same address guard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import aiohttp
import anyio

from agentest.support.http.bodies import MAX_BODY_BYTES

_MAX_WAITING = 1000
_MAX_WAITING_CHARS = MAX_BODY_BYTES
"""Maximum size of received messages that wait to be read. Beyond it, the other side has to wait."""
_CLOSE_S = 2.0

RawSocket = aiohttp.ClientWebSocketResponse


class SocketClosed(Exception):
    """The connection has ended. The message follows "the connection": "was closed (code 1011)"."""


class NotText(Exception):
    """A received message is not UTF-8 text."""


class WebSocket:
    """One connection. It reads and queues messages immediately, so that pings are answered in time."""

    def __init__(self, raw: RawSocket) -> None:
        self.answer: Callable[[str], str | None] = lambda _: None
        """Returns the answer to a message that only checks the connection, which is not queued."""
        self._raw = raw
        self._messages: asyncio.Queue[str | Exception] = asyncio.Queue(maxsize=_MAX_WAITING)
        self._waiting_chars = 0
        self._room = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    async def send(self, text: str) -> None:
        """Send a text. Raises SocketClosed."""
        try:
            await self._raw.send_str(text)
        except (ConnectionError, aiohttp.ClientError, RuntimeError):
            raise self._over() from None

    async def next(self) -> str:
        """Return the next text. Raises SocketClosed or NotText."""
        message = await self._messages.get()
        if isinstance(message, Exception):
            self._messages.put_nowait(message)  # nothing follows it
            raise message
        return self._taken(message)

    def waiting(self) -> list[str]:
        """Return the received texts that have not been read."""
        texts: list[str] = []
        while not self._messages.empty():
            message = self._messages.get_nowait()
            if isinstance(message, Exception):
                self._messages.put_nowait(message)
                break
            texts.append(self._taken(message))
        return texts

    def _taken(self, text: str) -> str:
        self._waiting_chars -= len(text)
        self._room.set()
        return text

    async def _keep(self, text: str) -> None:
        if (answer := self.answer(text)) is not None:
            with suppress(SocketClosed):  # what is read next tells the reason
                await self.send(answer)
            return
        while self._waiting_chars > _MAX_WAITING_CHARS:
            self._room.clear()
            await self._room.wait()
        self._waiting_chars += len(text)
        await self._messages.put(text)

    async def _read(self) -> None:
        while True:
            message = await self._raw.receive()
            if message.type is aiohttp.WSMsgType.TEXT:
                await self._keep(message.data)
                continue
            if message.type is aiohttp.WSMsgType.BINARY:
                try:
                    await self._keep(message.data.decode())
                    continue
                except UnicodeDecodeError:
                    problem: Exception = NotText(f"{len(message.data)} bytes that are not a text in UTF-8")
            elif message.type is aiohttp.WSMsgType.ERROR:
                problem = SocketClosed(f"broke: {message.data}")
            else:
                problem = self._over()
            await self._messages.put(problem)
            return

    def _over(self) -> SocketClosed:
        code = self._raw.close_code
        if code is None or code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE:
            return SocketClosed("was lost")
        name = next((each.name.lower().replace("_", " ") for each in aiohttp.WSCloseCode if each == code), "")
        return SocketClosed(f"was closed by the server (code {code}{', ' * bool(name)}{name})")

    async def close(self) -> None:
        """Close the connection within seconds. Raises nothing."""
        with anyio.CancelScope(shield=True):
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
            with anyio.move_on_after(_CLOSE_S), suppress(aiohttp.ClientError, OSError):
                await self._raw.close()


class RedirectRefused(aiohttp.ClientError):
    """A handshake was answered with a redirect, which would bypass the address guard."""


async def _refuse_redirect(
    _: aiohttp.ClientSession, __: object, params: aiohttp.TraceRequestRedirectParams
) -> None:
    location = params.response.headers.get("location", "nowhere")
    raise RedirectRefused(f"it answered {params.response.status} and points to {location}")


def websocket_session(connector: aiohttp.BaseConnector | None) -> aiohttp.ClientSession:
    """Open a session for handshakes over existing connections. It follows no redirects."""
    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_refuse_redirect)
    return aiohttp.ClientSession(
        connector=connector,
        connector_owner=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        trace_configs=[tracing],
    )


async def connected(
    session: aiohttp.ClientSession, url: str, headers: list[tuple[str, str]], protocols: tuple[str, ...]
) -> WebSocket:
    """Connect. Raises CONNECTION_ERRORS, or aiohttp.WSServerHandshakeError for another response."""
    raw = await session.ws_connect(url, headers=headers, protocols=protocols, max_msg_size=MAX_BODY_BYTES)
    return WebSocket(raw)
