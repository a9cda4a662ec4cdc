"""A run as its steps: open, converse, evaluate, decide, report, close.

`prepare` has taken the steps before: configure, discover, plan. Imported when a run really begins.
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
from agentest.runner.executor import Engine, InProcess, RunUnits
from agentest.runner.prepare import Prepared
from agentest.runner.run_summary import Frame
from agentest.runner.session import Outcome, Session, Spending, Stop, awaited, settings_of, ticking
from agentest.runner.sources import LiveAgents, Origin, SourceFactory
from agentest.runner.units import report_finished, report_never_begun
from agentest.support.errors import UsageError
from agentest.support.interrupts import STOPPING, end_at_once

if TYPE_CHECKING:
    from agentest.mock_servers.registry import Registry, Unclaimed

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def unshown(text: str) -> bool:
    """Nobody shows it."""
    del text
    return False


@contextmanager
def handled_signals(
    on_first: Callable[[], None], last_words: Callable[[], str], show: Callable[[str], bool] = unshown
) -> Iterator[list[int]]:
    """Call `on_first` in the event loop at the first signal; write `last_words` and exit at the second.

    Yields the signals received so far. `show` may show what is said at the first one in a place of its own,
    and returns whether it did. Plain handlers, not the loop's: the loop drops a signal that comes in
    its last moments.
    """
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def handle(number: int, _: object) -> None:
        if received:
            end_at_once(last_words())
        received.append(number)
        shown = show(STOPPING)
        if not shown or not os.isatty(2):  # written to the terminal, it would be in the way of what shows it
            # Straight to the file: whatever is blocking may hold the lock of sys.stderr.
            os.write(2, f"\nagentest: {STOPPING}\n".encode())
        loop.call_soon_threadsafe(on_first)

    before = {number: signal.signal(number, handle) for number in _to_handle()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _to_handle() -> list[int]:
    """A hang-up that is ignored (nohup) stays ignored. Outside the main thread, signals belong to others."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [n for n in _SIGNALS if n == signal.SIGINT or signal.getsignal(n) != signal.SIG_IGN]


@dataclass(frozen=True, slots=True)
class Mode:
    """Where the conversations of a run come from, what runs its units, and what is kept of it."""

    source: SourceFactory = field(default_factory=LiveAgents)
    engine: Engine = field(default_factory=InProcess)
    keep_conversations: bool = True
    """Whether the result keeps conversations that have been reported."""
    spending: Spending = field(default_factory=Spending)
    limit_s: float | None = None
    """After so long the run is stopped: what has not finished is errored."""


@dataclass(frozen=True, slots=True)
class AtSignals:
    """What is said when a signal ends a run."""

    last: Callable[[], str] = str
    """Makes what is written when a second signal ends the process at once."""
    show: Callable[[str], bool] = unshown
    """May show what is said at the first one in a place of its own; whether it did."""


async def execute(
    prepared: Prepared, emit: Emit, mode: Mode | None = None, words: AtSignals | None = None
) -> Outcome:
    """Run what was prepared, and stop at a signal. Raises UsageError when the run cannot begin.

    Args:
        words: what is said at signals.
    """
    mode, words = mode or Mode(), words or AtSignals()
    outcome, stop, starting = Outcome(), Stop(), anyio.CancelScope()
    options, config = prepared.request.options, prepared.loaded.config
    settings = settings_of(config, options, keep_conversations=mode.keep_conversations)
    session = Session(
        prepared=prepared,
        settings=settings,
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
            except UsageError as error:  # kept: a task group would wrap it
                problem = error
            tasks.cancel_scope.cancel()
        outcome.interrupted = bool(signals)
        outcome.incomplete = stop.reason is not None and not (outcome.result and outcome.result.stopped)
    if problem and not outcome.interrupted:  # what a signal broke off is no mistake of the user's
        raise type(problem)(prepared.loaded.redact(str(problem)))
    return outcome


async def _stop_after(limit_s: float, stop: Stop) -> None:
    await anyio.sleep(limit_s)
    stop(f"the time limit of {limit_s:g} s was reached")


async def run_steps(
    session: Session, mode: Mode, outcome: Outcome, starting: anyio.CancelScope, tasks: TaskGroup
) -> None:
    """The steps of a run. What was opened is closed when the block ends, the last first.

    Args:
        outcome: receives the result.
        starting: cancelled, it keeps the run from beginning.
        tasks: where the agents' servers are looked after until the caller cancels it.

    Raises UsageError when the run cannot begin.
    """
    prepared = session.prepared
    frame = Frame(
        plan=prepared.plan,
        concurrency=prepared.concurrency,
        models=session.model_names,
        calibrations=prepared.calibrations,
        emit=session.emit,
        stop=session.stop,
        redact=prepared.loaded.redact,
        kept=prepared.kept,
        shard=str(prepared.part.shard) if prepared.part else None,
        strict=session.settings.strict,
    )
    origin: Origin | None = None
    async with AsyncExitStack() as late, AsyncExitStack() as opened:
        converse_evaluate_and_decide: RunUnits | None = None
        with starting:  # a signal ends it
            origin = await mode.source.open(session, opened, tasks)
            engine = mode.engine.open(session, origin)
            async with awaited(f"for {mode.engine.opens}", session.say):
                converse_evaluate_and_decide = await opened.enter_async_context(engine)
        if converse_evaluate_and_decide:
            frame.report_start()
            finished = report_finished(session)
            async with ticking(session.emit):
                concluded = await converse_evaluate_and_decide()
            results = {**finished, **concluded.results}
            results |= report_never_begun(session, results.keys())
            unclaimed = origin.unclaimed if origin else ()
            unclaimed += warnings_of(prepared, origin.refused) if origin else ()
            unclaimed += prepared.kept.unclaimed if prepared.kept else ()
            unclaimed += unclaimed_calls(prepared, origin.registry if origin else None)
            outcome.result = frame.report_end(results, unclaimed, concluded.joined)
        await late.enter_async_context(awaited("for what was opened to be closed", session.say))


def unclaimed_calls(prepared: Prepared, registry: Registry | None) -> tuple[RunWarning, ...]:
    """What to say of calls that belonged to no conversation."""
    return warnings_of(prepared, registry.unclaimed) if registry else ()


def warnings_of(prepared: Prepared, refused: Mapping[Unclaimed, int]) -> tuple[RunWarning, ...]:
    """What to say of calls that were refused."""
    if not refused:
        return ()
    from agentest.runner.mock_servers import warnings_of_unclaimed

    return warnings_of_unclaimed(prepared.plan, refused, prepared.loaded.redact)
