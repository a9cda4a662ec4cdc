"""Agents of real frameworks that run their own tools: the model gateway sees and mocks their calls."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio.from_thread
import pytest
from framework_lab import (
    FRAMEWORKS,
    MARKS,
    REQUEST_LIMIT_MS,
    RUN_LIMIT_S,
    START_LIMIT_S,
    environment,
    installed,
)
from project import Project
from scripted_provider import Provider, served
from tools_lab import calls_of, output

pytestmark = MARKS

GUESTS = "abcdefgh"
PYTHON = {
    "openai_agents": ("openai_agents", ["chat", "responses"]),
    "langgraph": ("langgraph", ["chat", "responses", "anthropic", "gemini"]),
    "pydantic_ai": ("pydantic_ai", ["chat", "responses", "anthropic", "gemini"]),
    "google_genai": ("langgraph", ["gemini"]),
    "google_adk": ("google_adk", ["gemini"]),
    "smolagents": ("openai_2", ["chat"]),
    "agno": ("openai_2", ["chat", "responses", "anthropic"]),
    "microsoft_agents": ("openai_2", ["chat", "responses"]),
    "strands": ("openai_2", ["chat", "anthropic"]),
    "llama_index": ("openai_2", ["chat", "responses"]),
    "azure": ("langgraph", ["chat", "responses"]),
    "claude": ("claude_agent_sdk", ["anthropic"]),
    "anthropic_threads": ("langgraph", ["anthropic"]),
}
"""Framework → its environment, and the APIs that it calls."""
NODE = {
    "ai_sdk": ["chat", "responses", "anthropic", "gemini"],
    "openai_agents": ["chat", "responses"],
    "mastra": ["responses"],
}
OUTPUTS = {
    "pydantic_ai_output": ("pydantic_ai", ["chat", "responses", "anthropic", "gemini"]),
    "smolagents": ("openai_2", ["chat"]),
    "strands_output": ("openai_2", ["chat", "anthropic"]),
    "google_adk_output": ("google_adk", ["gemini"]),
    "langgraph_output": ("langgraph", ["chat", "anthropic"]),
}
"""The same for agents that return their answer by calling a tool."""
NODE_OUTPUTS = {"ai_sdk_output": ["anthropic"]}


def commands(
    python: dict[str, tuple[str, list[str]]], node: dict[str, list[str]]
) -> dict[str, tuple[str, ...]]:
    """Return how each agent is started, by its name."""
    return {
        f"{framework}-{api}": (
            f"{env}/bin/python",
            "model_callers.py",
            "--framework",
            framework,
            "--api",
            api,
        )
        for framework, (env, apis) in python.items()
        for api in apis
    } | {
        f"{framework}_js-{api}": (
            "node/bin/node",
            "model_callers.mjs",
            "--framework",
            framework,
            "--api",
            api,
        )
        for framework, apis in node.items()
        for api in apis
    }


CALLERS = commands(PYTHON, NODE)
OUTPUT_CALLERS = commands(OUTPUTS, NODE_OUTPUTS)


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def upstream(provider: Provider) -> Iterator[str]:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(provider.app())) as origin,
    ):
        yield origin


def run(
    command: tuple[str, ...],
    upstream: str,
    folder: Path,
    scenarios: str = "model_callers",
    unmocked_tools: str = "passthrough",
) -> Project:
    """`agentest run` with such an agent; its results are there, whatever they are."""
    for name in ("servers", "node"):
        shutil.copytree(FRAMEWORKS / name, folder / name)
    (folder / "node" / "node_modules").symlink_to(installed("npm/node_modules"))
    project = Project(folder / "project")
    program, *words = command
    agent = {
        "type": "http",
        "endpoint": "http://127.0.0.1:{port}/chat",
        "body": {"message": "{{message}}", "session": "{{session_id}}"},
        "reply": "reply",
        "model_gateway": {
            "upstream": {
                "openai": f"{upstream}/v1",
                **dict.fromkeys(("anthropic", "google", "azure"), upstream),
            },
            "output_tools": ["Answer"],  # of LangChain, by the class of the answer
        },
        "server": {
            "command": [installed(program), *words, "--port", "{port}"],
            "ready": "tcp://127.0.0.1:{port}",
            "timeout_s": START_LIMIT_S,
            "cwd": str(folder / ("node" if program.startswith("node/") else "servers")),
            "env": {"REAL_CALLS": str(folder / "real"), "MODEL_URL": "{{model_url}}"},
        },
    }
    project.config(
        "",
        agent=agent,
        metrics=[],
        unmocked_tools=unmocked_tools,
        concurrency=len(GUESTS),
        request_timeout_ms=REQUEST_LIMIT_MS,
    )
    shutil.copy(FRAMEWORKS / "scenarios" / f"{scenarios}.py", project.root / "callers.sim.py")
    with project.start(env=environment()) as process:
        out, err = process.communicate(timeout=RUN_LIMIT_S)
    project.write("output", out + err)
    assert (project.root / ".agentest" / "results.json").exists(), out + err
    return project


@pytest.mark.parametrize("caller", CALLERS)
def test_function_tools_are_seen_and_mocked(
    caller: str, upstream: str, provider: Provider, tmp_path: Path
) -> None:
    """Eight conversations at once, half of them streamed: no mocked tool runs, and none is forgotten."""
    project = run(CALLERS[caller], upstream, tmp_path)

    assert provider.refused == []
    for scenario in project.results["scenarios"]:
        guest = scenario["name"][-1]
        assert scenario["status"] == "passed", output(project)
        calls = [call for call in calls_of(scenario) if call["name"] != "final_answer"]  # of smolagents
        made = [(call["name"].split("__")[-1], call["args"]["q"], call["mocked"]) for call in calls]
        assert {call["seenBy"] for call in calls} == {"model"}
        assert made == [
            ("find", f"{guest}1", True),
            ("find", f"{guest}2", True),
            ("send", f"{guest}2", False),
            ("find", f"{guest}22", True),
            ("find", f"{guest}3", True),
        ]
        recalled = [turn["agentMessage"] for turn in scenario["conversations"][0]["turns"]][1::3]
        assert "mocked" in recalled[0], recalled
        assert all(f"{guest}{number}" in recalled[1] for number in (1, 2, 22, 3)), recalled
        assert "real" in recalled[1], recalled
    really = (tmp_path / "real").read_text(encoding="utf-8").split("\n")
    assert sorted(filter(None, really)) == [f"send {guest}2" for guest in GUESTS]


@pytest.mark.parametrize("caller", OUTPUT_CALLERS)
def test_output_tools_need_no_mock(caller: str, upstream: str, provider: Provider, tmp_path: Path) -> None:
    """Even with `unmocked_tools: error`, an agent can return its answer by an unmocked tool."""
    project = run(OUTPUT_CALLERS[caller], upstream, tmp_path, "output_tools", "error")

    assert provider.refused == []
    for scenario in project.results["scenarios"]:
        assert scenario["status"] == "passed", output(project)
        replies = [turn["agentMessage"] for turn in scenario["conversations"][0]["turns"]]
        assert replies[0] == "Done."
        assert "mocked" in replies[2]
    assert not (tmp_path / "real").exists()
