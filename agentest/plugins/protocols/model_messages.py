"""Messages of the model APIs, read as texts, tool calls and results.

Chat completions, Responses, Anthropic's Messages and Gemini write the same things in other places and under
other names, and what stores messages varies them further. So one reader takes every spelling: what it does
not know is a part of no kind.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from agentest.agents.json_reader import read_count, read_result, reported_usage, text_at
from agentest.domain.transcript import Usage
from agentest.support.json_text import json_or

Json = dict[str, Any]  # a JSON object of a model API
_ROLES = {
    **dict.fromkeys(("user", "human", "humanmessage"), "user"),
    **dict.fromkeys(("assistant", "ai", "model", "agent", "aimessage", "aimessagechunk"), "assistant"),
    **dict.fromkeys(("tool", "function", "toolmessage", "functionmessage"), "tool"),
    **dict.fromkeys(("system", "developer"), "instructions"),
}
_CALLS = ("tool_use", "tool_call", "function_call", "custom_tool_call", "tool-call")
_RESULTS = (
    "tool_result",
    "tool_call_response",
    "function_call_output",
    "custom_tool_call_output",
    "tool-result",
)
_SILENT = ("reasoning", "reasoning_text", "summary_text", "thinking")
_IDS = ("tool_call_id", "call_id", "tool_use_id", "toolCallId", "id")
_KNOWN_BY = ("call_id", "id", "signature", "data", "thoughtSignature", "thought_signature")
"""Keys of ids, signatures and hidden thoughts, by which a later request refers to an answer."""
_KNOWN = frozenset(_KNOWN_BY)
_MOST_HISTORIES = 256
_MOST_HISTORY_BYTES = 200_000
_MOST_NEW = 8
LIST_HEAD_BYTES = 5  # of a list in marshal's form: the rest are its items one after the other
_GROWING = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Types of deltas → the key that the delta extends, in the delta and in its block."""


class MessagePart(NamedTuple):
    """A part of a message."""

    kind: str  # `text`, `call`, `result`, or "" for anything else
    raw: Mapping[str, Any]
    place: int = 0  # its place among the objects of its list
    name: str = ""  # the tool of a call; that of a result, if the result names it
    value: Any = None  # the text; the arguments, or the result, as they are written
    id: Any = None  # the id of a call, or of the call that a result answers; None if it has none

    @property
    def is_custom(self) -> bool:
        """True for the call of a tool that takes a text; its argument is `input`."""
        return str(self.raw.get("type")).startswith("custom")

    @property
    def ids(self) -> Iterator[str]:
        """By what a later request may refer to it."""
        if self.id is None and _KNOWN.isdisjoint(self.raw):  # as most parts
            return iter(())
        return _texts(self.id, *(self.raw.get(key) for key in _KNOWN_BY))


class ModelMessage(NamedTuple):
    """A message of a request or an answer."""

    role: str | None  # `user`, `assistant`, `tool`, `instructions`, or None if it is unknown
    parts: tuple[MessagePart, ...]
    raw: Mapping[str, Any]

    @property
    def text(self) -> str:
        return "".join([part.value for part in self.parts if part.kind == "text"])

    @property
    def calls(self) -> tuple[MessagePart, ...]:
        return tuple([part for part in self.parts if part.kind == "call"])

    @property
    def results(self) -> tuple[MessagePart, ...]:
        return tuple([part for part in self.parts if part.kind == "result"])

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all but results, and that of the message if it is an item of Responses."""
        found = [known for part in self.parts if part.kind != "result" for known in part.ids]
        if "type" in self.raw and not self.results:
            found += _texts(*(self.raw.get(key) for key in _KNOWN_BY))
        return tuple(dict.fromkeys(found))


def read_message(raw: Mapping[str, Any], place: int = 0) -> ModelMessage:
    """Read a message, or an item of Responses, whose place is that of its call."""
    if raw.get("type") in (*_CALLS, *_RESULTS):
        part = _part(raw, place)
        return ModelMessage("assistant" if part.kind == "call" else "tool", (part,), raw)
    content = raw.get("parts", raw.get("content"))
    default = "user" if "parts" in raw else None  # Gemini lets the user's messages omit the role
    # LangChain's messages have a type in place of the role, and events of google-adk an author.
    role = _ROLES.get(str(raw.get("role") or raw.get("type") or raw.get("author") or "").lower(), default)
    if isinstance(content, Mapping):  # google-adk's events hold a whole message of Gemini
        content = content.get("parts", [content])
    parts = list(_parts([content] if isinstance(content, str) else content))
    if role == "tool" and all(part.kind in ("", "text") for part in parts):  # as in chat completions
        parts = [_result(raw, raw, place)]
    calls = enumerate(objects(read_result(raw.get("tool_calls"))))
    listed = [
        _call(call, {**call, **(inner(call, "function") or inner(call, "custom"))}, at) for at, call in calls
    ]
    return ModelMessage(role, (*parts, *listed), raw)


def _parts(values: Any) -> Iterator[MessagePart]:
    place = 0
    for value in values if isinstance(values, list) else ():
        if isinstance(value, (dict, Mapping)):
            yield _part(value, place)
            place += 1
        elif isinstance(value, str):
            yield MessagePart("text", {}, value=value)


def _part(raw: Mapping[str, Any], place: int) -> MessagePart:
    kind = raw.get("type")
    call = inner(raw, "functionCall")
    if call or kind in _CALLS:
        return _call(raw, call or raw, place)
    response = inner(raw, "functionResponse")
    if response or kind in _RESULTS:
        return _result(raw, response or raw, place)
    text = raw.get("text", raw.get("content"))
    if isinstance(text, Mapping):  # as in messages of OpenAI's Assistants API
        text = text.get("value")
    if not isinstance(text, str) or raw.get("thought") or kind in _SILENT:
        return MessagePart("", raw, place)
    return MessagePart("text", raw, place, value=text)


def _call(raw: Mapping[str, Any], given: Mapping[str, Any], place: int) -> MessagePart:
    named = ("arguments", "args", "input")
    arguments = next((given[key] for key in named if given.get(key) is not None), None)
    name = str(given.get("name") or given.get("toolName") or given.get("function_name") or "")
    part = MessagePart("call", raw, place, name, arguments, _id(given))
    return part._replace(value={"input": given.get("input")}) if part.is_custom else part


def _result(raw: Mapping[str, Any], given: Mapping[str, Any], place: int) -> MessagePart:
    keys = ("response", "result", "output", "content", "parts")
    value = next((given[key] for key in keys if key in given), None)
    if given.get("type") == "tool-result" and isinstance(value, Mapping) and "value" in value:
        value = value["value"]  # version 5 of the AI SDK says the type of each result
    name = str(given.get("name") or given.get("toolName") or "")
    return MessagePart("result", raw, place, name, value, _id(given))


def _id(value: Mapping[str, Any]) -> Any:
    found = (value.get(key) for key in _IDS)
    return next((each for each in found if each is not None and not isinstance(each, dict | list)), None)


def _texts(*values: Any) -> Iterator[str]:
    return (value for value in values if isinstance(value, str) and value)


class MessageHistory(NamedTuple):
    """What the messages of a request say, oldest first."""

    written: bytes = b""
    instructions: tuple[str, ...] = ()
    user_texts: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()  # those of the model's answers and calls
    names: Mapping[str, str] = {}  # id of a call → its tool
    new_calls: tuple[str, ...] = ()  # the ids of those after the user's last text
    results: tuple[MessagePart, ...] = ()
    texts: tuple[str, ...] = ()  # those of the model, in which frameworks may write ids of calls


_Key = tuple[object, int, bytes]
_HISTORIES: dict[_Key, MessageHistory] = {}
"""Reader of texts, number of messages and the last of them → what was read of them all."""


def read_history(messages: list[Any], text_of: Callable[[Sequence[MessagePart]], str]) -> MessageHistory:
    """Read the messages of a request: only those that are new, because each request repeats the one before.

    Args:
        text_of: returns the text of a message of the model.
    """
    written, history, known, keys = marshal.dumps(messages, 2), MessageHistory(), 0, list[_Key]()
    for number in range(len(messages), max(0, len(messages) - _MOST_NEW), -1):
        keys.append((text_of, number, marshal.dumps(messages[number - 1], 2)))
        found = _HISTORIES.get(keys[-1])
        if found is not None and written.startswith(found.written, LIST_HEAD_BYTES):
            history, known = _HISTORIES.pop(keys[-1]), number
            break
    if known < len(messages):
        history = _read_on(history, messages[known:], text_of)._replace(written=written[LIST_HEAD_BYTES:])
    if keys and len(written) <= _MOST_HISTORY_BYTES:
        if len(_HISTORIES) >= _MOST_HISTORIES:
            del _HISTORIES[next(iter(_HISTORIES))]
        _HISTORIES[keys[0]] = history
    return history


def _read_on(
    history: MessageHistory, new: Sequence[Any], text_of: Callable[[Sequence[MessagePart]], str]
) -> MessageHistory:
    instructions, user_texts, texts, ids = list[str](), list[str](), list[str](), list[str]()
    names, new_calls, results = dict(history.names), [*history.new_calls], [*history.results]
    for message in map(read_message, new):
        ids += message.ids
        if message.role == "instructions":
            instructions.append(message.text)
        elif message.role == "user" and (text := message.text):
            user_texts.append(text)
            new_calls.clear()
        elif message.role == "assistant":
            texts.append(text_of(message.parts))
            # Without ids, earlier results cannot be told apart.
            results = [part for part in results if part.id is not None]
        for part in message.parts:
            if part.kind == "call":
                names[str(part.id)] = part.name
                new_calls += [] if part.id is None else [str(part.id)]
            elif part.kind == "result":
                results.append(part)
    return MessageHistory(
        instructions=(*history.instructions, *instructions),
        user_texts=(*history.user_texts, *user_texts),
        ids=(*history.ids, *ids),
        names=names,
        new_calls=tuple(new_calls),
        results=tuple(results),
        texts=(*history.texts, *texts),
    )


def messages_of(body: Json) -> list[Json]:
    """Return the messages of a request to any of the APIs."""
    given = next((body[key] for key in ("messages", "input", "contents") if key in body), None)
    return [{"role": "user", "content": given}] if isinstance(given, str) else objects(given)


def instructions_of(body: Json) -> str:
    """Return the instructions of a request that stand beside its messages."""
    told = body.get("instructions") or body.get("system")
    return texts_of(told or inner(body, "systemInstruction").get("parts"))


def usage_of(body: Mapping[str, Any]) -> Usage:
    """Return the tokens of an answer of any of the APIs. Those of a cache are part of the prompt."""
    used = entry(body, "usage") or entry(body, "usageMetadata")
    usage = reported_usage(used) or Usage()
    apart = 0
    if not read_count(used, "prompt_tokens", "promptTokenCount"):  # as with Anthropic, in `input_tokens`
        apart = read_count(used, "cache_read_input_tokens") + read_count(used, "cache_creation_input_tokens")
    output = usage.completion_tokens + read_count(used, "thoughtsTokenCount")
    return Usage(usage.prompt_tokens + apart, output, usage.cached_tokens)


def texts_of(content: Any) -> str:
    """Return the text of a message's content: a text, or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))


def inner(value: Any, key: str) -> Json:
    """Return the object under a key in camel case or, as some clients write it, in snake case; or {}."""
    if not isinstance(value, (dict, Mapping)):  # the first answers at once
        return {}
    found = value.get(key, value.get(_in_snake_case(key)))
    return found if isinstance(found, dict) else {}


@lru_cache
def _in_snake_case(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)


def entry(value: Any, *keys: str) -> Json:
    """Return the object under nested keys; {} if there is none."""
    for key in keys:
        value = value.get(key) if value is not None and isinstance(value, (dict, Mapping)) else None
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[Json]:
    """Return the objects in a list; other values are ignored."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def count(value: Any) -> int:
    """Return a number of tokens; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class StreamedBlocks:
    """Assembles the `content` of one streamed message of Anthropic's API, in the order of arrival."""

    def __init__(self) -> None:
        self._blocks: list[Json] = []
        self._inputs: dict[int, str] = {}  # places of blocks → the JSON texts of their `input`
        self._places: dict[int, int] = {}
        """Indexes → places. A later block may reuse the index of an earlier one."""

    @property
    def blocks(self) -> list[Json]:
        """The blocks with parsed `input`; text that is not JSON stays text."""
        return [
            {**block, "input": json_or(text, text)} if text.strip() else block
            for place, block in enumerate(self._blocks)
            for text in (self._inputs.get(place, ""),)
        ]

    def place(self, index: int) -> int:
        """Return the place of the last block with an index; that of the next block if there is none."""
        return self._places.get(index, len(self._blocks))

    def is_content(self, place: int) -> bool:
        """Return True if the block at a place has begun and is not a call."""
        return place < len(self._blocks) and self._blocks[place].get("type") != "tool_use"

    def start(self, index: int, block: Json) -> None:
        """Add a block."""
        self._places[index] = len(self._blocks)
        self._blocks.append(block)

    def grow(self, index: int, delta: Mapping[str, Any]) -> bool:
        """Extend a block. Returns False if the type of the delta is unknown."""
        kind = str(delta.get("type"))
        key = _GROWING.get(kind)
        if not key and kind not in ("input_json_delta", "citations_delta"):
            return False
        if index not in self._places:
            missing = {"input_json_delta": "tool_use", "citations_delta": "text"}
            self.start(index, {"type": key or missing[kind]})
        place = self._places[index]
        block = self._blocks[place]
        if key:
            block[key] = text_at(block, key) + text_at(delta, key)
        elif kind == "input_json_delta":
            piece = delta.get("partial_json") or ""
            text = piece if isinstance(piece, str) else json.dumps(piece)  # some servers send the object
            self._inputs[place] = self._inputs.get(place, "") + text
        else:
            block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
        return True
