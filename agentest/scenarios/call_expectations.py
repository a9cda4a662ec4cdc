"""The words of scenario files for calls: `call`, `exactly`, `any_of`, `before`, `never_after`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentest.scenarios.calls import (
    ANYTHING,
    AnyOf,
    CallOrder,
    ExpectedCall,
    ToolName,
    checked_name,
    made_exact,
    place_of,
    place_word,
    wrong_words,
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
    """A call of `tool` whose arguments include these; other arguments may have any value.

    Args:
        tool: its name, a glob (`"get_*"`), or a compiled pattern, which matches the whole name.
        args: arguments whose names cannot be written as keywords, or would be taken for the words below;
            and paths into them: `{"amount.value": 5}`.
        where: a function of all arguments, a dict; what it returns decides.
        result: what the tool must have answered; of a dict the keys that are given, which may be paths.
        first: whether it must be the first call of the tool, of those that count.
        last: whether it must be the last of them.
        nth: which of them it must be, from 1; negative: counted from the last.

    Raises:
        ValueError: where one of these is something else, which may have been meant as an argument.
    """
    given = args if args is not None else {}
    if not isinstance(given, Mapping):
        raise ValueError(f"call({brief(tool)}): expected a dict of arguments, found {brief(given)}")
    if twice := [name for name in more if name in given]:
        raise ValueError(f"call({brief(tool)}): `{twice[0]}` is given twice, in the dict and as a keyword")
    name = checked_name(tool, f"call({brief(tool)})")
    for word, error in wrong_words(where, first, last, nth):
        raise ValueError(
            f"call({tool!r}): {word}: {error}. An argument of the tool that is called `{word}` goes into a "
            f"dict: call({tool!r}, {{{word!r}: …}})"
        )
    place = place_of(first, last, nth, f"call({brief(tool)})")
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
    """A call without any arguments beyond those that are written. Raises ValueError for anything else."""
    if not isinstance(expected, ExpectedCall):
        raise ValueError(f"exactly: expected call(…), found {brief(expected)}")
    return made_exact(expected)


def any_of(*alternatives: Any) -> AnyOf:
    """Calls of which one is enough; or lists of calls, of which one has to be made as a whole.

    Raises ValueError where there is none, or something is no call: for values there is `one_of`.
    """
    return parse_any_of(alternatives, "any_of(…)")


def before(first: Any, then: Any) -> CallOrder:
    """Each call of `then` has a call of `first` before it; nothing is demanded where there is none.

    Both are names, patterns, `call(…)` or `any_of(…)`. Raises ValueError.
    """
    return parse_order("before", (first, then), "before(…)")


def never_after(first: Any, then: Any) -> CallOrder:
    """No call of `first` comes after any call of `then`.

    Both are names, patterns, `call(…)` or `any_of(…)`. Raises ValueError.
    """
    return parse_order("never_after", (first, then), "never_after(…)")
