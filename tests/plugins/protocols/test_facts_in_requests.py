"""What judges know about an agent from the tools and instructions in requests to it."""

from __future__ import annotations

from typing import Any

import pytest

from agentest.config.config import Config
from agentest.runner.known_tools import agent_traits, known_tools

SCHEMA = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}
BOOK = {"name": "book", "description": "Books a slot."}
FORMS: dict[str, list[Any]] = {
    "responses": [{"type": "function", **BOOK, "parameters": SCHEMA}, {"type": "web_search"}],
    "anthropic_messages": [{**BOOK, "input_schema": SCHEMA}],
}
INSTRUCTIONS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "responses": [
        ({"instructions": "A."}, "A."),
        ({"instructions": "A.", "input": [{"role": "developer", "content": "B."}]}, "A.\n\nB."),
        ({"instructions": 3}, ""),
    ],
    "anthropic_messages": [
        ({"system": "A."}, "A."),
        ({"system": [{"type": "text", "text": "A."}, {"type": "text", "text": "B."}]}, "A.\n\nB."),
    ],
}


def agent(type: str, body: dict[str, Any], **more: Any) -> Any:
    settings = {"type": type, "endpoint": "http://h", "body": body, **more}
    return Config.model_validate({"agent": settings}).agent


@pytest.mark.parametrize("type", FORMS)
def test_tools(type: str) -> None:
    """Invalid tools are left out."""

    def lines(tools: Any) -> list[str]:
        about = agent_traits("a", agent(type, {"tools": tools}))
        return known_tools(about.tools, {}, ()).text.split("\n")

    more = ["web_search"] if type == "responses" else []
    assert lines(FORMS[type]) == ["book(day: string): Books a slot.", *more]
    assert lines([3, {}, {"name": ""}, {"name": "a", "parameters": [], "description": 1}]) == ["a"]
    assert lines("x") == [""]


@pytest.mark.parametrize("type", INSTRUCTIONS)
def test_instructions(type: str) -> None:
    """The configuration's own come before those of the request."""
    for body, told in INSTRUCTIONS[type]:
        assert agent_traits("a", agent(type, body)).instructions == told
        assert agent_traits("a", agent(type, body, instructions="Own.")).instructions == "Own."
