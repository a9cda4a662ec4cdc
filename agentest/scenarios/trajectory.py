"""Expected tool calls, their order and trajectories, with the validation that all parsers of calls share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import chain, product
from math import prod
from typing import Any, Final, Literal

from agentest.scenarios.matchers.display import brief, shown
from agentest.scenarios.matchers.validity import function_problem
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.patterns import PatternTimeout, matches_whole

ToolName = str | re.Pattern[str]
"""A name, a glob (`get_*`) or a compiled pattern, which must match the whole name."""

_CACHED_MATCHES = 4096


def is_glob(name: str) -> bool:
    """Return True if a tool name is a glob."""
    return any(sign in name for sign in "*?[")


def is_one_tool(name: ToolName) -> bool:
    """Return True if it names a single tool."""
    return isinstance(name, str) and not is_glob(name)


def name_matches(wanted: ToolName, called: str) -> bool:
    """Return True if `wanted` matches a tool named `called`. May block. Raises PatternTimeout."""
    if isinstance(wanted, str):
        return wanted == called or (is_glob(wanted) and fnmatchcase(called, wanted))
    answer = _match_or_reason(wanted, called)
    if isinstance(answer, str):
        raise PatternTimeout(answer)
    return answer


@lru_cache(maxsize=_CACHED_MATCHES)
def _match_or_reason(pattern: re.Pattern[str], name: str) -> bool | str:
    try:
        return matches_whole(pattern, name)
    except PatternTimeout as error:
        return str(error)


def covers(wider: ToolName, name: ToolName) -> bool:
    """Return True if `wider` certainly matches every tool that `name` matches. Raises PatternTimeout."""
    if wider == name or wider == "*":
        return True
    return isinstance(name, str) and not is_glob(name) and name_matches(wider, name)


def name_text(name: ToolName) -> str:
    """Format a tool name."""
    return name if isinstance(name, str) else shown(name)


ArgMatchMode = Literal["ignore", "partial", "exact"]
ARG_MATCH_MODES = ("ignore", "partial", "exact")


class _AnyResult:
    def __repr__(self) -> str:
        return "anything"

    def __reduce__(self) -> str:
        return "ANYTHING"  # copies, also in other processes, stay this object


ANYTHING: Final = _AnyResult()


@dataclass(frozen=True, slots=True, repr=False)
class ExpectedCall:
    """A tool call that is expected or forbidden; `arg_match_mode` determines how `args` are compared."""

    name: ToolName
    args: Mapping[str, Any] | None = None
    """None: any arguments, whatever the mode. A key with dots is a path: `amount.value`."""
    arg_match_mode: ArgMatchMode = "partial"
    where: Callable[[dict[str, Any]], Any] | None = None  # function that receives all arguments and decides
    result: Any = ANYTHING
    """The expected result of the tool; of a dict only the given keys, which may be paths."""
    nth: int | None = None  # position among the tool's calls that count: 1 the first, -1 the last; None: any
    mode_unsaid: bool = field(default=False, compare=False, repr=False)
    """True if no mode was given yet, so that the trajectory's default applies."""
    place_word: str = field(default="nth", compare=False, repr=False)
    """The option with which `nth` was given: `first`, `last` or `nth`."""

    def __repr__(self) -> str:
        words = [repr(self.name)] if isinstance(self.name, str) else [shown(self.name)]
        words += [shown(dict(self.args))] if self.args else []
        words += [f"where={shown(self.where)}"] if self.where is not None else []
        words += [f"result={shown(self.result)}"] if self.result is not ANYTHING else []
        words += [f"nth={self.nth}"] if self.nth is not None else []
        text = f"call({', '.join(words)})"
        return f"exactly({text})" if self.arg_match_mode == "exact" else text


@dataclass(frozen=True, slots=True, repr=False)
class AnyOf:
    """Alternatives, one of which is sufficient; each is a path of one or several calls."""

    paths: tuple[tuple[ExpectedCall | AnyOf, ...], ...]

    def __repr__(self) -> str:
        return f"any_of({', '.join(shown(path[0] if len(path) == 1 else path) for path in self.paths)})"

    @property
    def single(self) -> tuple[ExpectedCall, ...] | None:
        """The alternative calls if each path is a single call; None if a path is longer."""
        calls: list[ExpectedCall] = []
        for path in self.paths:
            if len(path) != 1:
                return None
            calls_of_path = path[0].single if isinstance(path[0], AnyOf) else (path[0],)
            if calls_of_path is None:
                return None
            calls += calls_of_path
        return tuple(calls)


Step = ExpectedCall | AnyOf


def names_in(step: Step) -> Iterator[ToolName]:
    """Yield the tool names, globs and patterns in a step."""
    if isinstance(step, AnyOf):
        for path in step.paths:
            for each in path:
                yield from names_in(each)
    else:
        yield step.name


@dataclass(frozen=True, slots=True, repr=False)
class CallOrder:
    """An order between two calls. It requires nothing if `then` is not made.

    `before`: each call of `then` has a call of `first` before it. `never_after`: no call of `first` comes
    after a call of `then`. Each side is one call, or alternatives of one call each.
    """

    kind: Literal["before", "never_after"]
    first: Step
    then: Step

    def __repr__(self) -> str:
        return f"{self.kind}({shown(self.first)}, {shown(self.then)})"


def as_exact_call(expected: ExpectedCall) -> ExpectedCall:
    """Return the call in mode `exact`: with no arguments beyond the given ones."""
    return replace(expected, args=expected.args or {}, arg_match_mode="exact", mode_unsaid=False)


def checked_tool_name(value: Any, key: str) -> ToolName:
    """Return a tool name or a pattern of names. Raises ValueError."""
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{key}: expected the name of a tool or a pattern of names, found {brief(value)}")
    if not value:
        raise ValueError(f"{key}: the name of the tool is empty")
    return value


def call_option_problems(where: Any, first: Any, last: Any, nth: Any) -> Iterator[tuple[str, str]]:
    """Yield each invalid option of a call, with the reason."""
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
    """Return the option that determines the position of a call."""
    return "first" if first else "last" if last else "nth"


def position_of(first: bool, last: bool, nth: int | None, key: str) -> int | None:
    """Return the position of a call from `first`, `last` and `nth`. Raises ValueError if they conflict."""
    options = {"first": 1 if first else None, "last": -1 if last else None, f"nth {nth}": nth}
    places = {word: position for word, position in options.items() if position is not None}
    if len(set(places.values())) > 1:
        words = " and ".join(places)
        raise ValueError(f"{key}: {words} cannot both be; write one of them, and `max_calls` for how many")
    return next(iter(places.values()), None)


MatchMode = Literal["strict", "unordered", "contains", "in_order", "within"]
MATCH_MODES = ("strict", "unordered", "contains", "in_order", "within")
MOST_PATHS = 1_000


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Required, allowed and forbidden tool calls."""

    match_mode: MatchMode = "strict"
    expected: tuple[Step, ...] | None = None  # None: the match mode allows any calls
    forbidden: tuple[ExpectedCall, ...] = ()
    max_calls: int | None = None
    max_turns: int | None = None
    max_calls_per_tool: int | Mapping[str, int] | None = None
    """Limit for each tool; names in a mapping may be globs, and an exact name has priority."""
    name: str = ""
    min_calls: int | None = None
    ignore_failed: bool = False
    """True if calls answered with an error are free. They then match only expected calls with a `result`."""
    reads: tuple[ToolName, ...] = ()
    at_most_once: bool = False
    """True if each expected call may be made at most once, even if the mode allows repetition."""
    rounds: bool = False
    """True if the order is free within one message of the agent, and fixed between messages."""
    orders: tuple[CallOrder, ...] = ()
    writes: bool = field(default=False, compare=False)
    """True if the expected calls were given as `expected_writes`."""

    @property
    def about_calls(self) -> bool:
        """True if it has requirements about calls, not only `max_turns`."""
        limits = (self.expected, self.max_calls, self.max_calls_per_tool, self.min_calls)
        return bool(self.forbidden or self.orders) or any(each is not None for each in limits)

    @property
    def is_ordered(self) -> bool:
        """True if the mode requires an order."""
        return self.match_mode in ("strict", "in_order")

    @property
    def forbids_others(self) -> bool:
        """True if the mode forbids calls that count and are not expected."""
        return self.match_mode in ("strict", "unordered", "within")

    @property
    def named_tools(self) -> frozenset[str]:
        """Tools that it mentions by name, without globs and patterns."""
        wanted = [name for step in self.expected or () for name in names_in(step)]
        named = (*wanted, *self.reads, *self.banned_tools)
        return frozenset(name for name in named if isinstance(name, str) and is_one_tool(name))

    @property
    def banned_tools(self) -> frozenset[ToolName]:
        """Tools that are forbidden, limited or ordered, some by glob or pattern.

        Hidden calls of these tools break nothing.
        """
        banned = [each.name for each in self.forbidden]
        for order in self.orders:
            banned += (*names_in(order.first), *names_in(order.then))
        if isinstance(self.max_calls_per_tool, Mapping):
            banned += self.max_calls_per_tool
        return frozenset(banned)

    @property
    def without_calls(self) -> Trajectory:
        """A trajectory with only the requirements that are not about calls."""
        return Trajectory(self.match_mode, max_turns=self.max_turns, name=self.name)

    def limit_of(self, tool: str) -> int | None:
        """Return the maximum number of calls of a tool; None: unlimited."""
        entry = self.limit_entry_of(tool)
        return entry[1] if entry else None

    def limit_entry_of(self, tool: str) -> tuple[str, int] | None:
        """Return the key and value of a tool's limit: its own name, else the lowest of the matching globs.

        The key is "" if one limit applies to every tool; None: unlimited.
        """
        limits = self.max_calls_per_tool
        if limits is None or not isinstance(limits, Mapping):
            return None if limits is None else ("", limits)
        if tool in limits:
            return tool, limits[tool]
        globs = [(limit, key) for key, limit in limits.items() if name_matches(key, tool)]
        return min(globs)[::-1] if globs else None


Slot = tuple[ExpectedCall, ...]
Path = tuple[Slot, ...]


def paths_of(expected: Sequence[Step]) -> tuple[Path, ...]:
    """Return all paths, each with a slot for every expected call; one path without longer alternatives."""
    return tuple(_joined_paths(expected))


def how_many_paths(expected: Sequence[Step]) -> int:
    """Return an upper bound for the number of paths without building them."""
    return prod(map(_count_paths, expected))


def _joined_paths(steps: Sequence[Step]) -> Iterator[Path]:
    for choice in product(*map(_paths_of_step, steps)):
        yield tuple(chain.from_iterable(choice))


def _paths_of_step(step: Step) -> list[Path]:
    if isinstance(step, ExpectedCall):
        return [((step,),)]
    ways = [joined for path in step.paths for joined in _joined_paths(path)]
    slot = tuple(chain.from_iterable(joined[0] for joined in ways if len(joined) == 1))
    return [*([(slot,)] if slot else []), *(joined for joined in ways if len(joined) != 1)]


def _count_paths(step: Step) -> int:
    if isinstance(step, ExpectedCall) or step.single is not None:
        return 1
    single, counts = False, 0
    for path in step.paths:
        if len(path) == 1 and (isinstance(path[0], ExpectedCall) or path[0].single is not None):
            single = True
        else:
            counts += how_many_paths(path)
    return counts + single


def calls_in(steps: Sequence[Step]) -> Iterator[ExpectedCall]:
    """Yield all calls in a list, including alternatives."""
    for step in steps:
        if isinstance(step, AnyOf):
            for path in step.paths:
                yield from calls_in(path)
        else:
            yield step
