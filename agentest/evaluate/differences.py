"""What of a call is not as it was expected, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentest.evaluate.call_table import wanted_arguments
from agentest.matchers.comparison import PredicateFailed, equal, is_plain
from agentest.matchers.showing import shown
from agentest.scenarios.calls import ExpectedCall
from agentest.support.json_text import safe_repr
from agentest.support.text import shortened
from agentest.transcript import ToolCall

_MOST = 5
"""Arguments that are named."""
_VALUE_CHARS = 80
_MOST_DEPTH = 3


def difference(expected: ExpectedCall, made: ToolCall) -> str:
    """`amount: expected 5, got 500` for each argument of a call that is not the expected one.

    Functions and patterns of the user's are asked no more than they were asked to find that out: the first
    of them that does not hold is named, so that none hangs here that did not hang before.
    """
    wanted = wanted_arguments(expected)
    if wanted is None:
        return ""
    if not isinstance(made.args, Mapping):
        return f"the arguments are no object: {_made(made.args)}"
    words = _Words()
    words.compare(wanted, made.args, exact=expected.arg_match_mode == "exact")
    more = [f"{len(words.found) - _MOST} more"] if len(words.found) > _MOST else []
    return "; ".join([*words.found[:_MOST], *more])


def alike(expected: ExpectedCall, made: ToolCall) -> int:
    """How many arguments are as expected, of those that can be compared without code of the user's."""
    wanted = wanted_arguments(expected) or {}
    if not isinstance(made.args, Mapping):
        return -1
    return sum(
        key in made.args and is_plain(value) and equal(value, made.args[key]) for key, value in wanted.items()
    )


@dataclass(slots=True)
class _Words:
    found: list[str] = field(default_factory=list)

    def compare(
        self,
        wanted: Mapping[str, Any],
        given: Mapping[str, Any],
        *,
        exact: bool,
        inside: str = "",
        depth: int = 0,
    ) -> None:
        if exact:
            for key in [each for each in given if each not in wanted]:
                self._note(inside, key, f"not expected, got {_made(given[key])}")
        for key in [each for each in wanted if each not in given]:
            self._note(inside, key, f"expected {_short(wanted[key])}, not given")
        for key in [each for each in wanted if each in given]:
            value, actual = wanted[key], given[key]
            if isinstance(value, Mapping) and isinstance(actual, Mapping) and depth < _MOST_DEPTH:
                self.compare(value, actual, exact=True, inside=f"{inside}{_name(key)}.", depth=depth + 1)
            elif self._differs(value, actual):
                self._note(inside, key, f"expected {_short(value)}, got {_made(actual)}")

    def _note(self, inside: str, key: Any, words: str) -> None:
        self.found.append(f"{inside}{_name(key)}: {words}")

    def _differs(self, expected: Any, actual: Any) -> bool:
        if self.found and not is_plain(expected):
            return False
        try:
            return not equal(expected, actual)
        except PredicateFailed:
            return True


def _name(key: Any) -> str:
    return shortened(str(key), _VALUE_CHARS)


def _short(value: Any) -> str:
    return shortened(shown(value), _VALUE_CHARS)


def _made(value: Any) -> str:
    return shortened(safe_repr(value), _VALUE_CHARS)
