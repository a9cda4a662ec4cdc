"""Which of the fake servers' answers are faulty, and how."""

from __future__ import annotations

from collections.abc import Mapping

Slots = tuple[str | None, ...]
"""For each request of a row that repeats: what is wrong with its answer; None: nothing."""

WORDING = "wording"
"""A chat completion whose text is not of the form that was asked for."""
CUT = "cut"
"""A body that ends in the middle of its JSON."""
RESET = "reset"
"""The connection is reset before the first byte of an answer."""
HANG = "hang"
"""No answer ever comes."""

ROW = 200


def slots(faults: Mapping[str, int]) -> Slots:
    """Faults → how many of 200 requests meet them, spread evenly. Raises ValueError for more than 200."""
    if sum(faults.values()) > ROW:
        raise ValueError(f"more faults than requests: {dict(faults)}")
    found: list[str | None] = [None] * ROW
    for kind, count in faults.items():
        for number in range(count):
            at = int((number + 0.5) * ROW / count)
            while found[at % ROW]:
                at += 1
            found[at % ROW] = kind
    return tuple(found)


def written(faults: Mapping[str, int]) -> str:
    """Faults as one argument of a command line."""
    return ",".join(f"{kind}={count}" for kind, count in faults.items())


def parsed(text: str) -> dict[str, int]:
    """Faults from an argument of a command line."""
    pairs = (item.split("=") for item in text.split(",") if item)
    return {kind: int(count) for kind, count in pairs}
