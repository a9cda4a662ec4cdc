"""Edits of evaluation sets: each one is validated as `agentest eval` would, and then written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from agentest.domain.results import ScenarioResult
from agentest.plugins.adk.cases import CaseSet, case_entries, unchecked_notes
from agentest.plugins.adk.formats.criteria import (
    CRITERIA_FILE,
    DEFAULT,
    Criteria,
    parse_criteria,
    read_criteria,
)
from agentest.plugins.adk.formats.eval_set import eval_set_json, user_message
from agentest.plugins.adk.formats.problems import EvalSetError, FileProblem, Location
from agentest.plugins.adk.formats.set_reader import BOM, ReadSet, parse_eval_set, parse_json, select, set_name
from agentest.plugins.adk.set_files import (
    EvalSetProject,
    SetContent,
    SetFile,
    check_version,
    open_set,
    read,
    write,
)
from agentest.support.errors import UsageError
from agentest.support.json_text import json_document
from agentest.support.lazy_dataclasses import dataclass

_NO_AGENT = "agent"


@dataclass(frozen=True, slots=True)
class EditProblem:
    """A problem in words. `keys` is the path from the case to the value; None if it is outside the case."""

    message: str
    keys: Location | None = None


class EditRejected(UsageError):
    """`agentest eval` would reject the file, so it was not written."""

    def __init__(self, problems: Sequence[EditProblem]) -> None:
        super().__init__("\n".join(each.message for each in problems))
        self.problems = tuple(problems)


# Saving, listing, and showing a case parse the same file; a large one takes seconds.
_parsed = lru_cache(maxsize=2)(parse_eval_set)


def check_set(new: SetContent, index: int | None = None) -> ReadSet:
    """Parse the set. Raises EditRejected.

    Args:
        index: the index of the edited case. Problems in this case are located by their keys.
    """
    try:
        return _parsed(new.path, new.data.removeprefix(BOM))
    except EvalSetError as error:
        raise EditRejected([_located_problem(each, new, index) for each in error.problems]) from None
    except UsageError as error:
        raise _rejected(error, new) from None


def _rejected(error: UsageError, new: SetContent, keys: Location | None = None) -> EditRejected:
    return EditRejected([EditProblem(_with_short_paths(str(error), new), keys)])


def _run_problems(new: SetContent, read: ReadSet, criteria: Criteria, root: Path) -> Iterator[EditProblem]:
    # Custom metrics are code, which is imported when a run starts, never because of an edit.
    chosen = CaseSet(read, criteria, graded=not criteria.custom)
    case = read.eval_set.eval_cases[0]
    unsent = False
    for number, turn in enumerate(case.conversation or ()):
        try:
            user_message(turn.user_content, turn.invocation_id or str(number + 1))
        except ValueError as problem:
            yield EditProblem(f"not evaluated: {problem}", ("conversation", number, "user_content"))
            unsent = True
    try:
        entries = case_entries([chosen], [_NO_AGENT], 1, root)
    except UsageError as error:
        raise _rejected(error, new, ()) from None
    errored = [entry for entry in entries if isinstance(entry, ScenarioResult) and not unsent]
    yield from (EditProblem(reason.message, ()) for entry in errored for reason in entry.verdict.reasons)
    notes = (*unchecked_notes(chosen), *read.warnings)
    yield from (EditProblem(_with_short_paths(note, new), ()) for note in notes)
    if "," in case.eval_id or not case.eval_id.strip():
        yield EditProblem("no command can name a case whose id is empty or has a comma", ("eval_id",))


def _located_problem(problem: FileProblem, new: SetContent, index: int | None) -> EditProblem:
    if problem.case is not None and index is not None:
        ids = open_set(new).ids  # for a duplicate id, the reader names the first of the cases
        is_duplicate = problem.keys == ("eval_id",) and ids[problem.case] == ids[index]
        if problem.case == index or is_duplicate:
            return EditProblem(problem.short_message or problem.message, problem.keys)
    return EditProblem(f"{new.name}: {_with_short_paths(problem.message, new)}")


def _with_short_paths(message: str, new: SetContent) -> str:
    folder = str(new.path).removesuffix(new.name)
    return message.replace(str(new.path), new.name).replace(folder, "") if folder else message


_Change = Callable[[SetFile], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class CaseDraft:
    """The new content of a case: a value, or JSON text."""

    value: Any = None
    text: str | None = None

    def parsed(self) -> Any:
        """Return the value. Raises EditRejected if the text is not JSON."""
        if self.text is None:
            return self.value
        try:
            return from_json(self.text, allow_inf_nan=False)
        except ValueError as error:
            raise EditRejected([EditProblem(f"is not JSON: {error}", ())]) from None


@dataclass(frozen=True, slots=True)
class EditedSet:
    """A set after an edit.

    Attributes:
        place: the index of the edited case.
        removed: the text of a removed case, so that it can be restored.
    """

    file: SetFile
    place: int
    notes: tuple[EditProblem, ...] = ()
    removed: str = ""


@dataclass(frozen=True, slots=True)
class EvalSetEditor:
    """Edit the evaluation sets of a project.

    Every edit names the version of the file on which it is based. It raises `ChangedOnDisk` if the file has
    changed since, `EditRejected` if `agentest eval` would reject the result, and UsageError if there is
    nothing to edit. The file is written only if none of them is raised.
    """

    project: EvalSetProject

    def open(self, name: str) -> SetFile:
        return open_set(self.read(name))

    def read(self, name: str) -> SetContent:
        return read(self.project.file(name), name)

    def converted(self, name: str, eval_id: str) -> Any:
        """Return a case of a set in any format, converted to EvalSet form for display. Raises UsageError."""
        whole_set = check_set(self.read(name))
        return json.loads(eval_set_json(select(whole_set, (eval_id,)).eval_set))["eval_cases"][0]

    def check(self, name: str, eval_id: str | None, draft: CaseDraft) -> EditedSet:
        """Return the result of an edit without writing it. `eval_id` is None for a new case."""
        file = self.open(name)
        text, index = _saved(file, eval_id, draft) if eval_id is not None else _added(file, draft, None)
        return EditedSet(file, index, self._checked(file.content.with_text(text), index))

    def save(self, name: str, version: str, eval_id: str, draft: CaseDraft) -> EditedSet:
        """Write an edited case. The file keeps its indentation, and its bytes if nothing changed."""
        return self._write(name, version, lambda file: _saved(file, eval_id, draft))

    def add(self, name: str, version: str, draft: CaseDraft, index: int | None = None) -> EditedSet:
        """Write a new case before the one at `index`, or at the end."""
        return self._write(name, version, lambda file: _added(file, draft, index))

    def copy(self, name: str, version: str, eval_id: str, new_id: str) -> EditedSet:
        """Write a copy of a case under another id, directly after the original."""
        return self._write(name, version, lambda file: _copy_with_id(file, eval_id, new_id))

    def remove(self, name: str, version: str, eval_id: str) -> EditedSet:
        """Remove a case from its set, unless it is the last: `agentest eval` rejects a set without cases."""
        old = self._open(name, version)
        index = old.index_of(eval_id)
        if len(old.cases) == 1:
            raise UsageError(
                f"{name}: {eval_id!r} is its only case, and `agentest eval` reads no set without cases; add "
                "another one first, or delete the file"
            )
        new = old.content.with_text(old.without(index))
        check_set(new)
        return EditedSet(open_set(write(new, version)), index, removed=old.case_text(index))

    def create(self, name: str, draft: CaseDraft, now: float) -> EditedSet:
        """Write a new set with one case. `now` is in seconds since 1970."""
        path = self.project.file(name)
        if path.name == CRITERIA_FILE:
            raise UsageError(f"{name}: is the name of a file of criteria; a set ends in .evalset.json")
        check_version(path, name, None)
        called = set_name(path)
        document = {"eval_set_id": called, "name": called, "eval_cases": [draft.parsed()]}
        text = json_document({**document, "creation_timestamp": now})
        new = SetContent(path, name, b"").with_text(text)
        notes = self._checked(new, 0)
        return EditedSet(open_set(write(new, None)), 0, notes)

    def save_text(self, name: str, version: str | None, text: str) -> SetContent:
        """Write a whole set or criteria file. `version` is None for a new file."""
        path = self.project.file(name)
        check_version(path, name, version)
        old = SetContent(path, name, b"") if version is None else self.read(name)
        new = old.with_text(_with_line_ends(text, old))
        if path.name != CRITERIA_FILE:
            check_set(new)
            return write(new, version)
        try:
            parse_criteria(parse_json(path, new.data.removeprefix(BOM)), str(path), path.parent)
        except UsageError as error:
            raise _rejected(error, new) from None
        return write(new, version)

    def _open(self, name: str, version: str) -> SetFile:
        check_version(self.project.file(name), name, version)
        return self.open(name)

    def _write(self, name: str, version: str, change: _Change) -> EditedSet:
        old = self._open(name, version)
        text, index = change(old)
        new = old.content.with_text(text)
        notes = self._checked(new, index)
        if new.data != old.content.data:
            write(new, version)
        return EditedSet(open_set(new), index, notes)

    def _checked(self, new: SetContent, index: int) -> tuple[EditProblem, ...]:
        """Return why a readable case would not be evaluated. Raises EditRejected."""
        whole_set = check_set(new, index)
        read = select(whole_set, (whole_set.eval_set.eval_cases[index].eval_id,))
        beside = read.path.parent / CRITERIA_FILE
        try:
            if read.criteria is not None:
                criteria = parse_criteria(read.criteria, str(read.path), read.path.parent)
            else:
                criteria = read_criteria(beside) if beside.exists() else DEFAULT
        except UsageError as error:
            return (EditProblem(_with_short_paths(str(error), new)),)
        return tuple(_run_problems(new, read, criteria, self.project.root))


def _saved(file: SetFile, eval_id: str, draft: CaseDraft) -> tuple[str, int]:
    index, value = file.index_of(eval_id), draft.parsed()
    return file.with_value(index, value), index


def _added(file: SetFile, draft: CaseDraft, index: int | None) -> tuple[str, int]:
    value = draft.parsed()
    at = len(file.cases) if index is None else max(0, min(index, len(file.cases)))
    return file.with_added(value, index=at), at


def _copy_with_id(file: SetFile, eval_id: str, new_id: str) -> tuple[str, int]:
    index = file.index_of(eval_id)
    value = file.value(index)
    key = next(key for key in ("eval_id", "evalId") if key in value)
    return file.with_added({**value, key: new_id}, index=index + 1), index + 1


def _with_line_ends(text: str, old: SetContent) -> str:
    plain = text.replace("\r\n", "\n")
    if old.data and plain == old.text.replace("\r\n", "\n"):
        return old.text
    return plain.replace("\n", "\r\n") if b"\r\n" in old.data else plain


def free_id(file: SetFile, eval_id: str) -> str:
    """Return an unused id for a copy of a case."""
    number = 1
    while (name := f"{eval_id}_copy{number if number > 1 else ''}") in file.ids:
        number += 1
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCase:
    """A case of a set. `line` counts from 1; 0 if unknown."""

    id: str
    line: int = 0
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEvalSet:
    """An evaluation set in the listing.

    Attributes:
        file: path relative to the project.
        why_not: why its cases cannot be edited individually; "" if they can.
        error: the reader's error; "" if the set is valid.
        version: version of the file; "" if it cannot be read.
        camel: True if its keys are in camelCase, such as `evalId`.
        criteria: True if a criteria file is next to it.
    """

    file: str
    cases: tuple[ListedCase, ...] = ()
    why_not: str = ""
    error: str = ""
    version: str = ""
    camel: bool = False
    criteria: bool = False


def listing(project: EvalSetProject) -> tuple[list[ListedEvalSet], list[str]]:
    """List all evaluation sets below a project's folder. Returns them, and notes about what was skipped."""
    files, notes = project.find()
    return [_listed(project, path) for path in files], notes


def _listed(project: EvalSetProject, path: Path) -> ListedEvalSet:
    name = project.name(path)
    try:
        project.file(name)
        at = path.stat()
    except (UsageError, OSError) as error:
        return ListedEvalSet(file=name, error=str(error), why_not=str(error))
    return _read_listed_set(path, name, at.st_mtime_ns, at.st_size, (path.parent / CRITERIA_FILE).is_file())


@lru_cache(maxsize=1_000)
def _read_listed_set(path: Path, name: str, _changed: int, _size: int, criteria: bool) -> ListedEvalSet:
    try:
        content = read(path, name)
    except UsageError as error:
        return ListedEvalSet(file=name, error=str(error), why_not=str(error), criteria=criteria)
    listed = _with_cases(ListedEvalSet(file=name, version=content.version, criteria=criteria), content)
    try:
        whole_set = check_set(content)
    except EditRejected as error:
        return replace(listed, error=str(error))
    cases = tuple(
        ListedCase(
            id=case.eval_id,
            line=whole_set.lines.get(case.eval_id, 0),
            simulated=case.conversation_scenario is not None,
        )
        for case in whole_set.eval_set.eval_cases
    )
    return replace(listed, cases=cases)


def _with_cases(listed: ListedEvalSet, content: SetContent) -> ListedEvalSet:
    """Add the cases found by their text alone, so that a broken one can be opened; else the reason."""
    try:
        file = open_set(content)
    except UsageError as error:
        return replace(listed, why_not=str(error))
    cases = tuple(ListedCase(id=eval_id) for eval_id in file.ids)
    return replace(listed, cases=cases, camel=file.camel)
