"""The JSON Schemas of a tool: do its arguments fit, and its answer?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentest.support.json_schema import check_references, draft_of, schema_validator
from agentest.support.text import shortened

_SHOWN = 3
_SHOWN_CHARS = 200


class Schema:
    """A schema of a tool, ready to be compared with values."""

    def __init__(self, schema: Mapping[str, Any], on_unread: Callable[[str], None]) -> None:
        """Raises ValueError for what is no JSON Schema, or refers to another document.

        Args:
            on_unread: receives each pattern that Python cannot read; it is taken to match.
        """
        _check(schema)
        patterns = {pattern: _compiled(pattern) for pattern in sorted(set(_patterns(schema)))}
        for pattern, compiled in patterns.items():
            if compiled is None:
                on_unread(pattern)

        def search(pattern: str, text: str) -> bool:
            compiled = patterns.get(pattern)
            return compiled is None or compiled.search(text) is not None

        self.text = schema
        self._validator = schema_validator(schema, search)

    def misfit(self, value: Any) -> str | None:
        """What is wrong with a value, in words; None where it fits."""
        try:
            found = list(self._validator.iter_errors(value))
        except (
            re.error,
            RecursionError,
        ):  # unreadable `patternProperties`, endless `$ref`s
            return None
        errors = sorted(found, key=lambda error: list(map(str, error.path)))
        if not errors:
            return None
        more = f"; and {len(errors) - _SHOWN} more" if len(errors) > _SHOWN else ""
        return "; ".join(map(_in_words, errors[:_SHOWN])) + more


def _check(schema: Mapping[str, Any]) -> None:
    from jsonschema import SchemaError

    try:
        draft_of(schema).check_schema(schema)
        check_references(schema)
    except SchemaError as error:
        raise ValueError(f"is not a valid JSON Schema: {_in_words(error)}") from None


def _in_words(error: Any) -> str:
    at = ".".join(str(part) for part in error.path)
    message = shortened(error.message, _SHOWN_CHARS)
    return f"`{at}`: {message}" if at else message


def _patterns(schema: Any) -> Iterator[str]:
    """Whatever may be a regular expression, at any depth."""
    waiting = [schema]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Mapping):
            if isinstance(pattern := found.get("pattern"), str):
                yield pattern
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
