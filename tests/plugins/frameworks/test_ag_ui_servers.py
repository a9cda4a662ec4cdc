"""Agents of pydantic-ai, LangGraph and google-adk behind AG-UI."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_lab import MARKS, Served, assert_mocked_tools, assert_own_tools, run, statuses

pytestmark = MARKS

COMMANDS = {
    "pydantic-ai": ("pydantic_ai/bin/python", "pydantic_ai_server.py", "--protocol", "ag_ui"),
    "langgraph": ("langgraph/bin/python", "langgraph_ag_ui_server.py"),
    "google-adk": ("google_adk/bin/python", "google_adk_server.py", "--protocol", "ag_ui"),
}
EVERY = pytest.mark.parametrize("framework", COMMANDS)


def served(framework: str, *options: str, asks: bool = False) -> Served:
    command = (*COMMANDS[framework], "--port", "{port}", "--path", "{path}", *options)
    # ag-ui-adk refuses what goes beyond ten runs at once, unless its server says otherwise.
    config = {"concurrency": 8} if framework == "google-adk" else {}
    page = "agents/ag-ui"
    return Served(id=framework, type="ag_ui", page=page, command=command, config=config, asks=asks)


@EVERY
def test_agent_events_are_read(framework: str, tmp_path: Path) -> None:
    """Replies, calls with results and errors come from events; threads stay separate.

    Interrupts are answered by the user's next message or by the configuration. ag-ui-adk has none of its own.
    """
    agent = served(framework, asks=framework != "google-adk")
    assert_own_tools(run(agent, tmp_path, "own_tools"), "reported")


@EVERY
def test_tools_of_the_caller_are_mocked(framework: str, tmp_path: Path) -> None:
    """Mocked tools are declared to the agent, and mocks answer their calls.

    Undeclared tools: a model of pydantic-ai gets an error, google-adk runs its own.
    """
    agent = served(framework, "--client-tools")
    without_mock = "failed" if framework == "langgraph" else "passed"
    assert_mocked_tools(run(agent, tmp_path, "mocked_tools"), without_mock)


@EVERY
def test_ignored_mocks_are_reported(framework: str, tmp_path: Path) -> None:
    """If mocks cannot replace the agent's tools of the same name, nothing passes."""
    found = statuses(run(served(framework), tmp_path, "mocked_tools"))
    mocked = ("tells the mocked stock", "reserves by mocks", "keeps a ban", "breaks a ban", "red", "green")
    assert "passed" not in {found[name] for name in mocked}, found
    assert "client_tools" in (tmp_path / "project" / "output").read_text(encoding="utf-8")
