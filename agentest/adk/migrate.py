"""`agentest migrate OLD NEW`: a file of any form as an EvalSet that is held to the same."""

from __future__ import annotations

from pathlib import Path

from agentest.adk.formats.model import CAMEL_CASE, eval_set_json, tool_calls
from agentest.adk.formats.reading import Form, ReadSet, read_eval_set, read_session
from agentest.adk.formats.targets import SUFFIXES
from agentest.adk.migrated_criteria import criteria_of
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
