"""The plugin for google-adk's server, with a run's mock server; google-adk itself is a stand-in.

The real one is in tests/plugins/frameworks/test_adk_plugin.py.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agentest import scenario
from agentest.agents.call_source_addresses import Addresses
from agentest.config.agents.server import Server
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Conversation
from agentest.plugins.protocols.adk_server.settings import PLUGIN_FILE
from agentest.plugins.servers.start import with_server_addresses
from agentest.testing import run_scenarios


class BasePlugin:
    """The parts of google-adk that the plugin uses."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as an agent's environment has it: one file without the rest of Agentest."""
    for name in ("google", "google.adk", "google.adk.plugins", "google.adk.plugins.base_plugin"):
        module = ModuleType(name)
        module.BasePlugin = BasePlugin  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("AGENTEST_MCP_URL", raising=False)
    spec = spec_from_file_location("agentest_adk", PLUGIN_FILE)
    assert spec is not None
    assert spec.loader is not None
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


class Runner:
    """Calls tools as ADK's runner does: the plugin is called before and after."""

    def __init__(self, plugin: Any, session: str) -> None:
        self.plugin = plugin
        self.session = session
        self.calls = 0

    async def call(self, name: str, real: Any = None, **args: Any) -> Any:
        self.calls += 1
        tool = SimpleNamespace(name=name)
        context = SimpleNamespace(session=SimpleNamespace(id=self.session), function_call_id=f"c{self.calls}")
        known = {"tool": tool, "tool_args": args, "tool_context": context}
        answer = await self.plugin.before_tool_callback(**known)
        if answer is not None or real is None:
            return answer
        try:
            result = await real(self)
        except Exception as error:
            await self.plugin.on_tool_error_callback(**known, error=error)
            raise
        await self.plugin.after_tool_callback(**known, result=result)
        return result


def talk(module: Any, *moves: Any, tools: Any, many: int = 1, **settings: Any) -> list[Conversation]:
    """Conversations of one turn each; `moves` are what the agent does with its runner."""
    plugins: list[Any] = []

    async def handler(messages: Any, ctx: Any) -> str:
        del messages
        if not plugins:  # one server for all conversations, which knows no conversation's own address
            plugins.append(module.MockTools(url=ctx.mcp_url.rpartition("/")[0]))
        runner = Runner(plugins[0], ctx.session_id)
        return str([await move(runner) for move in moves])

    made = [scenario(f"s{n}", turns=["Hi"], tools=tools) for n in range(many)]
    agent = {"type": "custom", "handler": handler, "mcp_mock": True, "tool_visibility": "reported"}
    found = run_scenarios(made, agent=agent, concurrency=many, **settings)
    return [each.conversations[0].conversation for each in found.scenarios]


def test_mocks_answer_before_a_tool_runs(plugin: Any) -> None:
    """Mappings as they are, other values as ADK has them, a mock that raises as a tool that fails."""

    def broken(args: Any, ctx: Any) -> Any:
        raise ValueError("sold out")

    tools = {"stock": {"left": 3}, "price": 7, "word": '{"a": 1}', "nothing": None, "book": broken}
    (talked,) = talk(plugin, *(lambda r, n=name: r.call(n, item="lamp") for name in tools), tools=tools)
    assert talked.turns[0].agent_message == str(
        [{"left": 3}, {"result": 7}, {"result": '{"a": 1}'}, {"result": None}, {"error": "sold out"}]
    )
    assert [(c.name, c.call_id, c.mocked, c.seen_by) for c in talked.tool_calls] == [
        (name, f"c{n}", True, SeenBy.MOCK_SERVER) for n, name in enumerate(tools, 1)
    ]


def test_many_conversations_of_one_server(plugin: Any) -> None:
    """ADK's session id identifies the conversation, and concurrent calls find their own mocks."""
    tools = {"who": lambda args, ctx: f"{ctx.scenario} {args['n']}"}

    async def both(runner: Runner) -> Any:
        return await asyncio.gather(runner.call("who", n=1), runner.call("who", n=2))

    for n, talked in enumerate(talk(plugin, both, tools=tools, many=12)):
        assert talked.turns[0].agent_message == f"[[{{'result': 's{n} 1'}}, {{'result': 's{n} 2'}}]]"
        assert len(talked.tool_calls) == 2


def test_control_tools_run(plugin: Any) -> None:
    """ADK's tools for handing over and ending loops are not mocked."""

    async def ran(_: Runner) -> str:
        return "ran"

    moves = [lambda r, n=name: r.call(n, ran) for name in ("transfer_to_agent", "exit_loop")]
    (talked,) = talk(plugin, *moves, tools={})
    assert talked.turns[0].agent_message == "['ran', 'ran']"


def test_a_tool_without_a_mock(plugin: Any) -> None:
    """It does not run: the plugin raises, and the conversation ends with words, whatever the agent does."""

    async def never(_: Runner) -> str:
        raise AssertionError("the real tool ran")

    async def swallow(runner: Runner) -> str:
        try:
            return str(await runner.call("book", never))
        except plugin.NotAnswered as error:
            return str(error)

    (talked,) = talk(plugin, swallow, tools={})
    assert talked.failure is not None
    assert "called tool 'book', which has no mock" in talked.failure.message
    assert "let tools without a mock run, the real ones: --unmocked-tools" in talked.failure.message


def test_the_real_tool_where_it_may_run(plugin: Any) -> None:
    """With passthrough it runs, and its result or exception is reported; nested agents are mocked, too."""

    async def clerk(outer: Runner) -> str:
        inner = Runner(outer.plugin, "a session of its own")
        stock, real = await asyncio.gather(inner.call("stock"), inner.call("look", looked))
        return f"{stock} {real} {await inner.call('stock')}"

    async def looked(_: Runner) -> str:
        return "really looked"

    async def fall(_: Runner) -> str:
        raise RuntimeError("it fell")

    async def lift(runner: Runner) -> str:
        with pytest.raises(RuntimeError, match="it fell"):
            await runner.call("lift", fall)
        return "fell"

    moves = (lambda r: r.call("clerk", clerk), lift, lambda r: r.call("stock"))
    for talked in talk(plugin, *moves, tools={"stock": 3}, many=4, unmocked_tools="passthrough"):
        assert talked.failure is None, talked.failure
        said = "{'result': 3} really looked {'result': 3}"
        calls = sorted((c.name, c.mocked, str(c.result), c.error is None) for c in talked.tool_calls)
        assert calls == [
            ("clerk", False, said, True),
            ("lift", False, "{'error': 'it fell'}", False),
            ("look", False, "really looked", True),
            *[("stock", True, "3", True)] * 3,
        ]


def test_a_real_tool_that_returns_nothing(plugin: Any) -> None:
    """None from a real tool is its answer, not an unanswered call."""

    async def nothing(_: Runner) -> None:
        return None

    (talked,) = talk(plugin, lambda r: r.call("book", nothing), tools={}, unmocked_tools="passthrough")
    (call,) = talked.tool_calls
    assert (call.result, call.mocked, call.by_real_tool, call.outcome) == (None, False, True, "answered")


@pytest.mark.parametrize(
    ("url", "said"),
    [(None, "AGENTEST_MCP_URL is not set, so nobody answers"), ("http://127.0.0.1:9/", "no answer of http")],
)
def test_no_tool_runs_where_nobody_answers(plugin: Any, url: str | None, said: str) -> None:
    """Without an address, and without a server there, each call is refused: the real tool must not run."""
    with pytest.raises(plugin.NotAnswered, match=said):
        asyncio.run(Runner(plugin.MockTools(url=url), "x").call("book"))


def test_how_it_comes_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that a run starts finds it, behind what PYTHONPATH has; it is alone in its folder."""
    monkeypatch.setenv("PYTHONPATH", "theirs")
    known = Server(command="adk api_server", ready="tcp://h:1")
    told = with_server_addresses(known, Addresses(mcp="http://h/mcp")).env
    assert told == {
        "AGENTEST_MCP_URL": "http://h/mcp",
        "PYTHONPATH": f"theirs{os.pathsep}{PLUGIN_FILE.parent}",
    }
    own = known.model_copy(update={"env": {"PYTHONPATH": "own"}})
    assert (
        with_server_addresses(own, Addresses(mcp="u")).env["PYTHONPATH"]
        == f"own{os.pathsep}{PLUGIN_FILE.parent}"
    )
    assert "PYTHONPATH" not in with_server_addresses(known, Addresses(rest="u")).env
    assert [path.name for path in PLUGIN_FILE.parent.iterdir() if path.suffix == ".py"] == ["agentest_adk.py"]


def test_the_file_is_printed() -> None:
    """`python -m agentest.adk_plugin` prints the file, for servers that others start."""
    command = [sys.executable, "-m", "agentest.adk_plugin"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert printed.stdout == PLUGIN_FILE.read_text(encoding="utf-8")
