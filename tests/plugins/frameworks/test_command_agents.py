"""Agents that are programs, of Python and of Node."""

from __future__ import annotations

from pathlib import Path

from framework_lab import MARKS, Served, assert_mocked_tools, assert_own_tools, run

pytestmark = MARKS

PROGRAM = Served(id="argument", type="command", page="agents/command", cwd="servers")


def test_a_program_that_prints_its_reply(tmp_path: Path) -> None:
    """Printed replies are judged, sessions stay separate, and calls are unseen."""
    assert_own_tools(run(PROGRAM, tmp_path, "own_tools"), "unseen")


def test_a_program_that_tells_of_its_calls(tmp_path: Path) -> None:
    """Calls in the JSON of a program are judged."""
    told = {"command": ["python", "chat_json.py"], "input": "json", "tool_calls": "tool_calls"}
    program = Served(id="json", type="command", page="agents/command", cwd="servers", agent=told)
    assert_own_tools(run(program, tmp_path, "own_tools"), "reported")


def test_a_program_that_requests_its_tools(tmp_path: Path) -> None:
    """Mocks answer a Node program's tool calls."""
    program = Served(id="jsonl", type="command", page="agents/command", after="## Tool calls", cwd="node")
    assert_mocked_tools(run(program, tmp_path, "mocked_tools"))
