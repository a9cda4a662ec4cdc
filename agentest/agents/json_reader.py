"""Parse the JSON that agents send, and format values for messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeGuard

from agentest.domain.transcript import Usage
from agentest.support.errors import AgentError
from agentest.support.json_text import STRICT, json_or, parse_json

SHOWN_CHARS = 10_000
"""Longest part of an agent's data in a message. Messages are shortened again after redaction."""

TOO_DEEP = "what the agent has answered is nested too deeply to be sent back to it"


_PROMPT = ("prompt_tokens", "input_tokens", "promptTokens", "inputTokens", "promptTokenCount", "prompt")
_COMPLETION = (
    "completion_tokens",
    "output_tokens",
    "completionTokens",
    "outputTokens",
    "candidatesTokenCount",
    "completion",
)
_CACHED = (
    "cached_tokens",
    "cachedTokens",
    "cachedInputTokens",
    "cachedContentTokenCount",
    "cacheReadTokens",
    "cache_read_input_tokens",
    "cache_read",
    "cached",
)
_DETAILS = ("prompt_tokens_details", "input_tokens_details", "input_token_details", "inputTokenDetails")


def read_json(body: bytes, location: str) -> Any:
    """Parse a body as JSON. Raises AgentError; `location` is a hint about the usual address of agents."""
    try:
        return parse_json(body)
    except (ValueError, RecursionError) as error:
        if not body.strip():
            raise AgentError("the agent's answer is empty") from None
        from agentest.agents.error_hints import is_page

        text = body[:SHOWN_CHARS].decode("utf-8", errors="replace")
        if is_page(body):
            raise AgentError(f"the agent's answer is a web page, not JSON ({location}): {text!r}") from None
        form = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
        raise AgentError(f"the agent's answer is not {form}: {text!r}") from None


def excerpt(value: Any) -> str:
    """Format a value for a message, as JSON if possible."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__} that is not JSON"
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"


def read_object(body: bytes, location: str) -> dict[str, Any]:
    """Parse a body as a JSON object. Raises AgentError like `read_json`."""
    return check_object(read_json(body, location))


def check_object(data: Any) -> dict[str, Any]:
    """Return an answer that is a JSON object. Raises AgentError for any other."""
    if not isinstance(data, dict):
        raise AgentError(f"the agent's answer is not a JSON object: {excerpt(data)}")
    return data


def read_text(text: str, what: str = "an event of the agent's stream") -> Any:
    """Parse a text as JSON. Raises AgentError, whose message starts with `what`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise AgentError(f"{what} is not JSON: {excerpt(text)!r}") from None


def read_event(data: str) -> dict[str, Any]:
    """Parse the JSON object of a streamed event. Raises AgentError."""
    event = read_text(data)
    if not isinstance(event, dict):
        raise AgentError(f"an event of the agent's stream is not a JSON object: {excerpt(event)}")
    return event


def truncated_stream_error(missing: str, received: bool = True) -> AgentError:
    """Return the error for a stream that ended without its last event (`missing`, in words)."""
    nothing = "" if received else ", and without any data"
    return AgentError(f"the agent's stream was cut: it ended without {missing}{nothing}")


def text_at(value: Mapping[str, Any], key: str) -> str:
    """Return the text at a key; "" if there is none."""
    found = value.get(key)
    return found if isinstance(found, str) else ""


def mapping_at(value: Any, key: str) -> Mapping[str, Any]:
    """Return the object at a key; empty if there is none."""
    found = value.get(key) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def objects_in(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects in a list, without its other values; empty for any other value."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def objects_at(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the objects in the list at a key, without its other values."""
    return objects_in(value.get(key))


def is_list_of_objects(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Return True for a list that contains only JSON objects."""
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def reported_usage(reported: Any) -> Usage | None:
    """Return the token counts in a response, or None if it has none."""
    if not isinstance(reported, Mapping):
        return None
    found = (reported.get(name) for name in _DETAILS)
    details: Mapping[str, Any] = next((each for each in found if each and isinstance(each, Mapping)), {})
    prompt, completion = read_count(reported, *_PROMPT), read_count(reported, *_COMPLETION)
    counts = map(reported.get, (*_PROMPT, *_COMPLETION))
    if not (prompt or completion or any(type(value) is int and value >= 0 for value in counts)):
        return None
    return Usage(prompt, completion, read_count(reported, *_CACHED) or read_count(details, *_CACHED))


def read_count(reported: Any, *keys: str) -> int:
    """Return a reported token count, at the first key that has one. A missing or invalid count is 0."""
    for key in keys if isinstance(reported, (dict, Mapping)) else ():
        if type(value := reported.get(key)) is int and value > 0:
            return value
    return 0


def error_text(error: Any, kind_key: str) -> str:
    """Return the `message` of a reported error and its kind, which is at `kind_key`."""
    if not isinstance(error, Mapping) or not isinstance(error.get("message"), str):
        return excerpt(error) if error else "no reason is given"
    kind = error.get(kind_key)
    return f"{error['message']} ({kind})" if isinstance(kind, str | int) and kind else str(error["message"])


def read_arguments(arguments: Any) -> tuple[Any, str | None]:
    """Parse the JSON arguments of a call that the agent made. Returns them and the problem, if any."""
    if not isinstance(arguments, str):
        args = {} if arguments is None else arguments
    else:
        try:
            args = json.loads(arguments, **STRICT) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            return arguments, f"the arguments are not valid JSON: {error}"
    problem = (
        None if isinstance(args, Mapping) else f"the arguments are not a JSON object but {excerpt(args)}"
    )
    return args, problem


def read_any(text: str) -> Any:
    """Parse a text as JSON, or return it unchanged if it is not JSON."""
    return json_or(text, text)


def read_result(result: Any) -> Any:
    """Parse a tool result: text with a JSON object or list is parsed, other values are unchanged."""
    if not isinstance(result, str) or result.lstrip()[:1] not in ("{", "["):
        return result
    return read_any(result)


def arguments_text(arguments: Any) -> str:
    """Return a call's arguments as JSON text. Some agents send the object itself, which is accepted."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return json.dumps(arguments)
    except (TypeError, ValueError, RecursionError):
        raise AgentError(f"the arguments of a tool call are not JSON: {excerpt(arguments)}") from None
