"""What is said both ways: the JSON of requests and of answers, and server-sent events."""

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


async def body_of(request: web.Request) -> Json:
    """The JSON object that a request brings. Raises UsageError. `guard` has seen to its content type."""
    try:
        body = from_json(await request.read(), allow_inf_nan=False)
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise UsageError("the body must be a JSON object")
    return body


def text_if_any(given: Mapping[str, Any], key: str) -> str | None:
    """The text under a key; None: there is none. Raises UsageError where it is something else."""
    value = given.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"`{key}` must be a text, found {value!r:.80}")
    return value


def text_of(given: Mapping[str, Any], key: str) -> str:
    """The text under a key. Raises UsageError where there is none."""
    value = text_if_any(given, key)
    if value is None:
        raise UsageError(f"`{key}` is missing: a text is expected")
    return value


def answered(value: object, status: int = 200) -> web.Response:
    """A value as JSON, whatever characters are in it."""
    return web.Response(body=encoded(value), status=status, content_type="application/json")


async def answer_of(work: Callable[..., object], *args: Any) -> web.Response:
    """What a function returns, as JSON. Both are made in a thread: files may be large, and so may it."""
    body = await asyncio.to_thread(lambda: encoded(work(*args)))
    return web.Response(body=body, content_type="application/json")


async def event_stream(request: web.Request) -> web.StreamResponse:
    """The beginning of an answer that consists of events. Raises ConnectionError where the page has gone."""
    response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def tell_event(response: web.StreamResponse, event: Mapping[str, Any] | None) -> None:
    """Send an event; None: only that the server is there. Raises ConnectionError where the page has gone."""
    await response.write(_STILL_HERE if event is None else b"data: " + encoded(event) + b"\n\n")
