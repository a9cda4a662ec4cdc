"""`agentest migrate OLD NEW`: a file of any form as an EvalSet."""

from __future__ import annotations

import json
from pathlib import Path

from agentest.errors import UsageError
from agentest.evalset.formats.model import eval_set_json
from agentest.evalset.formats.reading import Form, ReadSet, read_eval_set, read_session
from agentest.evalset.formats.targets import SUFFIXES
from agentest.support.files import write_atomically


def migrate(old: Path, new: Path, initial_session: Path | None = None) -> list[str]:
    """Write the set of `old` to `new`, in place of what is there; returns notes for the user.

    `old` itself is never overwritten: keys that are not read would be lost. Raises UsageError, also where
    `new` cannot be written.
    """
    _refuse_target(old, new)
    read = read_eval_set(old, read_session(initial_session) if initial_session else None)
    try:
        write_atomically(new, eval_set_json(read.eval_set))
    except ValueError as error:
        raise UsageError(f"{old}: cannot be written as JSON: {error}") from None
    except OSError as error:
        raise UsageError(f"{new}: cannot be written: {error}") from None
    return [_summary(read, new), *_notes(read, new)]


def _refuse_target(old: Path, new: Path) -> None:
    if new.is_dir():
        raise UsageError(f"{new}: is a folder; name the file to write, such as {new / old.name}")
    if old.exists() and new.exists() and old.samefile(new):
        raise UsageError(f"{new}: is the file to migrate; name another one to write")


def _summary(read: ReadSet, new: Path) -> str:
    count = len(read.eval_set.eval_cases)
    return f"{new}: {count} case{'' if count == 1 else 's'} from {read.path}"


def _notes(read: ReadSet, new: Path) -> list[str]:
    notes = []
    if read.form is Form.EVAL_SET:
        notes.append(f"{read.path} was an EvalSet already; keys that are not read were left out")
    if read.criteria is not None:
        asked = json.dumps(read.criteria, ensure_ascii=False)
        beside = new.parent / "test_config.json"
        notes.append(f"an EvalSet has no place for criteria; write into {beside}: {asked}")
    if not new.name.endswith(SUFFIXES):
        notes.append(f"`agentest eval FOLDER` finds only names that end in {' or '.join(SUFFIXES)}")
    return notes
