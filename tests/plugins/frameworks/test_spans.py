"""Agents of real frameworks with their own tools: spans report every call of 50 concurrent conversations.

The log of their tools is the ground truth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from framework_lab import MARKS
from project import Project
from tools_lab import (
    ADK_SERVER,
    BANNED,
    HTTP,
    Agent,
    Shop,
    assert_each_has_its_own,
    calls_of,
    counted,
    node,
    open_shop,
    output,
    python,
    run_agent,
)

pytestmark = MARKS

CROWD = 50
SOME = 12
SPANS = {**HTTP, "traces": True}
MCP_AND_SPANS = {**SPANS, "mcp_mock": True}
FASTAPI = {"FASTAPI_OTEL_AUTO_CONFIGURE": "true"}
TELEMETRY = ("--agent", "ai-sdk", "--telemetry", "yes")

OWN = {
    "langgraph": python("langgraph", "--tools", "own", keys=SPANS, instrumented=True, env={}),
    "openai-agents": python("openai_agents", "--tools", "own", keys=SPANS, instrumented=True, env={}),
    "pydantic-ai": python("pydantic_ai", "--tools", "own", "--instrument", keys=SPANS, env=FASTAPI),
    "google-adk": python("google_adk", "--tools", "own", keys=SPANS, instrumented=True, env={}),
    "ai-sdk": node(*TELEMETRY, "--tools", "own", keys=SPANS, instrumented=True, env={}),
}
ADK = {"type": "adk", "app_name": "clerk", "traces": True, "mcp_mock": True}
AG_UI = {"type": "ag_ui", "client_tools": [], "traces": True, "mcp_mock": True}
BOTH = {
    "adk-api-server": Agent(command=ADK_SERVER, keys=ADK, endpoint=""),
    "pydantic-ai-ag-ui": python("pydantic_ai", "--instrument", keys=AG_UI, endpoint="/ag-ui", env=FASTAPI),
    "langgraph": python("langgraph", keys=MCP_AND_SPANS, instrumented=True, env={}),
    "openai-agents": python("openai_agents", keys=MCP_AND_SPANS, instrumented=True, env={}),
    "pydantic-ai": python("pydantic_ai", "--instrument", keys=MCP_AND_SPANS, env=FASTAPI),
    "google-adk": python("google_adk", keys=MCP_AND_SPANS, instrumented=True, env={}),
    "ai-sdk": node(*TELEMETRY, keys=MCP_AND_SPANS, instrumented=True, env={}),
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with open_shop(tmp_path_factory.mktemp("shop")) as opened:
        yield opened


@pytest.mark.parametrize("stack", OWN)
def test_spans_report_exactly_the_calls(stack: str, shop: Shop, tmp_path: Path) -> None:
    """Names, arguments and results match the tools' log, each in its own conversation."""
    own = replace(shop, log=tmp_path / "really.log")
    project = run_agent(OWN[stack], own, tmp_path, "tools_of_its_own", SHOPS=str(CROWD))
    found = {one["name"]: one for one in project.results["scenarios"]}
    assert len(found) == CROWD
    told = [call for scenario in found.values() for call in calls_of(scenario)]
    assert counted([(call["name"], call["args"]) for call in told]) == counted(own.calls()), output(project)
    for number in range(CROWD):
        assert_banned_is_caught(found[f"shop {number}"], number, project)
    for call in told:
        assert (call["seenBy"], call["mocked"]) == ("spans", False)
        assert "the real shop" in json.dumps(call["result"]), call


def assert_banned_is_caught(scenario: dict[str, Any], number: int, project: Project) -> None:
    banned = number % 5 == 0
    assert scenario["status"] == ("failed" if banned else "passed"), output(project)
    trajectory = scenario["conversations"][0]["trajectory"]
    assert trajectory["forbiddenCalls"] == ([BANNED] if banned else []), trajectory


@pytest.mark.parametrize("stack", BOTH)
def test_a_call_reported_by_mock_server_and_spans_is_one(stack: str, shop: Shop, tmp_path: Path) -> None:
    """A call that the mock server answered does not count again from spans or protocol."""
    project = run_agent(BOTH[stack], shop, tmp_path, "tools_elsewhere", SHOPS=str(SOME))
    assert_each_has_its_own(project, SOME)
    assert shop.calls() == []
