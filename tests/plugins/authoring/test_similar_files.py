"""Files that resemble each other: tests and transcripts, and ids of sessions and of other things."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentest.plugins.authoring.commands.row_import import import_
from agentest.plugins.authoring.trace_import import recorded_conversations
from agentest.scenarios.discovery import discover_file
from agentest.support.errors import UsageError
from agentest.support.importing import Imports


def message(role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


def event(author: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"author": author, "content": {"parts": parts}}


def run_of(trace: str, text: str) -> dict[str, Any]:
    output = [message("user", text), message("assistant", "ok")]
    inputs, outputs = {"messages": output[:1]}, {"messages": output}
    return {
        "trace_id": trace,
        "session_id": "the project",
        "run_type": "chain",
        "inputs": inputs,
        "outputs": outputs,
    }


def read(tmp_path: Path, content: Any) -> list[list[tuple[str, str]]]:
    """Return the user's message and the reply of each turn of each conversation in a file."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    conversations, _ = recorded_conversations([path], None)
    return [[(turn.user_message, turn.agent_message or "") for turn in each.turns] for each in conversations]


@pytest.mark.parametrize("author", ["root", "system", "customer", "tool_agent", "function_call_agent"])
def test_agents_of_adk_have_any_name(tmp_path: Path, author: str) -> None:
    """The author of an event is the user, or an agent, whose name does not tell its role."""
    events = [event("user", {"text": "Hi"}), event(author, {"text": "Hello"})]
    assert read(tmp_path, {"id": "s", "appName": "a", "events": events}) == [[("Hi", "Hello")]]


def test_data_in_a_message_are_not_its_parts(tmp_path: Path) -> None:
    """JSON that a user sends is a message as it is; JSON that a program wrote for one has its parts."""
    order = json.dumps([{"text": "pen", "price": 3}])
    parts = json.dumps([{"type": "text", "text": "Hi"}, {"text": "there"}])
    rows = [
        message("user", order),
        message("assistant", "ok"),
        message("user", parts),
        message("assistant", "?"),
    ]
    [[first, (second, _)]] = read(tmp_path, [{"session_id": "s", "messages": rows}])
    assert first == (order, "ok")
    assert "Hi" in second
    assert "type" not in second


@pytest.mark.parametrize("id", ["thread_id", "conversationId"])
def test_messages_of_several_sessions_in_one_list(tmp_path: Path, id: str) -> None:
    """Each session is a conversation, even if their messages alternate."""
    rows = [message("user", "A", **{id: 1}), message("user", "B", **{id: 2})]
    rows += [message("assistant", "a", **{id: 1}), message("assistant", "b", **{id: 2})]
    assert read(tmp_path, {"messages": rows}) == [[("A", "a")], [("B", "b")]]


def test_speakers_with_ids_are_one_session(tmp_path: Path) -> None:
    """The id of a sender is that of a session only in Rasa."""
    rows = [message("user", "A", sender_id="u"), message("assistant", "a", sender_id="bot")]
    assert read(tmp_path, [*rows, *rows]) == [[("A", "a"), ("A", "a")]]
    rows = [{"event": "user", "text": "A", "sender_id": 1}, {"event": "bot", "text": "a", "sender_id": 1}]
    assert read(tmp_path, {"sender_id": 1, "events": rows}) == [[("A", "a")]]


def test_a_project_of_langsmith_is_not_a_session(tmp_path: Path) -> None:
    """Each trace is a conversation."""
    runs = [run_of("1", "A"), run_of("2", "B")]
    assert read(tmp_path, runs) == [[("A", "ok")], [("B", "ok")]]


def test_senders_that_are_lists_have_no_role(tmp_path: Path) -> None:
    """A mail is from several addresses."""
    with pytest.raises(UsageError, match="2 × message of unknown role"):
        read(tmp_path, {"messages": [{"from": ["a@example.com"], "text": "Hi"}] * 2})


@pytest.mark.parametrize(
    ("content", "turns"),
    [
        ("question,answer,context_id\nA,a,1\nB,b,1\n", [["A"], ["B"]]),
        ("question,answer,ticket_id\nA,a,1\nB,b,1\n", [["A"], ["B"]]),
        ("id,conversation,expected\n1,A,a\n2,A,b\n", [["A"], ["A"]]),
        ("question,answer,Chat ID\nA,a,1\nB,b,1\n", [["A", "B"]]),
        ("utterance,type\nA,customer\nB,customer\n", [["A"], ["B"]]),
        ("utterance,type\nA,customer\nB,agent\n", [["A"]]),
    ],
)
def test_rows_of_tests_stay_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, turns: list[list[str]]
) -> None:
    """Only rows that name their conversation are joined, and rows of users alone are not a transcript."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(content, encoding="utf-8")
    done = CliRunner().invoke(import_, ["a.csv", "--output", "a.sim.yaml"], standalone_mode=False)
    assert done.exception is None
    scenarios = discover_file(tmp_path / "a.sim.yaml", Imports()).scenarios
    assert [[turn.user_message for turn in each.turns] for each in scenarios] == turns
