"""The content of the Run view: rows, figures, root causes."""

from __future__ import annotations

import builders
import pytest
import sample_run
import stored

from agentest.domain.results import (
    Reason,
    ReasonKind,
    ScenarioResult,
    Status,
    Verdict,
    VerdictWarning,
    WarningCode,
)
from agentest.plugins.page.viewer.overview import ConversationNumbers, brief, overview, scenario_row
from agentest.store.codec import CODECS
from agentest.support.json_text import Json
from agentest.support.lazy_dataclasses import replace


def _stored(scenario: ScenarioResult) -> Json:
    stored: Json = CODECS.write(scenario)
    return stored


def _row(scenario: ScenarioResult) -> Json:
    return scenario_row(_stored(scenario), ConversationNumbers())


def _figures(*scenarios: ScenarioResult) -> Json:
    shown = overview(run={}, head=None, scenarios=[_row(each) for each in scenarios], root_causes=[])
    figures: Json = shown["figures"]
    return figures


def _with_rate(name: str, *passed: bool, **more: str) -> ScenarioResult:
    held = [
        builders.conversation_result(f"{name}-{n}", trajectory=None if good else builders.MISSED)
        for n, good in enumerate(passed)
    ]
    return builders.scenario_result(name, held, **more)


def test_the_pass_rate_of_a_run_has_its_interval_and_pass_hat_k() -> None:
    """All conversations count; pass^k is as long as the shortest scenario."""
    (rate,) = _figures(_with_rate("a", True, False), _with_rate("b", True, True, True))["rates"]
    assert rate["passRate"]["value"] == pytest.approx(0.8)
    assert 0 < rate["passRate"]["low"] < 0.8 < rate["passRate"]["high"] < 1
    assert (rate["passRate"]["n"], rate["scenarios"], rate["passHatK"]) == (5, 2, {"2": 0.5})


def test_each_agent_has_figures_of_its_own() -> None:
    """Agents of one run are not added up."""
    found = _figures(_with_rate("a", True, agent="one"), _with_rate("a", False, agent="two"))
    assert [(each["agent"], each["passRate"]["value"]) for each in found["rates"]] == [("one", 1), ("two", 0)]
    assert {each["agent"] for each in found["averages"]} == {"one", "two"}


def test_an_average_names_its_thresholds_who_missed_them_and_the_lowest() -> None:
    """Averages of several scenarios are the mean of theirs."""
    low = builders.conversation_result(
        turns=(builders.turn_evaluation(metrics={"helpfulness": builders.scored(2)}),)
    )
    found = _figures(
        builders.scenario_result("good", thresholds={"helpfulness": 3}),
        builders.scenario_result("bad", [low], thresholds={"helpfulness": 4}),
    )
    (average,) = [each for each in found["averages"] if each["metric"] == "helpfulness"]
    assert (average["value"], average["n"], average["thresholds"], average["missed"]) == (3.5, 2, [3, 4], 1)
    assert average["lowest"] == {"name": "bad", "agent": "booking", "value": 2}
    assert average["low"] < 3.5 < average["high"]


def test_the_average_of_one_scenario_is_its_own() -> None:
    """With one scenario the interval is that of its turns."""
    scenario = builders.scenario_result()
    (average,) = [each for each in _figures(scenario)["averages"] if each["metric"] == "helpfulness"]
    mine = scenario.intervals["helpfulness"]
    assert (average["n"], average["low"], average["high"]) == (mine.n, mine.low, mine.high)


def test_rows_of_the_list_have_no_intervals() -> None:
    """Data for only the figures is not sent ten thousand times."""
    shown = overview(run={}, head=None, scenarios=[_row(builders.scenario_result())], root_causes=[])
    assert not {"intervals", "skippedMetrics"} & set(shown["scenarios"][0])


@pytest.mark.parametrize(
    ("threshold", "margin"),
    [(4.8, 0.05), (5, 0.0), (1, 1.0)],
    ids=["close", "on it", "far"],
)
def test_a_row_says_how_far_it_is_above_its_closest_threshold(threshold: float, margin: float) -> None:
    """The margin is a share of the metric's scale."""
    row = _row(builders.scenario_result(thresholds={"helpfulness": threshold}))
    assert row["margin"] == pytest.approx(margin)


def test_skipped_metrics_are_counted_by_reason() -> None:
    """The figures show what was not scored."""
    skipped = builders.scenario_result(skipped_metrics={"helpfulness": "no judge", "tone": "no judge"})
    assert _figures(skipped, skipped)["skipped"] == [
        {"why": "no judge", "metrics": ["helpfulness", "tone"], "scenarios": 2}
    ]


def test_a_row_marks_broken_files_and_unfinished_scenarios() -> None:
    """Neither looks like an errored scenario."""
    left = Reason(Status.ERRORED, ReasonKind.INTERRUPTED, "did not run")
    unfinished = builders.scenario_result(verdict=Verdict(Status.ERRORED, (left,)))
    assert _row(builders.broken_file())["broken"]
    assert _row(unfinished)["unfinished"]
    assert not {"broken", "unfinished"} & set(_row(builders.scenario_result()))


def test_a_row_counts_warnings_and_not_notes() -> None:
    """A note questions no verdict, so its scenario needs no look."""
    noted = VerdictWarning(code=WarningCode.MOCK_NEVER_CALLED, scenario="s", message="m", note=True)
    warned = replace(noted, note=False)
    rows = [_row(builders.scenario_result(verdict_warnings=given)) for given in ((noted,), (noted, warned))]
    assert [row["warnings"] for row in rows] == [0, 1]


def test_a_row_leads_to_the_call_that_differs() -> None:
    """A conversation's reason has the difference and its turn; the row has the headline of all reports."""
    reason = (
        "expected calls are missing: book\nexpected (in_order): look(), book(time='10:30')\nactual: look()"
    )
    row = {"expected": "look()", "call": 0, "status": "matched"}
    differs = {"expected": "book(time='10:30')", "call": 1, "status": "different", "difference": "time: no"}
    differs |= {"tool": "book"}
    conversation = {
        **stored.to_json(sample_run.sample_run())["scenarios"][0]["conversations"][0],
        "perTurnTrajectory": [],
        "labelledFailures": [],
        "criteria": [],
        "trajectory": {"matched": False, "reason": reason, "alignment": [row, differs]},
    }
    turn = conversation["turns"][0]
    conversation["turns"] = [{**turn, "turnIndex": at, "toolCalls": [{"name": "book"}]} for at in range(2)]
    found = brief(conversation)
    assert (found["broke"], found["why"]) == (1, "expected calls are missing: book; book: time: no")
    failed = {**_stored(builders.scenario_result()), "failures": [f"trajectory: {reason}"]}
    assert (
        scenario_row(failed, ConversationNumbers())["failure"]
        == "trajectory: expected calls are missing: book"
    )
    causes = [{"kind": kind, "pattern": "…", "title": kind.title()} for kind in ("errored", "trajectory")]
    titled = {status: {**failed, "causes": causes, "status": status} for status in ("failed", "errored")}
    found_titles = {
        status: scenario_row(each, ConversationNumbers())["failure"] for status, each in titled.items()
    }
    assert found_titles == {"failed": "Trajectory", "errored": "Errored"}


def test_a_run_without_scenarios_has_figures_of_nothing() -> None:
    """No number is made up."""
    assert _figures() == {"rates": [], "averages": [], "skipped": []}


def _brief(**more: object) -> Json:
    """The row of a conversation of two turns, a call in each."""
    held = stored.to_json(sample_run.sample_run())["scenarios"][0]["conversations"][0]
    nothing = {"perTurnTrajectory": [], "labelledFailures": [], "criteria": [], "trajectory": None}
    turns = [{**held["turns"][0], "turnIndex": at, "toolCalls": [{"name": "book"}]} for at in range(2)]
    return brief({**held, **nothing, "turns": turns, **more})


def test_a_row_says_how_the_conversation_ended() -> None:
    assert _brief(endedBy="script")["ended"] == "the script was finished"
    assert _brief(endedBy="max turns")["ended"] == "stopped at max_turns"


def test_a_row_has_the_failed_trajectory() -> None:
    """It has the name, with the turn of the wrong call; one that only counts is left out."""
    row = {"expected": None, "call": 1, "status": "extra"}
    parts = [
        {"matched": True, "reason": "held", "name": "login"},
        {"matched": False, "reason": "too many", "name": "writes", "alignment": [row]},
    ]
    found = _brief(trajectory={"matched": False, "reason": "", "parts": parts})
    assert (found["broke"], found["why"]) == (1, "writes: too many")
    counted = _brief(trajectory={**parts[1], "counted": True})
    assert (counted["broke"], counted["why"]) == (None, "")


def test_a_row_tells_of_a_check_of_the_whole() -> None:
    """The turn that decides is the one to look at; without one, none is."""
    said = {"check": "says", "passed": False, "reason": "nobody says it", "turnIndex": 1}
    assert (_brief(checks=[said])["broke"], _brief(checks=[said])["why"]) == (1, "says: nobody says it")
    state = {"check": "final_state", "passed": False, "reason": "no"}
    assert (_brief(checks=[{**said, "passed": True}, state])["broke"]) is None
