"""Progress of a run: a live display on a terminal, or else a line from time to time."""

from __future__ import annotations

import io

import pytest
from builders import conversation_result, scenario_result, verdict
from rich.console import Console

from agentest.domain.events import (
    ConversationFinished,
    ConversationHeld,
    ConversationStarted,
    Event,
    RunStarted,
    ScenarioFinished,
    ScenarioStarted,
    TimePassed,
    TurnFinished,
)
from agentest.domain.results import ModelUsage, Status
from agentest.report.console.printer import Printer, live_lines
from agentest.report.console.reporter import ConsoleReporter
from agentest.report.progress import Progress, ProgressLogReporter
from agentest.support.text import about


def started(scenarios: int, conversations: int) -> RunStarted:
    return RunStarted("1.2.3", {"booking": "http://127.0.0.1:8080/"}, scenarios, conversations, 20)


def held(name: str, number: int, cost: float | None = 0.0, calls: int = 0) -> ConversationHeld:
    return ConversationHeld(name, "booking", number, ModelUsage(calls, cost=cost))


def judged(name: str, number: int, cost: float = 0.0, *, failed: bool = False) -> ConversationFinished:
    used = ModelUsage(1 if cost else 0, cost=cost)
    return ConversationFinished(name, "booking", b"{}", number, failed=failed, used=used)


def ended(name: str, status: Status = Status.PASSED) -> ScenarioFinished:
    result = scenario_result(name, [conversation_result()], verdict=verdict(status), usage={})
    return ScenarioFinished(result)


def begun(name: str, *numbers: int, of: int = 0) -> list[Event]:
    scenario = ScenarioStarted(name, "booking", of or len(numbers))
    return [scenario, *(ConversationStarted(name, "booking", number) for number in numbers)]


def half_way() -> list[tuple[float, Event]]:
    """Ten seconds per conversation, one for judging; at 30 s the second two of four are running."""
    told = [(0.0, event) for event in [started(3, 6), *begun("a", 1, 2, of=4)]]
    told += [(10.0, held("a", 1, 0.01, 3)), (10.0, held("a", 2, 0.02, 6))]
    told += [(10.0, ConversationStarted("a", "booking", 3)), (10.0, ConversationStarted("a", "booking", 4))]
    told += [(11.0, judged("a", 1, 0.04)), (11.0, judged("a", 2, 0.05, failed=True))]
    return [*told, (12.0, ended("b", Status.FAILED)), (15.0, held("a", 3, 0.06, 9))]


def lines_of(events: list[tuple[float, Event]], expected_s: float | None = None) -> list[str]:
    said: list[str] = []
    now = [0.0]
    pulse = ProgressLogReporter(said.append, expected_s=expected_s, clock=lambda: now[0])
    for now[0], event in events:
        pulse.on_event(event)
    return said


def test_a_progress_line() -> None:
    """It has done and planned counts, phases, failures, cost so far, and the time left."""
    (said,) = lines_of([*half_way(), (16.0, TimePassed())])
    assert said == (
        "16.0 s: 2 of 6 conversations done · 1 talking · 1 judging · 1 conversation failed · "
        "1 scenario failed · 0.0600 USD so far · about 10 s left"
    )


def test_a_run_that_waits_for_a_quota_says_so() -> None:
    """The time left is rate-bound as long as model calls wait for a quota."""
    told = [*half_way(), (16.0, TimePassed(rate_bound=True)), (16.0, TimePassed())]
    bound, free = lines_of(told)
    assert bound == free.replace("about 10 s left", "rate-bound: about 10 s left")


@pytest.mark.parametrize(("quiet_s", "is_told"), [(4.0, True), (20.0, False), (500.0, False)])
def test_a_stalled_run_has_no_estimate(quiet_s: float, is_told: bool) -> None:
    """There is no time left while the last conversations take longer than estimated."""
    nearly = [event for event in half_way() if event[0] < 15]
    nearly += [(15.0, held("a", n)) for n in (3, 4)] + [(16.0, judged("a", 3))]
    (said,) = lines_of([(0.0, started(1, 4)), *nearly[1:], (16.0 + quiet_s, TimePassed())])
    assert (" left" in said) is is_told, said


def test_a_slow_run_keeps_its_estimate() -> None:
    """A line between two conversations of a minute each still has an estimate."""
    events: list[tuple[float, Event]] = [(0.0, started(1, 9)), (0.0, begun("a", of=9)[0])]
    for n in (1, 2, 3):
        at = 60.0 * n
        events += [
            (at - 60, ConversationStarted("a", "booking", n)),
            (at, held("a", n)),
            (at, judged("a", n)),
        ]
    (said,) = lines_of([*events, (180.0, ConversationStarted("a", "booking", 4)), (230.0, TimePassed())])
    assert said.endswith("left"), said
    (said,) = lines_of([*events, (180.0, ConversationStarted("a", "booking", 4)), (900.0, TimePassed())])
    assert "left" not in said


def test_cost_without_models_or_prices() -> None:
    """An offline run has no cost, and a model without a price has an unknown one."""
    offline = [started(1, 2), *begun("a", 1, of=2), TimePassed()]
    assert lines_of([(30.0, event) for event in offline]) == ["0 ms: 0 of 2 conversations done · 1 talking"]
    unpriced = [started(1, 2), *begun("a", 1, of=2), held("a", 1, None, 5), TimePassed()]
    assert lines_of([(30.0, event) for event in unpriced]) == [
        "0 ms: 0 of 2 conversations done · 1 judging · cost unknown"
    ]


def test_the_time_left_is_what_an_earlier_run_says_until_a_conversation_has_ended() -> None:
    """Before the first conversation ends, only an earlier run gives an estimate."""
    waiting = [(0.0, started(1, 2)), *((0.0, each) for each in begun("a", 1, of=2)), (30.0, TimePassed())]
    assert "left" not in lines_of(waiting)[0]
    assert lines_of(waiting, 120.0)[0].endswith("about 2 min left")
    seen = [*waiting, (40.0, held("a", 1)), (40.0, judged("a", 1)), (60.0, TimePassed())]
    assert lines_of(seen, 1200.0)[1].endswith("none under way · about 40 s left")


def test_agents_in_a_line_are_estimated_as_one_after_another() -> None:
    """The estimate uses the observed concurrency, not the settings."""
    events: list[tuple[float, Event]] = [(0.0, started(1, 20)), (0.0, ScenarioStarted("a", "booking", 20))]
    for n in range(10):
        at = 6.0 * n
        events += [
            (at, ConversationStarted("a", "booking", n)),
            (at + 6, held("a", n)),
            (at + 6, judged("a", n)),
        ]
    assert lines_of([*events, (60.0, TimePassed())])[0].endswith("about 1 min left")


def test_judges_that_are_the_narrow_place_are_estimated_by_the_rate_at_which_they_work() -> None:
    """If all conversations are over and judging takes two seconds each, its rate is the estimate."""
    events: list[tuple[float, Event]] = [(0.0, started(1, 80))]
    events += [(0.0, each) for each in begun("a", *range(80))]
    events += [(1.0, held("a", n)) for n in range(80)]
    events += [(1 + 2.0 * n, judged("a", n - 1)) for n in range(1, 79)]
    told = [(21.0, "2 min"), (81.0, "1 min"), (157.0, "4 s")]
    for at, left in told:
        seen = [*(each for each in events if each[0] <= at), (at, TimePassed())]
        assert lines_of(seen)[0].endswith(f"about {left} left"), lines_of(seen)


def test_the_time_between_judgings_says_nothing_of_their_rate() -> None:
    """Two rounds of ten conversations of a minute each, with a second of judging: the time left falls."""
    events: list[tuple[float, Event]] = [(0.0, started(1, 20)), (0.0, ScenarioStarted("a", "booking", 20))]
    for start, numbers in ((0.0, range(10)), (60.0, range(10, 20))):
        events += [(start, ConversationStarted("a", "booking", n)) for n in numbers]
        events += [(start + 60, held("a", n)) for n in numbers] + [
            (start + 61, judged("a", n)) for n in numbers
        ]
    events.sort(key=lambda each: each[0])
    for at, left in [(70.0, "50 s"), (90.0, "30 s"), (110.0, "10 s")]:
        turn = at, TurnFinished("a", "booking", "a-11", 0)
        seen = [*(each for each in events if each[0] <= at), turn, (at, TimePassed())]
        assert lines_of(seen)[0].endswith(f"about {left} left"), lines_of(seen)


def test_grouping_is_shown_as_progress() -> None:
    """All conversations are judged, and a model still groups their failures."""
    events = [started(1, 1), *begun("a", 1), held("a", 1), judged("a", 1, failed=True), TimePassed()]
    assert "1 of 1 conversation done · 1 grouping errors" in lines_of([(9.0, each) for each in events])[0]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_live_area_fits_the_terminal(width: int) -> None:
    """The bar uses the room beside the numbers; long names are cut after the phases."""
    printer = Printer(Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None))
    progress = Progress()
    for at, event in half_way():
        progress.on_event(event, at)
    for n in range(6):
        for event in begun(f"a scenario with {'quite ' * 20}a name {n}", 1, of=3):
            progress.on_event(event, 15.0)
    rows = [row.plain for each in live_lines(progress, printer, 16.0) for row in printer.rows(each)]
    assert max(map(len, rows)) <= width
    assert rows[0].endswith(" 2/6 conversations · 1/3 scenarios")
    assert rows[0].count("━") == len(rows[0].split(" ")[0]) // 3
    shown = " ".join(rows)
    for words in ("7 talking", "1 judging", "1 conversation failed", "about 20 s left", "0.0600 USD so far"):
        assert words in shown
    assert "  2/4  1 talking, 1 judging  a" in rows
    assert any(row.startswith("  0/3  1 talking  a scenario with") for row in rows)
    assert rows[-1] == "  and 2 more"


@pytest.mark.parametrize("live", [False, True])
def test_progress_lines_without_a_terminal(live: bool) -> None:
    """The console prints the line only without a live display."""
    stream = io.StringIO()
    reporter = ConsoleReporter(
        Console(file=stream, width=80, force_terminal=live), live=live, clock=lambda: 5.0
    )
    for event in [started(1, 2), *begun("a", 1, of=2), TimePassed()]:
        reporter.on_event(event)
    if live:
        reporter._progress.stop()  # type: ignore[union-attr]
    assert ("0 ms: 0 of 2 conversations done · 1 talking\n" in stream.getvalue()) is not live


def test_estimates_are_rounded() -> None:
    """Seconds in steps of five, then minutes, then hours and minutes."""
    shown = {4: "4 s", 42: "40 s", 59: "1 min", 200: "3 min", 3600: "1 h", 5000: "1 h 23 min"}
    assert {seconds: about(seconds) for seconds in shown} == shown
