"""One way to listen: on loopback, at the port that is asked for or at a free one."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from agentest.config.agents.mock_servers import ServerBeside
from agentest.domain.messages import ToolSpec
from agentest.mock_servers.registry import Group, Registry
from agentest.support.errors import ConfigError
from agentest.support.http.caller_guard import Callers, Handler, json_refusal
from agentest.support.http.client import Client
from agentest.support.http.connection_limits import Connections, listening

HOST = "127.0.0.1"
MAX_BODY_BYTES = 10_000_000
_GRACE_S = 1.0
_LINGER_S = 2.0
"""How long a client may go on writing that was refused before it had written all: many look for an answer
when they have written, and would see a broken connection."""
_MOST_LINE_BYTES = 65_536
"""Of a URL or a header: a call with a longer one is refused before anybody can record it."""
_MOST_CONNECTIONS = 1000
_MOST_NOTES = 3


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a fault is ours. Who sends what is no HTTP, or packed wrongly, is told so, with status 400."""
    theirs = HttpProcessingError, web.RequestPayloadError
    return not (record.exc_info and isinstance(record.exc_info[1], theirs))


_LOGGER = logging.getLogger(__name__)
_LOGGER.addFilter(_is_ours)


def headers_of(request: web.Request) -> dict[str, str]:
    """The headers by lower-case name, the lines of one that comes in several as HTTP joins them."""
    return {name.lower(): ", ".join(request.headers.getall(name)) for name in request.headers}


def callers_of(settings: ServerBeside, key: str) -> Callers:
    """Who may call a server."""
    return Callers(hosts=settings.allowed_hosts, setting=f"`allowed_hosts` of {key}")


async def listen(
    app: web.Application,
    settings: ServerBeside,
    key: str,
    stack: AsyncExitStack,
    on_note: Callable[[str], None],
    refused: Callable[[str], web.Response] = json_refusal,
    connections: Connections | None = None,
) -> str:
    """Serve an application until the stack closes it. Returns its origin, like `http://127.0.0.1:8080`.

    Args:
        key: the key of the configuration, like `mcp_mock of agent 'shop'`, for errors.
        on_note: is told of the first requests that are refused for where they come from.
        refused: makes the answer to them, from the reason.
        connections: how many there may be; None: as many as a large run needs.

    Raises ConfigError where the port cannot be had.
    """
    told: set[str] = set()

    def refuse(problem: str) -> web.Response:
        if problem not in told and len(told) < _MOST_NOTES:
            told.add(problem)
            on_note(f"{key} refused a request, which no report counts as a call: {problem}")
        return refused(problem)

    connections = connections or Connections(most=_MOST_CONNECTIONS)
    guard = callers_of(settings, key).middleware(refuse)
    app.middlewares[:0] = [guard, connections.middleware(), _closed_if_given_up]
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_LOGGER,
        shutdown_timeout=_GRACE_S,
        handler_cancellation=True,
        auto_decompress=False,
        lingering_time=_LINGER_S,
        max_line_size=_MOST_LINE_BYTES,
        max_field_size=_MOST_LINE_BYTES,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        sock = listening(socket.AF_INET, HOST, settings.port or 0)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        problem = "is taken by another program" if taken else f"cannot be listened at ({error.strerror})"
        raise ConfigError(
            f"{key}: port {settings.port} {problem}; stop that, or write another port"
        ) from None
    await stack.enter_async_context(connections.accepted(runner, [sock]))
    host, found = sock.getsockname()
    return f"http://{host}:{found}"


@web.middleware
async def _closed_if_given_up(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Close the connection where a body was given up: nobody waits for the rest of it."""
    response = await handler(request)
    if response.status == 413 or not request.content.is_eof():
        response.force_close()
    return response


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What the servers of one group are opened with."""

    registry: Registry
    group: Group
    tools: tuple[ToolSpec, ...]
    """The mocks of all scenarios with these agents: clients ask for tools once, at their start."""
    only_way: bool
    """Whether mocks reach the tools of these agents by one mock server alone: all are its tools then."""
    passthrough: bool
    """Whether a tool that nobody mocks may run."""
    root: Path
    """The folder of the configuration."""
    client: Client
    stack: AsyncExitStack
    """Closes, at the end of the run, what is opened."""
    on_note: Callable[[str], None]
    """Receives what the user should know at the end."""
    redact: Callable[[str], str]
    mocked_in: Mapping[str, str] = field(default_factory=dict)
    """Where a tool's mock stands, to be put behind its name in errors."""
    spoken: frozenset[str] = frozenset()
    """The tools that trajectories name."""
    left_out: frozenset[str] | None = frozenset()
    """Names of mocks that are left out, as real tools are recorded; None: nobody has named any tool yet."""
    keep_span: Callable[[bytes], object] | None = None
    """Receives each span that belongs to a conversation, as a line of JSON; None: they are not kept."""

    def place(self, key: str) -> str:
        """Where a key stands, for errors."""
        return f"{key} of agent {self.group.agents[0]!r}"
