"""What of a call is not as it was expected, in words."""

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
from agentest.trajectory.candidates import is_named, result_holds, result_untold, where_holds
from agentest.trajectory.expected_text import expected_text, place_text, wanted_arguments

_MOST = 5
"""Arguments that are named."""
_VALUE_CHARS = 80
_NOBODY: AbstractSet[int] = frozenset()


def of_tool(slot: Sequence[ExpectedCall], name: str) -> list[ExpectedCall]:
    """Those of some alternatives that may be a call of a tool by its name."""
    return [each for each in slot if _named(each, name)]


def _named(expected: ExpectedCall, name: str) -> bool:
    try:
        return is_named(expected, name)
    except PredicateFailed:
        return True


def nearest_difference(
    slot: Sequence[ExpectedCall],
    made: ToolCall,
    elsewhere: AbstractSet[int] = _NOBODY,
    *,
    named: bool = True,
) -> str:
    """How a call differs from the nearest of some alternatives.

    Args:
        elsewhere: `id` of the alternatives that it would be at another place.
        named: whether to say which of several is the nearest.
    """
    mine = of_tool(slot, made.name)
    if not mine:
        return ""
    near = max(mine, key=lambda each: (id(each) in elsewhere, alike(each, made)))
    words = difference(near, made)
    if not words and near.nth is not None and id(near) in elsewhere:
        words = f"{place_text(near.nth)}: it came at another place among the calls of its tool that count"
    return f"nearest {expected_text(near)}: {words}" if named and len(slot) > 1 else words


def difference(expected: ExpectedCall, made: ToolCall) -> str:
    """`amount: expected 5, got 500` for each argument of a call that is not the expected one.

    Functions and patterns of the user's are asked no more than they were asked to find that out: the first
    of them that does not hold is named, so that none hangs here that did not hang before.
    """
    found = [*_of_arguments(expected, made)]
    asked = not all(map(is_plain, (wanted_arguments(expected) or {}).values()))
    if not (found and asked):
        found += _of_result(expected, made)
    if not found:
        found += _of_where(expected, made)
    more = [f"{len(found) - _MOST} more"] if len(found) > _MOST else []
    return "; ".join([*found[:_MOST], *more])


def _of_arguments(expected: ExpectedCall, made: ToolCall) -> list[str]:
    wanted = wanted_arguments(expected)
    if wanted is None:
        return []
    if not isinstance(made.args, Mapping):
        return [f"the arguments are no object: {_made(made.args)}"]
    exact = expected.arg_match_mode == "exact"
    return [problem.words for problem in argument_problems(wanted, made.args, exact=exact)]


def _of_result(expected: ExpectedCall, made: ToolCall) -> Iterator[str]:
    if expected.result is ANYTHING or result_untold(made):
        return
    wanted, actual = expected.result, made.result
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        exact = expected.arg_match_mode == "exact"
        yield from (
            problem.words for problem in argument_problems(wanted, actual, exact=exact, inside="result")
        )
    elif not _holds(lambda: result_holds(expected, made)):
        yield f"result: expected {_short(wanted)}, got {_made(actual)}"


def _of_where(expected: ExpectedCall, made: ToolCall) -> Iterator[str]:
    where = expected.where
    if where is not None and not _holds(lambda: where_holds(where, made)):
        yield f"where: {_short(where)} said no"


def _holds(question: Any) -> bool:
    try:
        return bool(question())
    except PredicateFailed:
        return True


def alike(expected: ExpectedCall, made: ToolCall) -> int:
    """How many arguments are as expected, of those that can be compared without code of the user's."""
    wanted = wanted_arguments(expected) or {}
    if not isinstance(made.args, Mapping):
        return -1
    given = {key: argument(made.args, key) for key in wanted}
    return sum(
        given[key] is not MISSING and is_plain(value) and equal(value, given[key])
        for key, value in wanted.items()
    )


def _short(value: Any) -> str:
    return shortened(shown(value), _VALUE_CHARS)


def _made(value: Any) -> str:
    return shortened(safe_repr(value), _VALUE_CHARS)
