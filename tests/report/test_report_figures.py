"""Confidence of figures on the console and in GitHub's summary."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from builders import (
    conversation,
    conversation_result,
    events,
    failing_conversation,
    failure,
    run_result,
    scenario_result,
    scored,
    turn_evaluation,
)
from rich.console import Console

from agentest.domain.end_reason import Ending
from agentest.domain.repeat_setting import Repeat
from agentest.domain.results import ConversationResult, RunResult
from agentest.domain.transcript import Blame
from agentest.report.console.reporter import ConsoleReporter
from agentest.report.console.text import DisplayOptions
from agentest.report.content import detection_limits, percent
from agentest.report.github import summary
from agentest.report.transcripts import Transcripts


def told(result: RunResult, console: Console | None = None, *, verbosity: int = 0) -> str:
    console = console or Console(file=io.StringIO(), width=200)
    reporter = ConsoleReporter(console, DisplayOptions(verbosity=verbosity), live=False)
    for event in events(result):
        reporter.on_event(event)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def talk(id: str, helpfulness: float, fails: bool = False) -> ConversationResult:
    held = failing_conversation(id) if fails else conversation_result(id)
    evaluated = (turn_evaluation(metrics={"helpfulness": scored(helpfulness)}),)
    return ConversationResult(held.conversation, evaluated, {}, held.trajectory)


def three(*, agent: str = "booking", name: str = "books") -> list[ConversationResult]:
    return [talk("c1", 3), talk("c2", 4), talk("c3", 5, fails=True)]


def test_figures_of_a_scenario_have_intervals() -> None:
    """Rate and averages have n and interval, and disagreeing conversations are called flaky."""
    text = told(run_result(scenario_result("books", three(), thresholds={"helpfulness": 3.5})), verbosity=1)
    assert "2/3 conversations passed (67% [21–94%]) · flaky · 3 turns" in text
    assert "helpfulness 4.00 [1.52, 5.00] (≥ 3.5, n 3)" in text
    assert "pass rate  67% [21–94%] (n 3)  pass^2 33%  pass^3 0%" in text
    assert "1 failed (1 scenario, 3 conversations, 1 flaky) in 3.2 s" in text


def test_a_single_conversation_is_not_called_a_rate() -> None:
    """A single conversation passed or failed, without interval or sample size."""
    text = told(run_result(scenario_result()))
    assert "scenarios/booking.sim.py:7  1 conversation\n" in text
    assert "pass rate" not in text
    assert "In brackets" not in text


def test_a_rate_names_its_sample() -> None:
    """If conversations are errored, the rate says how many it covers."""
    errored = conversation_result("c3", held=conversation("c3", [], failure(Blame.MODEL)))
    text = told(run_result(scenario_result("books", [talk("c1", 3), talk("c2", 4), errored])), verbosity=1)
    assert "2/3 conversations passed (100% [34–100%] of the 2 that passed or failed)" in text


def test_a_close_decision_comes_with_the_drops_that_can_be_detected() -> None:
    """If conversations of a scenario disagree, one sentence says which drops are detectable."""
    result = run_result(*(scenario_result(name, three()) for name in "abc"))
    text = told(result)
    said = (
        "With 3 conversations per scenario, drops from 90% to 28% are detectable. "
        "Use --conversations 13 to detect a drop to 60%."
    )
    assert text.count(said) == 1
    assert "(n 9 in 3 scenarios)" in text
    assert summary(result, Transcripts(100_000), 100_000).count(said) == 1
    assert "detectable" not in told(run_result(scenario_result("books", talks(3))))


def talks(count: int) -> list[ConversationResult]:
    return [talk(f"c{n}", 4) for n in range(count)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1, 1), None),
        (
            (2,),
            "With 2 conversations per scenario, drops from 90% to 10% are detectable. "
            "Use --conversations 13 to detect a drop to 60%.",
        ),
        (
            (30, 30),
            "With 30 conversations per scenario, drops from 90% to 71% are detectable. "
            "Use --conversations 78 to detect a drop to 80%.",
        ),
        (
            (1, 3, 5),
            "With 3 to 5 conversations per scenario, drops from 90% to 28% are detectable. "
            "Use --conversations 13 to detect a drop to 60%.",
        ),
        ((400,), "With 400 conversations per scenario, drops from 90% to 85% are detectable."),
    ],
    ids=["one each", "two", "thirty", "several sizes", "plenty"],
)
def test_detectable_drops(sizes: tuple[int, ...], expected: str | None) -> None:
    """The sentence depends on the smallest number of conversations."""
    result = run_result(*(scenario_result(str(n), talks(size)) for n, size in enumerate(sizes)))
    assert detection_limits(result) == expected


def test_detectable_drops_of_repeated_scenarios() -> None:
    """The maximum of conversations counts, not the few that decided."""
    found = [replace(scenario_result(str(n), talks(n)), repeat=Repeat(max=20)) for n in (3, 20)]
    assert detection_limits(run_result(*found)) == (
        "With 20 conversations per scenario, drops from 90% to 68% are detectable. "
        "Use --repeat 3..25 to detect a drop to 70%."
    )


def test_detectable_drops_of_recorded_sessions() -> None:
    """`agentest judge` has no conversations to repeat, but a larger sample of sessions."""
    sessions = [
        replace(each, conversation=replace(each.conversation, ending=Ending.RECORDED)) for each in talks(30)
    ]
    assert (detection_limits(run_result(scenario_result("a", sessions))) or "").endswith(
        "Use --sample 78 to detect a drop to 80%."
    )


def compared() -> RunResult:
    found = [
        scenario_result("books", three(), agent="booking"),
        scenario_result("books", [talk("c1", 4), talk("c2", 4)], agent="other"),
    ]
    return run_result(*found, comparison=True)


def test_agents_are_compared_with_their_rates() -> None:
    """In a comparison each agent has its rate, in its cells and below."""
    text = told(compared(), verbosity=1)
    assert re.search(r"failed  2/3 67% \[21–94%\] flaky", text)
    assert "pass rate  booking  67% [21–94%] (n 3)  pass^2 33%  pass^3 0%\n" in text
    assert "           other  100% [34–100%] (n 2)  pass^2 100%\n" in text


def test_no_line_is_wider_than_a_small_terminal() -> None:
    """On a terminal of 80 columns, long lines break between their parts."""
    text = told(
        compared(), Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None), verbosity=1
    )
    assert max(map(len, text.splitlines())) <= 80
    assert "pass^3 0%" in text


def test_the_summary_on_github() -> None:
    """Failures and table have rate, interval and flaky; averages are folded at the end."""
    text = summary(compared(), Transcripts(100_000), 100_000).replace("&#91;", "[").replace("&#93;", "]")
    assert (
        "Pass rate: booking: 67% [21–94%] (n 3), pass^2 33%, pass^3 0%; other: 100% [34–100%] (n 2)" in text
    )
    assert "· passed 2 of 3, 67% [21–94%], flaky\n" in text
    assert "| ✅ passed | books | other | 2 of 2, 100% [34–100%] |" in text
    _head, rows = text.split("<summary>Averages</summary>\n\n")
    assert "| helpfulness | 4.00 [1.52, 5.00] | 3 |  |" in rows
    assert rows.count("|\n") == 4


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0, "0%"),
        (1, "100%"),
        (0.5, "50%"),
        (0.004, "0.4%"),
        (0.996, "99.6%"),
        (0.0001, "<0.1%"),
        (0.9999, ">99.9%"),
    ],
)
def test_percentages(share: float, expected: str) -> None:
    """A tiny share is not shown as 0%, and one just below all is not shown as 100%."""
    assert percent(share) == expected
