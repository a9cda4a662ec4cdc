"""Cached model answers of a project: a second run makes only new calls."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer, best
from project import Project

from agentest.models.port import ModelAnswer
from agentest.models.response_cache import FILE, ResponseCache
from agentest.testing import ScriptedAgent


class Bench:
    """A project with an agent and a model; `run` returns how often the model was called."""

    def __init__(self, project: Project, agent: ScriptedAgent, model: ModelServer) -> None:
        self.project, self.agent, self.model = project, agent, model
        self.stdout = ""
        self.configure()
        project.scenario('scenario("s", goal="Get help.")\nscenario("t", goal="Get more.")')

    def configure(self, **keys: Any) -> None:
        options = {"base_url": self.model.base_url, "api_key": "sk-secret-of-the-test"}
        options |= keys.pop("options", {})
        named = {"provider": "openai-compatible", "model": "m", "provider_options": options}
        self.project.config(
            self.agent.endpoint, **{"conversations_per_scenario": 2, "cache": True, **named, **keys}
        )

    def run(self, *options: str, env: dict[str, str] | None = None) -> int:
        self.model.received.clear()
        done = self.project.run(*options, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        self.stdout = done.stdout
        calls = len(self.model.received)
        assert self.project.results["summary"]["llmCalls"] == calls
        return calls


@pytest.fixture
def bench(project: Project) -> Iterator[Bench]:
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        yield Bench(project, agent, model)


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["one process", "workers"])
def test_a_second_identical_run_calls_no_model(bench: Bench, options: tuple[str, ...]) -> None:
    """Scores are equal, and console and results.json report the saved calls."""
    calls = bench.run(*options)
    assert calls > 0
    first = [each["averages"] for each in bench.project.results["scenarios"]]
    assert bench.run(*options) == 0
    assert [each["averages"] for each in bench.project.results["scenarios"]] == first
    assert f"cost       0 model calls; {calls} answered from the cache" in bench.stdout
    usage = bench.project.results["summary"]["usage"]["byRole"]
    assert sum(each["cachedCalls"] for each in usage.values()) == calls


def test_a_changed_scenario_costs_what_changed(bench: Bench) -> None:
    """Only the scenario whose prompts changed makes calls."""
    whole = bench.run()
    bench.project.scenario('scenario("s", goal="Get help.")\nscenario("t", goal="Get something else.")')
    assert bench.run() == whole / 2


def test_further_conversations_get_answers_of_their_own(bench: Bench) -> None:
    """Conversation 3 does not reuse answers of conversations 1 or 2."""
    whole = bench.run()
    assert bench.run("--conversations", "3") == whole / 2


@pytest.mark.parametrize(
    ("keys", "options", "env"),
    [
        ({"cache": False}, (), {}),
        ({}, ("--no-cache",), {}),
        ({}, (), {"CI": "true"}),
        ({"model": "other"}, (), {}),
        ({"judge": {"temperature": 0.5}, "user": {"temperature": 0.5}}, (), {}),
        ({"options": {"headers": {"X-Route": "other"}}}, (), {}),
        ({"options": {"body": {"reasoning_effort": "low"}}}, (), {}),
    ],
    ids=["cache: false", "--no-cache", "CI", "another model", "another temperature", "headers", "body"],
)
def test_answers_are_new(
    bench: Bench, keys: dict[str, Any], options: tuple[str, ...], env: dict[str, str]
) -> None:
    """Without the cache, or with another model or settings, every call is made."""
    whole = bench.run()
    bench.configure(**keys)
    assert bench.run(*options, env=env) == whole


def test_an_unusable_cache_costs_only_calls(bench: Bench) -> None:
    """The run continues without cached answers, and says so."""
    whole = bench.run()
    (bench.project.root / ".agentest" / FILE).write_bytes(b"not a database" * 1000)
    for name in ("-wal", "-shm"):
        (bench.project.root / ".agentest" / (FILE + name)).unlink(missing_ok=True)
    done = bench.project.run()
    assert done.returncode == 0
    assert (
        "stored model responses cannot be used (file is not a database): use --no-cache, or delete "
        in done.stderr
    )
    assert bench.project.results["summary"]["llmCalls"] == whole


def test_answers_survive_another_process_that_writes(tmp_path: Path) -> None:
    """While another process writes, questions are new and answers wait; nothing is told, nothing is lost."""
    told: list[str] = []
    cache = ResponseCache(tmp_path / "answers", str, told.append)
    other = sqlite3.connect(tmp_path / "answers", isolation_level=None)
    other.execute("begin exclusive")
    for number in range(60):
        cache.store(f"question {number}", ModelAnswer("yes"))
    busy = ResponseCache(tmp_path / "answers", str, told.append)
    assert busy.find("question 0") is None
    busy.close()
    other.execute("rollback")
    cache.close()
    again = ResponseCache(tmp_path / "answers", str, told.append)
    assert [again.find(f"question {number}") is None for number in range(60)] == [False] * 60
    assert told == []
    again.close()
    other.close()


def test_a_locked_file_is_not_to_be_deleted(tmp_path: Path) -> None:
    """A file that another process has locked is not used, without a wait of seconds."""
    told: list[str] = []
    other = sqlite3.connect(tmp_path / "answers", isolation_level=None)
    other.execute("begin exclusive")
    assert ResponseCache(tmp_path / "answers", str, told.append).find("question") is None
    other.close()
    (message,) = told
    assert message.endswith(f"(database is locked): another process writes to {tmp_path / 'answers'}")


def test_a_budget_that_stored_answers_do_not_need(bench: Bench) -> None:
    """The warning before the run does not announce that nothing will finish, because all of it does."""
    bench.run()
    done = bench.project.run("--max-llm-calls", "0")
    assert done.returncode == 0
    assert (
        "about 0 of 4 conversations will finish; agentest run --resume runs the rest; stored" in done.stderr
    )


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_files_of_runs_are_private(project: Project, umask: int) -> None:
    """Nobody else may read journals, reports, cached and recorded responses or locks."""
    project.root.chmod(0o755)
    folder = project.root / ".agentest"
    (folder / "runs").mkdir(parents=True)  # as earlier versions made it
    seen: dict[Path, int] = {}

    def look(_: object) -> str:
        every = [folder, *folder.rglob("*")]
        seen.update({path.relative_to(folder): path.stat().st_mode for path in every if path.exists()})
        return "sure"

    before = os.umask(umask)
    try:
        with ScriptedAgent(look) as agent, ModelServer(script=best) as model:
            bench = Bench(project, agent, model)
            bench.configure(reporters=["console", "json", "junit"])
            assert bench.run("--record") > 0
            bench.run()
            look(None)
    finally:
        os.umask(before)
    public = {str(path): oct(mode) for path, mode in seen.items() if mode & 0o077}
    assert public == {}
    names = {path.name for path in seen}
    assert {"journal.jsonl", "junit.xml", "results.json", "run.json", Path(FILE).name} <= names
    assert sum(stat.S_ISREG(mode) for mode in seen.values()) > 12
