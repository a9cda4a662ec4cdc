"""An agent behind a WebSocket of FastAPI."""

from __future__ import annotations

from pathlib import Path

from framework_lab import MARKS, Served, assert_mocked_tools, assert_own_tools, run

pytestmark = MARKS

COMMAND = ("openai_agents/bin/python", "websocket_server.py", "--port", "{port}")


def served(after: str = "", **agent: object) -> Served:
    page = "agents/websocket"
    return Served(id="websocket", type="websocket", page=page, after=after, command=COMMAND, agent=agent)


def test_what_a_socket_says_is_judged(tmp_path: Path) -> None:
    """Replies are judged, a socket is a conversation, and calls are said to be unseen."""
    assert_own_tools(run(served(), tmp_path, "own_tools"), "unseen")


def test_calls_that_a_socket_tells_are_judged(tmp_path: Path) -> None:
    """A path to what the agent reports its calls makes them judged."""
    told = served(tool_calls="type == 'tool' && {name: name, args: args, result: result}")
    assert_own_tools(run(told, tmp_path, "own_tools"), "reported")


def test_tools_that_a_socket_asks_for_are_mocked(tmp_path: Path) -> None:
    """What the agent asks its caller for is answered by the mocks."""
    assert_mocked_tools(run(served(after="## Tool calls"), tmp_path, "mocked_tools"))
