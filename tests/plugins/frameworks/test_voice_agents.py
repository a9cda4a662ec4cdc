"""Voice agents of LiveKit and Pipecat in text, in their own environments: mocks answer their tools."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.frameworks
ROOT = Path(__file__).parents[3]
FRAMEWORKS = os.environ.get("AGENTEST_FRAMEWORKS")
SCENARIOS = """
from agentest import scenario, sequence

scenario(
    "reserves",
    turns=["remember lamps", "reserve lamp", "recall"],
    tools={"check_stock": sequence(5), "reserve_item": lambda item, quantity: {"ok": item}},
    trajectory={"match_mode": "strict", "expected": ["check_stock", "reserve_item"]},
    conversations_per_scenario=10,
)
scenario("a tool that breaks", turns=["break lamp"], tools={"lift": {"lifted": True}})
scenario("no mock", turns=["stock lamp"])
scenario("whose", turns=["who"], tools={"check_stock": 1})
"""


each_framework = pytest.mark.parametrize("framework", ["livekit", "pipecat"])


def run(framework: str, folder: Path, *options: str, **agent: Any) -> dict[str, Any]:
    """The conversations of each scenario: replies, tool calls with results, and the error."""
    if FRAMEWORKS is None:
        pytest.skip("the frameworks are not installed")
    python = Path(FRAMEWORKS) / framework / "bin" / "python"
    (folder / "shop.sim.py").write_text(SCENARIOS)
    (folder / "agentest.config.yaml").write_text(
        json.dumps({"agent": {"type": "custom", **agent}, "strict": False})
    )
    path = os.pathsep.join(map(str, (ROOT, Path(__file__).parent / "objects")))
    command = [python, "-m", "agentest", "run", "--reporter", "json", *options]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    results = json.loads((folder / ".agentest" / "results.json").read_text())
    return {
        each["name"]: [
            (
                [turn["agentMessage"] for turn in one["turns"]],
                [(c["name"], c["args"], c["result"]) for turn in one["turns"] for c in turn["toolCalls"]],
                one["error"] or "",
            )
            for one in each["conversations"]
        ]
        for each in results["scenarios"]
    }


@pytest.mark.parametrize(
    ("framework", "maker"), [("livekit", "agent"), ("livekit", "session"), ("pipecat", "agent")]
)
def test_mocks_answer_and_each_conversation_has_its_session(
    tmp_path: Path, framework: str, maker: str
) -> None:
    found = run(framework, tmp_path, handler=f"shop_{framework}:{maker}")
    calls = [
        ("check_stock", {"item": "lamp"}, 5),
        ("reserve_item", {"item": "lamp", "quantity": 2}, {"ok": "lamp"}),
    ]
    replies = ["You said: remember lamps", 'reserve: 5; {"ok": "lamp"}', "lamps"]
    assert found["reserves"] == [(replies, calls, "")] * 10
    assert found["a tool that breaks"][0][0] == ['break: {"lifted": true}']
    assert "'check_stock', which has no mock" in found["no mock"][0][2]


@each_framework
def test_real_tools_run_if_they_may(tmp_path: Path, framework: str) -> None:
    """The value of `context` is LiveKit's `userdata` and Pipecat's `app_resources`."""
    passing = ("--unmocked-tools", "passthrough", "--scenario", "=whose", "--scenario", "=no mock")
    names = {key: f"shop_{framework}:{name}" for key, name in (("handler", "agent"), ("context", "context"))}
    found = run(framework, tmp_path, *passing, **names)
    assert found["whose"] == [(["who: Bob"], [("customer", {}, "Bob")], "")]
    assert found["no mock"][0][0] == ["stock: really looked for lamp"]


@each_framework
def test_one_agent_serves_one_conversation(tmp_path: Path, framework: str) -> None:
    found = run(framework, tmp_path, "--scenario", "=reserves", handler=f"shop_{framework}:used")
    errors = [error for _, _, error in found["reserves"]]
    assert errors.count("") == 1
    assert "let `handler` name a function" in next(filter(None, errors))
