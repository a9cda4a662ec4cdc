"""Spans of tool calls within one another: one call that two report, or a tool that calls another."""

from __future__ import annotations

from typing import Any

import pytest

from agentest.plugins.servers.traces.conventions import ToolSpan
from agentest.plugins.servers.traces.span_calls import ParsedSpan, calls_of

Told = tuple[str, str, dict[str, Any] | None]
"""The instrumentation, the tool's name and its arguments."""

ONE: dict[str, tuple[Told, Told]] = {
    "a client of MCP": (("sdk", "mcp__shop__stock", {"item": "tea"}), ("mcp", "stock", {"item": "tea"})),
    "with defaults": (("sdk", "shop_stock", {"item": "tea"}), ("mcp", "stock", {"item": "tea", "n": 1})),
    "without arguments": (("sdk", "shop_stock", {"item": "tea"}), ("mcp", "stock", None)),
    "the same name": (("sdk", "stock", {"item": "tea"}), ("sdk", "stock", {"item": "tea"})),
}
TWO: dict[str, tuple[Told, Told]] = {
    "an agent as a tool": (("sdk", "ask_stock", {"question": "tea?"}), ("sdk", "stock", {"item": "tea"})),
    "of another source": (("sdk", "ask_stock", {"question": "tea?"}), ("mcp", "stock", {"item": "tea"})),
    "one source, the same arguments": (("sdk", "delete_stock", {"i": 1}), ("sdk", "stock", {"i": 1})),
}


def names_of(outer: Told, inner: Told) -> list[str]:
    spans = [
        ParsedSpan(
            trace_id="t",
            span_id=str(at),
            parent_id=str(at - 1),
            start_ns=at,
            scope=scope,
            tool=ToolSpan(name=name, arguments=arguments),
        )
        for at, (scope, name, arguments) in enumerate((outer, inner))
    ]
    return [told.call.name for told in calls_of(spans, 0)]


@pytest.mark.parametrize("case", ONE)
def test_one_call_that_two_spans_tell_of(case: str) -> None:
    """The outer name is the framework's, with the server's before the tool's."""
    assert names_of(*ONE[case]) == [ONE[case][0][1]]


@pytest.mark.parametrize("case", TWO)
def test_a_tool_that_calls_another(case: str) -> None:
    """Both calls are recorded, so a ban applies to either."""
    assert names_of(*TWO[case]) == [name for _, name, _ in TWO[case]]
