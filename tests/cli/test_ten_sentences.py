"""docs/expectations.md: one agent follows its ten sentences, another violates them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from project import Project

from agentest import (
    absent,
    any_of,
    approx,
    call,
    each,
    exactly,
    instance,
    number,
    one_of,
    optional,
    scenario,
    text,
)
from agentest.scenarios.definition import collect_scenarios
from agentest.testing import ScriptedAgent, tool_call

PAGE = (Path(__file__).parent.parent.parent / "docs" / "expectations.md").read_text(encoding="utf-8")
SENTENCES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)[0]
DATA = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)[0]
FAILURES = re.findall(r"^\| ([^|`]+?) \| `([^`]+)` \|$", PAGE, re.M)
"""A sentence, and what is printed where it is broken."""

get, refund = tool_call("get_order"), tool_call("refund_order", order_id="17")
prove, receipt = tool_call("authenticate"), tool_call("send_receipt")
RIGHT: dict[str, list[Any]] = {
    "Something for my trouble, please.": [tool_call("offer_voucher")],
    "Refund order 17.": [get, get, refund],
    "Please refund order 17.": [get, refund, get],
    "I want a refund for order 17.": [prove, refund],
    "Which card did I pay with?": [],
    "Refund order 17, and make sure that it is done.": [refund],
    "Pay me back the 5 euros of order 17.": [tool_call("refund_order", amount=5.004)],
    "Send it to New York.": [tool_call("send_parcel", to="new  york")],
    "Refund my order 17, please.": [refund],
    "Refund order 17 and send me a receipt.": [prove, get, refund],
}
WRONG: dict[str, list[Any]] = {
    "Something for my trouble, please.": [get],
    "Refund order 17.": [get, get, get, refund],
    "Please refund order 17.": [get, refund, receipt],
    "I want a refund for order 17.": [refund, prove],
    "Which card did I pay with?": [],
    "Refund order 17, and make sure that it is done.": [],
    "Pay me back the 5 euros of order 17.": [tool_call("refund_order", amount=500)],
    "Send it to New York.": [tool_call("send_parcel", to="York")],
    "Refund my order 17, please.": [tool_call("refund_order", order_id="17", reason="late")],
    "Refund order 17 and send me a receipt.": [prove, get],
}


def run(tmp_path: Path, calls: dict[str, list[Any]], reply: str) -> Any:
    def answer(body: dict[str, Any]) -> Any:
        asked = next(m["content"] for m in body["messages"] if m["role"] == "user")
        made = sum(m["role"] == "assistant" for m in body["messages"])
        return calls[asked][made] if made < len(calls[asked]) else reply

    project = Project(tmp_path)
    project.write("a.sim.py", SENTENCES)
    with ScriptedAgent(answer) as agent:
        project.config(agent.endpoint)
        return project.run(env={"COLUMNS": "200"})


def test_an_agent_that_follows_them_passes(tmp_path: Path) -> None:
    """Either call, a retry, free look-ups, about 5, another case, three parts of four: all pass."""
    done = run(tmp_path, RIGHT, "It is the one that ends in 4242.")
    assert "10 passed" in done.stdout, done.stdout


def test_an_agent_that_violates_them_fails_as_documented(tmp_path: Path) -> None:
    """Each of the ten fails, and the console prints the text of the page."""
    done = run(tmp_path, WRONG, "It is 4000 1234 1234 4242.")
    assert "10 failed" in done.stdout, done.stdout
    printed = " ".join(done.stdout.split())
    assert len(FAILURES) == 10
    for sentence, told in FAILURES:
        assert " ".join(told.split()) in printed, f"{sentence}\n{done.stdout}"


def test_yaml_and_python_of_the_page_agree() -> None:
    """The page's YAML and Python have the same expectations."""
    with collect_scenarios():
        read = scenario("as data", turns=["Hello"], **yaml.safe_load(DATA))
    (trajectory,) = read.trajectory
    refund = call(
        "refund_order",
        order_id=one_of("17", 17),
        amount=approx(40, abs=0.01),
        reason=optional(instance(str)),
        city=text("New York", ignore_case=True, ignore_space=True),
        coupon=absent,
        result={"ok": True},
        first=True,
    )
    mail = exactly(call("send_mail", to=each(re.compile(".+@.+"))))
    assert trajectory.expected == (any_of("offer_voucher", exactly(refund)), mail)
    assert trajectory.reads == ("get_*", re.compile("find_.*"))
    assert [order.kind for order in trajectory.orders] == ["before", "never_after"]
    assert [said.wanted for said in read.expect] == [number("1,234"), re.compile("(?i)credit card")]
    assert read.final_state == {"orders.17.status": "refunded"}
