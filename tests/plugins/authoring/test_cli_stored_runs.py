"""Past runs are exported and counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import said_secrets
from evalset_documents import case, eval_set, invocation, text
from model_server import ModelServer
from project import DEADLINE_S, Project

from agentest.testing import ScriptedAgent

SCENARIOS = """
scenario("says yes", turns=[{"user_message": "x", "expect": {"contains": "yes"}}])
scenario(
    "says no",
    turns=[{"user_message": "x", "expect": {"contains": "no"}}],
    trajectory={"expected": ["book"]},
)
"""


@pytest.fixture
def held(project: Project) -> Project:
    """A project with two runs: the first for the console alone, the second with JSON."""
    project.scenario(SCENARIOS)
    with ScriptedAgent(["yes"]) as agent:
        project.config(agent.endpoint)
        for name, arguments in (("one", ("--scenario", "says yes")), ("all", ("--verbose",))):
            done = project.run(*arguments, *(("--reporter", "console") if name == "one" else ()))
            project.write(f"{name}.txt", done.stdout)
    return project


def ids(project: Project) -> list[str]:
    return sorted(path.name for path in (project.root / ".agentest" / "runs").iterdir())


def test_a_run_is_named_wherever_results_are(held: Project) -> None:
    """export, label and coverage take a run by its id, its beginning or `latest`."""
    exported = held.agentest("export", ids(held)[1][:22], "--to", "scenario")
    assert 'scenario(\n    "says no' in exported.stdout, exported.stderr
    assert held.agentest("label", "latest", typed="\n").returncode in (0, 2)
    id = ids(held)[1]
    for reference in (id, id[:22], "latest", f".agentest/runs/{id}"):
        measured = held.agentest("coverage", reference, "--format", "json")
        assert measured.returncode == 0, measured.stderr
        (file,) = json.loads(measured.stdout)["results"]
        assert Path(file).parent.name == (ids(held)[-1] if reference == "latest" else id)


def test_coverage_counts_the_latest_run_and_the_latest_evaluation(project: Project) -> None:
    """An evaluation after a run takes nothing away from what the run has covered."""
    project.scenario("scenario('pays', turns=['hello'], tags=['task:buy', 'path:happy'])")
    project.write(
        "sets/refund.test.json", text(eval_set("refund", case("refund/happy", invocation("hi", "hi"))))
    )
    with ScriptedAgent(lambda body: "hi") as agent:
        project.config(agent.endpoint)
        for command in (("run",), ("eval", "sets/refund.test.json")):
            done = project.agentest(*command)
            assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(project.agentest("coverage", "--format", "json").stdout)
    statuses = {row["task"]: row["unit"] + row["integration"] for row in measured["levels"]}
    assert [each["status"] for found in statuses.values() for each in found] == ["passed", "passed"]
    assert len(measured["results"]) == 2


def test_coverage_shows_no_secret(project: Project) -> None:
    """This includes secrets in names of tools and scenarios, and in tags."""
    env = said_secrets.environment(project)
    project.scenario(said_secrets.SCENARIOS)
    with ScriptedAgent(said_secrets.answer) as agent, ModelServer() as model:
        said_secrets.configured(project, agent, model)
        project.run("--offline", env=env)
    done = project.agentest("coverage", env=env)
    assert "tool_[redacted]" in done.stdout, done.stdout + done.stderr
    assert said_secrets.found_in(done.stdout + done.stderr) == []


def test_a_run_that_there_is_not(held: Project) -> None:
    done = held.agentest("coverage", "yesterday")
    assert done.returncode == 2
    assert "found no run, file or folder 'yesterday'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("options", [[], ["--format", "json"]])
def test_coverage_that_cannot_be_written_is_status_2(held: Project, options: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = held.agentest("coverage", *options, stdout=full.fileno())
    assert done.returncode == 2
    assert "standard output cannot be written to: No space left on device" in done.stderr


@pytest.mark.parametrize("options", [[], ["--format", "json"]])
@pytest.mark.slow
def test_a_closed_pipe_is_not_an_error(project: Project, options: list[str]) -> None:
    project.scenario(
        "for n in range(2_000):\n    scenario(f'a long name of a scenario, number {n}', turns=['x'])"
    )
    project.config("http://127.0.0.1:9/")
    with project.start(*options, command="coverage") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(DEADLINE_S)) == ("", 0)
