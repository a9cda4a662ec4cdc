"""`agentest run` from what the command line asks for to the exit status."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.config import REPORTERS, check_name
from agentest.config_file import LoadedConfig, find, load
from agentest.discovery import Discovered, discover
from agentest.errors import ConfigError, ExitCode, UsageError
from agentest.plan import Options, Plan, Unit, make_plan
from agentest.results import RunResult, ScenarioResult, Status
from agentest.verdict import run_status

if TYPE_CHECKING:  # what talks to agents and models is imported when a run really begins
    import anyio
    from anyio.abc import TaskGroup

    from agentest.llm.providers import ModelSpec
    from agentest.report.open import Broadcast
    from agentest.runner import Ports, Settings

MODEL_VARIABLE = "AGENTEST_MODEL"
_LEAST_MODEL_CALLS, _MODEL_CALLS_PER_CONVERSATION = 64, 10


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for."""

    root: Path
    config: Path | None = None
    options: Options = field(default_factory=Options)
    reporters: tuple[str, ...] = ()
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run before it begins: all that can be checked without talking to anybody has been checked."""

    request: Request
    loaded: LoadedConfig
    found: Discovered
    plan: Plan
    reporters: tuple[str, ...]
    user: ModelSpec | None = None
    judge: ModelSpec | None = None


def prepare(request: Request, environ: MutableMapping[str, str] = os.environ) -> Prepared:
    """Load configuration and scenarios and plan the run. Raises UsageError."""
    options = request.options
    loaded = load(request.config or find(request.root), environ)
    config = loaded.config
    for name in request.reporters:
        try:
            check_name(name, REPORTERS, "reporter")
        except ValueError as error:
            raise ConfigError(f"--reporter: {error}") from None
    found = discover(request.root, config.include, config.exclude, options.files)
    plan = make_plan(config, found, options, request.root)
    _check_anything(plan, request.root, config.include, options.filtered)
    user, judge = _model_specs(loaded, options, environ)
    return Prepared(request, loaded, found, plan, request.reporters or tuple(config.reporters), user, judge)


def _check_anything(plan: Plan, root: Path, include: list[str], filtered: bool) -> None:
    if plan.entries:
        return
    if filtered:
        raise UsageError(
            "no scenario matches the filters (--scenario, --file, --tag); agentest run --list shows all"
        )
    raise UsageError(
        f"no scenario found: no file below {root} that matches {', '.join(include)} (`include`) "
        "calls scenario(…)"
    )


def _model_specs(
    loaded: LoadedConfig, options: Options, environ: MutableMapping[str, str]
) -> tuple[ModelSpec | None, ModelSpec | None]:
    if options.offline:
        return None, None
    from agentest.llm.providers import resolve

    override = options.model or environ.get(MODEL_VARIABLE) or None
    config = loaded.config
    return (
        resolve(config, config.user, environ, override),
        resolve(config, config.judge, environ, override),
    )


def run_once(prepared: Prepared, environ: MutableMapping[str, str] = os.environ) -> ExitCode:
    """Run what was prepared and tell the reporters. Raises UsageError when nothing could be run."""
    import anyio

    from agentest.report.open import Broadcast, make_reporters

    request = prepared.request
    reporters = make_reporters(
        prepared.reporters,
        request.root,
        request.root / prepared.loaded.config.output_dir,
        environ,
        verbose=request.verbose,
    )
    broadcast = Broadcast(reporters)
    result, notes = anyio.run(_execute, prepared, broadcast)
    for note in (*notes, *broadcast.problems):
        sys.stderr.write(f"agentest: {prepared.loaded.redact(note)}\n")
    if result is None:
        return ExitCode.INTERRUPTED
    code = exit_code(result)
    return ExitCode.ERRORED if code is ExitCode.PASSED and broadcast.problems else code


def exit_code(result: RunResult) -> ExitCode:
    """The exit status of a run (contract, section 9)."""
    if result.interrupted:
        return ExitCode.INTERRUPTED
    statuses = {
        Status.PASSED: ExitCode.PASSED,
        Status.FAILED: ExitCode.FAILED,
        Status.ERRORED: ExitCode.ERRORED,
    }
    return statuses[run_status(result)]


async def _execute(prepared: Prepared, broadcast: Broadcast) -> tuple[RunResult | None, list[str]]:
    """Start servers and models, run, and end them; no result when it was interrupted before it began."""
    import anyio

    from agentest.runner import run

    notes: list[str] = []
    result: RunResult | None = None
    problem: UsageError | None = None
    starting, running = anyio.CancelScope(), anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, starting, running)
        try:
            async with AsyncExitStack() as stack:
                ports: Ports | None = None
                with starting:
                    ports = await _open_ports(prepared, stack, tasks, notes.append)
                if ports is not None:
                    result = await run(prepared.plan, _settings(prepared), ports, broadcast, running)
        except UsageError as error:  # kept: a task group would wrap it
            problem = error
        tasks.cancel_scope.cancel()
    if problem:
        raise type(problem)(prepared.loaded.redact(str(problem)))
    return result, notes


async def _open_ports(
    prepared: Prepared, stack: AsyncExitStack, tasks: TaskGroup, on_note: Callable[[str], None]
) -> Ports:
    """Everything the run talks to, open and answering; closed again by the stack."""
    from agentest.http import AddressGuard, open_client
    from agentest.llm.open import Models, open_models
    from agentest.llm.port import Ledger
    from agentest.runner import Ports
    from agentest.simulate.open import check_reachable, make_agents
    from agentest.simulate.server import running_server

    config, redact = prepared.loaded.config, prepared.loaded.redact
    root, agents = prepared.request.root, prepared.plan.agents
    guard, ledger = AddressGuard(), Ledger()
    client = await stack.enter_async_context(open_client(guard))
    for agent in agents.values():
        if agent.server:
            await stack.enter_async_context(
                running_server(agent.server, root, client, tasks, redact, on_note)
            )
    for name, agent in agents.items():
        await check_reachable(name, agent, guard)
    concurrency = _concurrency(prepared)
    calls = max(_LEAST_MODEL_CALLS, _MODEL_CALLS_PER_CONVERSATION * concurrency)
    models = Models()
    if prepared.user or prepared.judge:
        models = await stack.enter_async_context(open_models(prepared.user, prepared.judge, ledger, calls))
    clients = make_agents(agents, client, config.request_timeout_ms / 1000, concurrency, root)
    return Ports(clients, models, ledger, redact)


def _concurrency(prepared: Prepared) -> int:
    return prepared.request.options.concurrency or prepared.loaded.config.concurrency


def _settings(prepared: Prepared) -> Settings:
    from agentest.runner import Settings

    config = prepared.loaded.config
    return Settings(
        concurrency=_concurrency(prepared),
        debounce_s=config.debounce_ms / 1000,
        mock_timeout_s=config.request_timeout_ms / 1000,
        unmocked_tools=config.unmocked_tools,
        fail_on=config.severity,
        samples=config.judge.samples,
        fail_fast=prepared.request.options.fail_fast,
    )


async def _stop_on_signal(starting: anyio.CancelScope, running: anyio.CancelScope) -> None:
    """The first signal stops the run and lets the reports be written; a second one ends it at once."""
    import anyio

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if running.cancel_called:
                os._exit(ExitCode.INTERRUPTED)
            starting.cancel()
            running.cancel()


def listing(prepared: Prepared) -> Iterator[str]:
    """A line for every scenario that would run, and for every one that would not."""
    for entry in prepared.plan.entries:
        if isinstance(entry, Unit):
            scenario = entry.scenario
            kind = "scripted" if scenario.scripted else "simulated"
            tags = f"  [{', '.join(scenario.tags)}]" if scenario.tags else ""
            agent = f"  {entry.agent}" if len(prepared.plan.agents) > 1 else ""
            yield (
                f"{entry.file}:{scenario.line}  {scenario.name}{agent}  {kind} × {entry.conversations}{tags}"
            )
        elif entry.verdict.status is Status.SKIPPED:
            yield f"{entry.file}:{entry.line}  {entry.name}  skipped: {entry.verdict.reasons[0].message}"


def broken(prepared: Prepared) -> list[ScenarioResult]:
    """What could not be loaded."""
    return [
        entry
        for entry in prepared.plan.entries
        if isinstance(entry, ScenarioResult) and entry.verdict.status is Status.ERRORED
    ]
