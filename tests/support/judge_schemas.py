"""The schemas of answers, as sent to a judge model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from agentest.models.structured_output import answer_schema


def shapes(room: str, of: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    """The answer classes in the modules of a package."""
    for each in of.__subclasses__():
        module = sys.modules.get(each.__module__)
        if each.__module__.startswith(room) and getattr(module, each.__name__, None) is each:
            yield each
        yield from shapes(room, each)


def _said(schema: Any) -> list[str]:
    """Return all descriptions in a schema."""
    if isinstance(schema, list):
        return [text for each in schema for text in _said(each)]
    if not isinstance(schema, dict):
        return []
    own = [schema["description"]] if isinstance(schema.get("description"), str) else []
    return own + [text for each in schema.values() for text in _said(each)]


def check_no_descriptions(shape: type[BaseModel]) -> None:
    """Check that a schema has only names and choices, without our docstrings."""
    schema = answer_schema(shape)
    assert not _said(schema), shape
    assert "judge" not in json.dumps(schema).lower(), shape


def check_reasons_come_first(shape: type[BaseModel]) -> None:
    """Check that the reason comes before the value that it explains."""
    decisive = {"value", "outcome", "result", "label", "reached"}
    schema = answer_schema(shape)
    for form in (schema, *schema.get("$defs", {}).values()):
        keys = list(form.get("properties", ()))
        decided = decisive.intersection(keys) if "reason" in keys else ()
        assert all(keys.index("reason") < keys.index(key) for key in decided), shape
