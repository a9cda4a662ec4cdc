"""Maximum bipartite matching, so that no expectation takes a call that another one needs; and in order."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

_MOST_CELLS = 1_000_000
"""Beyond this many comparisons the order is followed as it comes, not at its best."""


def maximum_matching(
    edges: Sequence[Sequence[int]], right_size: int, begin: Sequence[int | None] | None = None
) -> list[int | None]:
    """For each left node its right partner, or None, with as many pairs as any assignment has.

    Args:
        edges: for each left node the right nodes it may be paired with.
        right_size: number of right nodes.
        begin: pairs to begin with, in the form of the result: who has a partner there has one in the end.

    Each left node in turn is given a partner along a shortest augmenting path.
    """
    partner_of_right: list[int | None] = [None] * right_size
    partner_of_left: list[int | None] = list(begin or [None] * len(edges))
    for left, right in enumerate(partner_of_left):
        if right is not None:
            partner_of_right[right] = left
    for left in range(len(edges)):
        if partner_of_left[left] is None:
            _augment(left, edges, partner_of_left, partner_of_right)
    return partner_of_left


def longest_in_order(matches: Sequence[Sequence[bool | None]], right_size: int) -> list[int | None]:
    """For each left node its right partner, or None, in rising order, with as many pairs as that allows.

    Args:
        matches: for each left node which of the right nodes it may be paired with.
        right_size: number of right nodes.
    """
    early = _earliest(matches, right_size)
    if None not in early or len(matches) * right_size > _MOST_CELLS:
        return early
    lengths = _lengths(matches, right_size)
    partners: list[int | None] = [None] * len(matches)
    left = right = 0
    while left < len(matches) and right < right_size:
        rest = lengths[left][right]
        if matches[left][right] and rest == 1 + lengths[left + 1][right + 1]:
            partners[left] = right
            left, right = left + 1, right + 1
        elif lengths[left][right + 1] == rest:
            right += 1
        else:
            left += 1
    return partners


def _earliest(matches: Sequence[Sequence[bool | None]], right_size: int) -> list[int | None]:
    """The earliest right node for each left one after that of the one before, until one has none."""
    partners: list[int | None] = [None] * len(matches)
    left = 0
    for right in range(right_size):
        if left < len(matches) and matches[left][right]:
            partners[left] = right
            left += 1
    return partners


def _lengths(matches: Sequence[Sequence[bool | None]], right_size: int) -> list[list[int]]:
    """How many pairs in order the left nodes from one on and the right nodes from one on have."""
    rows = [[0] * (right_size + 1)]
    for row in reversed(matches):
        below, here = rows[-1], [0] * (right_size + 1)
        for right in range(right_size - 1, -1, -1):
            pair = 1 + below[right + 1] if row[right] else 0
            here[right] = max(pair, below[right], here[right + 1])
        rows.append(here)
    rows.reverse()
    return rows


def longest_rise(values: Sequence[int]) -> set[int]:
    """The positions of a longest rising subsequence of different numbers, of several that of the first."""
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


def _augment(
    start: int,
    edges: Sequence[Sequence[int]],
    partner_of_left: list[int | None],
    partner_of_right: list[int | None],
) -> None:
    reached_from: dict[int, int] = {}
    queue = deque([start])
    while queue:
        left = queue.popleft()
        for right in edges[left]:
            if right in reached_from:
                continue
            reached_from[right] = left
            taken_by = partner_of_right[right]
            if taken_by is None:
                _flip(right, reached_from, partner_of_left, partner_of_right)
                return
            queue.append(taken_by)


def _flip(
    right: int,
    reached_from: dict[int, int],
    partner_of_left: list[int | None],
    partner_of_right: list[int | None],
) -> None:
    """Pair up along the path that leads to a free right node, undoing the pairs that stood in its way."""
    at: int | None = right
    while at is not None:
        left = reached_from[at]
        previous = partner_of_left[left]
        partner_of_left[left], partner_of_right[at] = at, left
        at = previous
