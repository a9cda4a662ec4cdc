"""Calls in order, where the order is fixed between messages of the agent, and free inside one of them.

Rows and columns are as in `matching`. A group is the columns that one message brought, as bits; where the
order is fixed everywhere, each column is a group of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentest.domain.transcript import ToolCall
from agentest.trajectory.matching import (
    Matching,
    Partners,
    bits,
    longest_in_order,
    transposed,
    weight_of_pair,
)

_MOST_CELLS = 20_000
"""Beyond this many pairs the best order is not looked for inside of messages, too."""


def fine_groups(calls: Sequence[ToolCall]) -> tuple[int, ...]:
    """One group for each message; a call of which nobody tells the message is one of its own."""
    keys = [(call.turn_index, at if call.round is None else -1, call.round) for at, call in enumerate(calls)]
    return _grouped(keys)


def coarse_groups(calls: Sequence[ToolCall]) -> tuple[int, ...]:
    """The same; in a turn where nobody tells the message of some call, all may be of one message."""
    untold = {call.turn_index for call in calls if call.round is None}
    return _grouped([(call.turn_index, None if call.turn_index in untold else call.round) for call in calls])


def single_groups(size: int) -> tuple[int, ...]:
    """Each column is a group."""
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
    """Whether all rows have a column in order, and all columns that count a row.

    What is reached after a group is which numbers of rows may be done by then.
    """
    if any(not row for row in rows):
        return False
    if all(group.bit_count() == 1 for group in groups):
        return _exactly_one_by_one(rows, groups, counting)
    reached = {0}
    for group in groups:
        reached = {
            at + length
            for at in reached
            for length in range(*_lengths_of_block(rows, at, group, counting & group))
        }
        if not reached:
            return False
    return len(rows) in reached


def _exactly_one_by_one(rows: Sequence[int], groups: Sequence[int], counting: int) -> bool:
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


def _lengths_of_block(rows: Sequence[int], at: int, group: int, counting: int) -> tuple[int, int]:
    """From how many rows, and below how many, one message's calls may be those that follow `at`.

    Each of the rows needs a call of the message, and each call that counts one of the rows: where both can be
    had apart, they can be had together (Mendelsohn and Dulmage).
    """
    most = rows_of_block(rows, at, group)
    least = least_rows(rows[at : at + most], counting)
    return (0, 0) if least is None else (least, most + 1)


def rows_of_block(rows: Sequence[int], at: int, group: int) -> int:
    """How many of the rows from `at` on can each have a column of the group."""
    most = min(len(rows) - at, group.bit_count())
    matching = Matching([row & group for row in rows[at : at + most]])
    return next((row for row in range(most) if not matching.add(row)), most)


def least_rows(rows: Sequence[int], counting: int) -> int | None:
    """Of how many rows, the first ones, each of these columns can have one of its own; None: never."""
    wanted = counting.bit_count()
    if not wanted:
        return 0
    matching = Matching([row & counting for row in rows])
    for row in range(len(rows)):
        wanted -= matching.add(row)
        if not wanted:
            return row + 1
    return None


def done_in_order(rows: Sequence[int], groups: Sequence[int]) -> int:
    """How many rows, the first ones, can have a column in order.

    The earliest column for each row is also the best: it leaves most to the later ones.
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


def first_without_place(rows: Sequence[int], groups: Sequence[int], counting: int) -> int | None:
    """The first column that counts and has no place among the rows after those before it; None: each has.

    Rows may be left out: what was made for them was not seen.
    """
    at = 0
    for group in groups:
        wanted = counting & group
        least = least_rows(rows[at:], wanted)
        if least is None:
            return _unplaced(rows[at:], wanted)
        at += least
    return None


def _unplaced(rows: Sequence[int], wanted: int) -> int:
    """Of columns that cannot all have a row the first that cannot have one beside those before it."""
    taken = 0
    for column in bits(wanted):
        taken |= 1 << column
        if least_rows(rows, taken) is None:
            return column
    raise AssertionError("each column can have a row of its own")


def best_in_order(rows: Sequence[int], groups: Sequence[int], counting: int) -> Partners:
    """A column for as many rows as can have one in order."""
    size = sum(group.bit_count() for group in groups)
    if len(groups) == size:
        return longest_in_order(rows, size, counting)
    if len(rows) * size <= _MOST_CELLS:
        return _best_in_blocks(rows, groups, counting)
    early = _earliest_blocks(rows, groups, counting)
    return longest_in_order(rows, size, counting) if None in early else early


def _earliest_blocks(rows: Sequence[int], groups: Sequence[int], counting: int) -> Partners:
    """A column in the earliest group for each row, until one has none."""
    partners: Partners = []
    for group in groups:
        length = rows_of_block(rows, len(partners), group)
        partners += _paired(rows[len(partners) : len(partners) + length], group, counting)
    return [*partners, *[None] * (len(rows) - len(partners))]


def _best_in_blocks(rows: Sequence[int], groups: Sequence[int], counting: int) -> Partners:
    """The same, group by group: which rows are done after each, and what the pairs weigh at most."""
    best: dict[int, int] = {0: 0}
    steps: list[dict[int, int]] = []
    for group in groups:
        following, came = dict(best), {at: at for at in best}
        for at, pairs in best.items():
            for end, more in _covered(rows, at, group, counting):
                if pairs + more > following.get(end, -1):
                    following[end], came[end] = pairs + more, at
        best = following
        steps.append(came)
    end = max(best, key=lambda each: (best[each], -each))
    partners: Partners = [None] * len(rows)
    for group, came in zip(reversed(groups), reversed(steps), strict=True):
        begin = came[end]
        for row, column in enumerate(_paired(rows[begin:end], group, counting), begin):
            partners[row] = column
        end = begin
    return partners


def _covered(rows: Sequence[int], at: int, group: int, counting: int) -> list[tuple[int, int]]:
    """After which rows, from `at` on, what their pairs with the group weigh: where there is one more.

    Of as many pairs those are better that are with columns that count.
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


def _paired(rows: Sequence[int], group: int, counting: int) -> Partners:
    matching = Matching([row & group for row in rows])
    for row in range(len(rows)):
        matching.add(row)
    matching.prefer(counting & group)
    return matching.of_row
