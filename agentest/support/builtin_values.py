"""Values of Python's own types alone: told apart, copied, and told in JSON, at the speed of C."""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn


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
