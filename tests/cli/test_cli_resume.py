"""Resuming an interrupted or killed run: nothing is lost or counted twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from project import DEADLINE_S, Project, wait_until

from agentest.testing import ScriptedAgent

SCENARIOS = """
for i in range(4):
    scenario(f"s{i}", turns=[f"go {i}", "on"], conversations_per_scenario=3)
scenario("fails", turns=[{"user_message": "bad", "expect": {"contains": "never said"}}])
"""
PLANNED = 13


class Gate:
    """An agent that admits this many requests, and blocks the others until it is opened."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.left = 10_000
        self.waiting = threading.Event()
        self._lock = threading.Lock()

    def answer(self, body: dict[str, Any]) -> str:
        with self._lock:
            self.left -= 1
            held = self.left < 0
            text = body["messages"][-1]["content"]
            if not held:
                self.asked[text] += 1
        if held:
            self.waiting.set()
            threading.Event().wait(DEADLINE_S)
        return f"done {text}"

    def let(self, requests: int) -> None:
        self.left = requests
        self.waiting.clear()


def journals(project: Project) -> list[Path]:
    return sorted((project.root / ".agentest" / "runs").glob("*/journal.jsonl"))


def held(journal: Path) -> Counter[tuple[str, int]]:
    """Count how often each conversation is in a journal."""
    lines = [json.loads(line) for line in journal.read_bytes().split(b"\n")[:-1]]
    return Counter((line["scenario"], line["number"]) for line in lines if line["type"] == "conversation")


def end(process: subprocess.Popen[str], number: signal.Signals) -> int:
    process.send_signal(number)
    process.communicate(timeout=DEADLINE_S)
    return process.returncode


def cut_short(
    project: Project,
    gate: Gate,
    requests: int,
    *arguments: str,
    by: signal.Signals = signal.SIGKILL,
    finished: int = 0,
) -> Counter[tuple[str, int]]:
    """End a run after this many requests, when this many conversations are in the journal; the next one is
    running while the last is judged. Return the journal's content."""
    before = len(journals(project))
    gate.let(requests)
    process = project.start(*arguments)
    wait_until(lambda: gate.waiting.is_set() or process.poll() is not None)
    wait_until(lambda: not finished or len(held(journals(project)[-1])) >= finished)
    end(process, by)
    gate.let(10_000)
    found = journals(project)
    return held(found[-1]) if len(found) > before else Counter()


def counted(project: Project) -> dict[str, int]:
    return {each["name"]: len(each["conversations"]) for each in project.results["scenarios"]}


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.slow
def test_kills_and_resumes_lose_nothing(project: Project, workers: str) -> None:
    """After any number of kills, the last journal has each conversation once, and the verdict covers all."""
    chance, gate = random.Random(workers), Gate()
    project.scenario(SCENARIOS)
    known: Counter[tuple[str, int]] = Counter()
    with ScriptedAgent(gate.answer) as agent:
        project.config(agent.endpoint, concurrency=2)
        for attempt in range(4):
            arguments = ["--workers", workers, *(["--resume"] if attempt else [])]
            by = chance.choice([signal.SIGKILL, signal.SIGINT])
            now = cut_short(project, gate, chance.randint(2, 7), *arguments, by=by)
            if now:
                assert set(now.values()) == {1}
                assert not set(known) - set(now)
                known = now
        before = sum(gate.asked.values())
        done = project.run("--resume", "--workers", workers)
        requests_of_the_rest = sum(gate.asked.values()) - before
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{len(known)} of {PLANNED} conversations of run" in done.stderr
    left = {("fails", 1): 1, **{(f"s{i}", n): 2 for i in range(4) for n in (1, 2, 3)}}
    assert requests_of_the_rest == sum(needed for place, needed in left.items() if place not in known)
    final = held(journals(project)[-1])
    assert set(final) == set(left)
    assert set(final.values()) == {1}
    assert counted(project) == {"s0": 3, "s1": 3, "s2": 3, "s3": 3, "fails": 1}
    assert project.results["summary"]["failedScenarios"] == 1
    assert project.results["interrupted"] is False


def test_changed_scenarios_run_again(project: Project) -> None:
    """The change is named; finished scenarios are reported again without calling the agent."""
    gate = Gate()
    project.scenario('scenario("a", turns=["a"], conversations_per_scenario=2)')
    project.scenario('scenario("b", turns=["b"])\nscenario("c", turns=["c", "c"])', "b.sim.py")
    with ScriptedAgent(gate.answer) as agent:
        project.config(agent.endpoint, concurrency=1)
        assert len(cut_short(project, gate, 3, finished=3)) == 3
        project.scenario('scenario("a", turns=["a2"])')
        done = project.run("--resume", "--concurrency", "3")
        assert "1 of 4 conversations of run" in done.stderr
        assert "1 scenario changed since, or what it is made of: run anew" in done.stderr
        assert gate.asked == {"a": 2, "b": 1, "a2": 1, "c": 2}
        assert done.returncode == 0
        project.config(agent.endpoint, concurrency=2, max_turns=3)
        again = project.run("--resume")
        assert "4 of 4" not in again.stderr
        assert "nothing is left to run" in again.stderr
        first = journals(project)[0].parent.name
        project.config(agent.endpoint, request_timeout_ms=20_000)
        anew = project.run("--resume", first)
        assert "0 of 4 conversations" in anew.stderr
    again = project.run("--resume")  # with nobody at the endpoint
    assert again.returncode == 0, again.stderr
    assert "3 passed" in again.stdout
    assert counted(project) == {"a": 1, "b": 1, "c": 1}


def test_a_run_resumes_with_its_number_of_conversations(project: Project) -> None:
    """A failed conversation stays failed, even if without `--conversations` it would not be planned."""
    gate = Gate()
    project.scenario('scenario("a", turns=["a"], expect={"never_says": "done"})\nscenario("b", turns=["b"])')
    with ScriptedAgent(gate.answer) as agent:
        project.config(agent.endpoint, concurrency=1)
        failed = project.run("--conversations", "3")
        again = project.run("--resume", journals(project)[0].parent.name)
        assert (failed.returncode, again.returncode) == (1, 1)
    assert "6 of 6 conversations of run" in again.stderr
    assert counted(project) == {"a": 3, "b": 3}


def test_a_filtered_run_resumes_with_its_filters(project: Project) -> None:
    """Without filters the original selection runs; with others, a message lists what is left out."""
    gate = Gate()
    project.scenario('scenario("a", turns=["a"])\nscenario("b", turns=["b"])\nscenario("c", turns=["c"])')
    with ScriptedAgent(gate.answer) as agent:
        project.config(agent.endpoint, concurrency=1)
        cut_short(project, gate, 1, "--scenario", "=a", "--scenario", "=b", by=signal.SIGINT, finished=1)
        listed = project.run("--resume", "--list")
        done = project.run("--resume", "a.sim.py::a")
        assert "left out, as it is not selected now: 'b'" in done.stderr
        assert "nothing is left to run" in done.stderr
        first = journals(project)[0].parent.name
        project.run("--resume", first)
    assert "a.sim.py:3" in listed.stdout
    assert "  c  " not in listed.stdout
    assert counted(project) == {"a": 1, "b": 1}
    assert gate.asked == {"a": 1, "b": 1}


def test_runs_that_cannot_be_resumed(project: Project) -> None:
    """Without a run everything runs; an unknown, damaged or active run is refused with one message."""
    gate = Gate()
    project.scenario('scenario("a", turns=["a"])')
    with ScriptedAgent(gate.answer) as agent:
        project.config(agent.endpoint)
        first = project.run("--resume")
        assert first.returncode == 0
        assert "no stored run can be resumed, so all run (1)" in first.stderr
        (journal,) = journals(project)
        journal.unlink()
        (journal.parent / "results.json").unlink()
        lost = f"run {journal.parent.name} ended before its journal began: nothing was lost, so all run (1)"
        assert lost in project.run("--resume").stderr
        unknown = project.run("--resume", "2020")
        assert unknown.returncode == 2
        assert "found no run, file or folder '2020'" in unknown.stderr
        gate.let(0)
        running = project.start()
        assert gate.waiting.wait(DEADLINE_S)
        refused = project.run("--resume", journals(project)[-1].parent.name)
        end(running, signal.SIGKILL)
        assert refused.returncode == 2
        assert "still in progress" in refused.stderr
        journal = journals(project)[-1]
        journal.write_bytes(b'{"type":"run","schemaVersion":1')
        other = project.run("--resume", journal.parent.name)
        assert other.returncode == 2
        assert "is not a journal of this version of Agentest: line 1: is not whole" in other.stderr
        both = project.run("--resume", "--last-failed")
        assert both.returncode == 2
