"""`{port}` and `per_worker` in the settings of agents: valid places and results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.agents.over_http import HttpAgent
from agentest.config.config import Config
from agentest.config.file import load
from agentest.support.errors import ConfigError

SERVER = {"command": "serve --port {port}", "ready": "http://h:{port}/health"}
AT = "http://h:{port}/v1"
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "per worker without port": (
        {"endpoint": "http://h:1/v1", "server": {"command": "x", "ready": "tcp://h:1", "per_worker": True}},
        "`server.per_worker` starts the agent once in each worker, and all of them would have one port: "
        "write {port} where the port stands in `server.command` (or `server.env`), in `server.ready` and in",
    ),
    "no server": (
        {"endpoint": AT},
        "`endpoint` has {port}, a free port at which `server` starts the agent, and there is no `server`: "
        "write the port, or {port} into `server.command` and `server.ready`, too",
    ),
    "server at a fixed port": (
        {"endpoint": AT, "server": {"command": "x", "ready": "tcp://h:1"}},
        "and `server.command` and `server.ready` have none: write the port, or",
    ),
    "server is not told": (
        {"endpoint": AT, "server": {"command": "x ${port}", "ready": "tcp://h:{port}"}},
        "`server.ready` has {port}, a free port, which the server does not know",
    ),
    "ready elsewhere": (
        {"endpoint": AT, "server": {"command": "x {port}", "ready": "tcp://h:1"}},
        "and `server.ready` is elsewhere: write {port} in place of its port, too",
    ),
    "endpoint elsewhere": (
        {"endpoint": "http://h:1/v1", "server": SERVER},
        "`server` starts at {port}, a free port, and `endpoint` leads elsewhere: write {port}",
    ),
    "no endpoint": (
        {"type": "custom", "handler": "a:b", "server": SERVER},
        "an agent of type custom has none, so give its server a fixed port",
    ),
    "reuse": (
        {"endpoint": AT, "server": {**SERVER, "reuse": True}},
        "`server.reuse` uses what answers at a known port, and {port} is a free one: leave `reuse` out",
    ),
    "mock server at a fixed port": (
        {"endpoint": AT, "server": {**SERVER, "per_worker": True}, "mcp_mock": {"port": 5}},
        "`mcp_mock.port` is one port, and `server.per_worker` has each worker open its own `mcp_mock`",
    ),
    "in the host": (
        {"endpoint": "http://{port}:1/v1", "server": SERVER},
        "`endpoint` leads elsewhere",
    ),
}
LISTED = {
    "per_worker": (
        {"command": "x", "ready": "tcp://h:1", "per_worker": True},
        ":2: servers: `per_worker` is for an agent's own server: what stands in `servers` is started once",
    ),
    "port": (SERVER, ":2: servers: {port} is known to an agent's own server alone: write the port, or move"),
}


def checked(tmp_path: Path, agent: dict[str, Any], **keys: Any) -> Config:
    path = tmp_path / "agentest.config.yaml"
    text = {"agent": agent, **keys}
    path.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in text.items()))
    return load(path, {"port": "no variable of ours"}).config


@pytest.mark.parametrize("name", WRONG)
def test_wrong_agent_ports_are_explained(tmp_path: Path, name: str) -> None:
    """A port that would not reach its user is refused with the place and what to write."""
    agent, said = WRONG[name]
    if name == "server is not told":
        agent = json.loads(json.dumps(agent).replace("${port}", "$${port}"))
    with pytest.raises(ConfigError) as caught:
        checked(tmp_path, agent)
    assert said in str(caught.value)
    assert "agentest.config.yaml:1: agent: " in str(caught.value)


@pytest.mark.parametrize("name", LISTED)
def test_shared_servers_have_no_port_placeholder(tmp_path: Path, name: str) -> None:
    """A server that is started once for all runs cannot have a port of its own."""
    server, said = LISTED[name]
    with pytest.raises(ConfigError) as caught:
        checked(tmp_path, {"endpoint": "http://h:2/v1"}, servers=[server])
    assert said in str(caught.value)


@pytest.mark.parametrize("port", ["{port}", "{{port}}", "{{ port }}"])
def test_port_placeholders_are_normalized(tmp_path: Path, port: str) -> None:
    """The placeholder has one form, and becomes the port everywhere; other placeholders are kept."""
    server = {
        "command": ["serve", f"--port={port}", "$${port}", "{{.Port}}"],
        "ready": f"tcp://h:{port}",
        "env": {"URL": f"http://h:{port}/"},
        "perWorker": True,
    }
    agent = checked(tmp_path, {"endpoint": f"http://u:p@h:{port}/v1?q={{port}}", "server": server}).agent
    assert isinstance(agent, HttpAgent)
    assert agent.address == "http://u:p@h:{port}/v1?q={port}"
    assert agent.per_worker
    at = agent.at_port(123)
    assert (at.address, at.type, at.name) == ("http://u:p@h:123/v1?q={port}", agent.type, agent.name)
    assert at.server is not None
    assert at.server.command == ["serve", "--port=123", "${port}", "{{.Port}}"]
    assert (at.server.ready, at.server.env, at.server.reuse) == (
        "tcp://h:123",
        {"URL": "http://h:123/"},
        False,
    )
    assert not at.server.awaits_port


def test_all_addresses_of_an_agent(tmp_path: Path) -> None:
    """Type http has several; `{{port}}` in a path is a saved value, not the port."""
    agent = checked(
        tmp_path,
        {
            "type": "http",
            "endpoint": "http://h:{{port}}/ask/{{port}}",
            "body": "{{message}}",
            "server": SERVER,
            "setup": [{"endpoint": "/login", "save": {"port": "p"}}, {"endpoint": "http://h:{port}/begin"}],
            "teardown": {"endpoint": "http://h:{port}/end"},
            "poll": {"endpoint": "http://h:{port}/job", "until": "done"},
        },
    ).agent
    at = agent.at_port(7)
    assert isinstance(at, HttpTemplateAgent)
    assert list(at.urls.values()) == [
        "http://h:7/ask/{{port}}",
        "/login",
        "http://h:7/begin",
        "http://h:7/end",
        "http://h:7/job",
    ]
