"""Format expected values for failures and reports, as they were written if possible."""

from __future__ import annotations

import ast
import functools
import linecache
import re
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from agentest.support.json_text import safe_repr
from agentest.support.text import shortened

_BRIEF_CHARS = 150
_ADDRESS = re.compile(r"(?<=[\w>]) at 0x[0-9a-fA-F]+(?=>)")
FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,  # str.isdigit
    functools.partial,
)
_FLAGS = {"re.I": re.I, "re.M": re.M, "re.S": re.S, "re.X": re.X, "re.A": re.A, "re.L": re.L}


def shown(value: Any) -> str:
    """Format a value for a failure's reason."""
    if isinstance(value, re.Pattern):
        try:
            inside = re.compile(value.pattern).flags
        except re.error:
            inside = 0
        flags = [name for name, flag in _FLAGS.items() if value.flags & flag & ~inside]
        return f"re.compile({', '.join(filter(None, [repr(value.pattern), ' | '.join(flags)]))})"
    if isinstance(value, FUNCTIONS):
        return written_lambda(value) or f"<predicate {getattr(value, '__name__', 'function')}>"
    if is_bare_type(value):
        name = value.__name__
        return f"the type {name} (which no value equals; write instance({name}))"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    return _ADDRESS.sub("", safe_repr(value))


def beginning(value: Any, chars: int) -> str:
    """Return the first `chars` characters of `shown(value)` without formatting all of a large state."""
    pieces, left = [], chars
    for piece in _pieces(value):
        pieces.append(piece)
        left -= len(piece)
        if left <= 0:
            break
    return "".join(pieces)[:chars]


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for at, (key, item) in enumerate(value.items()):
            yield f"{', ' if at else '{'}{key!r}: "
            yield from _pieces(item)
        yield "}" if value else "{}"
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield ", " if at else "["
            yield from _pieces(item)
        yield "]" if value else "[]"
    else:
        yield shown(value)


def brief(value: Any, limit: int = _BRIEF_CHARS) -> str:
    """Format a value for an error on one line; only its type if it cannot be formatted."""
    try:
        return shortened(shown(value), limit)
    except Exception:  # noqa: BLE001 - a user's value may contain itself or raise on access
        return f"<{type(value).__name__}>"


def type_text(value: Any) -> str:
    """Name the type of a value with an article: "a list", "an int", "None"."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def is_bare_type(value: Any) -> bool:
    """Return True if it is a type that no value equals; types of dirty-equals do compare."""
    return isinstance(value, type) and type(value).__eq__ is type.__eq__


def written_lambda(function: Any) -> str | None:
    """Return the source of a lambda on one line of a file; None for any other function."""
    if getattr(function, "__name__", "") != "<lambda>" or not isinstance(function, types.FunctionType):
        return None
    code = function.__code__
    positions = [position for position in code.co_positions() if None not in position and position[3]]
    if not positions or {line for start, end, *_ in positions for line in (start, end)} != {
        code.co_firstlineno
    }:
        return None
    line = linecache.getline(code.co_filename, code.co_firstlineno).encode()
    body, end = (
        min(position[2] or 0 for position in positions),
        max(position[3] or 0 for position in positions),
    )
    start = line.rfind(b"lambda", 0, body)
    while start >= 0:
        for stop in (end, *(end + more for more, sign in enumerate(line[end : end + 5], 1) if sign == 41)):
            text = line[start:stop].decode(errors="replace")
            if _lambda_arguments(text) == code.co_varnames[: code.co_argcount]:
                return text
        start = line.rfind(b"lambda", 0, start)
    return None


def _lambda_arguments(text: str) -> tuple[str, ...] | None:
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        tree = ast.parse(text, mode="eval").body
        if isinstance(tree, ast.Lambda):
            return tuple(each.arg for each in (*tree.args.posonlyargs, *tree.args.args))
    return None
