"""Agents of real frameworks with remote tools, run by Agentest next to the shop that has them.

`framework_lab` installs the programs. The shop logs every call that it runs, as the ground truth.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from framework_lab import (
    FOLDER,
    FRAMEWORKS,
    REQUEST_LIMIT_MS,
    RUN_LIMIT_S,
    START_LIMIT_S,
    environment,
    installed,
)
from project import Project, answers, clean_environment, free_port, wait_until

BANNED = "cancel_order"
HTTP = {"type": "http", "body": {"message": "{{message}}"}, "reply": "reply"}
ADK_SERVER = (
    *("google_adk/bin/adk", "api_server", "--port", "{port}"),
    *("--session_service_uri", "memory://", "adk_apps"),
)
UNSENT: Mapping[str, str] = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
"""Spans are made, and lead on from request to request, and are sent nowhere."""
MODULES = ("--import", "@opentelemetry/auto-instrumentations-node/register")
LOADER = "--experimental-loader=@opentelemetry/instrumentation/hook.mjs"


@dataclass(frozen=True, kw_only=True)
class Shop:
    """The real tools, in their own process."""

    port: int
    log: Path

    @property
    def env(self) -> dict[str, str]:
        """Environment of an agent that calls the real tools or has them itself."""
        base = f"http://127.0.0.1:{self.port}"
        return {"SHOP_MCP_URL": f"{base}/mcp", "SHOP_REST_URL": base, "SHOP_LOG": str(self.log)}

    @property
    def openapi(self) -> str:
        with urlopen(f"http://127.0.0.1:{self.port}/openapi.json") as answer:
            return str(answer.read().decode())

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The calls that really ran."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [(call["name"], call["args"]) for call in map(json.loads, lines)]


@contextmanager
def open_shop(folder: Path) -> Iterator[Shop]:
    """The shop, until the block ends."""
    shop = Shop(port=free_port(), log=folder / "shop.log")
    command = [installed("mcp/bin/python"), "tool_shop_server.py", "--port", str(shop.port)]
    env = clean_environment({"SHOP_LOG": str(shop.log)})
    with subprocess.Popen(command, cwd=FRAMEWORKS / "servers", env=env) as process:
        try:
            wait_until(lambda: process.poll() is not None or answers(shop.port))
            assert process.poll() is None, "the shop has ended"
            yield shop
        finally:
            process.kill()


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent's program and configuration."""

    command: tuple[str, ...]
    """A program of the folder and its words; {port} and {folder} are filled in."""
    keys: Mapping[str, Any]
    """Of the agent, beside its address and its server."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "servers"
    endpoint: str = "/chat"


def run_agent(agent: Agent, shop: Shop, folder: Path, scenarios: str, **settings: str) -> Project:
    """Run `agentest run` and return its project. `settings`: environment of the scenarios."""
    project = Project(folder)
    for name in ("servers", "node"):
        shutil.copytree(FRAMEWORKS / name, folder / name)
    (folder / "node" / "node_modules").symlink_to(installed("npm/node_modules"))
    shutil.copy(FRAMEWORKS / "scenarios" / f"{scenarios}.py", folder / f"{scenarios}.sim.py")
    project.write("openapi.json", shop.openapi)
    project.write("agentest.config.yaml", json.dumps(_configuration(agent, shop, folder)))
    with project.start(env={**environment(), **settings}) as process:
        out, err = process.communicate(timeout=RUN_LIMIT_S)
    project.write("output", out + err)
    assert (folder / ".agentest" / "results.json").exists(), out + err
    return project


def _configuration(agent: Agent, shop: Shop, folder: Path) -> dict[str, Any]:
    port = free_port()
    program, *words = (word.format(port=port, folder=FOLDER) for word in agent.command)
    server = {
        "command": [installed(program), *words],
        "ready": f"tcp://127.0.0.1:{port}",
        "timeout_s": START_LIMIT_S,
        "cwd": str(folder / agent.cwd),
        "env": {**shop.env, **agent.env},
        "reuse": False,
    }
    keys = {"endpoint": f"http://127.0.0.1:{port}{agent.endpoint}", "server": server, **agent.keys}
    run_keys = {"request_timeout_ms": REQUEST_LIMIT_MS, "concurrency": 50, "strict": False}
    return {"agent": keys, "reporters": ["console", "json"], **run_keys}


def calls_of(scenario: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All calls of a scenario's conversations."""
    turns = [turn for one in scenario["conversations"] for turn in one["turns"]]
    return [call for turn in turns for call in turn["toolCalls"]]


def counted(calls: list[tuple[str, dict[str, Any]]]) -> Counter[str]:
    """Count calls in any order."""
    return Counter(json.dumps([name, args], sort_keys=True) for name, args in calls)


def output(project: Project) -> str:
    return (project.root / "output").read_text(encoding="utf-8")


def python(
    environment: str,
    *words: str,
    keys: dict[str, Any],
    instrumented: bool = False,
    endpoint: str = "/chat",
    env: Mapping[str, str] = UNSENT,
) -> Agent:
    """A server of this folder, as it is or under `opentelemetry-instrument`."""
    start = f"{environment}/bin/python"
    wrapper = (f"{environment}/bin/opentelemetry-instrument", f"{{folder}}/{start}")
    server = f"{environment.removesuffix('_mcp_1')}_tools_server.py"
    command = (*(wrapper if instrumented else (start,)), server, "--port", "{port}", *words)
    return Agent(command=command, keys=keys, env=env, endpoint=endpoint)


def node(
    *words: str, keys: dict[str, Any], instrumented: bool = False, env: Mapping[str, str] = UNSENT
) -> Agent:
    """The server of node/, as it is or with Node's auto-instrumentation."""
    start = ("node/bin/node", *((*MODULES, LOADER) if instrumented else ()))
    command = (*start, "tools_server.mjs", "--port", "{port}", *words)
    return Agent(command=command, keys=keys, env=env, cwd="node")


def assert_each_has_its_own(project: Project, shops: int) -> None:
    """Check that every conversation has only its own answers and calls, and bans are detected."""
    found = {one["name"]: one for one in project.results["scenarios"]}
    assert len(found) == shops
    for number in range(shops):
        banned = number % 5 == 0
        scenario = found[f"shop {number}"]
        assert scenario["status"] == ("failed" if banned else "passed"), output(project)
        calls = calls_of(scenario)
        assert len(calls) == 4 + banned, calls
        assert {(call["seenBy"], call["mocked"]) for call in calls} == {("mock-server", True)}
        assert {_number(call) for call in calls} == {number}
        trajectory = scenario["conversations"][0]["trajectory"]
        assert trajectory["forbiddenCalls"] == ([BANNED] if banned else []), trajectory


def _number(call: dict[str, Any]) -> int:
    return int(call["args"]["item"].removeprefix("item").removeprefix("other"))
