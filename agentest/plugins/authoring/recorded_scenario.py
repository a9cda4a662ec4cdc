"""Write a first scenario for recorded tools: the same user messages must lead to calls of the same tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentest.domain.transcript import ToolCall, Turn
from agentest.plugins.authoring.recorded_calls import RecordedTool, call_key, is_parameter, redacted_json
from agentest.scenarios.python_formatting import (
    SourceNode,
    StringLiteral,
    call_of,
    list_of,
    mapping,
    module_of_scenarios,
    node,
)
from agentest.support.json_text import NotJson, json_text
from agentest.support.text import shortened

_NAME_CHARS = 60
_ABOUT = '"""Recorded by `agentest record-tools`: the messages and the tool calls."""'


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
    trajectory = mapping([("match_mode", StringLiteral("contains")), ("expected", list_of(expected))])
    options = {
        "turns": node(messages),
        "tools": "tools" if stem else None,
        "trajectory": trajectory if expected else None,
    }
    made = call_of("scenario", [StringLiteral(shortened(messages[0], _NAME_CHARS))], options)
    return module_of_scenarios(_ABOUT, [made], stem or "")


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
            with suppress(NotJson):
                known.append(call.result if isinstance(call.result, str) else json_text(call.result))
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
    name = StringLiteral(call.name)
    made = call_of("call", [name], {key: node(value) for key, value in arguments.items()})
    return made if arguments else name, f"{call.name} {call_key(arguments)}"


def _is_known(value: Any, texts: Sequence[str]) -> bool:
    """Return True if a word or number occurs in one of the texts."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        return False
    word = re.compile(rf"(?<!\w){re.escape(str(value))}(?!\w)", re.I)
    return any(word.search(text) for text in texts)
