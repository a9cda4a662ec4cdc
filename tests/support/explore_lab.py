"""Explorations of small agents over HTTP in this process: agents are functions of the messages so far."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import hurrying
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from http_agents import opened, served, settings

from agentest.agents.port import Agent
from agentest.config.config import ExploreSettings
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import ScriptedUser
from agentest.domain.results import ConversationResult
from agentest.domain.results.exploration import ExploredPart, Finding, FindingRate
from agentest.judging.conversation_checks import check_conversation
from agentest.mocks.resolver import MockResolver
from agentest.plugins.explore.corpus import Corpus
from agentest.plugins.explore.exploration import ConversationBudget, Exploration
from agentest.plugins.explore.injection_sweep import InjectionSweep
from agentest.plugins.explore.invariants import ScenarioInvariants
from agentest.plugins.explore.model import Base, Observe, Reduced, Save, Vary, Violation
from agentest.plugins.explore.mutation_sweep import MutationSweep
from agentest.runner.plan import Unit
from agentest.scenarios.definition import build_scenario
from agentest.scenarios.model import Scenario
from agentest.scenarios.variations import acted
from agentest.support.lazy_dataclasses import replace
from agentest.trajectory.matcher import TrajectoryMatcher

Act = str | tuple[str, dict[str, Any]]
"""What an agent does next: it replies with a text, or calls a tool."""


@dataclass
class Seen:
    """What an agent reads from its messages."""

    messages: list[dict[str, Any]]
    users: list[str] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """All calls so far."""
    results: list[tuple[str, Any]] = field(default_factory=list)
    """Tool and result of each call since the user's last message."""

    def __post_init__(self) -> None:
        names: dict[str, str] = {}
        for each in self.messages:
            if each["role"] == "user":
                self.users.append(each["content"])
                self.results = []
            elif each["role"] == "assistant":
                for call in each.get("tool_calls") or ():
                    function = call["function"]
                    names[call["id"]] = function["name"]
                    self.calls.append((function["name"], json.loads(function["arguments"])))
                if each.get("content"):
                    self.replies.append(each["content"])
            elif each["role"] == "tool":
                self.results.append((names[each["tool_call_id"]], _value(each["content"])))

    @property
    def said(self) -> str:
        """The user's last message."""
        return self.users[-1]

    @property
    def made(self) -> list[str]:
        """The tools called since the user's last message."""
        return [name for name, _ in self.results]

    def result(self, tool: str) -> Any:
        """The last result of a tool in this turn."""
        return next((result for name, result in reversed(self.results) if name == tool), None)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


Brain = Callable[[Seen], Act]
SPEAKS: dict[str, Any] = {
    "type": "chat_completions",
    "body": {"messages": [{"role": "system", "content": "Today is {{date}}."}]},
}


@contextmanager
def endpoint_of(brain: Brain) -> Iterator[str]:
    """The address of an HTTP agent that runs this function in its own thread."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_served(brain)) as url:
        yield f"{url}/chat"


@asynccontextmanager
async def agent_of(brain: Brain) -> AsyncIterator[Agent]:
    """The client of an HTTP agent that runs this function."""
    async with _served(brain) as url, opened(settings(url, SPEAKS)) as agent:
        yield agent


def _served(brain: Brain) -> AbstractAsyncContextManager[str]:
    async def chat(request: web.Request) -> web.Response:
        messages = (await request.json())["messages"]
        act = brain(Seen(messages))
        message: dict[str, Any] = {"role": "assistant", "content": act if isinstance(act, str) else None}
        if not isinstance(act, str):
            function = {"name": act[0], "arguments": json.dumps(act[1])}
            message["tool_calls"] = [{"id": f"c{len(messages)}", "type": "function", "function": function}]
        return web.json_response({"choices": [{"message": message}]})

    return served({"POST /chat": chat})


def unit_of(scenario: Scenario) -> Unit:
    """The unit of a scenario."""
    run = acted(scenario)
    turns = len(run.turns) + 1
    return Unit(run, "agent", "a.sim.py", scenario.name, "a", 3, turns, (), {}, written=scenario)


async def converse(agent: Agent, scenario: Scenario, name: str) -> ConversationResult:
    """One judged conversation, without metrics."""
    mocks = MockResolver(scenario.tools, scenario="s", conversation_id=name, state=scenario.state)
    user = ScriptedUser([turn.user_message for turn in scenario.turns])
    turns, keeps_state = len(scenario.turns) + 1, scenario.keeps_state
    spec = ConversationSpec(name, "s", turns, date=scenario.date, keeps_state=keeps_state)
    loop = TurnLoop(spec, agent, user, mocks)
    conversation = await loop.run()
    calls = [(each, conversation.tool_calls) for each in scenario.trajectory]
    for scripted, turn in zip(scenario.turns, conversation.turns, strict=False):
        calls += [(each, turn.tool_calls) for each in scripted.trajectory]
    matches = (TrajectoryMatcher(each).match(made, len(conversation.turns)) for each, made in calls)
    missed = next((each for each in matches if not each.matched), None)
    checks = await check_conversation(scenario, conversation)
    return ConversationResult(conversation, trajectory=missed, checks=checks)


class Confirming:
    """Confirms a candidate with five conversations, and reduces nothing (`ReductionTrial`)."""

    def __init__(
        self,
        scenario: Scenario,
        name: str,
        observe: Observe,
        violation_in: Callable[[Scenario, ConversationResult], Violation | None],
    ) -> None:
        self.scenario, self.name, self.observe, self.violation_in = scenario, name, observe, violation_in
        self.form: Any = None

    async def confirm(self) -> Reduced | None:
        results = [await self.observe(self.scenario, f"{self.name} {n}", n) for n in range(5)]
        found = [(each, seen) for each in results if (seen := self.violation_in(self.scenario, each))]
        if not found or len(found) / len(results) < found[0][1].least_rate:
            return None
        rate = FindingRate(len(found), len(results), 0.0, 1.0)
        self.form = Reduced(self.scenario, *found[0], rate)
        return self.form  # type: ignore[no-any-return]

    async def shrink(self) -> Reduced:
        return self.form  # type: ignore[no-any-return]

    measure = shrink


def explored(
    brain: Brain,
    parts: Mapping[ExploredPart, Vary] | None = None,
    conversations: int = 400,
    seed: int = 0,
    config: ExploreSettings | None = None,
    reduce: Callable[..., Any] | None = None,
    save: Save | None = None,
    corpus: Corpus | None = None,
    tried: list[str] | None = None,
    others: Sequence[Mapping[str, Any]] = (),
    instructions: str = "",
    **options: Any,
) -> list[Finding]:
    """The confirmed findings of an exploration of one scenario, which must pass as it is.

    Args:
        others: the options of more scenarios.
        tried: receives the names of the variations in the order of trying.
    """
    units = [
        unit_of(build_scenario({"name": f"s{n}", **each}, "/a.sim.py", 1))
        for n, each in enumerate((options, *others))
    ]
    units = [
        replace(each, traits=replace(each.traits, instructions=instructions), scope=each.scenario.name)
        for each in units
    ]
    parts = parts or {
        ExploredPart.INJECTIONS: InjectionSweep(),
        ExploredPart.MUTATIONS: MutationSweep(),
    }

    async def run() -> list[Finding]:
        async with agent_of(brain) as agent:
            bases: list[Base] = []
            for unit in units:
                results = [await converse(agent, unit.scenario, f"base {n}") for n in range(3)]
                for each in results:
                    assert each.conversation.failure is None, each.conversation.failure
                    assert all(check.passed for check in each.checks), each.checks
                bases.append(Base(unit, results, config or ExploreSettings(), bases))

            async def observe(scenario: Scenario, name: str, number: int) -> ConversationResult:
                if tried is not None and " · " not in name and number == 1:
                    tried.append(name)
                return await converse(agent, acted(scenario), f"{name} {number}")

            exploration = Exploration(
                parts=parts,
                invariants=ScenarioInvariants(config or ExploreSettings()),
                reduce=reduce or Confirming,
                save=save,
                budget=ConversationBudget(conversations),
                seed=seed,
                **({"entries": corpus.read(), "keep": corpus.add} if corpus else {}),
            )
            await exploration.run(bases, lambda _: observe)
            return [each for each in exploration.explored().findings if each.rate]

    found: list[Finding] = hurrying.run(run)
    return found
