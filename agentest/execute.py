"""Opening everything a run talks to, running, and closing it again. Imported when a run really begins."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from agentest.errors import ExitCode, UsageError
from agentest.holding import FinishedHolder, Holder, LiveHolder, PickUser
from agentest.http import AddressGuard, open_client
from agentest.llm.open import Models, open_models
from agentest.llm.port import Ledger
from agentest.prepare import Prepared
from agentest.results import RunResult
from agentest.runner import Emit, Ports, Settings, Stop, run
from agentest.simulate.agents import Agent
from agentest.simulate.open import check_reachable, make_agents
from agentest.simulate.server import running_server
from agentest.transcript import Conversation

_LEAST_MODEL_CALLS, _MODEL_CALLS_PER_CONVERSATION = 64, 10


@dataclass(slots=True)
class Outcome:
    """What became of a run: no result when it was interrupted before it began."""

    result: RunResult | None = None
    notes: list[str] = field(default_factory=list)
    """What the user should know besides the result."""


async def execute(
    prepared: Prepared,
    emit: Emit,
    finished: Mapping[str, Sequence[Conversation]] | None = None,
) -> Outcome:
    """Run what was prepared. Raises UsageError when it cannot begin.

    Args:
        finished: conversations of an earlier run by scope, to be judged again; no agent is talked to.
    """
    outcome, stop, starting = Outcome(), Stop(), anyio.CancelScope()
    problem: UsageError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, starting, stop)
        try:
            async with AsyncExitStack() as stack:
                ports: Ports | None = None
                with starting:
                    ports = await _open_ports(prepared, stack, tasks, outcome.notes.append, finished)
                if ports is not None:
                    outcome.result = await run(prepared.plan, settings(prepared), ports, emit, stop)
        except UsageError as error:  # kept: a task group would wrap it
            problem = error
        tasks.cancel_scope.cancel()
    if problem:
        raise type(problem)(prepared.loaded.redact(str(problem)))
    return outcome


async def _stop_on_signal(starting: anyio.CancelScope, stop: Stop) -> None:
    """The first signal stops the run and lets the reports be written; a second one ends it at once."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if stop.interrupted:
                os._exit(ExitCode.INTERRUPTED)
            starting.cancel()
            stop.interrupt()


async def _open_ports(
    prepared: Prepared,
    stack: AsyncExitStack,
    tasks: TaskGroup,
    on_note: Callable[[str], None],
    finished: Mapping[str, Sequence[Conversation]] | None,
) -> Ports:
    """Everything the run talks to, open and answering; closed again by the stack."""
    ledger = Ledger()
    agents = {} if finished is not None else await open_agents(prepared, stack, tasks, on_note)
    models = await _open_models(prepared, stack, ledger)
    holder: Holder = live_holder(prepared, agents, models) if finished is None else FinishedHolder(finished)
    return Ports(holder, models, ledger, prepared.loaded.redact)


async def open_agents(
    prepared: Prepared, stack: AsyncExitStack, tasks: TaskGroup, on_note: Callable[[str], None]
) -> dict[str, Agent]:
    """The agents of the plan, their servers started, all reachable."""
    config, redact = prepared.loaded.config, prepared.loaded.redact
    root, agents, guard = prepared.request.root, prepared.plan.agents, AddressGuard()
    client = await stack.enter_async_context(open_client(guard))
    for agent in agents.values():
        if agent.server:
            server = running_server(agent.server, root, client, tasks, redact, on_note)
            await stack.enter_async_context(server)
    for name, agent in agents.items():
        await check_reachable(name, agent, guard)
    return make_agents(agents, client, config.request_timeout_ms / 1000, concurrency(prepared), root)


async def _open_models(prepared: Prepared, stack: AsyncExitStack, ledger: Ledger) -> Models:
    if not prepared.user and not prepared.judge:
        return Models()
    calls = max(_LEAST_MODEL_CALLS, _MODEL_CALLS_PER_CONVERSATION * concurrency(prepared))
    return await stack.enter_async_context(open_models(prepared.user, prepared.judge, ledger, calls))


def live_holder(
    prepared: Prepared, agents: Mapping[str, Agent], models: Models, pick_user: PickUser | None = None
) -> LiveHolder:
    """Whoever holds the conversations of the plan."""
    config = prepared.loaded.config
    return LiveHolder(
        agents,
        models.user,
        config.unmocked_tools,
        config.request_timeout_ms / 1000,
        prepared.loaded.redact,
        pick_user,
    )


def concurrency(prepared: Prepared) -> int:
    """Conversations under way at once."""
    return prepared.request.options.concurrency or prepared.loaded.config.concurrency


def settings(prepared: Prepared) -> Settings:
    """How to run what was prepared."""
    config = prepared.loaded.config
    return Settings(
        concurrency=concurrency(prepared),
        debounce_s=config.debounce_ms / 1000,
        fail_on=config.severity,
        samples=config.judge.samples,
        batch=config.judge.batch,
        fail_fast=prepared.request.options.fail_fast,
    )
