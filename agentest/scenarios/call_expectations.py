"""Functions for expected calls in scenario files: `call`, `exactly`, `any_of`, `before`, `never_after`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentest.scenarios.calls import (
    ANYTHING,
    AnyOf,
    CallOrder,
    ExpectedCall,
    ToolName,
    as_exact_call,
    call_option_problems,
    checked_tool_name,
    place_word,
    position_of,
)
from agentest.scenarios.matchers.display import brief
from agentest.scenarios.trajectory_parser import parse_any_of, parse_order


def call(
    tool: ToolName,
    args: Mapping[str, Any] | None = None,
    /,
    *,
    where: Callable[[dict[str, Any]], Any] | None = None,
    result: Any = ANYTHING,
    first: bool = False,
    last: bool = False,
    nth: int | None = None,
    **more: Any,
) -> ExpectedCall:
    """Expect a call of `tool` whose arguments include these; other arguments may have any value.

    Args:
        tool: its name, a glob (`"get_*"`), or a compiled pattern, which must match the whole name.
        args: arguments that cannot be written as keywords, or that have the name of a parameter below; also
            paths into arguments: `{"amount.value": 5}`.
        where: a function that receives all arguments as a dict and decides.
        result: the expected result of the tool; of a dict only the given keys, which may be paths.
        first: True if it must be the first call of the tool, among those that count.
        last: True if it must be the last of them.
        nth: the required position among them, from 1; negative: counted from the last.

    Raises:
        ValueError: if one of these has an invalid value, which may have been meant as an argument.
    """
    given = args if args is not None else {}
    if not isinstance(given, Mapping):
        raise ValueError(f"call({brief(tool)}): expected a dict of arguments, found {brief(given)}")
    if twice := [name for name in more if name in given]:
        raise ValueError(f"call({brief(tool)}): `{twice[0]}` is given twice, in the dict and as a keyword")
    name = checked_tool_name(tool, f"call({brief(tool)})")
    for word, error in call_option_problems(where, first, last, nth):
        raise ValueError(
            f"call({tool!r}): {word}: {error}. An argument of the tool that is called `{word}` goes into a "
            f"dict: call({tool!r}, {{{word!r}: …}})"
        )
    place = position_of(first, last, nth, f"call({brief(tool)})")
    says_args = args is not None or bool(more)
    given = {**given, **more}
    return ExpectedCall(
        name,
        given,
        where=where,
        result=result,
        nth=place,
        mode_unsaid=says_args,
        place_word=place_word(first, last),
    )


def exactly(expected: ExpectedCall) -> ExpectedCall:
    """Expect a call with no arguments beyond the given ones. Raises ValueError for anything but a call."""
    if not isinstance(expected, ExpectedCall):
        raise ValueError(f"exactly: expected call(…), found {brief(expected)}")
    return as_exact_call(expected)


def any_of(*alternatives: Any) -> AnyOf:
    """Expect one of several calls; or one of several lists of calls, which must be made completely.

    Raises ValueError if there is no alternative, or one is not a call. For values, use `one_of`.
    """
    return parse_any_of(alternatives, "any_of(…)")


def before(first: Any, then: Any) -> CallOrder:
    """Require a call of `first` before each call of `then`; without a call of `then`, nothing is required.

    Both are names, patterns, `call(…)` or `any_of(…)`. Raises ValueError.
    """
    return parse_order("before", (first, then), "before(…)")


def never_after(first: Any, then: Any) -> CallOrder:
    """Forbid calls of `first` after any call of `then`.

    Both are names, patterns, `call(…)` or `any_of(…)`. Raises ValueError.
    """
    return parse_order("never_after", (first, then), "never_after(…)")
