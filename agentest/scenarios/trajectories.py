"""Trajectories: which tool calls a conversation, or one turn, must hold.

Frozen values, parsed from what a scenario file says. Parsing raises ValueError whose message begins with the
key that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentest.scenarios.calls import ARG_MATCH_MODES, CallOrder, ExpectedCall, Step, ToolName, names_in
from agentest.scenarios.parsing import count_of, known_keys, names_of, needed_count, one_of_these
from agentest.support.spelling import snake_case

MatchMode = Literal["strict", "unordered", "contains", "in_order", "within"]
MATCH_MODES = ("strict", "unordered", "contains", "in_order", "within")


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Which tool calls must, may and must not be made."""

    match_mode: MatchMode = "strict"
    expected: tuple[Step, ...] | None = None
    """None: any calls will do as far as the match mode is concerned."""
    forbidden: tuple[ExpectedCall, ...] = ()
    max_calls: int | None = None
    max_turns: int | None = None
    max_calls_per_tool: int | Mapping[str, int] | None = None
    name: str = ""
    min_calls: int | None = None
    ignore_failed: bool = False
    """Whether a call that was answered with an error may be made besides: it is free."""
    reads: tuple[ToolName, ...] = ()
    """Tools whose calls are free."""
    at_most_once: bool = False
    """Whether each expected call may be made at most once, where the mode lets it be made again."""
    rounds: bool = False
    """Whether the order is free inside one message of the agent, and fixed between messages."""
    orders: tuple[CallOrder, ...] = ()

    @property
    def about_calls(self) -> bool:
        """Whether it says anything of calls: one of `max_turns` alone does not."""
        return self.without_calls != self

    @property
    def named_tools(self) -> frozenset[str]:
        """The tools that are expected, forbidden or limited by name; a pattern is none."""
        wanted = (name for each in self.expected or () for name in names_in(each))
        return frozenset(wanted) | self.banned_tools

    @property
    def banned_tools(self) -> frozenset[str]:
        """The tools that are forbidden or limited by name: what is not seen of them breaks nothing."""
        limited = self.max_calls_per_tool if isinstance(self.max_calls_per_tool, Mapping) else ()
        return frozenset([*(name for each in self.forbidden for name in names_in(each)), *limited])

    @property
    def without_calls(self) -> Trajectory:
        """What it says of anything but calls."""
        return Trajectory(self.match_mode, max_turns=self.max_turns)


def parse_trajectories(value: Any, key: str = "trajectory") -> tuple[Trajectory, ...]:
    """All trajectories of a scenario or a turn: one, or a list of several."""
    if isinstance(value, list | tuple):
        return tuple(parse_trajectory(each, f"{key}[{at}]") for at, each in enumerate(value))
    return (parse_trajectory(value, key),)


def parse_trajectory(value: Any, key: str = "trajectory") -> Trajectory:
    """A trajectory from the dict of a scenario file."""
    if isinstance(value, Trajectory):
        return value
    options = known_keys(value, names_of(Trajectory), key)
    if not options:
        raise ValueError(f"{key}: is empty, so it would check nothing")
    mode: Any = options.get("match_mode", "strict")
    mode = snake_case(mode) if isinstance(mode, str) else mode
    if mode not in MATCH_MODES:
        raise ValueError(f"{key}.match_mode: found {mode!r}; {one_of_these(mode, MATCH_MODES)}")
    expected = options.get("expected")
    if expected is None and options.keys() == {"match_mode"}:
        raise ValueError(f"{key}.expected: is missing; write the calls that `match_mode` is about")
    return Trajectory(
        mode,
        None if expected is None else _calls(expected, f"{key}.expected"),
        _calls(options.get("forbidden", []), f"{key}.forbidden"),
        count_of(options.get("max_calls"), f"{key}.max_calls"),
        count_of(options.get("max_turns"), f"{key}.max_turns"),
        _count_per_tool(options.get("max_calls_per_tool"), f"{key}.max_calls_per_tool"),
    )


def _calls(calls: Any, key: str) -> tuple[ExpectedCall, ...]:
    if not isinstance(calls, list | tuple):
        raise ValueError(f"{key}: expected a list of tool calls, found a {type(calls).__name__}")
    return tuple(_call(item, f"{key}[{i}]") for i, item in enumerate(calls))


def _call(value: Any, key: str) -> ExpectedCall:
    if isinstance(value, ExpectedCall):
        return value
    if isinstance(value, str):
        if not value:
            raise ValueError(f"{key}: the name of the tool is empty")
        return ExpectedCall(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: expected a tool name, call(…) or a dict, found a {type(value).__name__}")
    options = known_keys(value, names_of(ExpectedCall), key)
    name, args, mode = options.get("name"), options.get("args"), options.get("arg_match_mode", "partial")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{key}.name: the name of the tool is missing")
    if args is not None and not isinstance(args, Mapping):
        raise ValueError(f"{key}.args: expected a dict, found a {type(args).__name__}")
    if mode not in ARG_MATCH_MODES:
        raise ValueError(f"{key}.arg_match_mode: found {mode!r}; {one_of_these(mode, ARG_MATCH_MODES)}")
    return ExpectedCall(name, args, mode)


def _count_per_tool(value: Any, key: str) -> int | dict[str, int] | None:
    if not isinstance(value, Mapping):
        return count_of(value, key)
    return {str(tool): needed_count(count, f"{key}.{tool}") for tool, count in value.items()}
