"""Routes of runs: the list, and each in its parts. What is read is read in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from agentest.scripted.script import told
from agentest.store.layouts import CODECS
from agentest.store.reading import usable
from agentest.store.shapes import StoredConversation
from agentest.store.spans import spans_of
from agentest.support.json_text import Json, encoded
from agentest.viewer.commands import rerun
from agentest.web.looking import Found, Runs
from agentest.web.project import UI

RUNS: web.AppKey[Runs] = web.AppKey("runs", Runs)


def routes() -> Iterable[web.RouteDef]:
    """All of them."""
    return (
        web.get("/api/runs", _list),
        web.get("/api/runs/{run}", _overview),
        web.get("/api/runs/{run}/scenario", _scenario),
        web.get("/api/runs/{run}/conversation", _conversation),
        web.get("/api/runs/{run}/search", _search),
    )


def add_runs(app: web.Application) -> None:
    """Add the routes, and what lets go of the runs with the server."""
    app[RUNS] = Runs(app[UI])
    app.add_routes(routes())
    app.on_shutdown.append(_close)


async def _close(app: web.Application) -> None:
    app[RUNS].close()


def answered(value: object) -> web.Response:
    """A value as JSON, whatever characters are in it."""
    return web.Response(body=encoded(value), content_type="application/json")


async def _list(request: web.Request) -> web.Response:
    return answered(await asyncio.to_thread(request.app[RUNS].listed))


async def _overview(request: web.Request) -> web.Response:
    runs, name = request.app[RUNS], request.match_info["run"]
    return web.Response(
        body=await asyncio.to_thread(lambda: encoded(runs.overview(name))), content_type="application/json"
    )


def _named(request: web.Request) -> tuple[str, str, str]:
    query = request.query
    return request.match_info["run"], query.get("name", ""), query.get("agent", "")


async def _scenario(request: web.Request) -> web.Response:
    runs = request.app[RUNS]
    _, index, kept, whole = await asyncio.to_thread(runs.scenario, *_named(request))
    with index.lock:
        rows = [kept.rows[number] for number in sorted(kept.rows)]
        several = len({agent for _, agent in index.scenarios}) > 1
    return answered({"scenario": whole, "conversations": rows, "command": rerun(whole, several)})


async def _conversation(request: web.Request) -> web.Response:
    def read() -> Json:
        run, scenario, agent = _named(request)
        found, stored = request.app[RUNS].conversation(run, scenario, agent, request.query.get("id", ""))
        return {"conversation": stored, **beside(found, scenario, agent, stored)}

    return answered(await asyncio.to_thread(read))


async def _search(request: web.Request) -> web.Response:
    def gone() -> bool:
        return request.transport is None or request.transport.is_closing()

    run, text = request.match_info["run"], request.query.get("text", "")
    return answered(await asyncio.to_thread(request.app[RUNS].search, run, text, gone))


def beside(found: Found, scenario: str, agent: str, conversation: Json) -> dict[str, Any]:
    """What is shown beside a conversation: the scripted scenario made of it, and its spans."""
    stored = usable(CODECS.read(StoredConversation, conversation))
    spans = spans_of(found.folder, scenario, agent, stored.conversation_id) if found.folder else []
    return {"script": told(scenario, stored).source, "spans": spans}
