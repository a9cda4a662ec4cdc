"""What judges know about the tools of mock servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openapi_documents import document, operation, parameter

from agentest import scenario
from agentest.config.config import Config
from agentest.runner.known_tools import (
    agent_traits,
    known_tools,
    read_mock_server_tools,
    served_tools,
)


def tools_of(options: dict[str, Any], root: Path = Path(), **of_scenario: Any) -> list[str]:
    """The tool lines that judges see, by the settings of an agent and a scenario."""
    agent = Config.model_validate({"agent": {"endpoint": "http://h", **options}}).agent
    held = scenario("s", turns=["Hi."], **of_scenario)
    about = agent_traits("agent", agent, served_tools(agent, root, ".agentest", [held]))
    return known_tools(about.tools, held.tools, held.named_tools).text.split("\n")


def test_tools_that_mock_servers_serve(tmp_path: Path) -> None:
    """Recorded tools of an MCP server and the operations of an API are known, by the names of mocks."""
    recorded = {"tools": [{"name": "look", "description": "Looks.", "inputSchema": {"type": "object"}}]}
    (tmp_path / "tools.json").write_text(json.dumps(recorded))
    order = operation(
        "place_order_orders__id__post",
        parameter("id", "path"),
        parameter("urgent", kind="boolean"),
        body={"type": "object", "properties": {"item": {"type": "string"}}},
        summary="Places an order.",
    )
    (tmp_path / "api.json").write_text(json.dumps(document({"/orders/{id}": {"post": order}})))
    beside = {
        "mcp_mock": {"port": 20001, "tools": "tools.json"},
        "rest_mock": {"port": 20002, "openapi": "api.json"},
    }
    line = "(id: string, urgent?: boolean, item?: string): Places an order."
    assert tools_of(beside, tmp_path) == ["look(): Looks.", f"place_order_orders__id__post{line}"]
    mocked = tools_of(beside, tmp_path, tools={"place_order": 1})
    assert mocked == ["look(): Looks.", f"place_order{line}"]


def test_files_of_mock_servers_that_are_gone(tmp_path: Path) -> None:
    """If a server is not opened, an unreadable file is noted, and its tools are unknown."""
    (tmp_path / "tools.json").write_text("[")
    for server in (
        {"mcp_mock": {"port": 20001, "tools": "tools.json"}},
        {"rest_mock": {"port": 20001, "openapi": "gone.yaml"}},
    ):
        assert tools_of(server, tmp_path) == [""]
        settings = Config.model_validate({"agent": {"endpoint": "http://h", **server}}).agent
        about = agent_traits("shop", settings, served_tools(settings, tmp_path, ".agentest", []))
        [note] = read_mock_server_tools({"shop": about.tools})
        assert note.startswith("judges do not know which tools the mock servers of agent 'shop' serve: ")
        assert "name the tools in the agent's `tools`" in note
    assert tools_of({"mcp_mock": {"port": 20001, "upstream": "x", "tools": "not-yet.json"}}) == [""]
