"""Messages of models in the shapes of all providers, as steps of a session."""

from __future__ import annotations

import json
import re
import unicodedata
from ast import literal_eval
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from agentest.agents.json_reader import read_result
from agentest.plugins.protocols.model_messages import MessagePart, read_message
from agentest.support.json_text import json_or
from agentest.support.templates import as_text

_SPELLINGS = {" ": r"(?:\s*,\s*|\s+|[._+-]|%20)?", "-": "[-‐‑‒–—]", "'": "['’]"}


class Item(NamedTuple):
    """One step of a session: a message, a tool call or its result."""

    kind: str  # `user`, `assistant`, `call`, `result`, or `unread` for what a scenario cannot have
    text: str = ""  # the message, the name of the tool, or what was not read
    value: Any = None  # the arguments of a call; the result of a tool
    id: str = ""  # of the call, if known


def items_of(messages: Any) -> list[Item]:
    """Return the steps in messages of any known shape. Instructions to the model are left out."""
    value = read_result(messages)
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
    value = read_result(value)
    if isinstance(value, str):
        return [Item("assistant", value)] if value.strip() else []
    if isinstance(value, list):
        return [item for each in value for item in answer_items(each)]
    if isinstance(value, Mapping):
        for key in ("choices", "generations", "output", "messages"):
            if isinstance(value.get(key), list):
                return answer_items(value[key])
        for key in ("message", "content", "text", "output"):
            if key in value and "role" not in value and "parts" not in value and "type" not in value:
                return answer_items(value[key])
        value = [{"role": "assistant", **value}]
    return [item for item in items_of(value) if item.kind != "user"]


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
    if {"from", "value"} <= message.keys():  # ShareGPT
        message = {"role": message["from"], "content": message["value"]}
    # Spans of the AI SDK have calls without a type.
    if {"toolCallId", "toolName"} <= message.keys() and "type" not in message:
        message = {**message, "type": "tool-call"}
    read = read_message(message)
    texts = [part.value for part in read.parts if part.kind == "text" and part.value.strip()]
    said = [Item(read.role, "\n".join(texts))] if texts and read.role in ("user", "assistant") else []
    made = [_step(part) for part in read.parts if part.kind in ("call", "result")]
    if read.role == "user":
        kinds = [part.raw.get("type") or next(iter(part.raw), "") for part in read.parts if not part.kind]
        made += [Item("unread", f"part of a user's message that is not text ({kind})") for kind in kinds]
    elif read.role is None and texts:
        made.append(Item("unread", f"message of unknown role ({message.get('role')})"))
    return [*said, *made] if read.role == "assistant" else [*made, *said]


def _step(part: MessagePart) -> Item:
    value = _plain_result(part.value) if part.kind == "result" else read_result(part.value)
    value = {} if part.kind == "call" and value is None else value
    return Item(part.kind, part.name, value, "" if part.id is None else str(part.id))


def _plain_result(value: Any) -> Any:
    parts = value if isinstance(value, list) else []
    if parts and all(isinstance(part, Mapping) and "text" in part for part in parts):
        value = "\n".join(str(part["text"]) for part in parts)
    return read_result(value)


def history_of(steps: Sequence[Item]) -> Iterator[dict[str, Any]]:
    """Yield the messages of a scenario's `history` for steps. Each call has its result."""
    results = {item.id or item.text: item.value for item in steps if item.kind == "result"}
    for item in steps:
        if item.kind == "call":
            call = {"name": item.text, "args": item.value, "result": results.get(item.id or item.text)}
            yield {"role": "assistant", "tool_calls": [call]}
        elif item.kind in ("user", "assistant"):
            yield {"role": item.kind, "content": item.text}


def expected_call(call: Any) -> dict[str, Any]:
    """Return the call of a trajectory for an expected call in the form of another tool."""
    call = call if isinstance(call, dict) else {"name": as_text(call)}
    arguments = call.get("input_parameters", call.get("tool_input", call.get("kwargs")))
    given = {"arguments": arguments, **call, "name": call.get("tool_name", call.get("name"))}
    (item,) = message_items({"role": "assistant", "tool_calls": [given]})
    values, compared = item.value if isinstance(item.value, dict) else {}, call.get("compare_args")
    args = {key: value for key, value in values.items() if compared is None or key in compared}
    return {"name": item.text, **({"args": args} if args else {})}


def reply_text(value: Any) -> str:
    """Return an expected reply as a text, also of a message."""
    items = answer_items(value) if isinstance(value, Mapping) else ()
    return "\n\n".join(item.text for item in items if item.kind == "assistant") or as_text(value)


def joined(history: list[Item], more: Sequence[Item]) -> list[Item]:
    """Return a history with the part of further items that it does not contain yet."""
    if not more:
        return history
    old, new = [*map(step_key, history)], [*map(step_key, more)]
    said = [key for key in new if key[0] in ("user", "assistant")]
    # A history without the calls between its messages is shorter.
    if old in (new[: len(old)], said[: len(old)]):
        return list(more)
    for size in range(min(len(old), len(new)), 0, -1):
        if old[-size:] == new[:size]:
            return [*history, *more[size:]]
    if len(new) > 1 and new[0] == next((key for key in old if key[0] == "user"), None):
        # The same conversation, as another of its agents has received it.
        known, history = Counter(old), [*history]
        for item, key in zip(more, new, strict=True):
            if known[key] < 1:
                history.append(item)
            known[key] -= 1
        return history
    # An answer that was recorded before, with the messages after it left out.
    is_known = any(old[at : at + len(new)] == new for at in range(len(old) - len(new) + 1))
    return history if is_known else [*history, *more]


def step_key(item: Item) -> tuple[str, str, str]:
    value = json.dumps(item.value, sort_keys=True, default=str) if item.kind == "call" else item.id
    return item.kind, " ".join(item.text.split()), value


def values_by_path(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a row by their paths. JSON in a cell is looked into, or Python as of pandas."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            value = json_or(value) or json_or(as_text(literal_eval(value)), value)
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from values_by_path(each, f"{path}.{key}" if path else str(key))
    elif value is not None and value != {}:
        yield path, value


def texts_with_keys(
    value: Any, keys: tuple[str, ...], siblings: Iterable[str]
) -> Iterator[tuple[tuple[str, ...], str, Iterable[str]]]:
    """Yield each text, and number, with the keys that lead to it. JSON within a text is looked into."""
    if isinstance(value, str):
        inner = read_result(value)
        if inner is value:
            yield keys, value, siblings
        else:
            yield from texts_with_keys(inner, keys, siblings)
    elif isinstance(value, Mapping):
        names = [str(each) for each in value]
        for name, item in value.items():
            yield from texts_with_keys(item, (*keys, str(name)), names)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_with_keys(item, keys, siblings)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield keys, str(value), siblings


def snake_key(key: str) -> str:
    """Return a key in snake case, without accents."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
    return without_accents(re.sub(r"[\s.-]", "_", snake)).replace("ß", "ss")


def without_accents(text: str) -> str:
    plain = (unicodedata.normalize("NFD", each)[0] if each < "\u2e80" else each for each in text)
    return text if text.isascii() else "".join(plain).replace("ł", "l").replace("Ł", "L")


def has_no_spaces(name: str) -> bool:
    """True if a name is of a script without spaces between words."""
    return any(ord(each) > 0x2E80 for each in name)


@cache
def spelled_pattern(name: str) -> re.Pattern[str]:
    """Return a pattern for a name in its spellings, as in e-mail addresses and URLs."""
    letters = re.sub(r"^[\W_]+", "", name)
    body = "".join(_SPELLINGS.get(each) or re.escape(each) for each in letters)
    if not has_no_spaces(name):
        body = rf"(?:(?<![^\W_])|(?<=%20)){body}(?![^\W_])"
    return re.compile(body, re.IGNORECASE)
