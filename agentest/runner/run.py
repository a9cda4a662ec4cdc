"""A run, top to bottom: open, converse, judge, decide, report, close.

`execute` runs a prepared run and stops it at a signal; `run_steps` contains the steps. `prepare` has already
configured, discovered and planned. This module is imported only when a run begins.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from agentest.domain.events import Emit
from agentest.domain.results import RunWarning
from agentest.runner.executor import Engine, LocalEngine, RunUnits
from agentest.runner.prepare import Prepared
from agentest.runner.run_summary import RunResultBuilder
from agentest.runner.session import RunOutcome, RunSession, Spending, Stop, awaited, settings_of, ticking
from agentest.runner.sources import LiveAgents, Origin, SourceFactory
from agentest.runner.units import report_finished, report_never_begun
from agentest.support.errors import UsageError
from agentest.support.interrupts import STOPPING, end_at_once

if TYPE_CHECKING:
    from agentest.mock_servers.registry import Registry, UnclaimedCall


@dataclass(frozen=True, slots=True)
class RunMode:
    """How a run is executed: the source of its conversations, its engine and its limits."""

    source: SourceFactory = field(default_factory=LiveAgents)
    engine: Engine = field(default_factory=LocalEngine)
    keep_conversations: bool = True
    """True if the result retains conversations after they have been reported."""
    spending: Spending = field(default_factory=Spending)
    limit_s: float | None = None
    """Stop the run after this many seconds; unfinished scenarios are errored. None: no limit."""


@dataclass(frozen=True, slots=True)
class SignalMessages:
    """Messages to print when a signal ends a run."""

    last: Callable[[], str] = str
    """Returns the text to write when a second signal ends the process immediately."""
    show: Callable[[str], bool] = lambda _: False
    """Displays the message for the first signal, for example in a progress bar. Returns True if it did."""


async def execute(
    prepared: Prepared, emit: Emit, mode: RunMode | None = None, words: SignalMessages | None = None
) -> RunOutcome:
    """Execute a prepared run and stop it at a signal. Raises UsageError if the run cannot begin.

    Args:
        emit: receives every event, in order.
        words: messages to print at signals.
    """
    mode, words = mode or RunMode(), words or SignalMessages()
    outcome, stop, starting = RunOutcome(), Stop(), anyio.CancelScope()
    options, config = prepared.request.options, prepared.loaded.config
    session = RunSession(
        prepared=prepared,
        settings=settings_of(config, options, keep_conversations=mode.keep_conversations),
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

    with handled_signals(interrupt, words.last, words.show) as signals:
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
            async with ticking(session.emit):
                concluded = await converse_judge_and_decide()
            results = {**finished_earlier, **concluded.results}
            results |= report_never_begun(session, results.keys())
            unclaimed = _unclaimed_call_warnings(session.prepared, origin)
            outcome.result = report.report_end(results, unclaimed, concluded.joined)
        await closing.enter_async_context(awaited("for what was opened to be closed", session.say))


async def _open(
    session: RunSession,
    mode: RunMode,
    resources: AsyncExitStack,
    starting: anyio.CancelScope,
    tasks: TaskGroup,
) -> tuple[Origin, RunUnits] | None:
    """Open agents, servers and models. Return None if a signal arrives before they are open."""
    origin: Origin | None = None
    run_units: RunUnits | None = None
    with starting:
        origin = await mode.source.open(session, resources, tasks)
        engine = mode.engine.open(session, origin)
        async with awaited(f"for {mode.engine.opens}", session.say):
            run_units = await resources.enter_async_context(engine)
    return (origin, run_units) if origin and run_units else None


def _unclaimed_call_warnings(prepared: Prepared, origin: Origin) -> tuple[RunWarning, ...]:
    return (
        *origin.unclaimed,
        *_refused_call_warnings(prepared, origin.refused),
        *(prepared.kept.unclaimed if prepared.kept else ()),
        *unclaimed_call_warnings(prepared, origin.registry),
    )


def unclaimed_call_warnings(prepared: Prepared, registry: Registry | None) -> tuple[RunWarning, ...]:
    """Return warnings about calls to the run's servers that belonged to no conversation."""
    return _refused_call_warnings(prepared, registry.unclaimed) if registry else ()


def _refused_call_warnings(
    prepared: Prepared, refused: Mapping[UnclaimedCall, int]
) -> tuple[RunWarning, ...]:
    if not refused:
        return ()
    from agentest.runner.mock_servers import warnings_of_unclaimed

    return warnings_of_unclaimed(prepared.plan, refused, prepared.loaded.redact)


async def _stop_after(limit_s: float, stop: Stop) -> None:
    await anyio.sleep(limit_s)
    stop(f"the time limit of {limit_s:g} s was reached")


_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def handled_signals(
    on_first: Callable[[], None],
    last_words: Callable[[], str],
    show: Callable[[str], bool] = lambda _: False,
) -> Iterator[list[int]]:
    """Call `on_first` in the event loop at the first signal; write `last_words` and exit at the second.

    Yields the list of signals received so far. Installs plain handlers instead of the loop's own, because the
    loop drops signals that arrive while it shuts down.

    Args:
        show: displays the message for the first signal; returns True if it did.
    """
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def handle(number: int, _: object) -> None:
        if received:
            end_at_once(last_words())
        received.append(number)
        shown = show(STOPPING)
        if not shown or not os.isatty(2):  # on a terminal, a second copy would garble the display
            # Write to the descriptor: the interrupted code may hold the lock of sys.stderr.
            os.write(2, f"\nagentest: {STOPPING}\n".encode())
        loop.call_soon_threadsafe(on_first)

    before = {number: signal.signal(number, handle) for number in _signals_to_handle()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals_to_handle() -> list[int]:
    # Only the main thread may install handlers, and an ignored SIGHUP (nohup) stays ignored.
    if threading.current_thread() is not threading.main_thread():
        return []
    return [n for n in _SIGNALS if n == signal.SIGINT or signal.getsignal(n) != signal.SIG_IGN]
