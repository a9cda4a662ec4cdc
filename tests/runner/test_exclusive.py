"""`exclusive`: one conversation of an agent at a time, over the whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
from project import Project

from agentest import scenario
from agentest.config.config import Config
from agentest.domain.results import RunResult
from agentest.runner.known_tools import agent_traits
from agentest.scenarios.model import Scenario
from agentest.testing import ScriptedAgent, arun_scenarios


class UnderWay:
    """Counts the concurrent conversations of two turns."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        self.most = 0
        self.order: list[str] = []

    def note(self, conversation: str, message: int) -> None:
        if message == 0:
            self.now.add(conversation)
            self.order.append(conversation)
            self.most = max(self.most, len(self.now))
        else:
            self.now.discard(conversation)


def run(scenarios: list[Scenario], **keys: Any) -> RunResult:
    async def go() -> RunResult:
        with anyio.fail_after(30):
            return await arun_scenarios(scenarios, strict=False, **keys)

    return anyio.run(go)


def test_one_conversation_at_a_time() -> None:
    """An exclusive agent's conversations run one by one, in order over all its scenarios, and use one place,
    while another agent's run concurrently."""
    alone, beside = UnderWay(), UnderWay()
    all_here = anyio.Event()

    async def exclusive(messages: list[dict[str, Any]], ctx: Any) -> str:
        alone.note(ctx.conversation_id, ctx.turn_index)
        await (all_here.wait() if ctx.conversation_id == "s0@agent-1" else anyio.lowlevel.checkpoint())
        return "ok"

    async def other(messages: list[dict[str, Any]], ctx: Any) -> str:
        beside.note(ctx.conversation_id, ctx.turn_index)
        if beside.most == 3:
            all_here.set()
        await all_here.wait()
        return "ok"

    config = {
        "agent": {"type": "custom", "handler": exclusive, "exclusive": True},
        "agents": {"other": {"type": "custom", "handler": other}},
    }
    mine = [scenario(f"s{n}", turns=["a", "b"], conversations_per_scenario=2) for n in range(4)]
    others = [scenario("t", turns=["a", "b"], conversations_per_scenario=3, agent="other")]
    result = run([*mine, *others], config=config, concurrency=4)
    assert [s.totals.conversations for s in result.scenarios] == [2, 2, 2, 2, 3]
    assert all(s.verdict.passed for s in result.scenarios)
    assert (alone.most, beside.most) == (1, 3)
    assert alone.order == [f"s{n}@agent-{m}" for n in range(4) for m in (1, 2)]


def test_one_conversation_at_a_time_over_all_workers(tmp_path: Path) -> None:
    """This also holds with several workers, and for an override of `compare` at the same address."""
    seen = UnderWay()

    def answer(body: dict[str, Any]) -> str:
        said = [message["content"] for message in body["messages"] if message["role"] == "user"]
        seen.note(f"{body['who']} {said[0]}", len(said) - 1)
        return "ok"

    project = Project(tmp_path)
    project.scenario(
        "\n".join(f'scenario("s{n}", turns=["c{n}", "b"], expect={{"says": "ok"}})' for n in range(6))
    )
    with ScriptedAgent(answer) as server:
        agent = f"{{endpoint: '{server.endpoint}', body: {{who: x}}, exclusive: true}}"
        project.write(
            "agentest.config.yaml",
            f"agent: {agent}\ncompare: [{{name: b, body: {{who: y}}}}]\nconcurrency: 8\n",
        )
        done = project.run("--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (len(seen.order), seen.most) == (12, 1)


def test_which_agents_share_a_queue() -> None:
    """Agents at one address share a queue, handlers have their own; others need none."""
    http = {"endpoint": "http://h/v1", "exclusive": True}
    handler = {"type": "custom", "handler": "a:b", "exclusive": True}
    agents = Config.model_validate(
        {
            "agent": http,
            "compare": [{"name": "b", "body": {"x": 1}}, {"name": "c", "exclusive": False}],
            "agents": {"d": handler, "e": handler},
        }
    )
    known = [agents.agent, *agents.compare, *agents.agents.values()]
    lines = [agent_traits(agent.name, agent).queue for agent in known]
    assert lines == ["http://h/v1", "http://h/v1", None, "d", "e"]
