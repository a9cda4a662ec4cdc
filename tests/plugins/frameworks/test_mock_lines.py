"""`agentest.mocks.langchain` and the like with real frameworks: one line in a handler or an application.

They run if the frameworks are installed with Agentest; otherwise they are skipped.
"""

from __future__ import annotations

import asyncio
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentest import scenario
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Blame, Conversation
from agentest.testing import run_scenarios

SHOPS = Path(__file__).parent / "objects"
PACKAGES = {
    "langgraph": "langgraph",
    "openai_agents": "agents.lifecycle",  # not `agents`: that is a folder here, too
    "pydantic_ai": "pydantic_ai",
    "pydantic_ai_toolsets": "pydantic_ai",
    "google_adk": "google.adk",
}
REQUIRED = "AGENTEST_FRAMEWORKS" in os.environ

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]


def _is_missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:
        return True


each = pytest.mark.parametrize(
    "framework",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(not REQUIRED and _is_missing(package), reason="it is not installed"),
        )
        for name, package in PACKAGES.items()
    ],
)
each_place = pytest.mark.parametrize("place", ["handler", "app"])


@pytest.fixture(autouse=True)
def _shops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SHOPS))


def agent_of(framework: str, place: str) -> dict[str, Any]:
    shops: Any = import_module("line_shops")
    if place == "handler":
        return {"type": "custom", "handler": shops.handler_of(framework)}
    http = {"type": "http", "endpoint": "/", "body": {"message": "{{message}}"}, "reply": "reply"}
    return {**http, "app": shops.app_of(framework), "tool_visibility": "returned"}


def really_run() -> list[str]:
    ran: list[str] = import_module("shop_talk").REAL
    found = [*ran]
    ran.clear()
    return found


def talk(agent: Any, *turns: str, tools: Any, trajectory: Any = None, **settings: Any) -> Any:
    checks = {"trajectory": trajectory} if trajectory else {}
    made = scenario("s", turns=[*turns], tools=tools, **checks)
    return run_scenarios([made], agent=agent, **settings).scenarios[0]


def told(result: Any) -> Conversation:
    found: Conversation = result.conversations[0].conversation
    return found


@each
@each_place
def test_many_conversations_at_once(framework: str, place: str) -> None:
    """Fifty conversations at once: each has its own mocks' answers and its own calls; nothing real runs."""
    made = [
        scenario(
            f"s{n}",
            turns=[f"reserve item{n}", f"stock item{n}"],
            tools={"check_stock": n, "reserve_item": lambda args, ctx: {"for": ctx.scenario, **args}},
        )
        for n in range(50)
    ]
    result = run_scenarios(made, agent=agent_of(framework, place), concurrency=50)
    for n, found in enumerate(result.scenarios):
        args = {"item": f"item{n}", "quantity": 2}
        assert [(c.name, c.args, c.result, c.seen_by) for c in told(found).tool_calls] == [
            ("check_stock", {"item": f"item{n}"}, n, SeenBy.CALLER),
            ("reserve_item", args, {"for": f"s{n}", **args}, SeenBy.CALLER),
            ("check_stock", {"item": f"item{n}"}, n, SeenBy.CALLER),
        ]
        assert told(found).turns[1].agent_message == f"stock: {n}"
    assert really_run() == []


@each
@each_place
def test_planted_bugs(framework: str, place: str) -> None:
    """A banned call is caught, an unmocked one ends the conversation, a mock that raises is answered."""
    agent = agent_of(framework, place)
    ban = {"forbidden": ["reserve_item"]}
    tools = {"check_stock": 7, "reserve_item": "done"}
    assert not talk(agent, "reserve lamp", tools=tools, trajectory=ban).verdict.passed
    assert talk(agent, "stock lamp", tools=tools, trajectory=ban).verdict.passed
    failure = told(talk(agent, "reserve lamp", tools={"check_stock": 7})).failure
    assert failure is not None
    assert failure.blame is Blame.AGENT
    assert "called tool 'reserve_item', which has no mock" in failure.message
    assert "let tools without a mock run, the real ones: --unmocked-tools passthrough" in failure.message
    raised = told(talk(agent, "stock lamp", tools={"check_stock": lambda args, ctx: 1 / 0}))
    assert raised.tool_calls[0].result == {"error": "division by zero"}
    assert "division by zero" in raised.turns[0].agent_message or framework == "google_adk"
    assert really_run() == []


@each
@each_place
def test_tools_without_a_mock_may_run(framework: str, place: str) -> None:
    """With passthrough the real tool runs, and is recorded with what it returned."""
    found = told(
        talk(
            agent_of(framework, place),
            "reserve lamp",
            tools={"reserve_item": "a mock"},
            unmocked_tools="passthrough",
        )
    )
    assert [(c.name, c.result, c.mocked, c.seen_by) for c in found.tool_calls] == [
        ("check_stock", "really looked for lamp", False, SeenBy.AGENT),
        ("reserve_item", "a mock", True, SeenBy.CALLER),
    ]
    assert really_run() == ["looked for lamp"]


@each
def test_outside_of_runs_the_real_tools_run(framework: str) -> None:
    """The line may stay in an application: without a run it changes nothing."""
    answer = import_module("line_shops").MAKERS[framework](None)
    assert asyncio.run(answer("stock lamp")) == "stock: really looked for lamp"
    assert really_run() == ["looked for lamp"]


@each
def test_names_descriptions_and_schemas_stay(framework: str) -> None:
    """The model gets the same declarations as without mocks."""
    mocks: Any = import_module("agentest.mocks")
    if framework == "langgraph":
        shop = import_module("shop_langgraph")
        (asking,) = mocks.langchain([shop.check_stock])
        assert (asking.name, asking.description) == ("check_stock", "Look for an item.")
        described = import_module("langchain_core.utils.function_calling").convert_to_openai_tool
        assert described(asking) == described(shop.check_stock)
        assert mocks.langchain([{"type": "web_search"}]) == [{"type": "web_search"}]
    elif framework == "openai_agents":
        shop = import_module("shop_openai_agents")
        (asking,) = mocks.openai_agents([shop.check_stock])
        assert asking.params_json_schema == shop.check_stock.params_json_schema


@each
@pytest.mark.parametrize("unmocked_tools", ["error", "passthrough"])
def test_an_agent_object_with_the_line(framework: str, unmocked_tools: str) -> None:
    """An agent whose code has the line is tested as an agent object, too: each call is answered once."""
    agent = import_module("line_shops").object_of(framework)
    custom = {"type": "custom", "handler": agent}
    found = told(
        talk(custom, "reserve lamp", tools={"check_stock": 1, "reserve_item": 2}, unmocked_tools="error")
        if unmocked_tools == "error"
        else talk(custom, "reserve lamp", tools={"reserve_item": 2}, unmocked_tools="passthrough")
    )
    stock = 1 if unmocked_tools == "error" else "really looked for lamp"
    assert [(c.name, c.result) for c in found.tool_calls] == [("check_stock", stock), ("reserve_item", 2)]
    assert really_run() == ([] if unmocked_tools == "error" else ["looked for lamp"])
