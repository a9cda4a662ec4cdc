"""Routes of what is started from the page: what there is to run, what it may cost, runs, and their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web

from agentest.support.json_text import Json
from agentest.web.exchange import answered, body_of
from agentest.web.project import UI, Missing
from agentest.web.running import LISTING, MOST_AT_ONCE, Job, Jobs
from agentest.web.runs import RUNS
from agentest.web.starting import Wanted, wanted

JOBS: web.AppKey[Jobs] = web.AppKey("jobs", Jobs)
ON_WAIT: web.AppKey[Callable[[int], None]] = web.AppKey("on_wait")
"""Is told how many runs the end of the server waits for."""


def add_jobs(app: web.Application, jobs: Jobs | None = None) -> None:
    """Add the routes, and what ends the jobs with the server."""
    project = app[UI]
    app[JOBS] = jobs or Jobs(project.root, project.config, project.output_dir)
    app.add_routes(routes())
    app.on_shutdown.append(_close)


async def _close(app: web.Application) -> None:
    if (running := len(app[JOBS].running)) and ON_WAIT in app:
        app[ON_WAIT](running)
    await app[JOBS].close()


def routes() -> Iterable[web.RouteDef]:
    """All of them."""
    return (
        web.get("/api/jobs", _list),
        web.post("/api/jobs", _start),
        web.get("/api/jobs/{job}", _one),
        web.post("/api/jobs/{job}/stop", _stop),
        web.post("/api/estimate", _estimate),
        web.get("/api/scenarios", _scenarios),
    )


async def _list(request: web.Request) -> web.Response:
    return answered({"jobs": request.app[JOBS].listed(), "mostAtOnce": MOST_AT_ONCE})


def _job(request: web.Request) -> Job:
    job = request.app[JOBS].get(request.match_info["job"])
    if job is None:
        raise Missing("there is no such job: the server was started anew, or it ended long ago")
    return job


async def _one(request: web.Request) -> web.Response:
    return answered(_job(request).whole())


async def _stop(request: web.Request) -> web.Response:
    job = _job(request)
    request.app[JOBS].stop(job)
    return answered(job.shown())


async def _wanted(request: web.Request) -> Wanted:
    return await asyncio.to_thread(wanted, await body_of(request), request.app[UI], request.app[RUNS])


async def _start(request: web.Request) -> web.Response:
    job = request.app[JOBS].start(await _wanted(request))
    return answered(job.shown(), status=201)


async def _estimate(request: web.Request) -> web.Response:
    """What a run may take and cost: `--dry-run` says it."""
    asked, project = await _wanted(request), request.app[UI]
    config = [f"--config={project.config}"] if project.config else []
    status, text = await request.app[JOBS].said(asked.words("--dry-run", *config))
    return answered({"text": text, "exitStatus": status})


async def _scenarios(request: web.Request) -> web.Response:
    return answered(await what_there_is(request.app))


async def what_there_is(app: web.Application) -> Json:
    """What there is to run. A process of its own imports the project's files: they may have changed."""
    project = app[UI]
    with TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        config = [str(project.config)] if project.config else []
        status, said = await app[JOBS].said([str(out), str(project.root), *config], LISTING)
        try:
            found: Json = json.loads(await asyncio.to_thread(out.read_bytes))
        except (OSError, ValueError):
            why = f"importing the scenario files ended the process (exit status {status})\n{said[-4000:]}"
            found = {"scenarios": [], "sets": [], "agents": [], "problems": [], "notes": []}
            found["error"] = why.strip()
    return found
