"""The evaluation sets of a project with their cases, as they are read or as far as they can be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from agentest.adk.editing.checking import NotAccepted, checked_set
from agentest.adk.editing.content import Content, read
from agentest.adk.editing.places import Project
from agentest.adk.editing.set_file import open_set
from agentest.adk.formats.criteria import CRITERIA_FILE
from agentest.support.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCase:
    """A case of a set. `line`: where it stands, from 1; 0 where that is not known."""

    eval_id: str
    line: int = 0
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSet:
    """A file of the listing.

    Attributes:
        name: relative to the project.
        set_id: "" where the set cannot be read.
        why_not: why its cases cannot be edited one by one; "" where they can.
        error: what the reader says of it; "" where it reads it.
        version: of the file as it was read; "" where it cannot be.
        camel: whether its keys are spelt as `evalId`.
        criteria: whether there are criteria beside it.
    """

    name: str
    set_id: str = ""
    cases: tuple[ListedCase, ...] = ()
    why_not: str = ""
    error: str = ""
    version: str = ""
    camel: bool = False
    criteria: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What there is. `notes`: what was not looked at."""

    sets: tuple[ListedSet, ...]
    notes: tuple[str, ...] = ()


def listing(project: Project) -> Listing:
    """All evaluation sets below a project's folder."""
    found = project.find()
    return Listing(sets=tuple(_listed(project, path) for path in found.files), notes=found.notes)


def _listed(project: Project, path: Path) -> ListedSet:
    name = project.name(path)
    try:
        project.file(name)
        at = path.stat()
    except (UsageError, OSError) as error:
        return ListedSet(name=name, error=str(error), why_not=str(error))
    return _read(path, name, at.st_mtime_ns, at.st_size, (path.parent / CRITERIA_FILE).is_file())


@lru_cache(maxsize=1_000)
def _read(path: Path, name: str, changed: int, size: int, criteria: bool) -> ListedSet:
    """The set as it was at that time: it is read again when it has changed."""
    del changed, size
    try:
        content = read(path, name)
    except UsageError as error:
        return ListedSet(name=name, error=str(error), why_not=str(error), criteria=criteria)
    listed = _located(ListedSet(name=name, version=content.version, criteria=criteria), content)
    try:
        whole = checked_set(content)
    except NotAccepted as error:
        return replace(listed, error=str(error))
    cases = tuple(
        ListedCase(
            eval_id=case.eval_id,
            line=whole.lines.get(case.eval_id, 0),
            simulated=case.conversation_scenario is not None,
        )
        for case in whole.eval_set.eval_cases
    )
    return replace(listed, set_id=whole.eval_set.eval_set_id, cases=cases)


def _located(listed: ListedSet, content: Content) -> ListedSet:
    """With the cases by their text alone, so that one that is broken can be opened; or why there are none."""
    try:
        file = open_set(content)
    except UsageError as error:
        return replace(listed, why_not=str(error))
    cases = tuple(ListedCase(eval_id=case.eval_id) for case in file.cases)
    return replace(listed, cases=cases, camel=file.camel)
