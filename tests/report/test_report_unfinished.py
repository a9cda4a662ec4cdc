"""A run that ended early: unfinished scenarios are one count, and real failures stand out."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from builders import (
    conversation_result,
    events,
    failing_conversation,
    let_go,
    run_result,
    scenario_result,
)
from rich.console import Console

from agentest.domain.results import (
    ConversationResult,
    Reason,
    ReasonKind,
    RunResult,
    ScenarioResult,
    Status,
    Verdict,
)
from agentest.report.console.reporter import ConsoleReporter
from agentest.report.console.text import DisplayOptions
from agentest.report.content import RunReport, ended_early_text, unfinished_text
from agentest.report.github import GitHubActionsReporter

STOPPED = Reason(Status.ERRORED, ReasonKind.INTERRUPTED, "interrupted: after 0 of 3 conversations")
BROKEN = Reason(Status.ERRORED, ReasonKind.MODEL, "the judge's model does not answer")


def cut_short(
    name: str, *held: ConversationResult, reasons: tuple[Reason, ...] = (STOPPED,)
) -> ScenarioResult:
    took = 1500.0 if held else 0.0
    return scenario_result(name, held, verdict=Verdict(Status.ERRORED, reasons), planned=3, duration_ms=took)


def interrupted(**more: object) -> RunResult:
    """A failure, a pass, an errored scenario, 200 that never ran and one that ran in part."""
    return run_result(
        scenario_result("books", [failing_conversation("books-1")]),
        scenario_result("asks"),
        cut_short("is judged", conversation_result("is-judged-1"), reasons=(BROKEN, STOPPED)),
        *(cut_short(f"waits {n}") for n in range(200)),
        cut_short("has begun", conversation_result("begun-1"), conversation_result("begun-2")),
        **{"interrupted": True, "stopped": "interrupted", **more},
    )


COUNT = "200 of 204 scenarios did not run; 1 ran in part (2 of its 3 conversations)"


def on_console(result: RunResult, **more: object) -> str:
    stream = io.StringIO()
    reporter = ConsoleReporter(Console(file=stream, width=80), DisplayOptions(**more))  # type: ignore[arg-type]
    for event in events(result):
        reporter.on_event(event)
    return stream.getvalue()


def test_the_screen_ends_with_the_count_and_real_failures() -> None:
    """One line counts what did not run, and the next says how to continue."""
    shown = on_console(interrupted(), next_step="agentest run --resume")
    end = shown[shown.index("✗ create") :]
    assert end == (
        "✗ create_booking not called as expected  1 scenario\n"
        "  scenarios/booking.sim.py:7  books\n"
        "    turn 1  user   Is Tuesday free?\n            agent  Yes, at 9:00.\n"
        "    trajectory: expected calls are missing: create_booking\n"
        "    expected (contains): create_booking\n    actual: no calls\n\n"
        "! the judge's model does not answer  1 scenario\n"
        "  scenarios/booking.sim.py:7  is judged\n\n"
        f"Interrupted: {COUNT}.\nagentest run --resume runs the rest.\n"
        "pass rate  80% [16–99%] (n 5 in 4 scenarios)\n"
        "cost       2,040 model calls\n"
        "1 failed, 1 errored, 1 passed, 201 unfinished (204 scenarios, 5 conversations) in 3.2 s\n"
    )
    assert "waits" not in shown
    assert "has begun" not in shown


def test_verbose_shows_what_ran_in_part() -> None:
    """--verbose shows existing transcripts; scenarios that never ran stay a count."""
    shown = on_console(interrupted(), verbosity=2)
    assert "! errored  has begun" in shown
    assert "✓ #2  " in shown
    assert "waits" not in shown


def test_other_ends_are_counted_in_the_same_way() -> None:
    """--fail-fast and budgets give their reason; a run interrupted at its end has nothing left."""
    reason = replace(STOPPED, status=Status.SKIPPED, message="stopped by --fail-fast: after 0 of 3")
    skipped = replace(cut_short("waits"), verdict=Verdict(Status.SKIPPED, (reason,)))
    failed = scenario_result("books", [failing_conversation()])
    result = run_result(failed, skipped, stopped="stopped by --fail-fast")
    assert ended_early_text(result) == "Ended early (stopped by --fail-fast): 1 of 2 scenarios did not run"
    assert "1 failed, 1 unfinished (2 scenarios" in on_console(result)
    late = run_result(failed, interrupted=True, stopped="interrupted")
    assert ended_early_text(late) == "Interrupted: all scenarios had finished"
    part = run_result(replace(failed, planned=9), interrupted=True, stopped="interrupted")
    assert ended_early_text(part) == (
        "Interrupted: every scenario has its verdict, but not all of its conversations"
    )
    assert RunReport(part, next_step="agentest run --resume").next_step
    assert not RunReport(late, next_step="agentest run --resume").next_step
    assert ended_early_text(run_result(failed)) == ""


def test_unfinished_scenarios_of_an_earlier_run_are_shown_in_full() -> None:
    """A complete run that judges an interrupted one again shows what each scenario lacks."""
    result = run_result(cut_short("has begun", conversation_result()))
    assert unfinished_text(result) == ""
    shown = on_console(result)
    assert "  scenarios/booking.sim.py:7  has begun\n" in shown
    assert "1 errored (1 scenario" in shown


@pytest.mark.parametrize("agents", [1, 2])
def test_one_agent_or_several(agents: int) -> None:
    """In a comparison each scenario counts once per agent."""
    result = run_result(*(replace(cut_short("waits"), agent=f"a{n}") for n in range(agents)), stopped="why")
    counted = ["1 of 1 scenario did not run", "2 of 2 scenarios, with each agent, did not run"]
    assert unfinished_text(result) == counted[agents - 1]


def test_github_has_one_annotation_for_it(tmp_path: Path) -> None:
    """One annotation covers all; the summary has the count and no rows."""
    lines: list[str] = []
    path = tmp_path / "summary.md"
    reporter = GitHubActionsReporter(lines.append, tmp_path, path, next_step="agentest run --resume")
    result = interrupted()
    for event in events(result):
        reporter.on_event(event)
    assert [line for line in lines if "did not run" in line] == [
        f"::error title=Agentest did not finish::Interrupted: {COUNT}"
    ]
    assert not any("waits" in line for line in lines)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("## ❌ Agentest: 1 failed, 1 errored, 1 passed, 201 unfinished\n")
    assert f"**Interrupted: {COUNT}.** `agentest run --resume` runs the rest." in text
    assert "waits" not in text
    assert len(let_go(result).scenarios) == 204
