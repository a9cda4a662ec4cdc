"""`{port}` in the addresses of protocols."""

from __future__ import annotations

import pytest

from agentest.config.config import Config


@pytest.mark.parametrize(
    ("type", "address", "used"),
    [
        ("websocket", "ws://h:{port}/{{ session_id }}", "ws://h:7/{{ session_id }}"),
        *((name, "http://h:{port}", "http://h:7") for name in ("adk", "langgraph", "a2a")),
    ],
)
def test_an_agent_at_a_free_port(type: str, address: str, used: str) -> None:
    server = {"command": ["serve", "{port}"], "ready": "tcp://h:{port}"}
    agent = Config.model_validate({"agent": {"type": type, "endpoint": address, "server": server}}).agent
    assert agent.at_port(7).address == used
