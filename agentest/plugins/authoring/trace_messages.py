"""Messages of models, agents and chat platforms in the shapes of all tools, as steps of a session."""

from __future__ import annotations

import re
import unicodedata
from ast import literal_eval
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib.resources import files
from tomllib import loads
from typing import Any, NamedTuple

from agentest.agents.json_reader import read_result
from agentest.plugins.protocols.model_messages import ITEMS, MessagePart, entry, inner, objects, read_part
from agentest.support.json_text import json_or
from agentest.support.templates import as_text
from agentest.support.text import snake_case

_SPELLINGS = {" ": r"(?:\s*,\s*|\s+|[._+-]|%20)?", "-": "[-‐‑‒–—]", "'": "['’]"}
SHAPES: Mapping[str, Mapping[str, Sequence[str]]] = {
    table: {name: words.split() if table != "tools" else [words] for name, words in each.items()}
    for table, each in loads(files(__package__).joinpath("shapes.toml").read_text("utf-8")).items()
}
"""The words of other tools: table → name → words."""
KEYS = SHAPES["keys"]
_ROLES = {word: role for role, words in SHAPES["speakers"].items() for word in words}
_PLAIN = ("user", "assistant", "system", "developer", "tool", "function", "human", "ai", "model")
_BOTS = {0: "bot", 1: "user"}  # numbers in the transcripts of Copilot Studio
_TAGS = (
    r"\A\s*<(environment_context|user_instructions|system-reminder|command-(?:name|message|args)|"
    r"local-command-[a-z]+)>"
)
_WRITTEN_BY_PROGRAMS = re.compile(_TAGS)
_IN_CODEX = re.compile(_TAGS + r"|\A\s*(?:# AGENTS\.md[^\n]*\n\s*)?<INSTRUCTIONS>")


_ONLY_KEYS = ({"text"}, {"toolUse"}, {"toolResult"})
_KINDS_OF_PARTS = re.compile(
    r"(?:input_|output_)?(?:text|image|audio|file)|tool|thinking|reasoning|function_call"
)
"""By its only key, or the start of its `type`, an object in JSON within a text is a part of a message."""
_CALLS = ("toolcall", "servertooluse", "mcptooluse")  # kinds of parts, in letters alone
_ENVELOPES = frozenset(KEYS["envelope"])
_SPEAKER = (*KEYS["speaker"], "")
_CALL = frozenset(KEYS["call"])
_LISTED = frozenset(("tool_call", "function_call", "observation", *KEYS["calls"], *KEYS["results"]))
_SAYING = [key for name in ("text", "calls", "arguments", "result", "call") for key in KEYS[name]]
_NAME_ROLE = "write user, assistant, tool or system in place of the role"
OF_SUBAGENT = "judge the subagent's messages as a session of their own, and delete them from this one"


class Item(NamedTuple):
    """One step of a session: a message, a tool call or its result."""

    kind: str  # `user`, `assistant`, `call`, `result`, or `unread` for what a scenario cannot have
    text: str = ""  # the message, the name of the tool, or what was not read
    value: Any = None
    """The arguments of a call, the result of a tool, or what to do about something unread with calls."""
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
        for key in ("choices", "generations", "output", "messages", "generic"):
            if isinstance(value.get(key), list):
                return answer_items(value[key])
        for key in ("message", "content", "text", "output"):
            if key in value and "role" not in value and "parts" not in value and "type" not in value:
                return answer_items(value[key])
        value = [{"role": "assistant", **value}]
    return [item for item in items_of(value) if item.kind != "user"]


def role_of(message: Mapping[str, Any], roles: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the word for who speaks in a message, and the role that it stands for, if it is known.

    Args:
        roles: further words, such as names of speakers → `user` or `assistant`.
    """
    if isinstance(author := message.get("author"), str) and "parts" in entry(message, "content"):
        return ("user", "user") if author == "user" else ("model", "assistant")  # of ADK, named as agents are
    words: list[str] = []
    for key in _SPEAKER:
        value = message.get(key) if key else entry(message, "content").get("role")
        if value is None:
            continue
        if isinstance(value, dict):
            value = next((value[name] for name in ("role", "type", "name") if name in value), None)
        if key == "from" and isinstance(value, int) and value in _BOTS:
            value = _BOTS[value]
        if isinstance(value, str):
            role = (
                roles.get(value) or _ROLES.get(_letters(value)) or ("tool" if _is_of_tools(value) else None)
            )
            if role:
                return value, role
            words.append(value)
    return (words or [""])[0], None


@lru_cache(4096)
def _letters(word: str) -> str:
    return re.sub(r"[\W\d_]", "", word.lower())


@lru_cache(4096)
def _is_of_tools(word: str) -> bool:
    return re.match("tool(call|use|return|res)|function(call|res)", _letters(word)) is not None


@lru_cache(4096)
def _names(keys: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(_snake(str(key)) for key in keys)


@cache
def _snake(key: str) -> str:
    return re.sub(r"\W", "_", key.lower() if key.isupper() or " " in key else snake_case(key))


def opened(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with keys in snake case, and what its envelopes say."""
    found = dict(zip(_names(tuple(message)), message.values(), strict=True))
    for key in () if _ENVELOPES.isdisjoint(found) else KEYS["envelope"]:
        if isinstance(inside := found.get(key), dict):
            inside = {_snake(str(name)): value for name, value in inside.items() if value is not None}
            if key == "kwargs" and isinstance(found.get("id"), list):  # LangChain
                inside["role"] = found["id"][-1]
            found = {name: value for name, value in found.items() if name != key} | inside
    return found


def is_message(message: Any, roles: Mapping[str, str] | None = None) -> bool:
    """Return True for an object that says who speaks, and something."""
    if not isinstance(message, dict):
        return False
    given = opened(message)
    says = any(map(given.get, _SAYING))
    return says and role_of(given, roles or {})[1] is not None and not _is_silent(message, given)


def message_items(
    message: Any,
    roles: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
    words: Counter[tuple[str, str]] | None = None,
) -> list[Item]:
    """Return the steps in one message. `words` counts unusual words for who speaks, with their roles."""
    if not isinstance(message, dict):
        return [Item("user", message)] if isinstance(message, str) else []
    given = opened(message) if given is None else given
    if _is_silent(message, given):
        return []
    if given.get("is_sidechain"):
        return [Item("unread", "message of a subagent", OF_SUBAGENT)]
    word, role = role_of(given, roles or {})
    if words is not None and role in ("user", "assistant") and word.lower() not in _PLAIN:
        words[word, role] += 1
    parts = [*_content(given, word)]
    if role == "tool" and not any(part.kind in ("call", "result") for part in parts):
        parts = [_tool_part("result", given)]
    if not _LISTED.isdisjoint(given):
        parts += _listed_calls(given)
    texts = [part.value for part in parts if part.kind == "text" and part.value.strip()]
    written = _IN_CODEX if "payload" in message else _WRITTEN_BY_PROGRAMS
    if given.get("is_meta") or (role == "user" and any(map(written.match, texts))):
        return [Item("unread", "text that the agent's program wrote as the user")]
    said = [Item(role, "\n".join(texts))] if texts and role in ("user", "assistant") else []
    made = [_step(part) for part in parts if part.kind in ("call", "result")]
    if role is None and (texts or (word and not made and any(map(given.get, _SAYING)))):
        made.append(Item("unread", f"message of unknown role ({word or None})", _NAME_ROLE))
    for part in (each for each in parts if not each.kind):
        kind = str(part.raw.get("type") or next(iter(part.raw), ""))
        if role == "user":
            made.append(Item("unread", f"part of a user's message that is not text ({kind})"))
        elif re.search("tool|call|execut", kind.lower()):
            made.append(Item("unread", f"call of unknown form ({kind})", "write it as a tool call"))
    steps = [*said, *made] if role == "assistant" else [*made, *said]
    inner_messages = [each for key in KEYS["nested"] if key in given for each in objects(given[key])]
    return [item for each in inner_messages for item in message_items(each, roles)] + steps


def _is_silent(message: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    if "role" in message:
        return False
    keys = ("type", "kind", "event", "message_type")
    kinds = {str(each.get(key)) for each in (given, message) for key in keys}
    return not kinds.isdisjoint(SHAPES["silent"]["kinds"])


def first_of(given: Mapping[str, Any], *names: str) -> Any:
    """Return the first value under the keys with these names in the tables, if it says something."""
    for name in names:
        for key in KEYS[name]:
            if (value := given.get(key)) not in (None, "", []):
                return value
    return None


def _content(given: Mapping[str, Any], word: str) -> Iterator[MessagePart]:
    """Yield the parts of a message's content."""
    if given.get("type") in ITEMS:  # of Responses
        yield read_part(given)
        return
    is_of_tool = _is_of_tools(word) or ("tool_call_id" in given and "tool_name" in given)
    if is_of_tool and not (first_of(given, "calls") or "tool_call" in given):
        yield _tool_part("result" if re.search("return|res|output", word) else "call", given)
        return
    content = first_of(given, "text")
    is_json = isinstance(content, str) and content.lstrip()[:1] == "["
    listed = objects(read_result(content)) if is_json else []
    if listed and all(
        each.keys() in _ONLY_KEYS or _KINDS_OF_PARTS.match(str(each.get("type"))) for each in listed
    ):
        content = listed
    while isinstance(content, dict):
        inside = content.get("parts", content.get("content", content.get("message")))
        content = [content] if inside is None else inside
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            yield MessagePart("text", {}, value=part)
        elif isinstance(part, dict):
            yield from _spelled_part(part)


def _spelled_part(part: Mapping[str, Any]) -> Iterator[MessagePart]:
    given = {_snake(str(key)): value for key, value in part.items()}
    kind = str(given.get("part_kind") or given.get("type") or "")
    letters = _letters(kind)
    if inside := entry(given, "message_content"):
        yield from _spelled_part(inside)
    elif letters == "userprompt":
        yield from _content(given, "")
    elif kind in ITEMS and "part_kind" not in given and "value" not in given:
        yield read_part(part)
    elif kind == "dynamic-tool" or (kind.startswith("tool-") and {"tool_call_id", "state"} <= given.keys()):
        yield _tool_part("call", {"name": kind.removeprefix("tool-"), **given})  # of the AI SDK
        if "output" in given or "error_text" in given:
            yield _tool_part(
                "result", {key: given.get(key) for key in ("tool_call_id", "output", "error_text")}
            )
    elif "tool_use" in given or letters in _CALLS or (not kind and {"name", "arguments"} <= given.keys()):
        yield _tool_part("call", given)
    elif (
        "tool_result" in given
        or letters.endswith(("toolreturn", "toolresult"))
        or (not kind and "call_id" in given)
    ):
        yield _tool_part("result", given)
    elif letters != "systemprompt":
        yield read_part({**part, "text": given["value"]} if letters == "text" and "value" in given else part)


def _tool_part(kind: str, given: Mapping[str, Any], call: Any = None) -> MessagePart:
    """Return a `call`, or the `result` of one, of any tool as a part of a message."""
    for key in () if _CALL.isdisjoint(given) else KEYS["call"]:
        given = {**given, **{_snake(name): value for name, value in entry(given, key).items()}}
    if kind == "call" and not first_of(given, "tool"):  # as in ShareGPT's format, a JSON text
        given = {**given, **entry(read_result(first_of(given, "text")))}
    value, id = first_of(given, "arguments" if kind == "call" else "result"), first_of(given, "id") or call
    id = id[0] if isinstance(id, list) and len(id) == 1 else id
    name = str(first_of(given, "tool") or "")
    return MessagePart(kind, {}, name=name, value=value, id=None if isinstance(id, dict | list) else id)


def _listed_calls(given: Mapping[str, Any]) -> Iterator[MessagePart]:
    """Yield the calls that a message lists beside its content, and their results."""
    alone = [] if given.get("type") in ITEMS else [given.get("tool_call"), given.get("function_call")]
    calls = [opened(each) for each in objects(read_result(first_of(given, "calls"))) + objects(alone)]
    parts = [_tool_part("call", each) for each in calls]
    yield from parts
    results = entry(given, "observation").get("results") or first_of(given, "results")
    own = [each for each in calls if "result" in each or "output" in each or "response" in each]
    for at, each in enumerate([*own, *map(opened, objects(read_result(results)))]):
        yield _tool_part("result", each, parts[at].id if at < len(parts) else None)


def _step(part: MessagePart) -> Item:
    value = _plain_result(part.value) if part.kind == "result" else read_result(part.value)
    value = {} if part.kind == "call" and value is None else value
    return Item(part.kind, part.name, value, "" if part.id is None else str(part.id))


def _plain_result(value: Any) -> Any:
    parts = value if isinstance(value, list) else []
    if len(parts) == 1 and (inside := inner(entry(parts[0]), "functionResponse")):
        return read_result(inside.get("response"))
    if parts and all("text" in part or part.get("type") == "text" for part in map(entry, parts)):
        value = "\n".join(str(part.get("text", part.get("value", ""))) for part in parts)
    return read_result(value)


def history_of(steps: Sequence[Item]) -> Iterator[dict[str, Any]]:
    """Yield the messages of a scenario's `history` for steps. Each call has its result."""
    results = {item.id or item.text: item.value for item in steps if item.kind == "result"}
    for item in steps:
        if item.kind == "call":
            result = results.get(item.id or item.text, results.get(""))
            call = {"name": item.text, "args": item.value, "result": result}
            yield {"role": "assistant", "tool_calls": [call]}
        elif item.kind in ("user", "assistant"):
            yield {"role": item.kind, "content": item.text}


def dialog_items(values: Sequence[Any]) -> list[Item]:
    """Return the steps of what came before: messages, pairs of question and reply, or lines `User: Hi`."""
    found: list[Item] = []
    for value in values:
        if isinstance(value, list):
            found += [Item(("user", "assistant")[at % 2], str(each)) for at, each in enumerate(value)]
        for line in value.splitlines() if isinstance(value, str) else ():
            speaker, colon, said = line.partition(":")
            found += message_items({"role": speaker.strip(), "content": said.strip()} if colon else line)
        found += message_items(value) if isinstance(value, Mapping) else []
    return found


def expected_call(call: Any) -> dict[str, Any]:
    """Return the call of a trajectory for an expected call in the form of another tool."""
    call = opened(call) if isinstance(call, dict) else {"name": as_text(call)}
    item = _step(_tool_part("call", call))
    values, compared = item.value if isinstance(item.value, dict) else {}, call.get("compare_args")
    args = {key: value for key, value in values.items() if compared is None or key in compared}
    return {"name": item.text, **({"args": args} if args else {})}


def reply_text(value: Any) -> str:
    """Return an expected reply as a text, also of a message."""
    items = answer_items(value) if isinstance(value, Mapping) else ()
    return "\n\n".join(item.text for item in items if item.kind == "assistant") or as_text(value)


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
