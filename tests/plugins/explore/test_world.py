"""What surrounds a script: another scenario before it, limits, ids, dates, and other answers of tools."""

from __future__ import annotations

import json
import re
from datetime import date, timedelta
from typing import Any

import hurrying
import pytest
from explore_lab import Act, Brain, Seen, agent_of, converse, explored, unit_of

from agentest.domain.results.exploration import ExploredPart, Finding
from agentest.plugins.explore.fault_sweep import FaultSweep
from agentest.plugins.explore.model import Base
from agentest.plugins.explore.mutation_sweep import MutationSweep
from agentest.scenarios.definition import build_scenario

INSTRUCTIONS = "The guest is G-4; tell only about rooms of G-4. Nobody may order more than 5 towels."


def found_by(name: str, brain: Brain, **options: Any) -> list[str]:
    """Titles of the findings of one mutation."""
    parts: Any = {ExploredPart.MUTATIONS: MutationSweep([name])}
    return [each.title for each in explored(brain, parts, instructions=INSTRUCTIONS, **options)]


def room(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    return {
        "id": args["id"],
        "guest": "G-4" if args["id"] == "R-12" else "G-9",
        "towels": ctx.state["towels"],
    }


def order(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    ctx.state["towels"] += args["towels"]
    return {"ok": True}


STATE = {"towels": 31}
LOOK: dict[str, Any] = {"turns": ["How many towels has R-12?"], "tools": {"get_room": room}, "state": STATE}
ORDER: dict[str, Any] = {
    "turns": ["R-12 needs 4 more towels."],
    "tools": {"get_room": room, "order_towels": order},
    "state": STATE,
}


def hotel(bug: str = "") -> Brain:
    """A hotel that tells how many towels a room has, and orders at most five more."""

    def brain(seen: Seen) -> Act:
        [number] = re.findall(r"R-\d+", seen.said) or re.findall(r"R-\d+", " ".join(seen.users))[:1]
        looked = [json.loads(each["content"]) for each in seen.messages if each["role"] == "tool"]
        rooms = [each for each in looked if "guest" in each]
        if "get_room" not in seen.made and not (bug == "remembers" and rooms):
            return "get_room", {"id": number}
        if bug != "tells all" and rooms[-1]["guest"] != "G-4":
            return "Sorry, that is not your room."
        wanted = re.search(r"(\d+) more", seen.said)
        if wanted is None:
            return f"Room {number} has {rooms[-1]['towels']} towels."
        if int(wanted[1]) > (6 if bug == "one too many" else 4 if bug == "one too few" else 5):
            return "Sorry, five is the most."
        return (
            "Ordered."
            if "order_towels" in seen.made
            else ("order_towels", {"id": number, "towels": int(wanted[1])})
        )

    return brain


@pytest.mark.parametrize(
    ("name", "bug", "title"),
    [
        ("chain", "remembers", "an outdated value of get_room is told after a change"),
        ("edge", "one too many", "order_towels is called although it is forbidden"),
        ("foreign_id", "tells all", "data of somebody else that get_room returns is told"),
    ],
)
def test_bugs_that_other_surroundings_show_are_found(name: str, bug: str, title: str) -> None:
    for first, second in ((LOOK, ORDER), (ORDER, LOOK)):
        assert title in found_by(name, hotel(bug), others=[second], **first)
        assert found_by(name, hotel(), others=[second], **first) == []


def test_a_request_of_one_scenario_may_not_leak_into_the_next() -> None:
    def desk(seen: Seen) -> Act:
        texts = " ".join(seen.users if bug else [seen.said])
        device, problem = re.search(r"LT-\d+", texts), re.search("screen|keyboard", seen.said)
        if not problem:
            return "Hello."
        if device is None or "create_ticket" in seen.made:
            return "It is noted." if device else "Which device?"
        return "create_ticket", {"device": device.group(), "problem": problem.group()}

    first = {"turns": ["The screen of LT-4 is broken."], "tools": {"create_ticket": {"ticket": "T-1"}}}
    second = {"turns": ["The keyboard of LT-9 is broken."], "tools": {"create_ticket": {"ticket": "T-2"}}}
    for bug in (True, False):
        found = found_by("chain", desk, others=[second], **first)
        assert ("device of create_ticket is not what the user said" in found) is bug


def test_tomorrow_is_a_day_at_the_end_of_a_month() -> None:
    def clock(seen: Seen) -> Act:
        day = date.fromisoformat(re.search(r"\d{4}-\d\d-\d\d", str(seen.messages[0]))[0])  # type: ignore[index]
        right = (day + timedelta(days=1)).isoformat()
        if "list_slots" not in seen.made:
            return "list_slots", {"day": f"{day:%Y-%m}-{day.day + 1:02}" if bug else right}
        return f"Free: {seen.result('list_slots')}"

    dated = {"turns": ["What is free tomorrow?"], "tools": {"list_slots": ["09:00"]}, "date": "2026-05-12"}
    for bug in (True, False):
        found = found_by("date", clock, **dated)
        assert found == (["day of list_slots is not what the user said"] if bug else [])


def cashier(bug: str = "") -> Brain:
    """A cashier that finds a customer by name, tells what she owes, and takes the money."""

    def brain(seen: Seen) -> Act:
        if "find_customers" not in seen.made:
            return "find_customers", {"name": "Ann Lee"}
        rows = seen.result("find_customers")
        rows = [each for n, each in enumerate(rows) if each not in rows[:n]]
        if len(rows) > 1 and bug != "the first":
            return "There are several customers of that name. Which one do you mean?"
        if "charge" not in seen.made:
            return "charge", {"customer": rows[0]["id"]}
        currency = "euros" if bug == "its own currency" else rows[0]["currency"]
        return f"I charged {rows[0]['owes']} {currency}."

    return brain


def _base_of(brain: Brain, options: dict[str, Any]) -> Base:
    async def conversed() -> Base:
        scenario = build_scenario({"name": "s", **options}, "/a.sim.py", 1)
        async with agent_of(brain) as agent:
            return Base(unit_of(scenario), [await converse(agent, scenario, "base")])

    made: Base = hurrying.run(conversed)
    return made


@pytest.mark.parametrize(
    ("kind", "bug", "title"),
    [
        ("duplicate", "the first", "charge is called for one of several that find_customers found"),
        ("plausible_lie", "its own currency", "currency in a reply is not what find_customers answers"),
    ],
)
def test_answers_that_are_ambiguous_or_have_other_values_are_not_ignored(
    kind: str, bug: str, title: str
) -> None:
    row = {"id": "C-71", "name": "Ann Lee", "owes": 40, "currency": "EUR"}
    options = {
        "turns": ["Please charge Ann Lee."],
        "tools": {"find_customers": [row], "charge": {"ok": True}},
    }
    parts: Any = {ExploredPart.FAULTS: FaultSweep([kind])}

    moved = {each.scenario.faults[0].path for each in FaultSweep([kind])(_base_of(cashier(), options))}
    assert moved == ({"id"} if kind == "duplicate" else {"[0].currency", "[0].owes"})  # a lie moves no id

    def titles(brain: Brain) -> list[Finding]:
        return explored(brain, parts, **options)

    assert [each.title for each in titles(cashier(bug))] == [title]
    assert titles(cashier()) == []
