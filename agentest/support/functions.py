"""Inspect user functions: async or not, and which values they take. Scenario files import this, so it is
light.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if calling the function only creates a coroutine, so that no thread is needed."""
    while isinstance(function, partial):
        function = function.func
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(call)


@dataclass(frozen=True, slots=True)
class AcceptedValues:
    """The offered values that a function takes."""

    by_position: tuple[str, ...]
    by_name: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        return frozenset((*self.by_position, *self.by_name))

    def given(self, function: Callable[..., Any], values: Callable[[str], Any]) -> partial[Any]:
        """Bind those values to the function, so that it can be called without arguments."""
        named = {name: values(name) for name in self.by_name}
        return partial(function, *map(values, self.by_position), **named)


def accepted_values(function: Callable[..., Any], offered: Sequence[str]) -> AcceptedValues:
    """Match offered values to a function's parameters: by name, and the others by position.

    A parameter with another name and a default keeps its default: `lambda reply, wanted=wanted: …` has
    captured it. Raises TypeError if the function takes none of the values, or requires more.
    """
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # a C function without a signature
        return AcceptedValues((offered[0],))
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return AcceptedValues(tuple(offered))
    left = [name for name in offered if name not in {p.name for p in parameters}]
    positions: list[str] = []
    names: list[str] = []
    kept_default = False
    for parameter in parameters:
        known = parameter.name if parameter.name in offered else _next_value(left, parameter, offered)
        kept_default = kept_default or known is None
        if known is not None:  # after a parameter that keeps its default, positions no longer match
            (names if kept_default or parameter.kind is _ONLY_NAMED else positions).append(known)
    if not positions and not names:
        raise TypeError(f"it takes no parameters; it is given {_listed(offered)}")
    return AcceptedValues(tuple(positions), tuple(names))


_ONLY_NAMED = inspect.Parameter.KEYWORD_ONLY


def _next_value(left: list[str], parameter: inspect.Parameter, offered: Sequence[str]) -> str | None:
    """Choose the value for a parameter with an unknown name; None keeps its default or passes nothing."""
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


USER_CODE: Final = object()
"""Marks code that belongs to no agent, so that nothing answers the tools it calls."""
_current: ContextVar[Any] = ContextVar("agentest_whose_code", default=None)


def current_code_owner() -> Any:
    """Return who answers tool calls of the current code: THE_USERS, or the value given to `code_of`.

    None means unknown.
    """
    return _current.get()


@contextmanager
def code_owned_by(who: Any) -> Iterator[None]:
    """Attribute code that runs inside of the block to `who`."""
    token = _current.set(who)
    try:
        yield
    finally:
        _current.reset(token)
