"""What the real tool may answer, and so its mock: clients compare answers with a tool's `outputSchema`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agentest.mock_servers.mcp.content import is_ready
from agentest.mock_servers.mcp.schemas import Schema


class Misfit(Exception):
    """An answer is not what the tool's `outputSchema` says; the message says how."""


@dataclass(frozen=True, slots=True)
class Promised:
    """What a tool has promised to answer. It may go to another process, where conversations are held."""

    schema: str
    """The JSON text of a valid `outputSchema`."""

    def __call__(self, result: Any) -> str | None:
        """Why a mock's answer is none of this tool's; None: it is one."""
        try:
            self.structured(result)
        except Misfit as error:
            return str(error)
        return None

    def structured(self, result: Any) -> Any:
        """The `structuredContent` of an answer; None: it needs none. Raises Misfit."""
        if is_ready(result) and result.get("isError"):
            return None
        schema = _read(self.schema)
        value = _value(result, schema)
        if problem := schema.misfit(value):
            raise Misfit(problem)
        return value


def _value(result: Any, schema: Schema) -> Any:
    if is_ready(result):
        return result.get("structuredContent")
    return {"result": result} if _wraps(schema.text) and schema.misfit(result) else result


def _wraps(schema: Mapping[str, Any]) -> bool:
    """Whether it is that of a value that is no object, which servers in Python put into one."""
    properties = schema.get("properties")
    return isinstance(properties, Mapping) and properties.keys() == {"result"}


@lru_cache(maxsize=256)
def _read(schema: str) -> Schema:
    return Schema(json.loads(schema), on_unread=lambda _: None)  # that was told when the server opened
