"""Routes of runs: the list, and each in its parts. What is read is read in threads."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from agentest.report.copying import to_copy
from agentest.report.viewer.commands import rerun
from agentest.store.spans import spans_of
from agentest.support.json_text import Json, encoded
from agentest.web.exchange import answer_of
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


async def _list(request: web.Request) -> web.Response:
    return await answer_of(request.app[RUNS].listed)


async def _overview(request: web.Request) -> web.Response:
    return await answer_of(request.app[RUNS].overview, request.match_info["run"])


def _named(request: web.Request) -> tuple[str, str, str]:
    query = request.query
    return request.match_info["run"], query.get("name", ""), query.get("agent", "")


async def _scenario(request: web.Request) -> web.Response:
    def read() -> Json:
        _, index, kept, whole = request.app[RUNS].scenario(*_named(request))
        with index.lock:
            rows = [kept.rows[number] for number in sorted(kept.rows)]
            several = len({agent for _, agent in index.scenarios}) > 1
        return {"scenario": whole, "conversations": rows, "command": rerun(whole, several)}

    return await answer_of(read)


async def _conversation(request: web.Request) -> web.Response:
    def read() -> Json:
        run, scenario, agent = _named(request)
        found, stored = request.app[RUNS].conversation(run, scenario, agent, request.query.get("id", ""))
        return {"conversation": stored, **_beside(found, scenario, agent, stored)}

    return await answer_of(read)


async def _search(request: web.Request) -> web.Response:
    def gone() -> bool:
        return request.transport is None or request.transport.is_closing()

    run, text = request.match_info["run"], request.query.get("text", "")
    return await answer_of(request.app[RUNS].search, run, text, gone)


def _beside(found: Found, scenario: str, agent: str, conversation: Json) -> Json:
    """What is shown beside a conversation: the scripted scenario made of it, and its spans."""
    id = conversation["conversationId"]
    spans = spans_of(found.folder, scenario, agent, id) if found.folder else []
    return {**to_copy(scenario, conversation, len(encoded(conversation))), "spans": spans}
