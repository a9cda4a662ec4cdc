"""Selecting scenarios on the command line: by path, line and name, by last failures, in any order."""

from __future__ import annotations

import re

from project import Project

from agentest.testing import ScriptedAgent

A = """
scenario(
    "books a slot",
    turns=["hi"],
)

# nobody's line

for i in range(2):
    scenario(f"loop {i}", turns=["hi"])
scenario("fails", turns=[{"user_message": "hi", "expect": {"contains": "never"}}])
"""
PASSES = "scenario('fails', turns=['hi'])"


def listed(project: Project, *arguments: str) -> list[str]:
    """The names of the scenarios that would run."""
    done = project.run("--list", *arguments)
    assert done.returncode == 0, done.stderr
    return re.findall(r"py:\d+  (.+?)  scripted", done.stdout)


def problem(project: Project, *arguments: str) -> str:
    done = project.run("--list", *arguments)
    assert done.returncode == 2
    return done.stderr


def test_paths_lines_and_names(project: Project) -> None:
    """A path selects its scenarios, a line its call, `::` a name; a wrong one gets a suggestion."""
    project.config("http://127.0.0.1:9/v1")
    project.scenario(A, "tests/a.sim.py")
    project.scenario('scenario("other", turns=["hi"])', "tests/b.sim.py")
    project.scenario('scenario("odd", turns=["hi"])', "odd.py")
    assert listed(project, "tests/a.sim.py:5", "tests/b.sim.py") == ["books a slot", "other"]
    assert listed(project, "tests/a.sim.py:10") == ["loop 0", "loop 1"]
    assert listed(project, "tests/a.sim.py:11:3") == ["loop 0", "loop 1"]
    assert listed(project, "tests/a.sim.py::fails") == ["fails"]
    assert listed(project, "odd.py") == ["odd"]
    assert listed(project, "tests", "--scenario", "=fails") == ["fails"]
    assert "line 8 of a.sim.py is in no scenario; the nearest is 'loop 0' at line 11" in problem(
        project, "tests/a.sim.py:8"
    )
    assert "no scenario in a.sim.py is named 'fail'; the nearest is 'fails'" in problem(
        project, "tests/a.sim.py::fail"
    )
    assert "there is no such file or folder; the nearest is 'tests/b.sim.py'" in problem(
        project, "tests/c.sim.py"
    )
    assert "no scenario matches --scenario '=fail'; the nearest is 'fails'" in problem(
        project, "--scenario", "=fail"
    )


REFUSED = """
scenario("fine", turns=["hi"])
scenario("no aim")
scenario(
    "typo",
    turns=["hi"],
    profil="x",
)
"""


def test_refused_scenarios(project: Project) -> None:
    """All refused scenarios of a file are errored, and the others run; selections apply to them."""
    project.scenario(REFUSED)
    with ScriptedAgent(lambda _: "done") as agent:
        project.config(agent.endpoint)
        done = project.run()
    assert done.returncode == 2
    statuses = {each["name"]: (each["status"], each["line"]) for each in project.results["scenarios"]}
    assert statuses == {"fine": ("passed", 3), "no aim": ("errored", 4), "typo": ("errored", 5)}
    assert "! has neither `goal` nor `turns`" in done.stdout
    assert "a.sim.py:4  no aim\n" in done.stdout
    assert "! unknown option `profil`; did you mean `profile`" in done.stdout
    assert "a.sim.py:5  typo\n" in done.stdout
    everything = project.run("--list")
    assert everything.returncode == 2
    assert "fine" in everything.stdout
    assert "scenario 'no aim'" in everything.stderr
    assert "scenario 'typo'" in everything.stderr
    assert listed(project, "--scenario", "=fine") == listed(project, "a.sim.py:3") == ["fine"]
    for choice in (["a.sim.py:7"], ["a.sim.py::typo"], ["--scenario", "typo"]):
        only = project.run("--list", *choice)
        assert only.returncode == 2
        assert "scenario 'typo'" in only.stderr
        assert "no aim" not in only.stderr


def test_last_failed_uses_the_latest_verdicts(project: Project) -> None:
    """The latest verdict of each scenario counts, from any run; if none failed, all run."""
    project.scenario(A)
    project.scenario(
        'scenario("also", turns=[{"user_message": "hi", "expect": {"contains": "no"}}])', "b.sim.py"
    )
    with ScriptedAgent(lambda _: "done") as agent:
        project.config(agent.endpoint)
        first = project.run("--last-failed")
        assert "--last-failed: no earlier run is stored, so all run (5)" in first.stderr
        assert listed(project, "--last-failed") == ["fails", "also"]
        project.run("b.sim.py")  # a run of one alone leaves the other's verdict
        assert listed(project, "--last-failed") == ["fails", "also"]
        project.scenario('scenario("also", turns=["hi"])\nscenario("new", turns=["hi"])', "b.sim.py")
        project.run("--scenario", "=also")
        again = project.run("--last-failed")
    assert again.returncode == 1
    assert "--last-failed: 1 of 6 scenarios runs, which failed or errored when it last ran" in again.stderr
    assert "left out: 'new', which no stored run has" in again.stderr
    assert listed(project, "--failed-first")[:2] == ["fails", "books a slot"]
    shuffled = listed(project, "--shuffle", "7")
    assert shuffled == listed(project, "--shuffle", "7")
    assert shuffled != listed(project)
    assert sorted(shuffled) == sorted(listed(project))
    assert listed(project, "--failed-first", "--shuffle", "b.sim.py", "--failed-first") != []
    assert "so all selected run (2)" in project.run("--list", "--last-failed", "b.sim.py").stderr
