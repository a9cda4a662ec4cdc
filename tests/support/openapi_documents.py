"""Small OpenAPI documents for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentest.plugins.servers.rest.document import Document
from agentest.plugins.servers.rest.operations import Api, read_api

ORDER = {
    "type": "object",
    "required": ["item"],
    "properties": {"item": {"type": "string"}, "quantity": {"type": "integer", "minimum": 1}},
}


def parameter(name: str, where: str = "query", kind: Any = "string", **more: Any) -> dict[str, Any]:
    """A parameter; `kind` is a type, or a schema."""
    schema = kind if isinstance(kind, dict) else {"type": kind}
    return {
        "name": name,
        "in": where,
        "schema": schema,
        **({"required": True} if where == "path" else {}),
        **more,
    }


def operation(tool: str | None = None, *parameters: Any, body: Any = None, **more: Any) -> dict[str, Any]:
    """An operation; `body` is the schema of its JSON."""
    made: dict[str, Any] = {"parameters": list(parameters), **more}
    if tool is not None:
        made["operationId"] = tool
    if body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return made


def answers(status: str, schema: Any = None, kind: str = "application/json") -> dict[str, Any]:
    """The answers of an operation: one, with a schema of its body."""
    told = {"description": "", **({"content": {kind: {"schema": schema}}} if schema is not None else {})}
    return {"responses": {status: told}}


def document(paths: dict[str, Any], version: str = "3.1.0", **more: Any) -> dict[str, Any]:
    return {"openapi": version, "info": {"title": "shop", "version": "1"}, "paths": paths, **more}


def large_document(operations: int) -> dict[str, Any]:
    """A document like that of Kubernetes, which has 1,100 operations: 3,700 bytes for each of them."""
    words = "one of the values that the object has, as the server keeps them " * 4
    schemas = {
        f"Kind{number}": {
            "description": words,
            "type": "object",
            "properties": {
                "before": {"$ref": f"#/components/schemas/Kind{max(0, number - 1)}"},
                **{f"field{i}": {"type": "string", "description": words} for i in range(8)},
            },
        }
        for number in range(operations)
    }
    common = [parameter(f"option{i}", description=words) for i in range(3)]
    paths = {
        f"/kinds/{number}/{{name}}": {
            "parameters": [
                parameter("name", "path"),
                *({"$ref": f"#/components/parameters/{i}"} for i in range(3)),
            ],
            "put": operation(
                f"replaceKind{number}",
                body={"$ref": f"#/components/schemas/Kind{number}"},
                **answers("200", {"$ref": f"#/components/schemas/Kind{number}"}),
            ),
        }
        for number in range(operations)
    }
    parameters = {str(i): each for i, each in enumerate(common)}
    return document(paths, components={"schemas": schemas, "parameters": parameters})


SHOP = document(
    {
        "/orders": {
            "post": operation(
                "place_order", body={"$ref": "#/components/schemas/Order"}, **answers("201", {})
            ),
            "get": operation(
                "list_orders",
                parameter("limit", kind="integer"),
                parameter("tag", kind={"type": "array", "items": {"type": "string"}}),
                **answers("200", {"type": "array"}),
            ),
        },
        "/orders/{id}": {
            "parameters": [parameter("id", "path", "integer")],
            "get": operation("get_order", **answers("200", {"type": "object", "required": ["total"]})),
            "delete": operation("cancel_order", **answers("204")),
        },
        "/motto": {"get": operation("motto", **answers("200", {"type": "string"}, "text/plain"))},
    },
    servers=[{"url": "https://shop.example/v1"}],
    components={"schemas": {"Order": ORDER}},
)


def written(folder: Path, value: Any, name: str = "shop.json") -> Path:
    """A file; a value is written as JSON."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1), encoding="utf-8")
    return path


def api_of(folder: Path, value: Any, name: str = "shop.json") -> Api:
    api = read_api(Document(written(folder, value, name)))
    api.check([name for each in api.problems for name in each.names])
    return api
