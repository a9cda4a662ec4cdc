"""Anthropic's and Gemini's HTTP APIs, as scripts for a `ModelServer`: as strict as the real ones about wrong
requests, with prompt caches that work the same way.

An answer is the shortest instance of the requested schema, with the last choice of each enum and `anyOf`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from model_server import Answer, Received

KEY = "key-of-the-wire-0123456789"
BETA = "structured-outputs-2025-11-13"
PROSE = "I would rather not say it as JSON."
_CHARS_PER_TOKEN = 4
_SCHEMA_IN_PROMPT = "JSON Schema:\n"
_ANTHROPIC_KEYS = frozenset(
    {"model", "messages", "max_tokens", "system", "temperature", "tools", "tool_choice", "output_format"}
)
_MOST_CACHE_MARKS = 4
_GEMINI_PATH = re.compile(r"/v1beta/models/([\w.-]+):generateContent")
_GEMINI_KEYS = frozenset({"contents", "system_instruction", "generationConfig"})
_GENERATION_KEYS = frozenset(
    {"temperature", "max_output_tokens", "response_mime_type", "response_json_schema", "response_schema"}
)


class Wrong(Exception):
    """A request that the provider would refuse."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def anthropic_error(status: int, message: str, kind: str, headers: Mapping[str, str] | None = None) -> Answer:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return Answer(json.dumps(body).encode(), status, headers or {})


def gemini_error(status: int, message: str, kind: str, retry_in: str | None = None) -> Answer:
    """Gemini's error, which has the retry delay in the body, not in a header."""
    error: dict[str, Any] = {"code": status, "message": message, "status": kind}
    if retry_in:
        retry_info = "type.googleapis.com/google.rpc.RetryInfo"
        error["details"] = [{"@type": retry_info, "retryDelay": retry_in}]
    return Answer(json.dumps({"error": error}).encode(), status)


def instance(schema: Mapping[str, Any], defs: Mapping[str, Any] | None = None) -> Any:
    """The shortest value that a schema allows."""
    defs = schema.get("$defs") or defs or {}
    if "$ref" in schema:
        return instance(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return instance(schema["anyOf"][-1], defs)
    if "enum" in schema:
        return schema["enum"][-1]
    if schema.get("type") == "object":
        return {name: instance(inner, defs) for name, inner in schema.get("properties", {}).items()}
    return {"string": "Something.", "boolean": False, "integer": 1, "number": 1.0, "array": [], "null": None}[
        schema["type"]
    ]


def _schema_in(text: str) -> Any:
    """The schema in a prompt, or None."""
    _, found, rest = text.partition(_SCHEMA_IN_PROMPT)
    return json.JSONDecoder().raw_decode(rest)[0] if found else None


def _tokens(text: str) -> int:
    return len(text) // _CHARS_PER_TOKEN


def _need(holds: object, message: str, status: int = 400) -> None:
    if not holds:
        raise Wrong(status, message)


def _check_roles(roles: Sequence[str], answering: str) -> None:
    _need(roles and roles[0] == "user", "the first message must use the user role")
    _need(set(roles) <= {"user", answering}, f"unknown role among {roles}")
    _need(all(a != b for a, b in pairwise(roles)), "roles must alternate")


@dataclass(slots=True)
class Anthropic:
    """`POST /v1/messages`. Gives `failures` first, one a request; `without_formats`: no `output_format`."""

    failures: Sequence[Answer] = ()
    without_formats: bool = False
    _asked: int = 0
    _cached: set[str] = field(default_factory=set)

    def __call__(self, received: Received) -> Answer:
        self._asked += 1
        if self._asked <= len(self.failures):
            return self.failures[self._asked - 1]
        try:
            return self._message(received)
        except Wrong as wrong:
            kind = {401: "authentication_error", 404: "not_found_error"}.get(wrong.status)
            return anthropic_error(wrong.status, str(wrong), kind or "invalid_request_error")

    def _message(self, received: Received) -> Answer:
        body, headers = received.body, received.headers
        _need(received.path == "/v1/messages", f"no such path: {received.path}", 404)
        _need(headers.get("x-api-key") == KEY, f"invalid x-api-key: {headers.get('x-api-key')}", 401)
        _need(headers.get("anthropic-version"), "anthropic-version: header is required")
        unknown = body.keys() - _ANTHROPIC_KEYS
        unknown |= body.keys() & {"output_format"} if self.without_formats else set()
        _need(not unknown, f"{', '.join(sorted(unknown))}: Extra inputs are not permitted")
        _need(isinstance(body.get("max_tokens"), int), "max_tokens: Field required")
        _check_roles([message["role"] for message in body["messages"]], "assistant")
        blocks = [*_blocks(body.get("system", [])), *_blocks(m["content"] for m in body["messages"])]
        content = self._content(body, headers, "".join(block["text"] for block in blocks))
        answer = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": f"{body['model']}-wire",
            "content": [content],
            "stop_reason": "tool_use" if content["type"] == "tool_use" else "end_turn",
            "stop_sequence": None,
            "usage": self._usage(blocks),
        }
        return Answer(json.dumps(answer).encode())

    def _content(self, body: Mapping[str, Any], headers: Mapping[str, str], prompt: str) -> dict[str, Any]:
        form = body.get("output_format")
        if form:
            _need(BETA in headers.get("anthropic-beta", ""), "output_format needs a beta header")
            _need(form["type"] == "json_schema", "output_format.type: unknown")
            _need(_is_closed(form["schema"]), "output_format.schema: additionalProperties must be false")
            return {"type": "text", "text": json.dumps(instance(form["schema"]))}
        if body.get("tools"):
            tools = {tool["name"]: tool["input_schema"] for tool in body["tools"]}
            choice = body["tool_choice"]
            _need(choice["type"] == "tool" and choice["name"] in tools, "tool_choice: no such tool")
            given = instance(tools[choice["name"]])
            return {"type": "tool_use", "id": "toolu_1", "name": choice["name"], "input": given}
        schema = _schema_in(prompt)
        return {"type": "text", "text": f"Here: {json.dumps(instance(schema))}" if schema else PROSE}

    def _usage(self, blocks: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Tokens that were read from the cache, or written to it, do not count as input tokens."""
        texts = [block["text"] for block in blocks]
        marks = [at for at, block in enumerate(blocks, 1) if block.get("cache_control")]
        _need(len(marks) <= _MOST_CACHE_MARKS, "a maximum of 4 blocks with cache_control may be provided")
        prefixes = ["\0".join(texts[:mark]) for mark in marks]
        read = max((_tokens(p) for p in prefixes if p in self._cached), default=0)
        written = max((_tokens(p) for p in prefixes), default=0) - read
        self._cached.update(prefixes)
        return {
            "input_tokens": max(_tokens("\0".join(texts)) - read - written, 1),
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": 7,
        }


def _blocks(contents: Any) -> Iterable[Mapping[str, Any]]:
    """The text blocks of a system prompt or of all messages' contents."""
    for content in [contents] if isinstance(contents, str) else contents:
        if isinstance(content, str):
            yield {"type": "text", "text": content}
        elif isinstance(content, list):
            yield from content
        else:
            yield content


def _is_closed(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(map(_is_closed, schema))
    if not isinstance(schema, dict):
        return True
    closed = schema.get("type") != "object" or schema.get("additionalProperties") is False
    return closed and all(map(_is_closed, schema.values()))


@dataclass(slots=True)
class Gemini:
    """`POST /v1beta/models/…:generateContent`. Gives `failures` first, one a request; `without_schemas` takes
    no schema as the answer's form."""

    failures: Sequence[Answer] = ()
    without_schemas: bool = False
    _asked: int = 0
    _seen: list[str] = field(default_factory=list)

    def __call__(self, received: Received) -> Answer:
        self._asked += 1
        if self._asked <= len(self.failures):
            return self.failures[self._asked - 1]
        try:
            return self._generated(received)
        except Wrong as wrong:
            return gemini_error(wrong.status, str(wrong), "INVALID_ARGUMENT")

    def _generated(self, received: Received) -> Answer:
        body = received.body
        found = _GEMINI_PATH.fullmatch(received.path)
        _need(found, f"no such path: {received.path}", 404)
        given = received.headers.get("x-goog-api-key")
        _need(given == KEY, "API key not valid. Please pass a valid API key.")  # really 400, not 401
        asked = body.get("generationConfig", {})
        for unknown in (body.keys() - _GEMINI_KEYS) | (asked.keys() - _GENERATION_KEYS):
            raise Wrong(400, f'Invalid JSON payload received. Unknown name "{unknown}": Cannot find field.')
        _check_roles([content["role"] for content in body["contents"]], "model")
        schema = asked.get("response_json_schema") or asked.get("response_schema")
        _need(not (schema and self.without_schemas), "response_json_schema is not supported by this model")
        is_json = asked.get("response_mime_type") == "application/json"
        _need(is_json or not schema, "a schema needs response_mime_type application/json")
        contents = [body.get("system_instruction", {"parts": []}), *body["contents"]]
        prompt = "\0".join(part["text"] for content in contents for part in content["parts"])
        schema = schema or _schema_in(prompt)
        text = json.dumps(instance(schema)) if schema else "{}" if is_json else PROSE
        answer = {
            "candidates": [
                {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP", "index": 0}
            ],
            "usageMetadata": self._usage(prompt),
            "modelVersion": f"{found and found[1]}-wire",
            "responseId": "r1",
        }
        return Answer(json.dumps(answer).encode())

    def _usage(self, prompt: str) -> dict[str, int]:
        """What was cached (any beginning that was seen before, unasked) counts among the prompt's tokens;
        thoughts do not count among the candidates'."""
        shared = max((_common(prompt, other) for other in self._seen), default=0) // _CHARS_PER_TOKEN
        self._seen.append(prompt)
        total = max(_tokens(prompt), 1)
        cached = {"cachedContentTokenCount": shared} if shared else {}
        counts = {"promptTokenCount": total, "candidatesTokenCount": 7, "thoughtsTokenCount": 5}
        return {**counts, **cached, "totalTokenCount": total + 12}


def _common(a: str, b: str) -> int:
    for at, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return at
    return min(len(a), len(b))
