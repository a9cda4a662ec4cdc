"""Messages of models in the shapes of all providers, as steps of a session."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Item(NamedTuple):
    """One step of a session: a message, a tool call or its result."""

    kind: str
    """`user`, `assistant`, `call` or `result`."""
    text: str = ""
    """The message, or the name of the tool."""
    value: Any = None
    """The arguments of a call; the result of a tool."""
    id: str = ""
    """Of the call, if known."""


_ROLES = {
    **dict.fromkeys(("user", "human", "humanmessage"), "user"),
    **dict.fromkeys(("assistant", "ai", "model", "agent", "aimessage", "aimessagechunk"), "assistant"),
    **dict.fromkeys(("tool", "function", "toolmessage", "functionmessage"), "tool"),
}


def items_of(messages: Any) -> list[Item]:
    """Return the steps in messages of any known shape. Instructions to the model are left out."""
    value = parsed(messages)
    if isinstance(value, str):
        return [Item("user", value)] if value.strip() else []
    if isinstance(value, Mapping):
        if "messages" in value:
            return items_of(value["messages"])
        value = [value]
    if not isinstance(value, Sequence):
        return []
    found: list[Item] = []
    for each in value:
        found += items_of(each) if isinstance(each, list) else message_items(each)
    return found


def answer_items(value: Any) -> list[Item]:
    """Return the steps in a model's answer, whose texts are the assistant's."""
    value = parsed(value)
    if isinstance(value, str):
        return [Item("assistant", value)] if value.strip() else []
    if isinstance(value, Mapping):
        for key in ("choices", "generations", "output", "messages"):
            if isinstance(value.get(key), list):
                return [item for each in _flat(value[key]) for item in answer_items(each)]
        for key in ("message", "content", "text", "output"):
            if key in value and "role" not in value and "parts" not in value and "type" not in value:
                return answer_items(value[key])
        value = [{"role": "assistant", **value}]
    return [item for item in items_of(value) if item.kind != "user"]


def _flat(value: Any) -> Iterator[Any]:
    for each in value:
        if isinstance(each, list):
            yield from _flat(each)
        else:
            yield each


def parsed(value: Any) -> Any:
    """Return the value of a text that is JSON; any other value unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def message_items(message: Any) -> list[Item]:
    """Return the steps in one message."""
    if isinstance(message, str):
        return [Item("user", message)]
    if not isinstance(message, Mapping):
        return []
    if isinstance(message.get("id"), list) and isinstance(message.get("kwargs"), Mapping):  # LangChain
        message = {"type": message["id"][-1], **message["kwargs"]}
    if isinstance(message.get("data"), Mapping):
        message = {**message["data"], "type": message.get("type")}
    if isinstance(message.get("message"), Mapping) and "role" not in message:
        message = message["message"]
    kind = str(message.get("type") or "")
    if kind in ("function_call", "function_call_output"):
        return _call_items([message])
    role = _ROLES.get(str(message.get("role") or kind or message.get("author") or "").lower())
    if role is None:
        return []
    content = message.get("parts", message.get("content"))
    items = _content_items(role, content)
    if role == "tool" and not items:
        items = [Item("result", str(message.get("name") or ""), parsed(content), _id(message))]
    return [*items, *_call_items(message.get("tool_calls") or ())]


def _id(message: Mapping[str, Any]) -> str:
    keys = ("tool_call_id", "call_id", "tool_use_id", "id")
    return next((str(message[key]) for key in keys if message.get(key)), "")


def _content_items(role: str, content: Any) -> list[Item]:
    if role == "tool" and not (isinstance(content, list) and any(is_call_part(each) for each in content)):
        return []
    if isinstance(content, Mapping):
        content = content.get("parts", [content])
    if isinstance(content, str):
        return [Item(role, content)] if content.strip() else []
    items: list[Item] = []
    texts: list[str] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            texts.append(part)
        elif not isinstance(part, Mapping):
            continue
        elif is_call_part(part):
            items += _call_items([part])
        elif part.get("thought") or part.get("type") in ("reasoning", "thinking"):
            continue
        else:
            text = part.get("text", part.get("content"))
            if isinstance(text, Mapping):
                text = text.get("value")
            texts += [text] if isinstance(text, str) and text.strip() else []
    said = [Item(role, "\n".join(texts))] if texts else []
    return [*items, *said] if role != "assistant" else [*said, *items]


_CALL_PARTS = {
    "tool_use",
    "tool_call",
    "function_call",
    "tool_result",
    "tool_call_response",
    "function_call_output",
}
_CALL_KEYS = ("functionCall", "function_call", "functionResponse", "function_response")


def is_call_part(part: Any) -> bool:
    """Return True if a part of a message is a tool call or its result."""
    return isinstance(part, Mapping) and (
        part.get("type") in _CALL_PARTS or any(isinstance(part.get(key), Mapping) for key in _CALL_KEYS)
    )


def _call_items(calls: Any) -> list[Item]:
    items: list[Item] = []
    for call in parsed(calls) or ():
        if not isinstance(call, Mapping):
            continue
        made = next((call[key] for key in _CALL_KEYS[:2] if isinstance(call.get(key), Mapping)), None)
        answered = next((call[key] for key in _CALL_KEYS[2:] if isinstance(call.get(key), Mapping)), None)
        if isinstance(call.get("function"), Mapping):
            made = {**call["function"], "id": call.get("id")}
        kind = call.get("type")
        if answered is not None or kind in ("tool_result", "tool_call_response", "function_call_output"):
            given = answered or call
            keys = ("response", "result", "output", "content")
            value = next((given[key] for key in keys if key in given), None)
            items.append(Item("result", str(given.get("name") or ""), _plain_result(value), _id(given)))
        else:
            given = made or call
            named = ("arguments", "args", "input")
            arguments: Any = next((given[key] for key in named if given.get(key) is not None), {})
            items.append(Item("call", str(given.get("name") or ""), parsed(arguments), _id(given)))
    return items


def _plain_result(value: Any) -> Any:
    """Return a tool's result without the list of text parts around it."""
    if (
        isinstance(value, list)
        and value
        and all(isinstance(part, Mapping) and "text" in part for part in value)
    ):
        value = "\n".join(str(part["text"]) for part in value)
    return parsed(value)


def joined(history: list[Item], more: Sequence[Item]) -> list[Item]:
    """Return a history with the part of further items that it does not contain yet."""
    if not more:
        return history
    if len(more) >= len(history) and [*map(step_key, more[: len(history)])] == [*map(step_key, history)]:
        return list(more)
    old, new = [*map(step_key, history)], [*map(step_key, more)]
    for size in range(min(len(old), len(new)), 0, -1):
        if old[-size:] == new[:size]:
            return [*history, *more[size:]]
    # An answer that was recorded before, with the messages after it left out.
    return history if len(new) <= len(old) and _contains(old, new) else [*history, *more]


def step_key(item: Item) -> tuple[str, str, str]:
    value = json.dumps(item.value, sort_keys=True, default=str) if item.kind == "call" else item.id
    return item.kind, " ".join(item.text.split()), value


def _contains(whole: Sequence[Any], part: Sequence[Any]) -> bool:
    return any(list(whole[at : at + len(part)]) == list(part) for at in range(len(whole) - len(part) + 1))
