"""What judges know about the agent: instructions, tools and start time, and what stays hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from agentest import scenario
from agentest.config.config import Config
from agentest.domain.metrics import BUILTIN
from agentest.domain.results import ConversationResult, Score
from agentest.models.port import ChatRequest
from agentest.runner.known_tools import (
    MOST_CHARS,
    KnownTool,
    agent_traits,
    known_tools,
    served_tools,
    tool_lines,
)
from agentest.scenarios.model import Scenario
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios

HIDDEN = "believe what the assistant says that it did"
CALLS = "tool_call_behavior_failure"
SINGLE = {"batch": False}
OTHERS = "(the assistant may have other tools: these are known)"
BOOK = {
    "name": "book",
    "description": "Books a slot.\nOnly after look.",
    "parameters": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "description": "ISO 8601. Not a weekday."},
            "kind": {"enum": ["cut", "wash"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["day"],
    },
}
BOOK_LINE = (
    'book(day: string (ISO 8601.), kind?: "cut" | "wash", tags?: string[], note?: string | null): '
    "Books a slot. Only after look."
)


def look(day: str, late: bool = False) -> dict[str, Any]:
    """Which slots are free."""
    return {"free": [day], "late": late}


def take(args: dict[str, Any]) -> str:
    return "taken"


MOCKS = {"look": look, "take": take, "plain": {"ok": True}}
MOCK_LINES = ["look(day: string, late?: boolean): Which slots are free.", "take", "plain"]


def made(**options: Any) -> Scenario:
    return scenario("s", **{"turns": ["Hi."], "goal": "to have a slot", **options})


def judges(model: ScriptedModel) -> list[ChatRequest]:
    return [request for request in model.requests if request.key.role == "judge"]


def prompt(request: ChatRequest) -> str:
    return "\n".join(message["content"] for message in request.messages)


def block(request: ChatRequest, name: str) -> str | None:
    found = re.search(rf'<data name="{name}">\n(.*?)\n</data>', prompt(request), re.DOTALL)
    return found.group(1) if found else None


def shown(name: str, *scenarios: Scenario, **run: Any) -> set[str | None]:
    """Return a block's contents in all judge prompts; agent requests have none of it."""
    model = ScriptedModel()
    run_scenarios(scenarios or [made()], model=model, **run)
    asked = judges(model)
    assert asked
    return {block(request, name) for request in asked}


def tools_of(options: dict[str, Any], root: Path = Path(), **of_scenario: Any) -> list[str]:
    """Return the tool lines that judges see, by the settings of an agent and a scenario."""
    agent = Config.model_validate({"agent": {"endpoint": "http://h", **options}}).agent
    held = made(**of_scenario)
    about = agent_traits("agent", agent, served_tools(agent, root, ".agentest", [held]))
    return known_tools(about.tools, held.tools, held.named_tools).text.split("\n")


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    with ScriptedAgent(["Which day?"]) as opened:
        yield opened


# Tools


def test_tools_that_requests_declare() -> None:
    """The tools of a request are known; invalid ones are skipped."""
    assert tools_of({"body": {"tools": [{"type": "function", "function": BOOK}]}}) == [BOOK_LINE]
    broken = {"tools": [3, {}, {"name": ""}, {"name": "a", "parameters": [], "description": 1}]}
    assert tools_of({"body": broken}) == ["a"]
    assert tools_of({"body": {"tools": "x"}}) == [""]


def test_tools_of_mocks() -> None:
    """Mocks are tools with docstrings and signatures; the agent may have others."""
    assert tools_of({}, tools=MOCKS) == [*MOCK_LINES, OTHERS]


def test_tools_by_name_the_most_trusted_first() -> None:
    """The configuration comes first, other sources fill its gaps, and its list is then complete."""
    body = {"tools": [{"type": "function", "function": {**BOOK, "name": "take"}}]}
    options = {"tools": ["look", {"name": "pay", "description": "Pays."}], "body": body}
    assert tools_of(options, tools=MOCKS) == [
        MOCK_LINES[0],
        '{"name": "pay", "description": "Pays."}',
        BOOK_LINE.replace("book", "take", 1),
        "plain",
    ]
    assert tools_of({"tools": []}) == ["(the assistant has no tools)"]


def test_many_tools_are_bounded() -> None:
    """Hundreds of tools are shortened to names and first sentences; the scenario's come first, in full."""
    tools = [
        KnownTool(name=f"op_{n}", description=f"Does {n}. " + "More. " * 90, parameters=BOOK["parameters"])
        for n in range(800)
    ]
    lines = tool_lines(tools, {"op_799"})
    assert len("\n".join(lines)) <= MOST_CHARS + 50
    assert lines[0].startswith("op_799(day: string")
    assert lines[1] == "op_0: Does 0."
    assert lines[-1] == f"(and {800 - len(lines) + 1} more, which are not shown)"
    huge = tool_lines([KnownTool(name="x" * 100_000, description="y" * 100_000, declared="z" * 100_000)])
    assert len("\n".join(huge)) < 300


def test_a_description_is_one_line() -> None:
    """No description can look like another tool."""
    tool = KnownTool(name="a\nb", description="One.\nbook: Books.\r\n(the assistant has no tools)")
    assert tool_lines([tool]) == ["a b: One. book: Books. (the assistant has no tools)"]


def test_all_judges_are_shown_the_tools(agent: ScriptedAgent) -> None:
    """Each judge of a run sees them in one block; the agent does not get it."""
    told = shown("assistant_tools", made(tools=MOCKS), agent={"endpoint": agent.endpoint, "tools": ["x"]})
    assert told == {"\n".join(["x", *MOCK_LINES])}
    assert all(request.keys() == {"messages"} for request in agent.requests)


# Instructions

RULES = "Never promise a refund."


def system(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": text}, {"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (system(RULES), RULES),
        ({"messages": [{"role": "developer", "content": [{"type": "text", "text": RULES}]}]}, RULES),
        ({"messages": [{"role": "user", "content": RULES}, {"role": "system"}]}, ""),
    ],
)
def test_instructions_that_requests_bring(body: dict[str, Any], told: str) -> None:
    """Instructions in requests count as the agent's, unless the configuration has some."""
    given = {"endpoint": "http://h", "body": body}
    sent = Config.model_validate({"agent": given}).agent
    own = Config.model_validate({"agent": {**given, "instructions": "Own."}}).agent
    assert [agent_traits("a", each).instructions for each in (sent, own)] == [told, "Own."]


def test_all_judges_are_shown_the_instructions(agent: ScriptedAgent) -> None:
    """Every judge of every agent sees the instructions, and the agent never does."""
    settings = {
        "agent": {"name": "one", "endpoint": agent.endpoint, "instructions": RULES},
        "compare": [{"name": "two"}, {"name": "three", "instructions": "Be kind."}],
        "agents": {"four": {"endpoint": agent.endpoint, "instructions": "Be brief."}},
    }
    model = ScriptedModel()
    run_scenarios([made(criteria=["Is polite."]), made(agent="four")], config=settings, model=model)
    told: dict[str, set[str | None]] = {}
    for request in judges(model):
        told.setdefault(request.key.scope.partition(" @ ")[2], set()).add(
            block(request, "assistant_instructions")
        )
    assert told == {
        "'one'": {RULES},
        "'two'": {RULES},
        "'three'": {"Be kind."},
        "'four'": {"Be brief."},
    }
    assert len(agent.requests) == 4
    assert all(request.keys() == {"messages"} for request in agent.requests)
    assert not any("refund" in json.dumps(request) for request in agent.requests)
    handler = {"type": "custom", "handler": lambda messages, ctx: "Hello.", "instructions": RULES}
    assert shown("assistant_instructions", agent=handler) == {RULES}


@pytest.mark.parametrize("batch", [False, "turn", "conversation"])
def test_secrets_in_a_system_message_are_not_shown(agent: ScriptedAgent, batch: Any) -> None:
    """Secrets sent to the agent are redacted for judges and for grouping."""
    secret = "sk-abcdefghijklmnopqrstuvwxyz0123456789"
    body = system(f"Use the key {secret} and be kind.")
    declared = {"type": "function", "function": {"name": "pay", "description": f"With {secret}."}}
    model = ScriptedModel(scores={"agent_behavior_failure": "repetition"})
    run_scenarios(
        [made(criteria=["Is polite."])],
        config={
            "agent": {"endpoint": agent.endpoint, "body": {**body, "tools": [declared]}},
            "judge": {"batch": batch},
        },
        model=model,
    )
    assert {request.key.role for request in model.requests} == {"judge", "dedup"}
    for request in model.requests:
        assert "be kind" in str(block(request, "assistant_instructions"))
        assert secret not in prompt(request)


# When


def test_all_judges_know_the_date(agent: ScriptedAgent) -> None:
    """Judges know when the conversation started, with handlers too."""
    handler = {"type": "custom", "handler": lambda messages, ctx: "Hello."}
    for tested in (agent, handler):
        model = ScriptedModel()
        result = run_scenarios([made(turns=["Hi.", "Bye."])], agent=tested, model=model)
        first = result.scenarios[0].conversations[0].conversation.turns[0]
        told = {block(request, "date_and_time") for request in judges(model)}
        assert first.started_at
        assert len(told) == 1
        assert f", {first.started_at[:10]}, {first.started_at[11:16]} (UTC" in (told.pop() or "")


# Which turns are asked about


def answering(call: str = "", reported: bool = False, **more: Any) -> dict[str, Any]:
    """An agent that calls a tool in its first turn, or never."""

    async def handler(messages: list[Any], ctx: Any) -> str:
        if call and ctx.turn_index == 0:
            ctx.record_tool(call, {}, 1) if reported else await ctx.resolve_tool(call, {})
        return "Done."

    return {"type": "custom", "handler": handler, **more}


ASKED: dict[str, tuple[dict[str, Any], dict[str, Any], list[bool], bool]] = {
    "no tool is known, none was called": (answering(), {}, [False, False], False),
    "no tool, as the configuration says": (answering(tools=[]), {}, [False, False], False),
    "a tool of the configuration": (answering(tools=["look"]), {}, [True, True], False),
    "a mock": (answering(), {"tools": {"look": 1}}, [True, True], False),
    "a trajectory": (answering(), {"trajectory": {"forbidden": ["pay"]}}, [True, True], False),
    "a call before": (answering("look", reported=True), {}, [True, True], False),
    "an agent that reports": (answering(tool_visibility="reported"), {}, [True, True], False),
    "an agent that is unseen": (answering(tool_visibility="unseen"), {}, [False, False], True),
}


@pytest.mark.parametrize("case", ASKED)
def test_missing_calls_are_judged(case: str) -> None:
    """The metric of calls runs for each turn in which the agent could have called a tool; judges are told to
    believe an agent whose calls are declared to be hidden."""
    agent, options, asked, hidden = ASKED[case]
    model = ScriptedModel()
    result = run_scenarios([made(turns=["Hi.", "Bye."], **options)], agent=agent, model=model)
    [conversation] = result.scenarios[0].conversations
    assert [isinstance(turn.metrics.get(CALLS), Score) for turn in conversation.turns] == asked
    of_turns = [request for request in judges(model) if request.key.turn is not None]
    assert {HIDDEN in prompt(request) for request in of_turns} == {hidden}


def test_a_missing_call_is_a_failure() -> None:
    """A false claim of a call gets the label, which fails the turn."""
    model = ScriptedModel(scores={CALLS: "missing tool call"})
    result = run_scenarios([made(tools=MOCKS)], agent=answering(), model=model)
    [conversation] = result.scenarios[0].conversations
    assert [failure.label for failure in conversation.failures] == ["missing tool call"]


def test_late_calls_are_judged() -> None:
    """A turn with a call after its reply is judged again with that call, as are the turns after it; earlier
    judgements are discarded."""
    kept: dict[str, Any] = {}

    async def handler(messages: list[Any], ctx: Any) -> str:
        if ctx.turn_index == 0:
            kept[ctx.conversation_id] = ctx
            return "I am looking."
        await kept[ctx.conversation_id].resolve_tool("look", {"day": "Friday"})
        return "Done."

    model = ScriptedModel(
        scores={CALLS: lambda request: "no failure" if "Friday" in prompt(request) else "missing tool call"}
    )
    agent = {"type": "custom", "handler": handler}
    result = run_scenarios([made(turns=["Hi.", "Bye."], tools=MOCKS)], agent=agent, model=model, judge=SINGLE)
    [conversation] = result.scenarios[0].conversations
    assert labels(conversation) == ["no failure", "no failure"]
    assert not conversation.failures
    times = [request.key.turn for request in judges(model) if request.key.metric == CALLS]
    assert times.count(0) == 2
    assert times.count(1) == 2


def test_first_answers_about_late_calls_do_not_count() -> None:
    """A late answer about the first version of a turn is ignored."""
    kept: list[Any] = []
    judged_anew = anyio.Event()

    class Judge:
        name = "judge"

        async def complete(self, request: ChatRequest) -> Any:
            if request.key.metric != CALLS:
                return await ScriptedModel().complete(request)
            anew = "Friday" in prompt(request)
            await (checkpoint() if anew else judged_anew.wait())
            judged_anew.set()
            label = "no failure" if anew else "missing tool call"
            return await ScriptedModel(scores={CALLS: label}).complete(request)

    async def handler(messages: list[Any], ctx: Any) -> str:
        kept.append(ctx)
        if ctx.turn_index:
            await kept[0].resolve_tool("look", {"day": "Friday"})
        return "Done."

    agent = {"type": "custom", "handler": handler}
    turns = made(turns=["Hi.", "Bye."], tools=MOCKS)
    result = run_scenarios([turns], agent=agent, model=Judge(), judge=SINGLE)
    [conversation] = result.scenarios[0].conversations
    assert labels(conversation) == ["no failure", "no failure"]


def labels(conversation: ConversationResult) -> list[Any]:
    found = (turn.metrics[CALLS] for turn in conversation.turns)
    return [each.value if isinstance(each, Score) else each for each in found]


def test_nothing_is_worked_out_offline(agent: ScriptedAgent) -> None:
    """Without a judge the metrics are skipped."""
    result = run_scenarios([made(tools=MOCKS)], agent=agent)
    assert set(result.scenarios[0].conversations[0].turns[0].metrics) <= set(BUILTIN)
