"""Addresses that workers on other machines cannot reach, reported before the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentest.runner.environment import check_reach, unreachable
from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared, RunRequest, prepare
from agentest.support.errors import ConfigError

NODES = ["10.0.0.7"]
OWN = {"command": "x {port}", "ready": "tcp://localhost:{port}"}
LOCAL = {
    "localhost": "http://localhost:3000/v1",
    "v4": "http://127.0.0.2:3000/v1",
    "v6": "http://[::1]:3000/v1",
    "any": "http://0.0.0.0:3000/v1",
}


def prepared(
    tmp_path: Path, agent: dict[str, Any], environ: dict[str, str] | None = None, **keys: Any
) -> Prepared:
    """A run with one scenario."""
    text = {"agent": {"name": "bot", **agent}, **keys}
    (tmp_path / "agentest.config.yaml").write_text(
        "\n".join(f"{k}: {json.dumps(v)}" for k, v in text.items())
    )
    (tmp_path / "a.sim.py").write_text('from agentest import scenario\nscenario("s", turns=["hi"])\n')
    return prepare(RunRequest(tmp_path, options=Options()), environ or {})


@pytest.mark.parametrize("url", LOCAL.values(), ids=LOCAL)
def test_an_agent_on_loopback(tmp_path: Path, url: str) -> None:
    """The message has agent, key, endpoint, nodes and a solution; a run on one machine has none."""
    run = prepared(tmp_path, {"endpoint": url})
    assert unreachable(run, NODES) == (
        f"agent 'bot' (`endpoint`: {url}) cannot be reached from node 10.0.0.7: a loopback address "
        "reaches only the machine itself; write an address that all nodes reach, or let each worker start "
        "the agent for itself (`server.per_worker: true`, with {port})",
    )
    assert unreachable(run, []) == ()
    check_reach(run, [])
    with pytest.raises(ConfigError, match=r"from nodes a, b, c and 1 other: a loopback"):
        check_reach(run, ["a", "b", "c", "d"])


def test_reachable_agents(tmp_path: Path) -> None:
    """Other addresses, and agents that run in or are started by each worker."""
    fine: list[dict[str, Any]] = [
        {"endpoint": "https://bot.example.com/v1"},
        {"endpoint": "http://localhost.example.com/v1"},
        {"endpoint": "http://localhost:{port}/v1", "server": {**OWN, "per_worker": True}},
        {"type": "custom", "handler": "a:b"},
        {"type": "chat_completions", "app": "a:b", "endpoint": "http://localhost/v1"},
    ]
    for agent in fine:
        assert unreachable(prepared(tmp_path, agent), NODES) == (), agent
    key = {"OPENAI_API_KEY": "sk-of-a-test-0123456789"}
    run = prepared(
        tmp_path,
        fine[0],
        key,
        model="openai/gpt-5-mini",
        servers=[{"command": "x", "ready": "tcp://localhost:1"}],
    )
    assert unreachable(run, NODES) == ()


def test_other_loopback_addresses(tmp_path: Path) -> None:
    """Other addresses of an agent, a server started once, models, and `servers`."""
    step = [{"endpoint": "/login"}, {"endpoint": "http://127.0.0.1:8/begin"}]
    http = {"type": "http", "endpoint": "http://bot.example.com/", "body": "{{message}}", "setup": step}
    (told,) = unreachable(prepared(tmp_path, http), NODES)
    assert told.startswith("agent 'bot' (`setup[1].endpoint`: http://127.0.0.1:8/begin) cannot be reached")
    (told,) = unreachable(
        prepared(tmp_path, {"endpoint": "http://localhost:{port}/v1", "server": OWN}), NODES
    )
    assert told.startswith("agent 'bot' (`endpoint`: http://localhost:{port}/v1) cannot be reached from node")

    ollama = {"model": "ollama/llama3", "judge": {"model": "openai/gpt-5-mini"}}
    run = prepared(tmp_path, {"endpoint": "http://bot/v1"}, {"OPENAI_API_KEY": "sk-of-a-test-0123"}, **ollama)
    (told,) = unreachable(run, NODES)
    assert told.startswith("model 'ollama/llama3' (`provider_options.base_url`: http://localhost:11434")

    database = {"servers": {"db": {"command": "x", "ready": "tcp://localhost:5433"}}}
    (told,) = unreachable(prepared(tmp_path, {"type": "custom", "handler": "a:b"}, **database), NODES)
    assert told.startswith("server 'db' (`servers`, `ready`: tcp://localhost:5433) cannot be reached")

    own = {"type": "custom", "handler": "a:b", "server": {"command": "x", "ready": "tcp://localhost:5"}}
    (told,) = unreachable(prepared(tmp_path, own), NODES)
    assert told.startswith("`server` of agent 'bot' (`ready`: tcp://localhost:5) cannot be reached")


def test_messages_show_no_secrets(tmp_path: Path) -> None:
    """A password in an address is redacted."""
    (told,) = unreachable(prepared(tmp_path, {"endpoint": "http://me:hunter2hunter2@localhost:1/v1"}), NODES)
    assert "hunter2" not in told
