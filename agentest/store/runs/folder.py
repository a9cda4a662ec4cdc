"""The folder of one run: made, published at fixed names, and removed when there are too many."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from agentest.store.runs.finding import RUNS, kept_runs, moment_of
from agentest.support.files import write_atomically
from agentest.support.locking import LOCK, locked

JOURNAL = "journal.jsonl"
RESULTS = "results.json"
FILES: Mapping[str, str] = {"json": RESULTS, "junit": "junit.xml", "html": "report.html"}
"""Reporter → the file of its report."""
_ID_TIME = "%Y%m%d-%H%M%S"
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A new run's own folder, `<output_dir>/runs/<id>`, which nobody else writes to."""

    path: Path

    @property
    def id(self) -> str:
        """When the run started, in UTC, and what tells it from others of that millisecond.

        Where a clock was set back, it follows the latest one that is kept.
        """
        return self.path.name

    @property
    def output_dir(self) -> Path:
        """Where the files of the latest run of their kind are."""
        return self.path.parent.parent

    def publish(self, name: str, fixed: str) -> None:
        """Make a file of this run the one that `output_dir` has under a fixed name. Raises OSError."""
        publish(self.path / name, self.output_dir / fixed)


@contextmanager
def new_run_folder(output_dir: Path, now: datetime) -> Iterator[RunFolder]:
    """A new folder for a run, which is known to be under way until the block ends.

    Raises OSError where it cannot be made.
    """
    runs = output_dir / RUNS
    # It gets its name when it is locked already, so that nobody takes it for the folder of a killed run.
    made = runs / f".new-{secrets.token_hex(8)}"
    made.mkdir(parents=True)
    with locked(made, now.isoformat(timespec="seconds")):
        path = _named(made, runs, _after_all(output_dir, now))
        try:
            yield RunFolder(path)
        finally:
            (path / LOCK).unlink(missing_ok=True)


def _after_all(output_dir: Path, now: datetime) -> datetime:
    """The moment by which a new run is called: later than that of all kept ones, whatever the clock says."""
    with suppress(ValueError, IndexError, OverflowError):
        return max(now, moment_of(kept_runs(output_dir)[-1].id) + timedelta(milliseconds=1))
    return now


def _named(made: Path, runs: Path, now: datetime) -> Path:
    for attempt in range(_ATTEMPTS):
        path = runs / f"{now.strftime(_ID_TIME)}-{now.microsecond // 1000:03}-{secrets.token_hex(2)}"
        try:
            return made.rename(path)
        except OSError:  # somebody has the name
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("there is an attempt")


def publish(path: Path, fixed: Path) -> None:
    """Put a file at a second place in one step, as the same file where the file system can. Raises OSError.

    What was at that place is replaced. A file that grows, like a journal, grows at both places.
    """
    temporary = fixed.with_name(f".agentest-{secrets.token_hex(8)}.tmp")
    try:
        try:
            os.link(path, temporary)
        except OSError:
            write_atomically(fixed, path.read_bytes())
        else:
            temporary.replace(fixed)
    finally:
        # Two links to one file: `replace` leaves both.
        temporary.unlink(missing_ok=True)


def prune(output_dir: Path, keep: int) -> None:
    """Remove the oldest runs until `keep` are left; one that is under way stays. Never raises."""
    runs = kept_runs(output_dir)
    for run in runs[: max(0, len(runs) - keep)]:
        if not run.under_way:
            with suppress(OSError):
                shutil.rmtree(run.path)
