"""Which calls are which expected calls, and which of them are paired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentest.evaluate.matching import longest_in_order, maximum_matching
from agentest.matchers.comparison import CannotTell, PredicateFailed, equal
from agentest.matchers.showing import shown
from agentest.scenarios.calls import ExpectedCall
from agentest.transcript import ARGUMENTS_UNTOLD, ToolCall, arguments_untold

Cell = tuple[int, int]
"""Position of an expected call and of a call that was made."""
Partners = Sequence[int | None]
"""For each expected call the position of its own call; None: it has none."""


def call_matches(expected: ExpectedCall, made: ToolCall) -> bool:
    """Whether a call is one that is expected. Raises PredicateFailed, CannotTell."""
    if expected.name != made.name:
        return False
    wanted = wanted_arguments(expected)
    if wanted is None:
        return True
    if arguments_untold(made):
        raise CannotTell(ARGUMENTS_UNTOLD)
    if not isinstance(made.args, Mapping):
        return False
    if expected.arg_match_mode == "exact":
        return equal(wanted, made.args)
    return all(key in made.args and equal(value, made.args[key]) for key, value in wanted.items())


def wanted_arguments(expected: ExpectedCall) -> Mapping[str, Any] | None:
    """What the arguments are held against; None: any will do."""
    if expected.arg_match_mode == "ignore" or (expected.arg_match_mode == "partial" and not expected.args):
        return None
    return expected.args


def expected_text(expected: ExpectedCall) -> str:
    """An expected call as it is shown: `name(key=value, …)`."""
    wanted = wanted_arguments(expected)
    if wanted is None:
        return str(expected.name)
    arguments = [f"{key}={shown(value)}" for key, value in wanted.items()]
    more = ["…"] if expected.arg_match_mode == "partial" else []
    return f"{expected.name}({', '.join([*arguments, *more])})"


@dataclass(frozen=True, slots=True)
class CallTable:
    """Which calls made (columns) are which expected calls (rows).

    A predicate that raised did not match: it can let a trajectory fail, but never hold. `raised` says why.
    None stands where it could not be decided, and `undecided` says why.
    """

    expected: Sequence[ExpectedCall]
    calls: Sequence[ToolCall]
    matches: Sequence[Sequence[bool | None]]
    raised: tuple[str, ...]
    undecided: tuple[str, ...] = ()
    whys: Mapping[Cell, str] = field(default_factory=dict)
    """Why a predicate raised, or could not decide, where it did."""

    @classmethod
    def of(cls, expected: Sequence[ExpectedCall], calls: Sequence[ToolCall]) -> CallTable:
        """All expected calls held against all calls."""
        raised: list[str] = []
        undecided: list[str] = []
        whys: dict[Cell, str] = {}

        def matches(row: int, wanted: ExpectedCall, column: int) -> bool | None:
            try:
                return call_matches(wanted, calls[column])
            except PredicateFailed as error:
                whys[row, column] = f"{wanted.name}: {error}"
                unsure = isinstance(error, CannotTell)
                (undecided if unsure else raised).append(whys[row, column])
                return None if unsure else False

        rows = [[matches(i, wanted, j) for j in range(len(calls))] for i, wanted in enumerate(expected)]
        return cls(expected, calls, rows, tuple(dict.fromkeys(raised)), tuple(dict.fromkeys(undecided)), whys)

    def decided(self, answer: bool) -> CallTable:
        """The table with this answer in the place of those that could not be had."""
        if not self.undecided:
            return self
        rows = [[answer if match is None else match for match in row] for row in self.matches]
        return replace(self, matches=rows)

    def columns(self) -> list[bool]:
        """For each call, whether it is any of those expected."""
        return [any(row[i] for row in self.matches) for i in range(len(self.calls))]

    def partners(self, *, ordered: bool = False) -> Partners:
        """The best assignment there is: as many expected calls as can have a call of their own.

        Args:
            ordered: whether as many as possible are in the order in which they are expected.
        """
        begin = longest_in_order(self.matches, len(self.calls)) if ordered else None
        if begin and None not in begin:
            return begin
        edges = [[i for i, match in enumerate(row) if match] for row in self.matches]
        return maximum_matching(edges, len(self.calls), begin)

    def missing_and_extra(self, *, ordered: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What is left of the expected calls and of those made by the `partners`."""
        partners = self.partners(ordered=ordered)
        taken = set(partners)
        missing = tuple(str(e.name) for e, call in zip(self.expected, partners, strict=True) if call is None)
        extra = tuple(call.name for i, call in enumerate(self.calls) if i not in taken)
        return missing, extra
