"""The catalog of the server's tools: their listing, and the validation of arguments and answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from agentest.domain.messages import ToolSpec
from agentest.support.errors import errors_as
from agentest.support.function_threads import in_thread
from agentest.support.json_schema import check_references, draft_of, schema_validator
from agentest.support.json_text import json_or, json_text
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.patterns import PatternTimeout, has_match
from agentest.support.text import did_you_mean, shortened

_SHOWN = 3
_SHOWN_CHARS = 200


class ToolSchema:
    """A schema of a tool, prepared for validation."""

    def __init__(self, schema: Mapping[str, Any], on_unread: Callable[[str], None]) -> None:
        """Raises ValueError for an invalid JSON Schema, or one that refers to another document.

        Args:
            on_unread: receives each `pattern` that Python cannot read, such as one in JavaScript's syntax; it
                matches everything.
        """
        from jsonschema import SchemaError

        try:
            readable = _readable(schema, on_unread)
            draft_of(readable).check_schema(readable)
            check_references(readable)
        except RecursionError:
            raise ValueError("is nested too deeply") from None
        except SchemaError as error:
            raise ValueError(f"is not a valid JSON Schema: {_in_words(error)}") from None
        self.text = schema
        self.has_patterns = '"pattern":' in json.dumps(readable)
        self._validator = schema_validator(
            readable, lambda pattern, text: has_match(re.compile(pattern), text)
        )

    def misfit(self, value: Any) -> str | None:
        """Describe how a value violates the schema; None if it is valid."""
        try:
            unsorted = list(self._validator.iter_errors(value))
        except (re.error, RecursionError):  # unreadable `patternProperties`, endless `$ref`s
            return None
        except PatternTimeout as error:
            return f"cannot be compared with a pattern: {error}"
        errors = sorted(unsorted, key=lambda error: list(map(str, error.path)))
        if not errors:
            return None
        more = f"; and {len(errors) - _SHOWN} more" if len(errors) > _SHOWN else ""
        return "; ".join(map(_in_words, errors[:_SHOWN])) + more


def _in_words(error: Any) -> str:
    at = ".".join(str(part) for part in error.path)
    message = shortened(error.message, _SHOWN_CHARS)
    return f"`{at}`: {message}" if at else message


def _readable(schema: Any, on_unread: Callable[[str], None]) -> Any:
    if isinstance(schema, list):
        return [_readable(each, on_unread) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    copy = {key: _readable(value, on_unread) for key, value in schema.items()}
    pattern = copy.get("pattern")
    if isinstance(pattern, str):
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            on_unread(pattern)
            del copy["pattern"]
    return copy


class OutputSchemaError(Exception):
    """An answer violates the tool's `outputSchema`; the message says how."""


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """The output schema of a tool. It can be sent to another process that runs conversations."""

    schema: str  # the JSON text of a valid `outputSchema`

    def __call__(self, result: Any) -> str | None:
        """Describe how a mock's answer violates the schema; None if it is valid."""
        try:
            self.structured(result)
        except OutputSchemaError as error:
            return str(error)
        return None

    def structured(self, result: Any) -> Any:
        """Return the `structuredContent` of an answer; None if it needs none. Raises OutputSchemaError."""
        schema = _read(self.schema)
        if is_ready(result):
            if result.get("isError"):
                return None
            value = result.get("structuredContent")
        else:
            # As servers in Python do, the schema may wrap a value that is not an object.
            properties = schema.text.get("properties")
            wraps = isinstance(properties, Mapping) and properties.keys() == {"result"}
            value = {"result": result} if wraps and schema.misfit(result) else result
        if problem := schema.misfit(value):
            raise OutputSchemaError(problem)
        return value


@lru_cache(maxsize=256)
def _read(schema: str) -> ToolSchema:
    return ToolSchema(json.loads(schema), on_unread=lambda _: None)  # reported when the server started


Entry = Mapping[str, Any]  # a tool as in `tools/list`: `name`, `inputSchema` and optional keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool:
    """One tool."""

    entry: Entry
    arguments: ToolSchema | None = None
    """None if no schema was recorded, so that the mock itself checks its arguments."""
    answer: OutputSchema | None = None  # the schema of `structuredContent`; None if clients expect none


class Catalog:
    """All tools by name, and their listing."""

    def __init__(self, tools: Iterable[ServedTool]) -> None:
        self._tools = {tool.entry["name"]: tool for tool in tools}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._tools)

    def listing(self, names: frozenset[str] | None = None) -> list[Entry]:
        """Return the tools with these names as in `tools/list`; all for None. Raises ValueError."""
        for name in sorted((names or frozenset()) - self._tools.keys()):
            near = did_you_mean(name, self._tools)
            raise ValueError(f"the address names the tool {name!r}, which is not served; {near}")
        return [tool.entry for name, tool in self._tools.items() if names is None or name in names]

    async def argument_problem(self, name: str, arguments: Any) -> str | None:
        """Describe how arguments violate the recorded schema; None if valid or without a schema."""
        if (tool := self._tools.get(name)) is None or (schema := tool.arguments) is None:
            return None
        # Patterns may take long, and other conversations must continue meanwhile.
        misfit = partial(schema.misfit, arguments)
        return await in_thread(misfit) if schema.has_patterns else misfit()

    def promised(self, name: str) -> OutputSchema | None:
        """Return the output schema of the tool; None if it has none."""
        tool = self._tools.get(name)
        return tool.answer if tool else None


def catalog(recorded: Sequence[Entry], mocks: Sequence[ToolSpec], on_note: Callable[[str], None]) -> Catalog:
    """Combine the tools of the real server with mocks of other tools.

    It includes the mocks of all scenarios, because clients list tools only once, at their start. Raises
    ValueError for an invalid schema.
    """
    tools = [_recorded(entry, on_note) for entry in recorded]
    known = {entry["name"] for entry in recorded}
    for mock in mocks:
        if mock.name not in known:
            described = {"description": mock.description} if mock.description else {}
            schema = {"properties": {}, **mock.parameters}  # models reject an object without them
            tools.append(ServedTool(entry={"name": mock.name, **described, "inputSchema": schema}))
    return Catalog(tools)


def _recorded(entry: Entry, on_note: Callable[[str], None]) -> ServedTool:
    arguments = _schema(entry, "inputSchema", on_note)
    if "outputSchema" not in entry:
        return ServedTool(entry=entry, arguments=arguments)
    answer = _schema(entry, "outputSchema", on_note)
    return ServedTool(entry=entry, arguments=arguments, answer=OutputSchema(json.dumps(answer.text)))


def _schema(entry: Entry, key: str, on_note: Callable[[str], None]) -> ToolSchema:
    def unread(pattern: str) -> None:
        on_note(
            f"the {key} of tool {entry['name']!r} has the pattern {pattern!r}, which Python cannot read: it "
            "was not checked"
        )

    with errors_as(ValueError, f"the {key} of tool {entry['name']!r}: "):
        return ToolSchema(entry[key], unread)


_READY_KEYS = frozenset({"content", "structuredContent", "isError", "_meta"})


def is_ready(result: Any) -> bool:
    """True if a mock returned MCP's own result format: a list `content` of typed parts."""
    if not isinstance(result, Mapping) or not result.keys() <= _READY_KEYS:
        return False
    parts = result.get("content")
    return (
        isinstance(parts, list)
        and bool(parts)
        and all(
            isinstance(part, Mapping)
            and part.get("type") in ("text", "image", "audio", "resource", "resource_link")
            for part in parts
        )
    )


def answered(result: Any, structured: Any = None) -> dict[str, Any]:
    """Return the result of a successful call, with its `structuredContent` if there is any."""
    if is_ready(result):
        return {"isError": False, **result}
    text = result if isinstance(result, str) else json_text(result)
    structured_part = {} if structured is None else {"structuredContent": structured}
    return {"content": [{"type": "text", "text": text}], **structured_part, "isError": False}


def failed(message: str) -> dict[str, Any]:
    """Return the result of a failed call, which the model reads like the error of any tool."""
    return {"content": [{"type": "text", "text": message}], "isError": True}


def value_of(result: Mapping[str, Any]) -> Any:
    """Return a real tool's answer for the record: the value itself if the content is nothing else."""
    if result.get("structuredContent") is not None:
        return result["structuredContent"]
    match result.get("content"):
        case [{"type": "text", "text": str(text)}]:
            return json_or(text, text)
    return result.get("content")
