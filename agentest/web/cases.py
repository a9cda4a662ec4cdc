"""Routes for evaluation sets: list, read and edit cases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web
from pydantic.alias_generators import to_camel

from agentest.adk.set_edits import (
    CaseDraft,
    EditedSet,
    EditProblem,
    EditRejected,
    EvalSetEditor,
    ListedEvalSet,
    free_id,
    listing,
)
from agentest.adk.set_files import ChangedOnDisk, EvalSetProject, SetContent
from agentest.adk.set_text import SetFile, open_set
from agentest.support.errors import UsageError
from agentest.support.json_text import Json
from agentest.support.text import snake_case
from agentest.web.guard import optional_text, read_json_body, reply_with_json, required_text
from agentest.web.project import UI

_T = TypeVar("_T")
_Answer = Callable[[web.Request], Awaitable[Json]]


def add_cases(app: web.Application) -> None:
    """Add the routes."""
    app.add_routes(routes())


def routes() -> Iterable[web.RouteDef]:
    """Return the routes."""
    return (
        web.get("/api/cases", _route(_list)),
        web.get("/api/cases/case", _route(_case)),
        web.put("/api/cases/case", _route(_save)),
        web.post("/api/cases/case", _route(_add)),
        web.delete("/api/cases/case", _route(_remove)),
        web.post("/api/cases/copy", _route(_copy)),
        web.post("/api/cases/check", _route(_check)),
        web.post("/api/cases/set", _route(_create)),
        web.get("/api/cases/text", _route(_text)),
        web.put("/api/cases/text", _route(_save_text)),
    )


def _route(answer: _Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handled(request: web.Request) -> web.Response:
        try:
            return reply_with_json(await answer(request))
        except ChangedOnDisk as error:
            return reply_with_json(await _in_thread(_conflict_json, error), status=409)
        except EditRejected as error:
            refusal = {"error": str(error), "problems": _problems(error.problems)}
            return reply_with_json(refusal, status=422)

    return handled


async def _list(request: web.Request) -> Json:
    found = await _in_thread(listing, _editor(request).project)
    return {"notes": found.notes, "sets": [_set_json(each) for each in found.sets]}


async def _case(request: web.Request) -> Json:
    name, eval_id = _query_text(request, "file"), _query_text(request, "id")
    return await _in_thread(_open_case, _editor(request), name, eval_id)


async def _save(request: web.Request) -> Json:
    body = await read_json_body(request)
    save = partial(_editor(request).save, required_text(body, "file"), required_text(body, "version"))
    return _done_json(await _in_thread(save, required_text(body, "id"), _draft(body)))


async def _add(request: web.Request) -> Json:
    body = await read_json_body(request)
    place = body.get("place")
    if place is not None and type(place) is not int:
        raise UsageError("`place` must be a whole number")
    add = partial(_editor(request).add, required_text(body, "file"), required_text(body, "version"))
    return _done_json(await _in_thread(add, _draft(body), place))


async def _copy(request: web.Request) -> Json:
    body = await read_json_body(request)
    editor, name, eval_id = _editor(request), required_text(body, "file"), required_text(body, "id")
    version = required_text(body, "version")

    def copied() -> EditedSet:
        return editor.copy(name, version, eval_id, free_id(editor.open(name), eval_id))

    return _done_json(await _in_thread(copied))


async def _remove(request: web.Request) -> Json:
    body = await read_json_body(request)
    remove = partial(_editor(request).remove, required_text(body, "file"), required_text(body, "version"))
    removed = await _in_thread(remove, required_text(body, "id"))
    return {"version": removed.file.content.version, "text": removed.text, "place": removed.place}


async def _check(request: web.Request) -> Json:
    """Validate an unsaved case. `id` is null for a new case."""
    body = await read_json_body(request)
    eval_id = optional_text(body, "id")
    check = partial(_editor(request).check, required_text(body, "file"))
    return {"notes": _problems((await _in_thread(check, eval_id, _draft(body))).notes)}


async def _create(request: web.Request) -> Json:
    body = await read_json_body(request)
    create = partial(_editor(request).create, required_text(body, "file"), _draft(body))
    return _done_json(await _in_thread(create, time.time()))


async def _text(request: web.Request) -> Json:
    """Return a file as text. A file that does not exist yet is empty and has no version."""
    return await _in_thread(_file_text, _editor(request), _query_text(request, "file"))


async def _save_text(request: web.Request) -> Json:
    body = await read_json_body(request)
    version = optional_text(body, "version")
    save = partial(_editor(request).save_text, required_text(body, "file"), version)
    return _text_json(await _in_thread(save, required_text(body, "text")))


def _editor(request: web.Request) -> EvalSetEditor:
    project = request.app[UI]
    root, outputs = project.root.resolve(), project.output_dir.resolve()
    inside = outputs.relative_to(root) if outputs.is_relative_to(root) else Path(".agentest")
    return EvalSetEditor(EvalSetProject(root, inside))


def _file_text(editor: EvalSetEditor, name: str) -> Json:
    if not editor.project.file(name).exists():
        return {"file": name, "version": None, "text": ""}
    return _text_json(editor.read(name))


def _open_case(editor: EvalSetEditor, name: str, eval_id: str) -> Json:
    try:
        file = editor.open(name)
    except UsageError as error:
        return {"case": editor.converted(name, eval_id), "readOnly": str(error)}
    place = file.place_of(eval_id)
    try:
        notes, readable = editor.check(name, eval_id, CaseDraft(text=file.shown(place))).notes, True
    except EditRejected as error:
        notes, readable = error.problems, False
    return {**_case_json(file, place, notes), "readable": readable}


def _done_json(done: EditedSet) -> Json:
    return _case_json(done.file, done.place, done.notes)


def _set_json(found: ListedEvalSet) -> Json:
    return {
        "file": found.name,
        "setId": found.set_id,
        "error": found.error,
        "whyNot": found.why_not,
        "version": found.version,
        "camel": found.camel,
        "criteria": found.criteria,
        "cases": [
            {"id": each.eval_id, "line": each.line, "simulated": each.simulated} for each in found.cases
        ],
    }


def _case_json(file: SetFile, place: int, notes: Sequence[EditProblem]) -> Json:
    """Return a case for editing, as a value and as text."""
    return {
        "file": file.content.name,
        "version": file.content.version,
        "id": file.cases[place].eval_id,
        "camel": file.camel,
        "alone": file.cases_at is None,
        "case": file.value(place),
        "text": file.shown(place),
        "notes": _problems(notes),
    }


def _text_json(content: SetContent) -> Json:
    text = content.text.replace("\r\n", "\n")
    return {"file": content.name, "version": content.version, "text": text}


def _conflict_json(error: ChangedOnDisk) -> Json:
    """Return the file's current content, so that the page can show what changed."""
    answer: Json = {"error": str(error), "version": None, "text": None, "cases": []}
    if error.found is None:
        return answer
    answer["version"] = error.found.version
    try:
        answer["text"] = error.found.text.replace("\r\n", "\n")
        file = open_set(error.found)
    except UsageError:
        return answer
    answer["cases"] = [
        {"id": case.eval_id, "text": file.shown(number)} for number, case in enumerate(file.cases)
    ]
    return answer


def _problems(problems: Sequence[EditProblem]) -> list[Json]:
    return [{"message": each.message, "path": _page_keys(each)} for each in problems]


def _page_keys(problem: EditProblem) -> list[str | int] | None:
    if problem.keys is None:
        return None
    return [to_camel(snake_case(key)) if isinstance(key, str) else key for key in problem.keys]


def _draft(body: Json) -> CaseDraft:
    """Read the case of a request: a value under `case`, or JSON text under `text`."""
    if isinstance(body.get("text"), str):
        return CaseDraft(text=body["text"])
    if "case" not in body:
        raise UsageError("the request has neither `case` nor `text`")
    return CaseDraft(value=body["case"])


def _query_text(request: web.Request, key: str) -> str:
    if key not in request.query:
        raise UsageError(f"`{key}` is missing in the address")
    return request.query[key]


async def _in_thread(work: Callable[..., _T], *arguments: Any) -> _T:
    """Run file access in a thread, so that the server keeps answering other requests."""
    return await asyncio.to_thread(work, *arguments)
