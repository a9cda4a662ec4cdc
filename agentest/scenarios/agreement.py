"""What the parts of one scenario say of each other: what no conversation could meet is found when it is read.

Contradictions inside of one trajectory are in `contradictions`. What is wrong raises ValueError whose message
names both keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.matchers.comparison import is_same
from agentest.scenarios.alternatives import calls_in
from agentest.scenarios.calls import CallOrder, ExpectedCall, Step
from agentest.scenarios.contradictions import forbids
from agentest.scenarios.expectations import Saying, check_turns
from agentest.scenarios.model import ScriptedTurn
from agentest.scenarios.names import is_one_tool, name_matches, name_text
from agentest.scenarios.trajectory import Trajectory
from agentest.support.text import count

_CLOSED = ("strict", "unordered")


def check_sayings(turns: Sequence[ScriptedTurn], expect: Sequence[Saying]) -> None:
    """Raise ValueError where the same must be said and must never be said."""
    said = [*_said(turns, expect)]
    bans = [each for each in said if each.never]
    for demand in said:
        ban = next((each for each in bans if not demand.never and each.bans(demand)), None)
        if ban:
            raise ValueError(f"{demand.key}: what must be said, {ban.key} forbids; leave out one of them")


@dataclass(frozen=True, slots=True)
class _Said:
    key: str
    wanted: Any
    never: bool
    turn: int | None
    """None: any turn, or every one."""

    def bans(self, demand: _Said) -> bool:
        if self.turn is not None and self.turn != demand.turn:
            return False
        if isinstance(self.wanted, str) and isinstance(demand.wanted, str):
            return self.wanted in demand.wanted
        return is_same(self.wanted, demand.wanted)


def _said(turns: Sequence[ScriptedTurn], expect: Sequence[Saying]) -> Iterator[_Said]:
    for each in expect:
        word = "never_says" if each.never else "says"
        place = each.in_turn % len(turns) if turns and each.in_turn else each.in_turn
        yield _Said(f"expect.{word}", each.wanted, each.never, place)
    for at, turn in enumerate(turns):
        for word in ("contains", "not_contains", "says", "never_says") if turn.expect else ():
            for wanted in getattr(turn.expect, word):
                is_ban = word in ("not_contains", "never_says")
                yield _Said(f"turns[{at}].expect.{word}", wanted, is_ban, at)


def check_trajectories(
    trajectories: Sequence[Trajectory],
    turns: Sequence[ScriptedTurn],
    expect: Sequence[Saying],
    user_tools: Mapping[str, Any],
) -> None:
    """Raise ValueError where a trajectory cannot be met beside another one, a script or what is said when."""
    for made in trajectories:
        _check_turns(made, turns, expect)
    for at, made in enumerate(trajectories):
        _check_user_tools(made, user_tools)
        _check_orders(made)
        for other in (*trajectories[:at], *trajectories[at + 1 :]):
            _check_pair(made, other, "trajectory")
    for at, turn in enumerate(turns):
        for made in turn.trajectory:
            for other in trajectories:
                _check_pair(made, other, f"turns[{at}].trajectory")


def _check_turns(made: Trajectory, turns: Sequence[ScriptedTurn], expect: Sequence[Saying]) -> None:
    most = made.max_turns
    if most is None:
        return
    if most < max(1, len(turns)):
        held = (
            f"the script has {count(len(turns), 'turn')}" if turns else "a conversation has at least one turn"
        )
        raise ValueError(f"{_key(made)}.max_turns: is {most}, but {held}")
    check_turns(expect, most, f"`{_key(made)}.max_turns` is {most}")


def _check_orders(made: Trajectory) -> None:
    """Raise ValueError where the expected calls, in their order, cannot keep an order between two calls."""
    steps = made.expected or ()
    if made.match_mode not in _CLOSED or made.rounds:
        return
    for order in made.orders:
        for at, step in enumerate(steps):
            if not _is_surely(order.then, step):
                continue
            others = steps[:at] if made.match_mode == "strict" else (*steps[:at], *steps[at + 1 :])
            if order.kind == "before" and not _may_be(order.first, others, made):
                raise ValueError(f"{_key(made)}.before: {_names(order)}, but none is in `expected` before it")
            later = steps[at + 1 :] if made.match_mode == "strict" else ()
            if order.kind == "never_after" and any(_is_surely(order.first, each) for each in later):
                raise ValueError(f"{_key(made)}.never_after: {_names(order)}, but `expected` has it later")


def _names(order: CallOrder) -> str:
    first, then = (" or ".join(name_text(each.name) for each in calls_in([side])) for side in _sides(order))
    return f"{first} before {then}" if order.kind == "before" else f"{first} never after {then}"


def _sides(order: CallOrder) -> tuple[Step, Step]:
    return order.first, order.then


def _is_surely(side: Step, step: Step) -> bool:
    """Whether every call that meets a step is one that an order speaks of."""
    return isinstance(step, ExpectedCall) and any(forbids(each, step) for each in calls_in([side]))


def _may_be(side: Step, steps: Sequence[Step], made: Trajectory) -> bool:
    """Whether one of these steps, or a call that is free, may be one that an order speaks of."""
    wanted = [each.name for each in calls_in([side])]
    made_here = [each.name for each in calls_in(steps)]
    if made.reads or not all(map(is_one_tool, (*wanted, *made_here))):
        return True
    return not set(wanted).isdisjoint(made_here)


def _check_user_tools(made: Trajectory, user_tools: Mapping[str, Any]) -> None:
    for name in sorted(made.named_tools & user_tools.keys()):
        raise ValueError(
            f"{_key(made)}: {name} is one of the `user_tools`, whose calls no trajectory sees; say by "
            "`final_state` or `check` what they must have done"
        )


def _check_pair(made: Trajectory, other: Trajectory, key: str) -> None:
    """Raise ValueError where one trajectory expects what another one of the scenario does not let be."""
    if made.match_mode == "within" or not made.expected:
        return
    wanted = [each for each in made.expected if isinstance(each, ExpectedCall)]
    for each in wanted:
        why = _not_let(each, other)
        if why:
            raise ValueError(f"{_key(made, key)}.expected: {name_text(each.name)} is expected, but {why}")
    free = other.ignore_failed or other.reads
    if other.max_calls is not None and not free and len(wanted) > other.max_calls:
        needed = count(len(wanted), "call")
        raise ValueError(
            f"{_key(made, key)}.expected: has {needed}, but `{_key(other)}.max_calls` is {other.max_calls}"
        )


def _not_let(each: ExpectedCall, other: Trajectory) -> str | None:
    if any(forbids(banned, each) for banned in other.forbidden):
        return f"`{_key(other)}.forbidden` forbids it"
    if isinstance(each.name, str) and is_one_tool(each.name):
        if other.limit_of(each.name) == 0:
            return f"`{_key(other)}.max_calls_per_tool` is 0 for it"
        if _leaves_out(other, each.name):
            return f"`{_key(other)}` expects no call of it, and {other.match_mode!r} allows no others"
    return None


def _leaves_out(other: Trajectory, tool: str) -> bool:
    """Whether a trajectory that allows no other calls than the expected ones has none of a tool."""
    if other.expected is None or other.match_mode not in _CLOSED or other.ignore_failed:
        return False
    names = {step.name for step in other.expected if isinstance(step, ExpectedCall)}
    has_alternatives = any(not isinstance(step, ExpectedCall) for step in other.expected)
    may_be = has_alternatives or any(name_matches(name, tool) for name in (*names, *other.reads))
    return not may_be


def _key(made: Trajectory, key: str = "trajectory") -> str:
    return f"{key} {made.name!r}" if made.name else key
