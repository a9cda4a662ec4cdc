"""Mock servers and real tools that workers on other machines cannot reach, reported before the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentest.runner.environment import unreachable
from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared, RunRequest, prepare

NODES = ["10.0.0.7"]
OWN = {"command": "x {port}", "ready": "tcp://localhost:{port}"}


def prepared(folder: Path, agent: dict[str, Any]) -> Prepared:
    """A run with one scenario."""
    (folder / "agentest.config.yaml").write_text(f"agent: {json.dumps({'name': 'bot', **agent})}\n")
    (folder / "a.sim.py").write_text('from agentest import scenario\nscenario("s", turns=["hi"])\n')
    return prepare(RunRequest(folder, options=Options()), {})


def test_servers_that_live_in_each_worker(tmp_path: Path) -> None:
    fine: list[dict[str, Any]] = [
        {"endpoint": "http://localhost:{port}/v1", "server": {**OWN, "per_worker": True}, "mcp_mock": True},
        {"type": "command", "command": ["cat"], "mcp_mock": True},
    ]
    for agent in fine:
        assert unreachable(prepared(tmp_path, agent), NODES) == (), agent


def test_what_is_on_loopback(tmp_path: Path) -> None:
    program = {"type": "command", "command": ["cat"], "mcp_mock": {"port": 7}, "traces": True}
    (told, traces) = unreachable(prepared(tmp_path, program), NODES)
    assert traces.startswith("the mock server or gateway of agent 'bot' (`traces`) cannot be reached")
    assert told.startswith(
        "the mock server or gateway of agent 'bot' (`mcp_mock.port`: 7) cannot be reached from "
        "node 10.0.0.7: it listens"
    )

    per_worker = {
        "endpoint": "http://localhost:{port}/v1",
        "server": {**OWN, "per_worker": True},
        "mcp_mock": {"upstream": "http://localhost:4/mcp"},
    }
    (told,) = unreachable(prepared(tmp_path, per_worker), NODES)
    assert told.startswith("the real tools of agent 'bot' (`mcp_mock.upstream`: http://localhost:4/mcp)")
