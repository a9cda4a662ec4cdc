"""Format expected calls for reports, as they were written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentest.scenarios.calls import ANYTHING, AnyOf, ExpectedCall, Step, ToolName, name_text
from agentest.scenarios.matchers.display import shown

_MOST_SHOWN = 20
_MOST_CHARS = 2_000
"""Limit for one value, because a result repeats each expected call for every conversation."""
_PLACES = {1: "first", -1: "last"}


def expected_arguments(expected: ExpectedCall) -> Mapping[str, Any] | None:
    """Return the expected arguments; None: any arguments match."""
    if expected.arg_match_mode == "ignore" or (expected.arg_match_mode == "partial" and not expected.args):
        return None
    return expected.args


def expected_text(expected: ExpectedCall) -> str:
    """Format an expected call as `name(key=value, …)` with its other conditions."""
    name, wanted = _name_text(expected.name), expected_arguments(expected)
    conditions = _conditions(expected)
    if wanted is None and not conditions:
        return name
    arguments = [_argument(key, value) for key, value in (wanted or {}).items()]
    more = ["…"] if wanted is None or expected.arg_match_mode == "partial" else []
    written = f"{name}({', '.join([*arguments, *more, *conditions])})"
    return f"exactly({written})" if conditions and not more else written


def _argument(key: str, value: Any) -> str:
    text = _value_text(value)
    return f"{key}={text}" if str(key).isidentifier() else f"{key!r}: {text}"


def _value_text(value: Any) -> str:
    return _cut(shown(value))


def _name_text(name: ToolName) -> str:
    return _cut(name_text(name))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}… ({len(text):,} characters)"


def _conditions(expected: ExpectedCall) -> list[str]:
    conditions = []
    if expected.where is not None:
        conditions.append(f"where={_value_text(expected.where)}")
    if expected.result is not ANYTHING:
        conditions.append(f"result={_value_text(expected.result)}")
    if expected.nth is not None:
        conditions.append(place_text(expected.nth))
    return conditions


def place_text(nth: int) -> str:
    """Format the expected place among the calls of a tool that count: `first`, `last`, `nth=2`."""
    return _PLACES.get(nth, f"nth={nth}")


def slot_text(slot: Sequence[ExpectedCall]) -> str:
    """Format alternatives for one call."""
    texts = [expected_text(each) for each in slot]
    return texts[0] if len(texts) == 1 else f"any_of({', '.join(texts)})"


def slot_name(slot: Sequence[ExpectedCall]) -> str:
    """Return the name of the tool, or of all alternatives."""
    return " or ".join(dict.fromkeys(_name_text(each.name) for each in slot))


def step_text(step: Step) -> str:
    """Format an expected call, or alternatives, as written."""
    if isinstance(step, ExpectedCall):
        return expected_text(step)
    return f"any_of({', '.join(map(_path_text, step.paths))})"


def _path_text(path: Sequence[ExpectedCall | AnyOf]) -> str:
    texts = [step_text(each) for each in path]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def listed(texts: Iterable[str], nothing: str = "no calls") -> str:
    """Join texts with commas; beyond the first twenty, only their number is given."""
    items = list(texts)
    more = f", … {len(items) - _MOST_SHOWN} more" if len(items) > _MOST_SHOWN else ""
    return (", ".join(items[:_MOST_SHOWN]) + more) or nothing
