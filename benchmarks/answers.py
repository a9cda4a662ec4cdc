"""What the fake agent and the fake model answer."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.workload import LINE, TOOL

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


_TOOL_CALL = _tool_call()
_TEXT = _completion({"role": "assistant", "content": REPLY}, "stop")


def agent_answer(body: bytes) -> bytes:
    """A tool call first in each turn, a text once the tool's result is there."""
    return _TEXT if json.loads(body)["messages"][-1]["role"] == "tool" else _TOOL_CALL


def model_answer(body: bytes) -> bytes:
    """The best answer of the form that is asked for in `response_format`."""
    form = json.loads(body)["response_format"]["json_schema"]["schema"]["properties"]
    content = json.dumps({name: _value(name, schema) for name, schema in form.items()})
    return _completion({"role": "assistant", "content": content}, "stop")


def _value(name: str, schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return _best(schema["enum"])
    if schema.get("type") == "array":
        return []
    if schema.get("type") == "boolean":
        return False
    return LINE if name == "message" else _REASON


def _best(values: list[Any]) -> Any:
    return "no failure" if "no failure" in values else max(values)
