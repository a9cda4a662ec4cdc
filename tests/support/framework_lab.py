"""Servers of real frameworks, tested with the configuration of their documentation page.

`python tests/plugins/frameworks/install.py FOLDER` installs them, for AGENTEST_FRAMEWORKS=FOLDER.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import yaml
from project import Project, free_port

ROOT = Path(__file__).parent.parent.parent
FRAMEWORKS = ROOT / "tests" / "plugins" / "frameworks"
FOLDER = os.environ.get("AGENTEST_FRAMEWORKS")
MARKS = [
    pytest.mark.frameworks,
    pytest.mark.skipif(FOLDER is None, reason="AGENTEST_FRAMEWORKS names no folder with frameworks"),
]
START_LIMIT_S = 120
RUN_LIMIT_S = 240
REQUEST_LIMIT_MS = 120_000  # a busy machine must not fail a test

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
APPROVALS = {"agrees", "refuses", "is approved by the configuration", "is denied by the configuration"}
UNSEEN = {"unseen": "errored"}
MOCKED = {
    "tells the mocked stock": "passed",
    "reserves by mocks": "passed",
    "keeps a ban": "passed",
    "breaks a ban": "failed",
    "red": "passed",
    "green": "passed",
    "fails": "failed",
}
_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server, and the documentation passage with its configuration."""

    id: str
    type: str
    page: str
    """In `docs`, without its ending. Its first configuration of an agent of this type is taken."""
    after: str = ""
    """The first behind this text; without it, from the top."""
    command: Sequence[str] = ()
    """A program of the folder (ENVIRONMENT/bin/…) and its words; {port}, {path}, {folder} are filled in.
    None: the configuration says what is started."""
    ready: str | None = None
    """A path that answers when the server is ready. Without it: as soon as anything listens."""
    agent: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the passage."""
    without: Sequence[str] = ()
    """The keys of the passage that are left out."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The same beside the agent."""
    asks: bool = False
    """Whether it asks before it orders: then two more agents, to which the configuration answers."""
    cwd: str = "servers"
    """Where it is started: in a copy of this folder."""


def configuration(served: Served) -> dict[str, Any]:
    """Return the page's configuration for such an agent."""
    text = (ROOT / "docs" / f"{served.page}.md").read_text(encoding="utf-8")
    assert served.after in text, f"docs/{served.page}.md does not say {served.after!r}"
    blocks = map(yaml.safe_load, _BLOCK.findall(text.partition(served.after)[2] if served.after else text))
    for block in blocks:
        if block.get("agent", {}).get("type", "chat_completions") == served.type:
            return dict(block)
    raise AssertionError(f"docs/{served.page}.md shows no agent of type {served.type}")


def project_for(served: Served, folder: Path) -> Project:
    """A project with the page's configuration, which starts the server."""
    for name in ("servers", "node"):
        shutil.copytree(FRAMEWORKS / name, folder / name)
    (folder / "node" / "node_modules").symlink_to(installed("npm/node_modules"))
    config = configuration(served)
    kept = {key: value for key, value in config["agent"].items() if key not in served.without}
    agent = {**kept, **served.agent}
    if served.command:
        agent = _on_a_port(agent, served, folder)
    project = Project(folder / ("project" if served.command else served.cwd))
    if served.asks:
        config["agents"] = _answering(agent)
    run_keys = {"reporters": ["console", "json"], "request_timeout_ms": REQUEST_LIMIT_MS, "strict": False}
    text = json.dumps({**config, "agent": agent, **run_keys, **served.config})  # JSON is YAML
    project.write("agentest.config.yaml", text)
    return project


def _answering(agent: Mapping[str, Any]) -> dict[str, Any]:
    """The same agent, with the configuration answering its questions."""
    same = {key: value for key, value in agent.items() if key != "server"}
    return {"approving": {**same, "approvals": "approve"}, "denying": {**same, "approvals": "deny"}}


def _on_a_port(settings: dict[str, Any], served: Served, folder: Path) -> dict[str, Any]:
    """The agent of the page on a free port, started by the run."""
    port = free_port()
    parts = urlsplit(settings["endpoint"])
    scheme = {"https": "http", "wss": "ws"}.get(parts.scheme, parts.scheme)
    program, *words = (
        word.format(port=port, path=parts.path or "/", folder=FOLDER) for word in served.command
    )
    ready = f"http://127.0.0.1:{port}{served.ready}" if served.ready else f"tcp://127.0.0.1:{port}"
    server = {
        "command": [installed(program), *words],
        "ready": ready,
        "timeout_s": START_LIMIT_S,
        "cwd": str(folder / served.cwd),
        "reuse": False,
    }
    endpoint = urlunsplit(parts._replace(scheme=scheme, netloc=f"127.0.0.1:{port}"))
    return {**settings, "endpoint": endpoint, "server": server}


def installed(name: str) -> str:
    """A file in the folder with frameworks; a program's name without a folder is the system's."""
    return str(Path(str(FOLDER)) / name) if "/" in name else name


def environment() -> dict[str, str]:
    """The environment, with the folder's programs first."""
    return {
        "PATH": os.pathsep.join([installed("node/bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    }


def run(served: Served, folder: Path, scenarios: str) -> Project:
    """Run `agentest run` with scenarios of this folder, and return its project."""
    project = project_for(served, folder)
    for name in [scenarios, *(["approvals"] if served.asks else [])]:
        shutil.copy(FRAMEWORKS / "scenarios" / f"{name}.py", project.root / f"{name}.sim.py")
    with project.start(env=environment()) as process:
        out, err = process.communicate(timeout=RUN_LIMIT_S)
    project.write("output", out + err)
    assert (project.root / ".agentest" / "results.json").exists(), out + err
    return project


def statuses(project: Project) -> dict[str, str]:
    """Map each scenario to its status."""
    return {scenario["name"]: scenario["status"] for scenario in project.results["scenarios"]}


def expected(visibility: str) -> dict[str, str]:
    """The expected statuses of an agent with its own tools."""
    of_calls = {name: UNSEEN.get(visibility, status) for name, status in JUDGED_BY_CALLS.items()}
    return {**JUDGED_BY_TEXT, **of_calls}


def assert_all_pass(project: Project) -> None:
    """Check that there are scenarios and all passed."""
    assert set(statuses(project).values()) == {"passed"}, _output(project)


def assert_own_tools(project: Project, visibility: str) -> None:
    """Check statuses, complete calls, and that the agent's exceptions are its own errors."""
    found = statuses(project)
    approvals = dict.fromkeys(found.keys() & APPROVALS, "passed")
    assert found == {**expected(visibility), **approvals}, _output(project)
    failed = conversation(project, "fails")
    assert (failed["errorSource"], len(failed["turns"])) == ("agent", 1)
    if visibility == "reported":
        assert_calls_are_told(project)
    else:
        assert "cannot be seen" in "".join(project.scenario_result("breaks a ban")["failures"])


def assert_calls_are_told(project: Project) -> None:
    """Check names, arguments and results of the agent's own calls, in order."""
    calls = calls_of(project, "breaks a ban")
    assert [(call["name"], call["args"]) for call in calls] == [
        ("check_stock", {"item": "lamp"}),
        ("reserve_item", {"item": "lamp", "quantity": 2}),
    ]
    assert seen(calls) == {("agent", False)}
    assert "R-lamp-2" in json.dumps(calls[1]["result"])
    assert conversation(project, "breaks a ban")["trajectory"]["forbiddenCalls"] == ["reserve_item"]


def assert_mocked_tools(project: Project, without_mock: str = "failed") -> None:
    """Check that mocks answer each conversation separately, and an unmocked call ends it."""
    assert statuses(project) == {**MOCKED, "calls what no mock answers": without_mock}, _output(project)
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
    """The sources of the calls, and whether mocks answered them."""
    return {(call["seenBy"], call["mocked"]) for call in calls}


def _output(project: Project) -> str:
    return (project.root / "output").read_text(encoding="utf-8")
