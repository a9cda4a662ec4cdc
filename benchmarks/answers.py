"""What the fake agent and the fake model answer, right and wrong."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.fault_plan import CUT, WORDING
from benchmarks.workload import LINE, PLAIN_QUESTION, TOOL

REPLY = (
    "On Tuesday there are two openings in the morning, at 09:00 and at 10:30. Both leave enough time for a "
    "haircut before eleven. Which of the two shall I book, and under which name? You will get the booking "
    "number as soon as it is done, and can cancel free of charge until the evening before."
)
_REASON = "The reply names both openings that the tool returned and asks for what is missing to book one."


def _completion(message: dict[str, Any], finish: str) -> bytes:
    body = {
        "id": "fake",
        "object": "chat.completion",
        "created": 0,
        "model": "fake",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 940},
    }
    return json.dumps(body).encode()


def _tool_call() -> bytes:
    arguments = json.dumps({"service": "haircut", "date": "next Tuesday"})
    call = {"id": "call_1", "type": "function", "function": {"name": TOOL, "arguments": arguments}}
    return _completion({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls")


def http_answer(body: bytes, status: str = "200 OK") -> bytes:
    """A whole answer of HTTP/1.1."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _error(status: str) -> bytes:
    return http_answer(json.dumps({"error": {"message": f"the benchmark's {status}"}}).encode(), status)


_PLAIN_TEXT = _completion({"role": "assistant", "content": REPLY}, "stop")
_TOOL_CALL = http_answer(_tool_call())
_TEXT = http_answer(_PLAIN_TEXT)
_WORDS = "Well, I would say that it was quite helpful."

BROKEN = {
    "429": _error("429 Too Many Requests"),
    "500": _error("500 Internal Server Error"),
    "503": _error("503 Service Unavailable"),
    WORDING: http_answer(_completion({"role": "assistant", "content": _WORDS}, "stop")),
    CUT: http_answer(_PLAIN_TEXT[: len(_PLAIN_TEXT) // 2]),
}
"""Fault → the whole answer."""


def agent_answer(body: bytes) -> bytes:
    """A tool call first in each turn, a text once the tool's result is there; to a plain question a text."""
    last = json.loads(body)["messages"][-1]
    plain = last["role"] == "tool" or last["content"].startswith(PLAIN_QUESTION)
    return _TEXT if plain else _TOOL_CALL


def model_answer(body: bytes) -> bytes:
    """The best answer of the form that is asked for in `response_format`."""
    form = json.loads(body)["response_format"]["json_schema"]["schema"]
    content = json.dumps(_object(form, form.get("$defs", {})))
    return http_answer(_completion({"role": "assistant", "content": content}, "stop"))


def _object(form: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(name, schema, shared) for name, schema in form["properties"].items()}


def _value(name: str, schema: dict[str, Any], shared: dict[str, Any]) -> Any:
    if "$ref" in schema:
        schema = shared[schema["$ref"].rpartition("/")[2]]
    if "properties" in schema:
        return _object(schema, shared)
    if "enum" in schema:
        return _best(schema["enum"])
    if schema.get("type") == "array":
        return []
    if schema.get("type") == "boolean":
        return False
    return LINE if name == "message" else _REASON


def _best(values: list[Any]) -> Any:
    """Return the best choice; choices in words have the worst first."""
    if "no failure" in values:
        return "no failure"
    return values[-1] if isinstance(values[0], str) else max(values)
