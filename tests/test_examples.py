"""The repository's own agents and scenarios, which new users run first."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from project import DEADLINE_S, Project, answers, free_port, wait_until

ROOT = Path(__file__).parent.parent
AGENTS = ROOT / "examples" / "booking_agent"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
LANGUAGES = [
    pytest.param([sys.executable, "agent.py"], id="python"),
    pytest.param(["node", "agent.mjs"], id="javascript", marks=needs_node),
]


@contextmanager
def running(command: list[str], port: int) -> Iterator[str]:
    process = subprocess.Popen([*command, "--port", str(port)], cwd=AGENTS, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: answers(port))
        yield f"http://127.0.0.1:{port}/v1/chat/completions"
    finally:
        process.terminate()
        assert process.wait(DEADLINE_S) in (0, -15)


@pytest.mark.parametrize("command", LANGUAGES)
def test_the_agents_behave_alike(command: list[str]) -> None:
    """Both agents give the recorded answer in every case, whole and streamed."""
    cases: list[dict[str, Any]] = json.loads((AGENTS / "conformance_cases.json").read_text(encoding="utf-8"))
    with running(command, free_port()) as endpoint, httpx.Client(timeout=DEADLINE_S) as client:
        for case in cases:
            reply = client.post(endpoint, json={"messages": case["messages"]}).json()
            message = reply["choices"][0]["message"]
            calls = [
                {"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])}
                for c in message.get("tool_calls") or []
            ]
            given = {"tool_calls": calls} if calls else {"content": message["content"]}
            assert given == case["expect"], case["name"]


def agentest(*arguments: str, command: str = "run") -> subprocess.CompletedProcess[str]:
    return Project(ROOT).agentest(command, *arguments)


def at_port(tmp_path: Path, config: str, port: int) -> str:
    """A copy of a configuration with other ports, so that tests can run concurrently."""
    text = re.sub("8717|8718", str(port), (ROOT / config).read_text(encoding="utf-8"))
    copy = tmp_path / "agentest.config.yaml"
    copy.write_text(text + f"\noutput_dir: {json.dumps(str(tmp_path / 'out'))}\n", encoding="utf-8")
    return str(copy)


def test_the_default_run_passes(tmp_path: Path) -> None:
    """The README's first command: every scenario of the repository passes, offline."""
    done = agentest("--config", at_port(tmp_path, "agentest.config.yaml", free_port()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "out" / "results.json").read_text())["summary"]["failedScenarios"] == 0


@needs_node
def test_the_same_scenarios_pass_against_the_other_language(tmp_path: Path) -> None:
    """The JavaScript agent passes the same scenarios, which do not depend on the language."""
    config = at_port(tmp_path, "agentest.config.yaml", free_port())
    done = agentest("--config", config, "--agent", "booking-js")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_evaluation_set_passes(tmp_path: Path) -> None:
    """The first command of the guide to evaluation sets: recorded responses answer the agent's calls."""
    config = at_port(tmp_path, "agentest.config.yaml", free_port())
    done = agentest("examples/evaluation", "--config", config, command="eval")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mistakes_are_caught(tmp_path: Path) -> None:
    """The failing examples fail with the intended reason."""
    done = agentest("--config", at_port(tmp_path, "scenarios/caught/agentest.config.yaml", free_port()))
    assert done.returncode == 1
    shown = " ".join(done.stdout.split())
    assert "✗ send_sms has no mock" in shown
    assert "time='10:30'" in shown
    assert "2 failed" in shown
