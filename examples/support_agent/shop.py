"""What the scenarios share: the shop's tools, as mocks, and how scenarios are placed in the matrix."""

from __future__ import annotations

from typing import Any

TOOLS: dict[str, Any] = {
    "lookup_order": {"order_id": "ORD-100", "status": "shipped"},
    "check_refund": {"eligible": True, "amount": 49.99},
    "pay_refund": {"refund_id": "REF-1"},
    "create_ticket": {"ticket_id": "T-1"},
}
REFUND = ("lookup_order", "check_refund", "pay_refund")


def tools(*names: str, **changed: Any) -> dict[str, Any]:
    """The tools of a shop in which all goes well, or those that are named, with some changed."""
    return {name: TOOLS[name] for name in names or TOOLS} | changed


def place(task: str, path: str) -> list[str]:
    """The tags that put a scenario into a cell of `agentest coverage`."""
    return [f"task:{task}", f"path:{path}"]
