"""Judges and checks of names know what an agent tells its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripted_provider import FORM_OF, FORMS, ROOTS
from test_model_gateway import anyio_backend, gateway
from test_model_gateway_run import configure, provider, upstream

__all__ = ["anyio_backend", "provider", "upstream"]
from project import Project

from agentest import scenario
from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.domain.messages import ToolSpec
from agentest.domain.transcript import ModelBriefing, Turn
from agentest.judging.judgement import background_of
from agentest.runner.plan import Options, make_plan
from agentest.runner.run_summary import known_agent
from agentest.scenarios.discovery import DiscoveredScenarios

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
TOLD: dict[str, dict[str, Any]] = {
    "chat": {
        "tools": [
            {"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": SCHEMA}}
        ],
    },
    "responses": {
        "instructions": "Be kind.",
        "tools": [{"type": "function", "name": "find", "description": "Finds.", "parameters": SCHEMA}],
    },
    "anthropic": {
        "system": [{"type": "text", "text": "Be kind."}],
        "tools": [{"name": "find", "description": "Finds.", "input_schema": SCHEMA}],
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "Be kind."}]},
        "tools": [
            {"functionDeclarations": [{"name": "find", "description": "Finds.", "parameters": SCHEMA}]}
        ],
    },
}
TOLD["stored responses"] = TOLD["responses"]
FIND = ToolSpec(name="find", description="Finds.", parameters=SCHEMA)
BRIEFING = ModelBriefing(instructions="Be kind.", tools=(FIND,))


@pytest.mark.anyio
@pytest.mark.parametrize("form", FORMS)
async def test_instructions_and_tools_are_read_from_requests(form: str) -> None:
    made = FORM_OF[form]()
    body = {**made.request([made.user("hello")], stream=False), **TOLD[form]}
    if form == "chat":
        body["messages"] = [{"role": "system", "content": "Be kind."}, *body["messages"]]
    async with gateway() as gate, gate.talk(form, "a") as talk:
        with talk.known.said("hello"):
            await gate.client.post(f"{gate.origin}/{ROOTS[form]}{made.path}", json=body)
        first = await talk.known.end_turn()
        with talk.known.said("hello"):
            await gate.client.post(f"{gate.origin}/{ROOTS[form]}{made.path}", json=body)
        second = await talk.known.end_turn()

    assert first.briefing == BRIEFING
    assert second.briefing is None


@pytest.mark.anyio
async def test_the_main_agent_has_the_instructions_and_sub_agents_add_their_tools() -> None:
    def body(system: str, *tools: str) -> dict[str, Any]:
        offered = [{"type": "function", "function": {"name": name}} for name in tools]
        told = [{"role": "system", "content": system}, {"role": "user", "content": "hello"}]
        return {"model": "m", "messages": told, **({"tools": offered} if offered else {})}

    async with gateway() as gate, gate.talk("chat", "a") as talk:
        with talk.known.said("hello"):
            for request in (
                body("Find a title."),
                body("Be kind.", "mcp__shop__find"),
                body("Help.", "send"),
            ):
                await gate.client.post(f"{gate.origin}/openai/v1/chat/completions", json=request)
        briefing = (await talk.known.end_turn()).briefing

    assert briefing is not None
    assert briefing.instructions == "Be kind."
    assert [tool.name for tool in briefing.tools] == ["find", "send"]


@pytest.mark.parametrize(
    ("settings", "instructions", "tools"),
    [
        ({}, "Be kind.", "find(q: string): Finds."),
        ({"instructions": "Be brief.", "tools": ["look"]}, "Be brief.", "look"),
    ],
)
def test_judges_are_told_what_the_configuration_does_not_say(
    settings: dict[str, Any], instructions: str, tools: str
) -> None:
    agent = {"endpoint": "http://127.0.0.1:9/x", "model_gateway": {"port": 9000}, **settings}
    tested = scenario("s", turns=["Hi."])
    config = Config.model_validate({"agent": agent})
    (unit,) = make_plan(
        LoadedConfig(config, Path()), DiscoveredScenarios((tested,), ()), Options(), Path()
    ).units
    turn = Turn(0, "Hi.", "Hello.", briefing=BRIEFING)

    background = background_of(tested, known_agent(unit, str), [turn, Turn(1, "Bye.", "Bye.")])

    assert (background.instructions, background.tools) == (instructions, tools)


def test_a_misspelled_tool_is_compared_with_those_that_the_model_was_offered(
    project: Project, upstream: str
) -> None:
    project.scenario("scenario('asks', turns=['hello'], trajectory={'forbidden': ['sent', 'send', 'finds']})")
    configure(project, upstream, "chat")
    run = project.run("-v")

    told = " ".join(run.stdout.split())
    assert "names tool 'sent'" in told
    assert "did you mean 'send'?" in told
    assert "names tool 'send'" not in told
    (conversation,) = project.results["scenarios"][0]["conversations"]
    assert [tool["name"] for tool in conversation["turns"][0]["briefing"]["tools"]] == ["find", "send"]
