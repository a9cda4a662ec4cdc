"""Routes of runs: what is kept of them, for the views."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from agentest.store.kept.finding import run_file
from agentest.store.layouts import CODECS
from agentest.store.reading import read_results
from agentest.store.runs import entries
from agentest.support.json_text import Json
from agentest.viewer.overview import brief, causes, overview, scenario_row
from agentest.web.project import UI


def routes() -> Iterable[web.RouteDef]:
    """All of them."""
    return (
        web.get("/api/runs/{run}", _overview),
        web.get("/api/runs/{run}/scenario", _scenario),
        web.get("/api/runs/{run}/conversation", _conversation),
    )


def _stored(request: web.Request) -> tuple[str, Json, list[Json]]:
    project = request.app[UI]
    path = project.chosen or run_file(request.match_info["run"], project.output_dir, project.root)
    run = read_results(path)
    return path.parent.name, CODECS.write(run.head), [CODECS.write(entry) for entry in entries(run)]


async def _overview(request: web.Request) -> web.Response:
    name, head, found = _stored(request)
    return web.json_response(
        overview(
            run={"id": name, "state": "passed" if head["summary"]["passed"] else "failed"},
            head=head,
            scenarios=[scenario_row(each, [brief(c) for c in each["conversations"]]) for each in found],
            root_causes=causes(found),
        )
    )


def _one(request: web.Request) -> Json:
    for each in _stored(request)[2]:
        if (each["name"], each["agent"]) == (request.query.get("name"), request.query.get("agent")):
            return each
    raise web.HTTPNotFound(reason="the run has no such scenario")


async def _scenario(request: web.Request) -> web.Response:
    found = dict(_one(request))
    conversations = found.pop("conversations")
    return web.json_response(
        {"scenario": found, "conversations": [brief(each) for each in conversations], "command": ""}
    )


async def _conversation(request: web.Request) -> web.Response:
    for each in _one(request)["conversations"]:
        if each["conversationId"] == request.query.get("id"):
            return web.json_response({"conversation": each, "script": "", "spans": []})
    raise web.HTTPNotFound(reason="the scenario has no such conversation")
