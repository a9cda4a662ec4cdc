"""`mcp_mock`, `rest_mock` and `traces` of an agent, and their addresses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentest.config.agent_types import visibility_of_agent
from agentest.config.config import Config
from agentest.domain.tool_visibility import ToolVisibility

PLAIN = {"type": "chat_completions", "reply": None, "params": None}
SERVER = {"command": "python agent.py --mcp {{mcp_url}}", "ready": "tcp://127.0.0.1:1"}
HTTP = {
    "type": "http",
    "endpoint": "http://127.0.0.1:1/chat",
    "reply": "reply",
    "params": {"q": "{{message}}"},
}


def agent(**keys: Any) -> Any:
    return Config.model_validate({"agent": {**HTTP, **keys}}).agent


def test_true_enables_a_server_with_defaults() -> None:
    """`true` and an empty section are the same, `false` disables it; either spelling of a key is valid."""
    known = agent(mcpMock=True, rest_mock={"openapi": "api.yaml"}, traces=False, server=SERVER)
    assert known.mcp_mock == agent(mcp_mock={}, server=SERVER).mcp_mock
    assert known.traces is None
    assert list(known.beside) == ["mcp_mock", "rest_mock"]


@pytest.mark.parametrize(
    ("keys", "visibility"),
    [
        ({}, ToolVisibility.UNSEEN),
        ({"mcp_mock": {"port": 1}}, ToolVisibility.PARTIAL),
        ({"mcp_mock": {"port": 1}, "tool_visibility": "reported"}, ToolVisibility.REPORTED),
        ({"traces": {"port": 1}}, ToolVisibility.REPORTED),
        ({"mcp_mock": {"port": 1}, "traces": {"port": 2}}, ToolVisibility.REPORTED),
        ({"traces": {"port": 1}, "tool_visibility": "unseen"}, ToolVisibility.UNSEEN),
        (
            {"mcp_mock": {"port": 1}, **PLAIN},
            ToolVisibility.PARTIAL,
        ),
    ],
    ids=[
        "nothing",
        "mocks",
        "the user's word",
        "both",
        "traces",
        "as it says",
        "handed over",
    ],
)
def test_tool_visibility_with_mock_servers(keys: dict[str, Any], visibility: ToolVisibility) -> None:
    """Mock servers make visibility partial, traces reported, unless the configuration says otherwise."""
    known = {key: value for key, value in {**HTTP, **keys}.items() if value is not None}
    assert visibility_of_agent(Config.model_validate({"agent": known}).agent) is visibility


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nobody is told": (
        {"mcp_mock": True},
        "without a port is at a free one, which the agent",
    ),
    "no such server": ({"body": {"url": "{{mcp_url}}"}}, "needs `mcp_mock`: write `mcp_mock: true`"),
    "in the server": ({"server": SERVER}, "`server.command` has the placeholder {{mcp_url}}, which needs"),
    "in the environment": (
        {"traces": True, "server": {**SERVER, "command": "x", "env": {"A": "{{rest_url}}"}}},
        "`server.env` has the placeholder {{rest_url}}, which needs `rest_mock`",
    ),
    "misspelt": (
        {"mcp_mock": True, "server": {**SERVER, "command": "x {{mcp_ulr}}"}},
        "{{mcp_ulr}}, which stands for nothing",
    ),
    "one port": ({"mcp_mock": {"port": 7}, "traces": {"port": 7}}, "have the same port, 7"),
    "no port": ({"mcp_mock": {"port": 70000}}, "agent.http.mcp_mock.port"),
    "no section": ({"mcp_mock": "yes"}, "write true, or keys of: port, allowed_hosts, tools"),
    "no host": (
        {"traces": {"port": 1, "allowed_hosts": ["http://shop:80"]}},
        "'http://shop:80' is not a host; write its name alone, like host.docker.internal",
    ),
    "no document": ({"rest_mock": True, "server": SERVER}, "rest_mock.openapi"),
    "no address": ({"mcp_mock": {"port": 1, "upstream": "ftp://x"}}, "must start with http://"),
    "no command": ({"mcp_mock": {"port": 1, "upstream": []}}, "is empty"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_mock_server_settings_are_explained(name: str) -> None:
    """Each is refused when the configuration is read, with what to write instead."""
    keys, message = WRONG[name]
    with pytest.raises(ValidationError) as raised:
        agent(**keys)
    assert message in str(raised.value)


def test_placeholders_of_other_programs_are_kept() -> None:
    """A command may contain placeholders that docker fills in."""
    known = agent(server={**SERVER, "command": "docker ps --format {{.Names}}"})
    assert "{{.Names}}" in known.server.command
