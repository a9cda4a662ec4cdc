"""`parallel`: whether conversations of one scenario run concurrently."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest
from project import Project

from agentest import scenario
from agentest.domain.events import ConversationFinished, Event
from agentest.domain.results import RunResult, Status
from agentest.models.port import ChatRequest
from agentest.runner.session import Stop
from agentest.scenarios.model import Scenario
from agentest.support.errors import ScenarioError
from agentest.testing import ScriptedAgent, ScriptedModel, arun_scenarios


def four(name: str, **options: Any) -> Scenario:
    return scenario(name, turns=["a", "b"], conversations_per_scenario=4, **options)


class BackEnd:
    """An agent that counts the concurrent conversations of each scenario.

    Those of scenarios in `together` wait for each other at their first turn.
    """

    def __init__(self, together: str = "") -> None:
        self.most: Counter[str] = Counter()
        self.order: list[str] = []
        self._now: Counter[str] = Counter()
        self._together = together
        self._all_here = anyio.Event()

    async def __call__(self, messages: list[dict[str, Any]], ctx: Any) -> str:
        if len(messages) == 1:
            self.order.append(ctx.conversation_id)
            self._now[ctx.scenario] += 1
            self.most[ctx.scenario] = max(self.most[ctx.scenario], self._now[ctx.scenario])
            if ctx.scenario == self._together:
                await self._meet()
        else:
            self._now[ctx.scenario] -= 1
        return "ok"

    async def _meet(self) -> None:
        if self._now[self._together] == 4:
            self._all_here.set()
        await self._all_here.wait()


def run(scenarios: list[Scenario], agent: Any, **keys: Any) -> RunResult:
    async def go() -> RunResult:
        with anyio.fail_after(30):
            return await arun_scenarios(scenarios, agent=agent, strict=False, **keys)

    return anyio.run(go)


@pytest.mark.parametrize("configured", [True, False])
def test_a_scenario_overrides_the_configuration(configured: bool) -> None:
    """A scenario's `parallel` counts, or else the configuration's; the default is concurrent."""
    agent = BackEnd(together="beside")
    own = {"beside": True, "turns": False} if configured is False else {"beside": None, "turns": False}
    scenarios = [four(name, parallel=parallel) for name, parallel in own.items()]
    result = run(scenarios, agent, parallel=configured)
    assert [s.verdict.status for s in result.scenarios] == [Status.PASSED] * 2
    assert agent.most == {"beside": 4, "turns": 1}
    assert [id for id in agent.order if id.startswith("turns")] == [f"turns-{n}" for n in (1, 2, 3, 4)]


def test_every_scenario_has_a_place_of_its_own() -> None:
    """Conversations of different scenarios run concurrently, up to `concurrency`."""
    here, all_here = 0, anyio.Event()

    async def agent(messages: list[dict[str, Any]], ctx: Any) -> str:
        nonlocal here
        here += 1
        if here == 3:
            all_here.set()
        await all_here.wait()
        return "ok"

    result = run([four(f"s{n}") for n in range(3)], agent, parallel=False, concurrency=3)
    assert all(s.verdict.passed for s in result.scenarios)


def test_the_next_one_does_not_wait_for_judges() -> None:
    """A conversation starts when the previous one ends, before any judge has answered."""
    agent, released = BackEnd(), anyio.Event()

    class Late:
        name = "late"

        async def complete(self, request: ChatRequest) -> Any:
            if request.key.role == "judge":
                await released.wait()
            return await ScriptedModel().complete(request)

    async def last_one_releases(messages: list[dict[str, Any]], ctx: Any) -> str:
        reply = await agent(messages, ctx)
        if len(messages) > 1 and ctx.conversation_id == "s-4":
            released.set()
        return reply

    result = run(
        [four("s", goal="g", parallel=False)],
        last_one_releases,
        model=Late(),
        concurrency=1,
        metrics=["coherence"],
    )
    assert agent.most == {"s": 1}
    assert result.scenarios[0].averages == {"coherence": 5.0}


def test_a_stop_starts_no_further_one() -> None:
    """After a stop, finished conversations are kept and no further one starts."""
    begun = []

    async def agent(messages: list[dict[str, Any]], ctx: Any) -> str:
        if len(messages) == 1:
            begun.append(ctx.conversation_id)
        if ctx.conversation_id == "s-2":
            await anyio.sleep_forever()
        return "ok"

    async def go() -> RunResult:
        stop = Stop()

        def on_event(event: Event) -> None:
            if isinstance(event, ConversationFinished):
                stop.interrupt()

        return await arun_scenarios([four("s", parallel=False)], agent=agent, on_event=on_event, stop=stop)

    result = anyio.run(go)
    assert result.interrupted
    assert len(result.scenarios[0].conversations) == 1
    assert begun == ["s-1", "s-2"]
    assert result.scenarios[0].verdict.status is Status.ERRORED


def test_values_other_than_booleans_are_refused() -> None:
    """The error has file, line, scenario, option and the value."""
    with pytest.raises(ScenarioError, match=r"test_parallel.py:\d+: scenario 's': parallel: expected True"):
        four("s", parallel="no")
    with pytest.raises(ScenarioError, match="unknown option `paralel`; did you mean `parallel`"):
        four("s", paralel=False)


def test_workers_run_a_sequence_in_order(tmp_path: Any) -> None:
    """A sequence runs in one worker, one conversation at a time, and is complete when judged again."""
    project, now, most = Project(tmp_path), Counter[str](), Counter[str]()

    def answer(body: dict[str, Any]) -> str:
        which = body["messages"][0]["content"]
        now[which] += 1 if len(body["messages"]) == 1 else -1
        most[which] = max(most[which], now[which])
        return "ok"

    project.scenario("for n in 'ab':\n    scenario(n, turns=[n, 'bye'], conversations_per_scenario=3)")
    with ScriptedAgent(answer) as agent:
        project.config(agent.endpoint, parallel=False)
        done = project.run("--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert most == {"a": 1, "b": 1}
    again = project.agentest("judge", ".agentest/journal.jsonl")
    assert again.returncode == 0, again.stdout + again.stderr
