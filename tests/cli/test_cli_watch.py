"""`agentest run --watch` on a terminal: what a change runs, and the keys."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from project import Project, wait_until
from terminal import Terminal

from agentest.cli.watch import ImportGraph
from agentest.testing import ScriptedAgent, tool_call

WAITING = "agentest: waiting for changes (f failed, a all, p pattern, q quit, h help)"


@contextmanager
def watching(project: Project, agent: ScriptedAgent, **settings: object) -> Iterator[Terminal]:
    project.config(agent.endpoint, **settings)
    terminal = Terminal(project.root, "run", "--watch")
    try:
        yield terminal
    finally:
        terminal.close()


def asked(agent: ScriptedAgent) -> list[str]:
    """The messages since the last call."""
    messages = sorted(request["messages"][-1]["content"] for request in agent.requests)
    agent.requests.clear()
    return messages


def three_scenarios(project: Project) -> None:
    project.write("deep.py", 'TEXT = "one"\n')
    project.write("helper.py", "from deep import TEXT\n")
    project.write("rows.csv", "ask\nrow\n")
    project.scenario('from helper import TEXT\nscenario("alpha", turns=[TEXT])', "a.sim.py")
    project.scenario('scenario("beta", turns=["beta"])', "b.sim.py")
    project.scenario('scenario.each("rows.csv", name="gamma {ask}", turns=["{ask}"])', "c.sim.py")


def test_a_change_runs_what_it_affects_and_what_failed(project: Project) -> None:
    """A helper runs its scenarios, data its rows, the configuration all; failed ones run, too."""
    three_scenarios(project)
    with ScriptedAgent(lambda _: "y") as agent, watching(project, agent) as terminal:
        terminal.wait_for(WAITING)
        assert asked(agent) == ["beta", "one", "row"]
        project.write("deep.py", 'TEXT = "two"\n')
        assert "deep.py changed: running again" in terminal.wait_for(WAITING)
        assert asked(agent) == ["two"]
        project.write("rows.csv", "ask\nother\n")
        terminal.wait_for(WAITING)
        assert asked(agent) == ["other"]
        project.scenario("this is no Python", "b.sim.py")
        assert "SyntaxError" in terminal.wait_for(WAITING)
        project.scenario('scenario("delta", turns=["delta"])', "d.sim.py")
        assert "runs 2 of 4 scenarios" in terminal.wait_for(WAITING)
        assert asked(agent) == ["delta"]
        (project.root / "b.sim.py").unlink()
        assert "runs none of 3 scenarios" in terminal.wait_for(WAITING)
        project.config(agent.endpoint, concurrency=1)
        terminal.wait_for(WAITING)
        assert asked(agent) == ["delta", "other", "two"]


def test_keys_choose_what_runs(project: Project) -> None:
    """Pattern, again, failed, all, page, help; quit exits with the last status and restores the terminal."""
    three_scenarios(project)
    project.scenario('scenario("beta", turns=["beta"], expect={"says": "x"})', "b.sim.py")
    with ScriptedAgent(lambda _: "y") as agent, watching(project, agent) as terminal:
        terminal.wait_for(WAITING)
        assert terminal.has_single_keys
        asked(agent)
        terminal.press("pALPX\x7f\r")
        terminal.wait_for(WAITING)
        assert asked(agent) == ["one"]
        terminal.press("\r")
        terminal.wait_for(WAITING)
        assert asked(agent) == ["one"]
        terminal.press("p\x1b")
        terminal.press("f")
        assert "1 still failing" in terminal.wait_for(WAITING)
        assert asked(agent) == ["beta"]
        terminal.press("h")
        terminal.wait_for("Enter the same again")
        terminal.press("a")
        terminal.wait_for(WAITING)
        assert asked(agent) == ["beta", "one", "row"]
        terminal.press("q")
        assert terminal.end() == 1
        assert not terminal.has_single_keys


def test_scenarios_without_calls(project: Project) -> None:
    """A change that leaves others out picks scenarios; what failed for lack of calls fails again."""
    greets = 'tools={"look": 1}, expect={"says": "y"}'
    project.scenario(f'scenario("alpha", turns=["a"], {greets})', "a.sim.py")
    project.scenario(f'scenario("looks", turns=["Look."], {greets})', "b.sim.py")
    project.scenario('scenario("plain", turns=["p"], expect={"says": "y"})', "c.sim.py")

    def look(body: dict[str, Any]) -> Any:
        is_asked = body["messages"][-1]["content"] == "Look."
        return tool_call("look") if is_asked else "y"

    with ScriptedAgent(look) as agent, watching(project, agent, strict=True) as terminal:
        assert "no-call-seen" not in terminal.wait_for(WAITING)
        project.scenario(f'scenario("alpha", turns=["b"], {greets})', "a.sim.py")
        assert "no-call-seen (-v" in terminal.wait_for(WAITING)
        project.scenario(f'scenario("quiet", turns=["q"], {greets})', "b.sim.py")
        assert "no-call-seen (-v" in terminal.wait_for(WAITING)
        terminal.press("a")
        assert "! no-call-seen" in terminal.wait_for(WAITING)
        for keys in ("f", "\r", "palpha\r"):
            terminal.press(keys)
            assert "! no-call-seen" in terminal.wait_for(WAITING)
        terminal.press("q")
        assert terminal.end() == 2


SLOW = """
import asyncio
from pathlib import Path
async def handler(messages, ctx):
    name = messages[-1]["content"]
    with Path("calls").open("a") as file:
        file.write(name + "\\n")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return "y"
config = {"agent": {"type": "custom", "handler": handler}, "strict": False}
"""


def test_a_run_takes_changes_and_one_key_afterwards(project: Project) -> None:
    """A change or key during a run takes effect after it; `q` stops it."""
    three_scenarios(project)
    project.write("agentest.config.py", SLOW)
    calls = project.root / "calls"

    def called() -> list[str]:
        return sorted(calls.read_text().split()) if calls.exists() else []

    terminal = Terminal(project.root, "run", "--watch")
    try:
        wait_until(lambda: called() == ["beta", "one", "row"])
        project.write("deep.py", 'TEXT = "two"\n')
        terminal.press("pa")
        (project.root / "go").touch()
        terminal.wait_for(WAITING)
        calls.unlink()
        (project.root / "go").unlink()
        terminal.wait_for("pattern: ")
        terminal.press("beta\r")
        wait_until(lambda: called() == ["beta", "two"])
        terminal.press("q")
        terminal.wait_for("stopping")
        assert terminal.end() == 130
        assert not terminal.has_single_keys
    finally:
        terminal.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_restores_the_terminal(project: Project, number: int) -> None:
    """Ctrl-C and SIGTERM end a waiting watch, even while a resumed job sets the terminal."""
    three_scenarios(project)
    with ScriptedAgent(lambda _: "y") as agent, watching(project, agent) as terminal:
        terminal.wait_for(WAITING)
        os.kill(terminal.process.pid, signal.SIGCONT)
        os.kill(terminal.process.pid, number)
        assert terminal.end() == 130
        assert not terminal.has_single_keys


def test_imports_are_found_in_the_source(tmp_path: Path) -> None:
    """Packages, relative and nested imports, objects by name, and equal names in other folders."""
    sources = {
        "a.sim.py": "import pkg.part\ndef f():\n    from near import x\nmetric = 'graders.tone:score'\n",
        "pkg/__init__.py": "",
        "pkg/part.py": "from . import other\nfrom ..top import y\n",
        "pkg/other.py": "import importlib\nimportlib.import_module('loaded')\n",
        "top.py": "",
        "near.py": "",
        "sub/near.py": "",
        "sub/b.sim.py": "import near\n",
        "loaded.py": "",
        "graders/tone.py": "",
        "agent.py": "",
        "agentest.config.yaml": "agent:\n  handler: agent:reply\ntop: 1\n",
    }
    for name, text in sources.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    graph = ImportGraph(tmp_path / name for name in sources)

    def reached(name: str) -> set[str]:
        return {path.relative_to(tmp_path).as_posix() for path in graph.reached_from(tmp_path / name)}

    unrelated = {"sub/b.sim.py", "agent.py", "agentest.config.yaml"}
    assert reached("a.sim.py") - {"sub/near.py"} == sources.keys() - unrelated - {"sub/near.py"}
    assert reached("sub/b.sim.py") == {"sub/b.sim.py", "sub/near.py"}
    assert reached("agentest.config.yaml") == {"agentest.config.yaml", "agent.py"}
