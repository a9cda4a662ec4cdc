"""Calls in evaluation sets that nothing answers get null and one note a tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from evalset_documents import case, eval_set, invocation, response, text, use
from project import Project

from agentest.adk import AgentEvaluator, EvaluationFailed
from agentest.testing import ScriptedAgent, tool_call

LONDON = {
    "evalSetId": "weather",
    "creationTimestamp": 0,
    "evalCases": [
        {
            "evalId": "london",
            "conversation": [
                {
                    "creationTimestamp": 0,
                    "userContent": {"role": "user", "parts": [{"text": "Will it rain in London?"}]},
                    "finalResponse": {"role": "model", "parts": [{"text": "Rain in London"}]},
                    "intermediateData": {
                        "toolUses": [{"name": "get_weather", "args": {"city": "London"}}],
                        "intermediateResponses": [],
                    },
                }
            ],
        }
    ],
}


NULL = "calls of tool 'get_weather' were answered with null, because no mock answers them"


def forecaster(body: dict[str, Any]) -> Any:
    """Asks for the weather in the last word but the question mark, and then speaks of rain there."""
    said = [m["content"] for m in body["messages"] if m["role"] == "user"][-1]
    city = said.rstrip("?").split()[-1]
    answered = body["messages"][-1]["role"] == "tool"
    return f"Rain in {city}" if answered else tool_call("get_weather", city=city)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


@pytest.mark.anyio
async def test_a_case_goes_on_after_a_call_that_nothing_answers(project: Project) -> None:
    """A set without any recorded answer is run: the call gets null, the tool a note, the case a score."""
    project.write("evaluation/tests/basic.test.json", text(LONDON))
    with ScriptedAgent(forecaster) as agent:
        with pytest.warns(UserWarning, match="get_weather") as told:
            await AgentEvaluator.evaluate(agent.endpoint, "./evaluation/tests")
        assert {m["content"] for r in agent.requests for m in r["messages"] if m["role"] == "tool"} == {
            "null"
        }
        (warning,) = [str(w.message) for w in told]
        assert warning.startswith(f"2 {NULL} (case 'london'). ")
        project.config(agent.endpoint, unmocked_tools="error")
        with pytest.raises(EvaluationFailed, match="has no mock"):
            await AgentEvaluator.evaluate("agent", "evaluation/tests")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_one_note_a_tool_whatever_the_number_of_calls(project: Project, workers: str) -> None:
    """The note names the tool, the number of calls, the cases and every way to answer them."""
    recorded = invocation(
        "Rain in Rome?", "Rain in Rome", [use("get_weather", city="Oslo")], [response("get_weather", sun=1)]
    )
    cases = [case(city, invocation(f"Rain in {city}?", f"Rain in {city}")) for city in "ABCD"]
    project.write("a.test.json", text(eval_set("a", *cases, case("rome", recorded))))
    project.write("test_config.json", text({"criteria": {"response_match_score": 1.0}}))
    with ScriptedAgent(forecaster) as agent:
        project.config(agent.endpoint)
        done = project.agentest("eval", "a.test.json", "--num-runs", "2", "--workers", workers)
        assert done.returncode == 0, done.stdout
        assert " ".join(done.stdout.split()).count(NULL) == 1
        (note,) = (each["message"] for each in project.results["summary"]["unansweredCalls"])
        for part in (
            f"10 {NULL} (cases 'A', 'B', 'C' and 2 more): what the set recorded answers calls with other",
            '--mocks FILE with tools = {"get_weather": …}',
            "`tool_responses`",
            "--unmocked-tools error",
        ):
            assert part in note
        if workers == "1":
            return
        failed = project.agentest("eval", "a.test.json", "--unmocked_tools", "error", "--workers", workers)
        assert failed.returncode == 1
        assert "--unmocked-tools passthrough" in " ".join(failed.stdout.split())
