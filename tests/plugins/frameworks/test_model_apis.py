"""The protocols of model providers: Microsoft's host for agents, and LiteLLM's proxy before a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_lab import MARKS, Served, assert_mocked_tools, assert_own_tools, run

pytestmark = MARKS

LEFT = "If the agent returns calls to the caller"


def host(name: str, *options: str, **agent: object) -> Served:
    """Microsoft's host for agents."""
    command = ("responses/bin/python", "responses_server.py", "--port", "{port}", *options)
    page = "agents/openai-responses"
    return Served(id=name, type="responses", page=page, command=command, ready="/readiness", agent=agent)


def litellm(name: str, kind: str, page: str, after: str = "", **agent: object) -> Served:
    """LiteLLM's proxy, which speaks both protocols."""
    command = ("litellm/bin/python", "litellm_server.py", "--port", "{port}")
    ready = "/health/liveliness"
    return Served(id=name, type=kind, page=page, after=after, command=command, ready=ready, agent=agent)


OWN_TOOLS = [
    host("host"),
    host("host-streamed", streaming=True),
    host("host-conversation", history="conversation"),
]
MOCKED = [
    host("host-calls-left", "--client-tools"),
    litellm("litellm-responses", "responses", "agents/openai-responses", LEFT),
    litellm("litellm-messages", "anthropic_messages", "agents/anthropic-messages"),
    litellm("litellm-messages-streamed", "anthropic_messages", "agents/anthropic-messages", streaming=True),
]


@pytest.mark.parametrize("served", OWN_TOOLS, ids=lambda served: served.id)
def test_own_tools_of_a_hosted_agent_are_reported(served: Served, tmp_path: Path) -> None:
    """The host reports the agent's own calls, which are judged: a violated ban fails."""
    assert_own_tools(run(served, tmp_path, "own_tools"), "reported")


@pytest.mark.parametrize("served", MOCKED, ids=lambda served: served.id)
def test_mocks_answer_what_is_left_to_the_caller(served: Served, tmp_path: Path) -> None:
    """The calls that an agent or a model leaves to its caller are answered by the scenario's mocks."""
    assert_mocked_tools(run(served, tmp_path, "mocked_tools"))
