"""The latest verdict of each scenario over all stored runs; interruptions do not count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import builders
import pytest

from agentest.cli.stored_runs import only_named
from agentest.domain.results import ReasonKind, RunResult, ScenarioResult, Status
from agentest.store.journal import Journal
from agentest.store.run_results import conversations_in_memory, document
from agentest.store.runs.folder import (
    JOURNAL,
    RESULTS,
    RUNS,
    RunKind,
    RunRecord,
    latest_unfinished,
    new_run_folder,
    with_end,
    write_record,
)
from agentest.store.runs.past_runs import ScenarioWithAgent, latest_verdicts
from agentest.support.errors import UsageError

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def kept(
    out: Path, minutes: int, *scenarios: ScenarioResult, ended: bool = True, resumed: str | None = None
) -> str:
    """Store a run of these scenarios and return its id."""
    result = builders.run_result(*scenarios)
    with new_run_folder(out, NOW + timedelta(minutes=minutes)) as folder:
        journal = Journal(folder.path / JOURNAL)
        for event in builders.events(result):
            journal.on_event(event)
        journal.close()
        write_record(folder.path, record(folder.id, result if ended else None, resumed))
        return folder.id


def record(run_id: str, result: RunResult | None, resumed: str | None) -> RunRecord:
    made = RunRecord(id=run_id, kind=RunKind.RUN, started_at="", version="1", resumed=resumed)
    return with_end(made, result) if result else made


def verdict(name: str, status: Status, kind: ReasonKind = ReasonKind.CONVERSATION) -> ScenarioResult:
    return builders.scenario_result(name=name, verdict=builders.verdict(status, kind=kind))


def test_the_latest_verdict_counts(tmp_path: Path) -> None:
    """A verdict stays until the next one; an interrupted one counts only if it failed."""
    cut = ReasonKind.INTERRUPTED
    kept(tmp_path, 0, *(verdict(name, Status.FAILED) for name in "abc"), verdict("p", Status.PASSED))
    kept(tmp_path, 1, verdict("a", Status.PASSED))
    kept(
        tmp_path, 2, *(verdict(name, Status.ERRORED, cut) for name in "bpx"), verdict("f", Status.FAILED, cut)
    )
    found = latest_verdicts(tmp_path)
    named = {tried.name: found.has_failed(tried) for tried in found.known}
    assert named == {"a": False, "b": True, "c": True, "p": False, "f": True}
    file, agent = next((tried.file, tried.agent) for tried in found.known)
    assert found.has_failed(ScenarioWithAgent(file, "x", agent))  # begun, and nobody knows more
    assert not found.has_failed(ScenarioWithAgent(file, "new", agent))
    assert found.is_new(ScenarioWithAgent(file, "new", agent))


def test_the_results_count_if_the_journal_is_damaged(tmp_path: Path) -> None:
    kept(tmp_path, 0, verdict("a", Status.PASSED), verdict("b", Status.FAILED))
    scenarios = verdict("a", Status.FAILED), verdict("b", Status.PASSED)
    run = tmp_path / RUNS / kept(tmp_path, 1, *scenarios)
    whole = document(builders.run_result(*scenarios), conversations_in_memory)
    (run / RESULTS).write_bytes(b"".join(whole))
    lines = (run / JOURNAL).read_bytes().splitlines(keepends=True)
    for damaged in (b"", b"".join([*lines[:2], b"{\n", *lines[2:]]), b"{}\n"):
        (run / JOURNAL).write_bytes(damaged)
        found = latest_verdicts(tmp_path)
        assert {tried.name: found.has_failed(tried) for tried in found.known} == {"a": True, "b": False}


def test_a_killed_run_counts_without_its_damaged_line(tmp_path: Path) -> None:
    """The verdicts on the other lines count, the scenario of that line did not end, and a note names it."""
    kept(tmp_path, 0, verdict("b", Status.PASSED))
    scenarios = verdict("a", Status.FAILED), verdict("b", Status.FAILED), verdict("c", Status.PASSED)
    run = tmp_path / RUNS / kept(tmp_path, 1, *scenarios, ended=False)
    *lines, _ = (run / JOURNAL).read_bytes().splitlines(keepends=True)
    (number,) = (
        n for n, line in enumerate(lines) if b'"type": "scenario"' in line and b'"name": "b"' in line
    )
    lines[number] = lines[number][:-9] + b"\n"
    (run / JOURNAL).write_bytes(b"".join(lines))
    found = latest_verdicts(tmp_path)
    assert {each.name: status for each, status in found.known.items()} == {
        "a": Status.FAILED,
        "b": Status.PASSED,
        "c": Status.PASSED,
    }
    (note,) = found.unreadable
    assert note.startswith(f"{run / JOURNAL} is damaged, and was read without line {number + 1}: ")


def test_a_misspelled_scenario_of_a_large_run() -> None:
    """The suggestion is from all its names, of which only some are listed."""
    run = builders.run_result(*(verdict(f"order {number}", Status.PASSED) for number in range(90)))
    with pytest.raises(UsageError, match="'ordr 77'; did you mean `order 77`"):
        only_named(run, ["order 1", "ordr 77"], "RUN")
    with pytest.raises(UsageError, match="'=zzz'; valid are: `order 0`, ") as listed:
        only_named(run, ["=zzz"], "RUN")
    assert str(listed.value).count("`order") == 20


def test_the_run_to_continue(tmp_path: Path) -> None:
    """It is the latest unfinished run that no other resumed, or else the latest."""
    passed = verdict("a", Status.PASSED)
    assert latest_unfinished(tmp_path, RunKind.RUN) is None
    killed = kept(tmp_path, 0, passed, ended=False)
    kept(tmp_path, 1, passed)
    found = latest_unfinished(tmp_path, RunKind.RUN)
    assert found
    assert found.id == killed
    again = kept(tmp_path, 2, passed, ended=False, resumed=killed)
    found = latest_unfinished(tmp_path, RunKind.RUN)
    assert found
    assert found.id == again
    last = kept(tmp_path, 3, passed, resumed=again)
    found = latest_unfinished(tmp_path, RunKind.RUN)
    assert found
    assert found.id == last
