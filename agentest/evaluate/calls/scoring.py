"""Partial credit: how much of a trajectory was met."""

from __future__ import annotations

from agentest.evaluate.calls.judged import Judged
from agentest.evaluate.calls.matching import bits
from agentest.evaluate.calls.modes import is_closed, is_ordered
from agentest.evaluate.calls.rounds import best_in_order
from agentest.evaluate.calls.table import CallTable
from agentest.results import TrajectoryScore
from agentest.scenarios.trajectories import Trajectory


def score_of(spec: Trajectory, found: Judged) -> TrajectoryScore:
    """The score of what was found.

    Demands are each expected call, each forbidden entry, each limit and each order; in the modes that allow
    no other calls also each call that is one too many. So all are met if and only if the trajectory holds.
    """
    demands, unmet = found.bounds.demands, found.bounds.unmet
    if found.table is None:
        return TrajectoryScore(met=_share(demands - unmet, demands), precision=1.0, recall=1.0)
    if spec.match_mode == "within":
        return _of_allowed(spec, found.table, demands, unmet)
    table, rows = found.table, len(found.table.rows)
    partners = table.partners()
    taken = {call for call in partners if call is not None}
    extra = sum(call not in taken for call in bits(table.counting)) if is_closed(spec.match_mode) else 0
    if is_ordered(spec.match_mode):
        partners = best_in_order(table.rows, table.groups, table.counting)
        if found.found.problems:
            taken = {call for call in partners if call is not None}
        if is_closed(
            spec.match_mode
        ):  # a call at another place is none too many, as its expected call misses it
            uncovered = sum(call not in taken for call in bits(table.counting))
            extra = max(extra, uncovered - (rows - len(taken)))
    if spec.at_most_once and not is_closed(spec.match_mode):
        demands, unmet = demands + 1, unmet + bool(table.beyond_their_own())
    looked_at = len({*taken, *bits(table.counting)})
    return TrajectoryScore(
        met=_share(len(taken) + demands - unmet, rows + extra + demands),
        precision=_share(len(taken), looked_at),
        recall=_share(len(taken), rows),
    )


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
