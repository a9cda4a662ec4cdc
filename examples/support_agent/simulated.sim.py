"""A user who is played: what is said is not fixed, only who says it and what must happen."""

from shop import REFUND, place, tools

from agentest import call, scenario

for name, profile in {
    "hurried": "Writes a few words at a time and gives facts only when asked.",
    "chatty": "Tells the whole story of the broken lamp before coming to the point.",
}.items():
    scenario(
        f"a {name} customer gets a refund",
        profile=profile,
        goal="Get your money back for a broken lamp.",
        knowledge=["My order number is ORD-100."],
        tools=tools(*REFUND),
        trajectory={
            "match_mode": "in_order",
            "expected": ["check_refund", call("pay_refund", amount=49.99)],
            "max_calls_per_tool": {"pay_refund": 1},
        },
        thresholds={"pass_rate": 1},
        tags=place("refund", "happy"),
    )
