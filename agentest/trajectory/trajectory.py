"""Match actual tool calls against trajectories, and return the result with score and alignment.

No model is called. `match_trajectory` decides one trajectory; the async functions run it in a thread if
users' code is involved.
"""

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
from agentest.trajectory.alignment import align_calls
from agentest.trajectory.assessment import (
    Assessment,
    TrajectoryQuestion,
    assess,
    assess_all_cases,
    is_ordered,
)
from agentest.trajectory.candidates import VisibleTools, breakable_by_hidden_calls, meetable_by_hidden_calls
from agentest.trajectory.expected_text import expected_text, listed, slot_text, step_text
from agentest.trajectory.known_calls import ROUNDS_NOT_REPORTED, CallKnowledge
from agentest.trajectory.limits import broken_order
from agentest.trajectory.matching import Partners, best_in_order, bits
from agentest.trajectory.table import CallTable

_TIMEOUT_S = 60.0


async def match_all_trajectories(
    specs: Sequence[Trajectory],
    calls: Sequence[ToolCall],
    turns: int,
    *,
    complete: bool = True,
    blind: str | None = None,
    listed: VisibleTools = None,
    of_turn: bool = False,
) -> TrajectoryResult | None:
    """Return the combined result of several trajectories; None if nothing can be decided or there is none."""
    matched = partial(
        match_trajectory_in_time,
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
    return _combined(tuple(results))


def _combined(parts: tuple[TrajectoryResult, ...]) -> TrajectoryResult:
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


async def match_trajectory_in_time(
    spec: Trajectory,
    calls: Sequence[ToolCall],
    turns: int,
    *,
    complete: bool = True,
    blind: str | None = None,
    listed: VisibleTools = None,
    of_turn: bool = False,
    timeout_s: float = _TIMEOUT_S,
) -> TrajectoryResult | None:
    """Run `match_trajectory`, in a thread if users' functions or matchers decide, because these may hang.

    Args:
        timeout_s: time limit in seconds.
    """
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
    """Return True if no part of the trajectory can take long."""
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
    yield from _calls_in_orders(spec)


def _calls_in_orders(spec: Trajectory) -> Iterator[ExpectedCall]:
    return calls_in([step for order in spec.orders for step in (order.first, order.then)])


def match_trajectory(
    spec: Trajectory,
    calls: Sequence[ToolCall],
    turns: int,
    *,
    complete: bool = True,
    blind: str | None = None,
    listed: VisibleTools = None,
    of_turn: bool = False,
) -> TrajectoryResult | None:
    """Compare calls with a trajectory.

    What is unknown about a call (its arguments, its result, the answer of a function that raises) is decided
    for the trajectory, and against it. The result is certain only if both agree; else it has an `error`.

    Args:
        turns: number of turns, for `max_turns`.
        complete: False if something other than the agent cut the conversation short. Then only violations
            that no later call could correct count (forbidden calls, exceeded limits, broken orders); if there
            are none, the result is None.
        blind: why there may be hidden calls. Then visible calls can fail the trajectory by violations that no
            further call could correct; if they do not decide it, this is the result's `error`.
        listed: the tools whose calls are all visible even so.
        of_turn: True if the calls are those of one turn; a call that waits for approval belongs to a later
            turn.
    """
    if not complete:
        spec = replace(spec, expected=None)
    paths = None if spec.expected is None else paths_of(spec.expected)
    wanted = (*chain.from_iterable(chain.from_iterable(paths or ())), *_calls_in_orders(spec))
    seen = CallKnowledge.of(
        spec, wanted, calls, complete=complete, blind=bool(blind), listed=listed, of_turn=of_turn
    )
    question = TrajectoryQuestion(
        spec=spec, paths=paths, turns=turns, complete=complete, blind=bool(blind), listed=listed
    )
    return _Decision(question, seen, blind or "").result()


@dataclass(frozen=True, slots=True)
class _Decision:
    question: TrajectoryQuestion
    seen: CallKnowledge
    blind: str

    @property
    def spec(self) -> Trajectory:
        return self.question.spec

    def result(self) -> TrajectoryResult | None:
        best = assess(self.question, self.seen, best=True)
        if not best.holds:
            return self._certain_result(best)
        if not self.question.complete:
            return None
        if self.blind and self.spec.about_calls:
            return self._result_with_hidden_calls(best)
        worst = best if self.seen.certain else assess(self.question, self.seen, best=False)
        if worst.holds:
            return self._certain_result(worst)
        decided = assess_all_cases(self.question, self.seen)
        return (
            self._unknown_result() if decided is None else self._certain_result(self._with_reasons(decided))
        )

    def _with_reasons(self, found: Assessment) -> Assessment:
        """Add the reasons for unknowns to the rows of a failed trajectory."""
        if found.holds or not found.table:
            return found
        whys = CallTable.of(found.table.slots, self.seen, best=True).whys
        return replace(found, table=replace(found.table, whys=whys))

    def _certain_result(self, found: Assessment) -> TrajectoryResult:
        calls = self.seen.calls
        return TrajectoryResult(
            matched=found.holds,
            summary=self._summary(found),
            **self._comparison_fields(found),
            missing_calls=found.found.missing,
            extra_calls=found.found.extra,
            ordering_issues=found.found.ordering,
            forbidden_calls=found.bounds.forbidden,
            broken=found.bounds.broken,
            without_calls=found.holds and not calls and self.spec.about_calls,
            score=self._score(found),
        )

    def _summary(self, found: Assessment) -> str:
        if found.holds:
            return _passed_summary(self.spec, self.seen, self.question.turns)
        several = len(self.question.paths or ()) > 1 and found.found.problems and found.table
        nearest = (
            [f"the nearest of {len(self.question.paths or ())} ways: {_path_text(found.table)}"]
            if several
            else []
        )
        return "; ".join((*found.problems, *nearest))

    def _score(self, found: Assessment) -> TrajectoryScore | None:
        """Return the score, unless it depends on unknowns."""
        if not self.question.complete or self.blind or not self.spec.about_calls:
            return None
        score = score_of(self.spec, found)
        if not self.seen.certain:
            sides = [assess(self.question, self.seen, best=best) for best in (True, False)]
            if any(score_of(self.spec, side) != score for side in sides):
                return None
        return score

    def _result_with_hidden_calls(self, best: Assessment) -> TrajectoryResult | None:
        """Return the result if no hidden call can change it; else an undecided result."""
        listed = self.question.listed
        if listed is None:
            return self._hidden_result(best)
        if broken := tuple(breakable_by_hidden_calls(self.spec, listed)):
            return self._hidden_result(best, broken)
        sighted = _Decision(replace(self.question, blind=False), self.seen, "")
        met = tuple(meetable_by_hidden_calls(self.spec, listed))
        if not met or assess(sighted.question, self.seen, best=False).holds:
            return sighted.result()
        return self._hidden_result(best, met)

    def _hidden_result(self, best: Assessment, what: Sequence[str] = ()) -> TrajectoryResult:
        """Return an undecided result: visible calls do not fail it, but hidden calls may.

        Args:
            what: the requirements that hidden calls could affect.
        """
        more = " (those that were seen all the same may not be all)" if self.seen.calls else ""
        open_demands = f". Not known: {'; '.join(what)}" if what else ""
        why = self.blind + more + open_demands
        return TrajectoryResult(matched=False, summary=why, error=why, **self._comparison_fields(best))

    def _unknown_result(self) -> TrajectoryResult:
        """Return an undecided result that depends on unknowns."""
        fine = assess(self.question, self.seen, best=True, groups=self.seen.fine)
        rounds = (
            [ROUNDS_NOT_REPORTED]
            if self.seen.fine != self.seen.coarse and not self._order_holds(fine)
            else []
        )
        error = "; ".join([*self.seen.undecided, *rounds]) or ROUNDS_NOT_REPORTED
        return replace(
            _undecided(error, self.spec, self.seen.calls), **self._comparison_fields(fine, undecided=True)
        )

    def _order_holds(self, fine: Assessment) -> bool:
        """Return True if the order of calls is correct in every case, apart from other unknowns."""
        return not fine.found.problems and not any(
            broken_order(order, self.seen, best=True, groups=groups)
            for order in self.spec.orders
            for groups in (self.seen.fine, self.seen.coarse)
        )

    def _comparison_fields(self, found: Assessment, *, undecided: bool = False) -> dict[str, Any]:
        """Return expected and actual calls with the alignment, as fields of a `TrajectoryResult`."""
        if not self.spec.about_calls or (self.blind and not self.seen.calls):  # hidden calls may exist
            return {}
        rows, more = align_calls(
            self.spec,
            found,
            self.seen,
            blind=bool(self.blind),
            listed=self.question.listed,
            undecided=undecided,
        )
        return {**_call_fields(self.spec, self.seen.calls), "alignment": rows, "alignment_more": more}


def _path_text(table: CallTable | None) -> str:
    return listed(map(slot_text, table.slots)) if table else ""


def _undecided(error: str, spec: Trajectory, calls: Sequence[ToolCall]) -> TrajectoryResult:
    summary = f"could not be told: {error}"
    return TrajectoryResult(matched=False, summary=summary, error=error, **_call_fields(spec, calls))


def _passed_summary(spec: Trajectory, seen: CallKnowledge, turns: int) -> str:
    if not spec.about_calls:
        return f"{turns} turn{'' if turns == 1 else 's'}, as expected"
    mode = "" if spec.expected is None else f" ({spec.match_mode})"
    return f"{len(seen.calls)} tool call{'' if len(seen.calls) == 1 else 's'}, as expected{mode}"


def _call_fields(spec: Trajectory, calls: Sequence[ToolCall]) -> Mapping[str, Any]:
    """Return expected, forbidden and actual calls as text, as fields of a `TrajectoryResult`."""
    return {
        "mode": None if spec.expected is None else spec.match_mode,
        "expected": None if spec.expected is None else listed(map(step_text, spec.expected)),
        "forbidden": listed(map(expected_text, spec.forbidden)) if spec.forbidden else None,
        "actual": listed(map(call_text, calls)),
    }


def score_of(spec: Trajectory, found: Assessment) -> TrajectoryScore:
    """Return the score of an assessment.

    Requirements are each expected call (in its place if the mode has an order), each forbidden entry, each
    limit and each order. If the trajectory holds, all are met. Extra calls only lower the precision.
    """
    demands, unmet = found.bounds.demands, found.bounds.unmet
    if found.table is None:
        return TrajectoryScore(met=_fraction(demands - unmet, demands), precision=1.0, recall=1.0)
    if spec.match_mode == "within":
        return _score_within(spec, found.table, demands, unmet)
    table, rows = found.table, len(found.table.rows)
    taken = {call for call in _partners(spec, found, table) if call is not None}
    return TrajectoryScore(
        met=_fraction(len(taken) + demands - unmet, rows + demands),
        precision=_fraction(len(taken), len({*taken, *bits(table.counting)})),
        recall=_fraction(len(taken), rows),
    )


def _partners(spec: Trajectory, found: Assessment, table: CallTable) -> Partners:
    """Return the calls that match expected ones; if the order is broken, only calls in order."""
    if is_ordered(spec.match_mode) and found.found.problems:
        return best_in_order(table.rows, table.groups, table.counting)
    return table.partners()


def _score_within(spec: Trajectory, table: CallTable, demands: int, unmet: int) -> TrajectoryScore:
    """Return the score for `within`, where each call that counts must be allowed and none is required."""
    again = len(table.beyond_their_own()) if spec.at_most_once else 0
    count = table.counting.bit_count()
    allowed = (table.counting & table.found).bit_count() - again
    made = sum(call is not None for call in table.partners())
    return TrajectoryScore(
        met=_fraction(allowed + demands - unmet, count + demands),
        precision=_fraction(allowed, count),
        recall=_fraction(made, len(table.rows)),
    )


def _fraction(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
