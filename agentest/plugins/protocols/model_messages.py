"""Messages of the model APIs, read as texts, tool calls and results.

Chat completions, Responses, Anthropic's Messages and Gemini write the same things in other places and under
other names, and what stores messages varies them further. So one reader takes every spelling: what it does
not know is a part of no kind.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from agentest.agents.json_reader import read_count, read_result, reported_usage
from agentest.domain.transcript import Usage
from agentest.support.json_text import json_or

Json = dict[str, Any]  # a JSON object of a model API
_ROLES = {
    **dict.fromkeys(("user", "human", "humanmessage"), "user"),
    **dict.fromkeys(("assistant", "ai", "model", "agent", "gpt", "aimessage", "aimessagechunk"), "assistant"),
    **dict.fromkeys(("tool", "function", "toolmessage", "functionmessage"), "tool"),
    **dict.fromkeys(("system", "developer"), "instructions"),
}
CLIENT_TOOLS = {
    "computer_call": "computer",
    "shell_call": "shell",
    "local_shell_call": "local_shell",
    "apply_patch_call": "apply_patch",
}
"""Types of calls in Responses to tools that the provider defines and the client runs → the tool."""
_CALLS = ("tool_use", "tool_call", "function_call", "custom_tool_call", "tool-call", *CLIENT_TOOLS)
_RESULTS = (
    *("tool_result", "tool_call_response", "function_call_output", "custom_tool_call_output", "tool-result"),
    *(f"{kind}_output" for kind in CLIENT_TOOLS),
)
ITEMS = (*_CALLS, *_RESULTS)
_KINDS = {**dict.fromkeys(_CALLS, "call"), **dict.fromkeys(_RESULTS, "result")}
_KINDS |= dict.fromkeys(("reasoning", "reasoning_text", "summary_text", "thinking"), "")
"""Type of a part or item → its kind. Those of no kind may have texts that nobody says."""
_IN_GEMINI = frozenset(("functionCall", "function_call", "functionResponse", "function_response"))
_IDS = ("tool_call_id", "call_id", "tool_use_id", "toolCallId", "id")
_KNOWN_BY = ("call_id", "id", "signature", "data", "thoughtSignature", "thought_signature")
"""Keys of ids, signatures and hidden thoughts, by which a later request refers to an answer."""
_KNOWN = frozenset(_KNOWN_BY)
_HISTORY_KEYS = ("messages", "input", "contents")
_REMEMBERED_BYTES = 16_000_000  # of requests
_BESIDE = frozenset(("cache_read_input_tokens", "cache_creation_input_tokens", "thoughtsTokenCount"))


class MessagePart(NamedTuple):
    """A part of a message."""

    kind: str  # `text`, `call`, `result`, or "" for anything else
    raw: Mapping[str, Any]
    place: int = 0  # its place among the objects of its list
    name: str = ""  # the tool of a call; that of a result, if the result names it
    value: Any = None  # the text; the arguments, or the result, as they are written
    id: Any = None  # the id of a call, or of the call that a result answers; None if it has none

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
    kind = raw.get("type")
    if isinstance(kind, str) and _KINDS.get(kind):
        part = read_part(raw, place)
        return ModelMessage("assistant" if part.kind == "call" else "tool", (part,), raw)
    content = raw.get("parts", raw.get("content"))
    default = "user" if "parts" in raw else None  # Gemini lets the user's messages omit the role
    # LangChain's messages have a type in place of the role, and events of google-adk an author.
    role = _ROLES.get(str(raw.get("role") or kind or raw.get("author") or "").lower(), default)
    if not isinstance(content, (str, list)) and isinstance(content, Mapping):
        content = content.get("parts", [content])  # google-adk's events hold a whole message of Gemini
    parts = [MessagePart("text", {}, value=content)] if isinstance(content, str) else list(_parts(content))
    if role == "tool" and all(part.kind in ("", "text") for part in parts):  # as in chat completions
        parts = [_result(raw, raw, place)]
    calls = enumerate(objects(read_result(raw["tool_calls"]))) if raw.get("tool_calls") else ()
    listed = [
        _call(call, {**call, **(inner(call, "function") or inner(call, "custom"))}, at) for at, call in calls
    ]
    return ModelMessage(role, (*parts, *listed), raw)


def _parts(values: Any) -> Iterator[MessagePart]:
    place = 0
    for value in values if isinstance(values, list) else ():
        if isinstance(value, (dict, Mapping)):
            yield read_part(value, place)
            place += 1
        elif isinstance(value, str):
            yield MessagePart("text", {}, value=value)


def read_part(raw: Mapping[str, Any], place: int = 0) -> MessagePart:
    """Read one part of a message's content."""
    kind = _KINDS.get(named) if isinstance(named := raw.get("type"), str) else None
    of_gemini = not _IN_GEMINI.isdisjoint(raw)
    call = inner(raw, "functionCall") if of_gemini else {}
    if call or kind == "call":
        return _call(raw, call or raw, place)
    response = inner(raw, "functionResponse") if of_gemini else {}
    if response or kind == "result":
        return _result(raw, response or raw, place)
    text = raw.get("text", raw.get("content"))
    if isinstance(text, Mapping):  # as in messages of OpenAI's Assistants API
        text = text.get("value")
    if not isinstance(text, str) or raw.get("thought") or kind == "":
        return MessagePart("", raw, place)
    return MessagePart("text", raw, place, value=text)


def _call(raw: Mapping[str, Any], given: Mapping[str, Any], place: int) -> MessagePart:
    kind = str(raw.get("type"))
    named = ("arguments", "args", "input", *(("action", "operation") if kind in CLIENT_TOOLS else ()))
    arguments = next((given[key] for key in named if given.get(key) is not None), None)
    if kind.startswith("custom"):  # a tool that takes a text
        arguments = {"input": given.get("input")}
    elif kind == "computer_call" and "actions" in given:
        arguments = {"actions": given["actions"]}
    name = given.get("name") or given.get("toolName") or given.get("function_name") or CLIENT_TOOLS.get(kind)
    return MessagePart("call", raw, place, str(name or ""), arguments, _id(given))


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

    instructions: tuple[str, ...] = ()
    user_texts: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()  # those of the model's answers and calls
    names: Mapping[str, str] = {}  # id of a call → its tool
    new_calls: tuple[str, ...] = ()  # the ids of those after the user's last text
    results: tuple[MessagePart, ...] = ()
    texts: tuple[str, ...] = ()  # those of the model, in which frameworks may write ids of calls


NO_HISTORY = MessageHistory()
_TextOf = Callable[[Sequence[MessagePart]], str]
ReadRequest = tuple[MessageHistory, dict[str, Json]]
"""What the messages of a request say, and path → facts of what stands around them, once they are known."""
KEYS = "credentials"  # in place of a path, for those around the messages


class _KnownRequest(NamedTuple):
    """A request that later ones may repeat with more messages; without messages, what stands around them."""

    head: bytes  # to the bracket that opens the list of messages
    tail: bytes  # from the bracket that closes it
    around: Json  # the request without messages
    key: str  # that of the list
    begin: bytes  # the request to the end of its last message
    facts: dict[str, Json]  # those of `around`, as in `ReadRequest`
    messages: tuple[Any, ...] = ()
    history: MessageHistory = NO_HISTORY

    def new_in(self, data: bytes) -> list[Any] | None:
        """Return the messages of a request after its own; None if the request does not repeat it."""
        end = len(data) - len(self.tail)
        if len(self.begin) > end or not (data.startswith(self.begin) and data.endswith(self.tail)):
            return None
        items = data[len(self.begin) : end].strip()
        if items and self.messages:
            comma, items = items[:1], items[1:].lstrip()
            if comma != b"," or not items:
                return None
        found = json_or(b"[%b]" % items)
        return found if isinstance(found, list) else None


class RequestReader:
    """Reads requests, most of which are the one before with more messages: only what is new.

    Requests share what was read once, so nothing may change them. `text_of`: see `read_history`.
    """

    def __init__(self, text_of: _TextOf) -> None:
        self._text_of = text_of
        self._known: list[_KnownRequest] = []  # in order of `begin`
        self._bytes = 0

    def read(self, data: bytes) -> tuple[Any, ReadRequest]:
        """Return a request as JSON, None if it is none, and what was read of it."""
        place = bisect_right(self._known, data, key=attrgetter("begin")) or 1
        known = next(iter(self._known[place - 1 : place]), None)
        new = known and known.new_in(data)
        if known and new is None:  # it may be the first of another conversation
            known = known._replace(begin=known.head, messages=(), history=NO_HISTORY)
            new = known.new_in(data)
        if known is None or new is None:
            body = json_or(data)
            given = messages_of(body) if isinstance(body, dict) else []
            known = _around_messages(data, body) if given else None
            if known is None:
                return body, (read_history(given, self._text_of), {})
            new = body[known.key]
        if new:
            if known.messages:
                del self._known[place - 1]
            known = known._replace(
                begin=data[: len(data) - len(known.tail)].rstrip(),
                messages=(*known.messages, *new),
                history=read_history(objects(new), self._text_of, known.history),
            )
            insort(self._known, known, key=attrgetter("begin"))
            self._bytes += len(data)
            if self._bytes > _REMEMBERED_BYTES:
                self._known, self._bytes = [], 0
        return {**known.around, known.key: [*known.messages]}, (known.history, known.facts)


def _around_messages(data: bytes, body: Json) -> _KnownRequest | None:
    """Return what stands around the messages of a request; None if that is uncertain."""
    key = next(key for key in _HISTORY_KEYS if key in body)
    begin = re.search(rb'"%b"\s*:\s*\[' % key.encode(), data)
    if begin is None or "previous_response_id" in body:  # which differs each time
        return None
    head = data[: begin.end()]
    try:
        text = data.decode()
        _, end = json.JSONDecoder().raw_decode(text, len(head.decode()) - 1)
    except (ValueError, RecursionError):
        return None
    tail = text[end - 1 :].encode()
    around = json_or(head + tail)
    is_around = isinstance(around, dict) and around.get(key) == []
    return _KnownRequest(head, tail, around, key, head, {}) if is_around else None


def read_history(
    messages: Sequence[Any], text_of: _TextOf, history: MessageHistory = NO_HISTORY
) -> MessageHistory:
    """Return what the messages of a request say, after those of an earlier history.

    Args:
        text_of: returns the text of a message of the model.
    """
    instructions, user_texts, texts, ids = list[str](), list[str](), list[str](), list[str]()
    names, new_calls, results = dict(history.names), [*history.new_calls], [*history.results]
    for message in map(read_message, messages):
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


def repeats_key(text: str | bytes) -> bool:
    """Return True if an object in a JSON text has a key twice. Parsers differ in which value they take."""
    repeated = list[bool]()

    def checked(pairs: list[tuple[str, Any]]) -> Json:
        found = dict(pairs)
        repeated.append(len(found) < len(pairs))
        return found

    with suppress(ValueError, RecursionError):
        json.loads(text, object_pairs_hook=checked)
    return any(repeated)


def messages_of(body: Json) -> list[Json]:
    """Return the messages of a request to any of the APIs."""
    given = next((body[key] for key in _HISTORY_KEYS if key in body), None)
    return [{"role": "user", "content": given}] if isinstance(given, str) else objects(given)


def instructions_of(body: Json) -> str:
    """Return the instructions of a request that stand beside its messages."""
    told = body.get("instructions") or body.get("system")
    return texts_of(told or inner(body, "systemInstruction").get("parts"))


def usage_of(body: Mapping[str, Any]) -> Usage:
    """Return the tokens of an answer of any of the APIs. Those of a cache are part of the prompt."""
    used = entry(body, "usage") or entry(body, "usageMetadata")
    usage = reported_usage(used) or Usage()
    if _BESIDE.isdisjoint(used):  # as in most answers, where no other number counts tokens apart
        return usage
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
    texts = [part.get("text") if isinstance(part, (dict, Mapping)) else part for part in parts]
    return "".join([text for text in texts if isinstance(text, str)])


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
