"""One run in progress: its settings, its models, and where its events, notes and stops go."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from agentest.config.models import JudgeSettings
from agentest.domain.events import Emit, Noted, TimePassed
from agentest.domain.results import RunResult, Severity, Status
from agentest.models.port import Ledger, Models
from agentest.runner.prepare import CONFIRM, Prepared, cassette_folder
from agentest.support.errors import ConfigError, errors_as
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.redaction import Redactor
from agentest.support.terminal import EVERY_S, pauses

if TYPE_CHECKING:
    from agentest.domain.figures import ScenarioResources
    from agentest.models.admission import Gates, LocalGates
    from agentest.models.cassette import Cassettes
    from agentest.models.limits import Quota
    from agentest.models.response_cache import ResponseCache
    from agentest.models.tape import Tape
    from agentest.runner.run_budget import Allowance


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run."""

    concurrency: int = 20
    parallel: bool = True  # True if conversations of one scenario may run at once; a scenario can override it
    debounce_s: float = 0.0
    fail_on: Severity = Severity.HIGH
    judge: JudgeSettings = JudgeSettings()
    user_checks: int = 0
    """How many attempts at a conversation a judge checks. One: only for a user that left its role."""
    strict: bool = True
    fail_fast: bool = False
    keep_conversations: bool = True
    """True if results retain their conversations after these have been reported."""


def settings_of(prepared: Prepared, *, keep_conversations: bool = True) -> Settings:
    """Return the settings of a run. Options take precedence over the configuration."""
    config, options = prepared.loaded.config, prepared.request.options
    return Settings(
        concurrency=options.concurrency or config.concurrency,
        parallel=config.parallel,
        debounce_s=config.debounce_ms / 1000,
        fail_on=config.severity,
        judge=config.judge,
        user_checks=config.user.checked_attempts(strict=prepared.is_strict),
        strict=prepared.is_strict,
        fail_fast=options.fail_fast,
        keep_conversations=keep_conversations,
    )


class Stop:
    """Stops a run early, and calls `on_stop` once. The first reason counts; what has finished stays."""

    def __init__(self, on_stop: Callable[[Stop], None] = lambda _: None) -> None:
        self.scope = anyio.CancelScope()
        self.called = anyio.Event()
        self._on_stop = on_stop
        self.reason: str | None = None
        self.status = Status.ERRORED
        self.interrupted = False
        self.real_tool_ran = False
        self.over = False  # True if all conversations are over, so that only a signal can still stop the run

    def __call__(self, reason: str, status: Status = Status.ERRORED, *, interrupted: bool = False) -> None:
        """Stop for this reason. Unfinished scenarios get `status`."""
        if self.over and not interrupted:
            return
        first = self.reason is None
        if first:
            self.reason, self.status, self.interrupted = reason, status, interrupted
        self.scope.cancel()
        self.called.set()
        if first:
            self._on_stop(self)

    def because_of_real_tool(self, reason: str) -> None:
        """Stop because a real tool ran instead of its mock."""
        self.real_tool_ran = True
        self(reason)

    def interrupt(self) -> None:
        """Stop because the user interrupted the run."""
        self("interrupted", interrupted=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Cost data of a run with a budget, and the folders for model responses it has paid for."""

    took: Mapping[tuple[str, str], ScenarioResources] = field(default_factory=dict)
    """(Scenario, agent) → what an earlier run used."""
    answers: Path | None = None
    """The folder for model responses of unfinished conversations; None: they are not stored."""
    earlier_answers: Path | None = None  # the same folder of the run that this one resumes
    resumed_by: str = ""  # the command that runs the remaining conversations; "": there is none


@dataclass(frozen=True, slots=True)
class RunSession:
    """One run in progress."""

    prepared: Prepared
    settings: Settings
    emit: Emit  # receives every event, in order
    stop: Stop
    on_note: Callable[[str], None]  # receives notes that the user reads at the end
    opened_models: tuple[Models, Ledger] | None = None
    """Models that are already open, and their ledger, to use instead of the prepared ones."""
    has_workers: bool = False
    """True if workers run the conversations and start the agents that each worker needs its own copy of."""
    spending: Spending = Spending()
    gates: list[LocalGates] = field(default_factory=list)
    """Gates of models that this process opened for the run."""

    @property
    def quotas(self) -> list[Quota]:
        """The quotas of which something was used."""
        return [quota for gates in self.gates for quota in gates.quotas.values() if quota.requests]

    def say(self, text: str) -> None:
        """Show a message to the user immediately."""
        self.emit(Noted(self.prepared.loaded.redact(text)))

    @property
    def model_names(self) -> dict[str, str | None]:
        """Role → model; None: offline."""
        if self.opened_models is None:
            return self.prepared.model_names
        models, _ = self.opened_models
        roles = {role: m.name if m else None for role, m in (("user", models.user), ("judge", models.judge))}
        return roles | ({CONFIRM: models.confirm.name} if models.confirm else {})


@dataclass(slots=True)
class RunOutcome:
    """How a run ended. It has no result if it was interrupted before it began."""

    result: RunResult | None = None
    interrupted: bool = False  # True if a signal arrived, even too late to stop anything
    incomplete: bool = False
    """True if something failed after the result was made, such as writing the recording."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class UnitConnections:
    """The models that units call, the ledger of those calls, and the redactor. Tests pass in their own."""

    models: Models = field(default_factory=Models)
    ledger: Ledger = field(default_factory=Ledger)
    redact: Redactor = field(default_factory=Redactor)
    allowance: Allowance | None = None
    """Decides which conversations may start; None: the run has no budget, so all may."""


async def open_models(
    session: RunSession,
    tape: Tape | None,
    stack: AsyncExitStack,
    gates: Gates | None = None,
    ledger: Ledger | None = None,
) -> tuple[Models, Ledger]:
    """Open the models of a run, and their ledger unless given. The stack closes them. Raises UsageError."""

    def close_tape() -> None:
        if tape:
            from agentest.models.tape import CassetteError

            with suppress(CassetteError):  # `on_failure` has already reported it
                tape.close(finished=session.stop.reason is None)

    stack.callback(close_tape)
    if session.opened_models:
        models, ledger = session.opened_models
        return replace(models, recordings=tape), ledger
    prepared, ledger = session.prepared, ledger or _new_ledger(session)
    if not (prepared.user or prepared.judge):
        return Models(recordings=tape), ledger
    from agentest.models.factory import ModelTerms
    from agentest.models.factory import open_models as open_llm

    terms = ModelTerms(
        cache=_response_cache(session, stack),
        tape=tape if tape and tape.mode else None,
        ledger=ledger,
        gates=gates or local_gates(session),
        hide=prepared.loaded.redact.transcript,
    )
    models = await stack.enter_async_context(
        open_llm(prepared.user, prepared.judge, terms, prepared.named, prepared.confirm)
    )
    return replace(models, recordings=tape), ledger


def _response_cache(session: RunSession, stack: AsyncExitStack) -> ResponseCache | None:
    prepared = session.prepared
    if not prepared.uses_cache:
        return None
    from agentest.models.response_cache import FILE, ResponseCache

    path = prepared.request.root / prepared.loaded.config.output_dir / FILE

    async def close() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(cache.close)  # it may wait for another process

    later = asyncio.get_running_loop().call_soon_threadsafe
    cache = ResponseCache(path, prepared.loaded.redact, lambda text: later(session.say, text))
    stack.push_async_callback(close)
    return cache


def local_gates(session: RunSession) -> LocalGates:
    """Create the rate limits, circuits and budget of a run, in the process that enforces them."""
    from agentest.models.admission import LocalGates
    from agentest.models.budget import Budget

    options = session.prepared.request.options
    budget = None
    if options.has_budget:
        budget = Budget(options.max_cost, options.max_llm_calls, stopping(session))
    stop = stopping(session, lambda: _may_do_without_models(session.prepared))
    gates = LocalGates(session.prepared.concurrency, budget, session.say, stop)
    session.gates.append(gates)
    return gates


def _may_do_without_models(prepared: Prepared) -> bool:
    from agentest.runner.run_budget import estimate_of

    units = prepared.plan.units
    return any(not each.user + each.judge for each in estimate_of(prepared, units)[: len(units)])


def _new_ledger(session: RunSession) -> Ledger:
    if not session.prepared.request.options.has_budget:
        return Ledger()
    from agentest.runner.run_budget import PaidLedger

    return PaidLedger()


async def connect(
    session: RunSession, stack: AsyncExitStack, gates: LocalGates | None
) -> tuple[UnitConnections, Cassettes | None]:
    """Open the models and recordings of a run in the process that owns them. Raises UsageError."""
    recordings = open_recordings(session)
    models, ledger = await open_models(session, recordings, stack, gates)
    allowance = _allowance_of(session, gates, ledger, recordings)
    return UnitConnections(models, ledger, session.prepared.loaded.redact, allowance), recordings


def _allowance_of(
    session: RunSession, gates: LocalGates | None, ledger: Ledger, recordings: Cassettes | None
) -> Allowance | None:
    prepared, budget = session.prepared, gates.budget if gates else None
    asks_models = bool(prepared.user or prepared.judge or prepared.named)
    if budget is None or not asks_models:
        return None
    from agentest.models.tape import CassetteMode

    if prepared.request.options.tape == CassetteMode.REPLAY:
        return None
    from agentest.runner.run_budget import Allowance, PaidLedger, estimate_of

    if not isinstance(ledger, PaidLedger):
        return None
    units, spending = prepared.plan.units, session.spending
    most = dict(zip([unit.scope for unit in units], estimate_of(prepared, units), strict=False))
    answers = recordings if recordings and recordings.mode else None
    return Allowance(budget, ledger, most, spending.took, answers, stopping(session), spending.resumed_by)


def stopping(session: RunSession, goes_on: Callable[[], bool] = lambda: False) -> Callable[[object], None]:
    """Return a function that stops the run, unless it goes on, and adds the reason to the notes once."""
    noted: set[str] = set()

    def stop(reason: object) -> None:
        text = str(reason)
        if text not in noted:
            noted.add(text)
            session.on_note(text)
        if not goes_on():
            session.stop(text)

    return stop


def open_recordings(session: RunSession) -> Cassettes | None:
    """Open the recorded responses, if any. A missing one, or one that cannot be written, stops the run.

    Raises ConfigError for a damaged recording.
    """
    prepared = session.prepared
    options, config = prepared.request.options, prepared.loaded.config
    agent_modes = prepared.agent_tape_modes
    if prepared.tape_mode is None and not any(agent_modes.values()):
        return None
    if prepared.tape_mode == "keep":
        folder = _responses_folder(session)
    else:
        folder = cassette_folder(config, options, prepared.request.root)
    if folder is None:
        return None
    from agentest.models.cassette import Cassettes
    from agentest.models.tape import CassetteError, CassetteMode

    models = {"user": prepared.user, "judge": prepared.judge}
    named: dict[str, set[str]] = {role: set() for role in models}
    for requested, spec in prepared.named.items():
        named[requested.role].add(spec.name)
    if prepared.confirm:
        named["judge"].add(prepared.confirm.name)
    recordings = Cassettes(
        folder,
        CassetteMode(prepared.tape_mode) if prepared.tape_mode else None,
        prepared.loaded.redact,
        agent_modes={scope: CassetteMode(mode) if mode else None for scope, mode in agent_modes.items()},
        names=scenario_names(prepared),
        models={role: spec.name for role, spec in models.items() if spec},
        named=named,
        on_failure=stopping(session),
    )
    if recordings.mode is not CassetteMode.KEEP:  # a damaged response is requested again
        with errors_as(ConfigError, "", CassetteError):
            recordings.check(unit.scope for unit in prepared.plan.units)
    return recordings


def _responses_folder(session: RunSession) -> Path | None:
    spending = session.spending
    if spending.answers and spending.earlier_answers and spending.earlier_answers.is_dir():
        try:
            shutil.copytree(spending.earlier_answers, spending.answers, dirs_exist_ok=True)
        except OSError as error:
            session.say(
                f"answers that an earlier run has paid for cannot be used, so models are called "
                f"again: {error}"
            )
    return spending.answers


def scenario_names(prepared: Prepared) -> dict[str, str]:
    """Return the scenario name of each unit by scope."""
    return {unit.scope: unit.scenario.name for unit in prepared.plan.units}


@asynccontextmanager
async def ticking(session: RunSession, every_s: float = EVERY_S) -> AsyncIterator[None]:
    """Report `TimePassed` periodically while the block runs."""

    async def tick() -> None:
        while True:
            await anyio.sleep(every_s)
            is_bound = any(each.waiting and each.is_limited for each in session.quotas)
            session.emit(TimePassed(rate_bound=is_bound))

    async with _background(tick):
        yield


@asynccontextmanager
async def report_wait(what: str, say: Callable[[str], object]) -> AsyncIterator[None]:
    """Report that the block waits `what` ("for the agent's server"), after some seconds and again later."""

    async def remind() -> None:
        for pause, passed in pauses():
            await anyio.sleep(pause)
            say(f"waiting {what}: {passed:.0f} s so far")

    async with _background(remind):
        yield


@asynccontextmanager
async def _background(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
