"""Agent objects of real frameworks in this process: mocks replace their tools, for each conversation.

They run if the frameworks are installed with Agentest; otherwise they are skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from project import Project

from agentest import scenario
from agentest.domain.results import WarningCode
from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import Blame, Conversation, ToolCall, Usage
from agentest.support.errors import ConfigError
from agentest.testing import run_scenarios

ROOT = Path(__file__).parents[3]
SHOPS = Path(__file__).parent / "objects"
PAGES = {
    "pydantic_ai": "agents/pydantic-ai.md",
    "openai_agents": "agents/openai-agents.md",
    "langgraph": "agents/langgraph.md",
    "google_adk": "adk-agents.md",
}
PACKAGES = {
    "pydantic_ai": "pydantic_ai",
    "openai_agents": "agents.lifecycle",  # not `agents`: that is a folder here, too
    "langgraph": "langgraph",
    "google_adk": "google.adk",
}
REQUIRED = "AGENTEST_FRAMEWORKS" in os.environ
"""Where frameworks are meant to be installed, tests fail without them."""

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]


def needs(framework: str) -> Any:
    return pytest.mark.skipif(not REQUIRED and _is_missing(PACKAGES[framework]), reason="it is not installed")


def _is_missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:
        return True


def each(*frameworks: str) -> Any:
    params = [pytest.param(name, marks=needs(name)) for name in frameworks]
    return pytest.mark.parametrize("framework", params)


each_framework = each(*PAGES)
each_but_adk = each("pydantic_ai", "openai_agents", "langgraph")


@pytest.fixture(autouse=True)
def _shops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SHOPS))


def shop(framework: str) -> Any:
    return import_module(f"shop_{framework}")


def really_run() -> list[str]:
    """The real tools that have run since the last call."""
    ran: list[str] = import_module("shop_talk").REAL
    found = [*ran]
    ran.clear()
    return found


def talk(agent: Any, *turns: str, context: Any = None, state: Any = None, **settings: Any) -> Conversation:
    """One conversation with an agent object."""
    tools = settings.pop("tools", {})
    session = {"session": {"state": state}} if state else {}
    custom = {"type": "custom", "handler": agent, "context": context}
    result = run_scenarios([scenario("s", turns=[*turns], tools=tools, **session)], agent=custom, **settings)
    return result.scenarios[0].conversations[0].conversation


def why(conversation: Conversation) -> str:
    assert conversation.failure is not None
    assert conversation.failure.blame is Blame.AGENT
    return conversation.failure.message


SCENARIOS = """
from agentest import call, scenario
stock, done = {"check_stock": 7}, {"reserved": True}
expected = {"match_mode": "strict", "expected": [call("check_stock", item="lamp")]}
ban = {"forbidden": ["reserve_item"]}
scenario("tells the stock", turns=["stock lamp"], tools=stock, trajectory=expected)
scenario("remembers", turns=["remember blue", {"user_message": "recall", "expect": {"contains": "blue"}}])
scenario("knows nothing of others", turns=[{"user_message": "recall", "expect": {"contains": "nothing"}}])
scenario("keeps a ban", turns=["stock lamp"], tools=stock, trajectory=ban)
scenario("breaks a ban", turns=["reserve lamp"], tools={**stock, "reserve_item": done}, trajectory=ban)
scenario("has no mock", turns=["reserve lamp"], tools=stock)
scenario("its mock raises", turns=["stock lamp"], tools={"check_stock": lambda args, ctx: 1 / 0})
"""
STATUSES = {
    "tells the stock": "passed",
    "remembers": "passed",
    "knows nothing of others": "passed",
    "keeps a ban": "passed",
    "breaks a ban": "failed",
    "has no mock": "failed",
    "its mock raises": "passed",
}


@each_framework
def test_the_configuration_of_the_page(framework: str, project: Project) -> None:
    """The configuration that the page shows is all that a user writes: no glue, and no real tool runs."""
    page = (ROOT / "docs" / PAGES[framework]).read_text(encoding="utf-8")
    block = re.search(r"^##+ (?:In process|With mocks)\n.*?^```yaml\n(.*?)^```$", page, re.M | re.S)
    assert block is not None
    config = yaml.safe_load(block[1])
    config["agent"]["handler"] = f"shop_{framework}:agent"
    for name in ("shop_talk", f"shop_{framework}"):
        shutil.copy(SHOPS / f"{name}.py", project.root)
    project.write(
        "agentest.config.yaml", json.dumps({**config, "reporters": ["console", "json"], "strict": False})
    )
    project.write("a.sim.py", SCENARIOS)
    found = project.run()
    assert found.returncode == 1, found.stdout + found.stderr
    assert {s["name"]: s["status"] for s in project.results["scenarios"]} == STATUSES
    ended = project.scenario_result("has no mock")["conversations"][0]["error"]
    assert "called tool 'reserve_item', which has no mock" in str(ended)
    assert "let tools without a mock run, the real ones: --unmocked-tools passthrough" in str(ended)
    raised = project.scenario_result("its mock raises")["conversations"][0]["turns"][0]["toolCalls"][0]
    assert raised["result"] == {"error": "division by zero"}
    assert "really" not in (project.root / ".agentest" / "results.json").read_text(encoding="utf-8")


@each_framework
def test_fifty_conversations_at_once(framework: str) -> None:
    """Fifty conversations with one agent object have each its own calls, mocks, answers and memory."""
    made = [
        scenario(
            f"s{n}",
            turns=[f"remember word{n}", f"reserve item{n}", "recall"],
            tools={"check_stock": n, "reserve_item": lambda args, ctx: {"for": ctx.scenario, **args}},
        )
        for n in range(50)
    ]
    agent = {"type": "custom", "handler": shop(framework).agent}
    result = run_scenarios(made, agent=agent, concurrency=50)
    for n, found in enumerate(result.scenarios):
        turns = found.conversations[0].conversation.turns
        args = {"item": f"item{n}", "quantity": 2}
        assert [(c.name, c.args, c.result) for turn in turns for c in turn.tool_calls] == [
            ("check_stock", {"item": f"item{n}"}, n),
            ("reserve_item", args, {"for": f"s{n}", **args}),
        ]
        assert turns[2].agent_message == f"word{n}"
    assert really_run() == []


@each_framework
def test_tools_without_a_mock_may_run(framework: str) -> None:
    """With passthrough the real tool runs and is recorded; mocks apply in nested agents, too."""
    agent = shop(framework).agent
    conversation = talk(
        agent, "delegate reserve lamp", tools={"reserve_item": "a mock"}, unmocked_tools="passthrough"
    )
    said = "reserve: really looked for lamp; a mock"
    args: Any = {"item": "lamp", "quantity": 2}
    asked = {"request" if framework == "google_adk" else "input": "reserve lamp"}
    assert conversation.tool_calls == (
        ToolCall("ask_clerk", asked, said, False, 0, seen_by=SeenBy.AGENT),
        ToolCall("check_stock", {"item": "lamp"}, "really looked for lamp", False, 0, seen_by=SeenBy.AGENT),
        ToolCall("reserve_item", args, "a mock", True, 0),
    )
    assert conversation.turns[0].agent_message == f"delegate: {said}"
    assert really_run() == ["looked for lamp"]


@each_framework
def test_an_exception_of_a_real_tool(framework: str) -> None:
    """It is the agent's error, and its call is recorded."""
    conversation = talk(shop(framework).agent, "break lamp", unmocked_tools="passthrough")
    assert "the lamp fell" in why(conversation)
    assert conversation.unfinished is not None
    (broken,) = conversation.unfinished.tool_calls
    assert (broken.name, broken.error, broken.mocked) == ("lift", "the lamp fell", False)


@each_but_adk
def test_a_real_tool_that_hangs(framework: str) -> None:
    """A tool that never ends is given up after the time-out, by when it has been called; that is known."""
    settings: Any = {"unmocked_tools": "passthrough", "request_timeout_ms": 5_000}
    conversation = talk(shop(framework).agent, "wait", **settings)
    assert "did not answer within 5 s" in why(conversation)
    assert conversation.unfinished is not None
    assert [c.name for c in conversation.unfinished.tool_calls] == ["wait"]


each_approving = pytest.mark.parametrize(
    ("framework", "name"),
    [
        pytest.param(framework, name, marks=needs(framework))
        for framework, name in [
            ("pydantic_ai", "agent"),
            ("pydantic_ai", "guarded"),
            ("openai_agents", "agent"),
            ("langgraph", "approving"),
            ("google_adk", "agent"),
        ]
    ],
)
"""The objects whose tool `pay` waits for approval."""


@each_approving
@pytest.mark.parametrize("unmocked", ["error", "passthrough"])
def test_tools_that_wait_for_approval(framework: str, name: str, unmocked: str) -> None:
    """Without an answer, such a tool ends the conversation with a reason, and has not run."""
    tools = {"pay": 7} if unmocked == "error" else {}
    agent = getattr(shop(framework), name)
    conversation = talk(agent, "pay", tools=tools, unmocked_tools=unmocked)
    assert "waits for approval of 'pay', and the scenario has no answer" in why(conversation)
    assert "approve={'pay': True}" in why(conversation)
    assert conversation.unfinished is not None
    (call,) = conversation.unfinished.tool_calls
    assert (call.name, call.approval, call.ran) == ("pay", Approval.PENDING, False)
    assert really_run() == []


@each_approving
@pytest.mark.parametrize("approve", [True, False, {"pay": True}, {"pay": False}])
@pytest.mark.parametrize("unmocked", ["error", "passthrough"])
def test_the_scenario_answers_a_tool_that_needs_approval(
    framework: str, name: str, approve: Any, unmocked: str
) -> None:
    really_run()
    tools = {"pay": 7} if unmocked == "error" else {}
    given = scenario("s", turns=["pay", "hello"], tools=tools, approve=approve)
    agent = {"type": "custom", "handler": getattr(shop(framework), name)}
    (result,) = run_scenarios([given], agent=agent, unmocked_tools=unmocked).scenarios
    assert not [each for each in result.verdict_warnings if each.code is WarningCode.VACUOUS_CHECK]
    conversation = result.conversations[0].conversation
    assert conversation.failure is None
    (call,) = conversation.tool_calls
    is_granted = approve in (True, {"pay": True})
    assert (call.name, call.args, call.mocked) == ("pay", {"amount": 5}, is_granted and bool(tools))
    assert call.approval is (Approval.GRANTED if is_granted else Approval.DENIED)
    assert (call.result == 7) is (is_granted and bool(tools))
    assert bool(really_run()) is (is_granted and not tools)


@needs("langgraph")
@pytest.mark.parametrize("approve", [None, True])
def test_a_tool_that_asks_within(approve: bool | None) -> None:
    """A tool that asks before it acts is called again with the answer, and counts once."""
    really_run()
    given = scenario("s", turns=["pay"], **({} if approve is None else {"approve": approve}))
    agent = {"type": "custom", "handler": shop("langgraph").agent}
    (result,) = run_scenarios([given], agent=agent, unmocked_tools="passthrough").scenarios
    conversation = result.conversations[0].conversation
    (call,) = conversation.tool_calls if approve else conversation.unfinished.tool_calls  # type: ignore[union-attr]
    assert (call.name, call.ran) == ("pay", bool(approve))
    assert really_run() == (["paid 5"] if approve else [])
    if not approve:
        assert 'waits for an answer: {"approve": 5}' in why(conversation)


@needs("google_adk")
@pytest.mark.parametrize("approve", [None, True, False])
def test_a_function_that_asks_by_itself(approve: bool | None) -> None:
    really_run()
    given = scenario("s", turns=["pay"], **({} if approve is None else {"approve": approve}))
    agent = {"type": "custom", "handler": shop("google_adk").asking}
    (result,) = run_scenarios([given], agent=agent, unmocked_tools="passthrough").scenarios
    conversation = result.conversations[0].conversation
    turn = conversation.turns[0] if conversation.turns else conversation.unfinished
    assert turn is not None
    (call,) = turn.tool_calls
    decided = {None: Approval.PENDING, True: Approval.GRANTED, False: Approval.DENIED}
    assert (call.name, call.approval) == ("pay", decided[approve])
    assert really_run() == (["paid 5"] if approve else [])


@pytest.mark.parametrize(
    ("framework", "name", "raises"),
    [
        pytest.param("pydantic_ai", "undeferred", "agent raised UserError", marks=needs("pydantic_ai")),
        pytest.param("langgraph", "editing", "`allowed_decisions` rule that out", marks=needs("langgraph")),
        pytest.param("langgraph", "responding", None, marks=needs("langgraph")),
    ],
)
def test_a_tool_that_no_approval_runs(framework: str, name: str, raises: str | None) -> None:
    """It has not run, so the run goes on."""
    really_run()
    given = scenario("s", turns=["pay"], tools={"pay": 7}, approve=True)
    agent = {"type": "custom", "handler": getattr(shop(framework), name)}
    (result,) = run_scenarios([given], agent=agent).scenarios
    conversation = result.conversations[0].conversation
    if raises:
        assert conversation.failure is not None
        assert raises in conversation.failure.message
    else:
        assert [(call.name, call.ran) for call in conversation.tool_calls] == [("pay", False)]
    assert really_run() == []


@each_but_adk
def test_structured_output_is_json(framework: str) -> None:
    """A reply that is a pydantic model becomes JSON; the tool call that carries it is not recorded."""
    conversation = talk(shop(framework).structured, "stock lamp", "hello", tools={"check_stock": 7})
    assert [json.loads(turn.agent_message) for turn in conversation.turns] == [
        {"text": "stock: 7"},
        {"text": "You said: hello"},
    ]
    assert [c.name for c in conversation.tool_calls] == ["check_stock"]


@each_but_adk
def test_context_is_made_for_each_conversation(framework: str) -> None:
    """`context` makes what the agent is given, from the session's state; without it a state is refused."""
    module = shop(framework)
    passing: Any = {"state": {"customer": "Ann"}, "unmocked_tools": "passthrough"}
    assert talk(module.agent, "who", context=module.context, **passing).turns[0].agent_message == "who: Ann"
    refused = talk(module.agent, "who", **passing).failure
    assert refused is not None
    assert refused.blame is not Blame.AGENT
    assert "an agent object gets it by `context` alone" in refused.message
    raising = talk(module.agent, "who", context=lambda: 1 / 0)
    assert why(raising) == "the function that `context` names raised ZeroDivisionError: division by zero"


@each_framework
def test_tokens_and_model_calls(framework: str) -> None:
    """Each turn has the framework's counts for only that turn."""
    turns = talk(shop(framework).agent, "hello", "stock lamp", tools={"check_stock": 7}).turns
    assert [turn.model_calls for turn in turns] == [1, 2]
    if framework != "pydantic_ai":  # whose function models estimate
        assert [turn.usage for turn in turns] == [Usage(10, 3), Usage(20, 6)]
    assert all(turn.usage.prompt_tokens > 0 for turn in turns)


@needs("openai_agents")
def test_an_unconnected_mcp_server() -> None:
    """The agent's error says how to connect it, which the SDK leaves to the application."""
    agents = import_module("agents")
    server = import_module("agents.mcp").MCPServerStdio(params={"command": "shop-tools"}, name="tools")
    agent = agents.Agent(name="shop", model=shop("openai_agents").agent.model, mcp_servers=[server])
    conversation = talk(agent, "hello")
    assert "'tools' is not connected" in why(conversation)
    assert "`handler` name an async function without parameters" in why(conversation)


@needs("openai_agents")
def test_handoffs() -> None:
    """The agent handed to continues in the next turn; a handoff is not a tool call; remarks have authors."""
    conversation = talk(shop("openai_agents").agent, "to-clerk", "stock lamp", tools={"check_stock": 7})
    first, second = conversation.turns
    assert [(r.author, r.text) for r in first.remarks] == [("shop", "One moment.")]
    assert (first.author, second.author, second.agent_message) == ("clerk", "clerk", "stock: 7")
    assert [c.name for c in conversation.tool_calls] == ["check_stock"]


@needs("langgraph")
@pytest.mark.parametrize("name", ["handmade", "blocking", "make_graph"])
def test_graphs_of_many_kinds(name: str) -> None:
    """Nodes that call tools by hand, in a thread or on the event loop, get the mocks; makers are called."""

    async def slow(args: Any, ctx: Any) -> int:
        return 7

    graph = getattr(shop("langgraph"), name)
    conversation = talk(graph, "stock lamp", tools={"check_stock": slow})
    assert conversation.tool_calls == (ToolCall("check_stock", {"item": "lamp"}, 7, True, 0),)
    assert conversation.turns[0].agent_message == "stock: 7"
    assert really_run() == []


@needs("langgraph")
def test_nodes_past_the_tools() -> None:
    """A node that does without LangChain tools is seen in the messages: an error, but for passthrough."""
    hidden = shop("langgraph").hidden
    conversation = talk(hidden, "stock lamp", tools={"check_stock": 7})
    assert conversation.failure is not None
    assert conversation.failure.bypassed == ("check_stock",)
    assert (
        "ran tool 'check_stock' itself: no mock was called, and the real tool ran"
        in conversation.failure.message
    )
    assert conversation.unfinished is not None
    assert [(c.name, c.mocked) for c in conversation.unfinished.tool_calls] == [("check_stock", False)]
    passed = talk(hidden, "stock lamp", unmocked_tools="passthrough")
    assert [(c.name, c.result) for c in passed.tool_calls] == [("check_stock", "really check_stock")]
    really_run()


@needs("langgraph")
def test_runnables() -> None:
    """A Runnable that takes messages is an agent whose tool calls the mocks answer."""
    conversation = talk(
        shop("langgraph").chain, "remember blue", "stock lamp", "recall", tools={"check_stock": 7}
    )
    assert [turn.agent_message for turn in conversation.turns] == [
        "You said: remember blue",
        "stock: 7",
        "blue",
    ]
    assert conversation.tool_calls == (ToolCall("check_stock", {"item": "lamp"}, 7, True, 1),)


@needs("langgraph")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("not_compiled", "found a StateGraph; it is not compiled: name what its `.compile()` returns"),
        ("without_messages", "the state of the graph has no `messages`, but `question`"),
        ("of_a_name", "the Runnable takes `name`; expected one that takes a list of messages, or `messages`"),
        ("TOOLS", "; expected a function (messages, ctx), an agent object of one of these frameworks"),
    ],
)
def test_invalid_agents(name: str, problem: str) -> None:
    """They are refused with a reason before the first conversation."""
    with pytest.raises(ConfigError) as caught:
        run_scenarios(
            [scenario("s", turns=["Hi"])], agent={"type": "custom", "handler": f"shop_langgraph:{name}"}
        )
    assert problem in str(caught.value)


@each_but_adk
def test_outside_of_runs_nothing_has_changed(framework: str) -> None:
    """The agent and its tools are what they were: who runs it without Agentest gets the real ones."""
    module = shop(framework)
    talk(module.agent, "stock lamp", tools={"check_stock": 7})
    assert really_run() == []
    if framework == "pydantic_ai":
        asyncio.run(module.clerk.run("stock lamp"))
    elif framework == "openai_agents":
        asyncio.run(import_module("agents").Runner.run(module.clerk, "stock lamp"))
    else:
        asyncio.run(module.clerk.ainvoke({"messages": [("user", "stock lamp")]}))
    assert really_run() == ["looked for lamp"]
