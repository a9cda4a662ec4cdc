"""Reading messages of connected agents in any format: replies without a path, calls, errors."""

from __future__ import annotations

from typing import Any

import pytest

from agentest.agents.port import AgentNotes
from agentest.plugins.protocols.dialogue import MessagePaths, TurnReader
from agentest.support.errors import AgentError
from agentest.support.jmespath_expressions import JsonPath


def hearing(notes: AgentNotes | None = None, **paths: str) -> TurnReader:
    form = MessagePaths(**{name: JsonPath(path) for name, path in paths.items()})
    return TurnReader(form, 0, notes or AgentNotes("a", [].append))


def test_a_reply_at_a_usual_place() -> None:
    """Without a path the reply is found as in type http, with one note about its place."""
    told: list[str] = []
    notes = AgentNotes("a", told.append)
    for message in ({"message": {"content": "Hi"}}, {"message": {"content": "Ho"}}):
        heard = hearing(notes)
        heard.hear({"status": "thinking"})
        assert not heard.done
        heard.hear(message)
        assert (heard.done, heard.answer().text) == (True, message["message"]["content"])
    assert told == [
        "agent 'a': `reply` is not set, so its reply is the text at `message.content`",
    ]


@pytest.mark.parametrize(
    ("paths", "message", "said"),
    [
        ({}, {"reply": "Hi", "text": "Ho"}, "has text at `reply` and `text`: set `reply` to"),
        ({"tool_calls": "@"}, {"tool": "pay", "given": {"a": 1}}, "has no `args`, but given"),
        ({"tool_request": "@"}, {"id": 1, "args": {}}, "write `tool_request` so that it gives id, name and"),
        ({"error": "code"}, {"code": 7}, "reports an error (`error: code`): 7"),
    ],
    ids=["two-replies", "lost-arguments", "nameless", "error"],
)
def test_ambiguous_messages(paths: dict[str, str], message: Any, said: str) -> None:
    """The error names the setting that is needed instead of guessing."""
    with pytest.raises(AgentError) as raised:
        hearing(**paths).hear(message)
    assert said in str(raised.value)


def test_calls_of_usual_names() -> None:
    """Calls take the names that type http takes; a result that comes later adds to its call."""
    heard = hearing(reply="reply", tool_calls="call", tool_request="ask", error="code")
    heard.hear({"call": {"callId": "c-1", "function": {"name": "find", "arguments": '{"q": 1}'}}, "code": 0})
    heard.hear({"ask": {"call_id": 2, "tool": "book", "input": {"day": 3}}})
    asked = heard.requests()
    assert [(c.call_id, c.name, c.args, c.result) for c in asked.observed] == [
        ("c-1", "find", {"q": 1}, None)
    ]
    assert [(r.id, r.name, r.arguments) for r in asked.tool_requests] == [("2", "book", '{"day": 3}')]
    heard.hear({"call": {"callId": "c-1", "output": [4]}})
    heard.hear({"reply": "Done"})
    (again,) = heard.answer().observed
    assert (again.call_id, again.args, again.result) == ("c-1", {"q": 1}, [4])


def test_unread_calls_are_noted() -> None:
    """One note reports calls at a place that no path covers."""
    notes: list[str] = []
    heard = hearing(AgentNotes("a", notes.append), reply="reply")
    for _ in range(2):
        heard.hear({"steps": [{"tool": "pay", "args": {}}], "reply": "Hi"})
    assert len(notes) == 1
    assert "seem to report tool calls at `steps`" in notes[0]


def test_calls_before_an_error_stay() -> None:
    """An error keeps calls of its own message and earlier ones."""
    heard = hearing(tool_calls="call", error="error")
    with pytest.raises(AgentError):
        heard.hear({"call": {"name": "pay"}, "error": "declined"})
    assert [call.name for call in heard.no_reply("declined").observed] == ["pay"]
