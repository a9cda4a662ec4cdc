"""Stored runs: each has its own folder, and users find it by id, folder or file."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from builders import run_result, scenario_result

from agentest.domain.results import Status
from agentest.store.runs.folder import (
    JOURNAL,
    RESULTS,
    EndedRunNumbers,
    RunKind,
    RunRecord,
    check_readable,
    complete_runs,
    latest_run,
    latest_unfinished,
    list_stored_runs,
    new_run_folder,
    prune,
    publish,
    read_record,
    run_file,
    with_end,
    write_record,
)
from agentest.support.errors import UsageError

NOW = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def keep(output_dir: Path, seconds: int = 0, content: str = "{}") -> Path:
    """Store a finished run with one file."""
    with new_run_folder(output_dir, NOW + timedelta(seconds=seconds)) as folder:
        (folder.path / RESULTS).write_text(content)
        return folder.path


def test_runs_are_listed_in_their_order(tmp_path: Path) -> None:
    """Runs are listed oldest first; other folders are ignored."""
    paths = [keep(tmp_path, seconds) for seconds in (0, 1, 1, 60)]
    (tmp_path / "runs" / "mine").mkdir()
    assert [run.path for run in list_stored_runs(tmp_path)] == sorted(paths)
    assert paths[0].name.startswith("20260102-030405-678-")
    latest = latest_run(tmp_path)
    assert latest is not None
    assert latest.path == paths[3]


def test_a_clock_that_goes_back(tmp_path: Path) -> None:
    """The last run made is the latest and is pruned last, whatever its time."""
    (tmp_path / "runs" / "20269999-999999-999-0000").mkdir(parents=True)  # like an id, and no moment
    keep(tmp_path)
    (tmp_path / "runs" / "20269999-999999-999-0000").rmdir()
    keep(tmp_path, 60)
    back = keep(tmp_path, 0)
    assert back.name.startswith("20260102-030505-679-")
    prune(tmp_path, 1)
    assert [run.path for run in list_stored_runs(tmp_path)] == [back]


def test_a_run_stopped_by_a_budget_can_be_resumed(tmp_path: Path) -> None:
    """It is unfinished: it is resumed before an older run and gives no forecast."""
    for seconds, ended in ((0, False), (1, True)):
        with new_run_folder(tmp_path, NOW + timedelta(seconds=seconds)) as folder:
            record = RunRecord(id=folder.id, kind=RunKind.RUN, started_at="2026", version="1")
            if ended:
                record = with_end(record, run_result(scenario_result(), stopped="a budget"))
            write_record(folder.path, record)
            (folder.path / JOURNAL).write_text("{}")
    found = latest_unfinished(tmp_path, RunKind.RUN)
    assert found is not None
    assert found.path == folder.path
    assert list(complete_runs(tmp_path, RunKind.RUN)) == []


def test_the_run_to_resume(tmp_path: Path) -> None:
    """It is the latest killed run not yet resumed; if that was killed at once, no older one replaces it."""

    def killed(seconds: int, resumed: Path | None = None, *, begun: bool = True) -> Path:
        with new_run_folder(tmp_path, NOW + timedelta(seconds=seconds)) as folder:
            again = resumed.name if resumed else None
            record = RunRecord(id=folder.id, kind=RunKind.RUN, started_at="2026", version="1", resumed=again)
            write_record(folder.path, record)
            if begun:
                (folder.path / JOURNAL).write_text("{}")
            return folder.path

    def found() -> Path | None:
        run = latest_unfinished(tmp_path, RunKind.RUN)
        return run and run.path

    assert found() is None
    first = killed(0)
    second = killed(1)
    assert found() == second
    third = killed(2, second)
    assert found() == third
    killed(3, third, begun=False)
    assert found() == third  # what went on with it has nothing of it
    for run in (first, second, third):
        record = read_record(run)
        assert record is not None
        ended = EndedRunNumbers(
            status=Status.PASSED, interrupted=False, scenarios=1, passed=1, failed=0, errored=0, skipped=0,
            conversations=1, duration_ms=1.0, cost=None,
        )  # fmt: skip
        write_record(run, replace(record, ended=ended))
    assert found() == third  # nothing is left of it
    lost = killed(4, begun=False)
    assert found() == lost


def test_a_run_is_locked_until_its_block_ends(tmp_path: Path) -> None:
    """Other processes see the lock, and none is left in the folder."""
    with new_run_folder(tmp_path, NOW) as folder:
        assert [run.under_way for run in list_stored_runs(tmp_path)] == [True]
    assert [run.under_way for run in list_stored_runs(tmp_path)] == [False]
    assert list(folder.path.iterdir()) == []


@pytest.mark.parametrize("reference", ["latest", "20260102-030505", "there", "there/results.json"])
def test_a_run_is_found(tmp_path: Path, reference: str) -> None:
    """By `latest`, by the beginning of its id, by its folder, by its file."""
    keep(tmp_path / "out")
    latest = keep(tmp_path / "out", 60)
    (tmp_path / "there").symlink_to(latest)
    found = run_file(reference, tmp_path / "out", tmp_path)
    assert found.samefile(latest / RESULTS)


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("20260102", "begins 2 runs: 20260102-0305"),
        ("yesterday", "found no run, file or folder 'yesterday'; the newest are 20260102-"),
        ("", "found no run, file or folder ''"),
        ("empty", "holds no results.json and no journal.jsonl"),
    ],
)
def test_a_run_that_is_not_found(tmp_path: Path, reference: str, says: str) -> None:
    """The error lists the existing runs."""
    keep(tmp_path / "out")
    keep(tmp_path / "out", 60)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError) as raised:
        run_file(reference, tmp_path / "out", tmp_path)
    assert says in str(raised.value)
    with pytest.raises(UsageError, match="no run is stored"):
        run_file("latest", tmp_path / "nowhere", tmp_path)


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    """An unreadable folder is an error, not an empty one; a missing folder has no runs."""
    check_readable(tmp_path)
    (tmp_path / "runs").symlink_to("runs")
    with pytest.raises(UsageError, match="runs cannot be read"):
        run_file("latest", tmp_path, tmp_path)
    assert list_stored_runs(tmp_path) == []


def test_the_oldest_runs_are_pruned(tmp_path: Path) -> None:
    """A run in progress is never pruned."""
    with new_run_folder(tmp_path, NOW) as oldest:
        later = [keep(tmp_path, seconds) for seconds in range(1, 6)]
        prune(tmp_path, 2)
        assert [run.path for run in list_stored_runs(tmp_path)] == [oldest.path, *later[-2:]]
    prune(tmp_path, 2)
    assert [run.path for run in list_stored_runs(tmp_path)] == later[-2:]


def test_a_published_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """The published copy is the latest file; earlier runs and the folder stay untouched."""
    first, second = keep(tmp_path, 0, "first"), keep(tmp_path, 1, "second")
    for path in (first, second, second):
        publish(path / RESULTS, tmp_path / RESULTS)
    assert (tmp_path / RESULTS).read_text() == "second"
    assert (first / RESULTS).read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json", "runs"]


def test_a_record_is_read_back(tmp_path: Path) -> None:
    """An invalid record is ignored."""
    record = RunRecord(id="x", kind=RunKind.EVAL, started_at="2026", version="1", models={"user": None})
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    for broken in ("", "[]", "{}", '{"id": 1, "kind": "other"}'):
        (tmp_path / "run.json").write_text(broken)
        assert read_record(tmp_path) is None
