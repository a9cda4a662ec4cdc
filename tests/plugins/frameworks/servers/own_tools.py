"""The shop's tools in the agent's own process. Calls that have really run are noted in the file SHOP_LOG."""

from __future__ import annotations

import json
import os
from typing import Any

STOCK = {"lamp": 3, "chair": 0, "sofa": 12}


def note(name: str, **args: Any) -> None:
    """Append a line to the log, short enough to be written atomically."""
    with open(os.environ["SHOP_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps({"name": name, "args": args}) + "\n")


def check_stock(item: str) -> dict[str, Any]:
    """How many of an item are in stock."""
    note("check_stock", item=item)
    return {"item": item, "in_stock": STOCK.get(item, 0), "from": "the real shop"}


def reserve_item(item: str, quantity: int) -> dict[str, Any]:
    """Puts items aside for the customer."""
    note("reserve_item", item=item, quantity=quantity)
    return {"reservation": f"R-{item}-{quantity}", "from": "the real shop"}


def search(query: str) -> dict[str, Any]:
    """Searches the catalogue."""
    note("search", query=query)
    return {"found": [name for name in STOCK if name in query], "from": "the real shop"}


def cancel_order(item: str) -> dict[str, Any]:
    """Cancels the order of an item."""
    note("cancel_order", item=item)
    return {"cancelled": item, "from": "the real shop"}


TOOLS = [check_stock, reserve_item, search, cancel_order]
