"""Servers of real frameworks, tested by the configuration that their page of the documentation shows.

`python tests/frameworks/install.py FOLDER` makes what they need, AGENTEST_FRAMEWORKS=FOLDER says where it is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import yaml
from project import Project, free_port

ROOT = Path(__file__).parent.parent.parent
FRAMEWORKS = ROOT / "tests" / "frameworks"
FOLDER = os.environ.get("AGENTEST_FRAMEWORKS")
MARKS = [
    pytest.mark.frameworks,
    pytest.mark.skipif(FOLDER is None, reason="AGENTEST_FRAMEWORKS names no folder with frameworks"),
]
RUN_LIMIT_S = 240

JUDGED_BY_TEXT = {
    "says hello": "passed",
    "knows nothing of others": "passed",
    "remembers": "passed",
    "fails": "failed",
}
JUDGED_BY_CALLS = {
    "tells the stock": "passed",
    "reserves": "passed",
    "keeps a ban": "passed",
    "breaks a ban": "failed",
    "calls another tool": "failed",
    "red lamps": "passed",
    "green sofas": "passed",
}
UNSEEN = {"unseen": "errored"}
MOCKED = {
    "tells the mocked stock": "passed",
    "reserves by mocks": "passed",
    "keeps a ban": "passed",
    "breaks a ban": "failed",
    "calls what no mock answers": "failed",
    "red": "passed",
    "green": "passed",
    "fails": "failed",
}
_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server, and the passage of the documentation that says how it is tested."""

    id: str
    page: str
    """In `docs`, without its ending."""
    heading: str = ""
    """The passage begins here; without it, at the top."""
    command: Sequence[str]
    """A program of the folder (ENVIRONMENT/bin/…) and its words; {port} and {path} are filled in."""
    ready: str | None = None
    """A path that answers when the server is ready. Without it: as soon as anything listens."""
    agent: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the passage."""
    cwd: Path = FRAMEWORKS / "servers"


def configuration(page: str, heading: str = "") -> dict[str, Any]:
    """The first YAML block with an agent below a heading of a page."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    if heading:
        _, found, text = text.partition(f"# {heading}\n")
        assert found, f"docs/{page}.md has no heading {heading!r}"
    blocks = (yaml.safe_load(block) for block in _BLOCK.findall(text))
    return next(block for block in blocks if "agent" in block)


def project_for(served: Served, folder: Path) -> Project:
    """A project whose configuration is that of the page, and starts the server."""
    port = free_port()
    config = configuration(served.page, served.heading)
    agent = {**config["agent"], **served.agent}
    parts = urlsplit(agent["endpoint"])
    agent["endpoint"] = urlunsplit(parts._replace(scheme="http", netloc=f"127.0.0.1:{port}"))
    agent["server"] = _server(served, port, parts.path or "/", folder)
    text = json.dumps({**config, "agent": agent, "reporters": ["console", "json"]})  # JSON is YAML
    project = Project(folder)
    project.write("agentest.config.yaml", text)
    return project


def _server(served: Served, port: int, path: str, folder: Path) -> dict[str, Any]:
    program, *words = (word.format(port=port, path=path) for word in served.command)
    ready = f"tcp://127.0.0.1:{port}" if served.ready is None else f"http://127.0.0.1:{port}{served.ready}"
    command = [str(Path(str(FOLDER)) / program), *words]
    return {"command": command, "ready": ready, "timeout_s": 120, "cwd": str(served.cwd), "reuse": False}


def run(served: Served, folder: Path, scenarios: str) -> Project:
    """`agentest run` of scenarios of this folder; its results are there, whatever they are."""
    project = project_for(served, folder)
    shutil.copy(FRAMEWORKS / "scenarios" / f"{scenarios}.py", folder / "shop.sim.py")
    process = project.start()
    out, err = process.communicate(timeout=RUN_LIMIT_S)
    (folder / "output").write_text(out + err, encoding="utf-8")
    assert (folder / ".agentest" / "results.json").exists(), out + err
    return project


def statuses(project: Project) -> dict[str, str]:
    """What became of each scenario."""
    return {scenario["name"]: scenario["status"] for scenario in project.results["scenarios"]}


def expected(sight: str) -> dict[str, str]:
    """What must become of the scenarios of an agent with tools of its own."""
    of_calls = {name: UNSEEN.get(sight, status) for name, status in JUDGED_BY_CALLS.items()}
    return {**JUDGED_BY_TEXT, **of_calls}


def assert_own_tools(project: Project, sight: str) -> None:
    """Each scenario ends as it must, calls are told in full, and what the agent raises is its own error."""
    assert statuses(project) == expected(sight), (project.root / "output").read_text(encoding="utf-8")
    failed = conversation(project, "fails")
    assert (failed["errorSource"], len(failed["turns"])) == ("agent", 1)
    if sight == "reported":
        assert_calls_are_told(project)
    else:
        assert "cannot be seen" in "".join(project.scenario_result("breaks a ban")["failures"])


def assert_calls_are_told(project: Project) -> None:
    """Names, arguments and results of the agent's own calls, in order."""
    calls = calls_of(project, "breaks a ban")
    assert [(call["name"], call["args"]) for call in calls] == [
        ("check_stock", {"item": "lamp"}),
        ("reserve_item", {"item": "lamp", "quantity": 2}),
    ]
    assert seen(calls) == {("agent", False)}
    assert "R-lamp-2" in json.dumps(calls[1]["result"])
    assert conversation(project, "breaks a ban")["trajectory"]["forbiddenCalls"] == ["reserve_item"]


def assert_mocked_tools(project: Project) -> None:
    """The mocks answer each conversation on its own, and a call without mock ends the conversation."""
    assert statuses(project) == MOCKED, (project.root / "output").read_text(encoding="utf-8")
    assert seen(calls_of(project, "breaks a ban")) == {("caller", True)}
    assert conversation(project, "fails")["errorSource"] == "agent"


def conversation(project: Project, scenario: str) -> dict[str, Any]:
    """The first conversation of a scenario."""
    first: dict[str, Any] = project.scenario_result(scenario)["conversations"][0]
    return first


def calls_of(project: Project, scenario: str) -> list[dict[str, Any]]:
    """The calls of that conversation."""
    return [call for turn in conversation(project, scenario)["turns"] for call in turn["toolCalls"]]


def seen(calls: list[dict[str, Any]]) -> set[tuple[str, bool]]:
    """By whom calls were seen, and whether mocks answered them."""
    return {(call["seenBy"], call["mocked"]) for call in calls}
