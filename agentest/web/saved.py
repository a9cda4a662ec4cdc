"""A conversation put into a file of the project: one that a person has held, and one of a kept run."""

from __future__ import annotations

from datetime import datetime

from aiohttp import web

from agentest.authoring.export.kept import kept_talk
from agentest.authoring.export.talk import KINDS, Talk, ToWrite, Wish, to_write, write
from agentest.runner.prepare import Request, configure
from agentest.runner.talk_choice import choices
from agentest.support.errors import UsageError
from agentest.support.function_threads import in_thread
from agentest.support.json_text import Json
from agentest.support.paths import shown_path
from agentest.web.exchange import answered, body_of, text_if_any
from agentest.web.importing import imported
from agentest.web.project import UI
from agentest.web.runs import RUNS


def add_saved(app: web.Application) -> None:
    """Add the route of conversations of kept runs."""
    app.router.add_post("/api/runs/{run}/save", _save)


async def saved(request: web.Request, talk: Talk) -> web.Response:
    """What would be written of a conversation, or, where `write` says so, that it was written.

    The body has `as`, `name` and `path`, and to write it the `version` of the file that the person was shown:
    another one is not overwritten.
    """
    body = await body_of(request)
    wish, project = _wish(body), request.app[UI]
    if wish.kind == "case":
        planned: ToWrite = await in_thread(to_write, talk, wish, project.root, None)
    else:  # its name may be taken: the project's scenarios know
        planned = await imported(request.app, _scenario, talk, wish, Request(project.root, project.config))
    written = body.get("write") is True
    if written:
        await in_thread(write, planned, text_if_any(body, "version"))
    return answered(
        {
            "path": shown_path(planned.path, project.root.resolve()),
            "text": planned.shown,
            "notes": list(planned.notes),
            "version": planned.version,
            "written": written,
        }
    )


async def _save(request: web.Request) -> web.Response:
    return await saved(request, await in_thread(_talk, request))


def _talk(request: web.Request) -> Talk:
    runs, query = request.app[RUNS], request.query
    run, name, agent = request.match_info["run"], query.get("name", ""), query.get("agent", "")
    _, index, _, scenario = runs.scenario(run, name, agent)
    _, conversation = runs.conversation(run, name, agent, query.get("id", ""))
    began = datetime.fromisoformat(index.run.started_at).timestamp() if index.run else 0.0
    return kept_talk(scenario, agent, conversation, began)


def _scenario(talk: Talk, wish: Wish, asked: Request) -> ToWrite:
    known = choices(asked).scenarios
    taken = {each.name: f"{shown_path(each.file, asked.root)}:{each.line}" for each in known}
    return to_write(talk, wish, asked.root, configure(asked).config, taken)


def _wish(body: Json) -> Wish:
    kind = body.get("as")
    if kind not in KINDS:
        raise UsageError(f"`as`: expected one of {', '.join(KINDS)}")
    return Wish(kind=kind, path=text_if_any(body, "path") or "", name=text_if_any(body, "name") or "")
