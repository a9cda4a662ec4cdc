"""Describe how a call differs from an expected call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from agentest.domain.transcript import ToolCall
from agentest.scenarios.calls import ANYTHING, ExpectedCall
from agentest.scenarios.matchers.comparison import PredicateFailed, equal, is_plain
from agentest.scenarios.matchers.differences import MISSING, argument, argument_problems
from agentest.scenarios.matchers.display import shown
from agentest.support.json_text import safe_repr
from agentest.support.text import shortened
from agentest.trajectory.candidates import is_named, is_result_unknown, result_holds, where_holds
from agentest.trajectory.expected_text import expected_arguments, expected_text, place_text

_MOST_DIFFERENCES = 5
"""Maximum number of differences in a message."""
_VALUE_CHARS = 80
_NONE: AbstractSet[int] = frozenset()


def alternatives_for_tool(slot: Sequence[ExpectedCall], name: str) -> list[ExpectedCall]:
    """Return the alternatives that may apply to a tool of this name."""
    return [each for each in slot if _may_be_named(each, name)]


def _may_be_named(expected: ExpectedCall, name: str) -> bool:
    try:
        return is_named(expected, name)
    except PredicateFailed:
        return True


def nearest_difference(
    slot: Sequence[ExpectedCall],
    made: ToolCall,
    elsewhere: AbstractSet[int] = _NONE,
    *,
    named: bool = True,
) -> str:
    """Describe how a call differs from the most similar of several alternatives.

    Args:
        elsewhere: `id`s of the alternatives that it would match in another place.
        named: True to name the alternative if there are several.
    """
    mine = alternatives_for_tool(slot, made.name)
    if not mine:
        return ""
    near = max(mine, key=lambda each: (id(each) in elsewhere, count_equal_arguments(each, made)))
    words = difference(near, made)
    if not words and near.nth is not None and id(near) in elsewhere:
        words = f"{place_text(near.nth)}: it came at another place among the calls of its tool that count"
    return f"nearest {expected_text(near)}: {words}" if named and len(slot) > 1 else words


def difference(expected: ExpectedCall, made: ToolCall) -> str:
    """Describe each difference: `amount: expected 5, got 500`.

    Users' functions and patterns are called no more often than for the match itself: only the first that does
    not hold is named, so that none can hang here that did not hang before.
    """
    found = [*_argument_differences(expected, made)]
    asked = not all(map(is_plain, (expected_arguments(expected) or {}).values()))
    if not (found and asked):
        found += _result_differences(expected, made)
    if not found:
        found += _where_differences(expected, made)
    more = [f"{len(found) - _MOST_DIFFERENCES} more"] if len(found) > _MOST_DIFFERENCES else []
    return "; ".join([*found[:_MOST_DIFFERENCES], *more])


def _argument_differences(expected: ExpectedCall, made: ToolCall) -> list[str]:
    wanted = expected_arguments(expected)
    if wanted is None:
        return []
    if not isinstance(made.args, Mapping):
        return [f"the arguments are no object: {_actual_text(made.args)}"]
    exact = expected.arg_match_mode == "exact"
    return [problem.words for problem in argument_problems(wanted, made.args, exact=exact)]


def _result_differences(expected: ExpectedCall, made: ToolCall) -> Iterator[str]:
    if expected.result is ANYTHING or is_result_unknown(made):
        return
    wanted, actual = expected.result, made.result
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        exact = expected.arg_match_mode == "exact"
        yield from (
            problem.words for problem in argument_problems(wanted, actual, exact=exact, inside="result")
        )
    elif not _holds_or_unknown(lambda: result_holds(expected, made)):
        yield f"result: expected {_expected_text(wanted)}, got {_actual_text(actual)}"


def _where_differences(expected: ExpectedCall, made: ToolCall) -> Iterator[str]:
    where = expected.where
    if where is not None and not _holds_or_unknown(lambda: where_holds(where, made)):
        yield f"where: {_expected_text(where)} said no"


def _holds_or_unknown(question: Any) -> bool:
    try:
        return bool(question())
    except PredicateFailed:
        return True


def count_equal_arguments(expected: ExpectedCall, made: ToolCall) -> int:
    """Count matching arguments, among those that can be compared without users' code."""
    wanted = expected_arguments(expected) or {}
    if not isinstance(made.args, Mapping):
        return -1
    given = {key: argument(made.args, key) for key in wanted}
    return sum(
        given[key] is not MISSING and is_plain(value) and equal(value, given[key])
        for key, value in wanted.items()
    )


def _expected_text(value: Any) -> str:
    return shortened(shown(value), _VALUE_CHARS)


def _actual_text(value: Any) -> str:
    return shortened(safe_repr(value), _VALUE_CHARS)
