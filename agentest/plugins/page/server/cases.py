"""Routes for evaluation sets: list, read and edit cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from aiohttp import web
from pydantic.alias_generators import to_camel

from agentest.plugins.adk.set_edits import (
    CaseDraft,
    EditedSet,
    EditProblem,
    EditRejected,
    EvalSetEditor,
    free_id,
    listing,
)
from agentest.plugins.adk.set_files import ChangedOnDisk, EvalSetProject, SetContent, SetFile, open_set
from agentest.plugins.page.server.json_routes import (
    UI,
    Refusal,
    Values,
    json_route,
    optional_text,
    required_text,
)
from agentest.support.errors import UsageError
from agentest.support.json_text import Json
from agentest.support.text import snake_case


def add_cases(app: web.Application) -> None:
    """Add the routes."""
    app.add_routes(
        (
            _route("GET", "/api/cases", _list),
            _route("GET", "/api/cases/case", _case),
            _route("PUT", "/api/cases/case", _save),
            _route("POST", "/api/cases/case", _add),
            _route("DELETE", "/api/cases/case", _remove),
            _route("POST", "/api/cases/copy", _copy),
            _route("POST", "/api/cases/check", _check),
            _route("POST", "/api/cases/set", _create),
            _route("GET", "/api/cases/text", _text),
            _route("PUT", "/api/cases/text", _save_text),
        )
    )


def _route(method: str, path: str, answer: Callable[[EvalSetEditor, Values], Json]) -> web.RouteDef:
    def answered(request: web.Request, values: Values) -> Json:
        project = request.app[UI]
        root, outputs = project.root.resolve(), project.output_dir.resolve()
        inside = outputs.relative_to(root) if outputs.is_relative_to(root) else Path(".agentest")
        try:
            return answer(EvalSetEditor(EvalSetProject(root, inside)), values)
        except ChangedOnDisk as error:
            raise Refusal(409, _conflict_json(error)) from error
        except EditRejected as error:
            raise Refusal(422, {"error": str(error), "problems": _problems(error.problems)}) from error

    return json_route(method, path, answered)


def _list(editor: EvalSetEditor, _: Values) -> Json:
    sets, notes = listing(editor.project)
    return {
        "notes": notes,
        "sets": [{to_camel(key): value for key, value in asdict(each).items()} for each in sets],
    }


def _case(editor: EvalSetEditor, values: Values) -> Json:
    name, eval_id = required_text(values, "file"), required_text(values, "id")
    try:
        file = editor.open(name)
    except UsageError as error:
        return {"case": editor.converted(name, eval_id), "readOnly": str(error)}
    position = file.index_of(eval_id)
    try:
        notes, readable = editor.check(name, eval_id, CaseDraft(text=file.case_text(position))).notes, True
    except EditRejected as error:
        notes, readable = error.problems, False
    return {**_case_json(file, position, notes), "readable": readable}


def _save(editor: EvalSetEditor, values: Values) -> Json:
    return _edited_json(editor.save(*_file_and_version(values), required_text(values, "id"), _draft(values)))


def _add(editor: EvalSetEditor, values: Values) -> Json:
    number = values.get("place")
    if number is not None and type(number) is not int:
        raise UsageError("`place` must be a whole number")
    return _edited_json(editor.add(*_file_and_version(values), _draft(values), number))


def _copy(editor: EvalSetEditor, values: Values) -> Json:
    (name, version), eval_id = _file_and_version(values), required_text(values, "id")
    return _edited_json(editor.copy(name, version, eval_id, free_id(editor.open(name), eval_id)))


def _remove(editor: EvalSetEditor, values: Values) -> Json:
    removed = editor.remove(*_file_and_version(values), required_text(values, "id"))
    return {"version": removed.file.content.version, "text": removed.removed, "place": removed.place}


def _check(editor: EvalSetEditor, values: Values) -> Json:
    eval_id = optional_text(values, "id")
    return {"notes": _problems(editor.check(required_text(values, "file"), eval_id, _draft(values)).notes)}


def _create(editor: EvalSetEditor, values: Values) -> Json:
    return _edited_json(editor.create(required_text(values, "file"), _draft(values), time.time()))


def _text(editor: EvalSetEditor, values: Values) -> Json:
    name = required_text(values, "file")
    if not editor.project.file(name).exists():
        return {"file": name, "version": None, "text": ""}
    return _text_json(editor.read(name))


def _save_text(editor: EvalSetEditor, values: Values) -> Json:
    name, version = required_text(values, "file"), optional_text(values, "version")
    return _text_json(editor.save_text(name, version, required_text(values, "text")))


def _file_and_version(values: Values) -> tuple[str, str]:
    return required_text(values, "file"), required_text(values, "version")


def _edited_json(edited: EditedSet) -> Json:
    return _case_json(edited.file, edited.place, edited.notes)


def _case_json(file: SetFile, position: int, notes: Sequence[EditProblem]) -> Json:
    return {
        "file": file.content.name,
        "version": file.content.version,
        "id": file.ids[position],
        "camel": file.camel,
        "alone": file.cases_key is None,
        "case": file.value(position),
        "text": file.case_text(position),
        "notes": _problems(notes),
    }


def _text_json(content: SetContent) -> Json:
    return {"file": content.name, "version": content.version, "text": _with_line_feeds(content)}


def _with_line_feeds(content: SetContent) -> str:
    return content.text.replace("\r\n", "\n")


def _conflict_json(error: ChangedOnDisk) -> Json:
    """Return the file's current content, so that the page can show what changed."""
    answer: Json = {"error": str(error), "version": None, "text": None, "cases": []}
    if error.current is None:
        return answer
    answer["version"] = error.current.version
    with suppress(UsageError):
        answer["text"] = _with_line_feeds(error.current)
        file = open_set(error.current)
        cases = [{"id": eval_id, "text": file.case_text(i)} for i, eval_id in enumerate(file.ids)]
        answer["cases"] = cases
    return answer


def _problems(problems: Sequence[EditProblem]) -> list[Json]:
    def page_keys(problem: EditProblem) -> list[str | int] | None:
        if problem.keys is None:
            return None
        return [to_camel(snake_case(key)) if isinstance(key, str) else key for key in problem.keys]

    return [{"message": each.message, "path": page_keys(each)} for each in problems]


def _draft(values: Values) -> CaseDraft:
    if isinstance(values.get("text"), str):
        return CaseDraft(text=values["text"])
    if "case" not in values:
        raise UsageError("the request has neither `case` nor `text`")
    return CaseDraft(value=values["case"])
