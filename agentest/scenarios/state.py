"""The options `state` and `check` of a scenario. What is wrong raises ValueError, which names the option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.scenarios.parsing import has_text_keys, kind_of


def parse_state(value: Any, key: str = "state") -> Mapping[str, Any] | None:
    """The state with which the mocks begin; None where there is none."""
    if value is None:
        return None
    if not has_text_keys(value):
        raise ValueError(f"{key}: expected a dict with texts as keys, found {kind_of(value)}")
    return dict(value)


def parse_check(value: Any, key: str = "check") -> Any:
    """The function that is asked at the end; None where there is none."""
    if value is not None and not callable(value):
        raise ValueError(f"{key}: expected a function of the conversation and the state, found {value!r}")
    return value
