"""What a turn changed in the state of an agent's session, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentest.domain.transcript import StateChange
from agentest.support.json_text import plain
from agentest.support.text import shortened

_VALUE_CHARS = 200
_SHOWN_KEYS = 20


def state_rows(change: StateChange) -> list[str]:
    """A row for each key: `+` is new, `~` has another value, `-` is gone; none where nothing changed."""
    rows = list(_rows(change))
    more = len(rows) - _SHOWN_KEYS
    return rows if more <= 0 else [*rows[:_SHOWN_KEYS], f"… {more} more keys"]


def _rows(change: StateChange) -> Iterator[str]:
    for key, value in change.added.items():
        yield f"+ {_key(key)} = {_value(value)}"
    for key, (before, after) in change.changed.items():
        yield f"~ {_key(key)} = {_value(after)} (was {_value(before)})"
    for key, value in change.removed.items():
        yield f"- {_key(key)} (was {_value(value)})"


def _key(key: str) -> str:
    return shortened(key, _VALUE_CHARS)


def _value(value: Any) -> str:
    return shortened(json.dumps(plain(value), ensure_ascii=False), _VALUE_CHARS)
