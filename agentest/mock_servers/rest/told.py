"""The operations of a document as tools, for who is told which tools an agent has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentest.domain.messages import ToolSpec
from agentest.mock_servers.rest.document import Document
from agentest.mock_servers.rest.operations import Api, Operation, read_api
from agentest.mock_servers.rest.schema import Schema


def read_operations(path: Path) -> Api:
    """The operations of the document in a file. Raises ConfigError."""
    return read_api(Document(path))


def told_operations(api: Api, mocked: Iterable[str], spoken: Iterable[str]) -> tuple[ToolSpec, ...]:
    """The operations as tools, under the names that mocks (else trajectories) know them by."""
    return tuple(map(_told, api.named_as(mocked, spoken).operations))


def _told(operation: Operation) -> ToolSpec:
    arguments = list(_arguments(operation))
    parameters = {
        "type": "object",
        "properties": {name: schema for name, schema, _ in arguments},
        "required": [name for name, _, required in arguments if required],
    }
    return ToolSpec(name=operation.tool, description=operation.summary, parameters=parameters)


def _arguments(operation: Operation) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """The name of each argument, its schema as far as its type goes, and whether it must be there."""
    for each in operation.parameters:
        if each.where in ("path", "query"):
            yield each.argument or each.name, _type(each.schema), each.required
    kinds = operation.body.kinds.values() if operation.body else ()
    schema = next((kind for kind in kinds if kind), None)
    for name in schema.properties if schema else ():
        yield name, _type(schema.property(name) if schema else None), False


def _type(schema: Schema | None) -> dict[str, Any]:
    types = sorted(schema.types) if schema else []
    return {"type": types[0] if len(types) == 1 else types} if types else {}
