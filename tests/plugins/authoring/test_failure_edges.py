"""The edge of a failure: which values of a failing scenario fail, and which pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import anyio
import pytest

from agentest.plugins.authoring.failure_edges import FailureEdge, find_edges, with_value
from agentest.scenarios.calls import ExpectedCall
from agentest.scenarios.definition import scenario
from agentest.scenarios.model import Scenario
from agentest.scenarios.trajectory import Trajectory


def ship(speed: Literal["slow", "fast", "express"]) -> dict[str, str]:
    return {"speed": speed}


def edges(made: Scenario, passes: Callable[[str], bool | None]) -> tuple[list[FailureEdge], list[str]]:
    """Return the edges, and the messages that were tried."""
    tried: list[str] = []

    async def run(varied: Scenario) -> bool | None:
        tried.append(varied.turns[0].user_message)
        return passes(tried[-1])

    return anyio.run(find_edges, made, run), tried


def days(text: str) -> int:
    return int(re.findall(r"\d+", text)[-1])


@pytest.mark.parametrize(
    ("passes", "text"),
    [
        (lambda n: n <= 30, "45: fails from 31 on, passes up to 30"),
        (lambda n: n >= 60, "45: fails up to 59, passes from 60 on"),
        (lambda n: n != 45, "45: fails at 45, passes up to 44, passes from 46 on"),
        (lambda n: n < 40 or n > 50, "45: fails from 40 to 50, passes up to 39, passes from 51 on"),
        (lambda n: None if n == 44 else n > 45, "45: fails up to 45, passes from 46 on"),
    ],
    ids=["limit", "minimum", "one value", "range", "undecided"],
)
def test_the_edge_is_found_in_few_conversations(passes: Callable[[int], bool | None], text: str) -> None:
    """A value of another scenario is tried once."""
    found, tried = edges(
        scenario("refund", turns=["I bought it 45 days ago"]), lambda message: passes(days(message))
    )
    assert [each.text.partition(" (")[0] for each in found] == [text]
    assert len(tried) == len(set(tried)) <= 24


def test_failures_with_every_value_are_told_as_such() -> None:
    """The value decides nothing."""
    (found,), _ = edges(scenario("refund", turns=["order 2"]), lambda _: False)
    assert found.text.startswith("2: fails with every value tried: 0, 1, 2, 3, 4, 6, 10")


def test_choices_of_a_mock_are_tried_and_dates_and_times_are_not_numbers() -> None:
    """A choice that the user names is replaced by the others."""
    made = scenario("ship", turns=["Ship it fast on 2026-05-01 at 9:30"], tools={"ship": ship})
    found, tried = edges(made, lambda text: "slow" in text)
    assert [each.text for each in found] == ["fast: fails with express, fast; passes with slow"]
    assert len(tried) == 2


def test_a_value_is_replaced_wherever_the_scenario_has_it() -> None:
    """In messages, expected calls and mocks, as number and as text; not within other numbers."""
    made = scenario(
        "order",
        turns=["Cancel order 17, not 170"],
        tools={"get": {"id": "17", "n": 17, "ok": True}},
        trajectory={"expected": [ExpectedCall("cancel", {"id": 17})]},
    )
    other = with_value(made, 17, 18)
    assert other.turns[0].user_message == "Cancel order 18, not 170"
    assert other.tools["get"] == {"id": "18", "n": 18, "ok": True}
    (trajectory,) = other.trajectory
    assert isinstance(trajectory, Trajectory)
    assert trajectory.expected == (ExpectedCall("cancel", {"id": 18}),)
