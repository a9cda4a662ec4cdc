"""Maximum bipartite matching, so that no expectation takes a call that another one needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


def maximum_matching(edges: Sequence[Sequence[int]], right_size: int) -> list[int | None]:
    """For each left node its right partner, or None, with as many pairs as any assignment has.

    Args:
        edges: for each left node the right nodes it may be paired with.
        right_size: number of right nodes.

    Each left node in turn is given a partner along a shortest augmenting path.
    """
    partner_of_right: list[int | None] = [None] * right_size
    partner_of_left: list[int | None] = [None] * len(edges)
    for left in range(len(edges)):
        _augment(left, edges, partner_of_left, partner_of_right)
    return partner_of_left


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
