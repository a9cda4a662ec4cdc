"""Answers configured as text (`delta: "@"`) stay text, whatever they look like."""

from __future__ import annotations

from typing import Any

import pytest
from talking import held
from wire import http

AGENT = {"type": "http", "body": {"m": "{{message}}"}, "retries": 0}
EVENTS, TEXT, LINES = "text/event-stream", "text/plain", "application/x-ndjson"


def events(*texts: str) -> str:
    return "".join(f"data: {text}\n\n" for text in texts)


def reply(body: str, kind: str, **paths: Any) -> str:
    answer = http(body.encode(), headers=(f"content-type: {kind}",))
    told = held({**AGENT, **paths}, ("Hi",), answer)
    return told.replies[0] if told.replies else told.problem


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (events("if x ", "{ y ", "}"), EVENTS, "if x { y }"),
        (events("{"), EVENTS, "{"),
        (events("I take ", "12", ", not ", "null", " or ", "true"), EVENTS, "I take 12, not null or true"),
        (events("12"), EVENTS, "12"),
        (events("null"), EVENTS, "null"),
        (events("true"), EVENTS, "true"),
        (events("false", "0"), EVENTS, "false0"),
        (events("[1", '{"a": 1}'), EVENTS, '[1{"a": 1}'),
        (events('"Hel"', '"lo"'), EVENTS, "Hello"),
        (events("{x", "12"), TEXT, "{x12"),
        ('{ "a":1 }', TEXT, '{ "a":1 }'),
        ('{"a": 1}\n{"b": 2}', TEXT, '{"a": 1}\n{"b": 2}'),
        ("12", TEXT, "12"),
        ("{ y\n12\nnull\n", LINES, "{ y12null"),
    ],
)
def test_pieces_that_look_like_json(body: str, kind: str, said: str) -> None:
    """A chunk that looks like JSON is a piece of the text."""
    assert reply(body, kind, delta="@") == said


@pytest.mark.parametrize("text", ["{ y", "12", "null", "true", '{ "a":1 }'])
def test_a_whole_that_looks_like_json(text: str) -> None:
    """A whole reply configured as text is that text."""
    assert reply(text, TEXT, reply="@") == reply(events(text), EVENTS, reply="@") == text


def test_unconfigured_text_streams() -> None:
    """Without paths, a text stream may contain numbers and JSON words; half an object is an error."""
    assert reply(events("I take ", "12", " or ", "null"), EVENTS) == "I take 12 or null"
    assert "an event of the agent's stream is not JSON: '{ y'" in reply(events("x", "{ y"), EVENTS)
    assert "is not JSON: '{ y'" in reply(events("x", "{ y"), EVENTS, delta="text")
