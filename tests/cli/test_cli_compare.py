"""`agentest compare` and `run --baseline` on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from project import Project

from agentest.testing import ScriptedAgent

SCENARIOS = (
    'for name in ("first", "second"):\n'
    '    scenario(name, turns=[{"user_message": name, "expect": {"contains": "fine"}}])\n'
)


@dataclass
class Mood:
    broken: set[str] = field(default_factory=set)


@pytest.fixture
def mood() -> Mood:
    return Mood()


@pytest.fixture
def agent(mood: Mood) -> Iterator[ScriptedAgent]:
    """An agent that gives the expected answer unless `mood` says otherwise."""
    with ScriptedAgent(
        lambda body: "no" if body["messages"][-1]["content"] in mood.broken else "fine"
    ) as agent:
        yield agent


def test_a_baseline(project: Project, agent: ScriptedAgent, mood: Mood) -> None:
    """Console, annotations, summary and comparison.json compare a run with its baseline; on request a
    regression fails `compare`, and a later comparison gives the same result."""
    project.config(agent.endpoint)
    project.scenario(SCENARIOS)
    assert project.run().returncode == 0
    mood.broken.add("second")
    summary = project.root / "summary.md"
    done = project.run(
        *("--baseline", "latest", "--reporter", "console", "--reporter", "github-actions"),
        env={"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)},
    )
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith("1 broke, 1 unchanged")
    [annotation] = [line for line in done.stdout.splitlines() if line.startswith("::error")]
    assert "title=second failed and broke::" in annotation
    assert annotation.endswith("broke: always passed before, never passes now (1 of 1 → 0 of 1)")
    headings = [line for line in summary.read_text("utf-8").splitlines() if line.startswith("#")]
    assert headings[:3] == [
        "## ❌ Agentest: 1 failed, 1 passed",
        "### Not passed",
        "### ❌ Agentest, compared: 1 broke, 1 unchanged",
    ]
    kept = json.loads((project.root / ".agentest" / "comparison.json").read_text("utf-8"))
    later = project.agentest("compare", "--format", "json")
    assert later.returncode == 0
    assert json.loads(later.stdout)["scenarios"] == kept["scenarios"]
    assert project.agentest("compare", "--fail-on-regression").returncode == 1


def test_invalid_baselines(project: Project, agent: ScriptedAgent) -> None:
    """A missing baseline, or one with other scenarios, is an error before the run, and of compare."""
    project.config(agent.endpoint)
    project.scenario(SCENARIOS)
    missing = project.run("--baseline", "nowhere")
    assert missing.returncode == 2
    assert "baseline: found no run, file or folder 'nowhere'" in missing.stderr
    assert project.agentest("compare").returncode == 2
    neither = project.agentest("compare", "abc", "def").stderr
    assert all(f"found no run, file or folder {name!r}" in neither for name in ("abc", "def"))
    assert project.run().returncode == 0
    heard = len(agent.requests)
    project.scenario('scenario("other", turns=["x"])\n')
    other = project.run("--baseline", "latest")
    assert other.returncode == 2
    assert "has 'first', 'second', this run has 'other'" in other.stderr
    assert len(agent.requests) == heard
    alone = project.agentest("compare", "latest")
    assert alone.returncode == 2
    assert "both are the same run" in alone.stderr


def test_parts_journals_and_judges(project: Project, agent: ScriptedAgent, mood: Mood) -> None:
    """A journal is a baseline; scenarios left out by --last-failed are not gone, also with workers; `judge`
    has no baseline; without names the latest run is compared with the latest complete one before it."""
    project.config(agent.endpoint)
    project.scenario(SCENARIOS)
    assert project.run().returncode == 0
    [journal] = project.root.glob(".agentest/runs/*/journal.jsonl")
    (project.root / "base.jsonl").write_bytes(journal.read_bytes())
    mood.broken.add("first")
    assert project.run().returncode == 1
    part = project.run(
        *("--last-failed", "--baseline", "base.jsonl", "--workers", "2"),
        *("--reporter", "console", "--reporter", "json"),
    )
    assert part.stdout.rstrip().endswith("1 broke")
    assert "1 scenario not selected in both runs: left out" in part.stdout
    project.config(agent.endpoint, baseline="base.jsonl", fail_on_regression=True)
    judged = project.agentest("judge", ".agentest/results.json")
    assert judged.returncode == 1
    assert "Compared" not in judged.stdout
    later = project.agentest("compare", "--format", "markdown", "--output", "told.md")
    assert (later.returncode, later.stdout) == (0, "")
    told = (project.root / "told.md").read_text("utf-8")
    assert told.startswith("## ✅ Agentest, compared: 1 unchanged\n")


def test_agents_of_one_run(project: Project, agent: ScriptedAgent, mood: Mood) -> None:
    """Agents of `compare` are compared with the first, after the run and in the summary, without annotations;
    --agents repeats that later, but not for one agent."""
    mood.broken.add("second")
    with ScriptedAgent(lambda _: "fine") as first:
        project.config(first.endpoint, compare=[{"name": "other", "endpoint": agent.endpoint}])
        project.scenario(SCENARIOS)
        summary = project.root / "summary.md"
        done = project.run(
            *("--reporter", "console", "--reporter", "github-actions", "--reporter", "json"),
            env={"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)},
        )
        assert done.stdout.rstrip().endswith("1 broke, 1 unchanged")
        assert "and broke::" not in done.stdout
        assert "### ❌ Agentest, compared: 1 broke, 1 unchanged" in summary.read_text("utf-8")
        later = project.agentest("compare", "--agents", "--format", "json", "--fail-on-regression")
        [document] = json.loads(later.stdout)
        assert (later.returncode, document["base"]["run"], document["new"]["run"]) == (1, "agent", "other")
        project.config(first.endpoint)
        assert project.run().returncode == 0
    alone = project.agentest("compare", "--agents")
    assert alone.returncode == 2
    assert "has one agent, agent" in alone.stderr


def test_an_agent_that_breaks_a_scenario_gates(project: Project, agent: ScriptedAgent, mood: Mood) -> None:
    """With --fail-on-regression, agents need no baseline, and a scenario that one of them always passes and
    another never does sets the exit status, though both reach their thresholds. One agent is an error."""
    mood.broken.add("hello")
    with ScriptedAgent(lambda _: "fine") as first:
        project.config(first.endpoint, compare=[{"name": "other", "endpoint": agent.endpoint}])
        project.scenario(
            'turns = [{"user_message": "hello", "expect": {"contains": "fine"}}]\n'
            'scenario("tolerant", turns=turns, thresholds={"pass_rate": 0})\n'
        )
        assert project.run().returncode == 0
        gated = project.run("--fail-on-regression")
        assert (gated.returncode, gated.stdout.rstrip().splitlines()[-1]) == (1, "1 broke")
        assert "Worse overall: the pass rate fell from 100% to 0%" in gated.stdout
        project.config(first.endpoint)
    alone = project.run("--fail-on-regression")
    assert alone.returncode == 2
    assert "there is nothing to compare with" in alone.stderr
