"""Sharding a run over clean checkouts, and merging the shards to an equal run."""

from __future__ import annotations

import json
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_server import Answer, ModelServer, Received, best, error, model_keys
from project import DEADLINE_S, Project, wait_until

from agentest.testing import ScriptedAgent, tool_call

SCENARIOS = """
for i in range(4):
    scenario(f"loop {3 - i}", turns=[{"user_message": "hi", "expect": {"contains": "yes"}}],
             conversations_per_scenario=i + 1)
scenario("calls", turns=["call"], tools={"book": 1}, trajectory={"expected": ["book"]})
scenario("holds", turns=["hi"], tools={"book": 1}, trajectory={"forbidden": ["book"]})
scenario("fails", turns=[{"user_message": "hi", "expect": {"contains": "no"}}])
scenario("goal", goal="Get help.", conversations_per_scenario=2)
scenario("not now", turns=["hi"], skip="later")
"""
ENDS = {"startedAt", "durationMs", "latencyMs", "firstTokenMs", "slowestTurns"}


def answer(body: dict[str, Any]) -> Any:
    last = body["messages"][-1]
    return tool_call("book") if last["role"] == "user" and last["content"] == "call" else "yes"


def comparable(value: Any) -> Any:
    """A document without times."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in ENDS and not key.endswith("Ms")}
        return {key: comparable(each) for key, each in kept.items()}
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return re.sub(r"/\S*/", "", value) if isinstance(value, str) else value  # where the project is


def runs(project: Project) -> list[Path]:
    return sorted(record.parent for record in (project.root / ".agentest" / "runs").glob("*/run.json"))


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def checkouts(project: Project, number: int) -> Iterator[Project]:
    """Copies of the project without its runs."""
    for n in range(number):
        folder = project.root / "checkouts" / str(n)
        shutil.copytree(
            project.root,
            folder,
            ignore=shutil.ignore_patterns("checkouts", "runs", "artifacts", "results.json"),
        )
        yield Project(folder)


def uploaded(checkout: Project, project: Project) -> None:
    """Copy a job's artifact to where the runs are merged."""
    name = f"artifacts/{checkout.root.name}"
    shutil.copytree(checkout.root / ".agentest" / "runs", project.root / name)


@pytest.mark.parametrize("agents", [1, 2], ids=["one agent", "a comparison"])
def test_shards_merged_are_the_whole_run(project: Project, agents: int) -> None:
    """Three jobs on clean checkouts, one with workers, one shuffled, merge to the results, verdict, status
    and usage of one run, with recorded models, skipped scenarios and broken files."""
    project.scenario(SCENARIOS)
    project.write("broken.sim.py", "import nothing_of_the_kind")
    with ScriptedAgent(answer) as agent, ModelServer(script=best) as model:
        others = [{"name": "other"}] if agents == 2 else []
        at = model_keys(model)
        project.config(agent.endpoint, compare=others, **at)
        whole = project.run("--record")
        expected = comparable(project.results)
        for n, checkout in enumerate(checkouts(project, 3), start=1):
            more = {1: (), 2: ("--workers", "2"), 3: ("--shuffle",)}[n]
            done = checkout.run("--replay", "--shard", f"{n}/3", *more)
            assert f"--shard {n}/3:" in done.stderr, done.stderr
            assert "split by numbers of conversations" in done.stderr
            uploaded(checkout, project)
    junit = ("--reporter", "junit=all.xml")
    merged = project.agentest("merge", "artifacts", "--output-dir", "merged", *junit)
    assert merged.returncode == whole.returncode == 1, merged.stderr
    assert "agentest: failed: " in merged.stderr
    found = json.loads((project.root / "merged" / "results.json").read_text())
    assert comparable(found) == expected
    assert "broken.sim.py" in (project.root / "all.xml").read_text()
    [kept] = (project.root / "merged" / "runs").iterdir()
    assert record(kept)["kind"] == "merge"
    told = json.loads(project.agentest("compare", str(kept), "latest", "--format", "json").stdout)
    assert not [each for each in told["scenarios"] if each["change"] in ("regressed", "new", "gone")]
    parts = (project.root / "artifacts").glob("*/*/journal.jsonl")
    assert conversations(kept / "journal.jsonl") == {line for path in parts for line in conversations(path)}


def conversations(journal: Path) -> set[bytes]:
    return {line for line in journal.read_bytes().splitlines() if line.startswith(b'{"type": "conversation"')}


@pytest.fixture
def split(project: Project) -> Project:
    """A project with three shards of a run, one of them empty."""
    project.scenario('scenario("a", turns=["a"], conversations_per_scenario=2)\nscenario("b", turns=["b"])')
    with ScriptedAgent(["yes"]) as agent:
        project.config(agent.endpoint, reporters=["console"])
        for n in (1, 2, 3):
            done = project.run("--shard", f"{n}/3")
            assert done.returncode == 0, done.stderr
    assert "there is nothing to do in this part" in done.stderr
    assert "There is nothing to do in shard 3/3." in done.stdout
    return project


def merged(project: Project, *arguments: str) -> tuple[int, str]:
    done = project.agentest("merge", *arguments)
    return done.returncode, done.stderr


def changed(folder: Path, **keys: Any) -> None:
    """Change the record of a run."""
    found = record(folder)
    (folder / "run.json").write_text(json.dumps({**found, **keys}))


def test_incomplete_shards_are_refused(split: Project) -> None:
    """Missing and duplicate shards, incompatible runs and cut journals each give an error, and nothing is
    written; --allow-missing makes the merged run errored."""
    one, two, three = (folder.name for folder in runs(split))
    first, second, _ = runs(split)
    table = {
        "shard 3/3 is missing, with 0 of 2 scenarios": (one, two),
        f"run {one} (shard 1/3) is named twice; a run cannot be merged with itself": (one, one, two, three),
        "found no run, file or folder 'nine'": ("nine", one),
        "a.sim.py": ("a.sim.py",),
    }
    for message, arguments in table.items():
        status, told = merged(split, *arguments)
        assert (status, message in told, told.count("\n")) == (2, True, 1), told
    known = record(second)
    for message, keys in {
        "different runs: scenarios, their agents": {"part": {**known["part"], "plan": "x"}},
        "different runs: the contents of files": {"part": {**known["part"], "madeOf": "x"}},
        "not of one commit": {"commit": "abc"},
        "not of one version of Agentest": {"version": "0.0.1"},
        "not of one kind": {"kind": "eval"},
        "not of one model of the judge": {"models": {"judge": "m"}},
        "shards of different splits": {"part": {**known["part"], "shard": {"number": 2, "of": 4}}},
        f"shard 1/3 is there twice: {one} and {two}": {
            "part": {**known["part"], "shard": {"number": 1, "of": 3}}
        },
        "no run.json that can be read": {"kind": 5},
    }.items():
        changed(first, commit="abd")
        changed(second, **{**known, **keys})
        status, told = merged(split, one, two, three)
        assert (status, message in told, told.count("\n")) == (2, True, 1), told
    changed(first, commit=None)
    changed(second, **known)
    (second / "journal.jsonl").write_bytes((second / "journal.jsonl").read_bytes()[:-9])
    assert "is not whole" in merged(split, one, two, three)[1]
    assert len(runs(split)) == 3
    status, told = merged(split, "--allow-missing", one, three, "--reporter", "junit")
    assert (status, "errored: 1 passed" in told) == (2, True), told
    assert split.results["stopped"] == "shard 2/3 is missing, with 1 of 2 scenarios"


def test_the_latest_durations_split_a_run(project: Project) -> None:
    """The latest complete run's durations split a run on every machine that has it; if some machines lack it
    and scenarios are lost or duplicated, the merge says so."""
    project.scenario("\n".join(f'scenario("{name}", turns=["{name}"])' for name in "abc"))
    with ScriptedAgent(["yes"]) as agent:
        project.config(agent.endpoint, reporters=["console", "json"])
        assert project.run().returncode == 0
        whole = project.results
        for each, took in zip(whole["scenarios"], (1000, 2000, 9000), strict=True):
            each["conversations"][0]["time"]["totalMs"] = took
        project.write("durations.json", json.dumps(whole))
        by = ("--shard-by", "durations.json")
        listed = [project.run("--shard", f"{n}/2", *by, "--list").stdout for n in (1, 2)]
        assert [re.findall(r"  (\w)  scripted", text) for text in listed] == [["c"], ["a", "b"]]
        counted = project.run("--shard", "1/2", "--shard-by", "counts", "--list")
        assert re.findall(r"  (\w)  scripted", counted.stdout) == ["a", "c"]
        assert (
            f"split by durations of run {runs(project)[0].name}"
            in project.run("--shard", "1/2", "--list").stderr
        )
        project.run("--shard", "1/2", *by)
        project.run("--shard", "2/2", "--shard-by", "counts")
    status, told = merged(project, *(folder.name for folder in runs(project)[1:]))
    assert (status, "overlap" in told or "in none of the shards" in told) == (2, True), told
    assert "was split by durations of run" in told
    assert "by numbers of conversations" in told
    assert "--shard-by decides how" in project.run("--shard-by", "counts").stderr
    assert "no duration of a conversation" in project.run("--shard", "1/2", "--shard-by", "a.sim.py").stderr


def test_a_killed_shard_is_resumed_as_that_shard(project: Project) -> None:
    """Merged with its resumed run, the killed shard is ignored; merged alone, it is errored."""
    project.scenario("\n".join(f'scenario("s{n}", turns=["x", "x"])' for n in range(4)))
    waiting = threading.Event()
    asked: list[str] = []

    def slow(body: dict[str, Any]) -> str:
        asked.append("")
        if len(asked) == 4:
            waiting.set()
            threading.Event().wait(DEADLINE_S)
        return "yes"

    with ScriptedAgent(slow) as agent:
        project.config(agent.endpoint, reporters=["json"], concurrency=1)
        process = project.start("--shard", "1/2")
        wait_until(lambda: waiting.is_set() or process.poll() is not None)
        wait_until(lambda: len(project.finished) == 1)  # judged, while the next one asks
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)
        assert project.run("--shard", "2/2").returncode == 0
        assert "was shard 1/2" in project.run("--resume", runs(project)[0].name, "--shard", "2/2").stderr
        killed, other = runs(project)
        status, told = merged(project, killed.name, other.name, "--reporter", "json")
        assert (status, "3 passed, 1 errored" in told) == (2, True), told
        assert project.results["stopped"] == "killed before its end"
        again = project.run("--resume", killed.name)
        assert "--shard 1/2: 2 of 4 scenarios" in again.stderr
        assert "1 of 2 conversations of run" in again.stderr
    shutil.rmtree(runs(project)[2])
    status, told = merged(project, ".agentest", "--reporter", "json")
    assert (status, f"{killed.name} (shard 1/2): left out" in told) == (0, True), told
    assert project.results["summary"]["passedScenarios"] == 4


def test_merged_runs_list_each_quota_once(project: Project) -> None:
    """What the parts used of a quota is added up."""
    project.scenario('scenario("a", goal="Get help.")\nscenario("b", goal="Get help.")')

    def answer(received: Received) -> Answer:
        if len(model.received) % 4 == 0:
            return error(429)
        return best(received)

    with ScriptedAgent(["yes"]) as agent, ModelServer(script=answer) as model:
        project.config(agent.endpoint, reporters=["json"], **model_keys(model))
        for name in "ab":
            project.run("--scenario", f"={name}")
        assert merged(project, *(folder.name for folder in runs(project)))[0] == 0
    [quota] = project.results["summary"]["quotas"]
    assert quota["requests"] == len(model.received)
    assert quota["refused"] == len(model.received) // 4


def test_runs_without_a_scenario_in_common_are_merged(project: Project) -> None:
    """Runs that are not shards can be merged if they do not overlap."""
    project.scenario('scenario("a", turns=["a"])\nscenario("b", turns=["b"])')
    with ScriptedAgent(lambda body: str(body["messages"][-1]["content"])) as agent:
        project.config(agent.endpoint, reporters=["json"])
        for name in "ab":
            project.run("--scenario", f"={name}")
        first, second = (folder.name for folder in runs(project))
    assert "whole: there is nothing to merge" in merged(project, first)[1]
    assert merged(project, second, first)[0] == 0
    assert [each["name"] for each in project.results["scenarios"]] == ["a", "b"]
    third = runs(project)[-1].name
    assert "overlap: both have 'a'" in merged(project, first, third)[1]
    assert "passed (merge)" in project.agentest("runs").stdout
