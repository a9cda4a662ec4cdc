"""One refund, eleven times, each time more exactly: the name of a scenario is what it demands."""

import re
from typing import Any

from shop import REFUND, place, tools

from agentest import (
    Conversation,
    MockContext,
    ToolError,
    absent,
    any_of,
    approx,
    before,
    call,
    exactly,
    instance,
    never_after,
    number,
    one_of,
    optional,
    scenario,
    text,
)

ASKS = ["I want a refund for ORD-100."]
TAGS = place("refund", "happy")
SHOP = {"orders": {"ORD-100": "shipped", "ORD-200": "shipped"}, "paid": 0}
PAID = call("pay_refund", order_id="ORD-100", amount=approx(49.99, abs=0.01))


scenario(
    "money is paid or a person takes over",
    turns=ASKS,
    tools=tools(),
    trajectory={"match_mode": "contains", "expected": [any_of("pay_refund", "create_ticket")]},
    tags=TAGS,
)
scenario(
    "the order is looked up, and at some time after that about 50 euros are paid for it",
    turns=ASKS,
    tools=tools(*REFUND),
    trajectory={
        "match_mode": "in_order",
        "expected": ["lookup_order", call("pay_refund", order_id="ORD-100", amount=approx(50, abs=0.5))],
    },
    tags=TAGS,
)
scenario(
    "the amount may be written as one likes, a reason may be given, and no card is named",
    turns=ASKS,
    tools=tools(*REFUND),
    trajectory={
        "match_mode": "contains",
        "expected": [
            call("pay_refund", amount=number("49.99"), reason=optional(instance(str)), card=absent),
        ],
    },
    tags=TAGS,
)
scenario(
    "nothing is paid before the check, and nothing is looked up once it is paid",
    turns=ASKS,
    tools=tools(*REFUND),
    trajectory=[before("check_refund", "pay_*"), never_after(any_of("lookup_*", "check_*"), "pay_refund")],
    tags=TAGS,
)
scenario(
    "looking is free, and a failure may be tried again, but exactly this one payment is made",
    turns=ASKS,
    tools=tools(*REFUND),
    trajectory={"reads": ["lookup_*", "check_*"], "ignore_failed": True, "expected_writes": [PAID]},
    tags=TAGS,
)
scenario(
    "the payment is the last call, succeeds, and has no arguments beyond order and amount",
    turns=ASKS,
    tools=tools(*REFUND),
    trajectory={
        "match_mode": "contains",
        "expected": [
            {
                "name": "pay_refund",
                "args": {"order_id": re.compile(r"ORD-\d+"), "amount": instance(float)},
                "arg_match_mode": "exact",
                "result": {"refund_id": one_of("REF-1", "REF-2")},
                "last": True,
            }
        ],
    },
    tags=TAGS,
)
scenario(
    "each tool is called once: three calls, no more and no fewer",
    turns=ASKS,
    tools=tools(*REFUND),
    trajectory=[
        {"name": "nothing else", "match_mode": "within", "expected": ["lookup_order", "check_refund", PAID]},
        {"name": "once each", "min_calls": 3, "max_calls_per_tool": 1},
    ],
    tags=TAGS,
)
scenario(
    "three of four calls are enough, but no ticket is opened",
    turns=ASKS,
    tools=tools(),
    trajectory={
        "expected": ["lookup_order", "check_refund", PAID, "lookup_order"],
        "forbidden": ["create_ticket"],
    },
    thresholds={"trajectory_recall": 0.75},
    tags=TAGS,
)
scenario(
    "the customer is told the amount and the reference, and never another order's number",
    turns=ASKS,
    tools=tools(*REFUND),
    expect=[
        {"says": [approx(49.99), text("your reference is ref-1", ignore_case=True)], "in_turn": -1},
        {"never_says": re.compile(r"ORD-(?!100\b)\d+")},
    ],
    tags=TAGS,
)


def pay(args: dict[str, Any], ctx: MockContext) -> dict[str, Any]:
    """Pays only what was not paid before."""
    orders = ctx.state["orders"]
    if orders[args["order_id"]] == "refunded":
        raise ToolError(f"{args['order_id']} was refunded already")
    orders[args["order_id"]] = "refunded"
    ctx.state["paid"] += args["amount"]
    return {"refund_id": "REF-1"}


def paid_once(conversation: Conversation, state: dict[str, Any]) -> str | None:
    payments = [made for turn in conversation.turns for made in turn.tool_calls if made.name == "pay_refund"]
    return None if state["paid"] == number("49.99") else f"paid {state['paid']} in {len(payments)} payments"


scenario(
    "whatever was called: in the end this order is refunded, the other is as before, and 49.99 are paid",
    turns=[*ASKS, "Did it work?"],
    tools=tools(*REFUND, pay_refund=pay),
    state=SHOP,
    final_state={"orders": {"ORD-100": "refunded", "ORD-200": "shipped"}},
    check=paid_once,
    tags=TAGS,
)

scenario(
    "exactly these calls, with exactly these arguments, in this order",
    turns=ASKS,
    tools=tools(*REFUND),
    trajectory={
        "match_mode": "strict",
        "expected": [
            exactly(call("lookup_order", order_id="ORD-100")),
            exactly(call("check_refund", order_id="ORD-100")),
            exactly(call("pay_refund", order_id="ORD-100", amount=49.99)),
        ],
    },
    tags=TAGS,
)
