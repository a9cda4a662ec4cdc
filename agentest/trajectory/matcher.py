"""Match actual tool calls against a trajectory, and return the result with score and alignment.

No model is called. `TrajectoryMatcher.match` decides one trajectory in three steps: `CallFacts` has what is
known about the calls, `assess` compares them with the path that fits best, and `align_calls` shows the result
call by call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, product
from typing import Any, overload

from agentest.domain.results import TrajectoryResult, TrajectoryScore
from agentest.domain.transcript import ToolCall, call_text
from agentest.scenarios.matchers.comparison import is_plain
from agentest.scenarios.trajectory import ANYTHING, ExpectedCall, Path, Trajectory, calls_in, paths_of
from agentest.support.calling import FunctionTimeout, result_of
from agentest.support.deadlines import FUNCTION_S, TimeLimit
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.trajectory.alignment import align_calls
from agentest.trajectory.call_facts import (
    NO_CALLS,
    ROUNDS_NOT_REPORTED,
    CallFacts,
    CallView,
    expected_text,
    listed,
    slot_text,
    step_text,
)
from agentest.trajectory.differences import (
    Assessment,
    Assignment,
    CallDifferences,
    breakable_by_hidden_calls,
    broken_order,
    check_limits,
    compare_calls,
    failed_options,
    may_hold,
    meetable_by_hidden_calls,
    min_differences,
)
from agentest.trajectory.matching import best_in_order, bits

ALL_CALLS = CallView()
_MOST_NEAR = 20  # number of paths among which the nearest is searched; fewer if they are long
_MOST_COMBINATIONS = 64
_MOST_CELLS = 400_000
"""Pairs of expected and actual calls to compare in a search for the nearest path, or in all combinations of
answers together."""


@dataclass(frozen=True, slots=True)
class TrajectoryMatcher:
    """Matches tool calls against one trajectory.

        matcher = TrajectoryMatcher.of({"match_mode": "unordered", "expected": ["get_order", "refund"]})
        result = matcher.match(conversation.tool_calls)
        assert result.matched, result.summary

    What is unknown about a call (its arguments, its result, the answer of a function that raises) is decided
    for the trajectory, and against it. The result is certain only if both agree; else it has an `error`.
    """

    trajectory: Trajectory

    @classmethod
    def of(cls, trajectory: Any) -> TrajectoryMatcher:
        """Return a matcher for a trajectory as a scenario has it. Raises ValueError."""
        from agentest.scenarios.trajectory_parser import parse_trajectory

        return cls(parse_trajectory(trajectory))

    @overload
    def match(self, calls: Sequence[ToolCall], turns: int = 1) -> TrajectoryResult: ...

    @overload
    def match(self, calls: Sequence[ToolCall], turns: int, view: CallView) -> TrajectoryResult | None: ...

    def match(
        self, calls: Sequence[ToolCall], turns: int = 1, view: CallView = ALL_CALLS
    ) -> TrajectoryResult | None:
        """Compare calls, in the order in which they were made, with the trajectory.

        Args:
            turns: number of turns, for `max_turns`.
            view: what is known about the calls as a whole. If the conversation was cut short and nothing is
                violated yet, the result is None. If calls may be hidden, visible calls fail the trajectory
                only by violations that no further call could correct; else the result has an `error`.
        """
        spec = self.trajectory if view.complete else replace(self.trajectory, expected=None)
        if not calls and _holds_without_calls(spec, turns, view):
            return _without_calls(spec, turns)
        paths = None if spec.expected is None else paths_of(spec.expected)
        expected = (*chain.from_iterable(chain.from_iterable(paths or ())), *_calls_in_orders(spec))
        facts = CallFacts.of(spec, expected, calls, view)
        return _Decision(spec, paths, turns, view, facts).result()

    async def match_in_time(
        self,
        calls: Sequence[ToolCall],
        turns: int = 1,
        view: CallView = ALL_CALLS,
        timeout_s: float = FUNCTION_S,
    ) -> TrajectoryResult | None:
        """Run `match`, in a thread if users' functions or matchers decide, because these may hang."""
        if not calls or self._is_plain():
            return self.match(calls, turns, view)
        limit = TimeLimit(timeout_s)
        try:
            result: TrajectoryResult | None = await result_of(
                partial(self.match, calls, turns, view), limit=limit, source=self.trajectory
            )
        except FunctionTimeout as error:
            return _undecided(f"a function of it {error}", self.trajectory, calls)
        return result

    def _is_plain(self) -> bool:
        spec = self.trajectory
        expected = chain(calls_in(spec.expected or ()), spec.forbidden, _calls_in_orders(spec))
        return all(isinstance(name, str) for name in spec.reads) and all(
            isinstance(each.name, str)
            and each.where is None
            and is_plain(each.args)
            and (each.result is ANYTHING or is_plain(each.result))
            for each in expected
        )


async def match_all_trajectories(
    specs: Sequence[Trajectory], calls: Sequence[ToolCall], turns: int, view: CallView
) -> TrajectoryResult | None:
    """Return the combined result of several trajectories; None if nothing can be decided or there is none."""
    results = [
        replace(result, name=spec.name)
        for spec in specs
        if (result := await TrajectoryMatcher(spec).match_in_time(calls, turns, view))
    ]
    if len(results) <= 1:
        return results[0] if results else None
    parts = tuple(results)
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
    return tuple(chain.from_iterable(texts))


def _holds_without_calls(spec: Trajectory, turns: int, view: CallView) -> bool:
    wants_calls = bool(spec.expected or spec.orders or spec.min_calls)
    in_time = spec.max_turns is None or turns <= spec.max_turns
    return not wants_calls and in_time and view.complete and not view.blind


def _without_calls(spec: Trajectory, turns: int) -> TrajectoryResult:
    """Return the result of a trajectory that holds because nothing was called: the usual case, made fast."""
    summary, about_calls = _passed_summary(spec, 0, turns), spec.about_calls
    if not about_calls:
        return TrajectoryResult(matched=True, summary=summary)
    score = TrajectoryScore(met=1.0, precision=1.0, recall=1.0)
    return TrajectoryResult(
        matched=True,
        summary=summary,
        without_calls=True,
        score=score,
        mode=None if spec.expected is None else spec.match_mode,
        expected=None if spec.expected is None else NO_CALLS,
        forbidden=listed(map(expected_text, spec.forbidden)) if spec.forbidden else None,
        actual=NO_CALLS,
    )


def _calls_in_orders(spec: Trajectory) -> Iterator[ExpectedCall]:
    return calls_in([step for order in spec.orders for step in (order.first, order.then)])


@dataclass(frozen=True, slots=True)
class _Decision:
    spec: Trajectory
    paths: tuple[Path, ...] | None  # the alternative sequences of expected calls; None: no calls are expected
    turns: int
    view: CallView
    facts: CallFacts

    def result(self) -> TrajectoryResult | None:
        best = self._assess(best=True)
        if not best.holds:
            return self._certain_result(best)
        if not self.view.complete:
            return None
        if self.view.blind and self.spec.about_calls:
            return self._result_with_hidden_calls(best)
        worst = best if self.facts.certain else self._assess(best=False)
        if worst.holds:
            return self._certain_result(worst)
        decided = self._assess_all_cases()
        if not decided:
            return self._unknown_result()
        return self._certain_result(decided)

    def _assess(self, *, best: bool, groups: tuple[int, ...] = ()) -> Assessment:
        """Assess each requirement separately.

        With `best`, unknowns are decided in favor of the requirement, so that a failure is certain; without
        it, they are decided against it, so that a pass is certain.
        """
        assignment, calls = self._nearest_path(best=best, groups=groups)
        limits = check_limits(self.spec, self.facts, self.turns, self.view, best=best)
        hints = failed_options(assignment, self.facts) if assignment and calls.size else ()
        return Assessment(assignment=assignment, calls=calls, limits=limits, hints=hints)

    def _nearest_path(
        self, *, best: bool, groups: tuple[int, ...]
    ) -> tuple[Assignment | None, CallDifferences]:
        if self.paths is None:
            return None, CallDifferences()
        spec, blind = self.spec, self.view.blind
        wrong: list[tuple[int, int, Assignment]] = []
        for at, path in enumerate(self.paths):
            assignment = Assignment.of(path, self.facts, best=best, groups=groups)
            least = 0 if blind else min_differences(spec, assignment)
            able = blind or (not least and may_hold(spec, assignment))
            if able and not (differences := compare_calls(spec, assignment, self.view)).size:
                return assignment, differences
            wrong.append((least, at, assignment))
        cells = 1 + len(self.facts.calls) * max(map(len, self.paths), default=0)
        near = sorted(wrong, key=lambda each: each[:2])[: max(1, min(_MOST_NEAR, _MOST_CELLS // cells))]
        pairs = [(assignment, compare_calls(spec, assignment, self.view)) for _, _, assignment in near]
        return min(pairs, key=lambda pair: pair[1].size)

    def _assess_all_cases(self) -> Assessment | None:
        """Return the assessment if all combinations of unknowns agree, else None.

        Requirements may need opposite answers, and one path may hold where another does not, so no single
        combination is the best. If few things are unknown, all combinations are tried.
        """
        nearest: Assessment | None = None
        for case in self._combinations():
            best = case._assess(best=True)
            if nearest and best.holds is not nearest.holds:
                return None
            if best.holds and not case._assess(best=False).holds:
                return None
            nearest = best if nearest is None or len(best.problems) < len(nearest.problems) else nearest
        return nearest

    def _combinations(self) -> Iterator[_Decision]:
        facts = self.facts
        unknown = [*facts.open_cells, *bits(facts.free.maybe | facts.failures.maybe)]
        count = 1 << min(len(unknown), 30)
        cells = count * sum(map(len, self.paths or ())) * len(facts.calls)
        # Calls that are counted by tool need a tool.
        counted = (each for each in (*facts.expected.values(), *facts.forbidden.values()) if each.nth)
        named = not any(facts.named[id(each)].maybe for each in counted)
        if count <= _MOST_COMBINATIONS and cells <= _MOST_CELLS and named:
            for answers in product((True, False), repeat=len(unknown)):
                yield replace(self, facts=facts.decided(dict(zip(unknown, answers, strict=True))))

    def _certain_result(self, assessment: Assessment) -> TrajectoryResult:
        summary = _passed_summary(self.spec, len(self.facts.calls), self.turns)
        if not assessment.holds:
            problems = list(assessment.problems)
            if len(self.paths or ()) > 1 and assessment.calls.size and assessment.assignment:
                path = listed(map(slot_text, assessment.assignment.slots))
                problems.append(f"the nearest of {len(self.paths or ())} ways: {path}")
            summary = "; ".join(problems)
        return TrajectoryResult(
            matched=assessment.holds,
            summary=summary,
            **self._comparison_fields(assessment),
            missing_calls=assessment.calls.missing,
            extra_calls=assessment.calls.extra,
            ordering_issues=assessment.calls.ordering + assessment.calls.rounds,
            forbidden_calls=assessment.limits.forbidden,
            broken=assessment.limits.broken,
            without_calls=assessment.holds and not self.facts.calls and self.spec.about_calls,
            score=self._score(assessment),
        )

    def _score(self, assessment: Assessment) -> TrajectoryScore | None:
        if not self.view.complete or self.view.blind or not self.spec.about_calls:
            return None
        score = score_of(self.spec, assessment)
        if not self.facts.certain:
            sides = (score_of(self.spec, self._assess(best=best)) for best in (True, False))
            if any(side != score for side in sides):
                return None
        return score

    def _result_with_hidden_calls(self, best: Assessment) -> TrajectoryResult | None:
        if self.view.listed is None:
            return self._hidden_result(best)
        if broken := tuple(breakable_by_hidden_calls(self.spec, self.view)):
            return self._hidden_result(best, broken)
        seeing_all = replace(self, view=replace(self.view, blind=None))
        met = tuple(meetable_by_hidden_calls(self.spec, self.view))
        if not met or seeing_all._assess(best=False).holds:
            return seeing_all.result()
        return self._hidden_result(best, met)

    def _hidden_result(self, best: Assessment, what: Sequence[str] = ()) -> TrajectoryResult:
        """Return an undecided result, because hidden calls may change it. `what`: what they could affect."""
        more = " (those that were seen all the same may not be all)" if self.facts.calls else ""
        why = f"{self.view.blind}{more}" + (f". Not known: {'; '.join(what)}" if what else "")
        return TrajectoryResult(matched=False, summary=why, error=why, **self._comparison_fields(best))

    def _unknown_result(self) -> TrajectoryResult:
        facts = self.facts
        fine = self._assess(best=True, groups=facts.fine)
        reasons = list(dict.fromkeys(why for _, why in facts.doubts()))
        if not reasons or (facts.fine != facts.coarse and not self._order_holds(fine)):
            reasons.append(ROUNDS_NOT_REPORTED)
        result = _undecided("; ".join(reasons), self.spec, facts.calls)
        return replace(result, **self._comparison_fields(fine, undecided=True))

    def _order_holds(self, fine: Assessment) -> bool:
        return not fine.calls.size and not any(
            broken_order(order, self.facts, best=True, groups=groups)
            for order in self.spec.orders
            for groups in (self.facts.fine, self.facts.coarse)
        )

    def _comparison_fields(self, assessment: Assessment, *, undecided: bool = False) -> dict[str, Any]:
        calls = self.facts.calls
        if not self.spec.about_calls or (self.view.blind and not calls):  # hidden calls may exist
            return {}
        rows, more = align_calls(self.spec, assessment, self.facts, self.view, undecided=undecided)
        return {**_call_fields(self.spec, calls), "alignment": rows, "alignment_more": more}


def _undecided(error: str, spec: Trajectory, calls: Sequence[ToolCall]) -> TrajectoryResult:
    summary = f"could not be decided: {error}"
    return TrajectoryResult(matched=False, summary=summary, error=error, **_call_fields(spec, calls))


def _passed_summary(spec: Trajectory, calls: int, turns: int) -> str:
    if not spec.about_calls:
        return f"{turns} turn{'' if turns == 1 else 's'}, as expected"
    mode = "" if spec.expected is None else f" ({spec.match_mode})"
    return f"{calls} tool call{'' if calls == 1 else 's'}, as expected{mode}"


def _call_fields(spec: Trajectory, calls: Sequence[ToolCall]) -> Mapping[str, Any]:
    return {
        "mode": None if spec.expected is None else spec.match_mode,
        "expected": None if spec.expected is None else listed(map(step_text, spec.expected)),
        "forbidden": listed(map(expected_text, spec.forbidden)) if spec.forbidden else None,
        "actual": listed(map(call_text, calls)),
    }


def score_of(spec: Trajectory, assessment: Assessment) -> TrajectoryScore:
    """Return the score of an assessment.

    Requirements are each expected call (in its place if the mode has an order), each forbidden entry, each
    limit and each order. If the trajectory holds, all are met. Extra calls only lower the precision. With
    `within`, each call that counts must be allowed, and none is required.
    """
    assignment, others = assessment.assignment, assessment.limits.requirements
    met = others - assessment.limits.unmet
    if assignment is None:
        return TrajectoryScore(met=_fraction(met, others), precision=1.0, recall=1.0)
    partners = assignment.partners()
    if spec.is_ordered and assessment.calls.size:  # only calls in order meet a requirement
        partners = best_in_order(assignment.rows, assignment.groups, assignment.counting)
    paired = {call for call in partners if call is not None}
    expected, counting = len(assignment.rows), assignment.counting
    recall = _fraction(len(paired), expected)
    if spec.match_mode == "within":
        again = len(assignment.repeated()) if spec.at_most_once else 0
        good = (counting & assignment.matched).bit_count() - again
        required = made = counting.bit_count()
    else:
        good, required, made = len(paired), expected, len({*paired, *bits(counting)})
    return TrajectoryScore(
        met=_fraction(good + met, required + others), precision=_fraction(good, made), recall=recall
    )


def _fraction(part: int, total: int) -> float:
    return part / total if total else 1.0
