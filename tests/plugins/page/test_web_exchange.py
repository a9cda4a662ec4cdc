"""Common parts of requests and answers: bodies, texts, and imports of the project's files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from ui_server import Client, with_server

from agentest.plugins.page.server.json_routes import (
    IMPORTS,
    call_with_imports,
    open_event_stream,
    optional_text,
    required_text,
    send_event,
)
from agentest.support.errors import UsageError


@pytest.mark.parametrize(
    ("method", "path", "refused"),
    [
        ("POST", "/api/jobs", 400),
        ("POST", "/api/estimate", 400),
        ("POST", "/api/command", 400),
        ("POST", "/api/talks", 400),
        ("PUT", "/api/cases/case", 400),
        ("POST", "/api/labels", 400),
        ("POST", "/api/talks/none/say", 400),
        ("GET", "/api/talks/none/events", 404),
        ("GET", "/api/jobs/none", 404),
    ],
)
@pytest.mark.parametrize("body", [b"[]", b'{"a": NaN}', b"[" * 10_000, b"\xff"], ids=range(4))
def test_a_body_that_is_not_an_object_is_refused(
    tmp_path: Path, method: str, path: str, refused: int, body: bytes
) -> None:
    """Every route answers with a message."""

    async def work(client: Client) -> None:
        headers = {"Authorization": f"Bearer {client.token}", "Content-Type": "application/json"}
        more: dict[str, Any] = {} if method == "GET" else {"data": body}
        status, text = await client.raw(method, path, headers=headers, **more)
        assert status == refused
        assert '"error"' in text

    with_server(tmp_path, work)


def test_texts_are_texts() -> None:
    """A missing text differs from an empty one, and other types are refused."""
    assert required_text({"a": ""}, "a") == ""
    assert optional_text({}, "a") is None
    with pytest.raises(UsageError, match="`a` is missing"):
        required_text({"a": None}, "a")
    with pytest.raises(UsageError, match="`a` must be a text, found 1"):
        optional_text({"a": 1}, "a")


def served(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> bytes:
    """The response of an application with only this handler."""

    async def asked() -> bytes:
        app = web.Application()
        app.router.add_get("/", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            async with aiohttp.ClientSession() as session, session.get(site_address(runner)) as got:
                return await got.read()
        finally:
            await runner.cleanup()

    return asyncio.run(asked())


def site_address(runner: web.AppRunner) -> str:
    return f"http://127.0.0.1:{runner.addresses[0][1]}/"


def test_events_hold_any_characters() -> None:
    """Halves of characters, which UTF-8 has no form for, do not end a stream."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = await open_event_stream(request)
        await send_event(response, {"text": "half \ud800\nline"})
        await send_event(response, None)
        return response

    assert served(handler).decode() == 'data: {"text": "half \ufffd\\nline"}\n\n: still here\n\n'


def test_many_requests_are_read_at_once(tmp_path: Path) -> None:
    """A dozen that take long do not hold up the next one, however few processors there are."""
    slow = threading.Barrier(13)

    async def work(client: Client) -> None:
        waiting = [asyncio.create_task(asyncio.to_thread(slow.wait, 60)) for _ in range(12)]
        assert (await client.ask("GET", "/api/runs"))[0] == 200
        await asyncio.to_thread(slow.wait, 60)  # it is there, too: none was in line behind another
        await asyncio.gather(*waiting)

    with_server(tmp_path, work)


def test_an_import_that_hangs_holds_up_nobody() -> None:
    """It is given up with a message; the next import begins, and the server can end."""
    hangs = threading.Event()

    async def go() -> str:
        app = web.Application()
        app[IMPORTS] = asyncio.Lock()
        with pytest.raises(UsageError, match="some file that is imported hangs"):
            await call_with_imports(app, hangs.wait, limit_s=0.01)
        found: str = await call_with_imports(app, str.upper, "next")
        return found

    try:
        assert asyncio.run(go()) == "NEXT"
    finally:
        hangs.set()


def test_a_request_without_a_body_has_no_values(tmp_path: Path) -> None:
    """A route that needs nothing answers; one that needs a value names it."""

    async def work(client: Client) -> None:
        headers = {"Authorization": f"Bearer {client.token}"}
        status, text = await client.raw("POST", "/api/talks/none/end", headers=headers)
        assert status == 404
        status, text = await client.raw("POST", "/api/cases/copy", headers=headers)
        assert (status, "`file` is missing" in text) == (400, True)

    with_server(tmp_path, work)
