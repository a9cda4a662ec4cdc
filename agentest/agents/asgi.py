"""Run an agent's ASGI application in this process and send requests to it without a socket."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio
from multidict import CIMultiDict, CIMultiDictProxy

from agentest.agents.port import AppFailed
from agentest.support.calling import end_tasks, ends_the_run, message_of_error
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import ConfigError, EventLoopBlocked, errors_as
from agentest.support.function_threads import BlockingTimer
from agentest.support.http.bodies import MAX_BODY_BYTES
from agentest.support.http.client import DirectResponse, Headers
from agentest.support.importing import import_object

_LAST_REQUESTS_S = 5.0  # seconds that unfinished requests may take at the end of the run
STARTUP_S = 60.0
SHUTDOWN_S = 10.0
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]
_RAISED = 500  # the status that frameworks send before they re-raise an exception to the server


def load_app(name: str, app: App | str, root: Path) -> App:
    """Return the agent's application. Raises ConfigError if it cannot be imported or is not callable."""
    target: Any = app
    if isinstance(app, str):
        with errors_as(ConfigError, f"agent {name!r}: app: "):
            target = import_object(app, root)
    if not callable(target):
        raise ConfigError(
            f"agent {name!r}: app: {app!r} is not an ASGI application, like FastAPI's, but {target!r:.100}"
        )
    with suppress(ValueError):  # some callables have no signature
        try:
            inspect.signature(target).bind({}, None, None)
        except TypeError:
            raise ConfigError(
                f"agent {name!r}: app: {app!r} does not take (scope, receive, send), as ASGI "
                "applications do. Name the application itself, not the function that makes it; one of WSGI "
                "(Flask, Django's wsgi) needs a wrapper like asgiref.wsgi.WsgiToAsgi"
            ) from None
    return target  # type: ignore[no-any-return]


@asynccontextmanager
async def running_app(name: str, app: App, on_note: Callable[[str], None]) -> AsyncIterator[RunningApp]:
    """Run the agent's application from startup to shutdown. Raises ConfigError if it does not start.

    `on_note` receives problems that occur after a response is complete or during shutdown.
    """
    lifespan = Lifespan(app)
    if problem := await lifespan.start():
        raise ConfigError(f"agent {name!r}: the application did not start: {problem}")
    running = RunningApp(app, lifespan.state)
    try:
        yield running
    finally:
        with anyio.CancelScope(shield=True):
            await running.finish()
            problem = await lifespan.stop()
        for note in [*running.problems, *([f"the application ended badly: {problem}"] if problem else [])]:
            on_note(f"agent {name!r}: {note}")


class RunningApp:
    """Sends requests to an application in this process (implements `agentest.support.http.client.Sender`)."""

    def __init__(self, app: App, state: dict[str, Any]) -> None:
        self._app = app
        self._state = state
        self._running_requests: dict[asyncio.Task[None], AsgiExchange] = {}
        self._late_errors: Counter[str] = Counter()
        self.left = ""  # a message about requests that did not end, or ""

    async def send_direct(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> DirectResponse:
        """Send a request. The caller reads the body and closes the response. Raises AppFailed."""
        content = content or b""
        exchange = AsgiExchange(url, content)
        scope = _scope(method, url, headers, content) | {"state": dict(self._state)}
        task = asyncio.create_task(exchange.run(self._app, scope))
        self._running_requests[task] = exchange
        task.add_done_callback(self._done)
        try:
            await exchange.begin()
        except BaseException:
            exchange.release()
            raise
        return DirectResponse(exchange)

    def _done(self, task: asyncio.Task[None]) -> None:
        if error := self._running_requests.pop(task).late_error:
            self._late_errors[describe_app_error(error)] += 1

    async def finish(self) -> None:
        """Wait up to `_LAST_REQUESTS_S` seconds for requests that are still running, then cancel them."""
        tasks = list(self._running_requests)
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_REQUESTS_S)
        if await end_tasks([task for task in tasks if not task.done()]):
            self.left = "its work on requests does not end: it continues when it is cancelled"

    @property
    def problems(self) -> list[str]:
        """Errors that the application raised after complete responses. A server would only log them."""
        counted = ((problem, "once" if n == 1 else f"{n} times") for problem, n in self._late_errors.items())
        late = [f"{problem} after its answer, {often}" for problem, often in counted]
        return [*late, self.left] if self.left else late


def _scope(method: str, url: str, headers: Headers, content: bytes) -> dict[str, Any]:
    parts = urlsplit(url)
    host, port = parts.hostname or "localhost", parts.port or {"http": 80, "https": 443}[parts.scheme]
    sent = {"host": parts.netloc.rpartition("@")[2], "content-length": str(len(content))}
    sent |= {name.lower(): value for name, value in headers}
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": parts.scheme,
        "path": unquote(parts.path) or "/",
        "raw_path": (parts.path or "/").encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent.items()],
        "client": ("127.0.0.1", 0),
        "server": (host, port),
    }


class Lifespan:
    """Runs the lifespan protocol of one application.

    An application that raises immediately, before it receives the startup event, does not support lifespan.
    That is not an error.
    """

    def __init__(self, app: App) -> None:
        self.state: dict[str, Any] = {}  # state that the startup stored for requests
        self._app = app
        self._task: asyncio.Task[None] | None = None
        self._receive_calls = 0
        self._started, self._stopping, self._stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._problem: str | None = None

    async def start(self) -> str | None:
        """Wait until startup is complete. Returns the problem, if any."""
        self._task = asyncio.create_task(self._run())
        try:
            with TimeLimit(STARTUP_S):
                await self._started.wait()
        except TimeoutError:
            self._problem = f"its startup did not end within {STARTUP_S:g} s"
        except BaseException:
            self._task.cancel()
            raise
        if self._problem is not None:
            await end_tasks([self._task])
        return self._problem

    async def stop(self) -> str | None:
        """Wait until shutdown is complete. Returns the problem, if any."""
        if self._task is None or self._task.done():
            return self._problem
        self._stopping.set()
        try:
            with TimeLimit(SHUTDOWN_S):
                await self._stopped.wait()
        except TimeoutError:
            self._problem = f"its shutdown did not end within {SHUTDOWN_S:g} s"
        await end_tasks([self._task])
        return self._problem

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        try:
            await BlockingTimer().of(self._app(scope, self._receive, self._send))
        except BaseException as error:  # the application may raise anything
            if ends_the_run(error):
                raise
            if (self._receive_calls or isinstance(error, EventLoopBlocked)) and self._problem is None:
                self._problem = describe_app_error(error)
        finally:
            self._started.set()
            self._stopped.set()

    async def _receive(self) -> Message:
        self._receive_calls += 1
        if self._receive_calls == 1:
            return {"type": "lifespan.startup"}
        await self._stopping.wait()
        if self._receive_calls == 2:
            return {"type": "lifespan.shutdown"}
        await asyncio.Event().wait()  # there are no further events
        raise AssertionError("unreachable")

    async def _send(self, message: Message) -> None:
        kind, _, how = str(message["type"]).removeprefix("lifespan.").partition(".")
        if how == "failed":
            # Frameworks send a whole traceback; its last line is the exception.
            lines = str(message.get("message") or "").strip().splitlines()
            self._problem = f"its {kind} failed: {lines[-1] if lines else 'it does not say why'}"
        (self._started if kind == "startup" else self._stopped).set()


class ClientDisconnected(OSError):
    """Raised in an application that sends after its client has disconnected."""


def describe_app_error(error: BaseException) -> str:
    """Describe an exception of the application."""
    return f"the application raised {type(error).__name__}: {message_of_error(error)}"


class AsgiExchange:
    """One request and its response (implements `agentest.support.http.bodies.RawResponse`).

    As behind a real server, the application may keep running after its response or after a disconnect.
    """

    def __init__(self, url: str, content: bytes) -> None:
        self.url = url
        self.status = 0
        self.raw_headers: tuple[tuple[bytes, bytes], ...] = ()
        self.late_error: BaseException | None = None
        """The exception that the application raised after its response was complete."""
        self._request: bytes | None = content
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue(maxsize=1)
        self._closed, self._ended = asyncio.Event(), asyncio.Event()
        self._error: BaseException | None = None
        self._steps = BlockingTimer()
        self._first: deque[bytes] = deque()
        self._complete = False
        self._sent_all = False

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        return CIMultiDictProxy(
            CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in self.raw_headers)
        )

    @property
    def content(self) -> AsgiExchange:
        return self

    @property
    def held_up(self) -> float:
        """Seconds for which the application blocked the event loop."""
        return self._steps.blocked

    async def run(self, app: App, scope: Mapping[str, Any]) -> None:
        """Call the application. Raises only cancellation."""
        try:
            await self._steps.of(app(scope, self._receive, self._send))
        except BaseException as error:  # the application may raise anything
            if ends_the_run(error):
                raise
            self._error = error
            self.late_error = error if self._sent_all else None
        finally:
            self._ended.set()
        if not self._closed.is_set():
            await self._messages.put(None)

    async def begin(self) -> None:
        """Wait for status and headers. Raises AppFailed, also if a 500 response stands for an exception."""
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
        """Read the whole body, because an exception at its end is more informative than the response."""
        size = 0
        while piece := await self._next_piece():
            self._first.append(piece)
            size += len(piece)
            if size > MAX_BODY_BYTES:
                return
        await self._ended.wait()
        if self._error is not None:
            self.late_error = None
            raise AppFailed(describe_app_error(self._error))

    async def readany(self) -> bytes:
        """Return the next piece of the body; empty at its end. Raises AppFailed."""
        return self._first.popleft() if self._first else await self._next_piece()

    def at_eof(self) -> bool:
        """Return True if all pieces of the body were read."""
        return self._complete and not self._first

    async def _next_piece(self) -> bytes:
        while not self._complete:
            message = await self._next()
            if message["type"] != "http.response.body":
                raise AppFailed(f"the application sent {message['type']!r} within its answer")
            if not message.get("more_body", False):
                self._complete = True
                self._closed.set()
            if body := message.get("body", b""):
                if isinstance(body, bytes | bytearray | memoryview):
                    return bytes(body)
                kind = type(body).__name__  # for an integer, bytes() would return as many zeros
                raise AppFailed(f"the application sent a {kind} as the body of its answer, expected bytes")
        return b""

    async def _next(self) -> Message:
        message = await self._messages.get()
        if isinstance(message, Mapping) and isinstance(message.get("type"), str):
            return message
        if message is not None:
            raise AppFailed(f"the application sent an invalid ASGI message: {message!r:.100}")
        if self._error is not None:
            raise AppFailed(describe_app_error(self._error))
        raise AppFailed("the application returned before its answer was complete")

    def release(self) -> None:
        """Disconnect. The application learns of it when it receives or sends."""
        self._closed.set()
        if not self._messages.empty():
            self._messages.get_nowait()  # unblocks a pending send

    async def _receive(self) -> Message:
        if self._request is not None:
            body, self._request = self._request, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._closed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if not self._complete and self._closed.is_set():
            raise ClientDisconnected("nobody listens any more")
        if not self._closed.is_set():  # a server discards messages after the end of the response, too
            if isinstance(message, Mapping) and message.get("type") == "http.response.body":
                self._sent_all = self._sent_all or not message.get("more_body", False)
            await self._messages.put(message)
