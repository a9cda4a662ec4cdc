"""Agents that are programs, of Python and of Node."""

from __future__ import annotations

from pathlib import Path

from framework_lab import MARKS, Served, assert_mocked_tools, assert_own_tools, run

pytestmark = MARKS

PROGRAM = Served(id="argument", type="command", page="agents/command", cwd="servers")


def test_a_program_that_prints_its_reply(tmp_path: Path) -> None:
    """What a program prints is judged, sessions stay apart, and its calls are said to be unseen."""
    assert_own_tools(run(PROGRAM, tmp_path, "own_tools"), "unseen")


def test_a_program_that_tells_of_its_calls(tmp_path: Path) -> None:
    """Calls in the JSON of a program are judged."""
    told = {"command": ["python", "chat_json.py"], "input": "json", "tool_calls": "tool_calls"}
    program = Served(id="json", type="command", page="agents/command", cwd="servers", agent=told)
    assert_own_tools(run(program, tmp_path, "own_tools"), "reported")


def test_a_program_that_asks_for_its_tools(tmp_path: Path) -> None:
    """A program of Node that asks for its tools is answered by the mocks."""
    program = Served(id="jsonl", type="command", page="agents/command", after="## Tool calls", cwd="node")
    assert_mocked_tools(run(program, tmp_path, "mocked_tools"))
