"""Mock servers for agents in Python: waiting conversations do not block others."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import anyio
import pytest
from anyio.to_thread import run_sync

from agentest import scenario
from agentest.config.config import Config
from agentest.domain.results import RunResult, Status
from agentest.domain.verdict import run_status
from agentest.runner.agents import check_mocks
from agentest.runner.known_tools import agent_traits
from agentest.runner.plan import Plan, Unit
from agentest.support.errors import ConfigError
from agentest.testing import arun_scenarios, run_scenarios


def asked(url: str) -> Any:
    """The answer of the tool `stock` at a server."""
    params = {"name": "stock", "arguments": {"item": "tea"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    with urlopen(Request(url, json.dumps(message).encode(), headers)) as answer:
        return json.load(answer)["result"]["content"][0]["text"]


def run(handlers: dict[str, Callable[..., Awaitable[str]]], count: int, **keys: Any) -> RunResult:
    """Run scenarios with handlers that have a server."""
    made = [scenario(f"s{n}", turns=["go"], tools={"stock": {"n": n}}) for n in range(count)]
    (first, handler), *others = handlers.items()
    served = {"type": "custom", "mcp_mock": True}
    compare = [{"name": name, "type": "custom", "handler": other} for name, other in others]

    async def go() -> RunResult:
        config = {"agent": {**served, "name": first, "handler": handler}, "compare": compare, **keys}
        with anyio.fail_after(30):
            return await arun_scenarios(made, config=config, strict=False)

    return anyio.run(go)


def test_waiting_conversations_do_not_block_other_agents() -> None:
    """With two places, one agent's conversations run one at a time; waiting ones leave the second place to
    the other agent, on whose last conversation the first one waits."""
    others, all_held = 0, anyio.Event()

    async def other(messages: Any, ctx: Any) -> str:
        nonlocal others
        others += 1
        if others == 5:
            all_held.set()
        return "ok"

    async def served(messages: Any, ctx: Any) -> str:
        await all_held.wait()
        shared = ctx.mcp_url.rpartition("/")[0]
        return str(await run_sync(asked, shared))

    result = run({"served": served, "other": other}, 5, concurrency=2)
    assert [s.verdict.status for s in result.scenarios] == [Status.PASSED] * 10
    replies = [s.conversations[0].conversation.turns[0].agent_message for s in result.scenarios]
    assert [reply for reply in replies if reply != "ok"] == [json.dumps({"n": n}) for n in range(5)]


def test_many_at_once_when_the_address_names_them() -> None:
    """Handlers that use their conversation's address run concurrently after the first two."""
    here, all_here = 0, anyio.Event()

    async def served(messages: Any, ctx: Any) -> str:
        nonlocal here
        told = str(await run_sync(asked, ctx.mcp_url))
        here += 1
        if here == 7:
            all_here.set()
        if here > 2:
            await all_here.wait()
        return told

    result = run({"served": served}, 7, concurrency=5)
    replies = [s.conversations[0].conversation.turns[0].agent_message for s in result.scenarios]
    assert replies == [json.dumps({"n": n}) for n in range(7)]
    assert run_status(result) is Status.PASSED


def test_tools_behind_two_servers(tmp_path: Path) -> None:
    """Each server assumes that other mocks belong to the other server."""
    paths = {"/cart": {"get": {"operationId": "cart", "responses": {"200": {"description": "all"}}}}}
    document = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths}
    tools = [{"name": "stock", "inputSchema": {"type": "object"}}]
    for name, content in (("api.json", document), ("tools.json", tools)):
        (tmp_path / name).write_text(json.dumps(content))
    servers = {
        "mcp_mock": {"tools": str(tmp_path / "tools.json")},
        "rest_mock": {"openapi": str(tmp_path / "api.json")},
    }

    def served(messages: Any, ctx: Any) -> str:
        with urlopen(f"{ctx.rest_url}/cart") as answer:
            cart = json.load(answer)
        return f"{asked(ctx.mcp_url)} {cart}"

    agent = {"type": "custom", "handler": served, **servers}
    made = scenario("both", turns=["go"], tools={"stock": 3, "cart": [1]})

    async def go() -> RunResult:
        return await arun_scenarios([made], config={"agent": agent}, strict=False)

    result = anyio.run(go)
    assert result.scenarios[0].conversations[0].conversation.turns[0].agent_message == "3 [1]"
    assert run_status(result) is Status.PASSED


def test_a_stray_call_makes_the_run_errored() -> None:
    """A call to an unknown address is refused; the run's status shows it, from Python too."""

    async def served(messages: Any, ctx: Any) -> str:
        return str(await run_sync(asked, ctx.mcp_url[:-1]))

    result = run({"served": served}, 1)
    assert run_status(result) is Status.ERRORED
    assert [each.agent for each in result.unclaimed] == ["served"]
    assert "which is not a conversation of this run" in result.unclaimed[0].message


HTTP = {
    "type": "http",
    "endpoint": "http://127.0.0.1:9/",
    "body": {"m": "{{message}}", "s": "{{session_id}}"},
}
REACHED: dict[str, dict[str, Any]] = {
    "unseen by hand": {**HTTP, "reply": "r", "tool_visibility": "unseen", "mcp_mock": {"port": 1}},
    "reported by hand": {**HTTP, "reply": "r", "tool_visibility": "reported", "mcp_mock": {"port": 1}},
    "a program": {"type": "command", "command": ["cat", "{{mcp_url}}"], "mcp_mock": True},
}
UNREACHED: dict[str, dict[str, Any]] = {
    "no server": {**HTTP, "reply": "r"},
    "traces alone": {**HTTP, "reply": "r", "traces": {"port": 1}},
    "a program without a server": {"type": "command", "command": ["cat"]},
}


@pytest.mark.parametrize("name", [*REACHED, *UNREACHED])
def test_whether_mocks_reach_an_agent(name: str) -> None:
    """Mocks for an agent that runs its tools itself need a mock server; the error names the ways."""
    agent = Config.model_validate({"agent": {**(REACHED | UNREACHED)[name], "name": "a"}}).agent
    made = scenario("s", turns=["x"], tools={"stock": 1})
    unit = Unit(made, "a", "a.sim.py", "s", "s", 1, 1, (), {}, traits=agent_traits("a", agent))
    plan = Plan((unit,), {"a": agent}, False, units=(unit,))
    if name in REACHED:
        check_mocks(plan)
    else:
        with pytest.raises(ConfigError, match="mcp_mock: true"):
            check_mocks(plan)


def test_the_note_about_passthrough(tmp_path: Path) -> None:
    """With a real server an unmocked tool would really run; without one it would answer null."""
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": "stock", "inputSchema": {"type": "object"}}]))

    async def calls(messages: Any, ctx: Any) -> str:
        return str(await run_sync(asked, ctx.mcp_url))

    def told(**settings: Any) -> str:
        made = scenario("s", turns=["go"], tools={"other": 1})
        beside = {"mcp_mock": {"tools": str(tools), **settings}, "tool_visibility": "returned"}
        agent = {"type": "custom", "handler": calls, **beside}
        (ran,) = run_scenarios([made], config={"agent": agent}).scenarios
        return " ".join(map(str, ran.verdict.reasons))

    assert "let unknown tools answer null" in told()
    assert "let tools without a mock run, the real ones" in told(upstream="http://127.0.0.1:9/mcp")
