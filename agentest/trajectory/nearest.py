"""Which call stands beside which expected call of its tool, where neither found another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from agentest.trajectory.differences import alike, of_tool
from agentest.trajectory.table import CallTable

_MOST_COMPARED = 400
"""Pairs of one tool that are compared for the nearest; beyond that they are taken as they come."""


def different_pairs(
    table: CallTable, missing: Sequence[int], others: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Pairs of expected calls and calls of one tool: of calls that count first, and with most in common."""
    by_tool: defaultdict[str, list[int]] = defaultdict(list)
    for call in others:
        by_tool[table.calls[call].name].append(call)
    left = dict.fromkeys(missing)
    for name, calls in by_tool.items():
        rows = [row for row in left if of_tool(table.slots[row], name)]
        for pair in _nearest(table, rows, calls):
            left.pop(pair[0])
            yield pair


def _nearest(table: CallTable, rows: Sequence[int], calls: Sequence[int]) -> Iterator[tuple[int, int]]:
    if len(rows) * len(calls) > _MOST_COMPARED:
        yield from zip(rows, calls, strict=False)
        return
    pairs = sorted(
        (
            not table.counting >> call & 1,
            -max(
                alike(each, table.calls[call]) for each in of_tool(table.slots[row], table.calls[call].name)
            ),
            row,
            call,
        )
        for row in rows
        for call in calls
    )
    taken: set[tuple[str, int]] = set()
    for _, _, row, call in pairs:
        if not {("row", row), ("call", call)} & taken:
            taken |= {("row", row), ("call", call)}
            yield row, call
