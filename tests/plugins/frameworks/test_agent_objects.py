"""Agent objects of frameworks: detection, and how their tool calls reach the mocks from anywhere.

A small framework of our own stands for the real ones; those are in tests/plugins/frameworks/test_objects.py.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from agentest import scenario
from agentest.agents.port import AgentReply
from agentest.config.agents import in_process
from agentest.config.agents.in_process import agent_object_of, check_handler
from agentest.domain.messages import Message, UserText
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Blame, Conversation, ToolCall
from agentest.plugin import Plugin, PluginRegistry, built_in_plugins, core_plugin
from agentest.plugins.frameworks.client import Begin, Framework
from agentest.plugins.frameworks.tool_gate import ToolGate, current_gate, gate_method
from agentest.support.calling import NonWaitingExecutor
from agentest.support.errors import AgentestError, ConfigError
from agentest.testing import run_scenarios

REAL: list[Any] = []


class Tool:
    """A tool of the small framework."""

    name = "find"

    async def acall(self, **args: Any) -> Any:
        return self.work(**args)

    def call(self, **args: Any) -> Any:
        return self.work(**args)

    def work(self, **args: Any) -> Any:
        REAL.append(args)
        if args.get("q") == "break":
            raise ValueError("it broke")
        return args.get("result", "really found")


@dataclass
class Puppet:
    """An agent of the small framework: a function that is given a tool, and what its context is."""

    move: Callable[[Tool, Any], Any]


class PuppetTalk:
    def __init__(self, puppet: Puppet, context: Any) -> None:
        self.puppet, self.context = puppet, context

    async def turn(self, messages: Sequence[Message], gate: ToolGate) -> AgentReply:
        assert isinstance(messages[-1], UserText)
        moved = self.puppet.move(Tool(), self.context)
        return AgentReply(str(await moved if asyncio.iscoroutine(moved) else moved))


def gated(call: Any) -> Any:
    def by_the_gate(tool: Tool, **args: Any) -> Any:
        gate = current_gate()
        if gate is None:
            return call(tool, **args)
        return gate.answer_plainly(tool.name, args, lambda: call(tool, **args)).value

    return by_the_gate


def gated_async(acall: Any) -> Any:
    async def by_the_gate(tool: Tool, **args: Any) -> Any:
        gate = current_gate()
        if gate is None:
            return await acall(tool, **args)
        return (await gate.answer(tool.name, args, lambda: acall(tool, **args))).value

    return by_the_gate


def prepare(puppet: Puppet) -> Begin:
    if not callable(puppet.move):
        raise ValueError("the puppet does not move")
    gate_method(Tool, "call", gated)
    gate_method(Tool, "acall", gated_async)
    return lambda context, _: PuppetTalk(puppet, context)


open_puppet = Framework("Puppets", prepare).open
HANDED_IN = Plugin("puppets")
HANDED_IN.agent_object("Puppets", f"{__name__}:open_puppet", classes=f"{__name__}:Puppet", help="a Puppet")


@pytest.fixture(autouse=True)
def _puppets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Features as a new framework would register them."""
    plugins = PluginRegistry((core_plugin, built_in_plugins, lambda: iter([("puppets", "a test")])))
    monkeypatch.setitem(sys.modules, "puppets", SimpleNamespace(plugin=HANDED_IN))
    monkeypatch.setattr(in_process, "PLUGINS", plugins)
    yield
    REAL.clear()


def talk(move: Any, *, tools: Any = None, context: Any = None, **settings: Any) -> Conversation:
    agent = {"type": "custom", "handler": Puppet(move), "context": context}
    result = run_scenarios([scenario("s", turns=["Hi"], tools=tools or {})], agent=agent, **settings)
    return result.scenarios[0].conversations[0].conversation


async def in_the_loop(tool: Tool, _: Any) -> Any:
    return await tool.acall(q=1)


async def plainly_in_the_loop(tool: Tool, _: Any) -> Any:
    return tool.call(q=1)


async def in_a_thread(tool: Tool, _: Any) -> Any:
    return await asyncio.to_thread(tool.call, q=1)


async def in_the_executor(tool: Tool, _: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, lambda: tool.call(q=1))


async def in_a_loop_in_a_thread(tool: Tool, _: Any) -> Any:
    return await asyncio.to_thread(lambda: asyncio.run(tool.acall(q=1)))


async def in_another_task(tool: Tool, _: Any) -> Any:
    return await asyncio.create_task(tool.acall(q=1))


EVERYWHERE = [
    in_the_loop,
    plainly_in_the_loop,
    in_a_thread,
    in_the_executor,
    in_a_loop_in_a_thread,
    in_another_task,
]


async def later(args: Any, ctx: Any) -> Any:
    await asyncio.sleep(0)
    return [args, ctx.scenario]


@pytest.mark.parametrize("move", EVERYWHERE, ids=lambda move: move.__name__)
def test_a_tool_is_mocked_wherever_it_is_called(move: Any) -> None:
    """Async or plain, in the loop, a thread, another loop: the mock answers, the real tool does not run."""
    conversation = talk(move, tools={"find": later})
    assert conversation.tool_calls == (ToolCall("find", {"q": 1}, [{"q": 1}, "s"], True, 0),)
    assert conversation.turns[0].agent_message == "[{'q': 1}, 's']"
    passed = talk(move, unmocked_tools="passthrough")
    assert passed.tool_calls == (ToolCall("find", {"q": 1}, "really found", False, 0, seen_by=SeenBy.AGENT),)
    assert REAL == [{"q": 1}]


def test_a_thread_without_a_conversation() -> None:
    """A tool in a thread without context does not run, because its mock is unknown."""

    async def move(tool: Tool, _: Any) -> Any:
        with ThreadPoolExecutor(1, "lost") as threads:
            return await asyncio.wrap_future(threads.submit(tool.call, q=1))

    conversation = talk(move, tools={"find": 1})
    assert conversation.failure is not None
    assert "called in thread 'lost_0', which does not know whose conversation" in conversation.failure.message
    assert REAL == []


def test_errors_of_ours_end_the_turn_though_the_agent_swallows_them() -> None:
    """A tool without a mock, and a mock that is broken, end the turn with the right one to blame."""

    async def move(tool: Tool, _: Any) -> Any:
        for _again in range(2):
            try:
                await tool.acall(q=1)
            except (AgentestError, RuntimeError) as error:
                swallowed = error
        raise RuntimeError(f"tool error: {swallowed}")

    unmocked, broken = talk(move), talk(move, tools={"find": lambda args, ctx: object()})
    assert unmocked.failure is not None
    assert broken.failure is not None
    assert (unmocked.failure.blame, broken.failure.blame) == (Blame.AGENT, Blame.MOCK)
    assert "called tool 'find', which has no mock" in unmocked.failure.message
    assert "or let tools without a mock run, the real ones: --unmocked-tools" in unmocked.failure.message
    assert "not JSON-serialisable" in broken.failure.message
    assert unmocked.unfinished is not None
    assert len(unmocked.unfinished.tool_calls) == 1
    assert REAL == []


def test_a_mock_may_call_the_real_tool() -> None:
    """Tools that a mock calls are not intercepted, in a thread or in the event loop."""

    async def real(args: Any, ctx: Any) -> Any:
        return await Tool().acall(**args)

    for mock in (real, lambda args, ctx: Tool().call(**args)):
        conversation = talk(in_the_loop, tools={"find": mock})
        assert conversation.tool_calls == (ToolCall("find", {"q": 1}, "really found", True, 0),)
    assert REAL == [{"q": 1}] * 2


def test_results_of_real_tools() -> None:
    """Values that are not JSON are recorded as Python shows them; exceptions too, as the agent's."""
    odd = talk(lambda tool, _: tool.call(result={1, 2j}), unmocked_tools="passthrough")
    assert odd.tool_calls[0].result in ("{1, 2j}", "{2j, 1}")
    conversation = talk(lambda tool, _: tool.call(q="break"), unmocked_tools="passthrough")
    assert conversation.failure is not None
    message = conversation.failure.message
    assert message == "the Puppets agent raised ValueError: it broke (test_agent_objects.py:50)"
    assert conversation.unfinished is not None
    assert conversation.unfinished.tool_calls[0].error == "it broke"


def test_makers_and_contexts() -> None:
    """A function without parameters makes the agent, once; `context` is made for each conversation."""
    made: list[Any] = []

    async def make() -> Puppet:
        made.append("agent")
        return Puppet(lambda tool, context: context)

    async def context(session: Any) -> str:
        made.append("context")
        return f"{session.state}"

    both = [scenario(name, turns=["Hi", "Ho"], session={"state": {"n": name}}) for name in "ab"]
    agent = {"type": "custom", "handler": make, "context": context}
    result = run_scenarios(both, agent=agent)
    turns = [turn for found in result.scenarios for turn in found.conversations[0].conversation.turns]
    assert [turn.agent_message for turn in turns] == ["{'n': 'a'}"] * 2 + ["{'n': 'b'}"] * 2
    assert sorted(made) == ["agent", "context", "context"]


def a_handler(messages: Any, ctx: Any) -> str:
    return "Hi"


def raises() -> Any:
    raise RuntimeError("no agent today")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"handler": Puppet(5)}, "handler: the puppet does not move"),  # type: ignore[arg-type]
        ({"handler": lambda: 5}, "takes no parameters, so it should make an agent object, and made 5"),
        ({"handler": raises}, "handler: raises() raised RuntimeError: no agent today"),
        (
            {"handler": "agentest.support.errors:ExitCode.PASSED"},
            "PASSED: 0>; expected a function (messages, ctx)",
        ),
        ({"handler": object()}, "; expected a function (messages, ctx), an agent object of one of these"),
        ({"handler": a_handler, "context": dict}, "context: is only for agent objects of frameworks"),
        (
            {"handler": Puppet(print), "context": "agentest.support.errors:nope"},
            "context: module 'agentest.support.errors'",
        ),
        (
            {"handler": Puppet(print), "context": "agentest.support.errors:__doc__"},
            "__doc__' is not a function",
        ),
    ],
)
def test_invalid_agents(settings: dict[str, Any], problem: str) -> None:
    """They are refused before the first conversation, with the valid forms."""
    with pytest.raises(ConfigError) as caught:
        run_scenarios([scenario("s", turns=["Hi"])], agent={"type": "custom", **settings})
    assert problem in str(caught.value)


def test_a_framework_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework without what is needed of it is named, with what was missing."""

    def fails(_: Any) -> Any:
        raise ImportError("cannot import name 'capabilities'")

    monkeypatch.setattr(sys.modules[__name__], "open_puppet", Framework("Puppets", fails).open)
    with pytest.raises(ConfigError, match="the installed Puppets cannot be used: ImportError: cannot import"):
        talk(in_the_loop)


def of_class(module: str, name: str, *bases: type) -> Any:
    """An object of a subclass of such a class, in a module of the user's."""
    base = type(name, bases, {"__module__": module})
    return type("Mine", (base,), {"__module__": "shop"})()


RUNNABLE = type("Runnable", (), {"__module__": "langchain_core.runnables.base"})


@pytest.mark.parametrize(
    ("module", "name", "bases", "title"),
    [
        ("pydantic_ai.agent.abstract", "AbstractAgent", (), "pydantic-ai"),
        ("agents.agent", "AgentBase", (), "OpenAI Agents SDK"),
        ("langgraph.pregel.main", "Pregel", (RUNNABLE,), "LangGraph"),
        ("langchain_core.language_models.base", "Model", (RUNNABLE,), "LangChain"),
        ("google.adk.agents.base_agent", "BaseAgent", (), "google-adk"),
        ("google.adk.apps.app", "App", (), "google-adk"),
        ("langgraph.pregel.remote", "RemoteGraph", (RUNNABLE,), None),
        ("agents.shop", "AgentBase", (), None),
        ("pydantic_ai_shop", "AbstractAgent", (), None),
    ],
)
def test_how_frameworks_are_known(module: str, name: str, bases: tuple[type, ...], title: str | None) -> None:
    """An object is known by the name and the place of a class that it is of, and nothing is imported."""
    found = agent_object_of(of_class(module, name, *bases))
    assert (found and found.name) == title
    assert agent_object_of(type(of_class(module, name, *bases))) is None


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("langgraph.graph.state", "StateGraph", "found a Mine; it is not compiled"),
        ("langgraph.pregel.remote", "RemoteGraph", "found a Mine; it is a client of a server"),
        ("fastapi.applications", "FastAPI", "found a Mine; .*type: asgi"),
        ("shop", "Shop", r"expected a function .* LangGraph \(a compiled graph\).*, Puppets \(a Puppet\)$"),
    ],
)
def test_advice_for_objects_that_are_not_agents(module: str, name: str, words: str) -> None:
    """An object that only looks like an agent gets advice."""
    with pytest.raises(ValueError, match=words):
        check_handler(of_class(module, name))


def test_handlers_without_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core alone runs functions, and names nothing else."""
    monkeypatch.setattr(in_process, "PLUGINS", PluginRegistry([core_plugin]))
    check_handler(lambda messages, ctx: "Hello")
    with pytest.raises(ValueError, match=r"expected a function \(messages, ctx\), or its import path"):
        check_handler(Puppet(lambda *_: "Hello"))


def test_an_agent_of_google_adk_is_known_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """google-adk runs objects of its classes, or the error says that it is missing."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "google"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google", None)
    base = type("BaseAgent", (), {"__module__": "google.adk.agents.base_agent"})
    made = type("LlmAgent", (base,), {"__module__": "google.adk.agents", "run_async": None, "name": "a"})()
    with pytest.raises(ConfigError, match="runs in this process by google-adk, which cannot be imported"):
        run_scenarios([scenario("s", turns=["Hi"])], agent=made)


def test_the_executor_waits_for_nobody() -> None:
    """A function that hangs in the executor does not keep its loop from closing; others are answered."""
    released = threading.Event()

    async def main() -> tuple[Any, Any]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(NonWaitingExecutor())
        loop.run_in_executor(None, released.wait)
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 / 0)
        return await loop.run_in_executor(None, lambda: 5), await asyncio.to_thread(len, "four")

    assert asyncio.run(main()) == (5, 4)
    released.set()
