"""The schemas of answers, as they are sent to a judge's model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from agentest.models.structured_output import answer_schema


def shapes(room: str, of: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    """Those that are written down in the modules of a room."""
    for each in of.__subclasses__():
        module = sys.modules.get(each.__module__)
        if each.__module__.startswith(room) and getattr(module, each.__name__, None) is each:
            yield each
        yield from shapes(room, each)


def _said(schema: Any) -> list[str]:
    """What is described anywhere in a schema."""
    if isinstance(schema, list):
        return [text for each in schema for text in _said(each)]
    if not isinstance(schema, dict):
        return []
    own = [schema["description"]] if isinstance(schema.get("description"), str) else []
    return own + [text for each in schema.values() for text in _said(each)]


def check_no_descriptions(shape: type[BaseModel]) -> None:
    """A schema holds names and choices alone: our own docstrings are no part of a prompt."""
    schema = answer_schema(shape)
    assert not _said(schema), shape
    assert "judge" not in json.dumps(schema).lower(), shape


def check_reasons_come_first(shape: type[BaseModel]) -> None:
    """A model that writes in the order of the schema gives its reason before the value that it decides."""
    decisive = {"value", "outcome", "result", "label", "reached"}
    schema = answer_schema(shape)
    for form in (schema, *schema.get("$defs", {}).values()):
        keys = list(form.get("properties", ()))
        decided = decisive.intersection(keys) if "reason" in keys else ()
        assert all(keys.index("reason") < keys.index(key) for key in decided), shape
