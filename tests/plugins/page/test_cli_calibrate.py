"""`agentest label` and `agentest calibrate` from outside: from a run to what the next run shows."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from model_server import Answer, ModelServer, Received, completion, error, model_keys
from project import DEADLINE_S, Project, wait_until

from agentest.testing import ScriptedAgent

SCHEMA = Path(__file__).parents[3] / "agentest" / "schemas" / "results.schema.json"
RESULTS = ".agentest/results.json"


def judging(received: Received) -> Answer:
    """A judge who finds WRONG replies faulty, unless they are SLY, and NICE ones right only by mistake."""
    shown = "".join(message["content"] for message in received.body["messages"])
    return completion({"reason": "so it is", "value": 2 if "WRONG" in shown or "ODD" in shown else 5})


def labelled(project: Project, replies: Sequence[tuple[str, int]]) -> None:
    """A labels file of conversations of one turn, each with a person's number for faithfulness."""
    lines: list[dict[str, Any]] = []
    for n, (reply, value) in enumerate(replies):
        turn = {"userMessage": "Hi", "agentMessage": reply}
        lines.append({"type": "conversation", "id": f"c{n}", "turns": [turn]})
        lines.append(
            {"type": "label", "conversation": f"c{n}", "turn": 0, "metric": "faithfulness", "value": value}
        )
    project.write("labels.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def test_a_judge_is_measured_and_runs_show_it(project: Project) -> None:
    """Of 40 replies the judge misses 2 of 10 faults and raises 3 false alarms: the figures are printed and
    stored, and shown with the averages of the next run, in GitHub's summary and in the results."""
    labelled(
        project,
        [("WRONG", 2)] * 8 + [("SLY", 1)] * 2 + [("ODD", 5)] * 3 + [("fine", 5)] * 27,
    )
    project.scenario(
        'scenario("s", goal="g", turns=["x"], conversations_per_scenario=2, metrics=["faithfulness"])'
    )
    with ScriptedAgent(["fine"] * 9) as agent, ModelServer(script=judging) as model:
        single = {"judge": {"batch": False}, **model_keys(model)}
        project.config(agent.endpoint, reporters=["console", "json", "github-actions"], **single)
        counted = project.agentest("calibrate", "labels.jsonl", "--dry-run")
        assert "40 labelled questions, at most 40 model calls" in counted.stdout, counted.stderr
        assert not model.received
        done = project.agentest("calibrate", "labels.jsonl", "--write", "--record")
        assert done.returncode == 0, done.stderr
        assert len(model.received) == 40
        told = json.loads(project.agentest("calibrate", "labels.jsonl", "--json", "--replay").stdout)
        assert len(model.received) == 40
        env = {"GITHUB_STEP_SUMMARY": str(project.root / "summary.md")}
        ran = project.run("-v", env=env)
        project.config(agent.endpoint, judge={"batch": "turn"}, **model_keys(model))
        other = project.run()
    assert "agreement     88% (35 of 40; 95 % 74% to 95%)" in done.stdout
    assert "false alarms  10% (3 of 30;" in done.stdout
    assert "misses        20% (2 of 10;" in done.stdout
    assert "kappa         0.68 (95 % " in done.stdout
    assert "40 model calls, 400 prompt + 200 completion tokens, cost unknown" in done.stdout
    first = done.stdout.partition("Where they differ, the most serious first\n")[2].splitlines()
    assert first[0].endswith("turn 1: faithfulness (missed)")
    assert first[2] == "    judge  5: so it is"
    assert told["metrics"]["faithfulness"]["kappa"]["value"] == pytest.approx(0.68, abs=0.005)
    assert [each["judge"] for each in told["differences"]] == [5, 5, 2, 2, 2]
    judge = r"judge κ 0\.68 \[0\.\d\d, 0\.\d\d\], n 40"
    assert re.search(rf"faithfulness 5\.00 \[\d\.\d\d, 5\.00\] \(n \d+\), {judge}", ran.stdout)
    assert re.search(f"faithfulness: {judge}", unescape((project.root / "summary.md").read_text()))
    validate(project.results, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert "the judge was calibrated with other prompts" in other.stderr
    assert "κ" not in other.stdout
    assert "calibration" not in project.results


def test_a_judge_without_answers_is_an_error(project: Project) -> None:
    """If no question is answered, nothing is written that runs could show."""
    labelled(project, [("fine", 5)])
    with ModelServer(error(404, "no such model")) as model:
        project.config("http://127.0.0.1:1", **model_keys(model))
        dead = project.agentest("calibrate", "labels.jsonl", "--write")
    assert dead.returncode == 2
    assert "answered 404: no such model" in dead.stdout
    assert "the judge answered no question; nothing was written" in dead.stderr
    assert not (project.root / "agentest.calibration.json").exists()


def test_signals_end_a_calibration(project: Project) -> None:
    """Ctrl-C and SIGTERM in the middle of it: exit status 130, no traceback, nothing written; what the judge
    had answered is in the recording."""
    labelled(project, [("fine", 5), ("HANG", 5)])
    ended, asked = threading.Event(), threading.Event()

    def recorded() -> str:
        files = (project.root / ".agentest" / "cassettes").glob("*")
        return "".join(file.read_text() for file in files if file.is_file())

    def judge(received: Received) -> Answer:
        if "HANG" not in str(received.body):
            return judging(received)
        asked.set()
        ended.wait()
        return judging(received)

    with ModelServer(script=judge) as model:
        project.config("http://127.0.0.1:1", judge={"batch": False}, **model_keys(model))
        for number in (signal.SIGINT, signal.SIGTERM):
            asked.clear()
            process = project.start("labels.jsonl", "--write", "--record", command="calibrate")
            wait_until(lambda: asked.is_set() and "so it is" in recorded())
            process.send_signal(number)
            out, told = process.communicate(timeout=DEADLINE_S)
            assert (process.returncode, out) == (130, "")
            assert "Traceback" not in told
        ended.set()
    assert not (project.root / "agentest.calibration.json").exists()
    assert "so it is" in recorded()


def test_results_that_the_last_run_did_not_write_are_not_labelled(project: Project) -> None:
    """If a run left no results.json, the error names the run's journal."""
    project.config("http://127.0.0.1:1")
    journal = project.write(".agentest/journal.jsonl", "")
    done = project.agentest("label", ".agentest/results.json")
    assert done.returncode == 2
    assert "`--reporter json`" in done.stderr
    assert done.stderr.rstrip().endswith(str(journal))


def test_missing_calibration_input_is_explained(project: Project) -> None:
    """Without a judge, without labels, or with a damaged file: one sentence, and status 2."""
    labelled(project, [("fine", 5)])
    nowhere = project.agentest("calibrate", "labels.jsonl")
    project.config("http://127.0.0.1:1")
    offline = project.agentest("calibrate", "labels.jsonl")
    other = project.agentest("calibrate", "labels.jsonl", "--metric", "goal_completion")
    with ModelServer(script=judging) as model:
        project.config("http://127.0.0.1:1", **model_keys(model))
        project.write("agentest.calibration.json", "{")
        damaged = project.agentest("calibrate", "labels.jsonl", "--write")
        assert not model.received
    project.write("labels.jsonl", '{"type": "label"}\n')
    bad = project.agentest("calibrate", "labels.jsonl")
    assert [each.returncode for each in (nowhere, offline, other, damaged, bad)] == [2] * 5
    assert "name one with --judge MODEL" in nowhere.stderr
    assert "no judge is configured: set `model`, or `judge: {model: …}`" in offline.stderr
    assert "has no label for goal_completion; it has labels for faithfulness" in other.stderr
    assert "it is not JSON" in damaged.stderr
    assert "labels.jsonl:1: " in bad.stderr


def test_a_run_is_labelled_line_by_line(project: Project) -> None:
    """A person labels a stored run, with the scenario's goal shown; the next session has only open questions,
    a second person gets all, and the end of input loses no answer."""
    project.scenario('scenario("s", goal="Book it.", turns=["x", "y"], criteria=["Is kind"])')
    with ScriptedAgent(["one", "two"]) as agent:
        project.config(agent.endpoint)
        project.run("--offline")
    wish = ("label", RESULTS, "--metric", "faithfulness", "--metric", "criteria", "--by")
    first = project.agentest(*wish, "ann", typed="4 nearly\n")
    again = project.agentest(*wish, "ann", typed="5\n1\n")
    done = project.agentest(*wish, "ann", typed="5\n")
    second = project.agentest(*wish, "bob", typed="q\n")
    assert "goal     Book it." in first.stdout
    assert "labels.jsonl: 1 label added, 2 questions left" in first.stdout, first.stderr
    assert "labels.jsonl: 2 labels added, 0 questions left" in again.stdout
    assert "nothing is left to label" in done.stdout
    assert "[1/3]" in second.stdout
    lines = [json.loads(line) for line in (project.root / "labels.jsonl").read_text().splitlines()]
    assert [line["type"] for line in lines] == ["conversation", "label", "label", "label"]
    assert lines[0]["background"] == {"goal": "Book it."} | lines[0]["background"]
    assert (lines[1]["value"], lines[1]["note"], lines[1]["by"]) == (4, "nearly", "ann")
    assert (lines[3]["criterion"], lines[3]["value"]) == ("Is kind", "met")


def test_secrets_in_what_an_agent_was_told_are_hidden_from_the_judge(project: Project) -> None:
    """A labels file, and an evaluation set that is labelled, may hold secrets in instructions and tools."""
    secret = "zq-plain-93"
    agents = {"a": {"name": "a", "instructions": f"Use {secret}.", "tool_declarations": [{"name": secret}]}}
    case = {
        "eval_id": "c",
        "conversation": [
            {
                "invocation_id": "i",
                "user_content": {"role": "user", "parts": [{"text": "Hi"}]},
                "final_response": {"role": "model", "parts": [{"text": "Hello"}]},
                "app_details": {"agent_details": agents},
            }
        ],
    }
    project.write("a.test.json", json.dumps({"eval_set_id": "s", "eval_cases": [case]}))
    project.scenario('scenario("s", goal="g", turns=["x"])')
    env = {"PLAIN_TOKEN": secret}
    with ScriptedAgent(["fine"]) as agent, ModelServer(script=judging) as model:
        project.config(agent.endpoint, judge={"batch": False}, **model_keys(model))
        only = ("--metric", "faithfulness", "--to", "set.jsonl")
        labelled = project.agentest("label", "a.test.json", *only, typed="5\n", env=env)
        assert "1 label added" in labelled.stdout, labelled.stderr
        lines = (project.root / "set.jsonl").read_text()
        assert "Use [redacted]." in lines
        assert secret not in lines + labelled.stdout
        project.write("own.jsonl", lines.replace("[redacted]", secret))
        done = project.agentest("calibrate", "own.jsonl", env=env)
    assert done.returncode == 0, done.stderr
    [asked] = model.received
    assert "Use [redacted]." in str(asked.body)
    assert secret not in str(asked.body) + done.stdout


def test_secrets_of_a_scenario_are_not_written_into_a_labels_file(project: Project) -> None:
    """A secret in a scenario, such as a password, is in neither results nor labels."""
    secret = "zq-plain-93"
    project.scenario(
        'import os\nhidden = os.environ["PLAIN_TOKEN"]\n'
        'scenario("s", goal=f"Log in by {hidden}", profile=hidden, knowledge=[f"It is {hidden}"], '
        'turns=["x"], expected_outcome=f"{hidden} is taken")'
    )
    env = {"PLAIN_TOKEN": secret}
    with ScriptedAgent(["fine"]) as agent, ModelServer(script=judging) as model:
        project.config(agent.endpoint, metrics=["faithfulness"], **model_keys(model))
        project.run(env=env)
    done = project.agentest("label", RESULTS, "--metric", "faithfulness", typed="5\n", env=env)
    assert "1 label added" in done.stdout, done.stderr
    lines = (project.root / "labels.jsonl").read_text()
    assert "Log in by [redacted]" in lines
    assert secret not in lines + done.stdout + (project.root / RESULTS).read_text()
