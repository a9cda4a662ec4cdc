"""The pages of docs/frameworks: their code runs unchanged, and prints the documented output."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest
import yaml
from framework_lab import MARKS, REQUEST_LIMIT_MS, ROOT, RUN_LIMIT_S, START_LIMIT_S, environment, installed
from project import Project
from scripted_provider import Provider, Said, served

pytestmark = MARKS

PAGES = {
    "langgraph": "langgraph",
    "llama-index": "openai_2",
    "crewai": "crewai",
    "smolagents": "openai_2",
    "strands": "openai_2",
    "agno": "openai_2",
    "microsoft-agent-framework": "openai_2",
    "mastra": "node",
    "ai-sdk": "node",
}
"""Page → the environment of its agent."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_DURATION = re.compile(r"\d+(\.\d+)? (ms|s)\b")


def host(history: Sequence[Said]) -> tuple[str, list[tuple[str, Any]]]:
    """A model that looks for the table, and reports it."""
    since = max(i for i, each in enumerate(history) if each.role == "user")
    # smolagents writes calls as text, and results as what it observed.
    looked = any(each.calls or each.role == "observed" for each in history[since:])
    if not looked:
        return "", [("find_table", {"time": "19:00", "guests": 3 if "three" in history[since].text else 2})]
    found = next(str(each.result) for each in reversed(history) if each.role in ("result", "observed"))
    table = re.search(r"table\W+(\d)", found)
    return f"Table {table[1] if table else found} is free at 19:00.", []


@pytest.fixture
def upstream() -> Iterator[str]:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(Provider(host).app())) as origin,
    ):
        yield origin


def blocks(page: str) -> dict[str, list[str]]:
    """Return language → the blocks of a page in it."""
    found: dict[str, list[str]] = {}
    for language, text in _BLOCK.findall((ROOT / "docs" / "frameworks" / f"{page}.md").read_text("utf-8")):
        found.setdefault(language, []).append(text)
    return found


def facts(printed: str) -> set[str]:
    """Return the parts of what a run prints, without durations."""
    parts = re.split(r"\s{2,}| · |\n", printed)
    return {" ".join(_DURATION.sub("…", part).split()) for part in parts}


def project_of(page: str, folder: Path, settings: dict[str, Any]) -> Project:
    """The files of a page, with these agent settings instead of its own."""
    found = blocks(page)
    project = Project(folder)
    code = found["text"][0]
    name = code.split("\n", 1)[0].split()[-1]
    project.write(name, code)
    project.write("scenarios/table.sim.py", found["python"][0])
    config = yaml.safe_load(found["yaml"][0])
    config["agent"] = {key: value for key, value in (config["agent"] | settings).items() if value is not None}
    config["agent"]["server"]["timeout_s"] = START_LIMIT_S
    config |= {"request_timeout_ms": REQUEST_LIMIT_MS, "reporters": ["console", "json"]}
    project.write("agentest.config.yaml", json.dumps(config))
    (folder / "node_modules").symlink_to(installed("npm/node_modules"))
    return project


def run(project: Project, page: str, **env: str) -> str:
    path = os.pathsep.join([installed(f"{PAGES[page]}/bin"), environment()["PATH"]])
    env = {"PATH": path, "OPENAI_API_KEY": "none", "CREWAI_DISABLE_TELEMETRY": "true", **env}
    with project.start(env=env) as process:
        out, err = process.communicate(timeout=RUN_LIMIT_S)
    assert process.returncode == 0, out + err
    return out


def calls_of(project: Project) -> list[tuple[str, Any, bool, str]]:
    return [
        (call["name"], call["args"], call["mocked"], call["seenBy"])
        for turn in project.results["scenarios"][0]["conversations"][0]["turns"]
        for call in turn["toolCalls"]
    ]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_prints_what_it_says(page: str, upstream: str, tmp_path: Path) -> None:
    project = project_of(page, tmp_path, {"model_gateway": {"upstream": {"openai": f"{upstream}/v1"}}})
    printed = run(project, page)

    assert facts(blocks(page)["text"][1]) <= facts(printed), printed
    assert calls_of(project) == [
        ("find_table", {"time": "19:00", "guests": n}, True, "model") for n in (2, 3)
    ]


@pytest.mark.parametrize("page", ["smolagents", "strands", "microsoft-agent-framework", "mastra", "ai-sdk"])
def test_tools_of_each_framework_can_be_wrapped(page: str, upstream: str, tmp_path: Path) -> None:
    """The model is reached directly, and the agent's tools have the line of the page about wrapped tools.

    The others make their tools of functions as these do. They were tried by hand.
    """
    settings = {"model_gateway": None, "mcp_mock": True, "tool_visibility": "reported"}
    project = project_of(page, tmp_path, settings)
    for path in tmp_path.glob("agent.*"):
        code = path.read_text("utf-8").replace("def find_table", "@wrap\ndef find_table")
        code = re.sub(
            r"execute: (async .*?\n  +\}),\n", r'execute: wrap("find_table", \1),\n', code, flags=re.S
        )
        imported = "from agentest_tools import wrap\n"
        if path.suffix == ".mjs":
            imported = 'import { wrap } from "./agentest-tools.mjs";\n'
        path.write_text(imported + code, "utf-8")
    project.write("agentest-tools.mjs", blocks("wrapped-tools")["text"][1])
    module = ROOT / "agentest" / "plugins" / "frameworks" / "function_tools.py"
    project.write("agentest_tools.py", module.read_text("utf-8"))
    run(project, page, OPENAI_BASE_URL=f"{upstream}/v1", OPENAI_API_BASE=f"{upstream}/v1")

    mocked = [("find_table", {"time": "19:00", "guests": n}, True, "mock-server") for n in (2, 3)]
    assert calls_of(project) == mocked
