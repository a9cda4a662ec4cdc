"""Paths into agent answers."""

from __future__ import annotations

from typing import Any

import pytest

from agentest.agents.reply_detection import empty_path_message, places_of_text, text_of
from agentest.support.jmespath_expressions import JsonPath


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("a", "a"),
        (False, "false"),
        (0, "0"),
        ({"é": 1}, '{"é": 1}'),
        (["a", None, "b"], "ab"),
        ([{"type": "text", "text": "a"}, {"n": 1}, 2], 'a{"n": 1}2'),
        ([["a"], ["b"]], "ab"),
    ],
)
def test_text_of_a_value(value: Any, text: str | None) -> None:
    """Text is used as is, lists are joined, and `false` and 0 are replies."""
    assert text_of(value) == text


def test_places_of_text() -> None:
    """Common keys come first, then the longest text; empty texts and numbers are skipped."""
    value = {"id": "abc", "n": 1, "empty": " ", "note": "a long one", "data": {"answer": "x"}, "l": ["yy"]}
    assert places_of_text(value) == ["data.answer", "note", "id", "l[0]"]
    assert places_of_text("only this") == ["@"]


def test_a_path_that_finds_nothing() -> None:
    """The message has key, path, places with text, and the answer."""
    path = JsonPath("data.reply")
    assert empty_path_message("reply", path, {"data": {"answer": "Hello"}}) == (
        "`reply: data.reply` finds nothing in the agent's answer; found text at `data.answer`: "
        '{"data": {"answer": "Hello"}}'
    )
    assert empty_path_message("reply", path, {}).endswith("; it contains no text: {}")
