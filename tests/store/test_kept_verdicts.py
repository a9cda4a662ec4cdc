"""The latest verdict of each scenario over all stored runs; interruptions do not count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import builders

from agentest.domain.results import ReasonKind, RunResult, ScenarioResult, Status
from agentest.store.journal import Journal
from agentest.store.runs.folder import (
    JOURNAL,
    RunKind,
    RunRecord,
    latest_unfinished,
    new_run_folder,
    with_end,
    write_record,
)
from agentest.store.runs.past_runs import ScenarioWithAgent, latest_verdicts

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
