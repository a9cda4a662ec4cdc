"""Check users' JSON Schemas once, and validate values offline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def schema_validator(schema: Mapping[str, Any], search: Callable[[str, str], bool]) -> Any:
    """Return a jsonschema validator that knows the published drafts and never uses the network.

    Args:
        search: returns True if a `pattern` matches in a text. Its exceptions are passed on.
    """
    from jsonschema import ValidationError
    from jsonschema.validators import extend

    def pattern(validator: Any, expected: str, value: Any, _: Any) -> Iterator[ValidationError]:
        if validator.is_type(value, "string") and not search(expected, value):
            yield ValidationError(f"{value!r} does not match {expected!r}")

    make: Any = extend
    return make(draft_of(schema), {"pattern": pattern})(schema, registry=_published())


def draft_of(schema: Mapping[str, Any]) -> Any:
    from jsonschema.validators import Draft202012Validator, validator_for

    if not isinstance(schema.get("$schema", ""), str):
        raise ValueError(f"is not a valid JSON Schema: `$schema` is {schema['$schema']!r}")
    return validator_for(schema, default=Draft202012Validator)


def _published() -> Any:
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    return REGISTRY


def check_references(schema: Mapping[str, Any]) -> None:
    """Raise ValueError for a `$ref` that leaves the schema, at any depth and through other references."""
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012, Schema, SchemaResource, specification_with

    draft = specification_with(str(schema.get("$schema", "")), default=DRAFT202012)
    root = draft.create_resource(schema)
    waiting: list[tuple[SchemaResource, Any]] = [(root, _published().resolver_with_root(root))]
    visited: set[int] = set()
    while waiting:
        resource, resolver = waiting.pop()
        contents: Schema = resource.contents
        if id(contents) in visited:
            continue
        visited.add(id(contents))
        waiting += [(sub, resolver.in_subresource(sub)) for sub in resource.subresources()]
        if isinstance(contents, Mapping):
            for ref in (contents[word] for word in ("$ref", "$dynamicRef") if word in contents):
                try:
                    resolved = resolver.lookup(ref)
                except (Unresolvable, ValueError, TypeError, AttributeError):
                    raise ValueError(
                        f"`$ref` {ref!r} is not in the schema; write what it refers to into the schema's "
                        "`$defs` (schemas are never fetched)"
                    ) from None
                draft_of(schema).check_schema(resolved.contents)  # it may not be in the place of a schema
                waiting.append((draft.create_resource(resolved.contents), resolved.resolver))
