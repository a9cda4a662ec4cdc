"""The tools of an agent in words, for judges: a line each, bounded in all."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentest.support.text import shortened

MOST_CHARS = 8_000
"""Of all lines: every judge of every turn is shown them."""
_DESCRIPTION_CHARS = 400
_BRIEF_CHARS = 100
_MOST_VALUES = 8
_SENTENCE = re.compile(r"(?<=[.!?])\s")
NONE = "(the assistant has no tools)"
MAYBE_OTHERS = "(the assistant may have other tools: these are known)"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTool:
    """What is known of one tool. Empty texts, and None, stand for what is not known."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """A JSON Schema of the arguments."""
    declared: str = ""
    """Its whole line, where the user has declared it for judges."""


def joined_tools(sources: Iterable[Iterable[KnownTool]]) -> tuple[KnownTool, ...]:
    """The tools of all sources by name: the first that knows something of a tool is believed."""
    found: dict[str, KnownTool] = {}
    for tool in (tool for source in sources for tool in source):
        known = found.get(tool.name)
        found[tool.name] = _filled(known, tool) if known else tool
    return tuple(found.values())


def _filled(known: KnownTool, other: KnownTool) -> KnownTool:
    return replace(
        known,
        description=known.description or other.description,
        parameters=known.parameters or other.parameters,
    )


def tool_lines(tools: Sequence[KnownTool], first: Container[str] = ()) -> list[str]:
    """A line for each tool; where all are too long, names and first sentences, and a count of the rest.

    Args:
        first: names of tools that are told of whole, as far as there is room, when others are not.
    """
    whole = _fitting(map(_line, tools))
    if len(whole) == len(tools):
        return whole
    ordered = sorted(tools, key=lambda tool: tool.name not in first)
    brief = _fitting(_line_of_many(tool, first) for tool in ordered)
    left = len(tools) - len(brief)
    return [*brief, *([f"(and {left:,} more, which are not shown)"] if left else [])]


def _fitting(lines: Iterable[str]) -> list[str]:
    """The first lines, as many as there is room for; no more are made."""
    kept: list[str] = []
    room = MOST_CHARS
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept


def _line_of_many(tool: KnownTool, first: Container[str]) -> str:
    line = _line(tool) if tool.name in first else ""
    return line if 0 < len(line) <= MOST_CHARS // 8 else _brief(tool)


def _line(tool: KnownTool) -> str:
    if tool.declared:
        return tool.declared
    arguments = "" if tool.parameters is None else f"({', '.join(_arguments(tool.parameters))})"
    said = shortened(_one_line(tool.description), _DESCRIPTION_CHARS)
    return f"{_one_line(tool.name)}{arguments}" + (f": {said}" if said else "")


def _brief(tool: KnownTool) -> str:
    said = shortened(_first_sentence(tool.description), _BRIEF_CHARS)
    return shortened(_one_line(tool.name), _BRIEF_CHARS) + (f": {said}" if said else "")


def _first_sentence(text: str) -> str:
    return _SENTENCE.split(_one_line(text), maxsplit=1)[0]


def _one_line(text: str) -> str:
    """Without line breaks: a description must not look like another tool."""
    return " ".join(text.split())


def _arguments(schema: Mapping[str, Any]) -> Iterator[str]:
    """`name: type (what it is)` of each argument; `?` for one that need not be given."""
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else ()
    for name, told in properties.items() if isinstance(properties, Mapping) else ():
        told = told if isinstance(told, Mapping) else {}
        kind = _type(told)
        said = _first_sentence(str(told.get("description") or ""))
        yield (
            _one_line(str(name))
            + ("" if name in needed else "?")
            + (f": {kind}" if kind else "")
            + (f" ({shortened(said, _BRIEF_CHARS)})" if said else "")
        )


def _type(schema: Mapping[str, Any]) -> str:
    """The type of a value in short: `string`, `"a" | "b"`, `integer[]`; "" where it may be anything."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        more = [] if len(values) <= _MOST_VALUES else ["…"]
        return " | ".join([*(_value(each) for each in values[:_MOST_VALUES]), *more])
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list):
        kinds = (_type(each) for each in alternatives if isinstance(each, Mapping))
        return " | ".join(dict.fromkeys(kind for kind in kinds if kind))
    kind = schema.get("type")
    if kind == "array" and isinstance(items := schema.get("items"), Mapping):
        return f"{_type(items) or 'any'}[]"
    types = kind if isinstance(kind, list) else [kind or ("object" if "$ref" in schema else "")]
    return " | ".join(_one_line(str(each)) for each in types if each)


def _value(value: Any) -> str:
    return shortened(_one_line(json.dumps(value, ensure_ascii=False, default=repr)), _BRIEF_CHARS)
