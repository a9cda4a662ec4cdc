"""An ASGI application as something that requests are posted to."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio

from agentest.agents.asgi.exchange import App, Exchange, raised
from agentest.agents.asgi.lifespan import CannotStart, Lifespan
from agentest.support.calling import end_tasks
from agentest.support.errors import ConfigError
from agentest.support.http.client import DirectResponse, Headers
from agentest.support.importing import import_object

_LAST_REQUESTS_S = 5.0
"""How long what an application still does after its answers may take at the end."""
_PORTS = {"http": 80, "https": 443}


def load_app(name: str, app: App | str, root: Path) -> App:
    """The application of an agent. Raises ConfigError where there is none."""
    found: Any = app
    if isinstance(app, str):
        try:
            found = import_object(app, root)
        except ValueError as error:
            raise ConfigError(f"agent {name!r}: app: {error}") from None
    if not callable(found):
        raise ConfigError(
            f"agent {name!r}: app: {app!r} is no ASGI application, like FastAPI's, but {found!r:.100}"
        )
    if not _takes_a_scope(found):
        raise ConfigError(
            f"agent {name!r}: app: {app!r} does not take (scope, receive, send), as ASGI applications do. "
            "Name the application itself, not the function that makes it; one of WSGI (Flask, Django's "
            "wsgi) needs a wrapper like asgiref.wsgi.WsgiToAsgi"
        )
    return found  # type: ignore[no-any-return]


def _takes_a_scope(app: Callable[..., Any]) -> bool:
    try:
        inspect.signature(app).bind({}, None, None)
    except TypeError:
        return False
    except ValueError:  # it has no signature to look at
        return True
    return True


@asynccontextmanager
async def running_app(name: str, app: App, on_note: Callable[[str], None]) -> AsyncIterator[RunningApp]:
    """The application from its startup to its shutdown. Raises ConfigError where it does not start.

    Args:
        name: the agent's, for messages.
        on_note: receives what went wrong after answers, and in the shutdown.
    """
    lifespan = Lifespan(app)
    try:
        await lifespan.start()
    except CannotStart as error:
        raise ConfigError(f"agent {name!r}: the application did not start: {error}") from None
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
    """Posts requests to an application in this process (`agentest.support.http.client.Sender`)."""

    def __init__(self, app: App, state: dict[str, Any]) -> None:
        self._app = app
        self._state = state
        self._under_way: dict[asyncio.Task[None], Exchange] = {}
        self._late: dict[str, int] = {}
        self.left = ""
        """What went on when all was over."""

    async def send_direct(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> DirectResponse:
        """Send a request. The body is to be read, and the response to be closed. Raises AppFailed."""
        content = content or b""
        exchange = Exchange(url, content)
        scope = _scope(method, url, headers, content) | {"state": dict(self._state)}
        task = asyncio.create_task(exchange.run(self._app, scope))
        self._under_way[task] = exchange
        task.add_done_callback(self._done)
        try:
            await exchange.begin()
        except BaseException:
            exchange.release()
            raise
        return DirectResponse(exchange)

    def _done(self, task: asyncio.Task[None]) -> None:
        error = self._under_way.pop(task).late_error
        if error is not None:
            problem = raised(error)
            self._late[problem] = self._late.get(problem, 0) + 1

    async def finish(self) -> None:
        """Wait for what the application still does after its answers, but not for ever."""
        tasks = list(self._under_way)
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_REQUESTS_S)
        if await end_tasks([task for task in tasks if not task.done()]):
            self.left = "what it does in answer to requests does not end: it goes on when it is cancelled"

    @property
    def problems(self) -> list[str]:
        """What the application raised when its answer was complete: behind a server only its log says it."""
        counted = ((problem, "once" if n == 1 else f"{n} times") for problem, n in self._late.items())
        late = [f"{problem} after its answer, {often}" for problem, often in counted]
        return [*late, self.left] if self.left else late


def _scope(method: str, url: str, headers: Headers, content: bytes) -> dict[str, Any]:
    parts = urlsplit(url)
    host, port = parts.hostname or "localhost", parts.port or _PORTS[parts.scheme]
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
