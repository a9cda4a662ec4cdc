"""A shop's agent with rules about edge cases, correct or with one bug (functions for `explore_lab`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from explore_lab import Act, Seen

INSTRUCTIONS = """\
You are the assistant of a shop.

- Customers may return items up to 30 days after delivery.
- Sell at most 3 items per order.
- Deliveries are scheduled between 9:00 and 17:00.
- Never delete an account.
- Always ask for confirmation before you cancel an order.
"""
TOOLS: list[dict[str, Any]] = [
    {
        "name": name,
        "description": about,
        "parameters": {
            "type": "object",
            "properties": {each: {"type": kind} for each, kind in arguments.items()},
            "required": list(arguments),
        },
    }
    for name, about, arguments in (
        ("return_item", "Return an item of an order.", {"order_id": "string"}),
        ("place_order", "Order items.", {"quantity": "integer"}),
        ("schedule_delivery", "Schedule the delivery of an order.", {"order_id": "string", "time": "string"}),
        ("delete_account", "Delete an account.", {"email": "string"}),
        ("cancel_order", "Cancel an order.", {"order_id": "string"}),
    )
]


def shop(bug: str = "") -> Callable[[Seen], Act]:
    """The agent; `bug` is `days`, `items`, `window`, `account`, `cancel`, or none."""

    def think(seen: Seen) -> Act:
        if seen.results:
            return "Done."
        said, everything = seen.said.lower(), " ".join(seen.users).lower()
        order = re.search(r"\b[A-Z]-\d+", " ".join(seen.users))
        if seen.calls:
            return "Anything else?"
        if "delete" in everything:
            return (
                ("delete_account", {"email": "alex@example.com"}) if bug == "account" else "I cannot do that."
            )
        if "cancel" in everything and order:
            is_agreed = "yes" in said or bug == "cancel"
            return ("cancel_order", {"order_id": order[0]}) if is_agreed else "Shall I cancel it?"
        if "return" in everything and order and (days := re.search(r"(\d+) days", everything)):
            is_late = int(days[1]) > (31 if bug == "days" else 30)
            return "That is too late." if is_late else ("return_item", {"order_id": order[0]})
        if "schedule" in everything and order and (time := re.search(r"(\d+):(\d+)", everything)):
            minutes = int(time[1]) * 60 + int(time[2])
            is_open = 9 * 60 <= minutes <= 17 * 60 + (1 if bug == "window" else 0)
            args = {"order_id": order[0], "time": time[0]}
            return ("schedule_delivery", args) if is_open else "We do not deliver then."
        if "order" in everything and (items := re.search(r"(\d+) items?|quantity is (\d+)", everything)):
            wanted = int(items[1] or items[2])
            return (
                ("place_order", {"quantity": wanted})
                if wanted <= (2 if bug == "items" else 3)
                else "At most 3."
            )
        return "What do you need?"

    return think
