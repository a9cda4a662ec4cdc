"""The JSON Schemas of a tool: do its arguments fit, and its answer?"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from agentest.support.json_schema import check_references, draft_of, schema_validator
from agentest.support.patterns import PatternTimeout, searches
from agentest.support.text import shortened

_SHOWN = 3
_SHOWN_CHARS = 200


class Schema:
    """A schema of a tool, ready to be compared with values."""

    def __init__(self, schema: Mapping[str, Any], on_unread: Callable[[str], None]) -> None:
        """Raises ValueError for what is no JSON Schema, or refers to another document.

        Args:
            on_unread: receives each `pattern` that Python cannot read, as those of JavaScript may be; it is
                taken to match.
        """
        try:
            readable = _readable(schema, on_unread)
            _check(readable)
        except RecursionError:
            raise ValueError("is nested too deeply") from None
        self.text = schema
        self.has_patterns = '"pattern":' in json.dumps(readable)
        self._validator = schema_validator(readable, _found)

    def misfit(self, value: Any) -> str | None:
        """What is wrong with a value, in words; None where it fits."""
        try:
            found = list(self._validator.iter_errors(value))
        except (
            re.error,
            RecursionError,
        ):  # unreadable `patternProperties`, endless `$ref`s
            return None
        except PatternTimeout as error:
            return f"cannot be compared with a pattern: {error}"
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


def _readable(schema: Any, on_unread: Callable[[str], None]) -> Any:
    """The schema without the patterns that Python cannot read."""
    if isinstance(schema, list):
        return [_readable(each, on_unread) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: _readable(value, on_unread) for key, value in schema.items()}
    pattern = kept.get("pattern")
    if isinstance(pattern, str) and not _compiles(pattern):
        on_unread(pattern)
        del kept["pattern"]
    return kept


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _found(pattern: str, text: str) -> bool:
    return searches(re.compile(pattern), text)
