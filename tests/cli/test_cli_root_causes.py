"""Root causes on the command line: every report has the same list, for any kind of run."""

from __future__ import annotations

import json
import re
import threading
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from model_server import Answer, ModelServer, Received, completion
from project import DEADLINE_S, Project, interrupt

import agentest
from agentest.testing import ScriptedAgent, tool_call

SCHEMA = json.loads((Path(agentest.__file__).parent / "schemas" / "results.schema.json").read_text("utf-8"))
SCENARIOS = """
for n in range(1, 4):
    scenario(f"books {n}", turns=[f"Book for {n}."], tools={"create_booking": {"ok": True}},
             trajectory={"match_mode": "contains", "expected": [call("create_booking", time="10:30")]})
for n in range(2):
    scenario(f"texts {n}", turns=["Text me."])
scenario("passes", turns=["Hello."])
"""
EXPECTED = [("create_booking: time differs", "trajectory", 3), ("send_sms has no mock", "unmocked_tool", 2)]


def wrong_agent(body: dict[str, Any]) -> Any:
    last = body["messages"][-1]
    if last["role"] == "tool" or "Hello" in last["content"]:
        return "Done."
    if "Text" in last["content"]:
        return [tool_call("send_sms", to="0151")]
    return [tool_call("create_booking", time=f"09:0{re.sub('[^0-9]', '', last['content'])}")]


def causes(document: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(each["title"], each["kind"], each["scenarios"]) for each in document["rootCauses"]]


def latest(project: Project) -> dict[str, Any]:
    validate(project.results, SCHEMA)
    return project.results


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param((), id="one process"),
        pytest.param(("--workers", "2"), id="workers", marks=pytest.mark.slow),
    ],
)
def test_every_report_has_the_causes(project: Project, engine: tuple[str, ...]) -> None:
    """Console, results.json, JUnit, the GitHub summary and `agentest show` have them."""
    project.scenario(SCENARIOS)
    reports = ["console", "json", "junit", "github-actions"]
    with ScriptedAgent(wrong_agent) as agent:
        project.config(agent.endpoint, reporters=reports)
        done = project.run(*engine, env={"GITHUB_STEP_SUMMARY": str(project.root / "summary.md")})
    assert done.returncode == 1, done.stderr
    assert causes(latest(project)) == EXPECTED
    told = "✗ create_booking: time differs  3 scenarios\n"
    assert told in done.stdout
    assert "✗ send_sms has no mock  2 scenarios\n" in done.stdout
    assert told in project.agentest("show").stdout
    first = latest(project)["rootCauses"][0]
    assert first["example"] == {
        "scenario": "books 1",
        "agent": "agent",
        "conversationId": "books-1-1",
        "turnIndex": 0,
        "text": "create_booking: time: expected '10:30', got '09:01'",
    }
    assert [place["scenario"] for place in first["places"]] == ["books 1", "books 2", "books 3"]
    folder = project.root / ".agentest"
    found = {each.get("name"): each.get("value") for each in ET.parse(folder / "junit.xml").iter("property")}
    assert found["root_cause.1"] == "3 × create_booking: time differs (high)"
    assert "- ❌ **create_booking: time differs** · 3 scenarios\n" in (
        (project.root / "summary.md").read_text("utf-8")
    )


def test_a_part_of_a_run_has_its_own_causes(project: Project) -> None:
    """`agentest show --scenario` counts only what it shows."""
    project.scenario(SCENARIOS)
    with ScriptedAgent(wrong_agent) as agent:
        project.config(agent.endpoint)
        project.run()
    shown = project.agentest("show", "--scenario", "=books 2").stdout
    assert "✗ create_booking: time expected '10:30', got '09:02'  1 scenario\n" in shown


@pytest.mark.slow
def test_shards_and_resumed_runs_count_everything(project: Project) -> None:
    """Causes found by other processes are included, from merged shards and resumed runs."""
    project.scenario(SCENARIOS)
    with ScriptedAgent(wrong_agent) as agent:
        project.config(agent.endpoint)
        for n in (1, 2):
            project.run("--shard", f"{n}/2")
        project.agentest("merge", ".agentest/runs", "--output-dir", "merged", "--reporter", "json")
        merged = json.loads((project.root / "merged" / "results.json").read_text("utf-8"))
        validate(merged, SCHEMA)
        assert causes(merged) == EXPECTED
        project.run("--fail-fast", "--concurrency", "1")
        cut = latest(project)
        assert sum(number for *_, number in causes(cut)) < 5
        project.run("--resume")
    assert causes(latest(project)) == EXPECTED


def test_a_killed_run_has_the_causes_of_what_had_finished(project: Project) -> None:
    """An incomplete journal is enough."""
    project.scenario(SCENARIOS)
    with ScriptedAgent(wrong_agent) as agent:
        project.config(agent.endpoint)
        project.run()
    journal = project.root / ".agentest" / "journal.jsonl"
    [kept] = (project.root / ".agentest" / "runs").glob("*/journal.jsonl")
    lines = kept.read_bytes().splitlines(keepends=True)
    killed = project.root / "killed.jsonl"
    killed.write_bytes(b"".join(lines[:-1]))
    assert journal.exists() or kept.exists()
    assert "✗ create_booking: time differs  3 scenarios\n" in project.agentest("show", str(killed)).stdout


def test_compared_agents_are_named(project: Project) -> None:
    """A cause lists the agents that have it."""
    project.scenario(SCENARIOS)

    def answer(body: dict[str, Any]) -> Any:
        return "Done." if body.get("variant") == "b" else wrong_agent(body)

    with ScriptedAgent(answer) as agent:
        project.config(agent.endpoint, compare=[{"name": "other", "body": {"variant": "b"}}])
        done = project.run()
    found = {each["title"]: each["agents"] for each in latest(project)["rootCauses"]}
    assert found == {
        "create_booking: time differs": ["agent"],
        "create_booking(time='10:30', …) not called": ["other"],
        "send_sms has no mock": ["agent"],
    }
    assert "not called  3 scenarios · other\n" in done.stdout


JUDGED = 'for n in range(3):\n    scenario(f"s{n}", goal="Get help.", conversations_per_scenario=2)\n'


class Judge:
    """Finds each reply repetitive, with a different label in each scenario."""

    def __init__(self) -> None:
        self.joining = 0
        self.asked = threading.Event()
        self.waits = False

    def __call__(self, received: Received) -> Answer:
        form = (received.body.get("response_format") or {}).get("json_schema", {})
        known = form.get("schema", {}).get("properties", {})
        text = "\n".join(message["content"] for message in received.body["messages"])
        ids = [json.loads(line)["id"] for line in text.split("\n") if line.startswith('{"id"')]
        if "should_stop" in known:
            said = sum(m["role"] == "assistant" for m in received.body["messages"])
            return completion({"message": f"message {said}", "should_stop": said >= 2})
        if "causes" in known:
            self.joining += 1
            self.asked.set()
            if self.waits:
                threading.Event().wait(DEADLINE_S)
            return completion({"causes": [{"title": "says it twice", "groups": ids}]})
        if "groups" in known:
            group = {"explanation": "why", "label": f"label {ids[0]}", "severity": "low"}
            return completion({"groups": [{**group, "occurrences": ids}]})
        return completion({"reason": "again", "value": "repetition", "labels": ["repetition"]})


def configure(project: Project, agent: ScriptedAgent, model: ModelServer | None, **keys: Any) -> None:
    named = {}
    if model:
        options = {"base_url": model.base_url, "api_key": "sk-secret-of-the-test"}
        named = {"provider": "openai-compatible", "model": "m", "provider_options": options}
    project.config(agent.endpoint, metrics=["agent_behavior_failure"], **named, **keys)


def test_a_replay_joins_as_the_recording_did(project: Project) -> None:
    """Usage counts the one joining call of the run. A replay works without it."""
    project.scenario(JUDGED)
    with ScriptedAgent(["sure"]) as agent:
        judge = Judge()
        with ModelServer(script=judge) as model:
            configure(project, agent, model)
            recorded = project.run("--record")
        found = latest(project)
        assert causes(found) == [("says it twice", "judged", 3)]
        assert judge.joining == 1
        assert found["joining"]["dedup"]["calls"] == 1
        assert found["summary"]["llmCalls"] == len(model.received)
        shown = project.agentest("show").stdout
        assert "minor      3 × says it twice (low)\n" in shown
        configure(project, agent, None)
        replayed = project.run("--replay")
        assert replayed.returncode == recorded.returncode
        assert causes(latest(project)) == causes(found)
        assert latest(project)["summary"]["llmCalls"] == found["summary"]["llmCalls"]
        [cassette] = (project.root / ".agentest" / "cassettes").glob("root-causes*.jsonl")
        cassette.unlink()
        without = project.run("--replay")
    assert without.returncode == recorded.returncode
    assert "were not all compared" in without.stderr
    assert [number for *_, number in causes(latest(project))] == [1, 1, 1]
    assert latest(project)["stopped"] is None


def test_a_budget_that_is_used_up_by_then_stops_nothing(project: Project) -> None:
    """The joining call counts toward --max-llm-calls; if it exceeds them, groups stay separate."""
    project.scenario(JUDGED)
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=Judge()) as model:
        configure(project, agent, model)
        free = project.run()
        calls = latest(project)["summary"]["llmCalls"]
        enough = project.run("--max-llm-calls", str(calls))
        assert causes(latest(project)) == [("says it twice", "judged", 3)]
        short = project.run("--max-llm-calls", str(calls - 1))
    assert free.returncode == enough.returncode == short.returncode
    assert len(causes(latest(project))) == 3
    assert latest(project)["stopped"] is None
    assert "--max-llm-calls" in short.stderr


def test_ctrl_c_while_causes_are_joined_loses_nothing(project: Project) -> None:
    """All scenarios had finished: reports are written, and the exit status shows the interrupt."""
    project.scenario(JUDGED)
    judge = Judge()
    judge.waits = True
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=judge) as model:
        configure(project, agent, model)
        process = project.start()
        assert judge.asked.wait(DEADLINE_S)
        status, out, err = interrupt(process)
    assert status == 130, out + err
    assert len(causes(latest(project))) == 3
    assert latest(project)["summary"]["totalScenarios"] == 3


def test_the_estimate_counts_the_joining_calls(project: Project) -> None:
    """`--dry-run` reports the maximum of calls, including those of the whole run."""
    project.scenario(JUDGED)
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=Judge()) as model:
        configure(project, agent, model)
        several = project.run("--dry-run").stdout
        one = project.run("--dry-run", "--scenario", "=s0").stdout
    assert re.search(r"^ +0 +0 +([1-9]\d*) +\1  \(root causes of the whole run\)$", several, re.M)
    assert "root causes" not in one
    assert not model.received
