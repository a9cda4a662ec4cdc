"""The pages of docs/frameworks: what stands there is run as it stands, and prints what stands there."""

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
    """A model that looks for the table, and tells of it."""
    since = max(i for i, each in enumerate(history) if each.role == "user")
    calls = [name for each in history[since:] for _, name, _ in each.calls]
    if "find_table" not in calls:
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


def project_of(page: str, folder: Path, upstream: str) -> Project:
    """The files of a page. Only the address of the model's API is another one."""
    found = blocks(page)
    project = Project(folder)
    code = found["text"][0]
    name = code.split("\n", 1)[0].split()[-1]
    project.write(name, code)
    project.write("scenarios/table.sim.py", found["python"][0])
    config = yaml.safe_load(found["yaml"][0])
    config["agent"]["model_gateway"] = {"upstream": {"openai": f"{upstream}/v1"}}
    config["agent"]["server"]["timeout_s"] = START_LIMIT_S
    config |= {"request_timeout_ms": REQUEST_LIMIT_MS, "reporters": ["console", "json"]}
    project.write("agentest.config.yaml", json.dumps(config))
    (folder / "node_modules").symlink_to(installed("npm/node_modules"))
    return project


@pytest.mark.parametrize("page", PAGES)
def test_a_page_prints_what_it_says(page: str, upstream: str, tmp_path: Path) -> None:
    project = project_of(page, tmp_path, upstream)
    path = os.pathsep.join([installed(f"{PAGES[page]}/bin"), environment()["PATH"]])
    env = {"PATH": path, "OPENAI_API_KEY": "none", "CREWAI_DISABLE_TELEMETRY": "true"}
    with project.start(env=env) as process:
        out, err = process.communicate(timeout=RUN_LIMIT_S)

    assert process.returncode == 0, out + err
    assert facts(blocks(page)["text"][1]) <= facts(out), out + err
    calls = [
        (call["name"], call["args"], call["mocked"], call["seenBy"])
        for turn in project.results["scenarios"][0]["conversations"][0]["turns"]
        for call in turn["toolCalls"]
    ]
    assert calls == [("find_table", {"time": "19:00", "guests": n}, True, "model") for n in (2, 3)]
