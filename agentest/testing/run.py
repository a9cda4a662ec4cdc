"""Running scenarios from Python, against an agent and a model of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import anyio

from agentest.agents.open import make_agents
from agentest.config.config import Config
from agentest.events import Event
from agentest.http.client import open_client
from agentest.http.guard import AddressGuard
from agentest.llm.live import Patience
from agentest.llm.open import Models, scripted
from agentest.llm.port import ChatModel, Ledger
from agentest.results import RunResult
from agentest.run.plan import Options, make_plan
from agentest.run.runner import Ports, run
from agentest.run.seeing import check_mocks
from agentest.run.settings import Settings
from agentest.run.sources import LiveHolder
from agentest.run.stop import Stop
from agentest.scenarios.definition import Scenario
from agentest.scenarios.discovery import Discovered
from agentest.testing.agent import ScriptedAgent

AgentLike = ScriptedAgent | str | Callable[..., Any] | Mapping[str, Any]


def _ignore(_: Event) -> None:
    """Nobody listens."""


def run_scenarios(
    scenarios: Iterable[Scenario],
    *,
    agent: AgentLike | None = None,
    model: ChatModel | None = None,
    options: Options | None = None,
    on_event: Callable[[Event], object] = _ignore,
    **config: Any,
) -> RunResult:
    """Run scenarios in this process and return what was found out; see `arun_scenarios`."""

    async def go() -> RunResult:
        return await arun_scenarios(
            scenarios, agent=agent, model=model, options=options, on_event=on_event, **config
        )

    return anyio.run(go)


async def arun_scenarios(
    scenarios: Iterable[Scenario],
    *,
    agent: AgentLike | None = None,
    model: ChatModel | None = None,
    options: Options | None = None,
    on_event: Callable[[Event], object] = _ignore,
    stop: Stop | None = None,
    **config: Any,
) -> RunResult:
    """Run scenarios and return what was found out.

    Args:
        agent: a ScriptedAgent, an endpoint, a handler function, or what a configuration says of an agent.
        model: plays the user and judges; None runs offline.
        on_event: is told of every event of the run.
        stop: calling it stops the run.
        config: further keys of the configuration.

    Raises ConfigError or pydantic's ValidationError for a wrong configuration.
    """
    checked = Config.model_validate({**({"agent": _agent_config(agent)} if agent else {}), **config})
    options = options or Options()
    plan = make_plan(checked, Discovered(tuple(scenarios)), options, Path.cwd())
    check_mocks(plan)
    concurrency = options.concurrency or checked.concurrency
    ledger = Ledger()
    async with open_client(AddressGuard()) as client:
        clients = make_agents(plan.agents, client, checked.request_timeout_ms / 1000, concurrency, Path.cwd())
        models = Models()
        if model is not None:
            asked = scripted(model, ledger, Patience(retries=checked.judge.retries))
            models = Models(asked, asked)
        settings = Settings(
            concurrency=concurrency,
            debounce_s=checked.debounce_ms / 1000,
            fail_on=checked.severity,
            samples=checked.judge.samples,
            batch=checked.judge.batch,
            fail_fast=options.fail_fast,
        )
        holder = LiveHolder(clients, models.user, checked.unmocked_tools, checked.request_timeout_ms / 1000)
        return await run(plan, settings, Ports(holder, models, ledger), on_event, stop)


def _agent_config(agent: AgentLike) -> Mapping[str, Any]:
    if isinstance(agent, Mapping):
        return agent
    if isinstance(agent, ScriptedAgent):
        return {"name": agent.name, "endpoint": agent.endpoint}
    if isinstance(agent, str):
        return {"endpoint": agent}
    return {"type": "custom", "handler": agent}
