"""`repeat`: run a variable number of conversations until the verdict is certain enough."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean, snake_keys

EXCLUDES = "repeat: excludes `conversations_per_scenario`, which fixes their number; leave one of the two out"
_KEYS = ("min", "max", "confidence")
_RANGE = re.compile(r"\s*(\d+)\s*\.\.\s*(\d+)\s*")
MOST = 1000  # the highest number of conversations that `repeat` accepts
_FORMS = '{"min": 3, "max": 20} or "3..20"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Run `min` to `max` conversations, until the verdict is decided."""

    min: int = 3
    max: int = 20
    confidence: float = 0.95  # the lowest probability that a decided verdict is right

    def __str__(self) -> str:
        return f"{self.min}..{self.max}"


def parse_repeat(value: Any) -> Repeat | None:
    """Parse the value of a configuration, a scenario or the command line; None stays None.

    Raises ValueError. Its message begins with the name of the invalid part, if only a part is invalid.
    """
    if value is None or isinstance(value, Repeat):
        return value
    if isinstance(value, str):
        match = _RANGE.fullmatch(value)
        if match is None:
            raise ValueError(f"expected MIN..MAX, like 3..20, found {value!r}")
        return _checked({"min": int(match[1]), "max": int(match[2])})
    if not isinstance(value, Mapping):
        raise ValueError(f"expected {_FORMS}, found {value!r}")
    keys = snake_keys(value, _KEYS)
    for key in keys:
        if key not in _KEYS:
            raise ValueError(f"unknown key `{key}`; {did_you_mean(str(key), _KEYS)}")
    return _checked(keys)


def _checked(keys: Mapping[str, Any]) -> Repeat:
    for name in ("min", "max"):
        number = keys.get(name, 1)
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST:
            raise ValueError(f"{name}: expected a whole number from 1 to {MOST}, found {number!r}")
    made = Repeat(**keys)
    if made.min > made.max:
        raise ValueError(f"min is {made.min}, but max is {made.max}; max must be at least min")
    confidence = made.confidence
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0.5 <= confidence < 1:
        raise ValueError(
            f"confidence: expected a number from 0.5 to below 1, like 0.95, found {confidence!r}"
        )
    return made
