"""What is done to evaluation sets: each edit is checked as `agentest eval` would, and then written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from agentest.adk.editing.checking import (
    NotAccepted,
    Trouble,
    checked_case,
    checked_criteria,
    checked_set,
)
from agentest.adk.editing.content import Content, check_version, read, write
from agentest.adk.editing.places import Project
from agentest.adk.editing.set_file import SetFile, open_set
from agentest.adk.formats.criteria import CRITERIA_FILE
from agentest.adk.formats.model import eval_set_json
from agentest.adk.formats.reading import select
from agentest.adk.formats.targets import set_name
from agentest.support.errors import UsageError

_Change = Callable[[SetFile], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Draft:
    """A case as somebody wants it: a value, or the text of one in JSON."""

    value: Any = None
    text: str | None = None

    def parsed(self) -> Any:
        """The value. Raises NotAccepted where the text is no JSON."""
        if self.text is None:
            return self.value
        try:
            return from_json(self.text, allow_inf_nan=False)
        except ValueError as error:
            raise NotAccepted([Trouble(f"is not JSON: {error}", ())]) from None


@dataclass(frozen=True, slots=True)
class Done:
    """A set after an edit. `place`: the number of the case that was edited."""

    file: SetFile
    place: int
    notes: tuple[Trouble, ...] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    """A case that was taken out: its text and its number, with which it can be put back."""

    file: SetFile
    text: str
    place: int


@dataclass(frozen=True, slots=True)
class Editor:
    """Edits the evaluation sets of a project.

    Every edit names the version of the file that it began from: `ChangedOnDisk` is raised where the file is
    another one by now, `NotAccepted` where `agentest eval` would not read the result, UsageError where
    there is nothing to edit. In neither case is anything written.
    """

    project: Project

    def open(self, name: str) -> SetFile:
        return open_set(self.read(name))

    def read(self, name: str) -> Content:
        return read(self.project.file(name), name)

    def converted(self, name: str, eval_id: str) -> Any:
        """A case of a set in any form, as an EvalSet would hold it: to be looked at. Raises UsageError."""
        whole = checked_set(self.read(name))
        chosen = select(whole, (eval_id,)).eval_set
        return json.loads(eval_set_json(chosen))["eval_cases"][0]

    def check(self, name: str, eval_id: str | None, draft: Draft) -> Done:
        """What would become of an edit, without writing it. `eval_id`: None for a new case."""
        file = self.open(name)
        text, place = _saved(file, eval_id, draft) if eval_id is not None else _added(file, draft, None)
        new = file.content.with_text(text)
        return Done(file, place, self._checked(new, place))

    def save(self, name: str, version: str, eval_id: str, draft: Draft) -> Done:
        """Write a case as it was edited; what was not edited stays as it is written."""
        return self._write(name, version, lambda file: _saved(file, eval_id, draft))

    def add(self, name: str, version: str, draft: Draft, place: int | None = None) -> Done:
        """Write a further case, before the one that has this number; None: at the end."""
        return self._write(name, version, lambda file: _added(file, draft, place))

    def copy(self, name: str, version: str, eval_id: str, new_id: str) -> Done:
        """Write a case once more under another id, behind the first."""
        return self._write(name, version, lambda file: _copied(file, eval_id, new_id))

    def remove(self, name: str, version: str, eval_id: str) -> Removed:
        """Take a case out of its set. The last one stays: `agentest eval` reads no set without cases."""
        old = self._open(name, version)
        place = old.place_of(eval_id)
        if len(old.cases) == 1:
            raise UsageError(
                f"{name}: {eval_id!r} is its only case, and `agentest eval` reads no set without cases; add "
                "another one first, or delete the file"
            )
        new = old.content.with_text(old.without(place))
        checked_set(new)
        return Removed(open_set(write(new, version)), old.shown(place), place)

    def create(self, name: str, draft: Draft, now: float) -> Done:
        """Write a new set that holds one case. `now`: in seconds since 1970."""
        path = self.project.file(name)
        if path.name == CRITERIA_FILE:
            raise UsageError(f"{name}: is the name of a file of criteria; a set ends in .evalset.json")
        check_version(path, name, None)
        called = set_name(path)
        document = {"eval_set_id": called, "name": called, "eval_cases": [draft.parsed()]}
        text = json.dumps({**document, "creation_timestamp": now}, indent=2, ensure_ascii=False) + "\n"
        new = Content(path, name, b"").with_text(text)
        notes = self._checked(new, 0)
        return Done(open_set(write(new, None)), 0, notes)

    def save_text(self, name: str, version: str | None, text: str) -> Content:
        """Write a whole set, or a whole file of criteria. `version`: None for a file that is new."""
        path = self.project.file(name)
        check_version(path, name, version)
        old = Content(path, name, b"") if version is None else self.read(name)
        new = old.with_text(_with_line_ends(text, old))
        if path.name == CRITERIA_FILE:
            checked_criteria(new)
        else:
            checked_set(new)
        return write(new, version)

    def _open(self, name: str, version: str) -> SetFile:
        check_version(self.project.file(name), name, version)
        return self.open(name)

    def _write(self, name: str, version: str, change: _Change) -> Done:
        old = self._open(name, version)
        text, place = change(old)
        new = old.content.with_text(text)
        notes = self._checked(new, place)
        if new.data != old.content.data:
            write(new, version)
        return Done(open_set(new), place, notes)

    def _checked(self, new: Content, place: int) -> tuple[Trouble, ...]:
        return checked_case(new, place, self.project.root)


def _saved(file: SetFile, eval_id: str, draft: Draft) -> tuple[str, int]:
    place, value = file.place_of(eval_id), draft.parsed()
    return (file.with_value(place, value) if draft.text is None else file.with_text(place, draft.text)), place


def _added(file: SetFile, draft: Draft, place: int | None) -> tuple[str, int]:
    value = draft.parsed()
    at = len(file.cases) if place is None else max(0, min(place, len(file.cases)))
    return file.with_added(value if draft.text is None else draft.text, at), at


def _copied(file: SetFile, eval_id: str, new_id: str) -> tuple[str, int]:
    """The text of the case again, with nothing but its id changed."""
    place = file.place_of(eval_id)
    again = open_set(file.content.with_text(file.with_added(file.shown(place), place + 1)))
    value = again.value(place + 1)
    key = next(key for key in ("eval_id", "evalId") if key in value)
    return again.with_value(place + 1, {**value, key: new_id}), place + 1


def _with_line_ends(text: str, old: Content) -> str:
    """A text as browsers hand it over, with the line ends that its file has."""
    plain = text.replace("\r\n", "\n")
    if old.data and plain == old.text.replace("\r\n", "\n"):
        return old.text
    return plain.replace("\n", "\r\n") if b"\r\n" in old.data else plain


def free_id(file: SetFile, eval_id: str) -> str:
    """An id for a copy, which no case of the set has."""
    taken = {case.eval_id for case in file.cases}
    number = 1
    while (name := f"{eval_id}_copy{number if number > 1 else ''}") in taken:
        number += 1
    return name
