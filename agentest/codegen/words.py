"""The words of scenario files as source: what a user would write to expect the same.

Each function returns a node of `literals`, which `scenario()` reads as the value that it was made of. What
has no source raises NoForm: a function, a matcher of another library, and how they were written, is not kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from agentest.codegen.literals import Item, Node, Text, bracketed, is_parameter, mapping, node
from agentest.scenarios.calls import ANYTHING, AnyOf, CallOrder, ExpectedCall, Step
from agentest.scenarios.expectations import Expect, ExpectedRemark, Saying
from agentest.scenarios.matchers.comparison import Matcher
from agentest.scenarios.matchers.forms import Form
from agentest.scenarios.matchers.showing import shown
from agentest.scenarios.names import ToolName
from agentest.scenarios.trajectory import Trajectory
from agentest.support.spelling import snake_case

_OF_CALLS = ("where", "result", "first", "last", "nth")
"""What `call()` does not take for arguments of the tool."""
_FLAGS = (re.ASCII, re.IGNORECASE, re.MULTILINE, re.DOTALL, re.VERBOSE)


class NoForm(ValueError):
    """A value of which there is no source. The message begins with the place where it stands."""


def trajectories(values: Sequence[Trajectory]) -> Node:
    """The `trajectory` of a scenario or a turn: one, or a list of several."""
    if len(values) == 1:
        return trajectory(values[0])
    return _list(trajectory(each, f"[{n}]") for n, each in enumerate(values))


def trajectory(value: Trajectory, at: str = "") -> Node:
    """One trajectory: a dict, or the order of two calls alone."""
    if len(value.orders) == 1 and value == Trajectory(orders=value.orders):
        return order(value.orders[0], at)
    return mapping(list(_keys_of(value, at)))


def _keys_of(value: Trajectory, at: str) -> Iterator[tuple[str, Node]]:
    # Who reads it wants the name first.
    for one, given in sorted(_given(value), key=lambda each: each[0].name != "name"):
        place = f"{at}.{one.name}"
        if one.name in ("expected", "forbidden"):
            yield one.name, _list(step(each, f"{place}[{n}]") for n, each in enumerate(given))
        elif one.name == "reads":
            yield one.name, _list(map(tool, given))
        elif one.name == "orders":
            yield from _orders(given, at)
        else:
            yield one.name, value_of(given, place)


def _orders(values: Sequence[CallOrder], at: str) -> Iterator[tuple[str, Node]]:
    for kind in ("before", "never_after"):
        pairs = [
            _list([step(each.first, f"{at}.{kind}"), step(each.then, f"{at}.{kind}")])
            for each in values
            if each.kind == kind
        ]
        if pairs:
            yield kind, _list(pairs)


def order(value: CallOrder, at: str = "") -> Node:
    """`before(…)` or `never_after(…)`."""
    both = [step(each, f"{at}.{value.kind}") for each in (value.first, value.then)]
    return _called(value.kind, both)


def step(value: Step, at: str = "") -> Node:
    """What stands in a list of expected calls."""
    if isinstance(value, ExpectedCall):
        return expected_call(value, at)
    alone = all(len(path) == 1 and isinstance(path[0], ExpectedCall) for path in value.paths)
    return _called("any_of", [_path(path, f"{at}.any_of[{n}]", alone) for n, path in enumerate(value.paths)])


def _path(path: Sequence[ExpectedCall | AnyOf], at: str, alone: bool) -> Node:
    steps = [step(each, at) for each in path]
    return steps[0] if alone else _list(steps)


def expected_call(value: ExpectedCall, at: str = "") -> Node:
    """A name, `call(…)`, `exactly(call(…))`, or a dict where the arguments are to be ignored."""
    if value == ExpectedCall(value.name):
        return tool(value.name)
    if value.args is None or value.arg_match_mode == "ignore":
        return mapping(list(_call_keys(value, at)))
    made = bracketed("call(", list(_in_call(value, value.args, at)), ")")
    return made if value.arg_match_mode == "partial" else _called("exactly", [made])


def _call_keys(value: ExpectedCall, at: str) -> Iterator[tuple[str, Node]]:
    for one, given in _given(value):
        place = f"{at}.{one.name}"
        yield one.name, tool(given) if one.name == "name" else value_of(given, place)


def _in_call(value: ExpectedCall, args: Mapping[str, Any], at: str) -> Iterator[Item]:
    yield Item(tool(value.name))
    nodes = {key: value_of(item, f"{at}.args.{key}") for key, item in args.items()}
    named = {key for key in nodes if is_parameter(key) and key not in _OF_CALLS}
    if others := [(key, nodes[key]) for key in nodes if key not in named]:
        yield Item(mapping(others))
    yield from (Item(nodes[key], f"{key}=") for key in nodes if key in named)
    if value.where is not None:
        raise _no_form(value.where, f"{at}.where")
    if value.result is not ANYTHING:
        yield Item(value_of(value.result, f"{at}.result"), "result=")
    if value.nth is not None:
        yield Item("True", f"{_ENDS[value.nth]}=") if value.nth in _ENDS else Item(str(value.nth), "nth=")


_ENDS = {1: "first", -1: "last"}


def tool(name: ToolName) -> Node:
    """The name of a tool, or the pattern of several."""
    return Text(name) if isinstance(name, str) else _pattern(name, "name")


def sayings(values: Sequence[Saying]) -> Node:
    """The `expect` of a scenario."""
    if len(values) == 1:
        return _saying(values[0], "")
    return _list(_saying(each, f"[{n}]") for n, each in enumerate(values))


def _saying(value: Saying, at: str) -> Node:
    word = "never_says" if value.never else "says"
    turn = [] if value.in_turn is None else [("in_turn", node(value.in_turn))]
    return mapping([(word, value_of(value.wanted, f"{at}.{word}")), *turn])


def expect(value: Expect) -> Node:
    """The `expect` of a turn."""
    return mapping([(one.name, _checks(given, f".{one.name}")) for one, given in _given(value)])


def _checks(given: Any, at: str) -> Node:
    """What a key of `expect` holds: the one value of a tuple, or a list of several."""
    if not isinstance(given, tuple):
        return value_of(given, at)
    nodes = [_remark(each, at) if isinstance(each, ExpectedRemark) else value_of(each, at) for each in given]
    return nodes[0] if len(nodes) == 1 and at != ".remarks" else _list(nodes)


def _remark(value: ExpectedRemark, at: str) -> Node:
    return mapping([(one.name, _checks(given, f"{at}.{one.name}")) for one, given in _given(value)])


def value_of(value: Any, at: str = "") -> Node:
    """An expected value: JSON, and the words that stand in a value's place at any depth."""
    if isinstance(value, Form):  # it was written as data
        return value_of(value.word, at)
    if isinstance(value, Matcher):
        return _matcher(value, at)
    if isinstance(value, re.Pattern):
        return _pattern(value, at)
    if isinstance(value, Mapping):
        return mapping([(_key(key, at), value_of(item, f"{at}.{key}")) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return _list(value_of(item, f"{at}[{n}]") for n, item in enumerate(value))
    if value is None or type(value) in (str, int, float, bool):
        return node(value)
    raise _no_form(value, at)


def _key(key: Any, at: str) -> str:
    if not isinstance(key, str):
        raise NoForm(f"{_place(at)}: the key {key!r} is no text")
    return key


def _matcher(value: Matcher, at: str) -> Node:
    """A matcher is called as its class is named, and written with what it holds."""
    word = snake_case(type(value).__name__)
    held = list(_given(value))
    if not held:
        return word
    (first, given), *more = held
    several = first.name in ("values", "types")
    nodes = [_held(each, at) for each in given] if several else [_held(given, at)]
    named = [Item(_held(each, at), f"{one.name}=") for one, each in more]
    return bracketed(f"{word}(", [*map(Item, nodes), *named], ")")


def _held(value: Any, at: str) -> Node:
    if isinstance(value, type):
        return "None" if value is type(None) else value.__name__
    return value_of(value, at)


def _pattern(value: re.Pattern[Any], at: str) -> Node:
    if not isinstance(value.pattern, str):
        raise _no_form(value, at)
    flags = [f"re.{flag.name}" for flag in _FLAGS if value.flags & flag]
    implied = re.compile(value.pattern).flags == value.flags
    items = [Item(_raw(value.pattern)), *([] if implied else [Item(" | ".join(flags))])]
    return bracketed("re.compile(", items, ")")


def _raw(pattern: str) -> Node:
    """A pattern with backslashes as people write it, where that is possible."""
    plain = pattern.isascii() and pattern.isprintable() and '"' not in pattern and not pattern.endswith("\\")
    return f'r"{pattern}"' if "\\" in pattern and plain else Text(pattern)


def _called(word: str, nodes: Iterable[Node]) -> Node:
    return bracketed(f"{word}(", map(Item, nodes), ")")


def _list(nodes: Iterable[Node]) -> Node:
    return bracketed("[", map(Item, nodes), "]")


def _given(value: Any) -> Iterator[tuple[Field[Any], Any]]:
    """The fields of a value that have no default, or say something else."""
    for one in (each for each in fields(value) if each.compare):
        given = getattr(value, one.name)
        if one.default is MISSING or (given is not one.default and given != one.default):
            yield one, given


def _no_form(value: Any, at: str) -> NoForm:
    return NoForm(f"{_place(at)}: {shown(value)} cannot be written")


def _place(at: str) -> str:
    return at.removeprefix(".") or "it"
