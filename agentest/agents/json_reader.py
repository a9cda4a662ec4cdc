"""What agents send, read as JSON and shown in messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentest.agents.error_hints import is_page
from agentest.support.errors import AgentError

SHOWN_CHARS = 10_000
"""Of what an agent sent; the message is cut where it is shown, once secrets have been hidden in it."""

TOO_DEEP = "what the agent has answered is nested too deeply to be sent back to it"


def read_json(body: bytes, place: str) -> Any:
    """The body's JSON value. Raises AgentError; `place` says where such agents usually are."""
    if not body.strip():
        raise AgentError("the agent's answer is empty")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        text = body[:SHOWN_CHARS].decode("utf-8", errors="replace")
        if is_page(body):
            raise AgentError(f"the agent's answer is a web page, no JSON ({place}): {text!r}") from None
        raise AgentError(f"the agent's answer is not JSON: {text!r}") from None


def shown(value: Any) -> str:
    """A value for a message, as JSON where it can be."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__} that is not JSON"
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"


def read_object(body: bytes, place: str) -> dict[str, Any]:
    """The body's JSON object. Raises AgentError as `read_json` does."""
    data = read_json(body, place)
    if not isinstance(data, dict):
        raise AgentError(f"the agent's answer is not a JSON object: {shown(data)}")
    return data


def read_text(text: str, what: str = "an event of the agent's stream") -> Any:
    """The JSON value of a text. Raises AgentError, which begins with `what` it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise AgentError(f"{what} is not JSON: {shown(text)!r}") from None


def read_event(data: str) -> dict[str, Any]:
    """The JSON object of a streamed event. Raises AgentError."""
    event = read_text(data)
    if not isinstance(event, dict):
        raise AgentError(f"an event of the agent's stream is not a JSON object: {shown(event)}")
    return event


def cut_stream(missing: str, received: bool = True) -> AgentError:
    """The error of a stream that ended without its last event.

    Args:
        missing: what it ended without, in words.
        received: whether anything had come.
    """
    nothing = "" if received else ", and without any data"
    return AgentError(f"the agent's stream was cut: it ended without {missing}{nothing}")


def text_or_none(value: Any) -> str | None:
    """A text that may be missing: an id, for one. What is none stands for nothing."""
    return value if isinstance(value, str) and value else None


def read_count(reported: Any, key: str) -> int:
    """A number of tokens that the agent reports; whatever is missing or no number counts as 0."""
    value = reported.get(key) if isinstance(reported, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def read_arguments(arguments: Any) -> tuple[Any, str | None]:
    """The arguments of a call that the agent made, from JSON text, and what is wrong with them."""
    if not isinstance(arguments, str):
        args = {} if arguments is None else arguments
    else:
        try:
            args = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            return arguments, f"the arguments are not valid JSON: {error}"
    problem = None if isinstance(args, Mapping) else f"the arguments are not a JSON object but {shown(args)}"
    return args, problem


def read_any(text: str) -> Any:
    """The JSON value of a text that may be JSON, or the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_result(result: Any) -> Any:
    """What a tool answered, from the text that most protocols make of it: objects and lists are read."""
    if not isinstance(result, str):
        return result
    value = read_any(result)
    return value if isinstance(value, dict | list) else result


def arguments_text(arguments: Any) -> str:
    """The JSON text of a call's arguments. Some agents send the object itself, which is as good."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return json.dumps(arguments)
    except (TypeError, ValueError, RecursionError):
        raise AgentError(f"the arguments of a tool call are not JSON: {shown(arguments)}") from None
