"""Whether a call that was made is one that is expected: each part of it, in three values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ARGUMENTS_UNTOLD, ToolCall, arguments_untold, failed
from agentest.scenarios.calls import ANYTHING, ExpectedCall
from agentest.scenarios.matchers.comparison import CannotTell, PredicateFailed, equal
from agentest.scenarios.matchers.paths import arguments_hold
from agentest.scenarios.matchers.showing import FUNCTIONS
from agentest.scenarios.names import name_matches
from agentest.support.patterns import PatternTimeout
from agentest.trajectory.expected_text import wanted_arguments

RESULT_UNTOLD = "the agent does not tell what the tool answered"
_TOLD_BY_THE_AGENT = (SeenBy.AGENT, SeenBy.SPANS)


def any_call(expected: ExpectedCall) -> bool:
    """Whether every call of the tool is one that is expected, apart from its place."""
    return only_arguments(expected) and wanted_arguments(expected) is None


def only_arguments(expected: ExpectedCall) -> bool:
    """Whether nothing but name and arguments decides, apart from its place."""
    return expected.where is None and expected.result is ANYTHING


def call_matches(expected: ExpectedCall, made: ToolCall) -> bool:
    """Whether a call is one that is expected, apart from its place among the others.

    A part that does not hold decides, whatever the others would say. Raises PredicateFailed, CannotTell.
    """
    if only_arguments(expected) and isinstance(expected.name, str):
        if not is_named(expected, made.name):
            return False
        wanted = wanted_arguments(expected)
        return wanted is None or _arguments_hold(wanted, made, expected.arg_match_mode == "exact")
    doubts: list[PredicateFailed] = []
    for part in _parts(expected, made):
        try:
            if not part():
                return False
        except PredicateFailed as error:
            doubts.append(error)
    if doubts:
        raise doubts[0]
    return True


def is_named(expected: ExpectedCall, name: str) -> bool:
    """Whether it stands for a tool of this name. Raises CannotTell."""
    try:
        return name_matches(expected.name, name)
    except PatternTimeout as error:
        raise CannotTell(str(error)) from None


def _parts(expected: ExpectedCall, made: ToolCall) -> Iterator[Callable[[], bool]]:
    """What is asked of a call; first what needs no code of the user's."""
    yield functools.partial(is_named, expected, made.name)
    if expected.result is not ANYTHING:
        yield functools.partial(result_holds, expected, made)
    wanted = wanted_arguments(expected)
    if wanted is not None:
        yield functools.partial(_arguments_hold, wanted, made, expected.arg_match_mode == "exact")
    if expected.where is not None:
        yield functools.partial(where_holds, expected.where, made)


def _arguments_hold(wanted: Mapping[str, Any], made: ToolCall, exact: bool) -> bool:
    if arguments_untold(made):
        raise CannotTell(ARGUMENTS_UNTOLD)
    if not isinstance(made.args, Mapping):
        return False
    return arguments_hold(wanted, made.args, exact)


def where_holds(where: Callable[[dict[str, Any]], Any], made: ToolCall) -> bool:
    """What a function says of all arguments. Raises PredicateFailed, CannotTell."""
    if arguments_untold(made):
        raise CannotTell(ARGUMENTS_UNTOLD)
    if not isinstance(made.args, Mapping):
        return False
    asked = where if isinstance(where, FUNCTIONS) else functools.partial(where)
    return equal(asked, dict(made.args))


def result_holds(expected: ExpectedCall, made: ToolCall) -> bool:
    """Whether the tool answered as expected. Raises PredicateFailed, CannotTell."""
    if not made.ran:
        return False
    if result_untold(made):
        raise CannotTell(RESULT_UNTOLD)
    wanted, actual = expected.result, made.result
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        return arguments_hold(wanted, actual, expected.arg_match_mode == "exact")
    return equal(wanted, actual)


def result_untold(made: ToolCall) -> bool:
    """Whether nobody knows what a call was answered, and so not whether it failed.

    An agent that tells of a call without its result, and one that tells of the result null, say the same.
    """
    told = made.result is None and made.error is None and not made.mocked
    return told and made.seen_by in _TOLD_BY_THE_AGENT and not failed(made)
