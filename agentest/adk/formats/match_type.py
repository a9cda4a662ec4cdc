"""How tool calls are compared with the expected ones, and the ways to write it."""

from __future__ import annotations

import re
from enum import StrEnum


class MatchType(StrEnum):
    """How tool calls are compared."""

    EXACT = "EXACT"
    IN_ORDER = "IN_ORDER"
    ANY_ORDER = "ANY_ORDER"


def as_match_type(value: object) -> MatchType:
    """A match type from its name in any letter case, or from its number. Raises ValueError."""
    names = list(MatchType)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return names[value]
    name = re.sub("[- ]", "_", value.strip().upper()) if isinstance(value, str) else ""
    if name in MatchType.__members__:
        return MatchType[name]
    raise ValueError("must be " + ", ".join(f"{name.value} or {n}" for n, name in enumerate(names)))
