"""Routes for runs: the list, and the parts of each run. Files are read in threads."""

from __future__ import annotations

from datetime import datetime

from aiohttp import web

from agentest.plugins.page.html import copyable_scripts
from agentest.plugins.page.server.json_routes import UI, Values, call_with_imports, json_route, optional_text
from agentest.plugins.page.server.run_index import WebRuns
from agentest.plugins.page.talk.saved_conversation import (
    KINDS,
    ConversationToSave,
    PreparedFile,
    SaveRequest,
    conversation_to_save,
    prepare_file,
    write,
)
from agentest.plugins.page.talk.talk import choices
from agentest.report.agent import rerun
from agentest.runner.prepare import RunRequest, configure
from agentest.store.spans import spans_of
from agentest.support.errors import UsageError
from agentest.support.files import shown_path
from agentest.support.function_threads import in_thread
from agentest.support.json_text import Json, encoded

RUNS: web.AppKey[WebRuns] = web.AppKey("runs", WebRuns)


def add_runs(app: web.Application) -> None:
    """Add the routes, and close the runs when the server shuts down."""
    app[RUNS] = WebRuns(app[UI])
    app.add_routes(
        (
            json_route("GET", "/api/runs", lambda request, _: request.app[RUNS].listed()),
            json_route("GET", "/api/runs/{run}", lambda r, _: r.app[RUNS].overview(r.match_info["run"])),
            json_route("GET", "/api/runs/{run}/scenario", _scenario),
            json_route("GET", "/api/runs/{run}/conversation", _conversation),
            json_route("GET", "/api/runs/{run}/search", _search),
            json_route("POST", "/api/runs/{run}/save", _save),
        )
    )
    app.on_shutdown.append(_close)


async def _close(app: web.Application) -> None:
    app[RUNS].close()


def _scenario_key(request: web.Request) -> tuple[str, str, str]:
    query = request.query
    return request.match_info["run"], query.get("name", ""), query.get("agent", "")


def _scenario(request: web.Request, _: Values) -> Json:
    index, indexed, content = request.app[RUNS].scenario(*_scenario_key(request))[1:]
    with index.lock:
        rows = [indexed.rows[number] for number in sorted(indexed.rows)]
        several = len({agent for _, agent in index.scenarios}) > 1
    return {"scenario": content, "conversations": rows, "command": rerun(content, several)}


def _conversation(request: web.Request, values: Values) -> Json:
    run, scenario, agent = _scenario_key(request)
    requested, stored = request.app[RUNS].conversation(run, scenario, agent, values.get("id", ""))
    # What is shown next to a conversation: a scripted scenario that repeats it, and its spans.
    spans = spans_of(requested.folder, scenario, agent, stored["conversationId"]) if requested.folder else []
    scripts = copyable_scripts(scenario, stored, len(encoded(stored)))
    return {"conversation": stored, **scripts, "spans": spans}


def _search(request: web.Request, values: Values) -> Json:
    def gone() -> bool:
        return request.transport is None or request.transport.is_closing()

    return request.app[RUNS].search(request.match_info["run"], values.get("text", ""), gone)


async def save_conversation(request: web.Request, body: Values, talk: ConversationToSave) -> Json:
    """Return what saving a conversation would write, or write it if the body sets `write`.

    The body contains `as`, `name` and `path`. To write, it also needs the `version` of the file that the
    user saw, so that a changed file is not overwritten.
    """
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
    return {
        "path": shown_path(planned.path, project.root.resolve()),
        "text": planned.preview,
        "notes": list(planned.notes),
        "version": planned.version,
        "written": written,
    }


async def _save(request: web.Request, values: Values) -> Json:
    return await save_conversation(request, values, await in_thread(_talk, request))


def _talk(request: web.Request) -> ConversationToSave:
    runs, key = request.app[RUNS], _scenario_key(request)
    _, index, _, scenario = runs.scenario(*key)
    _, conversation = runs.conversation(*key, request.query.get("id", ""))
    began = datetime.fromisoformat(index.run.started_at).timestamp() if index.run else 0.0
    return conversation_to_save(scenario, key[2], conversation, began)


def _saved_scenario(
    talk: ConversationToSave, request_to_save: SaveRequest, project_request: RunRequest
) -> PreparedFile:
    known = choices(project_request).scenarios
    locations = {each.name: f"{shown_path(each.file, project_request.root)}:{each.line}" for each in known}
    return prepare_file(
        talk, request_to_save, project_request.root, configure(project_request).config, locations
    )


def _save_request(body: Values) -> SaveRequest:
    kind = body.get("as")
    if kind not in KINDS:
        raise UsageError(f"`as`: expected one of {', '.join(KINDS)}")
    return SaveRequest(
        kind=kind, path=optional_text(body, "path") or "", name=optional_text(body, "name") or ""
    )
