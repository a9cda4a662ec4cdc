"""Expected tool calls: the values, and what all that read them check of a call's own words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final, Literal

from agentest.scenarios.matchers.display import brief, shown
from agentest.scenarios.matchers.validity import function_problem
from agentest.support.patterns import PatternTimeout, matches_whole

ToolName = str | re.Pattern[str]
"""A name, a glob (`get_*`) or a compiled pattern, which matches the whole name."""

_KEPT_ANSWERS = 4096


def is_glob(name: str) -> bool:
    """Whether a name of a tool stands for several."""
    return any(sign in name for sign in "*?[")


def is_one_tool(name: ToolName) -> bool:
    """Whether it names a tool, not a kind of tools."""
    return isinstance(name, str) and not is_glob(name)


def name_matches(wanted: ToolName, made: str) -> bool:
    """Whether a tool called `made` is one that `wanted` names. May block. Raises PatternTimeout."""
    if isinstance(wanted, str):
        return wanted == made or (is_glob(wanted) and fnmatchcase(made, wanted))
    answer = _whole(wanted, made)
    if isinstance(answer, str):
        raise PatternTimeout(answer)
    return answer


@lru_cache(maxsize=_KEPT_ANSWERS)
def _whole(pattern: re.Pattern[str], name: str) -> bool | str:
    """Whether the pattern matches, or why that is not known: a run asks it of the same few names."""
    try:
        return matches_whole(pattern, name)
    except PatternTimeout as error:
        return str(error)


def matches_any(wanted: Iterable[ToolName], made: str) -> bool:
    """Whether one of several names a tool called `made`. Raises PatternTimeout."""
    return any(name_matches(each, made) for each in wanted)


def covers(wider: ToolName, name: ToolName) -> bool:
    """Whether every tool that `name` stands for is surely one that `wider` names. Raises PatternTimeout."""
    if wider == name or wider == "*":
        return True
    return isinstance(name, str) and not is_glob(name) and name_matches(wider, name)


def name_text(name: ToolName) -> str:
    """A name as it is shown."""
    return name if isinstance(name, str) else shown(name)


ArgMatchMode = Literal["ignore", "partial", "exact"]
ARG_MATCH_MODES = ("ignore", "partial", "exact")


class _Anything:
    """What stands for a result of which nothing is said: None is a result."""

    def __repr__(self) -> str:
        return "anything"

    def __reduce__(self) -> str:
        return "ANYTHING"  # copied or sent to another process, it is still this one


ANYTHING: Final = _Anything()


@dataclass(frozen=True, slots=True, repr=False)
class ExpectedCall:
    """A tool call that is expected or forbidden; `args` is compared as `arg_match_mode` says."""

    name: ToolName
    args: Mapping[str, Any] | None = None
    """None: every call of that name, whatever the mode. A key with dots is a path: `amount.value`."""
    arg_match_mode: ArgMatchMode = "partial"
    where: Callable[[dict[str, Any]], Any] | None = None
    """Is asked about all arguments."""
    result: Any = ANYTHING
    """What the tool must have answered; of a dict the keys that are given, which may be paths."""
    nth: int | None = None
    """Which of the tool's calls that count it must be: 1 the first, -1 the last; None: any."""
    mode_unsaid: bool = field(default=False, compare=False, repr=False)
    """Whether nobody wrote its mode yet, so that the trajectory's own default decides."""
    place_word: str = field(default="nth", compare=False, repr=False)
    """The word with which `nth` was written: `first`, `last` or `nth`."""

    def __repr__(self) -> str:
        words = [repr(self.name)] if isinstance(self.name, str) else [shown(self.name)]
        words += [shown(dict(self.args))] if self.args else []
        words += [f"where={shown(self.where)}"] if self.where is not None else []
        words += [f"result={shown(self.result)}"] if self.result is not ANYTHING else []
        words += [f"nth={self.nth}"] if self.nth is not None else []
        made = f"call({', '.join(words)})"
        return f"exactly({made})" if self.arg_match_mode == "exact" else made


@dataclass(frozen=True, slots=True, repr=False)
class AnyOf:
    """Alternatives, of which one is enough: each is a path, one call or several."""

    paths: tuple[tuple[ExpectedCall | AnyOf, ...], ...]

    def __repr__(self) -> str:
        return f"any_of({', '.join(shown(path[0] if len(path) == 1 else path) for path in self.paths)})"

    @property
    def single(self) -> tuple[ExpectedCall, ...] | None:
        """The calls of which any will do, where each path is one call; None: one of them is longer."""
        calls: list[ExpectedCall] = []
        for path in self.paths:
            if len(path) != 1:
                return None
            one = path[0].single if isinstance(path[0], AnyOf) else (path[0],)
            if one is None:
                return None
            calls += one
        return tuple(calls)


Step = ExpectedCall | AnyOf
"""What stands in a list of expected calls."""


def names_in(step: Step) -> Iterator[ToolName]:
    """What a step names: tools, globs and patterns."""
    if isinstance(step, AnyOf):
        for path in step.paths:
            for each in path:
                yield from names_in(each)
    else:
        yield step.name


@dataclass(frozen=True, slots=True, repr=False)
class CallOrder:
    """An order between two calls. Nothing is demanded where `then` is not made.

    `before`: each call of `then` has a call of `first` before it. `never_after`: no call of `first` comes
    after any of `then`. Each of them is one call, or alternatives of one call each.
    """

    kind: Literal["before", "never_after"]
    first: Step
    then: Step

    def __repr__(self) -> str:
        return f"{self.kind}({shown(self.first)}, {shown(self.then)})"


def made_exact(expected: ExpectedCall) -> ExpectedCall:
    """A call without any arguments beyond those that are written."""
    return replace(expected, args=expected.args or {}, arg_match_mode="exact", mode_unsaid=False)


def checked_name(value: Any, key: str) -> ToolName:
    """The name of a tool, or a pattern of names. Raises ValueError."""
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{key}: expected the name of a tool or a pattern of names, found {brief(value)}")
    if not value:
        raise ValueError(f"{key}: the name of the tool is empty")
    return value


def wrong_words(where: Any, first: Any, last: Any, nth: Any) -> Iterator[tuple[str, str]]:
    """What is wrong with the words that stand beside a call's arguments: the word, and why."""
    if where is not None and (not callable(where) or isinstance(where, type)):
        yield "where", f"expected a function of all arguments, found {brief(where)}"
    elif where is not None and (problem := function_problem(where)):
        yield "where", f"expected a function of all arguments, but {brief(where)} {problem}"
    for word, value in (("first", first), ("last", last)):
        if not isinstance(value, bool):
            yield word, f"expected True or False, found {brief(value)}"
    if nth is not None and (isinstance(nth, bool) or not isinstance(nth, int) or nth == 0):
        yield "nth", f"expected a whole number, 1 for the first call and -1 for the last, found {brief(nth)}"


def place_word(first: bool, last: bool) -> str:
    """The word that says which of the tool's calls it must be."""
    return "first" if first else "last" if last else "nth"


def place_of(first: bool, last: bool, nth: int | None, key: str) -> int | None:
    """Which of the tool's calls that count an expected call must be, 1 the first. Raises ValueError."""
    said = {"first": 1 if first else None, "last": -1 if last else None, f"nth {nth}": nth}
    places = {word: place for word, place in said.items() if place is not None}
    if len(set(places.values())) > 1:
        words = " and ".join(places)
        raise ValueError(f"{key}: {words} cannot both be; write one of them, and `max_calls` for how many")
    return next(iter(places.values()), None)
