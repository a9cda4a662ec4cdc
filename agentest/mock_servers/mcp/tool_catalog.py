"""The catalog of the server's tools: their listing, and the validation of arguments and answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from agentest.domain.messages import ToolSpec
from agentest.mock_servers.mcp.jsonrpc import INVALID_PARAMS, RpcError
from agentest.support.function_threads import in_thread
from agentest.support.json_schema import check_references, draft_of, schema_validator
from agentest.support.json_text import json_text
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
        try:
            readable = _readable(schema, on_unread)
            _check(readable)
        except RecursionError:
            raise ValueError("is nested too deeply") from None
        self.text = schema
        self.has_patterns = '"pattern":' in json.dumps(readable)
        self._validator = schema_validator(readable, _matches_pattern)

    def misfit(self, value: Any) -> str | None:
        """Describe how a value violates the schema; None if it is valid."""
        try:
            unsorted = list(self._validator.iter_errors(value))
        except (
            re.error,
            RecursionError,
        ):  # unreadable `patternProperties`, endless `$ref`s
            return None
        except PatternTimeout as error:
            return f"cannot be compared with a pattern: {error}"
        errors = sorted(unsorted, key=lambda error: list(map(str, error.path)))
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
    """Return the schema without the patterns that Python cannot read."""
    if isinstance(schema, list):
        return [_readable(each, on_unread) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    copy = {key: _readable(value, on_unread) for key, value in schema.items()}
    pattern = copy.get("pattern")
    if isinstance(pattern, str) and not _compiles(pattern):
        on_unread(pattern)
        del copy["pattern"]
    return copy


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _matches_pattern(pattern: str, text: str) -> bool:
    return has_match(re.compile(pattern), text)


class OutputSchemaError(Exception):
    """An answer violates the tool's `outputSchema`; the message says how."""


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """The output schema of a tool. It can be sent to another process that runs conversations."""

    schema: str
    """The JSON text of a valid `outputSchema`."""

    def __call__(self, result: Any) -> str | None:
        """Describe how a mock's answer violates the schema; None if it is valid."""
        try:
            self.structured(result)
        except OutputSchemaError as error:
            return str(error)
        return None

    def structured(self, result: Any) -> Any:
        """Return the `structuredContent` of an answer; None if it needs none. Raises Misfit."""
        if is_ready(result) and result.get("isError"):
            return None
        schema = _read(self.schema)
        value = _value(result, schema)
        if problem := schema.misfit(value):
            raise OutputSchemaError(problem)
        return value


def _value(result: Any, schema: ToolSchema) -> Any:
    if is_ready(result):
        return result.get("structuredContent")
    return {"result": result} if _wraps(schema.text) and schema.misfit(result) else result


def _wraps(schema: Mapping[str, Any]) -> bool:
    """True if the schema wraps a value that is not an object, as servers in Python do."""
    properties = schema.get("properties")
    return isinstance(properties, Mapping) and properties.keys() == {"result"}


@lru_cache(maxsize=256)
def _read(schema: str) -> ToolSchema:
    return ToolSchema(
        json.loads(schema), on_unread=lambda _: None
    )  # already reported when the server started


Entry = Mapping[str, Any]
"""A tool as in `tools/list`: `name`, `inputSchema` and optional keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool:
    """One tool."""

    entry: Entry
    arguments: ToolSchema | None = None
    """None if no schema was recorded, so that the mock itself checks its arguments."""
    answer: OutputSchema | None = None
    """The schema of `structuredContent`; None if clients expect none."""


class Catalog:
    """All tools by name, and their listing."""

    def __init__(self, tools: Iterable[ServedTool]) -> None:
        self._tools = {tool.entry["name"]: tool for tool in tools}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._tools)

    def listing(self, names: frozenset[str] | None = None) -> list[Entry]:
        """Return the result of `tools/list`. Raises RpcError for an unknown name.

        Args:
            names: the tools to list; None for all.
        """
        for name in sorted((names or frozenset()) - self._tools.keys()):
            near = did_you_mean(name, self._tools)
            raise RpcError(
                INVALID_PARAMS, f"the address names the tool {name!r}, which is not served; {near}"
            )
        return [tool.entry for name, tool in self._tools.items() if names is None or name in names]

    async def argument_problem(self, name: str, arguments: Any) -> str | None:
        """Describe how arguments violate the recorded schema; None if valid or without a schema."""
        tool = self._tools.get(name)
        schema = tool.arguments if tool else None
        if schema is None:
            return None
        if schema.has_patterns:  # patterns may take long, and other conversations must continue meanwhile
            problem: str | None = await in_thread(schema.misfit, arguments)
            return problem
        return schema.misfit(arguments)

    def promised(self, name: str) -> OutputSchema | None:
        """Return the output schema of the tool; None if it has none."""
        tool = self._tools.get(name)
        return tool.answer if tool else None


def catalog(recorded: Sequence[Entry], mocks: Sequence[ToolSpec], on_note: Callable[[str], None]) -> Catalog:
    """Combine the tools of the real server with mocks of other tools.

    It includes the mocks of all scenarios, because clients list tools only once, at their start. Raises
    ValueError for an invalid schema.
    """
    known = {entry["name"] for entry in recorded}
    of_mocks = (ServedTool(entry=_described_mock(mock)) for mock in mocks if mock.name not in known)
    return Catalog([*(_recorded(entry, on_note) for entry in recorded), *of_mocks])


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

    try:
        return ToolSchema(entry[key], unread)
    except ValueError as error:
        raise ValueError(f"the {key} of tool {entry['name']!r}: {error}") from None


def _described_mock(mock: ToolSpec) -> dict[str, Any]:
    """Describe a mock by its signature."""
    described = {"description": mock.description} if mock.description else {}
    schema = {"properties": {}, **mock.parameters}  # models reject an object without them
    return {"name": mock.name, **described, "inputSchema": schema}


_READY_KEYS = frozenset({"content", "structuredContent", "isError", "_meta"})
_PARTS = frozenset({"text", "image", "audio", "resource", "resource_link"})


def is_ready(result: Any) -> bool:
    """True if a mock returned MCP's own result format: a list `content` of typed parts."""
    if not isinstance(result, Mapping) or not result.keys() <= _READY_KEYS:
        return False
    parts = result.get("content")
    return isinstance(parts, list) and bool(parts) and all(map(_is_part, parts))


def _is_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _PARTS


def answered(result: Any, structured: Any = None) -> dict[str, Any]:
    """Return the result of a successful call.

    Args:
        structured: the `structuredContent`, if the tool has an output schema.
    """
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
    parts = result.get("content")
    if not isinstance(parts, list) or len(parts) != 1 or not _is_text(parts[0]):
        return parts
    try:
        return json.loads(parts[0]["text"])
    except (ValueError, RecursionError):
        return parts[0]["text"]


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
