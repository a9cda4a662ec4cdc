"""Agents of real frameworks with MCP or REST tools: mock servers answer 50 concurrent conversations.

A call is identified by what instrumented programs pass on (no code), by an id or address that the agent
forwards (a hook), or not at all, and then one conversation runs at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from framework_lab import MARKS
from tools_lab import (
    ADK_SERVER,
    HTTP,
    UNSENT,
    Agent,
    Shop,
    assert_each_has_its_own,
    calls_of,
    node,
    open_shop,
    output,
    python,
    run_agent,
)

pytestmark = MARKS

CROWD = 50
SOME = 12
FEW = 6
ONE_AT_A_TIME = "its conversations ran one at a time"

MCP = {**HTTP, "mcp_mock": True, "tool_visibility": "reported"}  # all tools stand behind the mock server
REST = {**HTTP, "rest_mock": {"openapi": "openapi.json"}, "tool_visibility": "reported"}
AG_UI = {"type": "ag_ui", "client_tools": [], "mcp_mock": True}
ADK = {"type": "adk", "app_name": "clerk", "mcp_mock": True}
BY_HEADER = {"headers": {"x-agentest-conversation": "{{session_id}}"}}
BY_MCP_URL = {"body": {"message": "{{message}}", "mcp_url": "{{mcp_url}}"}}
BY_REST_URL = {"body": {"message": "{{message}}", "rest_url": "{{rest_url}}"}}

# FastAPI instruments itself only where spans can be sent to.
FASTAPI = {
    **UNSENT,
    "FASTAPI_OTEL_AUTO_CONFIGURE": "true",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
}

NO_CODE = {
    "langgraph": python("langgraph", keys=MCP, instrumented=True),
    "openai-agents": python("openai_agents", keys=MCP, env=FASTAPI),
    "pydantic-ai": python("pydantic_ai", keys=MCP, env=FASTAPI),
    "google-adk": python("google_adk", keys=MCP, instrumented=True),
    "ai-sdk": node("--agent", "ai-sdk", keys=MCP, instrumented=True),
    "pydantic-ai-ag-ui": python("pydantic_ai", keys=AG_UI, endpoint="/ag-ui", env=FASTAPI),
    "adk-api-server": Agent(command=ADK_SERVER, keys=ADK, env=UNSENT, endpoint=""),
    "mcp-sdk-python": python("mcp", "--session", "long", keys=MCP, env=FASTAPI),
    "mcp-sdk-typescript": node("--agent", "sdk", keys=MCP, instrumented=True),
    "rest-langgraph-httpx": python("langgraph", "--tools", "rest", keys=REST, instrumented=True),
    "rest-openai-agents-requests": python(
        "openai_agents", "--tools", "rest", keys=REST, instrumented=True, env=UNSENT
    ),
    "rest-ai-sdk-fetch": node(
        "--agent", "ai-sdk", "--tools", "rest", keys=REST, instrumented=True, env=UNSENT
    ),
}
HOOKED = {
    "langgraph-header": python("langgraph", "--hook", "header", keys={**MCP, **BY_HEADER}),
    "langgraph-url": python("langgraph", "--hook", "url", keys={**MCP, **BY_MCP_URL}),
    "openai-agents-meta": python("openai_agents", "--hook", "meta", keys={**MCP, **BY_HEADER}),
    "pydantic-ai-meta": python("pydantic_ai", "--hook", "meta", keys={**MCP, **BY_HEADER}),
    "google-adk-header": python("google_adk", "--hook", "header", keys={**MCP, **BY_HEADER}),
    "ai-sdk-header": node("--agent", "ai-sdk", "--hook", "header", keys={**MCP, **BY_HEADER}),
    "mcp-sdk-typescript-url": node("--agent", "sdk", "--hook", "url", keys={**MCP, **BY_MCP_URL}),
    "rest-mcp-header": python("mcp", "--tools", "rest", keys={**REST, **BY_HEADER}),
    "rest-ai-sdk-url": node("--agent", "ai-sdk", "--tools", "rest", keys={**REST, **BY_REST_URL}),
}
NAMELESS = {
    "langgraph": python("langgraph", keys=MCP),
    "ai-sdk": node("--agent", "ai-sdk", keys=MCP),
    "rest-google-adk": python("google_adk", "--tools", "rest", keys=REST),
}
ONE_NAME_FOR_ALL = ("openai_agents_mcp_1", "--session", "lazy")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with open_shop(tmp_path_factory.mktemp("shop")) as opened:
        yield opened


@pytest.mark.parametrize("stack", NO_CODE)
def test_calls_name_their_conversation_without_any_code(stack: str, shop: Shop, tmp_path: Path) -> None:
    """Instrumented programs pass on what names the conversation: 50 at once, and no real tool runs."""
    project = run_agent(NO_CODE[stack], shop, tmp_path, "tools_elsewhere", SHOPS=str(CROWD))
    assert_each_has_its_own(project, CROWD)
    assert ONE_AT_A_TIME not in output(project)
    assert shop.calls() == []


@pytest.mark.parametrize("stack", HOOKED)
def test_an_agent_forwards_what_names_its_conversation(stack: str, shop: Shop, tmp_path: Path) -> None:
    """The framework's own hook forwards the session's id, or the request brings the address of the tools."""
    project = run_agent(HOOKED[stack], shop, tmp_path, "tools_elsewhere", SHOPS=str(SOME))
    assert_each_has_its_own(project, SOME)
    assert ONE_AT_A_TIME not in output(project)
    assert shop.calls() == []


@pytest.mark.parametrize("stack", NAMELESS)
def test_calls_without_a_name_are_answered_one_conversation_at_a_time(
    stack: str, shop: Shop, tmp_path: Path
) -> None:
    """Unidentified calls are separated by running one conversation at a time, with a note."""
    project = run_agent(NAMELESS[stack], shop, tmp_path, "tools_elsewhere", SHOPS=str(FEW))
    assert_each_has_its_own(project, FEW)
    assert ONE_AT_A_TIME in output(project)
    assert shop.calls() == []


def test_a_session_that_names_its_first_conversation_for_ever_is_given_nothing(
    shop: Shop, tmp_path: Path
) -> None:
    """With mcp 1, a session that the first request has opened names that one in the calls of all others.

    They are refused and the run is errored: no conversation is given a call of another.
    """
    agent = python(*ONE_NAME_FOR_ALL, keys=MCP, instrumented=True)
    project = run_agent(agent, shop, tmp_path, "tools_elsewhere", SHOPS=str(FEW))
    calls = {one["name"]: len(calls_of(one)) for one in project.results["scenarios"]}
    assert calls == {"shop 0": 5, **{f"shop {number}": 0 for number in range(1, FEW)}}
    assert "this run is errored" in output(project)
    assert shop.calls() == []


def test_such_a_session_does_where_conversations_are_held_one_at_a_time(shop: Shop, tmp_path: Path) -> None:
    """With `exclusive: true` a trace of a conversation that has ended names nothing."""
    agent = python(*ONE_NAME_FOR_ALL, keys={**MCP, "exclusive": True}, instrumented=True)
    project = run_agent(agent, shop, tmp_path, "tools_elsewhere", SHOPS=str(FEW))
    assert_each_has_its_own(project, FEW)
    assert shop.calls() == []
