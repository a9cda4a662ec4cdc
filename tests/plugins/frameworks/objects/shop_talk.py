"""The models of the shops: rules about the user's messages instead of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Call = tuple[str, dict[str, Any]]

REAL: list[str] = []
"""What real tools have run."""


def ran(what: str) -> str:
    """Note that a real tool has run."""
    REAL.append(what)
    return f"really {what}"


def next_step(said: Sequence[str], results: Sequence[str]) -> str | Call:
    """A reply or a tool call: from what the user said so far, and the tools' answers in this turn."""
    word, *rest = said[-1].split()
    steps = _calls(word, rest)
    if len(results) < len(steps):
        return steps[len(results)]
    if word == "recall":
        return next((s.split()[1] for s in said if s.startswith("remember ")), "nothing")
    return f"{word}: {'; '.join(results)}" if results else f"You said: {said[-1]}"


def _calls(word: str, rest: Sequence[str]) -> list[Call]:
    item = rest[0] if rest else "lamp"
    stock, reserve = ("check_stock", {"item": item}), ("reserve_item", {"item": item, "quantity": 2})
    known: dict[str, list[Call]] = {
        "stock": [stock],
        "reserve": [stock, reserve],
        "delegate": [("ask_clerk", {"input": " ".join(rest)})],
        "pay": [("pay", {"amount": 5})],
        "break": [("lift", {"item": item})],
        "wait": [("wait", {})],
        "who": [("customer", {})],
    }
    return known.get(word, [])
