"""Reading trajectories: which tool calls a conversation, or one turn, must hold.

What is wrong raises ValueError whose message begins with the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from agentest.scenarios.alternatives import calls_in
from agentest.scenarios.calls import (
    ARG_MATCH_MODES,
    AnyOf,
    ArgMatchMode,
    CallOrder,
    ExpectedCall,
    Step,
    checked_name,
)
from agentest.scenarios.contradictions import check_trajectory, check_writes
from agentest.scenarios.matchers.showing import brief, type_text
from agentest.scenarios.names import ToolName, is_glob, is_one_tool, name_matches
from agentest.scenarios.parsing import (
    as_list,
    count_of,
    known_keys,
    needed_count,
    needed_text,
    one_of_these,
    yes_or_no,
)
from agentest.scenarios.steps import (
    ORDERS,
    check_number_of_paths,
    order_in,
    parse_name,
    parse_orders,
    parse_step,
)
from agentest.scenarios.trajectory import MATCH_MODES, MatchMode, Trajectory
from agentest.support.spelling import snake_case

DEMANDS = (
    "expected",
    "expected_writes",
    "forbidden",
    "max_calls",
    "min_calls",
    "max_turns",
    "max_calls_per_tool",
    *ORDERS,
)
"""Keys that demand something by themselves."""
SETTINGS = (
    "match_mode",
    "name",
    "ignore_failed",
    "reads",
    "at_most_once",
    "rounds",
    "default_arg_match_mode",
)
"""Keys that say how the demands are meant."""
KEYS = (*DEMANDS, *SETTINGS)
_OF_BOTH = ("ignore_failed", "reads", "default_arg_match_mode")
_WRITES_MODES = ("strict", "unordered")


def parse_trajectories(value: Any, key: str = "trajectory") -> tuple[Trajectory, ...]:
    """All trajectories of a scenario or a turn: one, or a list of several."""
    if not isinstance(value, list | tuple):
        return _one(value, key)
    if not value:
        raise ValueError(f"{key}: is empty, so it would check nothing")
    made = [_one(each, f"{key}[{at}]") for at, each in enumerate(value)]
    _check_names([each[0].name for each in made], key)
    return tuple(trajectory for each in made for trajectory in each)


def _check_names(names: Sequence[str], key: str) -> None:
    for at, name in enumerate(names):
        if name and names.index(name) < at:
            raise ValueError(f"{key}[{at}].name: {key}[{names.index(name)}] is called {name!r}, too")


def parse_trajectory(value: Any, key: str = "trajectory") -> Trajectory:
    """One trajectory. Raises ValueError also where `expected` and `expected_writes` make two of it."""
    first, *more = _one(value, key)
    if more:
        raise ValueError(f"{key}: `expected` and `expected_writes` together make two trajectories")
    return first


def _one(value: Any, key: str) -> tuple[Trajectory, ...]:
    """What one item of a list says: a trajectory, or two where writes are expected beside other calls."""
    if isinstance(value, Trajectory):
        return (value,)
    if isinstance(value, CallOrder):
        value = {value.kind: value}
    if isinstance(value, str | ExpectedCall | AnyOf):
        raise ValueError(f"{key}: expected a dict; a call stands in its list `expected`: {{'expected': […]}}")
    options = known_keys(value, KEYS, key)
    options = {name: given for name, given in options.items() if given is not None}
    if not options:
        raise ValueError(f"{key}: is empty, so it would check nothing")
    if not options.keys() & set(DEMANDS):
        about = ", ".join(f"`{name}`" for name in options if name != "name") or "`name`"
        raise ValueError(f"{key}.expected: is missing; write the calls that {about} is about")
    if "expected_writes" not in options:
        return (_made(options, key),)
    return _with_writes(options, key)


def _with_writes(options: dict[str, Any], key: str) -> tuple[Trajectory, ...]:
    """`expected_writes` alone are a trajectory's calls; beside `expected` they make a second trajectory."""
    writes, rest = options.pop("expected_writes"), options
    if "expected" not in rest:
        return (_made({**rest, "expected": writes}, key, "expected_writes"),)
    made = _made(rest, key)
    shared = {name: given for name, given in rest.items() if name in _OF_BOTH}
    second = _made({**shared, "expected": writes}, key, "expected_writes")
    return made, replace(second, name=f"{made.name}: writes" if made.name else "writes")


def _made(options: Mapping[str, Any], key: str, calls_key: str = "expected") -> Trajectory:
    """A trajectory of checked options; its expected calls stood under `calls_key`."""
    resolved = partial(_resolved, mode_of=_default_mode(options.get("default_arg_match_mode"), key))
    expected, orders = _expected(options, key, calls_key)
    made = Trajectory(
        match_mode=_match_mode(options.get("match_mode"), key, writes=calls_key != "expected"),
        expected=None if expected is None else tuple(map(resolved, expected)),
        forbidden=tuple(map(resolved, _forbidden(options.get("forbidden", []), f"{key}.forbidden"))),
        max_calls=count_of(options.get("max_calls"), f"{key}.max_calls"),
        max_turns=count_of(options.get("max_turns"), f"{key}.max_turns"),
        max_calls_per_tool=_count_per_tool(options.get("max_calls_per_tool"), f"{key}.max_calls_per_tool"),
        name=needed_text(options["name"], f"{key}.name") if "name" in options else "",
        min_calls=count_of(options.get("min_calls"), f"{key}.min_calls"),
        ignore_failed=_is_on(options, "ignore_failed", key),
        reads=_reads(options.get("reads", ()), f"{key}.reads"),
        at_most_once=_is_on(options, "at_most_once", key),
        rounds=_is_on(options, "rounds", key),
        orders=tuple(replace(o, first=resolved(o.first), then=resolved(o.then)) for o in orders),
        writes=calls_key != "expected",
    )
    if calls_key != "expected":
        check_writes(made, key)
    check_trajectory(made, key, calls_key)
    return made


def _match_mode(given: Any, key: str, *, writes: bool) -> MatchMode:
    if given is None:
        return "unordered" if writes else "strict"
    mode: Any = snake_case(given) if isinstance(given, str) else given
    if not isinstance(mode, str) or mode not in MATCH_MODES:
        raise ValueError(f"{key}.match_mode: found {brief(mode)}; {one_of_these(mode, MATCH_MODES)}")
    if writes and mode not in _WRITES_MODES:
        raise ValueError(
            f"{key}.match_mode: is {mode!r}, but `expected_writes` are exactly the writes that are made: "
            "`strict` asks for their order, or leave it out"
        )
    return mode  # type: ignore[return-value]


def _is_on(options: Mapping[str, Any], name: str, key: str) -> bool:
    return bool(yes_or_no(options.get(name), f"{key}.{name}"))


def _expected(
    options: Mapping[str, Any], key: str, calls_key: str
) -> tuple[tuple[Step, ...] | None, tuple[CallOrder, ...]]:
    """The calls that are expected, and the orders that stand among them or under keys of their own."""
    given = options.get("expected")
    items = () if given is None else _list(given, f"{key}.{calls_key}")
    found = [(at, each, order_in(each, f"{key}.{calls_key}[{at}]")) for at, each in enumerate(items)]
    steps = tuple(parse_step(each, f"{key}.{calls_key}[{at}]") for at, each, order in found if not order)
    check_number_of_paths(steps, f"{key}.{calls_key}")
    orders = [order for _, _, order in found if order]
    for kind in ORDERS:
        orders += parse_orders(kind, options.get(kind), f"{key}.{kind}")
    in_line = tuple(order for kind in ORDERS for order in orders if order.kind == kind)
    are_orders = bool(items) and not steps  # they alone do not ban all other calls
    return None if given is None or are_orders else steps, in_line


def _list(calls: Any, key: str) -> Sequence[Any]:
    """The items of a list of calls; a step by itself, like alternatives of paths, is a list of one."""
    if isinstance(calls, ExpectedCall | AnyOf | CallOrder | Mapping):
        return [calls]
    if not isinstance(calls, list | tuple):
        raise ValueError(f"{key}: expected a list of tool calls, found {type_text(calls)}")
    return calls


def _forbidden(calls: Any, key: str) -> tuple[ExpectedCall, ...]:
    items = [parse_step(each, f"{key}[{at}]") for at, each in enumerate(_list(calls, key))]
    for at, each in enumerate(items):
        if isinstance(each, AnyOf) and each.single is None:
            raise ValueError(f"{key}[{at}]: any_of(…) of lists cannot be forbidden; write each call alone")
    return tuple(calls_in(items))


def _reads(value: Any, key: str) -> tuple[ToolName, ...]:
    return tuple(parse_name(each, f"{key}[{at}]") for at, each in enumerate(as_list(value)))


def _count_per_tool(value: Any, key: str) -> int | dict[str, int] | None:
    if not isinstance(value, Mapping):
        return count_of(value, key)
    for tool in value:
        if not isinstance(tool, str) or not tool:
            raise ValueError(f"{key}: expected names of tools, or globs like `get_*`, found {brief(tool)}")
    return {tool: needed_count(most, f"{key}.{tool}") for tool, most in value.items()}


ModeOf = Callable[[ToolName], ArgMatchMode]


def _default_mode(value: Any, key: str) -> ModeOf:
    """The mode of calls that say none themselves, by the name that is expected."""
    modes: Mapping[str, ArgMatchMode] = (
        value if isinstance(value, Mapping) else {"*": "partial" if value is None else value}
    )
    for tool, mode in modes.items():
        place = f".{tool}" if isinstance(value, Mapping) else ""
        if isinstance(value, Mapping):
            checked_name(tool, f"{key}.default_arg_match_mode")
        if not isinstance(mode, str) or mode not in ARG_MATCH_MODES:
            wrong = f"found {brief(mode)}; {one_of_these(mode, ARG_MATCH_MODES)}"
            raise ValueError(f"{key}.default_arg_match_mode{place}: {wrong}")
    # A tool's own name first, and last what is said of all.
    ranked = sorted(modes, key=lambda tool: (str(tool) == "*", is_glob(str(tool))))

    def mode_of(name: ToolName) -> ArgMatchMode:
        for tool in ranked:
            if tool in ("*", name) or (is_one_tool(name) and name_matches(tool, str(name))):
                return modes[tool]
        return "partial"

    return mode_of


def _resolved(step: Any, mode_of: ModeOf) -> Any:
    """A call, or alternatives, in which each call has its mode."""
    if isinstance(step, AnyOf):
        return AnyOf(tuple(tuple(_resolved(each, mode_of) for each in path) for path in step.paths))
    if not step.mode_unsaid:
        return step
    mode = "partial" if step.args is None else mode_of(step.name)
    return replace(step, arg_match_mode=mode, mode_unsaid=False)
