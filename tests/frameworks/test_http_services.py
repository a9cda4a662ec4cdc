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
STREAM = {
    "endpoint": "http://localhost/chat/stream",
    "delta": "event == 'token' && text",
    "tool_calls": "event == 'tool' && {name: tool, args: input, result: output}",
}
TRACED = {
    "endpoint": "http://localhost/chat/traced",
    "tool_calls": "tools[].{name: tool, args: input, result: output}",
}


def service(page: str, command: tuple[str, ...], cwd: str = "servers", **agent: object) -> Served:
    return Served(id=page, type="http", page=f"agents/{page}", command=command, cwd=cwd, agent=agent)


UNSEEN = [
    service("fastapi", FASTAPI),
    service("node", NODE, "node"),
    service("go", GO),
    service("java", JAVA),
]
REPORTED = {
    "fastapi": service("fastapi", FASTAPI, **TRACED),
    "fastapi-streamed": service("fastapi", FASTAPI, **STREAM),
    "node": service("node", NODE, "node", tool_calls="tools"),
}


@pytest.mark.parametrize("served", UNSEEN, ids=lambda served: served.id)
def test_replies_are_judged_and_calls_are_said_to_be_unseen(served: Served, tmp_path: Path) -> None:
    """The configuration of the page reads the reply, keeps sessions apart, and says that calls are unseen."""
    assert_own_tools(run(served, tmp_path, "own_tools"), "unseen")


@pytest.mark.parametrize("name", REPORTED)
def test_a_path_to_the_calls_makes_them_judged(name: str, tmp_path: Path) -> None:
    """Where the service tells of its calls, one key more has them judged."""
    assert_own_tools(run(REPORTED[name], tmp_path, "own_tools"), "reported")
