"""Runs conversations of changed scenarios in an open run.

`ExploreEngine` runs the unchanged scenarios as every run does, then explores with the same agents, models and
limits. `TryJournal` stores each conversation as a line of `explore.jsonl` in the folder of the run. A resumed
exploration takes conversations from it instead of running them again: they are known by their unit, the name
of the change and a number.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import ClassVar

import anyio

from agentest.domain.results import ConversationResult
from agentest.domain.results.exploration import Explored
from agentest.plugins.explore.model import Converse
from agentest.runner.conversation_run import ConversationRunner, bypass_reason
from agentest.runner.executor import LocalEngine, RunUnits, UnitResults, released, units_in_order
from agentest.runner.plan import Unit, turn_limit
from agentest.runner.session import RunSession, Stop, UnitConnections
from agentest.runner.sources import Origin
from agentest.scenarios.model import Scenario
from agentest.scenarios.variations import acted
from agentest.store.codec import CODECS, conversation_json
from agentest.store.journal import RetryingLineFile
from agentest.support.json_text import Json, encoded, json_value
from agentest.support.lazy_dataclasses import dataclass, replace

EXPLORE_JOURNAL = "explore.jsonl"
_Key = tuple[str, str, int, str]


@dataclass(frozen=True, slots=True)
class ExploreEngine:
    """Runs all units in this process, then explores."""

    has_workers: ClassVar = False
    opens: ClassVar = LocalEngine.opens

    explore: Callable[[RunSession, UnitResults, Converse, UnitConnections], Awaitable[None]]
    """Explores after the unchanged scenarios have run. A stop may cancel it at any time."""
    explored: Callable[[], Explored]

    @asynccontextmanager
    async def open(self, session: RunSession, origin: Origin) -> AsyncIterator[RunUnits]:
        async with LocalEngine().connect(session, origin) as (runner, connections):
            run_base = units_in_order(session, runner, connections, origin)
            converse = ConversationSlots(runner, session)

            async def run() -> UnitResults:
                results = await run_base()
                if session.stop.reason is None:
                    explore = partial(self.explore, session, results, converse, connections)
                    await _until_stopped(session.stop, explore)
                return replace(results, explored=self.explored())

            yield run


async def _until_stopped(stop: Stop, work: Callable[[], Awaitable[None]]) -> None:
    async with anyio.create_task_group() as tasks:

        async def cancel() -> None:
            await stop.called.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(cancel)
        await work()
        tasks.cancel_scope.cancel()


class ConversationSlots:
    """Runs single conversations, as many at once as the run allows; it is what each reports to."""

    def __init__(self, runner: ConversationRunner, session: RunSession) -> None:
        self._runner = runner
        self._stop = session.stop
        self._slots = anyio.Semaphore(session.settings.concurrency)
        self._queues: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)  # by exclusive agent

    async def __call__(self, base: Unit, scenario: Scenario, name: str, number: int) -> ConversationResult:
        # The changed scenario has a scope and a slug of its own.
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
        unit = replace(
            base,
            scenario=acted(scenario),
            written=scenario,
            scope=f"{base.scope}~{digest}",
            slug=f"{base.slug}-{digest}",
            conversations=1,
            max_turns=turn_limit(scenario, base.max_turns),
            repeat=None,
        )
        queue = unit.traits.queue
        async with self._queues[queue] if queue else nullcontext(), self._slots:
            try:
                result = (await self._runner.run(unit, number, self)).result
            finally:
                self._runner.end(unit)
        failure = result.conversation.failure
        if failure and failure.bypassed:
            self._stop.because_of_real_tool(bypass_reason(unit, failure))
        return result

    def on_turn(self, conversation_id: str, turn_index: int, *, handed_over: bool) -> None:
        """Do nothing: tries report their conversations when they have finished."""

    def on_ended(self) -> None:
        """Do nothing: the slot is released after judging, because the next step needs the verdict."""

    def slot_released(self) -> AbstractAsyncContextManager[None]:
        return released(self._slots)

    async def reacquire_slot(self) -> None:
        """Do nothing: the slot was never released."""


class TryJournal:
    """Stores the conversations of changed scenarios.

    Args:
        file: receives the lines; None: they are not stored.
        earlier: the journal of the exploration that is being resumed.
    """

    def __init__(self, file: RetryingLineFile | None, earlier: Path | None = None) -> None:
        self._file = file
        self._earlier: Mapping[_Key, bytes] = _read(earlier) if earlier else {}

    @property
    def size(self) -> int:
        """The number of conversations in the earlier journal."""
        return len(self._earlier)

    def around(self, converse: Converse) -> Converse:
        """Return a function that runs only the conversations that no earlier journal has."""

        async def run(base: Unit, scenario: Scenario, name: str, number: int) -> ConversationResult:
            if (line := self._earlier.get((base.scope, name, number, base.fingerprint))) is not None:
                self._add(line)
                return CODECS.read(ConversationResult, json_value(line)["result"])
            result = await converse(base, scenario, name, number)
            data = {"scope": base.scope, "name": name, "number": number, "fingerprint": base.fingerprint}
            self._add(encoded({**data, "result": conversation_json(result, None, {})}) + b"\n")
            return result

        return run

    def _add(self, line: bytes) -> None:
        if self._file is not None:
            self._file.add(line)


def _read(path: Path) -> dict[_Key, bytes]:
    lines: dict[_Key, bytes] = {}
    with suppress(OSError):
        for line in path.read_bytes().splitlines(keepends=True):
            with suppress(ValueError, KeyError, TypeError):  # a line that was cut when the process ended
                data: Json = json_value(line) if line.endswith(b"\n") else {}
                lines[data["scope"], data["name"], data["number"], data["fingerprint"]] = line
    return lines
