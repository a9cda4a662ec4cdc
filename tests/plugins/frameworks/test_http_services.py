"""Services with a form of their own: FastAPI (with the OpenAI Agents SDK), plain Node, Go and Java."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_lab import MARKS, Served, assert_own_tools, run

pytestmark = MARKS

FASTAPI = ("openai_agents/bin/python", "openai_agents_server.py", "--port", "{port}")
NODE = ("node/bin/node", "plain_server.mjs", "--port", "{port}")
GO = ("services/go_service", "--port", "{port}")
JAVA = ("java", "-cp", "{folder}/services", "Server", "--port", "{port}")
UNSEEN = {"go": GO, "java": JAVA}
STREAM = {
    "endpoint": "http://localhost/chat/stream",
    "delta": "event == 'token' && text",
    "tool_calls": "event == 'tool' && {name: tool, args: input, result: output}",
}


@pytest.mark.parametrize("page", UNSEEN)
def test_replies_are_judged_and_calls_are_unseen(page: str, tmp_path: Path) -> None:
    """The page's configuration reads replies and errors and separates sessions."""
    served = Served(id=page, type="http", page=f"agents/{page}", command=UNSEEN[page])
    assert_own_tools(run(served, tmp_path, "own_tools"), "unseen")


def test_calls_of_an_agent_behind_fastapi_are_judged(tmp_path: Path) -> None:
    """The configuration of the page finds the calls in the answers, and the server's session in the first."""
    served = Served(id="fastapi", type="http", page="agents/fastapi", command=FASTAPI)
    assert_own_tools(run(served, tmp_path, "own_tools"), "reported")


def test_calls_in_a_stream_of_fastapi_are_judged(tmp_path: Path) -> None:
    """Events of a stream have the reply in pieces, the calls, and the session."""
    without = ("reply",)
    served = Served(
        id="stream", type="http", page="agents/fastapi", command=FASTAPI, agent=STREAM, without=without
    )
    assert_own_tools(run(served, tmp_path, "own_tools"), "reported")


def test_calls_of_a_service_in_node_are_judged(tmp_path: Path) -> None:
    """The configuration of the page finds the calls in the answers."""
    served = Served(id="node", type="http", page="agents/node", command=NODE, cwd="node")
    assert_own_tools(run(served, tmp_path, "own_tools"), "reported")
