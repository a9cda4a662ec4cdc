"""Expected calls, orders and trajectories: the functions for scenario files, and the parser of data.

The functions are `call`, `exactly`, `any_of`, `before` and `never_after`. Invalid values raise ValueError.
The parser's messages begin with the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Literal

from agentest.scenarios import parser
from agentest.scenarios.contradictions import check_trajectory, check_writes
from agentest.scenarios.matchers.display import brief, type_text
from agentest.scenarios.matchers.validity import check_expected
from agentest.scenarios.trajectory import (
    ANYTHING,
    ARG_MATCH_MODES,
    MATCH_MODES,
    MOST_PATHS,
    AnyOf,
    ArgMatchMode,
    CallOrder,
    ExpectedCall,
    MatchMode,
    Step,
    ToolName,
    Trajectory,
    as_exact_call,
    call_option_problems,
    calls_in,
    checked_tool_name,
    how_many_paths,
    is_glob,
    is_one_tool,
    name_matches,
    place_word,
    position_of,
)
from agentest.support.text import snake_case

_CALL_KEYS = ("name", "args", "arg_match_mode", "where", "result", "first", "last", "nth")
_MOST_CALLS = 10_000
_MAX_DEPTH = 20
OrderKind = Literal["before", "never_after"]
ORDERS: tuple[OrderKind, ...] = ("before", "never_after")
DEMANDS = (
    *("expected", "expected_writes", "forbidden", "max_calls", "min_calls", "max_turns"),
    *("max_calls_per_tool", *ORDERS),
)
"""Keys that are requirements."""
SETTINGS = (
    *("match_mode", "name", "ignore_failed", "reads", "at_most_once", "rounds"),
    "default_arg_match_mode",
)
"""Keys that modify requirements."""
KEYS = (*DEMANDS, *SETTINGS)
_SHARED_SETTINGS = ("ignore_failed", "reads", "default_arg_match_mode")


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

        trajectory = {"expected": ["get_order", call("refund", order=17, amount=approx(20))]}

    Args:
        tool: its name, a glob (`"get_*"`), or a compiled pattern, which must match the whole name.
        args: arguments that cannot be keywords, and paths into arguments: `{"amount.value": 5}`.
        where: a function that receives all arguments as a dict and decides.
        result: the expected result of the tool; of a dict only the given keys, which may be paths.
        first: True if it must be the first call of the tool, among those that count.
        last: True if it must be the last of them.
        nth: the required position among them, from 1; negative: counted from the last.

    Raises:
        ValueError: if one of these has an invalid value, which may have been meant as an argument.
    """
    all_args = args if args is not None else {}
    parser.checked(all_args, f"call({brief(tool)})", "a dict of arguments", isinstance(all_args, Mapping))
    if twice := [name for name in more if name in all_args]:
        raise ValueError(f"call({brief(tool)}): `{twice[0]}` is given twice, in the dict and as a keyword")
    name = checked_tool_name(tool, f"call({brief(tool)})")
    for word, error in call_option_problems(where, first, last, nth):
        raise ValueError(
            f"call({tool!r}): {word}: {error}. An argument of the tool that is called `{word}` goes into a "
            f"dict: call({tool!r}, {{{word!r}: …}})"
        )
    position = position_of(first, last, nth, f"call({brief(tool)})")
    return ExpectedCall(
        name,
        {**all_args, **more},
        where=where,
        result=result,
        nth=position,
        mode_unsaid=args is not None or bool(more),
        place_word=place_word(first, last),
    )


def exactly(expected: ExpectedCall) -> ExpectedCall:
    """Expect a call with no arguments beyond the given ones. Raises ValueError for anything but a call."""
    return as_exact_call(parser.checked(expected, "exactly", "call(…)", isinstance(expected, ExpectedCall)))


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


def parse_name(value: Any, key: str) -> ToolName:
    """Parse a tool name: a text, a glob, a compiled pattern or, in data, `{regex: …}`."""
    if isinstance(value, Mapping) and parser.word_in(value) == "regex":
        return parser.pattern_of(value, key)
    return checked_tool_name(value, key)


def parse_step(value: Any, key: str) -> Step:
    """Parse a call or alternatives."""
    if isinstance(value, AnyOf):
        return _checked_paths(value, key)
    if isinstance(value, Mapping) and parser.word_in(value) == "any_of":
        return parse_any_of(_only_value(value), f"{key}.any_of")
    if isinstance(value, CallOrder):
        raise ValueError(f"{key}: {value.kind}(…) is an order, and no call")
    return parse_call(value, key)


def parse_call(value: Any, key: str) -> ExpectedCall:
    """Parse one call: a name, a pattern, `call(…)` or a dict."""
    if isinstance(value, ExpectedCall):
        return _checked(value, key)
    if isinstance(value, AnyOf):
        raise ValueError(f"{key}: any_of(…) cannot stand here; write each call separately")
    if isinstance(value, str | re.Pattern):
        return ExpectedCall(checked_tool_name(value, key), mode_unsaid=True)
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: expected a tool name, call(…) or a dict, found {type_text(value)}")
    word = parser.word_in(value)
    if word == "regex":
        return ExpectedCall(parser.pattern_of(value, key), mode_unsaid=True)
    return _exact(_only_value(value), f"{key}.exactly") if word == "exactly" else _from_dict(value, key)


def _exact(value: Any, key: str) -> ExpectedCall:
    call = parse_call(value, key)
    if isinstance(value, Mapping) and not call.mode_unsaid and call.arg_match_mode != "exact":
        raise ValueError(f"{key}.arg_match_mode: is {call.arg_match_mode!r}, which `exactly` is not")
    return as_exact_call(call)


def _from_dict(value: Mapping[Any, Any], key: str) -> ExpectedCall:
    options = parser.known_keys(value, _CALL_KEYS, key)
    if options.get("name") in (None, ""):
        raise ValueError(f"{key}.name: the name of the tool is missing")
    name, args = parse_name(options["name"], f"{key}.name"), options.get("args")
    if args is not None and not isinstance(args, Mapping):
        raise ValueError(f"{key}.args: expected a dict, found {type_text(args)}; write {{'order_id': 17}}")
    mode = options.get("arg_match_mode")
    expected = ExpectedCall(
        name,
        args,
        _arg_match_mode("partial" if mode is None else mode, f"{key}.arg_match_mode"),
        options.get("where"),
        options.get("result", ANYTHING),
        _parsed_position(options, key),
        mode_unsaid=mode is None,
        place_word=place_word(options.get("first", False), options.get("last", False)),
    )
    _checked(expected, key)
    args = None if args is None else parser.replace_forms(args, is_word=False)
    return replace(expected, args=args, result=parser.replace_forms(expected.result, of_key=False))


def _parsed_position(options: Mapping[str, Any], key: str) -> int | None:
    first, last, nth = options.get("first", False), options.get("last", False), options.get("nth")
    for word, error in call_option_problems(options.get("where"), first, last, nth):
        raise ValueError(f"{key}.{word}: {error}; an argument of that name belongs into `args`")
    return position_of(first, last, nth, key)


def _arg_match_mode(mode: Any, key: str) -> ArgMatchMode:
    if not isinstance(mode, str) or mode not in ARG_MATCH_MODES:
        raise ValueError(f"{key}: found {brief(mode)}; {parser.suggest_one_of(mode, ARG_MATCH_MODES)}")
    return mode  # type: ignore[return-value]


def _checked(expected: ExpectedCall, key: str) -> ExpectedCall:
    checked_tool_name(expected.name, f"{key}.name")
    _arg_match_mode(expected.arg_match_mode, f"{key}.arg_match_mode")
    for word, error in call_option_problems(expected.where, False, False, expected.nth):
        raise ValueError(f"{key}.{word}: {error}")
    for name, value in (expected.args or {}).items():
        parser.checked(name, f"{key}.args", "the name of an argument", isinstance(name, str))
        check_expected(value, f"{key}.args.{name}", is_json=True)
    check_expected(expected.result, f"{key}.result", of_key=False, is_json=True)
    return expected


def parse_any_of(value: Any, key: str) -> AnyOf:
    """Parse alternatives: each item of a list is a call, or a list of calls."""
    parser.checked(value, key, "a list of calls, or of lists of calls", isinstance(value, list | tuple))
    if not any(item or not isinstance(item, list | tuple) for item in value):
        raise ValueError(f"{key}: is empty; list the alternative calls")
    return _checked_paths(AnyOf(tuple(_path(item, f"{key}[{at}]") for at, item in enumerate(value))), key)


def _path(value: Any, key: str) -> tuple[Step, ...]:
    if isinstance(value, list | tuple):
        return tuple(parse_step(item, f"{key}[{at}]") for at, item in enumerate(value))
    if not isinstance(value, str | re.Pattern | Mapping | ExpectedCall | AnyOf | CallOrder):
        value_text = brief(value)
        raise ValueError(
            f"{key}: expected a call, found {value_text}; for values of arguments write one_of(…)"
        )
    return (parse_step(value, key),)


def _checked_paths(alternatives: AnyOf, key: str) -> AnyOf:
    if not isinstance(alternatives.paths, tuple) or not any(alternatives.paths):
        raise ValueError(f"{key}: is empty; list the alternative calls")
    if _depth([alternatives]) > _MAX_DEPTH:
        raise ValueError(f"{key}: any_of is in any_of more than {_MAX_DEPTH} times over")
    if next(islice(calls_in([alternatives]), _MOST_CALLS, None), None):
        raise ValueError(f"{key}: has more than {_MOST_CALLS:,} calls")
    for each in calls_in([alternatives]):
        _checked(each, key)
    return alternatives


def _depth(steps: Sequence[Step], at: int = 0) -> int:
    if at > _MAX_DEPTH:
        return at
    inside = [path for step in steps if isinstance(step, AnyOf) for path in step.paths]
    return max((_depth(path, at + 1) for path in inside), default=at)


def parse_orders(kind: OrderKind, value: Any, key: str) -> tuple[CallOrder, ...]:
    """Parse `before` or `never_after` of a trajectory: a pair of calls, or a list of pairs."""
    if value is None:
        return ()
    if isinstance(value, CallOrder):
        value = [value]
    is_list = isinstance(value, list | tuple) and bool(value)
    if is_list and all(isinstance(item, list | tuple | CallOrder) for item in value):
        return tuple(_pair(kind, item, f"{key}[{at}]") for at, item in enumerate(value))
    return (parse_order(kind, value, key),)


def _pair(kind: OrderKind, value: Any, key: str) -> CallOrder:
    if isinstance(value, CallOrder):
        if value.kind != kind:
            raise ValueError(f"{key}: {value.kind}(…) stands under `{kind}`")
        value = (value.first, value.then)
    return parse_order(kind, value, key)


def parse_order(kind: OrderKind, value: Any, key: str) -> CallOrder:
    """Parse an order between two calls."""
    parser.checked(value, key, "two calls, [a, b]", isinstance(value, list | tuple) and len(value) == 2)
    first, then = (_parsed_side(each, f"{key}[{at}]") for at, each in enumerate(value))
    return CallOrder(kind, first, then)


def _parsed_side(value: Any, key: str) -> Step:
    step = parse_step(value, key)
    if isinstance(step, AnyOf) and step.single is None:
        raise ValueError(f"{key}: an order is between calls; any_of(…) of lists has no place in it")
    if any(each.nth is not None for each in calls_in([step])):
        raise ValueError(
            f"{key}: an order is about all such calls, so `first`, `last` and `nth` are not for it"
        )
    return step


def _only_value(value: Mapping[Any, Any]) -> Any:
    (inner,) = value.values()
    return inner


def parse_trajectories(value: Any, key: str = "trajectory") -> tuple[Trajectory, ...]:
    """Parse all trajectories of a scenario or a turn: one, or a list of several."""
    if not isinstance(value, list | tuple):
        return _parsed_trajectories(value, key)
    if not value:
        raise ValueError(f"{key}: is empty, so it would check nothing")
    items = [_parsed_trajectories(each, f"{key}[{at}]") for at, each in enumerate(value)]
    names = [each[0].name for each in items]
    for at, name in enumerate(names):
        if name and names.index(name) < at:
            raise ValueError(f"{key}[{at}].name: {key}[{names.index(name)}] is called {name!r}, too")
    return tuple(trajectory for each in items for trajectory in each)


def parse_trajectory(value: Any, key: str = "trajectory") -> Trajectory:
    """Parse one trajectory. Raises ValueError if `expected` and `expected_writes` result in two."""
    first, *more = _parsed_trajectories(value, key)
    if more:
        raise ValueError(f"{key}: `expected` and `expected_writes` together make two trajectories")
    return first


def _parsed_trajectories(value: Any, key: str) -> tuple[Trajectory, ...]:
    if isinstance(value, Trajectory):
        return (value,)
    if isinstance(value, CallOrder):
        value = {value.kind: value}
    if isinstance(value, str | ExpectedCall | AnyOf):
        call = repr(value) if isinstance(value, str) else "…"
        raise ValueError(f"{key}: write calls as a list in `expected`: trajectory={{'expected': [{call}]}}")
    options = parser.known_keys(value, KEYS, key)
    options = {name: option for name, option in options.items() if option is not None}
    if not options:
        raise ValueError(f"{key}: is empty, so it would check nothing")
    if not options.keys() & set(DEMANDS):
        about = ", ".join(f"`{name}`" for name in options if name != "name") or "`name`"
        raise ValueError(f"{key}.expected: is missing; write the calls that {about} is about")
    if "expected_writes" not in options:
        return (_built_trajectory(options, key),)
    writes, rest = options.pop("expected_writes"), options
    if "expected" not in rest:
        return (_built_trajectory({**rest, "expected": writes}, key, "expected_writes"),)
    trajectory = _built_trajectory(rest, key)
    shared = {name: value for name, value in rest.items() if name in _SHARED_SETTINGS}
    second = _built_trajectory({**shared, "expected": writes}, key, "expected_writes")
    return trajectory, replace(second, name=f"{trajectory.name}: writes" if trajectory.name else "writes")


def _built_trajectory(options: Mapping[str, Any], key: str, calls_key: str = "expected") -> Trajectory:
    resolved = partial(_resolved, mode_of=_default_mode(options.get("default_arg_match_mode"), key))
    expected, orders = _expected(options, key, calls_key)
    trajectory = Trajectory(
        match_mode=_match_mode(options.get("match_mode"), key, writes=calls_key != "expected"),
        expected=None if expected is None else tuple(map(resolved, expected)),
        forbidden=tuple(map(resolved, _forbidden(options.get("forbidden", []), f"{key}.forbidden"))),
        max_calls=parser.count_of(options.get("max_calls"), f"{key}.max_calls"),
        max_turns=parser.count_of(options.get("max_turns"), f"{key}.max_turns"),
        max_calls_per_tool=_count_per_tool(options.get("max_calls_per_tool"), f"{key}.max_calls_per_tool"),
        name=parser.nonempty_text(options["name"], f"{key}.name") if "name" in options else "",
        min_calls=parser.count_of(options.get("min_calls"), f"{key}.min_calls"),
        ignore_failed=_is_on(options, "ignore_failed", key),
        reads=_reads(options.get("reads", ()), f"{key}.reads"),
        at_most_once=_is_on(options, "at_most_once", key),
        rounds=_is_on(options, "rounds", key),
        orders=tuple(replace(o, first=resolved(o.first), then=resolved(o.then)) for o in orders),
        writes=calls_key != "expected",
    )
    if calls_key != "expected":
        check_writes(trajectory, key)
    check_trajectory(trajectory, key, calls_key)
    return trajectory


def _match_mode(value: Any, key: str, *, writes: bool) -> MatchMode:
    if value is None:
        return "unordered" if writes else "strict"
    mode: Any = snake_case(value) if isinstance(value, str) else value
    if not isinstance(mode, str) or mode not in MATCH_MODES:
        raise ValueError(f"{key}.match_mode: found {brief(mode)}; {parser.suggest_one_of(mode, MATCH_MODES)}")
    if writes and mode not in ("strict", "unordered"):
        raise ValueError(
            f"{key}.match_mode: is {mode!r}, but `expected_writes` are exactly the writes that are made: "
            "`strict` asks for their order, or leave it out"
        )
    return mode  # type: ignore[return-value]


def _is_on(options: Mapping[str, Any], name: str, key: str) -> bool:
    return parser.boolean(options.get(name, False), f"{key}.{name}")


def _expected(
    options: Mapping[str, Any], key: str, calls_key: str
) -> tuple[tuple[Step, ...] | None, tuple[CallOrder, ...]]:
    expected = options.get("expected")
    items = () if expected is None else _list(expected, f"{key}.{calls_key}")
    steps: list[Step] = []
    orders: list[CallOrder] = []
    for at, item in enumerate(items):
        item_key = f"{key}.{calls_key}[{at}]"
        word = parser.word_in(item) if isinstance(item, Mapping) else None
        if isinstance(item, CallOrder):
            orders.append(parse_order(item.kind, (item.first, item.then), item_key))
        elif kind := next((kind for kind in ORDERS if kind == word), None):
            orders.append(parse_order(kind, _only_value(item), f"{item_key}.{kind}"))
        else:
            steps.append(parse_step(item, item_key))
    if (number := how_many_paths(steps)) > MOST_PATHS:
        raise ValueError(
            f"{key}.{calls_key}: its any_of lists make {number:,} different ways, and {MOST_PATHS:,} are "
            "the most; alternatives of one call each make none: write any_of(call(…), call(…)) where that "
            "is enough"
        )
    for kind in ORDERS:
        orders += parse_orders(kind, options.get(kind), f"{key}.{kind}")
    in_line = tuple(order for kind in ORDERS for order in orders if order.kind == kind)
    are_orders = bool(items) and not steps  # orders alone do not forbid other calls
    return None if expected is None or are_orders else tuple(steps), in_line


def _list(calls: Any, key: str) -> Sequence[Any]:
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
    return tuple(parse_name(each, f"{key}[{at}]") for at, each in enumerate(parser.as_list(value)))


def _count_per_tool(value: Any, key: str) -> int | dict[str, int] | None:
    if not isinstance(value, Mapping):
        return parser.count_of(value, key)
    for tool in value:
        parser.checked(
            tool, key, "names of tools, or globs like `get_*`", isinstance(tool, str) and bool(tool)
        )
    return {tool: parser.count_not_none(number, f"{key}.{tool}") for tool, number in value.items()}


ModeOf = Callable[[ToolName], ArgMatchMode]


def _default_mode(value: Any, key: str) -> ModeOf:
    modes: Mapping[str, ArgMatchMode] = (
        value if isinstance(value, Mapping) else {"*": "partial" if value is None else value}
    )
    key = f"{key}.default_arg_match_mode"
    for tool, mode in modes.items():
        if isinstance(value, Mapping):
            checked_tool_name(tool, key)
        _arg_match_mode(mode, f"{key}.{tool}" if isinstance(value, Mapping) else key)
    # Exact names come first, `*` last.
    ranked = sorted(modes, key=lambda tool: (str(tool) == "*", is_glob(str(tool))))

    def mode_of(name: ToolName) -> ArgMatchMode:
        for tool in ranked:
            if tool in ("*", name) or (is_one_tool(name) and name_matches(tool, str(name))):
                return modes[tool]
        return "partial"

    return mode_of


def _resolved(step: Any, mode_of: ModeOf) -> Any:
    if isinstance(step, AnyOf):
        return AnyOf(tuple(tuple(_resolved(each, mode_of) for each in path) for path in step.paths))
    if not step.mode_unsaid:
        return step
    mode = "partial" if step.args is None else mode_of(step.name)
    return replace(step, arg_match_mode=mode, mode_unsaid=False)
