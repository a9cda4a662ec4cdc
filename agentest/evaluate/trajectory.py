"""Tool calls made against tool calls expected (contract, section 7). No model is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentest.evaluate.matching import maximum_matching
from agentest.evaluate.values import PredicateFailed, equal, shown
from agentest.expectations import ExpectedCall, Trajectory
from agentest.results import TrajectoryResult
from agentest.transcript import ToolCall

_SHOWN_CALLS = 20


def match_trajectory(
    spec: Trajectory, calls: Sequence[ToolCall], turns: int, *, complete: bool = True
) -> TrajectoryResult | None:
    """Whether the calls are as the trajectory says.

    Args:
        turns: number of turns, for `max_turns`.
        complete: False when something other than the agent cut the conversation short. Then only what no
            later call could mend counts (forbidden calls, exceeded limits); None: nothing can be said.
    """
    if not complete:
        spec = replace(spec, expected=None)
    try:
        found = _Findings.of(spec, calls, turns)
    except PredicateFailed as error:
        return TrajectoryResult(False, f"the calls could not be compared: {error}")
    if not found.problems:
        return TrajectoryResult(True, _holds(spec, calls)) if complete else None
    return TrajectoryResult(
        matched=False,
        reason="; ".join(found.problems) + "\n" + _side_by_side(spec, calls),
        missing_calls=found.missing,
        extra_calls=found.extra,
        ordering_issues=found.ordering,
        forbidden_calls=found.forbidden,
    )


def call_matches(expected: ExpectedCall, made: ToolCall) -> bool:
    """Whether a call is one that is expected. Raises PredicateFailed."""
    if expected.name != made.name:
        return False
    if expected.arg_match_mode == "ignore":
        return True
    if not isinstance(made.args, Mapping):
        return False
    if expected.arg_match_mode == "exact":
        return equal(expected.args, made.args)
    return all(key in made.args and equal(value, made.args[key]) for key, value in expected.args.items())


@dataclass(frozen=True, slots=True)
class _Findings:
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    ordering: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: Trajectory, calls: Sequence[ToolCall], turns: int) -> _Findings:
        found = cls() if spec.expected is None else _compare(spec.match_mode, spec.expected, calls)
        forbidden = tuple(
            call.name for call in calls if any(call_matches(banned, call) for banned in spec.forbidden)
        )
        problems = list(found.problems)
        if forbidden:
            problems.append("forbidden calls were made: " + ", ".join(forbidden))
        problems += _exceeded_limits(spec, calls, turns)
        return replace(found, forbidden=forbidden, problems=tuple(problems))


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


def _compare(mode: str, expected: Sequence[ExpectedCall], calls: Sequence[ToolCall]) -> _Findings:
    if mode == "within":
        return _within(expected, calls)
    if mode == "in_order":
        return _in_order(expected, calls)
    if mode == "strict" and _same_order(expected, calls):
        return _Findings()
    return _assigned(mode, expected, calls)


def _same_order(expected: Sequence[ExpectedCall], calls: Sequence[ToolCall]) -> bool:
    return len(expected) == len(calls) and all(map(call_matches, expected, calls))


def _within(expected: Sequence[ExpectedCall], calls: Sequence[ToolCall]) -> _Findings:
    extra = tuple(call.name for call in calls if not any(call_matches(allowed, call) for allowed in expected))
    problems = ("calls beyond the allowed ones: " + ", ".join(extra),) if extra else ()
    return _Findings(problems, extra=extra)


def _in_order(expected: Sequence[ExpectedCall], calls: Sequence[ToolCall]) -> _Findings:
    """The earliest possible call for each expectation is also the best: it leaves most to the later ones."""
    at = 0
    for made in calls:
        if at < len(expected) and call_matches(expected[at], made):
            at += 1
    if at == len(expected):
        return _Findings()
    assignment = _assignment(expected, calls)
    missing = tuple(e.name for e, call in zip(expected, assignment, strict=True) if call is None)
    if missing:
        return _Findings(("expected calls are missing: " + ", ".join(missing),), missing)
    issue = f"{expected[at].name} was expected after {expected[at - 1].name}, but came before it"
    return _Findings((f"the order is wrong: {issue}",), ordering=(issue,))


def _assigned(mode: str, expected: Sequence[ExpectedCall], calls: Sequence[ToolCall]) -> _Findings:
    assignment = _assignment(expected, calls)
    missing = tuple(e.name for e, call in zip(expected, assignment, strict=True) if call is None)
    taken = {call for call in assignment if call is not None}
    extra = tuple(call.name for i, call in enumerate(calls) if i not in taken)
    problems = ["expected calls are missing: " + ", ".join(missing)] if missing else []
    if mode == "contains":
        return _Findings(tuple(problems), missing)
    if extra:
        problems.append("unexpected calls were made: " + ", ".join(extra))
    ordering = () if mode == "unordered" or problems else _ordering(expected, calls)
    if ordering:
        problems.append("the order is wrong: " + ", ".join(ordering))
    return _Findings(tuple(problems), missing, extra, ordering)


def _assignment(expected: Sequence[ExpectedCall], calls: Sequence[ToolCall]) -> list[int | None]:
    edges = [[i for i, made in enumerate(calls) if call_matches(e, made)] for e in expected]
    return maximum_matching(edges, len(calls))


def _ordering(expected: Sequence[ExpectedCall], calls: Sequence[ToolCall]) -> tuple[str, ...]:
    """Where the right calls came in the wrong order."""
    return tuple(
        f"call {i + 1} was {made.name}, expected {wanted.name}"
        + (" with other arguments" if made.name == wanted.name else "")
        for i, (wanted, made) in enumerate(zip(expected, calls, strict=True))
        if not call_matches(wanted, made)
    )


def _holds(spec: Trajectory, calls: Sequence[ToolCall]) -> str:
    mode = "" if spec.expected is None else f" ({spec.match_mode})"
    return f"{len(calls)} tool call{'' if len(calls) == 1 else 's'}, as expected{mode}"


def _side_by_side(spec: Trajectory, calls: Sequence[ToolCall]) -> str:
    lines = []
    if spec.expected is not None:
        lines.append(f"expected ({spec.match_mode}): {_list(_expected_text(e) for e in spec.expected)}")
    if spec.forbidden:
        lines.append(f"forbidden: {_list(_expected_text(e) for e in spec.forbidden)}")
    lines.append(f"actual: {_list(call_text(c) for c in calls)}")
    return "\n".join(lines)


def _list(texts: object) -> str:
    items = list(texts)  # type: ignore[call-overload]
    more = f", … {len(items) - _SHOWN_CALLS} more" if len(items) > _SHOWN_CALLS else ""
    return (", ".join(items[:_SHOWN_CALLS]) + more) or "no calls"


def _expected_text(expected: ExpectedCall) -> str:
    if expected.arg_match_mode == "ignore":
        return expected.name
    arguments = [f"{key}={shown(value)}" for key, value in expected.args.items()]
    if expected.arg_match_mode == "partial":
        arguments = [*arguments, "…"] if arguments else []
        return f"{expected.name}({', '.join(arguments)})" if arguments else expected.name
    return f"{expected.name}({', '.join(arguments)})"


def call_text(call: ToolCall) -> str:
    """A call as it is shown: `name(key=value)`, or what was sent in place of arguments."""
    if not isinstance(call.args, Mapping):
        return f"{call.name}(invalid arguments: {call.args!r})"
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.args.items())})"
