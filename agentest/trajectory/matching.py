"""Bipartite matching of expected calls (rows) with actual calls (columns), with and without an order.

A maximum matching ensures that no expectation takes a call that another one needs. A row is a number in which
bit `1 << column` is set if the two may be paired. With `rounds`, columns come in groups: the calls of one
message, in any order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache

Partners = Sequence[int | None]  # the column of each row, or None
_MOST_CELLS = 1_000_000
"""Limit for comparisons; beyond it, pairs follow the order of calls instead of the best order."""
_MOST_GROUPED_CELLS = 20_000  # limit for pairs; beyond it, the best order within messages is not searched


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def union(masks: Sequence[int]) -> int:
    """Return the bits that are set in any of these."""
    result = 0
    for mask in masks:
        result |= mask
    return result


class Matching:
    """Pairs of rows and columns, extended along shortest augmenting paths; paired ones stay paired."""

    __slots__ = ("_of_column", "_rows", "of_row", "taken")

    def __init__(self, rows: Sequence[int], begin: Partners = ()) -> None:
        self._rows = rows
        self.of_row: list[int | None] = list(begin or [None] * len(rows))
        self._of_column = {column: row for row, column in enumerate(self.of_row) if column is not None}
        self.taken = union([1 << column for column in self._of_column])

    def add(self, row: int) -> bool:
        """Pair a row, moving other pairs if necessary. Return False if no assignment includes all."""
        row_of_column: dict[int, int] = {}
        queue, visited = deque([row]), 0
        while queue:
            at = queue.popleft()
            unvisited = self._rows[at] & ~visited
            free = unvisited & ~self.taken
            if free:
                column = (free & -free).bit_length() - 1
                row_of_column[column] = at
                self.taken |= 1 << column
                end: int | None = column
                while end is not None:  # update the pairs along the path to the free column
                    row = row_of_column[end]
                    before = self.of_row[row]
                    self.of_row[row], self._of_column[end] = end, row
                    end = before
                return True
            visited |= unvisited
            for column in bits(unvisited):
                row_of_column[column] = at
                queue.append(self._of_column[column])
        return False


def maximum_matching(rows: Sequence[int], counting: int | None = None, begin: Partners = ()) -> Partners:
    """Pair as many rows as possible, and among such results as many columns that count as possible.

    Columns that count are paired first. A paired row or column stays paired, so neither number suffers.

    Args:
        counting: columns to prefer; None: no preference.
        begin: initial pairs; a row with a partner here has a partner in the result.
    """
    begin = begin or [None] * len(rows)
    order = sorted(range(len(rows)), key=lambda row: begin[row] is None)
    if counting is not None and union(rows) & ~counting:
        counted = [None if column is None or not counting >> column & 1 else column for column in begin]
        pairs = _extended([row & counting for row in rows], counted, order)
        paired = {column for column in pairs if column is not None}
        begin = [
            old if new is None and old not in paired else new for old, new in zip(begin, pairs, strict=True)
        ]
    return _extended(rows, begin, order)


def _extended(rows: Sequence[int], begin: Partners, order: Sequence[int]) -> Partners:
    matching = Matching(rows, begin)
    for row in order:
        if matching.of_row[row] is None:
            matching.add(row)
    return matching.of_row


def transposed(rows: Sequence[int]) -> dict[int, int]:
    """Return column → rows that it may be paired with, as bits; columns without rows are omitted."""
    columns: dict[int, int] = {}
    for row, mask in enumerate(rows):
        for column in bits(mask):
            columns[column] = columns.get(column, 0) | 1 << row
    return columns


def longest_in_order(rows: Sequence[int], size: int, counting: int | None = None) -> Partners:
    """Pair as many rows as possible with columns in rising order, among them most columns that count."""
    early = _earliest_partners(rows, size)
    uniform = counting is None or counting.bit_count() == size
    if (None not in early and uniform) or len(rows) * size > _MOST_CELLS:
        return early
    pair = len(rows) + 1  # so that one more pair outweighs a point for each of the others
    weights = [pair + (not uniform and (counting or 0) >> column & 1) for column in range(size)]
    lengths = _suffix_weights(rows, weights)
    partners: list[int | None] = [None] * len(rows)
    row = column = 0
    while row < len(rows) and column < size:
        weight = lengths[row][column]
        if rows[row] >> column & 1 and weight == weights[column] + lengths[row + 1][column + 1]:
            partners[row] = column
            row, column = row + 1, column + 1
        elif lengths[row][column + 1] == weight:
            column += 1
        else:
            row += 1
    return partners


def _earliest_partners(rows: Sequence[int], size: int) -> Partners:
    partners: list[int | None] = [None] * len(rows)
    row = 0
    for column in range(size):
        if row < len(rows) and rows[row] >> column & 1:
            partners[row] = column
            row += 1
    return partners


def _suffix_weights(rows: Sequence[int], weights: Sequence[int]) -> list[list[int]]:
    size = len(weights)
    lines = [[0] * (size + 1)]
    for row in reversed(rows):
        below, line = lines[-1], [0] * (size + 1)
        for column in range(size - 1, -1, -1):
            best = max(below[column], line[column + 1])
            if row >> column & 1:
                best = max(best, weights[column] + below[column + 1])
            line[column] = best
        lines.append(line)
    lines.reverse()
    return lines


def exactly_in_order(rows: Sequence[int], groups: Sequence[int], counting: int) -> bool:
    """Return True if all rows have a column in order, and all columns that count have a row."""
    if not all(rows) or counting.bit_count() > len(rows):
        return False
    columns = transposed(rows)
    reached = 1  # bit n: the first n rows may have been matched so far
    for group in groups:
        if group & (group - 1):
            # Each row that is reached with this message needs a call of it, and each call that counts needs
            # one of the rows. If both can be satisfied separately, they can be satisfied together
            # (Mendelsohn and Dulmage).
            following = 0
            for at in bits(reached):
                most = rows_of_block(rows, at, group)
                least = least_rows(rows[at : at + most], counting & group)
                following |= 0 if least is None else (1 << at + most + 1) - (1 << at + least)
            reached = following
        else:
            skipped = 0 if counting & group else reached
            reached = skipped | (reached & columns.get(group.bit_length() - 1, 0)) << 1
        if not reached:
            return False
    return bool(reached >> len(rows) & 1)


def rows_of_block(rows: Sequence[int], at: int, group: int) -> int:
    """Count the rows from `at` on that can each have a column of the group."""
    most = min(len(rows) - at, group.bit_count())
    matching = Matching([row & group for row in rows[at : at + most]])
    return next((row for row in range(most) if not matching.add(row)), most)


def least_rows(rows: Sequence[int], counting: int) -> int | None:
    """Return how many leading rows give each of these columns its own row; None: impossible."""
    wanted = counting.bit_count()
    if not wanted:
        return 0
    matching = Matching([row & counting for row in rows])
    for row in range(len(rows)):
        wanted -= matching.add(row)
        if not wanted:
            return row + 1
    return None


def count_in_order(rows: Sequence[int], groups: Sequence[int]) -> int:
    """Count the leading rows that can have a column in order. The earliest leaves the most to later rows."""
    at = 0
    for group in groups:
        if at == len(rows):
            break
        if group & (group - 1):
            at += rows_of_block(rows, at, group)
        elif rows[at] & group:
            at += 1
    return at


def first_out_of_place(rows: Sequence[int], groups: Sequence[int], counting: int) -> int | None:
    """Return the first column that counts without a row after those of earlier ones; rows may be skipped."""
    at = 0
    for group in groups:
        wanted = counting & group
        least = least_rows(rows[at:], wanted)
        if least is None:  # the first column that cannot have a row together with those before it
            upto = (wanted & ((2 << column) - 1) for column in bits(wanted))
            return next(each.bit_length() - 1 for each in upto if least_rows(rows[at:], each) is None)
        at += least
    return None


@lru_cache(maxsize=8)  # verdict, alignment and score need the same pairs
def best_in_order(rows: tuple[int, ...], groups: tuple[int, ...], counting: int) -> Partners:
    """Pair as many rows as possible with columns in order."""
    size = sum(group.bit_count() for group in groups)
    if len(groups) < size and len(rows) * size <= _MOST_GROUPED_CELLS:
        return _best_in_blocks(rows, groups, counting)
    return longest_in_order(rows, size, counting)


def _best_in_blocks(rows: Sequence[int], groups: Sequence[int], counting: int) -> Partners:
    best: dict[int, int] = {0: 0}
    steps: list[dict[int, int]] = []
    for group in groups:
        following, came = dict(best), {at: at for at in best}
        for at, pairs in best.items():
            for end, more in _block_weights(rows, at, group, counting):
                if pairs + more > following.get(end, -1):
                    following[end], came[end] = pairs + more, at
        best = following
        steps.append(came)
    end = max(best, key=lambda each: (best[each], -each))
    partners: list[int | None] = [None] * len(rows)
    for group, came in zip(reversed(groups), reversed(steps), strict=True):
        begin = came[end]
        partners[begin:end] = maximum_matching([row & group for row in rows[begin:end]], counting)
        end = begin
    return partners


def _block_weights(rows: Sequence[int], at: int, group: int, counting: int) -> list[tuple[int, int]]:
    matching = Matching([row & group for row in rows[at:]])
    counting_matching = Matching([row & group & counting for row in rows[at:]])
    pair = len(rows) + 1
    weights, weight = [], 0
    for row in range(len(rows) - at):
        if matching.taken == group:
            break
        if rows[at + row] & group and matching.add(row):
            weight += pair
            weight += counting_matching.add(row)
            weights.append((at + row + 1, weight))
    return weights
