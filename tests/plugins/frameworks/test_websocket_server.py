"""An agent behind a WebSocket of FastAPI."""

from __future__ import annotations

from pathlib import Path

from framework_lab import MARKS, Served, assert_mocked_tools, assert_own_tools, run

pytestmark = MARKS

COMMAND = ("openai_agents/bin/python", "websocket_server.py", "--port", "{port}")


def served(after: str = "", **agent: object) -> Served:
    page = "agents/websocket"
    return Served(id="websocket", type="websocket", page=page, after=after, command=COMMAND, agent=agent)


def test_replies_of_a_socket_are_judged(tmp_path: Path) -> None:
    """A socket is a conversation, and its calls are unseen."""
    assert_own_tools(run(served(), tmp_path, "own_tools"), "unseen")


def test_calls_that_a_socket_tells_are_judged(tmp_path: Path) -> None:
    """A path to what the agent reports its calls makes them judged."""
    told = served(tool_calls="type == 'tool' && {name: name, args: args, result: result}")
    assert_own_tools(run(told, tmp_path, "own_tools"), "reported")


def test_tools_that_a_socket_requests_are_mocked(tmp_path: Path) -> None:
    """Mocks answer the agent's requests to its caller."""
    assert_mocked_tools(run(served(after="## Tool calls"), tmp_path, "mocked_tools"))
