"""Parse what is fixed in a conversation: history, first message, turns, files and fields of requests.

Invalid values raise ValueError with a message that names the option.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from mimetypes import guess_type
from pathlib import Path, PurePosixPath
from typing import Any

from agentest.domain.messages import AgentMessage, Attachment, Message, ToolRequest, ToolResult, UserText
from agentest.scenarios.expectations import parse_expect
from agentest.scenarios.model import ScriptedTurn, parse_approve
from agentest.scenarios.parser import (
    ProblemCollector,
    checked,
    checked_text,
    has_text_keys,
    known_keys,
    listed,
    nonempty_text,
)
from agentest.scenarios.trajectory import Trajectory
from agentest.support.errors import errors_as
from agentest.support.json_text import NotJson, json_or, json_text

TURN_KEYS = ("user_message", "assertions", "trajectory", "expect", "approve")


def parse_script(options: Mapping[str, Any]) -> tuple[tuple[ScriptedTurn, ...], bool]:
    """Return the turns that are fixed, and True if a simulated user goes on after them."""
    first = next((key for key in ("first_message", "then") if key in options), None)
    if first and "user" in options:
        raise ValueError(f"{first}: an adversarial `user` writes all its messages; leave one of them out")
    if first == "first_message":
        if clash := next((key for key in ("turns", "then") if key in options), None):
            raise ValueError(
                f"first_message: excludes `{clash}`; put the message first in `turns`, with then: simulate"
            )
        return (ScriptedTurn(nonempty_text(options[first], first)),), True
    if first:
        checked(options[first], first, "'simulate'", options[first] == "simulate")
        if "turns" not in options:
            raise ValueError("then: goes on after a script; write its `turns`, or a `first_message` instead")
    return _turns(options["turns"]) if "turns" in options else (), bool(first)


def _turns(turns: Any) -> tuple[ScriptedTurn, ...]:
    if not listed(turns, "turns", "a list of user messages"):
        raise ValueError("turns: is empty; give at least one user message")
    collector = ProblemCollector()
    parsed = [collector.parse(_turn, item, f"turns[{i}]") for i, item in enumerate(turns)]
    collector.check()
    return tuple(parsed)


def _turn(item: Any, key: str) -> ScriptedTurn:
    if isinstance(item, str):
        return ScriptedTurn(item)
    checked(item, key, "a text in quotes, or a dict", isinstance(item, Mapping))
    options = known_keys(item, TURN_KEYS, key)
    if "user_message" not in options:
        raise ValueError(f"{key}.user_message: is missing")
    collector = ProblemCollector()
    message = collector.parse(checked_text, options["user_message"], f"{key}.user_message")
    trajectory = collector.parse(parse_trajectory_options, options, f"{key}.")
    parsers: Mapping[str, Callable[[Any, str], Any]] = {"expect": parse_expect, "approve": parse_approve}
    parsed = {
        name: collector.parse(parse, options[name], f"{key}.{name}")
        for name, parse in parsers.items()
        if name in options
    }
    collector.check()
    if any(each.max_turns is not None for each in trajectory):
        raise ValueError(f"{key}.trajectory.max_turns: belongs to the scenario, not to one turn")
    return ScriptedTurn(message, trajectory, **parsed)


def parse_trajectory_options(options: Mapping[str, Any], prefix: str = "") -> tuple[Trajectory, ...]:
    """Parse `trajectory` or `assertions` of a scenario or turn; empty if there is neither."""
    values = {name: options[name] for name in ("trajectory", "assertions") if options.get(name) is not None}
    if len(values) > 1:
        raise ValueError(f"{prefix}trajectory: is given twice, as `trajectory` and as `assertions`")
    if not values:
        return ()
    from agentest.scenarios.trajectory_parser import parse_trajectories

    if "assertions" in values:
        inner = known_keys(values["assertions"], ("tool_calls",), f"{prefix}assertions")
        if "tool_calls" not in inner:
            raise ValueError(f"{prefix}assertions.tool_calls: is missing")
        return parse_trajectories(inner["tool_calls"], f"{prefix}assertions.tool_calls")
    return parse_trajectories(values["trajectory"], f"{prefix}trajectory")


HISTORY_KEYS = {
    "user": ("role", "content"),
    "assistant": ("role", "content", "tool_calls"),
    "tool": ("role", "tool_call_id", "content"),
}
"""Role of a message before the first turn → its keys."""
_ROLES = "user, assistant or tool (instructions belong to the agent's own settings)"
HISTORY_CALL_KEYS = ("name", "args", "result", "id", "type", "function")


def parse_history(value: Any, key: str = "history") -> tuple[Message, ...]:
    """Parse the messages before the first turn, whose calls may be in the form of chat completions."""
    messages: list[Message] = []
    waiting: dict[str, str] = {}  # id of a call without a result → its tool
    for n, item in enumerate(listed(value, key, "a list of messages")):
        at = f"{key}[{n}]"
        role = item.get("role", "") if isinstance(item, Mapping) else "user"
        is_known = isinstance(role, str) and role in HISTORY_KEYS
        options = known_keys(item, HISTORY_KEYS[checked(role, f"{at}.role", _ROLES, is_known)], at)
        if waiting and role != "tool":
            raise ValueError(
                f"{at}: comes before the result of {next(iter(waiting.values()))}{_HOW_ANSWERED}"
            )
        if role == "tool":
            id = nonempty_text(options.get("tool_call_id"), f"{at}.tool_call_id")
            checked(id, f"{at}.tool_call_id", "the id of a call that has no result yet", id in waiting)
            messages.append(ToolResult(id, waiting.pop(id), _json_of(options.get("content"), at)))
        elif role == "user":
            messages.append(UserText(nonempty_text(options.get("content"), f"{at}.content")))
        else:
            messages += _agent_messages(options, at, waiting)
    if waiting:
        raise ValueError(f"{key}: ends without the result of {next(iter(waiting.values()))}{_HOW_ANSWERED}")
    if not messages or not isinstance(last := messages[-1], AgentMessage) or last.tool_requests:
        raise ValueError(
            f"{key}: must end with a message of the assistant; `turns` and `first_message` follow"
        )
    return tuple(messages)


_HOW_ANSWERED = "; write `result` into the call, or a message with `role: tool` after it"


def _agent_messages(options: Mapping[str, Any], at: str, waiting: dict[str, str]) -> Iterator[Message]:
    calls = listed(options.get("tool_calls", ()), f"{at}.tool_calls", "a list of calls")
    text = checked_text(options.get("content") or "", f"{at}.content")
    if not calls:
        nonempty_text(text, f"{at}.content")
    requests: list[ToolRequest] = []
    results: list[ToolResult] = []
    for n, call in enumerate(calls):
        key = f"{at}.tool_calls[{n}]"
        given = known_keys(call, HISTORY_CALL_KEYS, key)
        if "function" in given:
            given |= known_keys(given["function"], ("name", "arguments"), f"{key}.function")
        name, id = given.get("name"), given.get("id", "_".join(re.findall(r"\w+", key)))
        args = given.get("arguments", given.get("args", {}))
        args = json_or(args) if isinstance(args, str) else args
        checked(args, f"{key}.args", "a dict of arguments", has_text_keys(args))
        request = ToolRequest(
            nonempty_text(id, f"{key}.id"), nonempty_text(name, f"{key}.name"), _json_of(args, key)
        )
        requests.append(request)
        if "result" in given:
            results.append(ToolResult(request.id, request.name, _json_of(given["result"], key)))
        else:
            waiting[request.id] = request.name
    is_after = bool(results) and not waiting  # the text, which else came with the calls
    yield AgentMessage(None if is_after else text or None, tuple(requests))
    yield from results
    if is_after and text:
        yield AgentMessage(text)


def _json_of(value: Any, key: str) -> str:
    with errors_as(ValueError, f"{key}: is not JSON: ", NotJson):
        return value if isinstance(value, str) else json_text(value)


FILE_KEYS = ("path", "url", "mime_type", "name")
_MOST_BYTES = 20_000_000


def parse_attachments(value: Any, folder: Path, key: str = "attachments") -> tuple[Attachment, ...]:
    """Parse the files of the first message: paths relative to `folder`, or dicts of `FILE_KEYS`."""
    return tuple(
        _attachment({"path": each} if isinstance(each, str) else each, folder, f"{key}[{n}]")
        for n, each in enumerate(listed(value, key, "a list of files"))
    )


def _attachment(value: Any, folder: Path, key: str) -> Attachment:
    given = {
        name: nonempty_text(each, f"{key}.{name}") for name, each in known_keys(value, FILE_KEYS, key).items()
    }
    if len({"path", "url"} & given.keys()) != 1:
        raise ValueError(f"{key}: needs either `path`, the place of a file, or `url`, its address")
    place = given.get("path") or given["url"]
    kind = given.get("mime_type") or guess_type(place)[0]
    if not kind:
        raise ValueError(
            f"{key}: the type of {place!r} is unknown; write it as `mime_type`, such as image/png"
        )
    about = {"mime_type": kind, "name": given.get("name", PurePosixPath(place).name), "origin": f"`{key}`"}
    if "url" in given:
        return Attachment(uri=place, **about)
    with errors_as(ValueError, f"{key}: {folder / place} cannot be read: ", OSError):
        content = (folder / place).read_bytes()
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{key}: {place} has {len(content):,} bytes; the most are {_MOST_BYTES:,}")
    return Attachment(base64=b64encode(content).decode(), **about)


def parse_headers(value: Any, key: str) -> dict[str, str]:
    """Parse headers of requests to the agent, whose names and values its type checks."""
    are_texts = has_text_keys(value) and all(isinstance(each, str) for each in value.values())
    return dict(checked(value, key, "a dict from header to text", are_texts))


def parse_body(value: Any, key: str) -> dict[str, Any]:
    """Parse fields of requests to the agent. Raises ValueError unless they are JSON."""
    checked(value, key, "a dict of fields", has_text_keys(value))
    with errors_as(ValueError, f"{key}: is not JSON: ", NotJson):
        fields: dict[str, Any] = json.loads(json_text(dict(value)))
    return fields
