"""Calls without a mock: an error for scenarios, or null and one note per tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from project import Project

from agentest import scenario
from agentest.domain.results import Status
from agentest.runner.plan import Options
from agentest.testing import ScriptedAgent, run_scenarios, tool_call

NULL = "calls of tool 'get_weather' were answered with null, because no mock answers them"


def forecaster(body: dict[str, Any]) -> Any:
    """Request the weather for the city in the last message, then report rain there."""
    said = [m["content"] for m in body["messages"] if m["role"] == "user"][-1]
    city = said.rstrip("?").split()[-1]
    answered = body["messages"][-1]["role"] == "tool"
    return f"Rain in {city}" if answered else tool_call("get_weather", city=city)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


def test_scenarios_fail_unless_passthrough_is_set(project: Project) -> None:
    """By default `run` ends the conversation; with passthrough it notes the tool, as `eval` does."""
    project.scenario('scenario("rain", turns=["Rain in Rome?", "And in Pisa?"])')
    with ScriptedAgent(forecaster) as agent:
        project.config(agent.endpoint)
        assert "has no mock" in project.run().stdout
        project.config(agent.endpoint, unmocked_tools="error")
        done = project.run("--unmocked-tools", "passthrough", "--reporter", "json")
        assert done.returncode == 0, done.stdout
        assert f"2 {NULL} (scenario 'rain'). To answer them: tools={{" in done.stderr
        assert project.run("--unmocked-tools", "null").returncode == 2


def test_answered_calls_are_not_noted() -> None:
    """Mocked calls, invalid calls and calls that ended a conversation give no note."""

    def broken(body: dict[str, Any]) -> Any:
        bad = {"type": "function", "function": {"name": "bad", "arguments": "{"}}
        return "Done." if body["messages"][-1]["role"] == "tool" else [bad, tool_call("look")]

    with ScriptedAgent(broken) as agent:
        one = scenario("s", turns=["Hi."], tools={"look": 1})
        found = run_scenarios([one], agent=agent, options=Options(unmocked_tools="passthrough"))
        assert found.unanswered == ()
        other = run_scenarios(
            [scenario("t", turns=["Hi."])], agent=agent, unmockedTools="passthrough", strict=False
        )
    (warning,) = other.unanswered
    assert warning.message.startswith("1 call of tool 'look' was answered with null")
    assert json.loads(json.dumps(other.scenarios[0].totals.unanswered)) == {"look": 1}
    assert other.scenarios[0].verdict.status is Status.PASSED
