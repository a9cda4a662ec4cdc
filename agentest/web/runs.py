"""Routes for runs: the list, and the parts of each run. Files are read in threads."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from aiohttp import web

from agentest.authoring.saved_conversation import (
    KINDS,
    ConversationToSave,
    PreparedFile,
    SaveRequest,
    conversation_to_save,
    prepare_file,
    write,
)
from agentest.authoring.talk import choices
from agentest.report.html import copyable_scripts
from agentest.report.viewer.overview import rerun
from agentest.runner.prepare import RunRequest, configure
from agentest.store.spans import spans_of
from agentest.support.errors import UsageError
from agentest.support.files import shown_path
from agentest.support.function_threads import in_thread
from agentest.support.json_text import Json, encoded
from agentest.web.guard import optional_text, read_json_body, reply_from_thread, reply_with_json
from agentest.web.project import UI, call_with_imports
from agentest.web.run_index import RequestedRun, WebRuns

RUNS: web.AppKey[WebRuns] = web.AppKey("runs", WebRuns)


def routes() -> Iterable[web.RouteDef]:
    """Return the routes."""
    return (
        web.get("/api/runs", _list),
        web.get("/api/runs/{run}", _overview),
        web.get("/api/runs/{run}/scenario", _scenario),
        web.get("/api/runs/{run}/conversation", _conversation),
        web.get("/api/runs/{run}/search", _search),
    )


def add_runs(app: web.Application) -> None:
    """Add the routes, and close the runs when the server shuts down."""
    app[RUNS] = WebRuns(app[UI])
    app.add_routes(routes())
    app.on_shutdown.append(_close)


async def _close(app: web.Application) -> None:
    app[RUNS].close()


async def _list(request: web.Request) -> web.Response:
    return await reply_from_thread(request.app[RUNS].listed)


async def _overview(request: web.Request) -> web.Response:
    return await reply_from_thread(request.app[RUNS].overview, request.match_info["run"])


def _scenario_key(request: web.Request) -> tuple[str, str, str]:
    query = request.query
    return request.match_info["run"], query.get("name", ""), query.get("agent", "")


async def _scenario(request: web.Request) -> web.Response:
    def read() -> Json:
        _, index, kept, whole = request.app[RUNS].scenario(*_scenario_key(request))
        with index.lock:
            rows = [kept.rows[number] for number in sorted(kept.rows)]
            several = len({agent for _, agent in index.scenarios}) > 1
        return {"scenario": whole, "conversations": rows, "command": rerun(whole, several)}

    return await reply_from_thread(read)


async def _conversation(request: web.Request) -> web.Response:
    def read() -> Json:
        run, scenario, agent = _scenario_key(request)
        found, stored = request.app[RUNS].conversation(run, scenario, agent, request.query.get("id", ""))
        return {"conversation": stored, **_extras(found, scenario, agent, stored)}

    return await reply_from_thread(read)


async def _search(request: web.Request) -> web.Response:
    def gone() -> bool:
        return request.transport is None or request.transport.is_closing()

    run, text = request.match_info["run"], request.query.get("text", "")
    return await reply_from_thread(request.app[RUNS].search, run, text, gone)


def _extras(found: RequestedRun, scenario: str, agent: str, conversation: Json) -> Json:
    """Return data shown next to a conversation: a scripted scenario that repeats it, and its spans."""
    id = conversation["conversationId"]
    spans = spans_of(found.folder, scenario, agent, id) if found.folder else []
    return {**copyable_scripts(scenario, conversation, len(encoded(conversation))), "spans": spans}


def add_saved(app: web.Application) -> None:
    """Add the route that saves conversations of stored runs."""
    app.router.add_post("/api/runs/{run}/save", _save)


async def save_conversation(request: web.Request, talk: ConversationToSave) -> web.Response:
    """Return what saving a conversation would write, or write it if the body sets `write`.

    The body contains `as`, `name` and `path`. To write, it also needs the `version` of the file that the
    user saw, so that a changed file is not overwritten.
    """
    body = await read_json_body(request)
    request_to_save, project = _save_request(body), request.app[UI]
    if request_to_save.kind == "case":
        planned: PreparedFile = await in_thread(prepare_file, talk, request_to_save, project.root, None)
    else:  # the project's scenarios must be loaded to check that the name is free
        planned = await call_with_imports(
            request.app, _saved_scenario, talk, request_to_save, RunRequest(project.root, project.config)
        )
    written = body.get("write") is True
    if written:
        await in_thread(write, planned, optional_text(body, "version"))
    return reply_with_json(
        {
            "path": shown_path(planned.path, project.root.resolve()),
            "text": planned.shown,
            "notes": list(planned.notes),
            "version": planned.version,
            "written": written,
        }
    )


async def _save(request: web.Request) -> web.Response:
    return await save_conversation(request, await in_thread(_talk, request))


def _talk(request: web.Request) -> ConversationToSave:
    runs, query = request.app[RUNS], request.query
    run, name, agent = request.match_info["run"], query.get("name", ""), query.get("agent", "")
    _, index, _, scenario = runs.scenario(run, name, agent)
    _, conversation = runs.conversation(run, name, agent, query.get("id", ""))
    began = datetime.fromisoformat(index.run.started_at).timestamp() if index.run else 0.0
    return conversation_to_save(scenario, agent, conversation, began)


def _saved_scenario(
    talk: ConversationToSave, request_to_save: SaveRequest, project_request: RunRequest
) -> PreparedFile:
    known = choices(project_request).scenarios
    taken = {each.name: f"{shown_path(each.file, project_request.root)}:{each.line}" for each in known}
    return prepare_file(talk, request_to_save, project_request.root, configure(project_request).config, taken)


def _save_request(body: Json) -> SaveRequest:
    kind = body.get("as")
    if kind not in KINDS:
        raise UsageError(f"`as`: expected one of {', '.join(KINDS)}")
    return SaveRequest(
        kind=kind, path=optional_text(body, "path") or "", name=optional_text(body, "name") or ""
    )
