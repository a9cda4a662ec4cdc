"""Read a tool call or model call from a span, for the conventions that instrumentations use.

Supported are OpenTelemetry's GenAI conventions (old and new names), OpenInference, the AI SDK, Traceloop and
LangSmith.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import field
from importlib.resources import files
from tomllib import loads
from typing import Any

from agentest.domain.transcript import Usage
from agentest.plugins.protocols.model_messages import objects, read_message
from agentest.support.json_text import json_or
from agentest.support.lazy_dataclasses import dataclass

_AGENTIC = ("gen_ai.", "openinference.", "ai.", "traceloop.", "langsmith.", "llm.", "mcp.")
_MODEL_OPERATIONS = frozenset({"chat", "text_completion", "generate_content", "completion", "responses"})
_MODEL_SPANS = (".doGenerate", ".doStream")
_TOOL_SPANS = ("execute_tool", "running tool", "tools/call", "ai.toolCall")
_MERGED_TOOLS = frozenset({"(merged tools)", "(merged)"})
_KEYS: Mapping[str, list[str]] = loads(files(__package__).joinpath("span_keys.toml").read_text("utf-8"))
_MCP_RESULT_KEYS = frozenset({"isError", "structuredContent", "_meta", "meta"})
_REQUESTED_CALLS = re.compile(
    r"(?:llm\.output_messages|gen_ai\.completion)\.(\d{1,6})\.(?:message\.)?tool_calls\.(\d{1,6})\."
    r"(?:tool_call\.)?(?:function\.)?(id|name|arguments)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpan:
    """A tool call as a span describes it."""

    name: str
    call_id: str | None = None
    arguments: Any = None
    """The arguments object if the span has one, else another value in its place; None if there is none."""
    is_bare: bool = False
    """True if `arguments` may be the value of the tool's only argument instead of the object."""
    result: Any = None
    error: str | None = None

    @property
    def has_arguments(self) -> bool:
        """True if the arguments are known."""
        return isinstance(self.arguments, Mapping) or (self.arguments is not None and not self.is_bare)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedCall:
    """A tool call requested by a model."""

    name: str
    call_id: str | None
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpan:
    """A model call as a span describes it."""

    model: str = ""
    usage: Usage
    requested_calls: tuple[RequestedCall, ...] = ()


def is_agentic(span: Span) -> bool:
    """Return True if a span describes agent work, as opposed to only a web server or client."""
    return any(key.startswith(_AGENTIC) for key in span.attributes)


def session_of(span: Span) -> str | None:
    """Return the session that a span names."""
    return _text(span.attributes, ("gen_ai.conversation.id", "session.id", "langsmith.trace.session_id"))


def tool_of(span: Span) -> ToolSpan | None:
    """Return the tool call that a span describes; None if it describes none."""
    attributes = span.attributes
    if not _is_tool(span):
        return None
    # Traceloop and LangSmith have no attribute for a tool's name, but name the span's entity by it.
    name = _text(attributes, _KEYS["name"]) or _text(
        attributes, ("traceloop.entity.name", "langsmith.trace.name")
    )
    name = name or _tool_in_name(span)
    if not name or name in _MERGED_TOOLS:
        return None
    arguments, is_bare = _arguments(attributes)
    result, failed, call_id = _result(attributes)
    return ToolSpan(
        name=name,
        call_id=_text(attributes, _KEYS["call_id"]) or call_id,
        arguments=arguments,
        is_bare=is_bare,
        result=result,
        error=span.error or failed,
    )


def model_of(span: Span) -> ModelSpan | None:
    """Return the model call that a span describes; None if it describes none."""
    attributes = span.attributes
    if not _is_model(span):
        return None
    tokens = [_number(attributes, _KEYS[f"{kind}_tokens"]) for kind in ("prompt", "completion", "cached")]
    requested_calls = tuple(_requested_calls(attributes))
    return ModelSpan(
        model=_text(attributes, _KEYS["model"]) or "", usage=Usage(*tokens), requested_calls=requested_calls
    )


def _is_tool(span: Span) -> bool:
    attributes = span.attributes
    kinds = [attributes.get(f"{name}.span.kind") for name in ("openinference", "traceloop", "langsmith")]
    if "TOOL" in kinds[:2] or "tool" in kinds or attributes.get("gen_ai.operation.name") == "execute_tool":
        return True
    return span.name.startswith(_TOOL_SPANS) and (
        _text(attributes, _KEYS["name"]) is not None or attributes.get("mcp.method.name") == "tools/call"
    )


def _is_model(span: Span) -> bool:
    attributes = span.attributes
    return (
        attributes.get("openinference.span.kind") == "LLM"
        or attributes.get("langsmith.span.kind") == "llm"
        or _text(attributes, ("gen_ai.operation.name",)) in _MODEL_OPERATIONS
        or _text(attributes, ("llm.request.type",)) in _MODEL_OPERATIONS
        or span.name.endswith(_MODEL_SPANS)
    )


def _tool_in_name(span: Span) -> str | None:
    for begin in _TOOL_SPANS:
        if span.name.startswith(begin):
            return span.name.removeprefix(begin).strip(" :") or None
    return span.name or None


def _arguments(attributes: Mapping[str, Any]) -> tuple[Any, bool]:
    for key in _KEYS["arguments"]:
        if attributes.get(key) is not None:
            value = _parse_if_json(attributes[key])
            return ({} if value == "" else value), False  # some models write no arguments so
    for key in _KEYS["input"]:
        if attributes.get(key) is not None:
            value = _unwrap_arguments(_parse_if_json(attributes[key]))
            return value, not isinstance(value, Mapping)
    return None, False


def _unwrap_arguments(value: Any) -> Any:
    if isinstance(value, Mapping):
        if isinstance(value.get("inputs"), Mapping) and value.keys() & {"input_str", "tags", "metadata"}:
            return _unwrap_arguments(value["inputs"])
        if value.keys() == {"args", "kwargs"} and isinstance(value["kwargs"], Mapping) and not value["args"]:
            return value["kwargs"]
        if value.keys() == {"input"} and isinstance(value["input"], str):
            return _unwrap_arguments(_parse_if_json(value["input"]))
    return value


def _result(attributes: Mapping[str, Any]) -> tuple[Any, str | None, str | None]:
    result = next((attributes[key] for key in _KEYS["result"] if attributes.get(key) is not None), None)
    return _unwrapped(_parse_if_json(result))


def _unwrapped(value: Any) -> tuple[Any, str | None, str | None]:
    call_id = None
    match value:
        case {"type": "tool", "data": {"content": content, **more}}:  # a LangChain message
            result = _parse_if_json(content)
            failed = more.get("status") == "error"
            call_id = more.get("tool_call_id")
        case {"content": [*parts], **more} if more.keys() <= _MCP_RESULT_KEYS:  # a result of MCP
            structured = more.get("structuredContent")
            texts = [str(part.get("text", "")) for part in parts if isinstance(part, Mapping)]
            result = structured if structured is not None else _parse_if_json("".join(texts))
            failed = more.get("isError") is True
        case _:
            return value, None, None
    error = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return result, error if failed else None, call_id if isinstance(call_id, str) else None


def _requested_calls(attributes: Mapping[str, Any]) -> Iterable[RequestedCall]:
    calls: defaultdict[tuple[int, int], dict[str, Any]] = defaultdict(dict)
    for key, value in attributes.items():  # OpenInference and Traceloop flatten lists to numbered keys
        if match := _REQUESTED_CALLS.fullmatch(key):
            calls[int(match[1]), int(match[2])][match[3]] = value
    # OpenTelemetry's conventions have all messages as JSON, and the AI SDK has only the calls.
    messages = objects(_parse_if_json(attributes.get("gen_ai.output.messages")))
    for listed in ([each for _, each in sorted(calls.items())], attributes.get("ai.response.toolCalls")):
        messages.append({"tool_calls": listed})
    for part in (part for message in messages for part in read_message(message).calls):
        read = _parse_if_json(part.value)
        if part.name and isinstance(read, Mapping):
            call_id = part.id if isinstance(part.id, str) else None
            yield RequestedCall(name=part.name, call_id=call_id, arguments=read)


def _parse_if_json(value: Any) -> Any:
    return json_or(value, value) if isinstance(value, str) else value


def _text(attributes: Mapping[str, Any], keys: Iterable[str]) -> str | None:
    values = (attributes.get(key) for key in keys)
    return next((value for value in values if isinstance(value, str) and value), None)


_MAX_TOKENS = 1e15  # upper bound for a token count; larger values are invalid


def _number(attributes: Mapping[str, Any], keys: Iterable[str]) -> int:
    values = (attributes.get(key) for key in keys)
    return next(
        (int(value) for value in values if isinstance(value, int | float) and 0 <= value < _MAX_TOKENS), 0
    )


KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
"""Span kinds, indexed by their number in OTLP."""
STATUSES = ("unset", "ok", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    """An event during a span, such as an exception."""

    name: str
    at_ns: int = 0  # nanoseconds since 1970
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One step of an agent, as its instrumentation exports it."""

    trace_id: str  # 32 lower-case hex digits
    span_id: str  # 16 lower-case hex digits
    parent_id: str | None = None  # None for the first span of its trace
    name: str = ""
    kind: str = KINDS[0]
    start_ns: int = 0  # nanoseconds since 1970
    end_ns: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    status: str = STATUSES[0]
    status_message: str = ""
    events: tuple[SpanEvent, ...] = ()
    scope: str = ""  # the instrumentation that created the span
    service: str = ""

    @property
    def error(self) -> str | None:
        """The error that the span reports; None if it reports none."""
        if self.status != "error":
            return None
        raised = (event.attributes.get("exception.message") for event in self.events)
        texts = (self.status_message, *raised, self.attributes.get("error.type"))
        return next((str(text) for text in texts if text), "it failed")
