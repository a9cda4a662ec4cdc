"""Partial credit: how much of a trajectory was met."""

from __future__ import annotations

from agentest.domain.results import TrajectoryScore
from agentest.scenarios.trajectory import Trajectory
from agentest.trajectory.judged import Judged
from agentest.trajectory.matching import Partners, bits
from agentest.trajectory.modes import is_ordered
from agentest.trajectory.rounds import best_in_order
from agentest.trajectory.table import CallTable


def score_of(spec: Trajectory, found: Judged) -> TrajectoryScore:
    """The score of what was found.

    Demands are each expected call, at its place where the mode has an order, each forbidden entry, each limit
    and each order. All are met where the trajectory holds. Calls too many are no demand: precision tells.
    """
    demands, unmet = found.bounds.demands, found.bounds.unmet
    if found.table is None:
        return TrajectoryScore(met=_share(demands - unmet, demands), precision=1.0, recall=1.0)
    if spec.match_mode == "within":
        return _of_allowed(spec, found.table, demands, unmet)
    table, rows = found.table, len(found.table.rows)
    taken = {call for call in _partners(spec, found, table) if call is not None}
    return TrajectoryScore(
        met=_share(len(taken) + demands - unmet, rows + demands),
        precision=_share(len(taken), len({*taken, *bits(table.counting)})),
        recall=_share(len(taken), rows),
    )


def _partners(spec: Trajectory, found: Judged, table: CallTable) -> Partners:
    """The calls that meet the expected ones; where an order is broken, those that are in order."""
    if is_ordered(spec.match_mode) and found.found.problems:
        return best_in_order(table.rows, table.groups, table.counting)
    return table.partners()


def _of_allowed(spec: Trajectory, table: CallTable, demands: int, unmet: int) -> TrajectoryScore:
    """Where calls need not be made, each that counts demands to be among the allowed."""
    again = len(table.beyond_their_own()) if spec.at_most_once else 0
    count = table.counting.bit_count()
    allowed = (table.counting & table.found).bit_count() - again
    made = sum(call is not None for call in table.partners())
    return TrajectoryScore(
        met=_share(allowed + demands - unmet, count + demands),
        precision=_share(allowed, count),
        recall=_share(made, len(table.rows)),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
