"""The common parts of all routes: the project, reading requests, answering and refusing them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, TypeVar

import anyio
from aiohttp import web
from pydantic_core import from_json

from agentest.support.errors import UsageError, errors_as
from agentest.support.function_threads import in_thread
from agentest.support.json_text import Json, encoded
from agentest.support.lazy_dataclasses import dataclass

HEADERS: Mapping[str, str] = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Security headers of every response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebProject:
    """Paths of the project whose runs, scenarios and cases the page shows."""

    root: Path  # the folder of the configuration
    config: Path | None  # the configuration; None for the default one, which may be missing
    output_dir: Path  # the folder of stored runs
    chosen: Path | None = None  # the run that the user named; None for the latest


UI: web.AppKey[WebProject] = web.AppKey("project", WebProject)
IMPORTS: web.AppKey[asyncio.Lock] = web.AppKey("imports", asyncio.Lock)
_T = TypeVar("_T")


class ItemNotFound(UsageError):
    """The requested item does not exist or was deleted: HTTP status 404."""


async def call_with_imports(
    app: web.Application, function: Callable[..., _T], *args: Any, limit_s: float = 120.0
) -> _T:
    """Call a function that imports the project's files, in a thread. Raises UsageError if it hangs.

    A function that hangs keeps its own thread, which does not block the shutdown.
    """
    async with app[IMPORTS]:
        try:
            with anyio.fail_after(limit_s):
                result: _T = await in_thread(function, *args)
        except TimeoutError:
            raise UsageError(
                f"reading the configuration and the scenarios took longer than {limit_s:g} s: some file "
                "that is imported hangs"
            ) from None
    return result


Values = Mapping[str, Any]  # the values of a request: its query, or the JSON object in its body
Answer = Callable[[web.Request, Values], Json | Awaitable[Json]]


class Refusal(Exception):
    """A JSON response with an error status."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


def json_route(method: str, path: str, answer: Answer, status: int = 200) -> web.RouteDef:
    """Return a route that answers with JSON. Errors become JSON in `app.errors_as_json`.

    A plain function as `answer` is called in a thread, so that it can read files.
    """

    async def handle(request: web.Request) -> web.Response:
        values = await read_values(request)
        if iscoroutinefunction(answer):
            return reply_with_json(await answer(request, values), status)
        body = await asyncio.to_thread(lambda: encoded(answer(request, values)))
        return web.Response(body=body, status=status, content_type="application/json")

    return web.route(method, path, handle)


async def read_values(request: web.Request) -> Values:
    """Return the query of a GET request; else the JSON object in the body. Raises UsageError.

    `guard` has checked the content type.
    """
    if request.method in ("GET", "HEAD"):
        return request.query
    if not request.body_exists:
        return {}
    with errors_as(UsageError, "the body is not JSON: "):
        body = from_json(await request.read(), allow_inf_nan=False)
    if not isinstance(body, dict):
        raise UsageError("the body must be a JSON object")
    return body


def optional_text(values: Mapping[str, Any], key: str) -> str | None:
    """Return the text under a key; None if it is missing or null. Raises UsageError for other types."""
    value = values.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"`{key}` must be a text, found {value!r:.80}")
    return value


def required_text(values: Mapping[str, Any], key: str) -> str:
    """Return the text under a key. Raises UsageError if it is missing or not a text."""
    value = optional_text(values, key)
    if value is None:
        raise UsageError(f"`{key}` is missing: a text is expected")
    return value


def reply_with_json(value: object, status: int = 200) -> web.Response:
    """Return a JSON response with a value that can contain any characters."""
    return web.Response(body=encoded(value), status=status, content_type="application/json")


async def open_event_stream(request: web.Request) -> web.StreamResponse:
    """Start a response of server-sent events. Raises ConnectionError if the page closed the connection."""
    response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def send_event(response: web.StreamResponse, event: Mapping[str, Any] | None) -> None:
    """Send an event; None sends a heartbeat. Raises ConnectionError if the page closed the connection."""
    await response.write(b": still here\n\n" if event is None else b"data: " + encoded(event) + b"\n\n")
