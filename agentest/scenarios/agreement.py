"""What the parts of one scenario say of each other: contradictions are found when it is read.

Contradictions inside of one trajectory are in `contradictions`. What is wrong raises ValueError whose message
names both keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.scenarios.expectations import Saying
from agentest.scenarios.matchers.comparison import is_same
from agentest.scenarios.model import ScriptedTurn
from agentest.scenarios.trajectory import Trajectory


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


def check_user_tools(trajectories: Iterable[Trajectory], user_tools: Mapping[str, Any]) -> None:
    """Raise ValueError where a trajectory names a tool of the simulated user's."""
    for made in trajectories:
        _check_user_tools(made, user_tools)


def _check_user_tools(made: Trajectory, user_tools: Mapping[str, Any]) -> None:
    for name in sorted(made.named_tools & user_tools.keys()):
        raise ValueError(
            f"{_key(made)}: {name} is one of the `user_tools`, whose calls no trajectory sees; say by "
            "`final_state` or `check` what they must have done"
        )


def _key(made: Trajectory, key: str = "trajectory") -> str:
    return f"{key} {made.name!r}" if made.name else key
