"""A run whose scenarios are handed on as each of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from agentest.adk.api.in_process import run_result
from agentest.domain.events import Event, ScenarioFinished
from agentest.domain.results import ScenarioResult
from agentest.domain.transcript import Conversation
from agentest.runner.prepare import Prepared

_Line = asyncio.Queue[ScenarioResult | BaseException | None]


async def results_as_they_come(
    prepared: Prepared, finished: Mapping[str, Sequence[Conversation]] | None = None
) -> AsyncGenerator[ScenarioResult]:
    """The result of each scenario when it has ended, whatever their order. Closed early, it ends the run.

    Raises UsageError, and KeyboardInterrupt after Ctrl-C.
    """
    line: _Line = asyncio.Queue()
    running = asyncio.create_task(_run(prepared, line, finished))
    try:
        while (item := await line.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        running.cancel()
        await asyncio.wait([running])


async def _run(
    prepared: Prepared, line: _Line, finished: Mapping[str, Sequence[Conversation]] | None
) -> None:
    """Run, and put what there is to tell into the line: the last item is None, or what ended the run."""

    def emit(event: Event) -> None:
        if isinstance(event, ScenarioFinished):
            line.put_nowait(event.result)

    problem: BaseException | None = None
    try:
        await run_result(prepared, emit, finished)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - raised again by whoever takes it from the line
        problem = error
    line.put_nowait(problem)
