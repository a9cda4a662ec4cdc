"""`agentest migrate OLD NEW`: convert an evaluation file in any format to an equivalent EvalSet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentest.plugins.adk.formats.criteria import CRITERIA_FILE, parse_criteria
from agentest.plugins.adk.formats.eval_set import CAMEL_CASE, eval_set_json, tool_calls
from agentest.plugins.adk.formats.set_reader import (
    SUFFIXES,
    FileFormat,
    ReadSet,
    parse_json,
    read_bytes,
    read_eval_set,
    read_session,
)
from agentest.plugins.adk.set_files import write_file
from agentest.support.errors import UsageError
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
    if new.is_dir():
        raise UsageError(f"{new}: is a folder; name the file to write, such as {new / old.name}")
    if old.exists() and new.exists() and old.samefile(new):
        raise UsageError(f"{new}: is the file to migrate; name another one to write")
    read = read_eval_set(old, read_session(initial_session) if initial_session else None)
    path, content, criteria_notes = _migrated_criteria(read, new, config_out)
    try:
        document = eval_set_json(read.eval_set, camel_case=camel_case)
    except ValueError as error:
        raise UsageError(f"{old}: cannot be written as JSON: {error}") from None
    write_file(new, document)
    if content is not None:
        write_file(path, content)
    summary = f"{new}: {count(len(read.eval_set.eval_cases), 'case')} from {read.path}"
    return [summary, *criteria_notes, *_notes(read, new), *[f"{new}: {CAMEL_CASE}"] * camel_case]


def _notes(read: ReadSet, new: Path) -> list[str]:
    notes = []
    if read.form is FileFormat.EVAL_SET:
        notes.append(f"{read.path} was an EvalSet already; keys that are not read were left out")
    loose = sum(
        call.args is None
        for case in read.eval_set.eval_cases
        if case.agentest and case.agentest.any_args_where_absent
        for turn in case.conversation or ()
        for call in tool_calls(turn.intermediate_data)
    )
    if loose:
        notes.append(
            f"{count(loose, 'expected call')} without arguments still match{'es' * (loose == 1)} a call with "
            "any: `any_args_where_absent` under the key `agentest` of the case says so. Google-adk does not "
            "read that key, and expects a call without arguments there"
        )
    if not new.name.endswith(SUFFIXES):
        notes.append(f"`agentest eval FOLDER` finds only names that end in {' or '.join(SUFFIXES)}")
    return notes


_MAX_SHOWN = 5
_OUR_METRICS = (
    "tool_trajectory_f1",
    "reference_answer_match",
    "final_session_state_match",
    "intermediate_responses_match",
)
"""Metrics that google-adk does not have."""


_Criteria = tuple[Path, bytes | None, list[str]]
"""A criteria file, its content to write, None if nothing needs to be written, and notes about it."""


def _migrated_criteria(read: ReadSet, new: Path, config_out: Path | None) -> _Criteria:
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
) -> _Criteria:
    criteria_file = new.parent / CRITERIA_FILE
    path = config_out or criteria_file
    parse_criteria(criteria, str(read.path))  # refuse now what no run would accept
    notes = [*_notes_about_our_metrics(criteria, path)]
    if path.resolve() != criteria_file.resolve():
        notes.append(f"{new} is held to {path} with --config-file-path {path} alone")
    if path.exists():
        if _content(path) != json.loads(json.dumps(criteria)):
            raise UsageError(
                f"{path}: already exists and differs from {read.path}; nothing was written. Write "
                "NEW into a folder of its own, or name another file with --config-out PATH, and run NEW with "
                f"--config-file-path PATH. {read.path} asks for {json.dumps(criteria, ensure_ascii=False)}"
            )
        return path, None, [f"{path}: already says what {read.path} asks for", *notes]
    if shared := _sets_sharing_criteria(path, read, new):
        more = f" and {len(shared) - _MAX_SHOWN} more" if len(shared) > _MAX_SHOWN else ""
        names = ", ".join(shared[:_MAX_SHOWN]) + more
        notes.append(f"{path} is the criteria of other sets of its folder from now on: {names}")
    content = json.dumps(criteria, indent=2, ensure_ascii=False).encode() + b"\n"
    return path, content, [f"{path}: the criteria of {read.path}", *notes]


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


def _criteria_of_old_folder(read: ReadSet, new: Path) -> _Criteria:
    """Return the criteria next to the old set, or the defaults, if the set moves to another folder."""
    old, path = read.path.parent / CRITERIA_FILE, new.parent / CRITERIA_FILE
    if old.resolve() == path.resolve() or not (old.is_file() or path.is_file()):
        return path, None, []
    if not path.exists():
        return path, read_bytes(old), [f"{path}: copied from {old}, to which {read.path} is held"]
    if old.is_file() and _content(old) == _content(path):
        return path, None, []
    old_criteria = f"to {old}" if old.is_file() else "to the default criteria"
    return path, None, [f"{new} is held to {path}; {read.path} is held {old_criteria}"]


def _content(path: Path) -> Any:
    return parse_json(path, read_bytes(path))


def _sets_sharing_criteria(path: Path, read: ReadSet, new: Path) -> list[str]:
    """Name the other sets that the new criteria file would also apply to."""
    if path.name != CRITERIA_FILE or not path.parent.is_dir():
        return []
    migrated = {read.path.resolve(), new.resolve()}
    sharing = []
    for other in sorted(path.parent.iterdir()):
        if other.name.endswith(SUFFIXES) and other.resolve() not in migrated:
            with suppress(UsageError):  # a set that cannot be read cannot run anyway
                sharing += [other.name] * (read_eval_set(other).criteria is None)
    return sharing
