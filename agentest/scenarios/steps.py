"""Reading expected calls, alternatives and orders, as a scenario file writes them or as data holds them.

What is wrong raises ValueError whose message begins with the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

from agentest.scenarios.alternatives import MOST_PATHS, calls_in, how_many_paths
from agentest.scenarios.calls import (
    ANYTHING,
    ARG_MATCH_MODES,
    AnyOf,
    ArgMatchMode,
    CallOrder,
    ExpectedCall,
    Step,
    checked_name,
    made_exact,
    place_of,
    place_word,
    wrong_words,
)
from agentest.scenarios.forms import from_data, word_in
from agentest.scenarios.matchers.checking import check_expected
from agentest.scenarios.matchers.showing import brief, type_text
from agentest.scenarios.names import ToolName
from agentest.scenarios.parsing import known_keys, one_of_these, pattern_of

_CALL_KEYS = ("name", "args", "arg_match_mode", "where", "result", "first", "last", "nth")
_MOST_CALLS = 10_000
"""Of one `any_of`, those inside of others included."""
_DEEPEST = 20


def parse_name(value: Any, key: str) -> ToolName:
    """The name of a tool: a text, a glob, a compiled pattern or, in data, `{regex: …}`."""
    if isinstance(value, Mapping) and word_in(value) == "regex":
        return pattern_of(value, key)
    return checked_name(value, key)


def parse_step(value: Any, key: str) -> Step:
    """A call, or alternatives."""
    if isinstance(value, AnyOf):
        return _checked_paths(value, key)
    if isinstance(value, Mapping) and word_in(value) == "any_of":
        return parse_any_of(_inside(value), f"{key}.any_of")
    if isinstance(value, CallOrder):
        raise ValueError(f"{key}: {value.kind}(…) is an order, and no call")
    return parse_call(value, key)


def parse_call(value: Any, key: str) -> ExpectedCall:
    """One call: a name, a pattern, `call(…)` or a dict."""
    if isinstance(value, ExpectedCall):
        return _checked(value, key)
    if isinstance(value, AnyOf):
        raise ValueError(f"{key}: any_of(…) cannot stand here; write each call by itself")
    if isinstance(value, str | re.Pattern):
        return ExpectedCall(checked_name(value, key), mode_unsaid=True)
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: expected a tool name, call(…) or a dict, found {type_text(value)}")
    word = word_in(value)
    if word == "regex":
        return ExpectedCall(pattern_of(value, key), mode_unsaid=True)
    return _exact(_inside(value), f"{key}.exactly") if word == "exactly" else _from_dict(value, key)


def _exact(value: Any, key: str) -> ExpectedCall:
    made = parse_call(value, key)
    if isinstance(value, Mapping) and not made.mode_unsaid and made.arg_match_mode != "exact":
        raise ValueError(f"{key}.arg_match_mode: is {made.arg_match_mode!r}, which `exactly` is not")
    return made_exact(made)


def _from_dict(value: Mapping[Any, Any], key: str) -> ExpectedCall:
    options = known_keys(value, _CALL_KEYS, key)
    if options.get("name") is None or _is_empty_text(options["name"]):
        raise ValueError(f"{key}.name: the name of the tool is missing")
    name, args = parse_name(options["name"], f"{key}.name"), options.get("args")
    if args is not None and not isinstance(args, Mapping):
        raise ValueError(f"{key}.args: expected a dict, found {type_text(args)}")
    mode = options.get("arg_match_mode")
    made = ExpectedCall(
        name,
        args,
        _arg_match_mode("partial" if mode is None else mode, key),
        options.get("where"),
        options.get("result", ANYTHING),
        _place(options, key),
        mode_unsaid=mode is None,
        place_word=place_word(options.get("first", False), options.get("last", False)),
    )
    return _read(_checked(made, key))


def _is_empty_text(value: Any) -> bool:
    return isinstance(value, str) and not value


def _read(made: ExpectedCall) -> ExpectedCall:
    """A call with the words that stand in its arguments and its result as data."""
    args = None if made.args is None else from_data(made.args, is_word=False)
    return replace(made, args=args, result=from_data(made.result, of_key=False))


def _place(options: Mapping[str, Any], key: str) -> int | None:
    first, last, nth = options.get("first", False), options.get("last", False), options.get("nth")
    for word, error in wrong_words(options.get("where"), first, last, nth):
        raise ValueError(f"{key}.{word}: {error}; an argument of that name belongs into `args`")
    return place_of(first, last, nth, key)


def _arg_match_mode(mode: Any, key: str) -> ArgMatchMode:
    if not isinstance(mode, str) or mode not in ARG_MATCH_MODES:
        raise ValueError(f"{key}.arg_match_mode: found {brief(mode)}; {one_of_these(mode, ARG_MATCH_MODES)}")
    return mode  # type: ignore[return-value]


def _checked(made: ExpectedCall, key: str) -> ExpectedCall:
    """A call whose values can be compared. Whoever makes the value by hand has checked nothing of it."""
    checked_name(made.name, f"{key}.name")
    _arg_match_mode(made.arg_match_mode, key)
    for word, error in wrong_words(made.where, False, False, made.nth):
        raise ValueError(f"{key}.{word}: {error}")
    for name, value in (made.args or {}).items():
        if not isinstance(name, str):
            raise ValueError(f"{key}.args: expected the name of an argument, found {brief(name)}")
        check_expected(value, f"{key}.args.{name}", is_json=True)
    check_expected(made.result, f"{key}.result", of_key=False, is_json=True)
    return made


def parse_any_of(value: Any, key: str) -> AnyOf:
    """Alternatives: each item of a list is a call, or a list of calls."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{key}: expected a list of calls, or of lists of calls, found {brief(value)}")
    if not any(item or not isinstance(item, list | tuple) for item in value):
        raise ValueError(f"{key}: is empty; write the calls of which one is enough")
    return _checked_paths(AnyOf(tuple(_path(item, f"{key}[{at}]") for at, item in enumerate(value))), key)


def _path(value: Any, key: str) -> tuple[Step, ...]:
    if isinstance(value, list | tuple):
        return tuple(parse_step(item, f"{key}[{at}]") for at, item in enumerate(value))
    if not isinstance(value, str | re.Pattern | Mapping | ExpectedCall | AnyOf | CallOrder):
        found = brief(value)
        raise ValueError(f"{key}: expected a call, found {found}; for values of arguments write one_of(…)")
    return (parse_step(value, key),)


def _checked_paths(alternatives: AnyOf, key: str) -> AnyOf:
    if not isinstance(alternatives.paths, tuple) or not any(alternatives.paths):
        raise ValueError(f"{key}: is empty; write the calls of which one is enough")
    if _depth([alternatives]) > _DEEPEST:
        raise ValueError(f"{key}: any_of is in any_of more than {_DEEPEST} times over")
    if next(islice(calls_in([alternatives]), _MOST_CALLS, None), None):
        raise ValueError(f"{key}: has more than {_MOST_CALLS:,} calls")
    for each in calls_in([alternatives]):
        _checked(each, key)
    return alternatives


def _depth(steps: Sequence[Step], at: int = 0) -> int:
    """How deep alternatives stand in alternatives; no further than is allowed."""
    if at > _DEEPEST:
        return at
    inside = [path for step in steps if isinstance(step, AnyOf) for path in step.paths]
    return max((_depth(path, at + 1) for path in inside), default=at)


def check_number_of_paths(steps: Sequence[Step], key: str) -> None:
    """Raise ValueError where alternatives make more ways through a list of calls than can be tried."""
    number = how_many_paths(steps)
    if number > MOST_PATHS:
        raise ValueError(
            f"{key}: its any_of lists make {number:,} different ways, and {MOST_PATHS:,} are the most; "
            "alternatives of one call each make none: write any_of(call(…), call(…)) where that is enough"
        )


OrderKind = Literal["before", "never_after"]
ORDERS: tuple[OrderKind, ...] = ("before", "never_after")


def order_in(value: Any, key: str) -> CallOrder | None:
    """The order that an item of a list is; None where it is none."""
    if isinstance(value, CallOrder):
        return parse_order(value.kind, (value.first, value.then), key)
    word = word_in(value) if isinstance(value, Mapping) else None
    for kind in ORDERS:
        if word == kind:
            return parse_order(kind, _inside(value), f"{key}.{kind}")
    return None


def parse_orders(kind: OrderKind, value: Any, key: str) -> tuple[CallOrder, ...]:
    """What stands under `before` or `never_after` of a trajectory: a pair of calls, or a list of pairs."""
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
    """An order between two calls."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"{key}: expected two calls, [a, b], found {brief(value)}")
    first, then = (_side(each, f"{key}[{at}]") for at, each in enumerate(value))
    return CallOrder(kind, first, then)


def _side(value: Any, key: str) -> Step:
    made = parse_step(value, key)
    if isinstance(made, AnyOf) and made.single is None:
        raise ValueError(f"{key}: an order is between calls; any_of(…) of lists has no place in it")
    if any(each.nth is not None for each in calls_in([made])):
        raise ValueError(
            f"{key}: an order is about all such calls, so `first`, `last` and `nth` are not for it"
        )
    return made


def _inside(value: Mapping[Any, Any]) -> Any:
    (inner,) = value.values()
    return inner
