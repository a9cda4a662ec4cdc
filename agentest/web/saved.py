"""Route by which a conversation of a kept run becomes a case or a scenario: shown first, then written."""

from __future__ import annotations

import asyncio
from datetime import datetime

from aiohttp import web
from pydantic_core import from_json

from agentest.analysis.export.kept import kept_talk
from agentest.analysis.export.talk import KINDS, Talk, ToWrite, Wish, to_write, write
from agentest.errors import UsageError
from agentest.run.prepare import Request, configure
from agentest.run.talk_choice import choices
from agentest.support.calling import in_thread
from agentest.support.json_text import Json
from agentest.support.paths import shown_path
from agentest.web.importing import IMPORTS, imported
from agentest.web.project import UI
from agentest.web.runs import RUNS, answered


def add_saved(app: web.Application) -> None:
    """Add the route."""
    app[IMPORTS] = asyncio.Lock()
    app.router.add_post("/api/runs/{run}/save", _save)


async def _save(request: web.Request) -> web.Response:
    """What would be written of the conversation that the address names, or that it was written.

    The body is that of a talk which is saved: `as`, `name`, `path`, and to write it `write` and the `version`
    of the file that the person was shown.
    """
    body = _object(await request.read())
    wish = _wish(body)
    talk = await in_thread(_talk, request)
    asked = Request(request.app[UI].root, request.app[UI].config)
    if wish.kind == "case":
        planned: ToWrite = await in_thread(to_write, talk, wish, asked.root, None)
    else:  # its name may be taken: the project's scenarios know
        planned = await imported(request.app, _scenario, talk, wish, asked)
    written = body.get("write") is True
    if written:
        await in_thread(write, planned, body.get("version") and _text(body, "version"))
    return answered(
        {
            "path": shown_path(planned.path, asked.root.resolve()),
            "text": planned.shown,
            "notes": list(planned.notes),
            "version": planned.version,
            "written": written,
        }
    )


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
    kind = next((each for each in KINDS if each == body.get("as")), None)
    if kind is None:
        raise UsageError(f"`as` must be one of {', '.join(KINDS)}")
    return Wish(kind=kind, path=_text(body, "path"), name=_text(body, "name"))


def _text(body: Json, key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise UsageError(f"`{key}` must be a text")
    return value


def _object(data: bytes) -> Json:
    try:
        body = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise UsageError("the body must be a JSON object")
    return body
