"""The agent reporter: only failures, within 2,000 tokens, each with the command to repeat it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builders import (
    conversation_result,
    error_group,
    events,
    run_result,
    scenario_result,
    skipped_scenario,
    verdict,
)
from sample_run import compared_run, passing, sample_run, wrong_calls

from agentest import call, scenario
from agentest.domain.results import ErrorExample, Reason, ReasonKind, RunResult, Severity, Status, Verdict
from agentest.report.agent import MOST_CHARS, AgentReporter
from agentest.testing import ScriptedAgent, run_scenarios, tool_call


def reported(result: RunResult, run: str = "") -> str:
    texts: list[str] = []
    reporter = AgentReporter(run=run, write=texts.append)
    for event in events(result):
        reporter.on_event(event)
    (text,) = texts
    return text


def test_a_run_that_passed_is_one_line() -> None:
    assert reported(run_result(passing(), skipped_scenario())) == "passed: 1 passed, 1 skipped\n"


def test_a_failure_says_what_to_repair() -> None:
    """It has the place, both sides, the turn's calls, the blame, and the command to repeat it."""
    head, block = reported(run_result(passing(), wrong_calls())).rstrip("\n").split("\n\n")
    assert head == "failed: 1 failed, 1 passed"
    rows = block.splitlines()
    assert rows[0].startswith("FAILED scenarios/booking.sim.py:")
    expected = next(row for row in rows if row.startswith("  expected: "))
    assert "check_availability" in expected
    assert "forbidden" in expected
    assert any(row.startswith("  happened: ") and "cancel_booking" in row for row in rows)
    assert any(row.startswith("  turn 2 of conversation") for row in rows), "the turn of the wrong call"
    assert any(row.startswith("  likely cause: the agent; ") for row in rows)
    assert rows[-1].startswith("  repeat: agentest run 'scenarios/booking.sim.py::")


def test_a_shared_error_is_written_once() -> None:
    """The other scenarios refer to the first and have their commands."""
    why = verdict(Status.ERRORED, "answered 401: missing token")
    errored = [scenario_result(name, (), verdict=why, line=n) for n, name in enumerate("abc", 1)]
    text = reported(run_result(*errored))
    assert text.count("missing token") == 1
    assert text.count("likely cause: as in scenarios/booking.sim.py:1") == 2
    assert text.count("repeat: agentest run") == 3


def test_each_failure_shows_its_own_turn_and_every_cause() -> None:
    """If there is room, repeated causes are shown in full, with differing arguments."""
    tools = {"book_room": {"ok": True}}
    booked = {"match_mode": "contains", "expected": [call("book_room", total=240)]}
    scenarios = [
        scenario("a", turns=[{"user_message": "Hours?", "expect": {"contains": "nine"}}], tools=tools),
        scenario("b", turns=[{"user_message": "Prices?", "expect": {"contains": "ten"}}], tools=tools),
        scenario("c", turns=["Book it."], trajectory=booked, tools=tools),
        scenario("d", turns=["Book now."], trajectory=booked, tools=tools),
    ]
    with ScriptedAgent([tool_call("book_room", total=160), "Booked."]) as agent:
        text = reported(run_scenarios(scenarios, agent=agent))
    assert text.count("    user: ") == 4
    assert (
        "likely cause: the agent; book_room: total expected 240, got 160 (also in 1 other scenario)" in text
    )
    assert text.count("likely cause: as in ") == 1, "other words are another cause"


def test_slim_conversations_show_no_turn() -> None:
    """Their texts were dropped. A failure that a judge found shows its own turn, even beside a threshold."""
    slim = replace(conversation_result(""), slim=True)
    missed = Reason(
        Status.FAILED, ReasonKind.THRESHOLD, "cost: 2 USD", metric="cost", expected=0.5, actual=2.0
    )
    alone = scenario_result(conversations=(slim,), verdict=Verdict(Status.FAILED, (missed,)))
    text = reported(run_result(alone))
    assert "expected: cost of at most 0.5" in text
    assert "user:" not in text
    example = ErrorExample(conversation_id="c-2", turn_index=0, user_message="", agent_message="")
    group = replace(error_group(severity=Severity.CRITICAL), fails=True, examples=(example,))
    leak = replace(missed, kind=ReasonKind.ERROR, metric=None, group=group)
    judged = replace(
        alone,
        conversations=(slim, conversation_result("c-2")),
        errors=(group,),
        verdict=Verdict(Status.FAILED, (missed, leak)),
    )
    assert "turn 1 of conversation c-2:" in reported(run_result(judged))


def test_whatever_happened_the_report_stays_within_its_limit() -> None:
    """Megabytes of text, control characters and hundreds of failures take about 2,000 tokens."""
    hostile = reported(sample_run())
    assert len(hostile) <= MOST_CHARS
    assert "\x1b" not in hostile
    many = [wrong_calls() for _ in range(300)]
    text = reported(run_result(*many), run="20260101-000000")
    assert len(text) <= MOST_CHARS
    shown = text.count("\nFAILED ")
    assert text.count("    user: ") == 1, "the turn of a cause is shown once"
    assert text.count("likely cause: as in scenarios/booking.sim.py:31") == shown - 1
    assert shown >= 3
    assert f"… {300 - shown} more scenarios did not pass: agentest show 20260101-000000" in text


def test_agents_of_a_comparison_are_distinguished() -> None:
    """The command repeats the scenario with the agent that failed."""
    assert "--agent candidate" in reported(compared_run())


def test_a_file_has_the_same_text(tmp_path: Path) -> None:
    """`agent=PATH` writes the text of standard output."""
    result = run_result(wrong_calls())
    reporter = AgentReporter(tmp_path / "out" / "failures.txt")
    for event in events(result):
        reporter.on_event(event)
    assert (tmp_path / "out" / "failures.txt").read_text(encoding="utf-8") == reported(result)
