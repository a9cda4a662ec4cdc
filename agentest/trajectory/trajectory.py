"""Tool calls made against tool calls expected. No model is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from agentest.domain.results import TrajectoryResult, TrajectoryScore
from agentest.domain.transcript import ToolCall, call_text
from agentest.scenarios.calls import ANYTHING, ExpectedCall
from agentest.scenarios.matchers.comparison import is_plain
from agentest.scenarios.trajectory import Trajectory, calls_in, paths_of
from agentest.support.calling import result_of
from agentest.support.deadlines import TimeLimit
from agentest.support.replacing import replace
from agentest.trajectory.alignment import aligned
from agentest.trajectory.assessment import Judged, Question, is_ordered, judged, whatever_is_so
from agentest.trajectory.candidates import Listed, broken_unseen, met_unseen
from agentest.trajectory.expected_text import expected_text, listed, slot_text, step_text
from agentest.trajectory.known_calls import ROUNDS_UNTOLD, Sightings
from agentest.trajectory.limits import broken_order
from agentest.trajectory.matching import Partners, best_in_order, bits
from agentest.trajectory.table import CallTable

_TIMEOUT_S = 60.0


async def matched_trajectories(
    specs: Sequence[Trajectory],
    calls: Sequence[ToolCall],
    turns: int,
    *,
    complete: bool = True,
    blind: str | None = None,
    listed: Listed = None,
    of_turn: bool = False,
) -> TrajectoryResult | None:
    """The result of all of several trajectories; None where nothing can be said, or there is none."""
    matched = partial(
        matched_trajectory,
        calls=calls,
        turns=turns,
        complete=complete,
        blind=blind,
        listed=listed,
        of_turn=of_turn,
    )
    results = [replace(result, name=spec.name) for spec in specs if (result := await matched(spec))]
    if len(results) <= 1:
        return results[0] if results else None
    return _all_of(tuple(results))


def _all_of(parts: tuple[TrajectoryResult, ...]) -> TrajectoryResult:
    wrong = [part for part in parts if not part.matched] or parts
    failed = any(not part.matched and not part.error for part in parts)
    return TrajectoryResult(
        matched=all(part.matched for part in parts),
        summary="; ".join(f"{part.name}: {part.summary}" if part.name else part.summary for part in wrong),
        missing_calls=_joined(part.missing_calls for part in parts),
        extra_calls=_joined(part.extra_calls for part in parts),
        ordering_issues=_joined(part.ordering_issues for part in parts),
        forbidden_calls=_joined(part.forbidden_calls for part in parts),
        broken=_joined(part.broken for part in parts),
        error=None if failed else "; ".join(part.error for part in parts if part.error) or None,
        without_calls=any(part.without_calls for part in parts),
        parts=parts,
    )


def _joined(texts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(each for several in texts for each in several)


async def matched_trajectory(
    spec: Trajectory,
    calls: Sequence[ToolCall],
    turns: int,
    *,
    complete: bool = True,
    blind: str | None = None,
    listed: Listed = None,
    of_turn: bool = False,
    timeout_s: float = _TIMEOUT_S,
) -> TrajectoryResult | None:
    """`match_trajectory`, in a thread where functions and matchers of the user decide: they may hang."""
    match = partial(
        match_trajectory,
        spec,
        calls,
        turns,
        complete=complete,
        blind=blind,
        listed=listed,
        of_turn=of_turn,
    )
    if _is_plain(spec):
        return match()
    limit = TimeLimit(timeout_s)
    try:
        result: TrajectoryResult | None = await result_of(match, limit=limit)
    except TimeoutError:
        error = f"its functions gave no answer within {timeout_s:g} s"
        return _undecided(error, spec, calls)
    return result


def _is_plain(spec: Trajectory) -> bool:
    """Whether nothing that it says may take long."""
    if not all(isinstance(name, str) for name in spec.reads):
        return False
    return all(
        isinstance(each.name, str)
        and each.where is None
        and is_plain(each.args)
        and (each.result is ANYTHING or is_plain(each.result))
        for each in _all_calls(spec)
    )


def _all_calls(spec: Trajectory) -> Iterator[ExpectedCall]:
    yield from calls_in(spec.expected or ())
    yield from spec.forbidden
    yield from _of_orders(spec)


def _of_orders(spec: Trajectory) -> Iterator[ExpectedCall]:
    return calls_in([step for order in spec.orders for step in (order.first, order.then)])


def match_trajectory(
    spec: Trajectory,
    calls: Sequence[ToolCall],
    turns: int,
    *,
    complete: bool = True,
    blind: str | None = None,
    listed: Listed = None,
    of_turn: bool = False,
) -> TrajectoryResult | None:
    """Whether the calls are as the trajectory says.

    What cannot be known of a call (its arguments, its result, what a function says that raises) is taken
    for what the trajectory wants, and for the opposite: only what is so both ways is told, else there is an
    `error`.

    Args:
        turns: number of turns, for `max_turns`.
        complete: False when something other than the agent cut the conversation short. Then only what no
            later call could mend counts (forbidden calls, exceeded limits, broken orders); None: nothing can
            be said.
        blind: why there may be calls that nobody saw. Then those that were seen can let the trajectory fail,
            by what no further call could mend; what they cannot decide is told by this `error`.
        listed: the tools whose every call was seen all the same.
        of_turn: whether they are the calls of one turn: one that waits for approval belongs to a later turn.
    """
    if not complete:
        spec = replace(spec, expected=None)
    paths = None if spec.expected is None else paths_of(spec.expected)
    wanted = (*chain.from_iterable(chain.from_iterable(paths or ())), *_of_orders(spec))
    seen = Sightings.of(
        spec, wanted, calls, complete=complete, blind=bool(blind), listed=listed, of_turn=of_turn
    )
    question = Question(
        spec=spec, paths=paths, turns=turns, complete=complete, blind=bool(blind), listed=listed
    )
    return _Answer(question, seen, blind or "").result()


@dataclass(frozen=True, slots=True)
class _Answer:
    question: Question
    seen: Sightings
    blind: str

    @property
    def spec(self) -> Trajectory:
        return self.question.spec

    def result(self) -> TrajectoryResult | None:
        best = judged(self.question, self.seen, best=True)
        if not best.holds:
            return self._told(best)
        if not self.question.complete:
            return None
        if self.blind and self.spec.about_calls:
            return self._in_spite_of_hidden(best)
        worst = best if self.seen.certain else judged(self.question, self.seen, best=False)
        if worst.holds:
            return self._told(worst)
        decided = whatever_is_so(self.question, self.seen)
        return self._untold() if decided is None else self._told(self._with_doubts(decided))

    def _with_doubts(self, found: Judged) -> Judged:
        """The same; a row that fails says what is not known of it."""
        if found.holds or not found.table:
            return found
        whys = CallTable.of(found.table.slots, self.seen, best=True).whys
        return replace(found, table=replace(found.table, whys=whys))

    def _told(self, found: Judged) -> TrajectoryResult:
        calls = self.seen.calls
        return TrajectoryResult(
            matched=found.holds,
            summary=self._summary(found),
            **self._beside(found),
            missing_calls=found.found.missing,
            extra_calls=found.found.extra,
            ordering_issues=found.found.ordering,
            forbidden_calls=found.bounds.forbidden,
            broken=found.bounds.broken,
            without_calls=found.holds and not calls and self.spec.about_calls,
            score=self._score(found),
        )

    def _summary(self, found: Judged) -> str:
        if found.holds:
            return _holds(self.spec, self.seen, self.question.turns)
        several = len(self.question.paths or ()) > 1 and found.found.problems and found.table
        nearest = (
            [f"the nearest of {len(self.question.paths or ())} ways: {_way(found.table)}"] if several else []
        )
        return "; ".join((*found.problems, *nearest))

    def _score(self, found: Judged) -> TrajectoryScore | None:
        """The score, where it does not hang on what is not known."""
        if not self.question.complete or self.blind or not self.spec.about_calls:
            return None
        score = score_of(self.spec, found)
        if not self.seen.certain:
            sides = [judged(self.question, self.seen, best=best) for best in (True, False)]
            if any(score_of(self.spec, side) != score for side in sides):
                return None
        return score

    def _in_spite_of_hidden(self, best: Judged) -> TrajectoryResult | None:
        """The result where no call that nobody saw can change it; else that this cannot be known."""
        listed = self.question.listed
        if listed is None:
            return self._hidden(best)
        if broken := tuple(broken_unseen(self.spec, listed)):
            return self._hidden(best, broken)
        sighted = _Answer(replace(self.question, blind=False), self.seen, "")
        met = tuple(met_unseen(self.spec, listed))
        if not met or judged(sighted.question, self.seen, best=False).holds:
            return sighted.result()
        return self._hidden(best, met)

    def _hidden(self, best: Judged, what: Sequence[str] = ()) -> TrajectoryResult:
        """What was seen does not let it fail, and what was not seen may.

        Args:
            what: what that could change.
        """
        more = " (those that were seen all the same may not be all)" if self.seen.calls else ""
        open_demands = f". Not known: {'; '.join(what)}" if what else ""
        why = self.blind + more + open_demands
        return TrajectoryResult(matched=False, summary=why, error=why, **self._beside(best))

    def _untold(self) -> TrajectoryResult:
        """It hangs on what is not known."""
        fine = judged(self.question, self.seen, best=True, groups=self.seen.fine)
        rounds = [ROUNDS_UNTOLD] if self.seen.fine != self.seen.coarse and not self._holds_by(fine) else []
        error = "; ".join([*self.seen.undecided, *rounds]) or ROUNDS_UNTOLD
        return replace(_undecided(error, self.spec, self.seen.calls), **self._beside(fine, undecided=True))

    def _holds_by(self, fine: Judged) -> bool:
        """Whether the order as the calls came would do, but for what else is not known."""
        return not fine.found.problems and not any(
            broken_order(order, self.seen, best=True, groups=groups)
            for order in self.spec.orders
            for groups in (self.seen.fine, self.seen.coarse)
        )

    def _beside(self, found: Judged, *, undecided: bool = False) -> dict[str, Any]:
        """The sides and the alignment for a `TrajectoryResult`."""
        if not self.spec.about_calls or (
            self.blind and not self.seen.calls
        ):  # nobody can say that there were none
            return {}
        rows, more = aligned(
            self.spec,
            found,
            self.seen,
            blind=bool(self.blind),
            listed=self.question.listed,
            undecided=undecided,
        )
        return {**_sides(self.spec, self.seen.calls), "alignment": rows, "alignment_more": more}


def _way(table: CallTable | None) -> str:
    return listed(map(slot_text, table.slots)) if table else ""


def _undecided(error: str, spec: Trajectory, calls: Sequence[ToolCall]) -> TrajectoryResult:
    summary = f"could not be told: {error}"
    return TrajectoryResult(matched=False, summary=summary, error=error, **_sides(spec, calls))


def _holds(spec: Trajectory, seen: Sightings, turns: int) -> str:
    if not spec.about_calls:
        return f"{turns} turn{'' if turns == 1 else 's'}, as expected"
    mode = "" if spec.expected is None else f" ({spec.match_mode})"
    return f"{len(seen.calls)} tool call{'' if len(seen.calls) == 1 else 's'}, as expected{mode}"


def _sides(spec: Trajectory, calls: Sequence[ToolCall]) -> Mapping[str, Any]:
    """What was expected, what is forbidden and what was called, as text, for a `TrajectoryResult`."""
    return {
        "mode": None if spec.expected is None else spec.match_mode,
        "expected": None if spec.expected is None else listed(map(step_text, spec.expected)),
        "forbidden": listed(map(expected_text, spec.forbidden)) if spec.forbidden else None,
        "actual": listed(map(call_text, calls)),
    }


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
