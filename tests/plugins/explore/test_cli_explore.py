"""`agentest explore` as a command: exit status, budget, journal, resumption and files."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from explore_lab import Act, Brain, Seen, endpoint_of
from project import Project

from agentest.plugins.explore.engine import EXPLORE_JOURNAL
from agentest.store.reader import read_results

SCENARIO = """
def refund(id):
    return {"refund": "R-4711"}

scenario("refunds", turns=["Please refund A-17."], tools={"refund": refund})
"""


def clerk(*, repeats: bool) -> Brain:
    def brain(seen: Seen) -> Act:
        answer = seen.result("refund")
        timed_out = "timed out" in str(answer)
        if "refund" not in seen.made or (repeats and timed_out and seen.made.count("refund") < 2):
            return "refund", {"id": "A-17"}
        if isinstance(answer, dict) and answer.get("refund") == "R-4711":
            return "Your refund R-4711 has been issued."
        return "Sorry, I do not know whether the refund went through."

    return brain


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.scenario(SCENARIO)
    return made


def results_of(project: Project) -> dict[str, Any]:
    latest = max((project.root / ".agentest" / "runs").iterdir())
    read_results(latest / "results.json")  # valid by its schema, and readable
    found: dict[str, Any] = json.loads((latest / "results.json").read_text())
    return found


FAULTS = ("explore", "--offline", "--faults=error,timeout,applied_then_timeout,malformed,schema")


def test_findings_fail_the_command_are_saved_and_are_known_from_then_on(project: Project) -> None:
    with endpoint_of(clerk(repeats=True)) as url:
        project.config(url)
        first = project.agentest(*FAULTS, "--reporter=console", "--reporter=junit=j.xml", "--reporter=json")
        assert first.returncode == 1, first.stderr
        [finding] = results_of(project)["findings"]
        explored = results_of(project)["explored"]
        corpus = project.root / ".agentest" / "corpus"
        entries = [json.loads(path.read_text()) for path in corpus.iterdir()]
        coverage = json.loads(project.agentest("coverage", "--format=json").stdout)
        (corpus / "foreign.json").write_text("{}")
        second = project.agentest(*FAULTS, "--reporter=console")
    assert "explore --last-failed" not in second.stdout  # there is no such option
    assert explored["signatures"] > len(entries) > 0
    assert [finding["id"]] in [each["findings"] for each in entries]
    assert "Please" not in str(entries)
    assert coverage["explored"]["tools"]["refund"]["applied_then_timeout"] > 0
    assert coverage["explored"]["neverReached"] == []
    assert {"consent", "no_secret"} <= {*coverage["explored"]["neverExercised"]}
    assert coverage["shares"]["outcomes"]["percent"] == 100
    assert "Never exercised: " in first.stdout
    assert any("foreign.json" in each["what"] for each in results_of(project)["explored"]["notTried"])
    assert finding["oracle"] == "no_repeated_write"
    assert (finding["severity"], finding["status"], finding["part"]) == ("critical", "new", "faults")
    assert "applied_then_timeout of refund, call 1" in finding["fault"]
    assert finding["rate"]["k"] == finding["rate"]["n"] == 20
    assert finding["minimal"]
    assert [turn["userMessage"] for turn in finding["transcript"]["turns"]]
    assert explored["byPart"] == {"faults": explored["tries"]}
    assert explored["conversations"] <= 200
    assert finding["id"] in first.stdout
    assert "agentest explore --replay" in first.stdout
    assert (project.root / finding["file"]).is_file()
    [case] = ElementTree.parse(project.root / "j.xml").findall("testsuite/testcase/failure/..")
    assert finding["id"] in case.attrib["name"]
    assert second.returncode == 1
    assert [each["status"] for each in results_of(project)["findings"]] == ["known"]
    with endpoint_of(clerk(repeats=False)) as url:
        project.config(url)
        fixed = project.agentest(*FAULTS, "-q")
        statuses = [each["status"] for each in results_of(project)["findings"]]
        replayed = project.agentest("explore", "--offline", "--replay", finding["id"])
    assert fixed.returncode == 0, fixed.stdout
    assert statuses == ["fixed"]
    assert replayed.returncode == 0, replayed.stdout


def test_a_budget_is_exact_and_an_exploration_goes_on_from_its_journal(project: Project) -> None:
    asked: list[str] = []

    def counted(seen: Seen) -> Act:
        if len(seen.messages) == 1:
            asked.append(seen.said)
        return clerk(repeats=True)(seen)

    with endpoint_of(counted) as url:
        project.config(url)
        small = project.agentest(*FAULTS, "--conversations=12", "--no-save", "-q")
        spent = results_of(project)["explored"]
        assert small.returncode in (0, 1), small.stderr
        assert len(asked) == spent["conversations"] <= 12
        assert any("12 conversations was spent" in each["why"] for each in spent["notTried"])
        asked.clear()
        again = project.agentest(*FAULTS, "--conversations=60", "--no-save", "--resume", "-q")
        resumed = results_of(project)
    assert again.returncode == 1, again.stdout
    assert len(asked) <= 60
    assert resumed["explored"]["conversations"] > len(asked)
    assert resumed["findings"]


def test_an_interrupted_exploration_ends_with_what_it_found_and_repeats_nothing(project: Project) -> None:
    names: list[str] = []
    under_way = threading.Event()

    def noted(seen: Seen) -> Act:
        if len(seen.messages) == 1:
            names.append(seen.said)
        if len(names) > 20:
            under_way.set()
        return clerk(repeats=True)(seen)

    with endpoint_of(noted) as url:
        project.config(url)
        with project.start(*FAULTS[1:], "--no-save", "-q", command="explore") as process:
            assert under_way.wait(60)
            process.send_signal(signal.SIGINT)
            stdout, _ = process.communicate(timeout=60)
            assert process.returncode == 130
        [unreduced] = results_of(project)["findings"]
        assert (unreduced["oracle"], unreduced["rate"]) == ("no_repeated_write", None)
        assert "neither confirmed nor reduced" in stdout
        assert any("interrupted" in each["why"] for each in results_of(project)["explored"]["notTried"])
        runs = project.root / ".agentest" / "runs"
        kept = len((max(runs.iterdir()) / EXPLORE_JOURNAL).read_text().splitlines())
        names.clear()
        whole = project.agentest(*FAULTS, "--no-save", "--resume", "-q")
        resumed = results_of(project)["explored"]
    assert whole.returncode == 1, whole.stdout
    assert kept > 0
    assert len(names) == resumed["conversations"] - kept - 3


def test_wrong_options_and_scenarios_that_cannot_be_explored_are_explained(project: Project) -> None:
    with endpoint_of(lambda _: "I do nothing.") as url:
        project.config(url)
        project.scenario(
            'scenario("refunds", turns=["Refund A-17."], tools={"refund": 1}, '
            'trajectory={"expected": [{"name": "refund"}]})'
        )
        failing = project.agentest(*FAULTS, "-q")
        wrong = project.agentest("explore", "--faults=timout")
        attacks = project.agentest("explore", "--parts=attacks")
    assert failing.returncode == 2
    why = results_of(project)["explored"]["notTried"][0]["why"]
    assert why.startswith("it passes in 0 of 3 conversations as it is: ")
    assert "refund" in why
    assert "\n" not in why
    assert wrong.returncode == 2
    assert "did you mean `timeout`" in wrong.stderr
    assert attacks.returncode == 2
    assert "needs a model" in attacks.stderr


def test_a_dry_run_shows_what_would_be_tried_and_calls_nobody(project: Project) -> None:
    project.config("http://127.0.0.1:9/chat")
    shown = project.agentest("explore", "--dry-run", "--faults=timeout,error")
    assert shown.returncode == 0, shown.stderr
    assert "at most 200 conversations in all" in shown.stdout
    assert "refunds: timeout of refund, call 1" in shown.stdout
    assert not (project.root / ".agentest").exists()
