"""`agentest migrate OLD NEW`: convert an evaluation file in any format to an equivalent EvalSet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentest.adk.formats.criteria import CRITERIA_FILE, parse_criteria
from agentest.adk.formats.eval_set import CAMEL_CASE, eval_set_json, tool_calls
from agentest.adk.formats.set_reader import (
    SUFFIXES,
    FileFormat,
    ReadSet,
    parse_json,
    read_bytes,
    read_eval_set,
    read_session,
)
from agentest.adk.set_files import write_file
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count


def migrate(
    old: Path,
    new: Path,
    initial_session: Path | None = None,
    *,
    camel_case: bool = False,
    config_out: Path | None = None,
) -> list[str]:
    """Convert `old`, write the set to `new`, and return notes for the user.

    `new` is replaced if it exists. `old` is never overwritten, because keys that Agentest does not read would
    be lost. The criteria in `old` are written to `config_out`, by default next to `new`; an existing criteria
    file is never replaced. Raises UsageError, also if a file cannot be written.
    """
    _refuse_target(old, new)
    read = read_eval_set(old, read_session(initial_session) if initial_session else None)
    criteria = migrated_criteria(read, new, config_out)
    try:
        document = eval_set_json(read.eval_set, camel_case=camel_case)
    except ValueError as error:
        raise UsageError(f"{old}: cannot be written as JSON: {error}") from None
    write_file(new, document)
    if criteria.content is not None:
        write_file(criteria.path, criteria.content)
    spelling = [f"{new}: {CAMEL_CASE}"] * camel_case
    return [_summary(read, new), *criteria.notes, *_notes(read, new), *spelling]


def _refuse_target(old: Path, new: Path) -> None:
    if new.is_dir():
        raise UsageError(f"{new}: is a folder; name the file to write, such as {new / old.name}")
    if old.exists() and new.exists() and old.samefile(new):
        raise UsageError(f"{new}: is the file to migrate; name another one to write")


def _summary(read: ReadSet, new: Path) -> str:
    return f"{new}: {count(len(read.eval_set.eval_cases), 'case')} from {read.path}"


def _notes(read: ReadSet, new: Path) -> list[str]:
    notes = []
    if read.form is FileFormat.EVAL_SET:
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


_MAX_SHOWN = 5
_OUR_METRICS = (
    "tool_trajectory_f1",
    "reference_answer_match",
    "final_session_state_match",
    "intermediate_responses_match",
)
"""Metrics that google-adk does not have."""


@dataclass(frozen=True, slots=True)
class MigratedCriteria:
    """A criteria file to write, and notes about it. `content` is None if nothing needs to be written."""

    path: Path
    content: bytes | None = None
    notes: tuple[str, ...] = ()


def migrated_criteria(read: ReadSet, new: Path, config_out: Path | None) -> MigratedCriteria:
    """Return the criteria file that the set needs at `new`. Writes nothing.

    Raises UsageError if a criteria file with other content already exists.
    """
    if read.criteria is not None:
        return _own_criteria(read, read.criteria, new, config_out)
    if config_out is not None:
        raise UsageError(f"--config-out: {read.path} names no criteria of its own; leave the option out")
    return _criteria_of_old_folder(read, new)


def _own_criteria(
    read: ReadSet, criteria: Mapping[str, Any], new: Path, config_out: Path | None
) -> MigratedCriteria:
    criteria_file = new.parent / CRITERIA_FILE
    path = config_out or criteria_file
    parse_criteria(criteria, str(read.path))  # refuse now what no run would accept
    notes = [*_notes_about_our_metrics(criteria, path)]
    if not _is_same_file(path, criteria_file):
        notes.append(f"{new} is held to {path} with --config-file-path {path} alone")
    if path.exists():
        _refuse_other_criteria(path, criteria, read)
        return MigratedCriteria(path, None, (f"{path}: says already what {read.path} asks for", *notes))
    shared = _sets_sharing_criteria(path, read, new)
    if shared:
        notes.append(
            f"{path} is the criteria of other sets of its folder from now on: {_shortened_list(shared)}"
        )
    content = json.dumps(criteria, indent=2, ensure_ascii=False).encode() + b"\n"
    return MigratedCriteria(path, content, (f"{path}: the criteria of {read.path}", *notes))


def _notes_about_our_metrics(criteria: Mapping[str, Any], path: Path) -> Iterator[str]:
    ours = [name for name in _OUR_METRICS if name in criteria["criteria"]]
    if ours:
        yield f"{path}: google-adk does not know {', '.join(ours)}: leave it out for runs of google-adk"
    informational = [
        name
        for name, criterion in criteria["criteria"].items()
        if isinstance(criterion, dict) and criterion.get("information")
    ]
    if informational:
        names = ", ".join(informational)
        yield f"{path}: {names} cannot fail a case (`information`); google-adk does not read that key"


def _refuse_other_criteria(path: Path, criteria: Mapping[str, Any], read: ReadSet) -> None:
    if _content(path) == json.loads(json.dumps(criteria)):
        return
    raise UsageError(
        f"{path}: is there already and says otherwise than {read.path}; nothing was written. "
        "Write NEW into a folder of its own, or name another file with --config-out PATH, and run NEW with "
        f"--config-file-path PATH. {read.path} asks for {json.dumps(criteria, ensure_ascii=False)}"
    )


def _criteria_of_old_folder(read: ReadSet, new: Path) -> MigratedCriteria:
    """Return the criteria next to the old set, or the defaults, if the set moves to another folder."""
    old, path = read.path.parent / CRITERIA_FILE, new.parent / CRITERIA_FILE
    if _is_same_file(old, path) or not (old.is_file() or path.is_file()):
        return MigratedCriteria(path)
    if not path.exists():
        note = f"{path}: copied from {old}, to which {read.path} is held"
        return MigratedCriteria(path, read_bytes(old), (note,))
    if old.is_file() and _content(old) == _content(path):
        return MigratedCriteria(path)
    old_criteria = f"to {old}" if old.is_file() else "to the default criteria"
    return MigratedCriteria(path, None, (f"{new} is held to {path}; {read.path} is held {old_criteria}",))


def _content(path: Path) -> Any:
    return parse_json(path, read_bytes(path))


def _is_same_file(path: Path, other: Path) -> bool:
    return path.resolve() == other.resolve()


def _sets_sharing_criteria(path: Path, read: ReadSet, new: Path) -> list[str]:
    """Name the other sets that the new criteria file would also apply to."""
    if path.name != CRITERIA_FILE or not path.parent.is_dir():
        return []
    others = [each for each in sorted(path.parent.iterdir()) if each.name.endswith(SUFFIXES)]
    migrated = {read.path.resolve(), new.resolve()}
    return [each.name for each in others if each.resolve() not in migrated and _has_no_own_criteria(each)]


def _has_no_own_criteria(path: Path) -> bool:
    try:
        return read_eval_set(path).criteria is None
    except UsageError:  # such a set cannot run anyway
        return False


def _shortened_list(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(names[:_MAX_SHOWN]) + more
