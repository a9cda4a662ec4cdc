"""Coverage and exported cases control neither GitHub's runner nor a terminal, and keep their meaning."""

from __future__ import annotations

import json

from project import Project
from steering_texts import GITHUB, HOSTILE, harmless, say_hostile_texts, write_scenarios

from agentest.testing import ScriptedAgent


def test_documents(project: Project) -> None:
    write_scenarios(project)
    with ScriptedAgent(say_hostile_texts) as agent:
        project.config(agent.endpoint, conversations_per_scenario=1)
        project.run()
    results = project.root / ".agentest" / "results.json"
    for form in ("text", "markdown", "json"):
        harmless(project.agentest("coverage", "--format", form, env=GITHUB))
    for form in ("evalset", "scenario"):
        harmless(project.agentest("export", str(results), "--to", form, env=GITHUB))
    cases = project.agentest("export", str(results), "--to", "evalset", "--scenario", "passes", env=GITHUB)
    reply = json.loads(cases.stdout)["eval_cases"][0]["conversation"][0]["final_response"]
    assert reply["parts"][0]["text"] == HOSTILE


def test_refused_files(project: Project) -> None:
    """Errors about an invalid or missing results.json contain no commands."""
    project.scenario('scenario("s", turns=["x"])')
    project.config("http://127.0.0.1:9/")
    results = project.write("r.json", json.dumps({"schemaVersion": HOSTILE, HOSTILE: 1}))
    done = project.agentest("coverage", "--results", str(results), env=GITHUB)
    assert done.returncode == 2
    harmless(done)
    harmless(project.agentest("export", HOSTILE, "--to", "evalset", env=GITHUB))
