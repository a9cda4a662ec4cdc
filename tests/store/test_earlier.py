"""Reading durations and costs of an earlier run from its files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from builders import conversation_result, events, run_result, scenario_result

from agentest.domain.results import ModelUsage, Reason, ReasonKind, RunResult, Status, Verdict
from agentest.report.json import JsonReporter
from agentest.store.journal import Journal
from agentest.store.reader import read_finished
from agentest.store.runs.folder import RunKind, RunRecord, read_record, with_end, write_record
from agentest.store.runs.past_runs import find_earlier_run, read_earlier_run
from agentest.support.errors import UsageError


def some_run(*, comparison: bool = False) -> RunResult:
    """Two conversations of 1 s, 0.6 s of it judging, for 3 cents; with two agents if compared."""
    held = [conversation_result("a-1"), conversation_result("a-2")]
    usage = {"user": ModelUsage(2, cost=0.01), "judge": ModelUsage(8, cost=0.02)}
    first = scenario_result("a", held, usage=usage)
    agents = [first, replace(first, agent="other")] if comparison else [first]
    return run_result(*agents, comparison=comparison)


def kept(folder: Path, result: RunResult) -> tuple[Path, Path]:
    """Write the files that such a run leaves."""
    results, journal = folder / "results.json", folder / "journal.jsonl"
    with closing(Journal(journal, lambda text: None)) as log:
        reporters = [log, JsonReporter(results, log.conversations)]
        for event in events(result):
            for reporter in reporters:
                reporter.on_event(event)
    return results, journal


@pytest.mark.parametrize("comparison", [False, True])
def test_results_and_journal_agree(tmp_path: Path, comparison: bool) -> None:
    """Both have conversations, durations and total cost by scenario and agent."""
    results, journal = kept(tmp_path, some_run(comparison=comparison))
    found = read_earlier_run(results)
    assert found is not None
    assert found == read_earlier_run(journal)
    assert {agent for _, agent in found.took} == ({"booking", "other"} if comparison else {"booking"})
    took = found.took["a", "booking"]
    assert (took.conversations, took.cost) == (2, pytest.approx(0.03))
    assert (took.talking_s, took.judging_s) == (pytest.approx(0.8), pytest.approx(1.2))


def test_an_unknown_price_makes_the_cost_unknown(tmp_path: Path) -> None:
    """One role without a price makes the scenario's cost unknown."""
    run = run_result(scenario_result("a", usage={"user": ModelUsage(2, cost=None)}))
    found = read_earlier_run(kept(tmp_path, run)[0])
    assert found is not None
    assert found.took["a", "booking"].cost is None


def test_an_interrupted_scenario_counts_with_its_conversations(tmp_path: Path) -> None:
    """A scenario stopped by Ctrl-C or the budget counts with the conversations that it finished."""
    reason = Reason(Status.ERRORED, ReasonKind.INTERRUPTED, "after 2 of 9 conversations")
    cut = Verdict(Status.ERRORED, (reason,))
    held = [conversation_result("b-1"), conversation_result("b-2")]
    interrupted = scenario_result("b", held, verdict=cut, usage={"user": ModelUsage(3, cost=0.01)})
    for name, ends in (("ctrl-c", {"interrupted": True}), ("budget", {"stopped": "no more model calls"})):
        run = run_result(*some_run().scenarios, interrupted, **ends)
        folder = tmp_path / name
        folder.mkdir()
        results, journal = kept(folder, run)
        write_record(folder, with_end(record(1, {}), run))
        for path in (results, journal):
            found = read_earlier_run(path)
            assert found is not None
            assert {key: each.conversations for key, each in found.took.items()} == {
                ("a", "booking"): 2,
                ("b", "booking"): 2,
            }
            assert (found.took["b", "booking"].calls, found.took["b", "booking"].cost) == (3, 0.01)


def test_an_unreadable_line_of_a_journal_is_named_by_its_number(tmp_path: Path) -> None:
    """A JSON line that is not a scenario of this version is reported by number."""
    journal = kept(tmp_path, some_run())[1]
    first = journal.read_bytes().splitlines(keepends=True)[0]
    for line in (
        b'{"type": "scenario", "scenario": {"name": "a", "agent": "b"}}',
        b'{"type": "end", "run": {}}',
    ):
        journal.write_bytes(first + line + b"\n")
        with pytest.raises(UsageError, match="line 2: it has no "):
            read_finished(journal)


def test_unreadable_files_give_no_forecast(tmp_path: Path) -> None:
    """Missing, invalid and foreign files, and a killed run without results, are ignored."""
    assert read_earlier_run(tmp_path / "none.json") is None
    killed = '{"type": "run", "startedAt": "", "models": {}}\n{"ty'
    for n, text in enumerate(("", "{", "[]", '{"a": 1}', killed)):
        for suffix in ("json", "jsonl"):
            path = tmp_path / f"{n}.{suffix}"
            path.write_text(text)
            assert read_earlier_run(path) is None


def record(took: int, models: Mapping[str, str | None], *names: str) -> RunRecord:
    """A record of a run in which each scenario made this many calls."""
    usage = {"judge": ModelUsage(took, cost=0.03)}
    held = [conversation_result("a-1"), conversation_result("a-2")]
    run = run_result(*(scenario_result(name, held, usage=usage) for name in names))
    begun = RunRecord(id=str(took), kind=RunKind.RUN, started_at=str(took), version="1", models=models)
    return with_end(begun, run)


def test_a_record_agrees_with_the_journal(tmp_path: Path) -> None:
    """run.json is enough for conversations, durations, calls and cost of each scenario."""
    write_record(tmp_path, with_end(record(1, {}), some_run()))
    read = read_record(tmp_path)
    assert read is not None
    by_record = find_earlier_run([read], {("a", "booking")}, offline=True)
    by_journal = read_earlier_run(kept(tmp_path, some_run())[0])
    assert by_record is not None
    assert by_journal is not None
    assert by_record.took == by_journal.took
    assert by_record.took["a", "booking"].calls == 10


def test_the_latest_run_with_the_same_scenarios_forecasts() -> None:
    """Offline runs forecast offline runs; a run of all planned scenarios is preferred to a later part."""
    model = {"user": "m", "judge": None}
    runs = [record(1, {"user": None}, "a", "b"), record(2, model, "b"), record(3, model, "a", "b", "c")]
    both = {("a", "booking"), ("b", "booking")}

    def chosen(places: set[tuple[str, str]], *, offline: bool) -> str | None:
        found = find_earlier_run(runs, places, offline=offline)
        return found and found.started_at

    assert chosen(both, offline=False) == "3"
    assert chosen({("b", "booking")}, offline=False) == "2"
    assert chosen({("new", "booking")}, offline=False) == "2"
    assert chosen(both, offline=True) == "1"
    assert find_earlier_run([], both, offline=True) is None
