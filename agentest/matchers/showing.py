"""Expected values as failures and reports show them: as they were written, as far as that can be known."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Mapping
from typing import Any

from agentest.support.json_text import safe_repr

FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,  # str.isdigit
    functools.partial,
)
"""What is asked as a predicate."""


def shown(value: Any) -> str:
    """A value as a failure's reason shows it."""
    if isinstance(value, re.Pattern):
        return f"re.compile({value.pattern!r})"
    if isinstance(value, FUNCTIONS):
        return f"<predicate {getattr(value, '__name__', 'function')}>"
    if (
        isinstance(value, type) and type(value).__eq__ is type.__eq__
    ):  # dirty-equals has types that do compare
        name = value.__name__
        return f"the type {name} (which no value equals; ask lambda value: isinstance(value, {name}))"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    return safe_repr(value)
