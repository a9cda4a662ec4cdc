"""Every task once as it should go."""

from shop import REFUND, place, tools

from agentest import call, scenario

scenario(
    "an order is looked up",
    turns=[{"user_message": "Where is my order ORD-100?", "expect": {"contains": "shipped"}}],
    tools=tools("lookup_order"),
    trajectory={"match_mode": "strict", "expected": [call("lookup_order", order_id="ORD-100")]},
    tags=place("order-lookup", "happy"),
)

scenario(
    "a refund is paid after the check",
    turns=[{"user_message": "I want a refund for ORD-100.", "expect": {"contains": ["49.99", "REF-1"]}}],
    tools=tools(*REFUND),
    trajectory={
        "match_mode": "strict",
        "expected": ["lookup_order", "check_refund", call("pay_refund", order_id="ORD-100", amount=49.99)],
    },
    tags=place("refund", "happy"),
)

scenario(
    "an angry customer gets a person",
    turns=[{"user_message": "This is ridiculous, get me a human!", "expect": {"contains": "T-1"}}],
    tools=tools("create_ticket"),
    trajectory={"match_mode": "strict", "expected": ["create_ticket"]},
    tags=place("escalation", "happy"),
)
