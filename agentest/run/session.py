"""Opening everything a run talks to, running, and closing it again. Imported when a run really begins."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from agentest.agents.open import check_reachable, make_agents
from agentest.agents.port import Agent
from agentest.agents.server.process import running_server
from agentest.config.agents import Server
from agentest.errors import ConfigError, UsageError
from agentest.events import Emit, Noted
from agentest.http.client import Client, open_client
from agentest.http.guard import AddressGuard
from agentest.llm.budget import Budget, Spending
from agentest.llm.open import Models, Tape, Terms, open_models
from agentest.llm.recording.cassette import CassetteError, Cassettes, Mode
from agentest.results import RunResult
from agentest.run.prepare import Prepared, cassette_folder
from agentest.run.runner import Ports, run
from agentest.run.seeing import check_mocks
from agentest.run.settings import Settings
from agentest.run.sources import FinishedHolder, Holder, LiveHolder, PickUser
from agentest.run.stop import Stop
from agentest.support.interrupts import end_at_once
from agentest.transcript import Conversation

Go = Callable[[], Awaitable[RunResult]]
"""Runs the whole plan."""


class Crew(Protocol):
    """Processes that run the units of a plan (`workers`)."""

    def ready(
        self, settings: Settings, emit: Emit, stop: Stop, on_note: Callable[[str], None]
    ) -> AbstractAsyncContextManager[Go]:
        """Open everything that they need. Raises UsageError."""
        ...


_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_LEAST_MODEL_CALLS = 64
MODEL_CALLS_PER_CONVERSATION = 10
"""How many of a conversation's calls to a model may be under way at once, unless settings say less."""


@dataclass(slots=True)
class Outcome:
    """What became of a run: no result when it was interrupted before it began."""

    result: RunResult | None = None
    interrupted: bool = False
    """Whether a signal came, be it too late to stop anything."""
    incomplete: bool = False
    """Whether something failed after the result was made: the recording could not be written."""
    notes: list[str] = field(default_factory=list)
    """What the user should know besides the result."""


async def execute(
    prepared: Prepared,
    emit: Emit,
    finished: Mapping[str, Sequence[Conversation]] | None = None,
    *,
    keep_conversations: bool = True,
    crew: Crew | None = None,
    last_words: Callable[[], str] = str,
) -> Outcome:
    """Run what was prepared. Raises UsageError when it cannot begin.

    Args:
        finished: conversations of an earlier run by scope, to be judged again; no agent is talked to.
        keep_conversations: whether the result holds conversations that `emit` has been told of.
        crew: the processes that run the units; None runs them in this one.
        last_words: what is told when a second signal ends the process at once.
    """
    outcome, stop, starting = Outcome(), Stop(), anyio.CancelScope()
    how = replace(settings(prepared), keep_conversations=keep_conversations)
    problem: UsageError | None = None
    note = outcome.notes.append

    def interrupt() -> None:
        starting.cancel()
        stop.interrupt()

    with _signals(interrupt, last_words) as signals:
        async with anyio.create_task_group() as tasks:
            try:
                async with AsyncExitStack() as stack:
                    go: Go | None = None
                    with starting:
                        agents: Mapping[str, Agent] = {}
                        if finished is None:
                            agents = await open_agents(prepared, stack, tasks, note)
                        if crew:
                            check_tape(prepared)
                            go = await stack.enter_async_context(crew.ready(how, emit, stop, note))
                        else:
                            ports = await open_ports(prepared, agents, stack, stop, note, emit, finished)
                            go = partial(run, prepared.plan, how, ports, emit, stop)
                    if go:
                        outcome.result = await go()
            except UsageError as error:  # kept: a task group would wrap it
                problem = error
            tasks.cancel_scope.cancel()
        outcome.interrupted = bool(signals)
        outcome.incomplete = stop.reason is not None and not (outcome.result and outcome.result.stopped)
    if problem and not outcome.interrupted:  # what a signal broke off is no mistake of the user's
        raise type(problem)(prepared.loaded.redact(str(problem)))
    return outcome


@contextmanager
def _signals(on_first: Callable[[], None], last_words: Callable[[], str]) -> Iterator[list[int]]:
    """Call `on_first` in the event loop at the first SIGINT or SIGTERM, and end at once at the second.

    Yields the signals received so far. Plain handlers, not the loop's: the loop drops a signal that comes in
    its last moments.
    """
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def note(number: int, _: object) -> None:
        if received:
            end_at_once(last_words())
        received.append(number)
        # Straight to the file: whatever is blocking may hold the lock of sys.stderr.
        os.write(2, b"\nagentest: stopping; once more ends at once\n")
        loop.call_soon_threadsafe(on_first)

    # A hang-up that is ignored (nohup) stays ignored. Outside the main thread signals are somebody else's.
    here = threading.current_thread() is threading.main_thread()
    heard = [n for n in _SIGNALS if here and (n == signal.SIGINT or signal.getsignal(n) != signal.SIG_IGN)]
    before = {number: signal.signal(number, note) for number in heard}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def open_ports(
    prepared: Prepared,
    agents: Mapping[str, Agent],
    stack: AsyncExitStack,
    stop: Stop,
    on_note: Callable[[str], None],
    emit: Emit,
    finished: Mapping[str, Sequence[Conversation]] | None = None,
    spending: Spending | None = None,
    *,
    tape_is_checked: bool = False,
) -> Ports:
    """Everything the run talks to, open and answering; closed again by the stack.

    Args:
        on_note: is told what the user should know at the end.
        emit: is told what the user should know at once.
        spending: what the whole run has spent, where this is only a part of it.
        tape_is_checked: whether the recordings of the whole run need not be looked at again.

    Raises UsageError, also for a damaged recording.
    """
    terms = _terms(prepared, stop, on_note, emit, spending)
    if terms.tape and not tape_is_checked:
        _check_recordings(terms.tape, prepared)
    models = Models()
    if prepared.user or prepared.judge:
        stack.callback(_close_tape, terms.tape, stop)
        models = await stack.enter_async_context(open_models(prepared.user, prepared.judge, terms))
    holder: Holder = live_holder(prepared, agents, models) if finished is None else FinishedHolder(finished)
    return Ports(holder, models, terms.ledger, prepared.loaded.redact)


def _terms(
    prepared: Prepared, stop: Stop, on_note: Callable[[str], None], emit: Emit, spending: Spending | None
) -> Terms:
    """Limits, budget and recordings of a run."""
    options = prepared.request.options
    at_once = max(_LEAST_MODEL_CALLS, MODEL_CALLS_PER_CONVERSATION * concurrency(prepared))

    def no_more(why: str) -> None:
        on_note(why)
        stop(why)

    def announce(text: str) -> None:
        emit(Noted(prepared.loaded.redact(text)))

    budget = None
    if options.max_cost is not None or options.max_llm_calls is not None:
        budget = Budget(options.max_cost, options.max_llm_calls, no_more, spending)
    return Terms(at_once, budget, _tape(prepared, no_more), announce)


def _tape(prepared: Prepared, no_more: Callable[[str], None]) -> Tape | None:
    options, config = prepared.request.options, prepared.loaded.config
    if options.tape is None:
        return None
    models = {"user": prepared.user, "judge": prepared.judge}
    units = prepared.plan.units
    cassettes = Cassettes(
        cassette_folder(config, options, prepared.request.root),
        Mode(options.tape),
        prepared.loaded.redact,
        names={unit.scope: unit.scenario.name for unit in units},
        models={role: spec.name for role, spec in models.items() if spec},
        on_failure=lambda error: no_more(str(error)),
    )
    return Tape(Mode(options.tape), cassettes)


def check_tape(prepared: Prepared) -> None:
    """Raise ConfigError for a damaged recording."""
    if tape := _tape(prepared, lambda _: None):
        _check_recordings(tape, prepared)


def _check_recordings(tape: Tape, prepared: Prepared) -> None:
    try:
        tape.cassettes.check(unit.scope for unit in prepared.plan.units)
    except CassetteError as error:
        raise ConfigError(str(error)) from None


def _close_tape(tape: Tape | None, stop: Stop) -> None:
    if tape:
        with suppress(CassetteError):  # told by its `on_failure`
            tape.cassettes.close(finished=stop.reason is None)


async def open_agents(
    prepared: Prepared, stack: AsyncExitStack, tasks: TaskGroup, on_note: Callable[[str], None]
) -> dict[str, Agent]:
    """The agents of the plan, their servers started, all reachable; mocks are known to reach their tools."""
    check_mocks(prepared.plan)
    redact = prepared.loaded.redact
    root, agents = prepared.request.root, prepared.plan.agents
    client = await stack.enter_async_context(open_client(AddressGuard()))
    servers: list[Server] = []
    for agent in agents.values():
        # Agents that differ only in what they are sent live on one server.
        if agent.server and agent.server not in servers:
            servers.append(agent.server)
            server = running_server(agent.server, root, client, tasks, redact, on_note)
            await stack.enter_async_context(server)
    for name, agent in agents.items():
        await check_reachable(name, agent, client)
    return connected(prepared, client)


def connected(prepared: Prepared, client: Client) -> dict[str, Agent]:
    """The agents of the plan, which are known to be reachable."""
    timeout_s = prepared.loaded.config.request_timeout_ms / 1000
    return make_agents(prepared.plan.agents, client, timeout_s, concurrency(prepared), prepared.request.root)


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
