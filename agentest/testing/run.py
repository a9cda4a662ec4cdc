"""Running scenarios from Python, against an agent and a model of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio

from agentest.agents.open import make_agents
from agentest.config.config import Config
from agentest.events import Emit, Event
from agentest.http.client import open_client
from agentest.http.guard import AddressGuard
from agentest.llm.live import Patience
from agentest.llm.open import Models, scripted
from agentest.llm.port import ChatModel, Ledger
from agentest.results import RunResult
from agentest.run.connections import Connections
from agentest.run.frame import Frame
from agentest.run.plan import Options, Plan, make_plan, wished_unmocked_tools
from agentest.run.runner import PacedUnits, run_units
from agentest.run.seeing import check_mocks
from agentest.run.settings import Settings, settings_of
from agentest.run.sources import LiveConversations
from agentest.run.stop import Stop
from agentest.scenarios.definition import Scenario
from agentest.scenarios.discovery import Discovered
from agentest.testing.agent import ScriptedAgent

AgentLike = ScriptedAgent | str | Callable[..., Any] | Mapping[str, Any]


def _ignore(_: Event) -> None:
    """Ignore an event."""


def run_scenarios(
    scenarios: Iterable[Scenario],
    *,
    agent: AgentLike | None = None,
    model: ChatModel | None = None,
    options: Options | None = None,
    on_event: Callable[[Event], object] = _ignore,
    **config: Any,
) -> RunResult:
    """Run scenarios in this process and return their results; see `arun_scenarios`."""

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
    """Run scenarios and return their results.

    Args:
        agent: a ScriptedAgent, an endpoint, a handler function, or the `agent` section of a configuration.
        model: plays the user and judges; None runs offline.
        on_event: receives every event of the run.
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
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_client(AddressGuard()))
        timeout_s = checked.request_timeout_ms / 1000
        clients = await make_agents(plan.agents, client, timeout_s, concurrency, Path.cwd(), stack)
        models = Models()
        if model is not None:
            opened = scripted(model, ledger, Patience(retries=checked.judge.retries))
            models = Models(opened, opened)
        source = LiveConversations(
            agents=clients,
            models=models,
            unmocked_tools=wished_unmocked_tools(checked, options),
            request_timeout_s=checked.request_timeout_ms / 1000,
        )
        connections = Connections(source=source, models=models, ledger=ledger)
        return await _run(plan, settings_of(checked, options), connections, on_event, stop or Stop())


async def _run(plan: Plan, settings: Settings, connections: Connections, emit: Emit, stop: Stop) -> RunResult:
    models = {"user": connections.models.user, "judge": connections.models.judge}
    frame = Frame(
        plan=plan,
        concurrency=settings.concurrency,
        models={role: model.name if model else None for role, model in models.items()},
        emit=emit,
        stop=stop,
        redact=connections.redact,
    )
    frame.report_start()
    units = PacedUnits(plan.units, settings.debounce_s)
    results = await run_units(units, plan.custom, settings, connections, emit, stop)
    return frame.report_end(results)


def _agent_config(agent: AgentLike) -> Mapping[str, Any]:
    if isinstance(agent, Mapping):
        return agent
    if isinstance(agent, ScriptedAgent):
        return {"name": agent.name, "endpoint": agent.endpoint}
    if isinstance(agent, str):
        return {"endpoint": agent}
    return {"type": "custom", "handler": agent}
