"""The shop behind every server of this folder: its tools, and the script of its agent.

The script stands where a deployed agent has its model. It looks only at what a framework gives to a model:
the user's texts so far, and the results of the calls made since the last of them. So an agent that forgets,
loses a result or mixes two conversations shows it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

STOCK = {"lamp": 3, "chair": 0, "sofa": 12}


def check_stock(item: str) -> dict[str, Any]:
    """How many of an item are in stock."""
    return {"item": item, "in_stock": STOCK.get(item, 0)}


def reserve_item(item: str, quantity: int = 1) -> dict[str, Any]:
    """Puts items aside for the customer."""
    return {"item": item, "quantity": quantity, "reservation": f"R-{item}-{quantity}"}


def search(query: str) -> dict[str, Any]:
    """Searches the catalogue."""
    return {"query": query, "found": [name for name in STOCK if query in name]}


def place_order(item: str) -> dict[str, Any]:
    """Buys an item. A person approves it first, where the protocol knows approvals."""
    return {"ordered": item}


TOOLS = {tool.__name__: tool for tool in (check_stock, reserve_item, search, place_order)}


@dataclass(frozen=True)
class Call:
    """The agent wants a tool."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)


def run_tool(call: Call) -> Any:
    """What the shop's own tool answers."""
    return TOOLS[call.name](**call.args)


async def think(texts: list[str], results: list[Any]) -> Call | str:
    """What the agent does next: a call, or its reply. `results`: since the last of `texts`, in order."""
    await asyncio.sleep(_pause_s(texts))
    return next_step(texts, results)


def think_in_thread(texts: list[str], results: list[Any]) -> Call | str:
    """The same for an agent that is not async."""
    time.sleep(_pause_s(texts))
    return next_step(texts, results)


def next_step(texts: list[str], results: list[Any]) -> Call | str:
    """The script. Raises RuntimeError when the user says "fail"."""
    word, *rest = texts[-1].split() or [""]
    match word:
        case "stock":
            return _one(Call("check_stock", {"item": rest[0]}), results)
        case "search":
            return _one(Call("search", {"query": " ".join(rest)}), results)
        case "ask":
            return _one(Call("place_order", {"item": rest[0]}), results)
        case "reserve":
            return _reserve(rest[0], int(rest[1]), results)
        case "recall":
            return _remembered(texts)
        case "fail":
            raise RuntimeError("the shop is on fire")
    return f"You said: {texts[-1]}"


def _one(call: Call, results: list[Any]) -> Call | str:
    return f"{call.name} says {results[-1]}" if results else call


def _reserve(item: str, quantity: int, results: list[Any]) -> Call | str:
    """Looks at the stock, then reserves whatever it was."""
    if not results:
        return Call("check_stock", {"item": item})
    if len(results) == 1:
        return Call("reserve_item", {"item": item, "quantity": quantity})
    return f"Reserved {quantity} {item}: {results[-1]}"


def _remembered(texts: list[str]) -> str:
    words = [text.split()[1] for text in texts if text.startswith("remember ")]
    return words[-1] if words else "nothing"


def _pause_s(texts: list[str]) -> float:
    word, *rest = texts[-1].split() or [""]
    return float(rest[0]) if word == "slow" else 0.0
