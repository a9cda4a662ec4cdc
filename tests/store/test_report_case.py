"""Cases of evaluation sets on the console and in results.json."""

from __future__ import annotations

import io
from typing import Any

import builders as b
import pytest
from stored import to_json

from agentest.domain.events import RunFinished, RunStarted, ScenarioFinished
from agentest.domain.results import (
    CaseId,
    MetricResult,
    Reference,
    ReferenceCall,
    RubricScore,
    ScenarioResult,
    Score,
    Skipped,
    TurnEvaluation,
    Unscored,
)
from agentest.domain.transcript import Conversation, Turn
from agentest.report.console.printer import open_console
from agentest.report.console.reporter import ConsoleReporter
from agentest.report.console.text import DisplayOptions

CASE = CaseId("orders", "lookup")
INVOCATION = {"userContent": {"role": "user", "parts": [{"text": "Is Tuesday free?"}]}}
REFERENCE = Reference(
    "Yes, it is.", (ReferenceCall("look", {"day": "Tue"}), ReferenceCall("any", None)), INVOCATION
)


def evaluated(
    turns: dict[int, dict[str, MetricResult]], reference: Reference | None = REFERENCE
) -> list[TurnEvaluation]:
    return [TurnEvaluation(n, metrics, reference=reference) for n, metrics in turns.items()]


def result(*runs: list[TurnEvaluation], thresholds: dict[str, float], **more: Any) -> ScenarioResult:
    """A case with one run per list of evaluations, and a turn per evaluation."""
    held = [
        b.conversation_result(
            f"lookup-{n}",
            turns,
            more.get("whole", {}),
            held=b.conversation(f"lookup-{n}", more.get("turns") or [b.turn(t.turn_index) for t in turns]),
        )
        for n, turns in enumerate(runs, start=1)
    ]
    return b.scenario_result(
        "lookup",
        held,
        thresholds=thresholds,
        case=more.get("case", CASE),
        tags=(),
        usage={},
        information=more.get("information", ()),
    )


def shown(scenario: ScenarioResult, *, detailed: bool = False, verbose: bool = False) -> str:
    stream = io.StringIO()
    reporter = ConsoleReporter(
        open_console({}, stream), DisplayOptions(verbosity=1 + verbose), case_tables=detailed
    )
    reporter.on_event(RunStarted("0.1.0", {"booking": "http://x"}, 1, 1, 20, {}, comparison=False))
    reporter.on_event(ScenarioFinished(scenario))
    reporter.on_event(RunFinished(b.run_result(scenario)))
    return stream.getvalue()


def scores(**values: float) -> dict[str, MetricResult]:
    return {name: Score(value, f"{name} is {value}") for name, value in values.items()}


def test_a_shortfall_of_several_runs_is_reported_once() -> None:
    """The line has turn, reason, expected and actual values, and the number of runs."""
    short = evaluated({0: scores(match=0.2), 1: scores(match=0.9)})
    text = shown(
        result(
            short, short, evaluated({0: scores(match=0.9), 1: scores(match=0.9)}), thresholds={"match": 0.8}
        )
    )
    assert text.count("turn 1: match 0.2 (≥ 0.8) in 2 of 3 runs") == 1
    assert "turn 2: match" not in text
    assert "match is 0.2" in text
    assert "expected  Yes, it is." in text
    assert "replied   Yes, at 9:00." in text
    assert "3 runs · 6 turns" in text
    assert "lookup-1" not in text.partition("Slowest")[0]


def test_a_shortfall_of_calls_does_not_quote_the_answer() -> None:
    """A metric about calls shows only its reason, because texts would mislead."""
    text = shown(
        result(
            evaluated({0: scores(tool_trajectory_avg_score=0)}), thresholds={"tool_trajectory_avg_score": 1}
        )
    )
    assert "tool_trajectory_avg_score is 0" in text
    assert "expected  " not in text


def test_many_shortfalls_are_counted() -> None:
    """After ten different shortfalls, the rest are counted."""
    text = shown(result(evaluated({n: scores(match=0.1) for n in range(13)}), thresholds={"match": 0.8}))
    assert text.count("match 0.1 (≥ 0.8)") == 10
    assert "… 3 more (shown by -v)" in text


@pytest.mark.parametrize(("score", "short"), [(0.3, 0), (0.1 + 0.2, 0), (0.3 - 1e-12, 1)])
def test_a_score_at_the_threshold_meets_it(score: float, short: int) -> None:
    """Scores are compared exactly, as google-adk does."""
    found = result(evaluated({0: scores(a=score)}), evaluated({0: scores(a=1.0)}), thresholds={"a": 0.3})
    assert shown(found, verbose=True).count("turn 1: a 0.3 (≥ 0.3) in 1 of 2 runs") == short


def test_details_show_expected_and_actual_side_by_side() -> None:
    """Every invocation shows messages, calls, and each criterion's score, threshold, status and reason."""
    turn = b.turn(0, agent="No.\nSorry.", tool_calls=(b.tool_call("look", {"day": "Mon"}),))
    metrics: dict[str, MetricResult] = {**scores(match=0.25), "judged": Unscored("the judge is away")}
    found = result(
        evaluated({0: metrics}),
        thresholds={"match": 0.8, "judged": 1, "whole": 1, "never": 1},
        whole={"whole": Skipped("no model configured")},
        turns=[turn],
    )
    rows = [" ".join(row.split()) for row in shown(found, detailed=True).splitlines()]
    for row in (
        "lookup-1, turn 1",
        "user Is Tuesday free? Is Tuesday free?",
        "response Yes, it is. No.",
        "Sorry.",
        "tool calls look(day='Tue') look(day='Mon')",
        "any",
        "match 0.25 0.8 ✗ failed match is 0.25",
        "judged – 1 ! not evaluated the judge is away",
        "whole – 1 ! not evaluated no model configured",
        "never – 1 ! not evaluated nothing to compare with in this turn",
    ):
        assert row in rows, row


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (None, "tool calls – no calls"),
        (Reference(None, None, {}), "tool calls – no calls"),
        (Reference(None, (), {}), "tool calls no calls no calls"),
    ],
)
def test_unspecified_expectations_are_a_dash(reference: Reference | None, expected: str) -> None:
    """Unspecified expectations are a dash; `no calls` means that none is expected."""
    found = result(evaluated({0: scores(match=1)}, reference), thresholds={"match": 1})
    assert expected in [" ".join(row.split()) for row in shown(found, detailed=True).splitlines()]


def test_details_of_long_texts_are_folded() -> None:
    """The table stays narrow without a terminal, and no text is lost."""
    found = result(
        evaluated({0: scores(match=0)}, Reference("e" * 500, (), {})),
        thresholds={"match": 1},
        turns=[b.turn(0, agent="a" * 500)],
    )
    _, _, table = shown(found, detailed=True).partition("lookup-1, turn 1")
    assert (table.count("e" * 80), table.count("a" * 80)) == (6, 6)
    assert max(map(len, table.splitlines())) < 250


def test_details_escape_terminal_controls() -> None:
    """Escape sequences in references, arguments and reasons are made visible."""
    reference = Reference("\x1b[2Jgone", (ReferenceCall("t\x1b[0m", {"a": "\u202e"}),), {})
    metrics: dict[str, MetricResult] = {"match": Score(0, "[red]why\x1b[1m[/red]")}
    text = shown(result(evaluated({0: metrics}, reference), thresholds={"match": 1}), detailed=True)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]why" in text


def test_other_scenarios_are_reported_as_usual() -> None:
    """Only cases have details and ADK results."""
    found = result(evaluated({0: scores(match=0.1)}), thresholds={"match": 0.8}, case=None)
    assert shown(found, detailed=True) == shown(found)
    assert "in 1 of 1 runs" not in shown(found)
    document = to_json(b.run_result(found))["scenarios"][0]
    assert "evalId" not in document
    assert "evalMetricResultPerInvocation" not in document["conversations"][0]


def test_scores_for_information() -> None:
    """A score that decides nothing is not a shortfall; the console, its details and results.json mark it as
    information."""
    found = result(
        evaluated(
            {0: scores(match=1, tokens=350), 1: {"match": Score(1, ""), "tokens": Skipped("not told")}}
        ),
        thresholds={"match": 1},
        information=("tokens",),
    )
    assert found.verdict.passed
    assert "tokens 350.00 (n 1, for information)" in shown(found, verbose=True)
    rows = [" ".join(row.split()) for row in shown(found, detailed=True).splitlines()]
    assert "tokens 350 – for information tokens is 350" in rows
    assert "tokens – – for information not told" in rows
    document = to_json(b.run_result(found))["scenarios"][0]
    assert document["information"] == ["tokens"]
    about = {"metricName": "tokens", "threshold": None, "evalStatus": "INFORMATIONAL"}
    assert document["overallEvalMetricResults"][1] == {**about, "score": 350}
    turns = document["conversations"][0]["evalMetricResultPerInvocation"]
    assert [turn["evalMetricResults"][1] for turn in turns] == [{**about, "score": s} for s in (350, None)]


def test_results_include_adk_results() -> None:
    """results.json has a case's ids, its criteria over all runs, and every invocation."""
    metrics: dict[str, MetricResult] = {
        "match": Score(0.5, "half"),
        "rubrics": Score(1, "ok", rubrics=(RubricScore("polite", 1, "It is."), RubricScore("short", None))),
        "judged": Unscored("the judge is away"),
    }
    found = result(
        evaluated({0: metrics}),
        evaluated({0: scores(match=1)}),
        thresholds={"match": 0.7, "rubrics": 1, "judged": 1},
    )
    document = to_json(b.run_result(found))["scenarios"][0]
    assert (document["evalSetId"], document["evalId"], document["finalEvalStatus"]) == (
        "orders",
        "lookup",
        "NOT_EVALUATED",
    )
    assert document["overallEvalMetricResults"] == [
        {"metricName": "match", "threshold": 0.7, "score": 0.75, "evalStatus": "PASSED"},
        {"metricName": "rubrics", "threshold": 1, "score": 1.0, "evalStatus": "PASSED"},
        {"metricName": "judged", "threshold": 1, "score": None, "evalStatus": "NOT_EVALUATED"},
    ]
    (invocation,) = document["conversations"][0]["evalMetricResultPerInvocation"]
    assert invocation["expectedInvocation"] == INVOCATION
    assert invocation["actualInvocation"]["finalResponse"]["parts"] == [{"text": "Yes, at 9:00."}]
    assert [m["evalStatus"] for m in invocation["evalMetricResults"]] == ["FAILED", "PASSED", "NOT_EVALUATED"]
    assert invocation["evalMetricResults"][1]["details"]["rubricScores"] == [
        {"rubricId": "polite", "score": 1, "rationale": "It is."},
        {"rubricId": "short", "score": None, "rationale": ""},
    ]


def test_an_unfinished_run_has_its_completed_turns() -> None:
    """They are stored although nothing was graded."""
    held = Conversation("lookup-1", (Turn(0, "Hi", "Ho"),), b.Ending.ERROR, b.failure())
    found = b.scenario_result(
        "lookup", [b.conversation_result("lookup-1", [], {}, held=held)], thresholds={"match": 1}, case=CASE
    )
    document = to_json(b.run_result(found))["scenarios"][0]
    assert document["finalEvalStatus"] == "FAILED"
    (invocation,) = document["conversations"][0]["evalMetricResultPerInvocation"]
    assert (invocation["expectedInvocation"], invocation["evalMetricResults"][0]["score"]) == (None, None)
    assert "Hi" in shown(found, detailed=True)
