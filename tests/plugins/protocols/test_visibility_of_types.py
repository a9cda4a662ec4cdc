"""How calls become visible, and what mocks can reach, for agents of types that plug-ins hand in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evalset_documents import case, criteria, eval_set, invocation, response, text, use
from jsonschema import validate
from project import Project
from pydantic import ValidationError

from agentest.config.agent_types import advice_for_unseen_calls, ways_to_mock
from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.config import Config
from agentest.plugin import PLUGINS
from agentest.plugins.protocols.command.settings import CommandAgent
from agentest.testing import Raw, ScriptedAgent

SCHEMA = json.loads((Path(__file__).parents[3] / "agentest" / "schemas" / "results.schema.json").read_text())


UNSEEN = "calls of agent 'agent' cannot be seen"


TOOLS = {"look": {"found": 1}}


QUIET = 'scenario("ban", turns=["Hi."], trajectory={"forbidden": ["reserve_item"]})'


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    """An agent that never hands a call to the caller: whatever it does, it does itself."""
    with ScriptedAgent(["Reserved."]) as opened:
        yield opened


def adk(body: dict[str, Any]) -> Raw:
    """An ADK server whose agent looks something up itself, unless asked to be quiet."""
    if "new_message" not in body:
        return Raw(json.dumps({"id": body["session_id"], "state": body["state"]}).encode())
    said = body["new_message"]["parts"][0]["text"]
    call = {"functionCall": {"id": "1", "name": "look", "args": {"at": said}}}
    answer = {"functionResponse": {"id": "1", "name": "look", "response": {"found": 2}}}
    parts = [] if said == "Quiet." else [[call], [answer]]
    events = [{"author": "a", "content": {"parts": each}} for each in [*parts, [{"text": "Done."}]]]
    return Raw(json.dumps(events).encode())


def adk_agent(server: ScriptedAgent, **more: Any) -> dict[str, Any]:
    endpoint = server.endpoint.removesuffix("/v1/chat/completions")
    return {"name": "salon", "type": "adk", "endpoint": endpoint, "app_name": "a", **more}


TOLD = "not one tool call of agent 'agent' was seen in the whole run, though scenario"


def configured(**settings: Any) -> Any:
    return Config.model_validate({"agent": {"endpoint": "http://h", **settings}}).agent


def test_what_no_agent_of_a_type_can_be() -> None:
    """A visibility that the type cannot have is refused with what there is."""
    with pytest.raises(ValidationError, match="hands no call to the caller; write `reported`"):
        configured(type="adk", tool_visibility="returned")


def test_metrics_of_evaluation_sets(project: Project, agent: ScriptedAgent) -> None:
    """ADK criteria about unseen calls are errored, or skipped if for information; those about replies are
    scored."""
    project.config(agent.endpoint, agent={"endpoint": agent.endpoint, "tool_visibility": "unseen"})
    project.write(
        "a.test.json", text(eval_set("a", case("c", invocation("Hi.", "Reserved.", [use("look")]))))
    )
    about_calls = ("tool_trajectory_avg_score", "tool_trajectory_f1", "multi_turn_tool_use_quality_v1")
    named = criteria(**dict.fromkeys(about_calls, 0), response_match_score=1, tool_call_count_v1=None)
    project.write("test_config.json", text(named))
    done = project.agentest("eval", "a.test.json")
    assert done.returncode == 2, done.stdout + done.stderr
    [found] = project.results["scenarios"]
    assert found["averages"] == {"response_match_score": 1.0}
    unscored = found["conversations"][0]["evaluation"]["conversationMetrics"]
    assert UNSEEN in unscored.pop("tool_call_count_v1")["skipped"]
    assert unscored.keys() == {*about_calls}
    assert all(UNSEEN in metric["error"] for metric in unscored.values())


@pytest.mark.parametrize("arguments", [("run",), ("run", "--workers", "2"), ("chat", "--scenario", "one")])
def test_mocks_that_do_not_reach_stop_the_run(project: Project, arguments: tuple[str, ...]) -> None:
    """Mocks for an agent that runs its own tools are refused before the first conversation."""
    lines = [f'scenario("{name}", turns=["Hi."], tools={{"look": 1}})' for name in ("one", "two")]
    project.scenario("\n".join(lines))
    with ScriptedAgent(adk) as server:
        project.config("", agent=adk_agent(server))
        done = project.agentest(*arguments)
        assert server.requests == []
    assert done.returncode == 2
    assert "'one' (a.sim.py:2)" in done.stderr
    for told in ("agent 'salon'", "unmocked_tools: passthrough", "mcp_mock: true"):
        assert told in done.stderr
    assert ("'two' (a.sim.py:3)" in done.stderr) is (arguments[0] == "run")
    assert "tool_visibility: returned" not in done.stderr  # of no use behind ADK's server
    assert "To go on:\n  - set model_gateway: {port: 8900}, and start the agent with" in done.stderr


def test_mocks_of_evaluation_sets(project: Project) -> None:
    """`eval --mocks` is refused the same way; answers recorded in a set are not mocks."""
    recorded = invocation("Hi.", "Done.", [use("look", at="Hi.")], [response("look", found=1)])
    project.write("a.test.json", text(eval_set("a", case("c", recorded))))
    project.write("mocks.py", "tools = {'look': 1}")
    with ScriptedAgent(adk) as server:
        project.config("", agent=adk_agent(server))
        refused = project.agentest("eval", "a.test.json", "--mocks", "mocks.py")
        assert (refused.returncode, server.requests) == (2, [])
        done = project.agentest("eval", "a.test.json")
    assert "the mocks of scenario 'c'" in refused.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    [call] = project.results["scenarios"][0]["conversations"][0]["turns"][0]["toolCalls"]
    assert (call["mocked"], call["seenBy"], call["result"]) == (False, "agent", {"found": 2})


def test_each_agent_of_a_comparison_is_looked_at_alone(project: Project) -> None:
    """A silent agent is reported although another one of the run was seen to call tools."""
    project.scenario('scenario("ban", turns=["Quiet.", "Hi."], trajectory={"forbidden": ["pay"]})')
    with ScriptedAgent(adk) as server, ScriptedAgent(["Fine."]) as other:
        silent = {
            "name": "other",
            "type": "chat_completions",
            "endpoint": other.endpoint,
            "tools": ["pay", "look"],
        }
        project.config("", agent=adk_agent(server), compare=[silent])
        done = project.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tool calls: reported by the agent" in done.stdout
    [warning] = project.results["summary"]["warnings"]
    assert (warning["code"], warning["agent"]) == ("no-call-seen", "other")
    assert "agent 'other'" in warning["message"]
    [ban] = project.results["scenarios"]
    vacuous = [found["conversations"][0]["trajectory"].get("vacuous") for found in ban["agents"]]
    assert vacuous == [None, True]
    validate(project.results, SCHEMA)


@pytest.mark.parametrize(
    ("metric", "told"), [("tool_trajectory_avg_score", True), ("response_match_score", False)]
)
def test_a_silent_agent_with_expected_calls_of_a_set(
    project: Project, agent: ScriptedAgent, metric: str, told: bool
) -> None:
    """Expected calls of a set count if a criterion is about calls."""
    project.config(agent.endpoint)
    expected = case("c", invocation("Hi.", "Reserved.", [use("look")]))
    project.write("a.test.json", text(eval_set("a", expected)))
    project.write("test_config.json", text(criteria(**{metric: 0})))
    done = project.agentest("eval", "a.test.json", "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (TOLD in done.stdout) is told


def test_advice_about_unseen_calls() -> None:
    """It names the agent's own settings first, then existing types."""
    chat = advice_for_unseen_calls("bot", configured(tool_visibility="unseen"))
    assert chat.startswith(
        "calls of agent 'bot' cannot be seen (tool_visibility: unseen). To see them, set tool_visibility: "
        "returned, if it does hand its calls to the caller or set model_gateway: {port: 8900}, and start the "
        "agent with the gateway's address as OPENAI_BASE_URL (`agentest doctor` then prints it): agentest "
        "docs"
    )
    adk = configured(type="adk", app_name="a", tool_visibility="unseen")
    assert "leave out tool_visibility: unseen, as its type reports them or " in advice_for_unseen_calls(
        "b", adk
    )
    itself, handler = [way for way in ways_to_mock(adk) if "custom" in way]
    assert itself.startswith("name the agent object itself")
    assert handler == "let a handler (type: custom) make its calls by ctx.resolve_tool"
    first = (
        "set model_gateway: {port: 8900}, and start the agent with the gateway's address as OPENAI_BASE_URL"
    )
    assert ways_to_mock(adk)[0].startswith(first)
    assert "leave `mocks: false` out of model_gateway" in ways_to_mock(
        configured(model_gateway={"port": 8900, "mocks": False})
    )
    for said in (chat, advice_for_unseen_calls("b", adk), *ways_to_mock(adk)):
        types = [name for part in said.split("(type: ")[1:] for name in part.split(")")[0].split(", ")]
        assert set(types) <= {*PLUGINS.all("agent type")}


def test_calls_that_nothing_reports_cannot_be_stated() -> None:
    """A program finds the gateway in its environment; an agent that is already running is started anew."""
    settings = {"type": "command", "command": ["./bot"], "tool_visibility": "reported"}
    with pytest.raises(ValidationError) as caught:
        CommandAgent.model_validate(settings)
    assert "To see them, set model_gateway: true (agentest docs model-gateway) or let " in str(caught.value)
    with pytest.raises(ValidationError) as caught:
        HttpTemplateAgent.model_validate(
            {"type": "http", "endpoint": "http://h", "reply": "a", "tool_visibility": "reported"}
        )
    assert (
        "start the agent with the gateway's address as OPENAI_BASE_URL (`agentest doctor` then prints it) ("
        "agentest docs model-gateway) or set `tool_calls` to"
    ) in str(caught.value)
