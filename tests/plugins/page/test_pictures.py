"""The data of the page's pictures."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentest.plugins.page.viewer.overview import call_outcomes, pictures


def row(name: str = "s", **more: Any) -> dict[str, Any]:
    return {"name": name, "agent": "shop", "averages": {}, "latencies": [], "cost": None, **more}


def run(id: str, passed: int, failed: int, *statuses: str) -> dict[str, Any]:
    named = [[f"s{n}", "shop", status] for n, status in enumerate(statuses)]
    return {"id": id, "startedAt": id, "passed": passed, "failed": failed, "statuses": named}


def test_runs_have_shares_with_intervals_and_a_map_of_what_failed() -> None:
    """A scenario that always passed is not in the map; one that did not run has no state there.

    The share of a selection is not comparable with that of all scenarios.
    """
    selection = run("3", 0, 1, "") | {"partial": True}
    whole = [run("1", 2, 0, "passed", "passed"), run("2", 2, 1, "passed", "failed", "passed")]
    assert pictures([], [whole[0], selection])["runs"] == []
    assert [each["id"] for each in pictures([], [*whole, selection])["runs"]] == ["1", "2"]
    found = pictures([], whole)
    assert [(each["value"], each["low"] < each["value"] <= each["high"]) for each in found["runs"]] == [
        (1.0, True),
        (2 / 3, True),
    ]
    assert found["heat"]["rows"] == [{"name": "s1", "agent": "shop", "states": ["passed", "failed"]}]


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=2))
def test_a_histogram_counts_every_turn_once(latencies: list[float]) -> None:
    """Percentiles are values that occurred."""
    found = pictures([row(latencies=latencies)], [])["latencies"]
    if max(latencies) == 0:
        assert found == []
        return
    assert sum(each["n"] for each in found[0]["bins"]) == len(latencies)
    assert {found[0]["p50"], found[0]["p95"]} <= {*latencies}


@given(st.lists(st.floats(min_value=1, max_value=5), min_size=2))
def test_scores_are_counted_by_their_value(values: list[float]) -> None:
    """Equal scores have no chart."""
    found = pictures([row(averages={"helpfulness": value}) for value in values], [])["scores"]
    assert [sum(each["n"] for each in score["bins"]) for score in found] == (
        [len(values)] if len({*values}) > 1 else []
    )


def test_the_most_expensive_scenarios_come_first() -> None:
    """Unknown costs are left out."""
    rows = [row("a", cost=0.1), row("b", cost=0.3), row("c"), row("d", cost=0.2)]
    assert [each["name"] for each in pictures(rows, [])["costs"]] == ["b", "d", "a"]


def test_tools_have_the_results_of_their_calls() -> None:
    """An unknown answer is neither a success nor an error."""
    calls = [
        {"name": "book", "result": {"id": 1}, "mocked": True},
        {"name": "book", "result": {"error": "full"}, "mocked": True},
        {"name": "book", "result": None, "mocked": True, "raised": "KeyError at salon.sim.py:12"},
        {"name": "mail", "result": None, "mocked": False, "error": "no mock"},
        {"name": "look", "result": None, "mocked": False},
        {"name": "look", "result": None, "mocked": True},
    ]
    turn = {"toolCalls": calls, "faults": [{}], "modelRequests": [{}, {"error": "429"}, {"error": "500"}]}
    rows = [row(outcomes=call_outcomes([turn])), row(outcomes=call_outcomes([{"toolCalls": calls[:1]}]))]
    found = pictures(rows, [])
    assert [list(each.values()) for each in found["tools"]] == [
        ["book", 2, 1, 1, 0],
        ["the agent's model", 1, 1, 1, 0],
        ["look", 1, 0, 0, 1],
        ["mail", 0, 1, 0, 0],
    ]


def test_tasks_and_paths_have_their_worst_status_at_each_level() -> None:
    """A tag names the level; without one, a script is a unit test and a simulated user a scenario test."""
    tags = ("task:refund", "path:happy")
    found = pictures(
        [
            row(tags=tags, status="passed", scripted=True),
            row(tags=(*tags, "unit"), status="failed"),
            row(tags=tags, status="passed"),
            row(tags=tags, status="running"),
            row(tags=("task:refund",), status="failed"),
        ],
        [],
    )
    assert found["levels"] == [{"name": "refund, happy", "states": ["failed", "", "passed"]}]
