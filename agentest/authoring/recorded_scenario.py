"""Write a first scenario for recorded tools: the same user messages must lead to calls of the same tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentest.authoring.mock_signatures import is_parameter
from agentest.authoring.recorded_calls import RecordedTool, call_key, redacted_json
from agentest.domain.transcript import ToolCall, Turn
from agentest.scenarios.python_formatting import (
    BracketedSource,
    SourceItem,
    SourceNode,
    StringLiteral,
    bracketed,
    mapping,
    node,
    split_source,
)
from agentest.support.json_text import NotJson, json_text
from agentest.support.text import shortened

_NAME_CHARS = 60
_ABOUT = '"""Recorded by `agentest record-tools`: what was said, and which tools were called."""'


def scenario_of(
    turns: Sequence[Turn], tools: Sequence[RecordedTool], stem: str | None, redact: Callable[[str], str]
) -> str:
    """Return the source of a `*.sim.py`.

    An argument is expected if its value occurs in a user message or in an earlier answer. Other arguments may
    be the agent's own words, or depend on the date.

    Args:
        tools: the recorded tools; other calls are not expected.
        stem: module of the mocks, without `.py`; None if mocks do not reach the agent's tools.
    """
    messages = [redact(turn.user_message) for turn in turns]
    expected = list(_expected(turns, {tool.name: tool for tool in tools}, redact))
    items = [
        SourceItem(StringLiteral(shortened(messages[0], _NAME_CHARS))),
        SourceItem(node(messages), "turns="),
        *([SourceItem("tools", "tools=")] if stem else []),
        *([SourceItem(_trajectory(expected), "trajectory=")] if expected else []),
    ]
    names = (
        ["call", "scenario"] if any(isinstance(each, BracketedSource) for each in expected) else ["scenario"]
    )
    imports = [f"from agentest import {', '.join(names)}", *([f"from {stem} import tools"] if stem else [])]
    return (
        "\n\n".join([_ABOUT, *imports, split_source(BracketedSource("scenario(", tuple(items), ")"))]) + "\n"
    )


def _trajectory(expected: Sequence[SourceNode]) -> SourceNode:
    return mapping(
        [
            ("match_mode", StringLiteral("contains")),
            ("expected", bracketed("[", [SourceItem(each) for each in expected], "]")),
        ]
    )


def _expected(
    turns: Sequence[Turn], tools: Mapping[str, RecordedTool], redact: Callable[[str], str]
) -> Iterator[SourceNode]:
    """Yield each distinct call once, because agents may repeat calls."""
    known: list[str] = []
    seen: set[str] = set()
    for turn in turns:
        known.append(turn.user_message)
        for call in turn.tool_calls:
            made, key = _call(call, known, redact)
            known.append(_text(call.result))
            if call.name in tools and key not in seen:
                seen.add(key)
                yield made


def _call(call: ToolCall, known: Sequence[str], redact: Callable[[str], str]) -> tuple[SourceNode, str]:
    args = call.args if isinstance(call.args, Mapping) else {}
    arguments = {
        key: value
        for key, value in args.items()
        if is_parameter(key) and _is_known(value, known) and redacted_json({key: value}, redact)[key] == value
    }
    made = [SourceItem(node(value), f"{key}=") for key, value in arguments.items()]
    node_of = (
        bracketed("call(", [SourceItem(StringLiteral(call.name)), *made], ")")
        if made
        else StringLiteral(call.name)
    )
    return node_of, f"{call.name} {call_key(arguments)}"


def _is_known(value: Any, texts: Sequence[str]) -> bool:
    """Return True if a word or number occurs in one of the texts."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        return False
    word = re.compile(rf"(?<!\w){re.escape(str(value))}(?!\w)", re.I)
    return any(word.search(text) for text in texts)


def _text(value: Any) -> str:
    try:
        return value if isinstance(value, str) else json_text(value)
    except NotJson:
        return ""
