"""What goes wrong, by task: a matrix of scenarios, made by a loop."""

from dataclasses import dataclass, field
from typing import Any

from shop import place, tools

from agentest import scenario, sequence


@dataclass
class Case:
    task: str
    path: str
    says: str
    replies: str
    expected: list[str]
    changed: dict[str, Any] = field(default_factory=dict)


DOWN = sequence(TimeoutError("no answer after 5 s"))
CASES = [
    Case(
        "order-lookup", "not-found", "Where is ORD-999?", "can't find", ["lookup_order"], {"lookup_order": {}}
    ),
    Case(
        "order-lookup", "tool-error", "Where is ORD-100?", "person", ["lookup_order"], {"lookup_order": DOWN}
    ),
    Case("order-lookup", "ambiguous", "Where is my parcel?", "order number", []),
    Case("refund", "not-found", "Refund ORD-999.", "can't find", ["lookup_order"], {"lookup_order": {}}),
    Case(
        "refund",
        "tool-error",
        "Refund ORD-100, please.",
        "not answering",
        ["lookup_order", "check_refund"],
        {"check_refund": {"error": "503 Service Unavailable"}},
    ),
    Case("refund", "ambiguous", "I want my money back.", "order number", []),
    Case(
        "refund",
        "not-allowed",
        "Refund ORD-100, please.",
        "older than 30 days",
        ["lookup_order", "check_refund"],
        {"check_refund": {"eligible": False, "reason": "it is older than 30 days"}},
    ),
    Case("escalation", "tool-error", "I want a human.", "sorry", ["create_ticket"], {"create_ticket": DOWN}),
]

for case in CASES:
    scenario(
        f"{case.task}: {case.path}",
        turns=[{"user_message": case.says, "expect": {"contains": case.replies}}],
        tools=tools(*case.expected, **case.changed),
        trajectory={"match_mode": "strict", "expected": case.expected},
        tags=place(case.task, case.path),
    )

scenario(
    "a lookup that fails once is asked for again",
    turns=[
        {"user_message": "Where is ORD-100?", "expect": {"contains": "not answering"}},
        {"user_message": "Try again: where is ORD-100?", "expect": {"contains": "shipped"}},
    ],
    tools=tools("lookup_order", lookup_order=sequence(TimeoutError("no answer"), {"status": "shipped"})),
    tags=place("order-lookup", "tool-error"),
)
