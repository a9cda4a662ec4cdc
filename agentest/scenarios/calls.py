"""Expected tool calls: the values, and the words of scenario files that make them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

ArgMatchMode = Literal["ignore", "partial", "exact"]
ARG_MATCH_MODES = ("ignore", "partial", "exact")

ToolName = str | re.Pattern[str]
"""A name, a glob (`get_*`) or a compiled pattern, which matches the whole name."""


class _Anything:
    """What stands for a result of which nothing is said: None is a result."""

    def __repr__(self) -> str:
        return "anything"


ANYTHING: Final = _Anything()


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A tool call that is expected or forbidden; `args` is compared as `arg_match_mode` says."""

    name: ToolName
    args: Mapping[str, Any] | None = None
    """None: every call of that name, whatever the mode. A key with dots is a path: `amount.value`."""
    arg_match_mode: ArgMatchMode = "partial"
    where: Callable[[dict[str, Any]], Any] | None = None
    """Is asked about all arguments."""
    result: Any = ANYTHING
    """What the tool must have answered; of a dict the keys that are given."""
    nth: int | None = None
    """Which of the calls that count it must be: 1 the first, -1 the last; None: any."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Alternatives, of which one is enough: each is a path, one call or several."""

    paths: tuple[tuple[ExpectedCall | AnyOf, ...], ...]

    @property
    def single(self) -> tuple[ExpectedCall, ...] | None:
        """The calls of which any will do, where each path is one call; None: one of them is longer."""
        calls: list[ExpectedCall] = []
        for path in self.paths:
            if len(path) != 1:
                return None
            one = path[0].single if isinstance(path[0], AnyOf) else (path[0],)
            if one is None:
                return None
            calls += one
        return tuple(calls)


Step = ExpectedCall | AnyOf
"""What stands in a list of expected calls."""


def names_in(step: Step) -> Iterator[str]:
    """The tools that a step names; a pattern names none."""
    if isinstance(step, AnyOf):
        for path in step.paths:
            for each in path:
                yield from names_in(each)
    elif isinstance(step.name, str) and not is_glob(step.name):
        yield step.name


def is_glob(name: str) -> bool:
    """Whether a name of a tool stands for several."""
    return any(sign in name for sign in "*?[")


@dataclass(frozen=True, slots=True)
class CallOrder:
    """An order between two calls. Nothing is demanded where `then` is not made.

    `before`: each call of `then` has a call of `first` before it. `never_after`: no call of `first` comes
    after any of `then`.
    """

    kind: Literal["before", "never_after"]
    first: Step
    then: Step


def call(tool: ToolName, args: Mapping[str, Any] | None = None, /, **more: Any) -> ExpectedCall:
    """A call of `tool` whose arguments include these; other arguments may have any value."""
    return ExpectedCall(tool, {**(args or {}), **more})
