"""Tool calls made against tool calls expected. No model is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentest.evaluate.alignment import aligned, is_ordered
from agentest.evaluate.call_table import CallTable, expected_text
from agentest.matchers.comparison import is_plain
from agentest.results import TrajectoryResult
from agentest.scenarios.calls import ExpectedCall
from agentest.scenarios.trajectories import Trajectory
from agentest.support.calling import result_of
from agentest.support.deadlines import TimeLimit
from agentest.transcript import ToolCall, call_text

_SHOWN_CALLS = 20
_TIMEOUT_S = 60.0


async def matched_trajectories(
    specs: Sequence[Trajectory],
    calls: Sequence[ToolCall],
    turns: int,
    *,
    complete: bool = True,
    blind: str | None = None,
) -> TrajectoryResult | None:
    """The result of all of several trajectories; None where nothing can be said, or there is none."""
    results = [
        replace(result, name=spec.name)
        for spec in specs
        if (result := await matched_trajectory(spec, calls, turns, complete=complete, blind=blind))
    ]
    if len(results) <= 1:
        return results[0] if results else None
    return _all_of(tuple(results))


def _all_of(parts: tuple[TrajectoryResult, ...]) -> TrajectoryResult:
    wrong = [part for part in parts if not part.matched] or parts
    return TrajectoryResult(
        matched=all(part.matched for part in parts),
        summary="; ".join(f"{part.name}: {part.summary}" if part.name else part.summary for part in wrong),
        missing_calls=_joined(part.missing_calls for part in parts),
        extra_calls=_joined(part.extra_calls for part in parts),
        ordering_issues=_joined(part.ordering_issues for part in parts),
        forbidden_calls=_joined(part.forbidden_calls for part in parts),
        broken=_joined(part.broken for part in parts),
        error="; ".join(part.error for part in parts if part.error) or None,
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
    timeout_s: float = _TIMEOUT_S,
) -> TrajectoryResult | None:
    """`match_trajectory`, in a thread where functions and matchers of the user decide: they may hang."""
    match = partial(match_trajectory, spec, calls, turns, complete=complete, blind=blind)
    if all(is_plain(expected.args) for expected in (*_expected(spec), *spec.forbidden)):
        return match()
    limit = TimeLimit(timeout_s)
    try:
        result: TrajectoryResult | None = await result_of(match, limit=limit)
    except TimeoutError:
        error = f"its functions gave no answer within {timeout_s:g} s"
        return _undecided(error, spec, calls)
    return result


def match_trajectory(
    spec: Trajectory,
    calls: Sequence[ToolCall],
    turns: int,
    *,
    complete: bool = True,
    blind: str | None = None,
) -> TrajectoryResult | None:
    """Whether the calls are as the trajectory says.

    Args:
        turns: number of turns, for `max_turns`.
        complete: False when something other than the agent cut the conversation short. Then only what no
            later call could mend counts (forbidden calls, exceeded limits); None: nothing can be said.
        blind: why there may be calls that nobody saw. Then those that were seen can let the trajectory fail,
            by what no further call could mend; what they cannot decide is told by this `error`.
    """
    if not complete:
        spec = replace(spec, expected=None)
    expected = None if spec.expected is None else CallTable.of(_expected(spec), calls)
    banned = CallTable.of(spec.forbidden, calls)
    # A call that cannot be decided is first taken for what the trajectory wants.
    compare = _compare_some if blind else _compare
    findings = _Findings.of(spec, expected and expected.decided(True), banned.decided(False), turns, compare)
    if not findings.problems and not complete:
        return None
    # Nobody can say that there were no calls.
    shows = spec.about_calls and bool(calls or not blind)
    decided = partial(_beside, spec, expected, banned, blind=bool(blind), shows=shows)
    sides = {**(_sides(spec, calls) if shows else {}), **decided(True)}
    if not findings.problems and blind and spec.about_calls:
        why = f"{blind} (those that were seen all the same may not be all)" if calls else blind
        return TrajectoryResult(matched=False, summary=why, error=why, **sides)
    if not findings.problems:
        worst = _Findings.of(spec, expected and expected.decided(False), banned.decided(True), turns, compare)
        if worst.problems:
            reasons = (*(expected.undecided if expected else ()), *banned.undecided)
            error = "; ".join(reasons)
            return replace(_undecided(error, spec, calls), **decided(True))
        sides |= decided(False)
    matched = not findings.problems
    return TrajectoryResult(
        matched=matched,
        summary="; ".join(findings.problems) or _holds(spec, calls, turns),
        **sides,
        missing_calls=findings.missing,
        extra_calls=findings.extra,
        ordering_issues=findings.ordering,
        forbidden_calls=findings.forbidden,
        broken=findings.broken,
        without_calls=matched and not calls and spec.about_calls,
    )


def _beside(
    spec: Trajectory,
    expected: CallTable | None,
    banned: CallTable,
    answer: bool,
    *,
    blind: bool,
    shows: bool,
) -> dict[str, Any]:
    """The alignment for a `TrajectoryResult`.

    Args:
        answer: what stands for what could not be decided of the expected calls; of the forbidden ones the
            opposite.
    """
    if not shows:
        return {}
    table = expected and expected.decided(answer)
    rows, more = aligned(spec, table, banned.decided(not answer), blind=blind)
    return {"alignment": rows, "alignment_more": more}


def _expected(spec: Trajectory) -> tuple[ExpectedCall, ...]:
    return tuple(each for each in spec.expected or () if isinstance(each, ExpectedCall))


def _undecided(error: str, spec: Trajectory, calls: Sequence[ToolCall]) -> TrajectoryResult:
    summary = f"could not be told: {error}"
    return TrajectoryResult(matched=False, summary=summary, error=error, **_sides(spec, calls))


@dataclass(frozen=True, slots=True)
class _Findings:
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    ordering: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    """Which of the demands other than expected calls: limits and orders."""

    @classmethod
    def of(
        cls, spec: Trajectory, expected: CallTable | None, banned: CallTable, turns: int, compare: _Compare
    ) -> _Findings:
        findings, calls = cls(), banned.calls
        if expected:
            findings = compare(spec.match_mode, expected)
            if findings.problems:
                findings = replace(findings, problems=(*findings.problems, *expected.raised))
        forbidden = tuple(call.name for call, hit in zip(calls, banned.columns(), strict=True) if hit)
        problems = list(findings.problems)
        if forbidden:
            problems.append("forbidden calls were made: " + ", ".join(forbidden))
        elif banned.raised:
            problems.append("forbidden calls cannot be ruled out: " + "; ".join(banned.raised))
        broken = tuple(_exceeded_limits(spec, calls, turns))
        return replace(findings, forbidden=forbidden, broken=broken, problems=(*problems, *broken))


_Compare = Callable[[str, CallTable], _Findings]


def _exceeded_limits(spec: Trajectory, calls: Sequence[ToolCall], turns: int) -> list[str]:
    problems = []
    if spec.max_calls is not None and len(calls) > spec.max_calls:
        problems.append(f"{len(calls)} calls were made, at most {spec.max_calls} are allowed")
    if spec.max_turns is not None and turns > spec.max_turns:
        problems.append(f"the conversation took {turns} turns, at most {spec.max_turns} are allowed")
    for tool, made in Counter(call.name for call in calls).items():
        limits = spec.max_calls_per_tool
        limit = limits.get(tool) if isinstance(limits, Mapping) else limits
        if limit is not None and made > limit:
            problems.append(f"{tool} was called {made} times, at most {limit} are allowed")
    return problems


def _compare(mode: str, table: CallTable) -> _Findings:
    if mode == "within":
        return _within(table)
    if mode == "in_order":
        return _in_order(table)
    return _assigned(mode, table)


def _compare_some(mode: str, table: CallTable) -> _Findings:
    """What is wrong with some of the calls, whichever there were besides: none may be missing."""
    if mode == "within":
        return _within(table)
    if mode in ("contains", "in_order"):
        return _Findings()
    _, extra = table.missing_and_extra(ordered=is_ordered(mode))
    if extra:
        return _Findings(("unexpected calls were made: " + ", ".join(extra),), extra=extra)
    return _out_of_order(table) if mode == "strict" else _Findings()


def _out_of_order(table: CallTable) -> _Findings:
    """The first call that has no place among the expected ones after the call before it."""
    places = iter(range(len(table.expected)))
    for i, made in enumerate(table.calls):
        if not any(table.matches[place][i] for place in places):
            issue = f"{made.name} (call {i + 1}) is not expected after the calls before it"
            return _Findings((f"the order is wrong: {issue}",), ordering=(issue,))
    return _Findings()


def _within(table: CallTable) -> _Findings:
    extra = tuple(call.name for call, ok in zip(table.calls, table.columns(), strict=True) if not ok)
    problems = ("calls beyond the allowed ones: " + ", ".join(extra),) if extra else ()
    return _Findings(problems, extra=extra)


def _in_order(table: CallTable) -> _Findings:
    """The earliest possible call for each expectation is also the best: it leaves most to the later ones."""
    at = 0
    for i in range(len(table.calls)):
        if at < len(table.expected) and table.matches[at][i]:
            at += 1
    if at == len(table.expected):
        return _Findings()
    missing, _ = table.missing_and_extra(ordered=True)
    if missing:
        return _Findings(("expected calls are missing: " + ", ".join(missing),), missing)
    late, before = expected_text(table.expected[at]), expected_text(table.expected[at - 1])
    issue = f"{late} was expected after {before}, but came only before it"
    return _Findings((f"the order is wrong: {issue}",), ordering=(issue,))


def _assigned(mode: str, table: CallTable) -> _Findings:
    missing, extra = table.missing_and_extra(ordered=is_ordered(mode))
    problems = ["expected calls are missing: " + ", ".join(missing)] if missing else []
    if mode == "contains":
        return _Findings(tuple(problems), missing)
    if extra:
        problems.append("unexpected calls were made: " + ", ".join(extra))
    ordering = () if mode == "unordered" or problems else _ordering(table)
    if ordering:
        problems.append("the order is wrong: " + ", ".join(ordering))
    return _Findings(tuple(problems), missing, extra, ordering)


def _ordering(table: CallTable) -> tuple[str, ...]:
    """Where the right calls came in the wrong order."""
    return tuple(
        f"call {i + 1} was {made.name}, expected {wanted.name}"
        + (" with other arguments" if made.name == wanted.name else "")
        for i, (wanted, made) in enumerate(zip(table.expected, table.calls, strict=True))
        if not table.matches[i][i]
    )


def _holds(spec: Trajectory, calls: Sequence[ToolCall], turns: int) -> str:
    if not spec.about_calls:
        return f"{turns} turn{'' if turns == 1 else 's'}, as expected"
    mode = "" if spec.expected is None else f" ({spec.match_mode})"
    return f"{len(calls)} tool call{'' if len(calls) == 1 else 's'}, as expected{mode}"


def _sides(spec: Trajectory, calls: Sequence[ToolCall]) -> Mapping[str, Any]:
    """What was expected, what is forbidden and what was called, as text, for a `TrajectoryResult`."""
    expected = None if spec.expected is None else _expected(spec)
    return {
        "mode": None if expected is None else spec.match_mode,
        "expected": None if expected is None else _list(map(expected_text, expected)),
        "forbidden": _list(map(expected_text, spec.forbidden)) if spec.forbidden else None,
        "actual": _list(map(call_text, calls)),
    }


def _list(texts: Iterable[str]) -> str:
    items = list(texts)
    more = f", … {len(items) - _SHOWN_CALLS} more" if len(items) > _SHOWN_CALLS else ""
    return (", ".join(items[:_SHOWN_CALLS]) + more) or "no calls"
