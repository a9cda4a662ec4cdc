"""A graph behind `langgraph dev`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from framework_lab import MARKS, Served, assert_own_tools, conversation, run, statuses

pytestmark = MARKS

DEV = ("langgraph/bin/langgraph", "dev", "--no-browser", "--no-reload", "--port", "{port}")


def served(*options: str, asks: bool = False, **agent: object) -> Served:
    """`langgraph dev`, on which runs do not wait for one another."""
    return Served(
        id="langgraph",
        type="langgraph",
        page="agents/langgraph",
        command=(*DEV, "--n-jobs-per-worker", "20", *options),
        ready="/ok",
        cwd="servers/langgraph_app",
        agent=agent,
        asks=asks,
    )


@pytest.mark.parametrize("streaming", [False, True], ids=["wait", "stream"])
def test_what_a_graph_does_is_told(streaming: bool, tmp_path: Path) -> None:
    """Replies, calls and errors of a graph are known from its messages, and threads stay apart.

    Interrupts are answered by the user's next message, or by the configuration.
    """
    agent = served(asks=True, streaming=streaming)
    assert_own_tools(run(agent, tmp_path, "own_tools"), "reported")


def test_a_graph_without_messages(tmp_path: Path) -> None:
    """A state of another shape is filled by `body` and read by `reply`; its errors are the agent's."""
    agent = replace(served("--config", "question.json"), after="If the graph's state has no `messages`")
    project = run(agent, tmp_path, "questions")
    assert statuses(project) == {"asks": "passed", "fails": "failed"}
    assert conversation(project, "fails")["errorSource"] == "agent"
