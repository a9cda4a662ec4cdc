"""Whether `agentest eval` would read a file, and run a case of it: asked of its own reader."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentest.adk.cases import CaseSet, case_entries, unchecked
from agentest.adk.editing.content import Content
from agentest.adk.formats.criteria import CRITERIA_FILE, DEFAULT, Criteria, parse_criteria
from agentest.adk.formats.json_file import parse_json, read_bytes
from agentest.adk.formats.messages import user_message
from agentest.adk.formats.model import EvalCase
from agentest.adk.formats.problems import EvalSetError, Location, Problem
from agentest.adk.formats.reading import ReadSet, parse_eval_set, select
from agentest.domain.results import ScenarioResult
from agentest.support.errors import UsageError

_BOM = b"\xef\xbb\xbf"
_NOBODY = "agent"


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong, in words. `keys`: the way to the value from the case's root; None: not in this case."""

    message: str
    keys: Location | None = None


class NotAccepted(UsageError):
    """`agentest eval` would not read the file; it was not written."""

    def __init__(self, troubles: Sequence[Trouble]) -> None:
        super().__init__("\n".join(each.message for each in troubles))
        self.troubles = tuple(troubles)


# An edit, the list after it and the case that is shown ask for the same file; a large one takes seconds.
_parsed = lru_cache(maxsize=2)(parse_eval_set)


def checked_set(new: Content, place: int | None = None) -> ReadSet:
    """The set as it would be read. Raises NotAccepted.

    Args:
        place: the number of the case that was edited; what is wrong in it is told by its keys.
    """
    try:
        return _parsed(new.path, new.data.removeprefix(_BOM))
    except EvalSetError as error:
        ids = _ids(new)
        raise NotAccepted([_trouble(each, new, ids, place) for each in error.problems]) from None
    except UsageError as error:
        raise NotAccepted([Trouble(_named(str(error), new))]) from None


def checked_case(new: Content, place: int, root: Path) -> tuple[Trouble, ...]:
    """What the user should know of a case that can be read: why it would not be evaluated.

    Raises NotAccepted, also for criteria of the set's own that contradict the case.
    """
    whole = checked_set(new, place)
    read = select(whole, (whole.eval_set.eval_cases[place].eval_id,))
    try:
        criteria = criteria_of(read)
    except UsageError as error:
        return (Trouble(_named(str(error), new)),)
    return tuple(_about_run(new, read, criteria, root))


def checked_criteria(new: Content) -> None:
    """Raise NotAccepted where a text is no file of criteria."""
    try:
        document = parse_json(new.path, new.data.removeprefix(_BOM))
        parse_criteria(document, str(new.path), new.path.parent)
    except UsageError as error:
        raise NotAccepted([Trouble(_named(str(error), new))]) from None


def criteria_of(read: ReadSet) -> Criteria:
    """What a set is held to, as `agentest eval` finds it. Raises UsageError."""
    if read.criteria is not None:
        return parse_criteria(read.criteria, str(read.path), read.path.parent)
    beside = read.path.parent / CRITERIA_FILE
    if not beside.exists():
        return DEFAULT
    document = parse_json(beside, read_bytes(beside))
    return parse_criteria(document, str(beside), beside.parent)


def _about_run(new: Content, read: ReadSet, criteria: Criteria, root: Path) -> Iterator[Trouble]:
    # Metrics of the user's own are code, which is imported when a run begins and not because of an edit.
    chosen = CaseSet(read, criteria, graded=not criteria.custom)
    case = read.eval_set.eval_cases[0]
    unsent = list(_unsent(case))
    yield from unsent
    try:
        entries = case_entries([chosen], [_NOBODY], 1, root)
    except UsageError as error:
        raise NotAccepted([Trouble(_named(str(error), new), ())]) from None
    for entry in entries if not unsent else ():
        if isinstance(entry, ScenarioResult):
            yield from (Trouble(reason.message, ()) for reason in entry.verdict.reasons)
    yield from (Trouble(_named(note, new), ()) for note in (*unchecked(chosen), *read.warnings))
    if "," in case.eval_id or not case.eval_id.strip():
        yield Trouble("no command can name a case whose id is empty or has a comma", ("eval_id",))


def _unsent(case: EvalCase) -> Iterator[Trouble]:
    """The messages of the user that cannot be sent."""
    for number, turn in enumerate(case.conversation or ()):
        try:
            user_message(turn.user_content, turn.invocation_id or str(number + 1))
        except ValueError as problem:
            yield Trouble(f"not evaluated: {problem}", ("conversation", number, "user_content"))


def _trouble(problem: Problem, new: Content, ids: Sequence[Any], place: int | None) -> Trouble:
    if problem.case is not None and place is not None:
        # Of an id that is given twice, the reader names the first case.
        twin = problem.keys == ("eval_id",) and ids[problem.case] == ids[place]
        if problem.case == place or twin:
            return Trouble(problem.said or problem.message, problem.keys)
    return Trouble(f"{new.name}: {_named(problem.message, new)}")


def _ids(new: Content) -> list[Any]:
    """The id of each case; None where there is none."""
    document = json.loads(new.text)
    if isinstance(document, Mapping):
        document = document.get("eval_cases", document.get("evalCases", [document]))
    return [
        each.get("eval_id", each.get("evalId")) if isinstance(each, Mapping) else None
        for each in (document if isinstance(document, list) else ())
    ]


def _named(message: str, new: Content) -> str:
    """A message with paths as the user knows them."""
    folder = str(new.path).removesuffix(new.name)
    return message.replace(str(new.path), new.name).replace(folder, "") if folder else message
