"""One request to an ASGI application: its body comes as the application sends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from multidict import CIMultiDict, CIMultiDictProxy

from agentest.support.calling import Steps, ends_the_run, words_of
from agentest.support.http.bodies import MAX_BODY_BYTES

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]

_RAISED = 500
"""What frameworks answer before they pass an exception on to the server."""


class AppFailed(Exception):
    """The application raised, or broke the protocol: the agent's own error, in one sentence."""


class Hangup(OSError):
    """What an application gets that sends to somebody who does not listen any more."""


def raised(error: BaseException) -> str:
    """What an application has raised, in words."""
    return f"the application raised {type(error).__name__}: {words_of(error)}"


class Exchange:
    """A request under way, and its answer: what `agentest.support.http.bodies.RawAnswer` asks for.

    As behind a server, the application does not end with its answer, nor when nobody listens any more.
    """

    def __init__(self, url: str, content: bytes) -> None:
        self.url = url
        self.status = 0
        self.raw_headers: tuple[tuple[bytes, bytes], ...] = ()
        self.late_error: BaseException | None = None
        """What the application raised when its answer was complete."""
        self._request: bytes | None = content
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue(maxsize=1)
        self._over, self._ended = asyncio.Event(), asyncio.Event()
        self._error: BaseException | None = None
        self._steps = Steps()
        self._first: list[bytes] = []
        self._complete = False
        self._sent_all = False

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        return CIMultiDictProxy(
            CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in self.raw_headers)
        )

    @property
    def content(self) -> Exchange:
        return self

    @property
    def held_up(self) -> float:
        """Seconds for which the application has held up the event loop itself."""
        return self._steps.blocked

    async def run(self, app: App, scope: Mapping[str, Any]) -> None:
        """Call the application. Raises nothing but cancellation."""
        try:
            await self._steps.of(app(scope, self._receive, self._send))
        except BaseException as error:  # what it raises may be anything
            if ends_the_run(error):
                raise
            self._error = error
            self.late_error = error if self._sent_all else None
        finally:
            self._ended.set()
        if not self._over.is_set():
            await self._messages.put(None)

    async def begin(self) -> None:
        """Wait for status and headers. Raises AppFailed; also where a 500 stands for an exception."""
        start = await self._next()
        if start["type"] != "http.response.start":
            raise AppFailed(f"the application sent {start['type']!r} before the start of its answer")
        try:
            self.status = int(start["status"])
            self.raw_headers = tuple((bytes(name), bytes(value)) for name, value in start.get("headers", ()))
        except (KeyError, TypeError, ValueError) as error:
            raise AppFailed(f"the start of the application's answer cannot be read: {error!r}") from None
        if self.status == _RAISED:
            await self._read_ahead()

    async def _read_ahead(self) -> None:
        """Read to the end, for what the application raises there says more than its answer."""
        size = 0
        async for piece in self._pieces():
            self._first.append(piece)
            size += len(piece)
            if size > MAX_BODY_BYTES:
                return
        await self._ended.wait()
        if self._error is not None:
            self.late_error = None
            raise AppFailed(raised(self._error))

    async def iter_any(self) -> AsyncIterator[bytes]:
        """The body, piece by piece. Raises AppFailed."""
        for piece in self._first:
            yield piece
        async for piece in self._pieces():
            yield piece

    async def _pieces(self) -> AsyncIterator[bytes]:
        while not self._complete:
            message = await self._next()
            if message["type"] != "http.response.body":
                raise AppFailed(f"the application sent {message['type']!r} within its answer")
            if not message.get("more_body", False):
                self._complete = True
                self._over.set()
            if body := message.get("body", b""):
                yield _bytes(body)

    async def _next(self) -> Message:
        message = await self._messages.get()
        if message is not None:
            if isinstance(message, Mapping) and isinstance(message.get("type"), str):
                return message
            raise AppFailed(f"the application sent what is no message of ASGI: {message!r:.100}")
        if self._error is not None:
            raise AppFailed(raised(self._error))
        raise AppFailed("the application returned before its answer was complete")

    def release(self) -> None:
        """Hang up. An application that asks, or goes on sending, learns of it."""
        self._over.set()
        if not self._messages.empty():
            self._messages.get_nowait()  # whoever waits to send the next goes on

    async def _receive(self) -> Message:
        if self._request is not None:
            body, self._request = self._request, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if not self._complete and self._over.is_set():
            raise Hangup("nobody listens any more")
        if not self._over.is_set():  # what comes after the end of an answer is lost behind a server, too
            self._sent_all = self._sent_all or _is_last(message)
            await self._messages.put(message)


def _is_last(message: Any) -> bool:
    """Whether an answer is complete with a message, which may be anything."""
    is_body = isinstance(message, Mapping) and message.get("type") == "http.response.body"
    return is_body and not message.get("more_body", False)


def _bytes(body: Any) -> bytes:
    """A piece of the body. Raises AppFailed: of a number, bytes() would make as many zeros."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise AppFailed(f"the application sent a {type(body).__name__} as the body of its answer, expected bytes")
