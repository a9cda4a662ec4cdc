"""Whether a call that a framework tells of is one that a server of ours was asked for.

A framework may call a tool by a longer name than its server does, and what it tells of the arguments may lack
defaults, or have nulls and texts where the server got nothing and numbers.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Any


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same in JSON: 1 is 1.0, and true is neither."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def alike(one: Any, other: Any) -> bool:
    """Whether two sources may mean the same value: one of them may leave out what the other fills in."""
    if isinstance(one, dict) and isinstance(other, dict):
        return _alike_objects(_told(one), _told(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, str) is not isinstance(other, str):
        return _as_number(one) is not None and _as_number(one) == _as_number(other)
    return same(one, other)


def _told(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _alike_objects(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if not (one.keys() <= other.keys() or other.keys() <= one.keys()):
        return False
    return all(alike(one[key], other[key]) for key in one.keys() & other.keys())


def _as_number(value: Any) -> float | str | None:
    """A number or a truth value, also where it is written as a text; None for all else."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower()
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def is_called(told: str, served: str) -> bool:
    """Whether a framework may call the tool `served` by the name `told`.

    `mcp__shop__check_stock`, `shop.check_stock` and `shop_check_stock` are names of `check_stock`.
    """
    long, short = _letters(told), _letters(served)
    return long == short or long.endswith(f"_{short}")


def _letters(name: str) -> str:
    """A name in which all that separates is the same: some models' names have no dots and dashes."""
    return re.sub(r"\W", "_", name)


def tool_called(told: str, served: Iterable[str], others: Container[str] = ()) -> str | None:
    """The one of the tools `served` that a framework calls by the name `told`; None: it is another.

    `others` are names of tools of the agent's own.
    """
    names = [name for name in served if is_called(told, name)]
    if told in names:
        return told
    return None if told in others else max(names, key=len, default=None)
