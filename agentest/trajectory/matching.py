"""Bipartite matching of expected calls (rows) with actual calls (columns), with and without an order.

A maximum matching ensures that no expectation takes a call that another one needs. A row is a number in which
bit `1 << column` is set if the two may be paired. With `rounds`, columns come in groups: the calls of one
message, in any order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence

from agentest.domain.transcript import ToolCall

Partners = list[int | None]
"""The column of each row, or None."""
_MOST_CELLS = 1_000_000
"""Limit for comparisons; beyond it, pairs follow the order of calls instead of the best order."""
_MOST_GROUPED_CELLS = 20_000
"""Limit for pairs; beyond it, the best order within messages is not searched."""


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(positions: Iterator[int] | Sequence[int]) -> int:
    """Return a number with the bits at these positions set."""
    mask = 0
    for each in positions:
        mask |= 1 << each
    return mask


def union(masks: Sequence[int]) -> int:
    """Return the bits that are set in any of these."""
    found = 0
    for mask in masks:
        found |= mask
    return found


class Matching:
    """Pairs of rows and columns, extended along shortest augmenting paths. A paired row or column stays
    paired.
    """

    __slots__ = ("_of_column", "_rows", "of_row", "taken")

    def __init__(self, rows: Sequence[int], begin: Sequence[int | None] | None = None) -> None:
        self._rows = rows
        self.of_row: Partners = list(begin or [None] * len(rows))
        self._of_column = {column: row for row, column in enumerate(self.of_row) if column is not None}
        self.taken = mask_of(list(self._of_column))

    def add(self, row: int) -> bool:
        """Pair a row, moving other pairs if necessary. Return False if no assignment includes all."""
        came: dict[int, int] = {}
        queue, seen = deque([row]), 0
        while queue:
            at = queue.popleft()
            fresh = self._rows[at] & ~seen
            untaken = fresh & ~self.taken
            if untaken:
                column = (untaken & -untaken).bit_length() - 1
                came[column] = at
                self._flip(column, came)
                return True
            seen |= fresh
            for column in bits(fresh):
                came[column] = at
                queue.append(self._of_column[column])
        return False

    def _flip(self, column: int, came: dict[int, int]) -> None:
        """Update the pairs along the path to a free column."""
        self.taken |= 1 << column
        at: int | None = column
        while at is not None:
            row = came[at]
            before = self.of_row[row]
            self.of_row[row], self._of_column[at] = at, row
            at = before

    def prefer(self, wanted: int) -> None:
        """Exchange columns for `wanted` ones as far as possible; every paired row stays paired."""
        columns = transposed(self._rows)
        for column in bits(wanted & ~self.taken):
            self._exchange(column, wanted, columns)

    def _exchange(self, start: int, wanted: int, columns: dict[int, int]) -> None:
        """Add a column and release an unwanted one, along the shortest path between them."""
        came: dict[int, int] = {}
        queue, seen = deque([start]), 1 << start
        while queue:
            column = queue.popleft()
            for row in bits(columns.get(column, 0)):
                other = self.of_row[row]
                if other is None or seen >> other & 1:
                    continue
                came[other] = column
                if not wanted >> other & 1:
                    self._shift(other, came)
                    return
                seen |= 1 << other
                queue.append(other)

    def _shift(self, let_go: int, came: dict[int, int]) -> None:
        self.taken &= ~(1 << let_go)
        column = let_go
        row = self._of_column.pop(let_go)
        while column in came:
            column = came[column]
            following = self._of_column.get(column)
            self.of_row[row], self._of_column[column] = column, row
            self.taken |= 1 << column
            if following is None:
                return
            row = following


def maximum_matching(rows: Sequence[int], begin: Sequence[int | None] | None = None) -> Matching:
    """Return a matching with the maximum number of pairs.

    Args:
        begin: initial pairs; a row with a partner here has a partner in the result.
    """
    matching = Matching(rows, begin)
    for row, partner in enumerate(tuple(matching.of_row)):
        if partner is None:
            matching.add(row)
    return matching


def has_full_matching(rows: Sequence[int]) -> bool:
    """Return True if each row can have its own column."""
    matching = Matching(rows)
    return all(map(matching.add, range(len(rows))))


def transposed(rows: Sequence[int]) -> dict[int, int]:
    """Return a mapping from each column to the rows it may be paired with, as bits; columns without rows are
    omitted.
    """
    columns: dict[int, int] = {}
    for row, mask in enumerate(rows):
        for column in bits(mask):
            columns[column] = columns.get(column, 0) | 1 << row
    return columns


def columns_saturated(rows: Sequence[int], wanted: int) -> bool:
    """Return True if each of the wanted columns can have its own row."""
    if wanted & ~union(rows) or wanted.bit_count() > len(rows):
        return False
    columns = transposed([row & wanted for row in rows])
    return has_full_matching(list(columns.values()))


def longest_in_order(rows: Sequence[int], size: int, counting: int | None = None) -> Partners:
    """Pair as many rows as possible with columns in rising order.

    Args:
        size: number of columns.
        counting: columns to prefer among results of equal size; None: no preference.
    """
    early = _earliest_partners(rows, size)
    uniform = counting is None or counting.bit_count() == size
    if (None not in early and uniform) or len(rows) * size > _MOST_CELLS:
        return early
    pair = weight_of_pair(len(rows))
    weights = [pair + (not uniform and (counting or 0) >> column & 1) for column in range(size)]
    lengths = _suffix_weights(rows, weights)
    partners: Partners = [None] * len(rows)
    row = column = 0
    while row < len(rows) and column < size:
        rest = lengths[row][column]
        if rows[row] >> column & 1 and rest == weights[column] + lengths[row + 1][column + 1]:
            partners[row] = column
            row, column = row + 1, column + 1
        elif lengths[row][column + 1] == rest:
            column += 1
        else:
            row += 1
    return partners


def weight_of_pair(most: int) -> int:
    """Return a weight for pairs, so that one more pair outweighs one more point for each of the others."""
    return most + 1


def _earliest_partners(rows: Sequence[int], size: int) -> Partners:
    """Pair each row with the earliest column after that of the row before, until one has none."""
    partners: Partners = [None] * len(rows)
    row = 0
    for column in range(size):
        if row < len(rows) and rows[row] >> column & 1:
            partners[row] = column
            row += 1
    return partners


def _suffix_weights(rows: Sequence[int], weights: Sequence[int]) -> list[list[int]]:
    """Return the maximum weight of pairs in order for each suffix of rows and columns."""
    size = len(weights)
    lines = [[0] * (size + 1)]
    for row in reversed(rows):
        below, here = lines[-1], [0] * (size + 1)
        for column in range(size - 1, -1, -1):
            best = max(below[column], here[column + 1])
            if row >> column & 1:
                best = max(best, weights[column] + below[column + 1])
            here[column] = best
        lines.append(here)
    lines.reverse()
    return lines


def longest_rise(values: Sequence[int]) -> set[int]:
    """Return the positions of a longest strictly rising subsequence, the first of several."""
    begins: list[int] = []
    after: list[int | None] = [None] * len(values)
    for at in reversed(range(len(values))):
        place = bisect_left(begins, -values[at], key=lambda other: -values[other])
        after[at] = begins[place - 1] if place else None
        begins[place : place + 1] = [at]
    found: set[int] = set()
    following = begins[-1] if begins else None
    while following is not None:
        found.add(following)
        following = after[following]
    return found


def fine_groups(calls: Sequence[ToolCall]) -> tuple[int, ...]:
    """Return one group per message; a call in an unknown message is its own group."""
    keys = [(call.turn_index, at if call.round is None else -1, call.round) for at, call in enumerate(calls)]
    return _grouped(keys)


def coarse_groups(calls: Sequence[ToolCall]) -> tuple[int, ...]:
    """Return one group per message; a turn with a call in an unknown message is one group."""
    turns_without_rounds = {call.turn_index for call in calls if call.round is None}
    return _grouped(
        [(call.turn_index, None if call.turn_index in turns_without_rounds else call.round) for call in calls]
    )


def single_groups(size: int) -> tuple[int, ...]:
    """Return a group for each column."""
    return tuple(1 << at for at in range(size))


def _grouped(keys: Sequence[object]) -> tuple[int, ...]:
    groups: list[int] = []
    for at, key in enumerate(keys):
        if at and key == keys[at - 1]:
            groups[-1] |= 1 << at
        else:
            groups.append(1 << at)
    return tuple(groups)


def exactly_in_order(rows: Sequence[int], groups: Sequence[int], counting: int) -> bool:
    """Return True if all rows have a column in order, and all columns that count have a row.

    The loop computes which numbers of rows may be matched after each group.
    """
    if any(not row for row in rows):
        return False
    if all(group.bit_count() == 1 for group in groups):
        return _exactly_in_single_groups(rows, groups, counting)
    reached = {0}
    for group in groups:
        reached = {
            at + length
            for at in reached
            for length in range(*_block_lengths(rows, at, group, counting & group))
        }
        if not reached:
            return False
    return len(rows) in reached


def _exactly_in_single_groups(rows: Sequence[int], groups: Sequence[int], counting: int) -> bool:
    if not len(rows) <= len(groups) or counting.bit_count() > len(rows):
        return False
    columns = transposed(rows)
    reached = 1
    for group in groups:
        passed = 0 if counting & group else reached
        reached = passed | (reached & columns.get(group.bit_length() - 1, 0)) << 1
        if not reached:
            return False
    return bool(reached >> len(rows) & 1)


def _block_lengths(rows: Sequence[int], at: int, group: int, counting: int) -> tuple[int, int]:
    """Return the range of numbers of rows from `at` on that one message's calls may match.

    Each of these rows needs a call of the message, and each call that counts needs one of the rows. If both
    can be satisfied separately, they can be satisfied together (Mendelsohn and Dulmage).
    """
    most = rows_of_block(rows, at, group)
    least = least_rows(rows[at : at + most], counting)
    return (0, 0) if least is None else (least, most + 1)


def rows_of_block(rows: Sequence[int], at: int, group: int) -> int:
    """Count the rows from `at` on that can each have a column of the group."""
    most = min(len(rows) - at, group.bit_count())
    matching = Matching([row & group for row in rows[at : at + most]])
    return next((row for row in range(most) if not matching.add(row)), most)


def least_rows(rows: Sequence[int], counting: int) -> int | None:
    """Return the number of leading rows with which each of these columns can have its own row; None:
    impossible.
    """
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
    """Count the leading rows that can have a column in order.

    The earliest column for each row is optimal because it leaves the most columns to later rows.
    """
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
    """Return the first column that counts and has no row after the rows of earlier columns; None if each has.

    Rows may be skipped, because their calls may be hidden.
    """
    at = 0
    for group in groups:
        wanted = counting & group
        least = least_rows(rows[at:], wanted)
        if least is None:
            return _first_unplaced(rows[at:], wanted)
        at += least
    return None


def _first_unplaced(rows: Sequence[int], wanted: int) -> int:
    """Return the first of these columns that cannot have a row together with those before it."""
    taken = 0
    for column in bits(wanted):
        taken |= 1 << column
        if least_rows(rows, taken) is None:
            return column
    raise AssertionError("each column can have a row of its own")


def best_in_order(rows: Sequence[int], groups: Sequence[int], counting: int) -> Partners:
    """Pair as many rows as possible with columns in order."""
    size = sum(group.bit_count() for group in groups)
    if len(groups) == size:
        return longest_in_order(rows, size, counting)
    if len(rows) * size <= _MOST_GROUPED_CELLS:
        return _best_in_blocks(rows, groups, counting)
    early = _earliest_blocks(rows, groups, counting)
    return longest_in_order(rows, size, counting) if None in early else early


def _earliest_blocks(rows: Sequence[int], groups: Sequence[int], counting: int) -> Partners:
    """Pair each row with a column in the earliest group, until one has none."""
    partners: Partners = []
    for group in groups:
        length = rows_of_block(rows, len(partners), group)
        partners += _block_partners(rows[len(partners) : len(partners) + length], group, counting)
    return [*partners, *[None] * (len(rows) - len(partners))]


def _best_in_blocks(rows: Sequence[int], groups: Sequence[int], counting: int) -> Partners:
    """Find the best pairs by dynamic programming over groups: rows matched after each group, and maximum
    weight.
    """
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
    partners: Partners = [None] * len(rows)
    for group, came in zip(reversed(groups), reversed(steps), strict=True):
        begin = came[end]
        for row, column in enumerate(_block_partners(rows[begin:end], group, counting), begin):
            partners[row] = column
        end = begin
    return partners


def _block_weights(rows: Sequence[int], at: int, group: int, counting: int) -> list[tuple[int, int]]:
    """List numbers of rows from `at` on that the group can match, each with the weight of its pairs.

    Among equal numbers of pairs, those with columns that count weigh more.
    """
    matching = Matching([row & group for row in rows[at:]])
    of_those_that_count = Matching([row & group & counting for row in rows[at:]])
    pair = weight_of_pair(len(rows))
    found, weight = [], 0
    for row in range(len(rows) - at):
        if matching.taken == group:
            break
        if rows[at + row] & group and matching.add(row):
            weight += pair
            weight += of_those_that_count.add(row)
            found.append((at + row + 1, weight))
    return found


def _block_partners(rows: Sequence[int], group: int, counting: int) -> Partners:
    matching = Matching([row & group for row in rows])
    for row in range(len(rows)):
        matching.add(row)
    matching.prefer(counting & group)
    return matching.of_row
