"""Calls that nobody saw: of which tools there may have been some, and what they could change.

Where some calls of an agent are seen and others may not be, the tools that a server lists as its own are
`listed`: every call of theirs is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agentest.scenarios.alternatives import calls_in
from agentest.scenarios.calls import names_in
from agentest.scenarios.names import ToolName, is_one_tool, name_text
from agentest.scenarios.trajectory import Trajectory

Listed = frozenset[str] | None
"""The tools whose every call is seen; None: no call is sure to be seen, and nothing about calls holds."""
_CLOSED = ("strict", "unordered", "within")


def is_closed(mode: str) -> bool:
    """Whether calls that count and are not expected must not be made."""
    return mode in _CLOSED


def is_listed(name: ToolName, listed: Listed) -> bool:
    """Whether every call that a name stands for is seen. A glob or a pattern may stand for other tools."""
    return isinstance(name, str) and is_one_tool(name) and name in (listed or ())


def all_listed(names: Iterable[ToolName], listed: Listed) -> bool:
    """Whether every call of all of these is seen."""
    return all(is_listed(name, listed) for name in names)


def broken_unseen(spec: Trajectory, listed: Listed) -> Iterator[str]:
    """What a call that nobody saw could break, in words."""
    if spec.expected is not None:
        if is_closed(spec.match_mode):
            yield f"match_mode: {spec.match_mode}"
        elif spec.at_most_once:
            yield from _unlisted("at_most_once", (call.name for call in calls_in(spec.expected)), listed)
    yield from _unlisted("forbidden", (call.name for call in spec.forbidden), listed)
    if spec.max_calls is not None:
        yield "max_calls"
    limits = spec.max_calls_per_tool
    if isinstance(limits, Mapping):
        yield from _unlisted("max_calls_per_tool", limits, listed)
    elif limits is not None:
        yield "max_calls_per_tool"
    for order in spec.orders:
        # Of `before`, a first call that was not seen breaks nothing.
        steps = (order.then,) if order.kind == "before" else (order.first, order.then)
        yield from _unlisted(order.kind, (name for step in steps for name in names_in(step)), listed)


def met_unseen(spec: Trajectory, listed: Listed) -> Iterator[str]:
    """What a call that nobody saw could meet, in words."""
    if spec.expected is not None:
        yield from _unlisted("expected", (call.name for call in calls_in(spec.expected)), listed)
    if spec.min_calls is not None:
        yield "min_calls"
    for order in spec.orders:
        if order.kind == "before":
            yield from _unlisted("before", names_in(order.first), listed)


def _unlisted(key: str, names: Iterable[ToolName], listed: Listed) -> Iterator[str]:
    found = dict.fromkeys(name_text(name) for name in names if not is_listed(name, listed))
    if found:
        yield f"{key}: {', '.join(found)}"
