"""A graph behind `langgraph dev`."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_lab import MARKS, Served, assert_all_pass, assert_own_tools, run

pytestmark = MARKS

DEV = ("langgraph/bin/langgraph", "dev", "--no-browser", "--no-reload", "--port", "{port}")


def served(name: str, *options: str, **agent: object) -> Served:
    """The server of the page, on which runs do not wait for one another."""
    command = (*DEV, "--n-jobs-per-worker", "20", *options)
    where = "servers/langgraph_app"
    page = "agents/langgraph"
    return Served(id=name, type="langgraph", page=page, command=command, ready="/ok", cwd=where, agent=agent)


@pytest.mark.parametrize("streaming", [False, True], ids=["wait", "stream"])
def test_what_a_graph_does_is_told(streaming: bool, tmp_path: Path) -> None:
    """Replies, calls and errors of a graph are known from its messages, and threads stay apart."""
    assert_own_tools(run(served("langgraph", streaming=streaming), tmp_path, "own_tools"), "reported")


@pytest.mark.parametrize("approvals", ["ask", "approve", "deny"])
def test_interrupts_are_answered(approvals: str, tmp_path: Path) -> None:
    """A graph that interrupts itself is answered by the user's next message, or by the configuration."""
    agent = served("langgraph", approvals=approvals)
    assert_all_pass(run(agent, tmp_path, f"approvals_{approvals}"))
