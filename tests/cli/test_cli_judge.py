"""`agentest judge` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

from jsonschema import validate
from model_server import ModelServer, completion
from project import Project

from agentest.testing import ScriptedAgent

SCHEMA = Path(__file__).parent.parent.parent / "agentest" / "schemas" / "results.schema.json"


def test_finished_conversations_are_judged_again(project: Project) -> None:
    """`judge` evaluates stored transcripts with the current expectations, without the agent."""
    project.scenario('scenario("s", turns=["x"], trajectory={"match_mode": "strict", "expected": []})')
    with ScriptedAgent(["fine"]) as agent:
        project.config(agent.endpoint)
        assert project.run().returncode == 0
        asked = len(agent.requests)
        project.scenario(
            'scenario("s", turns=[{"user_message": "x", "expect": {"contains": "never"}}])\n'
            'scenario("new", turns=["y"])'
        )
        done = project.agentest("judge", ".agentest/results.json")
        assert len(agent.requests) == asked
    assert done.returncode == 1, done.stdout + done.stderr
    judged = json.loads((project.root / ".agentest" / "judged.json").read_text())
    validate(judged, json.loads(SCHEMA.read_text()))
    assert {s["name"]: s["status"] for s in judged["scenarios"]} == {"s": "failed", "new": "skipped"}
    assert project.results["summary"]["passed"] is True  # the run's own results stay


def test_a_script_of_another_length_is_not_judged_again(project: Project) -> None:
    """Checks of turns that never ran do not pass: the scenario is errored with the reason."""
    project.scenario('scenario("s", turns=["x"])')
    with ScriptedAgent(["fine"]) as agent:
        project.config(agent.endpoint)
        assert project.run().returncode == 0
    project.scenario('scenario("s", turns=["x", {"user_message": "y", "expect": {"contains": "never"}}])')
    done = project.agentest("judge", ".agentest/results.json")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "it ran with 1 turn, and the script now has 2: run the scenario again" in done.stdout


def test_files_that_are_not_results_are_refused(project: Project) -> None:
    """A file that is not a results.json is refused with the first difference."""
    project.scenario('scenario("s", turns=["x"])')
    project.config("http://127.0.0.1:9/")
    project.write("r.json", '{"schemaVersion": 1}')
    later = '{"type": "run", "schemaVersion": 99}\n'
    said = [{"role": "user", "content": "Refund me."}, {"role": "assistant", "content": "No."}]
    project.write("later.jsonl", later + json.dumps({"session_id": "s", "messages": said}))
    for name, expected in (
        ("r.json", "not a results.json"),
        ("later.jsonl", "later.jsonl is not a results.json or a journal of this version of Agentest"),
        ("none.json", "cannot be read"),
    ):
        done = project.agentest("judge", name)
        assert done.returncode == 2
        assert expected in done.stderr


def test_results_that_the_last_run_did_not_write(project: Project) -> None:
    """If a run left no results.json, the error suggests the run's journal."""
    project.scenario('scenario("s", turns=["x"])')
    project.config("http://127.0.0.1:9/")
    journal = project.write(".agentest/journal.jsonl", "")
    done = project.agentest("judge", ".agentest/results.json")
    assert done.returncode == 2
    assert "`--reporter json`" in done.stderr
    assert done.stderr.rstrip().endswith(str(journal))


def test_one_metric_is_judged_again_with_a_model(project: Project) -> None:
    """--metric judges only that metric, and lists the thresholds it leaves out."""
    project.scenario('scenario("s", turns=["x"], goal="Get x.", thresholds={"verbosity": 4})')
    with ScriptedAgent(["fine"]) as agent:
        project.config(agent.endpoint)
        project.run()
    with ModelServer(completion({"reason": "r", "value": 4})) as model:
        project.config(
            "http://127.0.0.1:9/",
            provider="openai-compatible",
            model="m",
            provider_options={"base_url": model.base_url},
        )
        done = project.agentest("judge", ".agentest/results.json", "--metric", "helpfulness")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--metric leaves out verbosity, so no threshold on it is checked" in done.stderr
    judged = json.loads((project.root / ".agentest" / "judged.json").read_text())
    assert judged["scenarios"][0]["averages"] == {"helpfulness": 4}
    assert judged["summary"]["llmCalls"] == 1


def test_judging_again_without_a_model(project: Project) -> None:
    """--offline judges only by expectations, whatever model is configured."""
    project.scenario('scenario("s", turns=["x"], goal="Get x.")')
    with ScriptedAgent(["fine"]) as agent:
        project.config(agent.endpoint)
        project.run()
    project.config("http://127.0.0.1:9/", model="openai/none")
    done = project.agentest("judge", ".agentest/results.json", "--offline")
    assert done.returncode == 0, done.stdout + done.stderr
    judged = json.loads((project.root / ".agentest" / "judged.json").read_text())
    assert judged["models"] == {"user": None, "judge": None}


# Sessions of traces
