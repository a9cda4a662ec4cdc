"""Checks of whole conversations on the command line: an in-memory back end and its final state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import validate
from project import Project

from agentest.testing import ScriptedAgent, tool_call

SCHEMA = Path(__file__).parent.parent.parent / "agentest" / "schemas" / "results.schema.json"

SHOP = """
from datetime import date

def refund_order(order_id: str, ctx) -> dict:
    order = ctx.state["orders"][order_id]
    order["status"] = "refunded"
    order["log"].append(ctx.conversation_id)
    ctx.state["on"] = date(2024, 5, 1)
    return order

def only_one(conversation, state):
    (call,) = conversation.calls("refund_order")
    assert state["orders"]["17"]["log"] == [conversation.conversation_id], "each has its own"

def mean(conversation, state):
    assert state["orders"]["18"]["status"] == "refunded"

SHOP = {"orders": {"17": {"status": "delivered", "log": []}, "18": {"status": "open", "log": []}}}
common = dict(tools={"refund_order": refund_order}, state=SHOP)
"""
REFUNDS = [tool_call("refund_order", order_id="17"), "Refunded. Your credit card is safe."]


def checks_of(project: Project, name: str) -> list[list[dict[str, Any]]]:
    return [each.get("checks", []) for each in project.scenario_result(name)["conversations"]]


def test_a_back_end_in_memory(project: Project) -> None:
    """Concurrent conversations have separate states; expect, state and check decide."""
    project.scenario(
        SHOP + "scenario('refunds', turns=['Refund 17.'], conversations_per_scenario=20, check=only_one,\n"
        "  expect={'says': 'Refunded', 'never_says': 'sorry'},\n"
        "  final_state={'on': date(2024, 5, 1), 'orders': lambda all: all['17']['status'] == 'refunded'},\n"
        "  **common)\n"
        "scenario('fails', turns=['Refund 17.'], check=mean, final_state={'orders': {**SHOP['orders']}},\n"
        "  expect=[{'never_says': 'credit card'}], **common)\n"
        "scenario('errs', turns=['Refund 17.'], check=lambda c, s: s['gone'], **common)\n"
    )
    with ScriptedAgent(REFUNDS) as agent:
        project.config(agent.endpoint)
        done = project.run()
    validate(project.results, json.loads(SCHEMA.read_text()))
    statuses = {each["name"]: each["status"] for each in project.results["scenarios"]}
    assert statuses == {"refunds": "passed", "fails": "failed", "errs": "errored"}, done.stdout
    assert done.returncode == 1
    passed = checks_of(project, "refunds")
    assert len(passed) == 20
    assert [each["check"] for each in passed[0]] == ["says", "never_says", *["final_state"] * 2, "check"]
    held = project.scenario_result("refunds")["conversations"][0]
    assert (held["mockState"]["on"], held["inexactState"]) == ("2024-05-01", ["on"])
    assert [each["reason"] for (one,) in [checks_of(project, "fails")] for each in one] == [
        "expected no 'credit card' in any reply, but the reply of turn 1 has it; the reply was "
        "'Refunded. Your credit card is safe.'",
        "orders.17.status: expected 'delivered', got 'refunded'; "
        "orders.17.log: expected [], got ['fails-1'] (a list of 1, not of 0)",
        "assert 'open' == 'refunded' (a.sim.py:17)",
    ]
    (error,) = [each["error"] for (one,) in [checks_of(project, "errs")] for each in one]
    assert error == "it raised KeyError: 'gone' (a.sim.py:27)"
    for words in ("'refunded' (a.sim.py:17)", "orders.17.status: expected", "KeyError: 'gone'"):
        assert words in done.stdout


def test_stored_conversations_are_judged_again(project: Project) -> None:
    """Checks run again on a stored run; what the transcript cannot show is errored with the reason."""
    text = (
        SHOP + "scenario('told', turns=['Refund 17.'], expect={'says': 'Refunded'},\n"
        "  check=lambda c: any(c.turns), final_state={'orders': lambda orders: len(orders) == 2}, **common)\n"
        "scenario('untold', turns=['Refund 17.'], final_state={'on': date(2024, 5, 1)}, **common)\n"
        "scenario('unasked', turns=['Refund 17.'], check=only_one, **common)\n"
    )
    project.scenario(text)
    with ScriptedAgent(REFUNDS) as agent:
        project.config(agent.endpoint)
        assert project.run().returncode == 0
    again = project.agentest("judge", ".agentest/results.json")
    assert again.returncode == 2
    why = "only the JSON form of the mocks' state was stored for on; run the scenario again"
    assert again.stdout.count(f"{why}  ") == 2
    assert "1 passed" in again.stdout
    project.scenario(text.replace("'says': 'Refunded'", "'never_says': 'Refunded'"))
    assert project.agentest("judge", ".agentest/results.json").returncode == 1


def test_an_aborted_conversation_is_judged_by_its_turns(project: Project) -> None:
    """If a conversation ended early, only its completed turns and forbidden calls count."""
    project.scenario(
        SHOP + "scenario('breaks', turns=['Hi.', 'Refund 17.'], final_state={'on': 1}, check=mean,\n"
        "  expect={'says': 'x', 'never_says': 'Hello'}, state=SHOP)\n"
    )
    with ScriptedAgent(["Hello.", tool_call("refund_order", order_id="17")]) as agent:
        project.config(agent.endpoint)
        done = project.run()
    assert done.returncode == 1, done.stdout
    ((check,),) = checks_of(project, "breaks")
    assert (check["check"], check["passed"], check["turnIndex"]) == ("never_says", False, 0)
    assert "has no mock" in done.stdout


def test_impossible_expectations_are_refused(project: Project) -> None:
    """Such an expectation is an error at the scenario's line, before anything runs."""
    project.scenario(
        "import threading\nscenario('a', turns=['Hi.'], state={'lock': threading.Lock()})\n", "lock.sim.py"
    )
    project.scenario("scenario('b', turns=['Hi.'], expect={'says': 'x', 'in_turn': 3})\n", "turn.sim.py")
    project.config("http://127.0.0.1:9")
    done = project.run()
    assert done.returncode == 2
    assert "lock.sim.py:3: scenario 'a': state['lock']: cannot be copied" in done.stdout
    assert "! expect.in_turn: is 3, but the script has 1 turn" in done.stdout
    assert "turn.sim.py:2  b\n" in done.stdout
