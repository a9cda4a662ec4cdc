"""Describe configuration errors: file, line, key, the value that was found and the one expected."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from agentest.config.agent_types import agent_keys, settings_class, unknown_type_message
from agentest.config.agents.base import AnyAgent
from agentest.config.agents.server import IN_A_LIST, NAMED
from agentest.config.config import Config
from agentest.config.fields import Path_, Section, key_location, key_names
from agentest.plugin import PLUGINS, if_command
from agentest.support.redaction import HIDDEN, Redactor, looks_secret
from agentest.support.text import did_you_mean, snake_case

_ITEM = re.compile(r"(\w+)\[(\d+)\]: ")
_EXPECTED = {
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "keys and values"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **{"string_type": "a text", "list_type": "a list"},
}
_EXAMPLES = {
    "agent": 'agent: {endpoint: "http://HOST:PORT/PATH"}',
    "agent.endpoint": 'endpoint: "http://HOST:PORT/PATH"',
    "agent.body": "body: {model: my-model}",
    "model": "model: openai/gpt-5-mini",
}
_FEW_TYPES = 4


_SCENARIO_KEYS = frozenset({"criteria", "expected_outcome", "goal", "knowledge", "patience", "profile"})


_UNION_MEMBERS = ("str", "list[str]", "callable", "[key]", "HeaderCommand")


def describe(error: ValidationError, path: Path, lines: dict[Path_, int], redact: Redactor) -> str:
    problems: dict[str, str] = {}
    # A missing key is often one that was misspelled.
    for details in sorted(error.errors(include_url=False), key=lambda each: each["type"] == "missing"):
        at = _key_path(details)
        if not at and (item := _ITEM.match(details["msg"].removeprefix("Value error, "))):
            at, details["msg"] = (item[1], int(item[2])), details["msg"].replace(item[0], "", 1)
        # A value that fits neither member of a union fails as both. Report it once.
        problems.setdefault(key_location(path, at, lines), _problem(details, at, redact))
    return "\n".join(f"{location}: {problem}" for location, problem in problems.items())


def _problem(details: Any, at: Path_, redact: Redactor) -> str:
    kind, value = details["type"], details["input"]
    if kind == "extra_forbidden":
        loc = details["loc"]
        key, section = str(loc[-1]), _section_at(loc[:-1])
        hint = _correct_parent(snake_case(key), loc[:-1]) or did_you_mean(key, key_names(section))
        if issubclass(section, AnyAgent) and snake_case(key) in agent_keys():
            names = ", ".join(f"`{name}`" for name in sorted(key_names(section)))
            hint = f"{_types_with(snake_case(key))}an agent of this type takes {names}"
        return f"unknown key `{key}`; {hint}"
    if kind == "union_tag_invalid":
        return unknown_type_message(details["ctx"]["tag"])
    if kind == "missing":
        example = _EXAMPLES.get(".".join(map(str, at)))
        if example and at == ("agent",):
            example += if_command("init", ", or run agentest init")
        return f"the key is missing{f'; write {example}' if example else ''}"
    if kind == "value_error":
        return redact(details["msg"].removeprefix("Value error, "))
    expected = _EXPECTED.get(kind)
    if expected == "keys and values" and value is None:
        return "has no value; indent its keys below it"
    message = f"expected {expected}" if expected else details["msg"]
    value_text = _value_text(value, at, redact)
    example = _EXAMPLES.get(".".join(map(str, at)), "")
    if kind == "list_type" and at and isinstance(value, str | int | float):
        example = f"{at[-1]}: [{value_text}]"
    return f"found {value_text}; {message[0].lower()}{message[1:]}{f'; write {example}' if example else ''}"


def _value_text(value: Any, at: Path_, redact: Redactor) -> str:
    if isinstance(value, str | int | float | bool) or value is None:
        secret = value is not None and any(looks_secret(str(part)) for part in at)
        return HIDDEN if secret else redact.error(repr(value))
    return f"a {type(value).__name__}"


def _key_path(details: Any) -> Path_:
    loc, kind = details["loc"], details["type"]
    tag_at = {"agent": 1, "agents": 2, "compare": 2, "servers": 1}.get(loc[0] if loc else "")
    if kind == "union_tag_invalid":
        return (*loc, "type")
    if loc and loc[0] == "servers" and loc[1:2] not in ((NAMED,), (IN_A_LIST,)):
        tag_at = None
    if tag_at and len(loc) > tag_at:
        loc = (*loc[:tag_at], *loc[tag_at + 1 :])
    if loc and kind not in ("extra_forbidden", "missing") and loc[-1] in _UNION_MEMBERS:
        loc = loc[:-1]
    return tuple(loc)


def _correct_parent(key: str, holder: Path_) -> str | None:
    if not holder and key in _SCENARIO_KEYS:
        return f"it is an option of scenarios: scenario(…, {key}=…)"
    if holder and key == "model" and issubclass(_section_at(holder), AnyAgent):
        return "to send it to the agent, write body: {model: …}; the model of users is the top-level `model`"
    if not holder and key == "server":
        return "it is a key of `agent`; to start more processes, list them under `servers`"
    if holder and key in ("url", "base_url", "uri") and issubclass(_section_at(holder), AnyAgent):
        return "did you mean `endpoint`?"
    if holder and key in Config.model_fields and key not in _section_at(holder).model_fields:
        return "it is a key of the whole configuration; write it without indentation"
    if not holder and key in agent_keys():
        return "it is a key of `agent`; indent it below `agent:`"
    other = {"user": "judge", "judge": "user"}.get(str(holder[0])) if len(holder) == 1 else None
    if other and key in _section_at((other,)).model_fields:
        return f"it is a key of `{other}`"
    return None


def _types_with(key: str) -> str:
    types = [name for name in PLUGINS.all("agent type") if key in agent_keys([name])]
    return f"it is one of type: {', '.join(types)}; " if len(types) <= _FEW_TYPES else ""


def _section_at(loc: Path_) -> type[BaseModel]:
    section: type[BaseModel] = Config
    parts = loc
    if parts and parts[0] in ("agent", "agents", "compare"):
        tag_at = 1 if parts[0] == "agent" else 2
        section, parts = settings_class(str(parts[tag_at])), parts[tag_at + 1 :]
    for part in parts:
        info = section.model_fields.get(str(part))
        section = _section_of(info.annotation if info else None) or section
    return section


def _section_of(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    sections = map(_section_of, getattr(annotation, "__args__", ()))
    return next((section for section in sections if section), None)
