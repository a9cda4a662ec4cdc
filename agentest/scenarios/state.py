"""The options `state` and `check` of a scenario. What is wrong raises ValueError, which names the option."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any

from agentest.scenarios.check_source import flaw_of
from agentest.scenarios.matchers.checking import word_in_value
from agentest.scenarios.matchers.showing import brief
from agentest.scenarios.parsing import has_text_keys, kind_of
from agentest.support.builtin_values import BuiltinState, builtin_bytes
from agentest.support.functions import taken_by

OFFERED = ("conversation", "state")
"""What a `check` may receive."""


def parse_state(value: Any, key: str = "state") -> Mapping[str, Any] | None:
    """The state with which the mocks begin, as it is now; None where there is none."""
    if value is None or isinstance(value, BuiltinState):
        return value
    if not has_text_keys(value):
        raise ValueError(f"{key}: expected a dict with texts as keys, found {kind_of(value)}")
    data = builtin_bytes(dict(value))
    return _copied(value, key) if data is None else _shared(data)


@lru_cache(maxsize=8)
def _shared(data: bytes) -> BuiltinState:
    """One value for all scenarios with the same state, which may be large."""
    return BuiltinState(data)


def _copied(state: Mapping[str, Any], key: str) -> dict[str, Any]:
    if (word := word_in_value(state)) is not None:
        found = brief(word)
        raise ValueError(f"{key}: {found} is for what is expected, and no value of a state")
    memo: dict[int, Any] = {}  # one for all: what two keys share they share in the copy
    return {name: _copy(value, memo, f"{key}[{brief(name)}]") for name, value in state.items()}


def _copy(value: Any, memo: dict[int, Any], key: str) -> Any:
    try:
        return deepcopy(value, memo)
    except Exception as error:  # noqa: BLE001 - its own code copies it, or fails as it likes
        raise ValueError(
            f"{key}: cannot be copied, and each conversation has a copy of its own "
            f"({brief(error)}); let a mock make it: "
            f'ctx.state.setdefault("name", …)'
        ) from None


def parse_check(value: Any, key: str = "check") -> Any:
    """The function that is asked at the end; None where there is none."""
    if value is None:
        return None
    if not callable(value) or isinstance(value, type):
        found = brief(value)
        raise ValueError(f"{key}: expected a function of the conversation and the state, found {found}")
    try:
        taken_by(value, OFFERED)
    except TypeError as error:
        raise ValueError(f"{key}: the function cannot be called: {error}") from None
    if flaw := flaw_of(value):
        raise ValueError(f"{key}: {flaw}")
    return value
