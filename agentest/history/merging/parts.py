"""The runs that are to be merged: found by what the user names, and read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agentest.domain.results import ReasonKind
from agentest.store.runs.finding import KeptRun, run_file
from agentest.store.runs.finished import FinishedParts, Place, read_finished
from agentest.store.runs.folder import JOURNAL
from agentest.store.runs.record import RECORD, RunRecord, read_record
from agentest.support.errors import UsageError
from agentest.support.text import count


@dataclass(frozen=True, kw_only=True)
class MergedPart:
    """A run that becomes part of another."""

    folder: Path
    record: RunRecord

    @property
    def name(self) -> str:
        """What it is called in messages."""
        shard = f" (shard {self.record.shard})" if self.record.shard else ""
        return f"{self.record.id}{shard}"

    @cached_property
    def held(self) -> FinishedParts:
        """What is in its journal. Raises UsageError where that cannot be read, or is not whole."""
        held = read_finished(self.folder / JOURNAL)
        if held.end is None and self.record.ended:
            raise UsageError(f"{held.path} is not whole: its run ended, and the journal has no end")
        for (name, _), part in held.parts.items():
            if _lacks_conversations(part.scenario, len(part.lines)):
                raise UsageError(f"{held.path} is not whole: it lacks conversations of scenario {name!r}")
        return held

    @property
    def places(self) -> list[Place]:
        """Scenarios and agents, those that ran in the order in which they were planned, before the others."""
        return [*self.held.parts, *self.held.not_run]


def _lacks_conversations(scenario: object, lines: int) -> bool:
    """Whether a verdict was made of more conversations than there are lines."""
    reasons = getattr(scenario, "reasons", ())
    if scenario is None or any(reason.kind is ReasonKind.INTERRUPTED for reason in reasons):
        return False
    return lines < getattr(scenario, "planned_conversations", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The runs that are to be merged, and what the user should know of those that are not."""

    parts: tuple[MergedPart, ...]
    notes: tuple[str, ...] = ()


def find_parts(references: Sequence[str], output_dir: Path, here: Path) -> Found:
    """The runs that RUN… of the command line mean.

    Args:
        references: each an id or its beginning, `latest`, a run's folder, or a folder above several.
        output_dir: where ids are looked for.
        here: where relative paths begin.

    Raises UsageError.
    """
    parts: list[MergedPart] = []
    notes: list[str] = []
    for reference in references:
        path = here / reference
        if path.is_dir() and not (path / RECORD).is_file():
            below = [_part(folder) for folder in _folders_below(path, reference)]
            shards = [part for part in below if part.record.shard]
            if shards and len(shards) < len(below):
                left_out = [part.name for part in below if not part.record.shard]
                notes.append(f"{reference}: left out, as no shards: {', '.join(left_out)}")
            parts += shards or below
        else:
            parts.append(_part(_folder(reference, output_dir, here)))
    gone_on_with = {part.record.resumed: part for part in parts if part.record.resumed}
    for part in parts:
        if later := gone_on_with.get(part.record.id):
            notes.append(f"{part.name}: left out, as {later.record.id} went on with it")
    kept = tuple(part for part in parts if part.record.id not in gone_on_with)
    return Found(parts=kept, notes=tuple(notes))


def _folder(reference: str, output_dir: Path, here: Path) -> Path:
    file = run_file(reference, output_dir, here)
    if not (file.parent / RECORD).is_file():
        raise UsageError(
            f"{reference} is not in the folder of a run: name a run by its id (agentest runs) or folder"
        )
    return file.parent


def _folders_below(path: Path, reference: str) -> list[Path]:
    found = sorted(_with_record(path))
    if not found:
        raise UsageError(f"{reference}: no run is in this folder; a run's folder has {RECORD} and {JOURNAL}")
    return found


def _with_record(path: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(path):
        if RECORD in files:
            below.clear()
            yield Path(folder)


def _part(folder: Path) -> MergedPart:
    record = read_record(folder)
    if record is None:
        raise UsageError(f"{folder} is no run's folder: it has no {RECORD} that can be read")
    if KeptRun(folder).under_way:
        raise UsageError(f"{record.id}: the run is still under way; wait for its end")
    if not (folder / JOURNAL).is_file():
        raise UsageError(f"{folder} has no {JOURNAL}: take the whole folder of a run")
    return MergedPart(folder=folder, record=record)


def named(parts: Sequence[MergedPart]) -> str:
    """A few of them by name."""
    shown = ", ".join(part.name for part in parts[:4])
    return shown + (f" and {count(len(parts) - 4, 'more run')}" if len(parts) > 4 else "")
