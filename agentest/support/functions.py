"""What kind of function somebody handed over. Scenario files import this: it costs next to nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling the function only makes a coroutine: it need not be called in a thread."""
    while isinstance(function, partial):
        function = function.func
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(call)


@dataclass(frozen=True, slots=True)
class Taken:
    """Which of the values that are offered to a function it takes, by their names."""

    by_position: tuple[str, ...]
    by_name: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        return frozenset((*self.by_position, *self.by_name))

    def given(self, function: Callable[..., Any], values: Callable[[str], Any]) -> partial[Any]:
        """The function with those values, to be called without any more."""
        named = {name: values(name) for name in self.by_name}
        return partial(function, *map(values, self.by_position), **named)


def taken_by(function: Callable[..., Any], offered: Sequence[str]) -> Taken:
    """What of the offered values a function takes: by the names of its parameters, the others in their order.

    A parameter of another name that has a default keeps it: `lambda reply, wanted=wanted: …` has captured it.
    Raises TypeError for one that takes none of them, or more than there are.
    """
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # a function of C that does not tell
        return Taken((offered[0],))
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return Taken(tuple(offered))
    left = [name for name in offered if name not in {p.name for p in parameters}]
    positions: list[str] = []
    names: list[str] = []
    kept_default = False
    for parameter in parameters:
        known = parameter.name if parameter.name in offered else _next_of(left, parameter, offered)
        kept_default = kept_default or known is None
        if known is not None:  # after one that keeps its default, no position is right any more
            (names if kept_default or parameter.kind is _ONLY_NAMED else positions).append(known)
    if not positions and not names:
        raise TypeError(f"it takes no parameters; it is given {_listed(offered)}")
    return Taken(tuple(positions), tuple(names))


_ONLY_NAMED = inspect.Parameter.KEYWORD_ONLY


def _next_of(left: list[str], parameter: inspect.Parameter, offered: Sequence[str]) -> str | None:
    """What a parameter is given whose name says nothing; None: its default, or nothing at all."""
    if parameter.kind is inspect.Parameter.VAR_KEYWORD or parameter.default is not inspect.Parameter.empty:
        return None
    if parameter.kind is _ONLY_NAMED or not left:
        raise TypeError(
            f"nothing is known for its parameter `{parameter.name}`; it is given {_listed(offered)}"
        )
    return left.pop(0)


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


THE_USERS: Final = object()
"""Code that is no agent's: nobody answers the tools that it calls."""
_current: ContextVar[Any] = ContextVar("agentest_whose_code", default=None)


def whose_code() -> Any:
    """Who answers the tool calls of the code that runs here: THE_USERS, or what `code_of` was given.

    None: that is not known.
    """
    return _current.get()


@contextmanager
def code_of(who: Any) -> Iterator[None]:
    """Have what runs meanwhile be somebody's code."""
    token = _current.set(who)
    try:
        yield
    finally:
        _current.reset(token)
