"""JSON of requests and responses, and server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from pydantic_core import from_json

from agentest.support.errors import UsageError
from agentest.support.json_text import Json, encoded
from agentest.web.guard import HEADERS

_STILL_HERE = b": still here\n\n"


async def read_json_body(request: web.Request) -> Json:
    """Read the JSON object in a request's body. Raises UsageError. `guard` has checked the content type."""
    try:
        body = from_json(await request.read(), allow_inf_nan=False)
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise UsageError("the body must be a JSON object")
    return body


def optional_text(given: Mapping[str, Any], key: str) -> str | None:
    """Return the text under a key; None if it is missing or null. Raises UsageError for other types."""
    value = given.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"`{key}` must be a text, found {value!r:.80}")
    return value


def required_text(given: Mapping[str, Any], key: str) -> str:
    """Return the text under a key. Raises UsageError if it is missing or not a text."""
    value = optional_text(given, key)
    if value is None:
        raise UsageError(f"`{key}` is missing: a text is expected")
    return value


def reply_with_json(value: object, status: int = 200) -> web.Response:
    """Return a JSON response with a value that can contain any characters."""
    return web.Response(body=encoded(value), status=status, content_type="application/json")


async def reply_from_thread(work: Callable[..., object], *args: Any) -> web.Response:
    """Call a function in a thread and return its result as a JSON response, which may be large."""
    body = await asyncio.to_thread(lambda: encoded(work(*args)))
    return web.Response(body=body, content_type="application/json")


async def open_event_stream(request: web.Request) -> web.StreamResponse:
    """Start a response of server-sent events. Raises ConnectionError if the page closed the connection."""
    response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def send_event(response: web.StreamResponse, event: Mapping[str, Any] | None) -> None:
    """Send an event; None sends a heartbeat. Raises ConnectionError if the page closed the connection."""
    await response.write(_STILL_HERE if event is None else b"data: " + encoded(event) + b"\n\n")
