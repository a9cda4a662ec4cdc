"""Stored runs are listed, shown and used on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from project import Project

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
    """A project with two runs: the first only with console output, the second with JSON."""
    project.scenario(SCENARIOS)
    with ScriptedAgent(["yes"]) as agent:
        project.config(agent.endpoint)
        for name, arguments in (("one", ("--scenario", "says yes")), ("all", ("--verbose",))):
            done = project.run(*arguments, *(("--reporter", "console") if name == "one" else ()))
            project.write(f"{name}.txt", done.stdout)
    return project


def ids(project: Project) -> list[str]:
    return sorted(path.name for path in (project.root / ".agentest" / "runs").iterdir())


def without_header(text: str) -> list[str]:
    """Return the output without its first lines, the session ids, which are not stored, and commands.

    It is sorted, because scenarios are printed as they finish but shown in file order.
    """
    lines = text.partition("\n\n")[2].splitlines()
    left_out = ("session ", "rerun ")  # a stored run has no command that runs it again
    return sorted(line for line in lines if not line.strip().startswith(left_out))


def test_a_past_run_is_shown_as_it_was(held: Project) -> None:
    """`show` repeats the console output of the latest or any run, or of some scenarios."""
    first, second = ((held.root / f"{name}.txt").read_text() for name in ("one", "all"))
    assert without_header(held.agentest("show", "--verbose").stdout) == without_header(second)
    assert without_header(held.agentest("show", ids(held)[0]).stdout) == without_header(first)
    assert "expected (" in second
    one = held.agentest("show", "latest", "--scenario", "=says yes").stdout
    assert "says yes" in one
    assert "says no  " not in one
    assert "1 passed (1 scenario" in one


def test_runs_are_listed(held: Project) -> None:
    """The list starts with the latest and has their outcome; JSON is available."""
    lines = held.agentest("runs").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["RUN", *reversed(ids(held))]
    assert re.search(r" failed +1 +1 +0 ", lines[1])
    assert re.search(r" passed +1 +0 +0 ", lines[2])
    listed = json.loads(held.agentest("runs", "--format", "json").stdout)
    assert [(run["id"], run["state"]) for run in listed] == [
        (ids(held)[1], "failed"),
        (ids(held)[0], "passed"),
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "yesterday"), "found no run, file or folder 'yesterday'; the newest are"),
        (("show", "20"), "begins 2 runs"),
        (("show", "--scenario", "says yess"), "did you mean `says yes`?"),
        (("show", "a.sim.py"), "a.sim.py is not JSON"),
        (("show", "none.json"), "none.json cannot be read: No such file"),
        (("judge", "yesterday"), "found no run, file or folder 'yesterday'"),
    ],
)
def test_a_run_that_cannot_be_shown(held: Project, arguments: tuple[str, ...], says: str) -> None:
    """One message, and exit status 2."""
    done = held.agentest(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_damaged_run_is_refused(held: Project) -> None:
    """Without a whole journal, a run is read from results.json, whose errors are those of the schema."""
    path = held.root / ".agentest" / "runs" / ids(held)[-1] / "results.json"
    whole = json.loads(path.read_text())
    path.write_text("[]")
    assert held.agentest("show").returncode == 0
    path.write_text(json.dumps(whole))
    journal = path.with_name("journal.jsonl")
    for damage in (b"", journal.read_bytes()[:-10], b"{}\n"):
        journal.write_bytes(damage)
        assert "1 failed, 1 passed" in held.agentest("show").stdout
    for damaged in ([], {**whole, "scenarios": [{"name": 3}]}, {**whole, "mode": "other"}):
        path.write_text(json.dumps(damaged))
        done = held.agentest("show")
        assert done.returncode == 2
        assert "is not a results.json or a journal of this version of Agentest" in done.stderr


def test_a_project_without_runs(project: Project) -> None:
    """The message says that there are none, even if the configuration is invalid."""
    project.write("agentest.config.yaml", "agent: {endpoint: '${NOWHERE}'}\n")
    assert "no run is stored in" in project.agentest("runs").stdout
    done = project.agentest("show")
    assert done.returncode == 2
    assert "no run is stored in" in done.stderr


def test_the_latest_results_stay(held: Project) -> None:
    """A run without results.json leaves the published one; each run keeps its own."""
    folder = held.root / ".agentest"
    before = (folder / "results.json").read_bytes()
    with ScriptedAgent(["yes"]) as agent:
        held.config(agent.endpoint, reporters=["console"], keep_runs=2)
        assert held.run("--scenario", "says yes").returncode == 0
    assert (folder / "results.json").read_bytes() == before
    kept = [json.loads((folder / "runs" / id / "results.json").read_text()) for id in ids(held)]
    assert [len(run["scenarios"]) for run in kept] == [2, 1]
    assert Path(folder / "journal.jsonl").samefile(folder / "runs" / ids(held)[-1] / "journal.jsonl")


def test_a_run_is_judged_by_its_id(held: Project) -> None:
    judged = held.agentest("judge", ids(held)[0])
    assert judged.returncode == 0, judged.stdout + judged.stderr
