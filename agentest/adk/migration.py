"""`agentest migrate OLD NEW`: a file of any form as an EvalSet that is held to the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentest.adk.formats.criteria import CRITERIA_FILE, parse_criteria
from agentest.adk.formats.eval_set import CAMEL_CASE, eval_set_json, tool_calls
from agentest.adk.formats.reader import (
    SUFFIXES,
    Form,
    ReadSet,
    parse_json,
    read_bytes,
    read_eval_set,
    read_session,
)
from agentest.support.errors import UsageError
from agentest.support.files import write_atomically
from agentest.support.text import count


def migrate(
    old: Path,
    new: Path,
    initial_session: Path | None = None,
    *,
    camel_case: bool = False,
    config_out: Path | None = None,
) -> list[str]:
    """Write the set of `old` to `new`, in place of what is there; returns notes for the user.

    `old` itself is never overwritten: keys that are not read would be lost. The criteria that it names are
    written to `config_out`, else beside `new`, where nothing is ever replaced. Raises UsageError, also where
    a file cannot be written.
    """
    _refuse_target(old, new)
    read = read_eval_set(old, read_session(initial_session) if initial_session else None)
    criteria = criteria_of(read, new, config_out)
    try:
        document = eval_set_json(read.eval_set, camel_case=camel_case)
    except ValueError as error:
        raise UsageError(f"{old}: cannot be written as JSON: {error}") from None
    _write(new, document)
    if criteria.content is not None:
        _write(criteria.path, criteria.content)
    spelling = [f"{new}: {CAMEL_CASE}"] * camel_case
    return [_summary(read, new), *criteria.notes, *_notes(read, new), *spelling]


def _refuse_target(old: Path, new: Path) -> None:
    if new.is_dir():
        raise UsageError(f"{new}: is a folder; name the file to write, such as {new / old.name}")
    if old.exists() and new.exists() and old.samefile(new):
        raise UsageError(f"{new}: is the file to migrate; name another one to write")


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error}") from None


def _summary(read: ReadSet, new: Path) -> str:
    return f"{new}: {count(len(read.eval_set.eval_cases), 'case')} from {read.path}"


def _notes(read: ReadSet, new: Path) -> list[str]:
    notes = []
    if read.form is Form.EVAL_SET:
        notes.append(f"{read.path} was an EvalSet already; keys that are not read were left out")
    if loose := _calls_with_any_arguments(read):
        notes.append(
            f"{count(loose, 'expected call')} without arguments still match{'es' * (loose == 1)} a call with "
            "any: `any_args_where_absent` under the key `agentest` of the case says so. Google-adk does not "
            "read that key, and expects a call without arguments there"
        )
    if not new.name.endswith(SUFFIXES):
        notes.append(f"`agentest eval FOLDER` finds only names that end in {' or '.join(SUFFIXES)}")
    return notes


def _calls_with_any_arguments(read: ReadSet) -> int:
    return sum(
        call.args is None
        for case in read.eval_set.eval_cases
        if case.agentest and case.agentest.any_args_where_absent
        for turn in case.conversation or ()
        for call in tool_calls(turn.intermediate_data)
    )


_SHOWN = 5
_OURS = (
    "tool_trajectory_f1",
    "reference_answer_match",
    "final_session_state_match",
    "intermediate_responses_match",
)
"""Metrics that google-adk does not know."""


@dataclass(frozen=True, slots=True)
class MigratedCriteria:
    """A criteria file and what the user should know about it. `content` is None where nothing is written."""

    path: Path
    content: bytes | None = None
    notes: tuple[str, ...] = ()


def criteria_of(read: ReadSet, new: Path, config_out: Path | None) -> MigratedCriteria:
    """What becomes of the criteria when the set is written to `new`. Writes nothing.

    Raises UsageError where the file of the criteria is there already and says otherwise.
    """
    if read.criteria is not None:
        return _own(read, read.criteria, new, config_out)
    if config_out is not None:
        raise UsageError(f"--config-out: {read.path} names no criteria of its own; leave the option out")
    return _beside(read, new)


def _own(read: ReadSet, criteria: Mapping[str, Any], new: Path, config_out: Path | None) -> MigratedCriteria:
    """Those that the file itself names."""
    beside = new.parent / CRITERIA_FILE
    path = config_out or beside
    parse_criteria(criteria, str(read.path))  # what no run would take is refused now
    notes = [*_of_ours(criteria, path)]
    if not _same_place(path, beside):
        notes.append(f"{new} is held to {path} with --config-file-path {path} alone")
    if path.exists():
        _refuse_others(path, criteria, read)
        return MigratedCriteria(path, None, (f"{path}: says already what {read.path} asks for", *notes))
    shared = _sharing(path, read, new)
    if shared:
        notes.append(f"{path} is the criteria of other sets of its folder from now on: {_listed(shared)}")
    content = json.dumps(criteria, indent=2, ensure_ascii=False).encode() + b"\n"
    return MigratedCriteria(path, content, (f"{path}: the criteria of {read.path}", *notes))


def _of_ours(criteria: Mapping[str, Any], path: Path) -> Iterator[str]:
    ours = [name for name in _OURS if name in criteria["criteria"]]
    if ours:
        yield f"{path}: google-adk does not know {', '.join(ours)}: leave it out for runs of google-adk"
    told = [
        name for name, one in criteria["criteria"].items() if isinstance(one, dict) and one.get("information")
    ]
    if told:
        names = ", ".join(told)
        yield f"{path}: {names} cannot fail a case (`information`); google-adk does not read that key"


def _refuse_others(path: Path, criteria: Mapping[str, Any], read: ReadSet) -> None:
    """Raise UsageError where the file that is there says anything else."""
    if _content(path) == json.loads(json.dumps(criteria)):
        return
    raise UsageError(
        f"{path}: is there already and says otherwise than {read.path}; nothing was written. "
        "Write NEW into a folder of its own, or name another file with --config-out PATH, and run NEW with "
        f"--config-file-path PATH. {read.path} asks for {json.dumps(criteria, ensure_ascii=False)}"
    )


def _beside(read: ReadSet, new: Path) -> MigratedCriteria:
    """Those of the file beside the old set, or the default ones, where the set is moved to another folder."""
    old, path = read.path.parent / CRITERIA_FILE, new.parent / CRITERIA_FILE
    if _same_place(old, path) or not (old.is_file() or path.is_file()):
        return MigratedCriteria(path)
    if not path.exists():
        note = f"{path}: copied from {old}, to which {read.path} is held"
        return MigratedCriteria(path, read_bytes(old), (note,))
    if old.is_file() and _content(old) == _content(path):
        return MigratedCriteria(path)
    held = f"to {old}" if old.is_file() else "to the default criteria"
    return MigratedCriteria(path, None, (f"{new} is held to {path}; {read.path} is held {held}",))


def _content(path: Path) -> Any:
    return parse_json(path, read_bytes(path))


def _same_place(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _sharing(path: Path, read: ReadSet, new: Path) -> list[str]:
    """The other sets that the new file would be the criteria of."""
    if path.name != CRITERIA_FILE or not path.parent.is_dir():
        return []
    others = [one for one in sorted(path.parent.iterdir()) if one.name.endswith(SUFFIXES)]
    ours = {read.path.resolve(), new.resolve()}
    return [one.name for one in others if one.resolve() not in ours and _has_none_of_its_own(one)]


def _has_none_of_its_own(path: Path) -> bool:
    try:
        return read_eval_set(path).criteria is None
    except UsageError:  # it cannot be run either
        return False


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
