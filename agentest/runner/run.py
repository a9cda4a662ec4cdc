"""A run, top to bottom: configure, discover, plan, open, converse, judge, decide, report, close.

`prepare` (`prepare.py`) does the first three steps, because `--list` and `--dry-run` end there. `execute`
does the others and stops them at a signal; `run_steps` has their order. This module is imported only when a
run begins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import field

import anyio
from anyio.abc import TaskGroup

from agentest.domain.events import Emit
from agentest.runner.engines import Engine
from agentest.runner.executor import LocalEngine, RunUnits
from agentest.runner.prepare import Prepared
from agentest.runner.run_summary import RunResultBuilder
from agentest.runner.session import RunOutcome, RunSession, Spending, Stop, report_wait, settings_of, ticking
from agentest.runner.sources import LiveAgents, Origin, SourceFactory
from agentest.runner.units import report_finished, report_never_begun
from agentest.support.errors import UsageError
from agentest.support.interrupts import handled_signals
from agentest.support.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunMode:
    """How a run is executed: the source of its conversations, its engine and its limits."""

    source: SourceFactory = field(default_factory=LiveAgents)
    engine: Engine = field(default_factory=LocalEngine)
    keep_conversations: bool = True  # True if the result retains conversations after they have been reported
    spending: Spending = field(default_factory=Spending)
    limit_s: float | None = None
    """Stop the run after this many seconds; unfinished scenarios are errored. None: no limit."""
    last_words: Callable[[], str] = str
    """Returns the text to write when a second signal ends the process immediately."""
    show: Callable[[str], bool] = lambda _: False
    """Displays the message for the first signal, for example in a progress bar. Returns True if it did."""


async def execute(prepared: Prepared, emit: Emit, mode: RunMode | None = None) -> RunOutcome:
    """Execute a prepared run, and stop it at a signal. Raises UsageError if the run cannot begin."""
    mode, outcome, stop, starting = mode or RunMode(), RunOutcome(), Stop(), anyio.CancelScope()
    session = RunSession(
        prepared=prepared,
        settings=settings_of(prepared, keep_conversations=mode.keep_conversations),
        emit=emit,
        stop=stop,
        on_note=outcome.notes.append,
        has_workers=mode.engine.has_workers,
        spending=mode.spending,
    )
    problem: UsageError | None = None

    def interrupt() -> None:
        starting.cancel()
        stop.interrupt()

    with handled_signals(interrupt, mode.last_words, mode.show) as signals:
        async with anyio.create_task_group() as tasks:
            if mode.limit_s is not None:
                tasks.start_soon(_stop_after, mode.limit_s, stop)
            try:
                await run_steps(session, mode, outcome, starting, tasks)
            except UsageError as error:  # raised below: the task group would wrap it in an exception group
                problem = error
            tasks.cancel_scope.cancel()
        outcome.interrupted = bool(signals)
        outcome.incomplete = stop.reason is not None and not (outcome.result and outcome.result.stopped)
    if problem and not outcome.interrupted:  # an interrupted start is not a usage error
        raise type(problem)(prepared.loaded.redact(str(problem)))
    return outcome


async def run_steps(
    session: RunSession, mode: RunMode, outcome: RunOutcome, starting: anyio.CancelScope, tasks: TaskGroup
) -> None:
    """Run the steps of a run, in order. Raises UsageError if the run cannot begin.

    The engine converses, judges and decides unit by unit (`executor`), because units overlap. Resources are
    closed in reverse order when the steps end.

    Args:
        outcome: receives the result.
        starting: a scope whose cancellation prevents the run from beginning.
        tasks: watches the agents' servers until the caller cancels it.
    """
    report = RunResultBuilder(session)
    async with AsyncExitStack() as closing, AsyncExitStack() as resources:
        opened = await _open(session, mode, resources, starting, tasks)
        if opened:
            origin, converse_judge_and_decide = opened
            report.report_start()
            finished_earlier = report_finished(session)
            async with ticking(session):
                concluded = await converse_judge_and_decide()
            results = {**finished_earlier, **concluded.results}
            results |= report_never_begun(session, results.keys())
            unclaimed = origin.warnings_of_unclaimed_calls(session.prepared)
            outcome.result = report.report_end(results, unclaimed, concluded.joined, concluded.explored)
        await closing.enter_async_context(report_wait("for agents and models to be closed", session.say))


async def _open(
    session: RunSession,
    mode: RunMode,
    resources: AsyncExitStack,
    starting: anyio.CancelScope,
    tasks: TaskGroup,
) -> tuple[Origin, RunUnits] | None:
    origin: Origin | None = None
    run_units: RunUnits | None = None
    with starting:
        origin = await mode.source.open(session, resources, tasks)
        engine = mode.engine.open(session, origin)
        async with report_wait(f"for {mode.engine.opens}", session.say):
            run_units = await resources.enter_async_context(engine)
    return (origin, run_units) if origin and run_units else None


async def _stop_after(limit_s: float, stop: Stop) -> None:
    await anyio.sleep(limit_s)
    stop(f"the time limit of {limit_s:g} s was reached")
