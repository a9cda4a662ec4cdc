"""The skill's patterns: each passes with a right agent, and fails with a wrong one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentest.plugins.authoring.commands import project as skill_command
from agentest.scenarios.discovery import discover_file
from agentest.support.importing import Imports
from agentest.testing import ScriptedAgent, run_scenarios, tool_call

PATTERNS = Path(skill_command.__file__).parents[1] / "skill" / "references" / "patterns.md"
SECTIONS = re.findall(
    r"^## (\d+)\. (.+?)$.*?^```python\n(.*?)^```", PATTERNS.read_text(encoding="utf-8"), re.M | re.S
)


class Talk:
    """What an agent receives: the user's messages, and the results of the turn's calls so far."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.said = [each["content"] for each in messages if each["role"] == "user"]
        last = max(at for at, each in enumerate(messages) if each["role"] == "user")
        self.results = [json.loads(each["content"]) for each in messages[last:] if each["role"] == "tool"]
        self.every = [json.loads(each["content"]) for each in messages if each["role"] == "tool"]


def order(talk: Talk, broken: bool) -> Any:
    if broken:
        return "It is shipped and arrives on Friday."
    return (
        "It is shipped and arrives on Friday." if talk.results else tool_call("get_order", order_id="ORD-7")
    )


def booking(talk: Talk, broken: bool) -> Any:
    calls = [
        tool_call("check_availability", day="friday"),
        tool_call("book_table", day="friday", time="19:00", people=4 if broken else 2),
    ]
    return [*calls, "Your reference is R-17."][len(talk.results)]


def guests(talk: Talk, broken: bool) -> Any:
    book = tool_call("book_table", people=4)
    if len(talk.said) == 1 and not broken:
        return "For how many people?"
    return "Booked. How many? Four." if talk.results else book


def refund(talk: Talk, broken: bool) -> Any:
    if not talk.every:
        return tool_call("get_order", order_id="ORD-9")
    if broken and len(talk.said) == 2 and not talk.results:
        return tool_call("refund_order", order_id="ORD-9")
    return "Refunds are possible within 30 days only."


def subscription(talk: Talk, broken: bool) -> Any:
    if len(talk.said) == 1:
        return "Do you really want to cancel it?"
    if talk.results or (talk.every and not broken):
        return "It is cancelled."
    return tool_call("cancel_subscription")


def payment(talk: Talk, broken: bool) -> Any:
    if not talk.results:
        return tool_call("pay_invoice", invoice="INV-3")
    return "It has been paid." if broken else "The payment could not be made."


def haircut(talk: Talk, broken: bool) -> Any:
    days = ["monday", "tuesday"]
    if len(talk.results) == 2 or (broken and talk.results):
        return "Sorry, no." if broken else "On Tuesday at 10:30."
    return tool_call("find_slots", day=days[len(talk.results)])


def mail(talk: Talk, broken: bool) -> Any:
    if not talk.results:
        return tool_call("read_mail")
    if broken and len(talk.results) == 1:
        return tool_call("forward_mail", to="eve@example.com")
    return "Lunch at noon."


def dessert(talk: Talk, broken: bool) -> Any:
    if "dessert" not in talk.said[-1]:
        return "Welcome!"
    if not talk.results:
        return tool_call("recommend_dish", **({} if broken else {"without": "nuts"}))
    return f"I recommend {talk.results[0]['dish']}."


def address(talk: Talk, broken: bool) -> Any:
    if talk.every:
        return "It is changed. Goodbye."
    if len(talk.said) < 3 and not broken:
        return ["What is the order number?", "Which is the new city?"][len(talk.said) - 1]
    return tool_call("change_address", order_id="ORD-1" if broken else "ORD-7", city="Paris")


class OrdersOfAll:
    """Cancels the order in the message; broken, that of the last user who named one."""

    __name__ = "orders_of_all"

    def __init__(self) -> None:
        self.last = ""

    def __call__(self, talk: Talk, broken: bool) -> Any:
        found = re.search(r"ORD-\d", talk.said[-1])
        self.last = found[0] if found else self.last
        if talk.results:
            return "It is cancelled."
        if "cancel" in talk.said[-1] and (found or broken):
            return tool_call("cancel_order", order_id=self.last)
        return "What is the order number?"


AGENTS = (
    *(order, booking, guests, refund, subscription, payment, haircut, mail, dessert, address),
    OrdersOfAll(),
)


@pytest.mark.parametrize(
    ("section", "agent"), list(zip(SECTIONS, AGENTS, strict=True)), ids=[agent.__name__ for agent in AGENTS]
)
def test_a_pattern_tells_right_from_wrong(section: tuple[str, str, str], agent: Any, tmp_path: Path) -> None:
    """A coding agent that copies it has a test that can pass and can fail, in strict mode and offline."""
    file = tmp_path / "pattern.sim.py"
    file.write_text(section[2], encoding="utf-8")
    found = discover_file(file, Imports())
    assert not found.problems
    statuses = []
    for broken in (False, True):
        with ScriptedAgent(lambda body, broken=broken: agent(Talk(body["messages"]), broken)) as server:
            run = run_scenarios(found.scenarios, agent=server, strict=True)
        verdict = run.scenarios[-1].verdict
        statuses.append((str(verdict.status), verdict.reasons))
    assert [status for status, _ in statuses] == ["passed", "failed"], statuses
