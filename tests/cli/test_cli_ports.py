"""Agents that a run starts on free ports: `{port}` in their settings."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from port_agents import agent, configure
from project import Project, answers, taken


def said(project: Project) -> list[list[str]]:
    """The replies of agents: their port from arguments and environment, and their process."""
    return [
        turn["agentMessage"].split()
        for scenario in project.results["scenarios"]
        for held in scenario["conversations"]
        for turn in held["turns"]
    ]


def one(found: list[Any]) -> Any:
    (only,) = {json.dumps(each): each for each in found}.values()
    return only


@pytest.mark.parametrize("per_worker", [False, True])
def test_a_run_of_one_process(project: Project, per_worker: bool) -> None:
    """The agent starts once on a free port, new in each run, and reports show the placeholder."""
    configure(project, agent(per_worker=per_worker), conversations_per_scenario=2)
    project.scenario('scenario("a", turns=["hi"])\nscenario("b", turns=["hi", "again"])')
    ports: list[str] = []
    for _ in range(2):
        with taken(int(ports[0])) if ports else nullcontext():  # it would be the same one now and then
            done = project.run()
        assert done.returncode == 0, done.stdout + done.stderr
        port, told, _ = one(said(project))
        ports.append(port)
        assert told == port
        assert not answers(int(port))
        assert "http://127.0.0.1:{port}/v1" in done.stdout
        assert f":{port}" not in done.stdout
    assert ports[0] != ports[1]
    (run, _) = sorted((project.root / ".agentest" / "runs").iterdir())
    (log,) = (run / "servers").iterdir()
    assert log.name.endswith("-agent.log")
    assert log.read_text() == f"up {ports[0]} agent\n"


def test_agents_of_two_servers(project: Project) -> None:
    """Different servers have their own port, even with similar settings; an override shares its agent's."""
    configure(project, agent("one"), compare=[agent("two"), {"name": "three", "body": {"x": 1}}])
    project.scenario('scenario("a", turns=["hi"])')
    done = project.run()
    assert done.returncode == 0, done.stdout + done.stderr
    (compared,) = project.results["scenarios"]
    turns = {each["agent"]: each["conversations"][0]["turns"] for each in compared["agents"]}
    ports = {name: turn["agentMessage"].split()[0] for name, (turn,) in turns.items()}
    assert ports["one"] == ports["three"] != ports["two"]


def test_resume_ignores_the_port(project: Project) -> None:
    """A new port is not a change: --resume keeps finished conversations."""
    configure(project, agent(), concurrency=1)
    project.scenario('scenario("a", turns=["hi", "boom"])\nscenario("b", turns=["hi"])')
    assert project.run("--fail-fast").returncode == 1
    (first,) = said(project)
    with taken(int(first[0])):  # it would be the same one now and then
        assert project.run("--resume").returncode == 1
    (kept, held) = said(project)
    assert kept == first
    assert held[0] != first[0]


def test_a_server_that_does_not_start(project: Project) -> None:
    """The error has its last output with the port."""
    project.write("agent.py", "import sys; print('no luck at', sys.argv[1]); raise SystemExit(4)")
    project.config("", agent=agent())
    project.scenario('scenario("a", turns=["hi"])')
    done = project.run()
    assert done.returncode == 2
    assert "exited with status 4 before it was ready\nIts last output:\nno luck at " in done.stderr
