"""Run folders: create, publish, find and prune them."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from agentest.domain.results import ModelUsage, QuotaUse, RunResult, ScenarioResult, Status
from agentest.domain.shards import ShardedRun
from agentest.domain.verdict import run_status
from agentest.plugin import PLUGINS
from agentest.store.dataclass_codec import Codecs, Layout
from agentest.support.errors import UsageError
from agentest.support.files import make_folder, make_private_folder, write_atomically
from agentest.support.json_text import encoded
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.locking import LOCK, is_locked, locked
from agentest.support.text import first_names

JOURNAL = "journal.jsonl"
RESULTS = "results.json"
_ATTEMPTS = 8
LatestName = Callable[[str], str]
"""Returns the name in `output_dir` of a file in the folder of the latest run of a kind."""


def report_file(reporter: str) -> str:
    """Return the name of a reporter's file in the folder of a run; "" if it writes none there."""
    feature = PLUGINS.find("reporter", reporter)
    return feature.facts.get("file", "") if feature else ""


@dataclass(frozen=True, slots=True)
class StoredRunFolder:
    """The folder of a run, `<output_dir>/runs/<id>`. No other process writes to it."""

    path: Path
    latest_name: LatestName | None = None  # None if the fixed names belong to another run

    @property
    def id(self) -> str:
        """The start of the run in UTC, with a suffix that makes it unique within a millisecond.

        If a clock was set back, it follows the latest stored run.
        """
        return self.path.name

    @property
    def output_dir(self) -> Path:
        """The folder with the latest files of each kind."""
        return self.path.parent.parent

    def visible(self, name: str) -> Path:
        """Return the path of a file under its fixed name in `output_dir`, or of the file if it has none."""
        return self.output_dir / self.latest_name(name) if self.latest_name else self.path / name

    def publish(self, name: str) -> None:
        """Make a file of this run available under its fixed name, if it has one. Raises OSError."""
        if self.latest_name:
            publish(self.path / name, self.visible(name))

    @property
    def record(self) -> RunRecord | None:
        """The record of the run; None if it is unreadable."""
        return read_record(self.path)

    @property
    def under_way(self) -> bool:
        """True if the run's process is still active."""
        return is_locked(self.path)

    @property
    def state(self) -> str:
        """The end of the run or its state: a status, `interrupted`, `under way`, `killed`, `unknown`."""
        return self.state_of(self.record)

    def state_of(self, record: RunRecord | None) -> str:
        """Return the state, given a record that has been read."""
        if record is not None and not record.ended:
            if self.under_way:
                return "under way"
            record = self.record  # it may have ended meanwhile
        if record is None:
            return "unknown"
        if record.ended is None:
            return "killed"
        return "interrupted" if record.ended.interrupted else record.ended.status

    @property
    def file(self) -> Path | None:
        """The file for `store.reader.read_results`; None if nothing was written."""
        return next((self.path / name for name in _FILES if (self.path / name).is_file()), None)


def make_output_folder(output_dir: Path) -> None:
    """Create the folder of stored runs, which is private unless its user made it. Raises OSError."""
    if not output_dir.exists() or output_dir.name.startswith("."):
        make_private_folder(output_dir)


@contextmanager
def new_run_folder(output_dir: Path, now: datetime) -> Iterator[StoredRunFolder]:
    """Create a folder for a run, which counts as active until the block ends.

    Raises OSError if the folder cannot be created.
    """
    runs = output_dir / RUNS
    # The folder is locked before it gets its name, so that it is never mistaken for that of a killed run.
    made = runs / f".new-{secrets.token_hex(8)}"
    make_output_folder(output_dir)
    make_private_folder(runs)  # an earlier version may have let everybody read it
    make_folder(made)
    with locked(made, now.isoformat(timespec="seconds")):
        with suppress(ValueError, IndexError, OverflowError):  # its id follows those of all stored runs
            now = max(now, moment_of(list_stored_runs(output_dir)[-1].id) + timedelta(milliseconds=1))
        for attempt in range(_ATTEMPTS):
            path = runs / f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}-{secrets.token_hex(2)}"
            try:
                made.rename(path)
                break
            except OSError:  # the name is taken
                if attempt == _ATTEMPTS - 1:
                    raise
        try:
            yield StoredRunFolder(path)
        finally:
            (path / LOCK).unlink(missing_ok=True)


def publish(path: Path, fixed: Path) -> None:
    """Make a file available at a second place in one step, as a hard link if possible. Raises OSError.

    An existing file at that place is replaced. A file that grows, like a journal, grows at both places.
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
        temporary.unlink(missing_ok=True)  # if both are links to one file, `replace` leaves both


def prune(output_dir: Path, keep: int) -> None:
    """Remove the oldest runs until `keep` are left, except active ones. Never raises."""
    runs = list_stored_runs(output_dir)
    for run in runs[: max(0, len(runs) - keep)]:
        if not run.under_way:
            with suppress(OSError):
                shutil.rmtree(run.path)


RUNS = "runs"
LATEST = "latest"
_ID = re.compile(r"\d{8}-\d{6}-\d{3}-[0-9a-f]{4}")
_FILES = ("results.json", "journal.jsonl")
"""The readable files of a run in order of preference; a killed run has no results.json."""
_SHOWN = 5


def is_run_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def list_stored_runs(output_dir: Path) -> list[StoredRunFolder]:
    """Return the stored runs; the oldest comes first. Empty if the folder is unreadable."""
    try:
        names = sorted(entry.name for entry in (output_dir / RUNS).iterdir() if _ID.fullmatch(entry.name))
    except OSError:
        return []
    return [StoredRunFolder(output_dir / RUNS / name) for name in names]


def check_readable(output_dir: Path) -> None:
    """Raises UsageError if there are runs, or a folder of runs, that are unreadable."""
    try:
        next((output_dir / RUNS).iterdir(), None)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(
            f"{output_dir / RUNS} cannot be read ({error.strerror}); stored runs would be there"
        ) from None


def moment_of(id: str) -> datetime:
    """Return the start of a run in UTC, based on its id. Raises ValueError if it is not a valid moment."""
    day, second, thousandth, _ = id.split("-")
    return datetime.strptime(f"{day}{second}{thousandth}000+0000", "%Y%m%d%H%M%S%f%z")


def latest_run(output_dir: Path, kinds: Iterable[str] = ()) -> StoredRunFolder | None:
    """Return the latest run with a readable file. `kinds` restricts the kinds of runs."""
    wanted = set(kinds)
    runs = (run for run in reversed(list_stored_runs(output_dir)) if run.file)
    return next((run for run in runs if not wanted or (run.record and run.record.kind in wanted)), None)


def latest_complete_run(output_dir: Path, kind: str) -> StoredRunFolder | None:
    """Return the latest complete run of a kind or merged run: not a shard, not filtered."""
    for run in reversed(list_stored_runs(output_dir)):
        record = run.record if run.file else None
        is_of_kind = record and record.kind in (kind, RunKind.MERGE)
        if record and is_of_kind and not (record.shard or record.partial) and _came_to_its_end(record):
            return run
    return None


def complete_runs(output_dir: Path, kind: str) -> Iterator[RunRecord]:
    """Yield the records of complete runs of a kind; the latest comes first."""
    records = (run.record for run in reversed(list_stored_runs(output_dir)))
    return (record for record in records if record and record.kind == kind and _came_to_its_end(record))


def _came_to_its_end(record: RunRecord) -> bool:
    return record.ended is not None and not record.ended.interrupted and not record.ended.stopped


def latest_unfinished(output_dir: Path, kind: str, shard: str | None = None) -> StoredRunFolder | None:
    """Return the latest run of a kind that was interrupted or killed and has not been resumed.

    If there is none, return the latest run of the kind, in which nothing may be left to do. It has no file if
    it was killed before it wrote anything: an older one cannot replace it.

    Args:
        shard: only consider runs of this shard; None for all runs.
    """
    known = [(run, run.record) for run in reversed(list_stored_runs(output_dir))]
    runs = [(run, record) for run, record in known if record and record.kind == kind and not run.under_way]
    runs = [(run, record) for run, record in runs if shard is None or record.shard == shard]
    begun = [(run, record) for run, record in runs if run.file]
    gone_on_with = {record.resumed for _, record in begun}
    for run, record in begun:
        if run.id not in gone_on_with and not _came_to_its_end(record):
            return run
    lost = next((run for run, record in runs if not run.file and not record.resumed), None)
    return begun[0][0] if begun and (lost is None or lost.id < begun[0][0].id) else lost


def run_file(reference: str, output_dir: Path, folder: Path) -> Path:
    """Return the file that a reference to a run identifies.

    Args:
        reference: an id or its beginning, `latest`, or the path of a folder or file.
        folder: the base of relative paths.

    Raises UsageError that lists the runs. A path is returned even if it does not exist; its reader reports
    that.
    """
    path = folder / reference
    if path.is_dir() and reference not in ("", "."):
        return _results_file(StoredRunFolder(path), reference)
    if path.is_file() or "/" in reference or path.suffix in (".json", ".jsonl"):
        return path
    if reference == LATEST:
        check_readable(output_dir)
        latest = latest_run(output_dir)
        if latest is None:
            raise UsageError(f"no run is stored in {output_dir / RUNS} yet; `agentest run` makes one")
        return _results_file(latest, reference)
    matching = [run for run in list_stored_runs(output_dir) if reference and run.id.startswith(reference)]
    if len(matching) == 1:
        return _results_file(matching[0], reference)
    if matching:
        raise UsageError(
            f"{reference!r} begins {len(matching)} runs: {_latest_ids(matching)}; write more of the id"
        )
    runs = list_stored_runs(output_dir)
    stored = f"the newest are {_latest_ids(runs)}" if runs else "no run is stored yet"
    raise UsageError(f"found no run, file or folder {reference!r}; {stored} (`agentest runs`)")


def _results_file(run: StoredRunFolder, reference: str) -> Path:
    if run.file is None:
        raise UsageError(f"{reference}: {run.path} holds no {' and no '.join(_FILES)}")
    return run.file


def _latest_ids(runs: list[StoredRunFolder]) -> str:
    return first_names([run.id for run in reversed(runs)], _SHOWN)


RECORD = "run.json"
ANSWERS = "answers"
"""The folder for model responses in conversations that a budget ended early, in the folder of a run."""
JOB_VARIABLE = "AGENTEST_JOB"  # the environment variable with the page's id for a run that it started


class RunKind(StrEnum):
    """The command that created a run."""

    RUN = "run"
    EVAL = "eval"
    JUDGE = "judge"
    MERGE = "merge"
    EXPLORE = "explore"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRunNumbers:
    """The end of a run in numbers."""

    status: Status
    interrupted: bool
    scenarios: int
    passed: int
    failed: int
    errored: int
    skipped: int
    conversations: int
    duration_ms: float
    cost: float | None  # USD; None if the price of a model is not known
    stopped: bool = False  # True if something other than a signal ended the run early: a budget, --fail-fast


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedScenario:
    """The resources that a scenario used against one agent, in total over its conversations."""

    scenario: str
    agent: str
    conversations: int
    talking_ms: float  # from the first message to the last, without judging
    judging_ms: float  # the duration of judging after the last turn
    calls: int
    cost: float | None  # USD; None if the price of a model is not known
    status: Status | None = None  # the verdict; None in records of older versions


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The record of a stored run, written when the run starts and again when it ends.

    A run without `ended` is active or was killed, which its lock shows (`folder.KeptRun.under_way`).
    """

    id: str
    kind: RunKind
    started_at: str  # ISO 8601, UTC
    version: str
    models: Mapping[str, str | None] = field(default_factory=dict)
    agents: Mapping[str, str] = field(default_factory=dict)  # name → address, without secrets
    scenarios: int = 0
    conversations: int = 0  # the planned number
    commit: str | None = None  # the commit of the project's repository; None if unknown
    shard: str | None = None  # the shard, as K/N
    part: ShardedRun | None = None
    partial: bool = False  # True if filters selected its scenarios
    selection: str | None = None
    """A hash of what the command line selected; None if an older version made the run."""
    resumed: str | None = None
    job: str | None = None  # the page's id, if `agentest ui` started the run
    ended: EndedRunNumbers | None = None
    took: tuple[RecordedScenario, ...] = ()
    """The resources of each scenario with a verdict, as the basis of forecasts."""
    quotas: tuple[QuotaUse, ...] = ()


_CODECS = Codecs(
    {
        RunRecord: Layout(always=("models", "agents", "scenarios", "conversations", "commit", "ended")),
        EndedRunNumbers: Layout(digits={"cost": 6}, always=()),
        RecordedScenario: Layout(digits={"cost": 6}, always=()),
    }
)


def with_end(record: RunRecord, result: RunResult) -> RunRecord:
    """Return the record of a run that has ended."""
    number = Counter(scenario.verdict.status for scenario in result.scenarios)
    return replace(
        record,
        ended=EndedRunNumbers(
            status=run_status(result),
            interrupted=result.interrupted,
            scenarios=len(result.scenarios),
            passed=number[Status.PASSED],
            failed=number[Status.FAILED],
            errored=number[Status.ERRORED],
            skipped=number[Status.SKIPPED],
            conversations=result.conversations,
            duration_ms=result.duration_ms,
            cost=result.usage.cost,
            stopped=result.stopped is not None and not result.interrupted,
        ),
        took=tuple(recorded_scenario(each) for each in result.finished if each.totals.conversations),
        quotas=result.quotas,
    )


def recorded_scenario(scenario: ScenarioResult) -> RecordedScenario:
    """Return what the conversations of a scenario took."""
    time, used = scenario.totals.time, sum(scenario.usage.values(), ModelUsage())
    return RecordedScenario(
        scenario=scenario.name,
        agent=scenario.agent,
        conversations=scenario.totals.conversations,
        talking_ms=time.total_ms - time.judges_ms,
        judging_ms=time.judges_ms,
        calls=used.calls,
        cost=used.cost,
        status=scenario.verdict.status,
    )


def write_record(folder: Path, record: RunRecord) -> None:
    """Write run.json into the folder of its run. Raises OSError."""
    write_atomically(folder / RECORD, encoded(_CODECS.write(record)) + b"\n")


def read_record(folder: Path) -> RunRecord | None:
    """Read the record in a folder; None if there is no readable one."""
    try:
        return _CODECS.read(RunRecord, json.loads((folder / RECORD).read_bytes()))
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
