"""Run the selected items as one run, and return each item's result."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from _pytest.skipping import evaluate_skip_marks, evaluate_xfail_marks

from agentest.domain.results import Reason, ReasonKind, RunResult, ScenarioResult, Status, Verdict
from agentest.pytest_plugin.items import Entry, ScenarioItem
from agentest.pytest_plugin.project import PytestProject
from agentest.runner.plan import Unit
from agentest.support.errors import UsageError

if TYPE_CHECKING:
    from agentest.pytest_plugin.background_run import BackgroundRun

Key = tuple[str, str]


class PytestRuns:
    """The run of the selected items, and another run for each item that a plugin repeats.

    Args:
        project: the configuration and its scenarios.
        say: prints a line for the waiting user.
    """

    def __init__(self, project: PytestProject, say: Callable[[str], object]) -> None:
        self._project = project
        self._say = say
        self._run: BackgroundRun | None = None
        self._arriving: Iterator[ScenarioResult] = iter(())
        self._results: dict[Key, ScenarioResult] = {}
        self._unread: deque[Key] = deque()
        """Keys of results that have arrived and were not yet returned."""
        self._missing: dict[Key, Unit] = {}
        """Units of the current run without a result."""
        self._begun: set[Key] = set()
        self._ended: list[BackgroundRun] = []

    @property
    def notes(self) -> list[str]:
        """Notes of all runs."""
        return list(dict.fromkeys(chain.from_iterable(run.notes for run in self._ended)))

    @property
    def ended(self) -> list[RunResult]:
        """Results of the runs that have ended."""
        return [run.result for run in self._ended if run.result]

    @property
    def incomplete(self) -> bool:
        """True if a requested report could not be written."""
        return any(run.incomplete for run in self._ended)

    @property
    def commands(self) -> list[str]:
        """GitHub workflow commands, to print after pytest's report."""
        return list(chain.from_iterable(run.commands for run in self._ended))

    def begin_all(self, items: Sequence[ScenarioItem]) -> dict[Key, ScenarioItem]:
        """Run the selected items that have not run yet, and return them by key."""
        running = {item.key: item for item in items if not self.has_begun(item) and may_run(item)}
        if running:
            settled = (item for item in items if isinstance(item.entry, ScenarioResult))
            order = {item: number for number, item in enumerate(items)}
            self.begin(sorted((*running.values(), *settled), key=order.__getitem__))
        return running

    def begin(self, items: Iterable[ScenarioItem]) -> None:
        """Run these items concurrently. Results of items that will not run are stored with them."""
        entries = [item.entry for item in items]
        units = [entry for entry in entries if isinstance(entry, Unit)]
        self._begun |= {(unit.scenario.name, unit.agent) for unit in units}
        self._arriving = chain(self._arriving, self._results_of(units, entries))

    def has_begun(self, item: ScenarioItem) -> bool:
        """Return True if the item is part of a run or does not need one."""
        return item.key in self._begun or not isinstance(item.entry, Unit)

    def next(self) -> Key | None:
        """Wait for the next result and return its key; None if there are no more."""
        if self._unread or self._receive_next():
            return self._unread.popleft()
        return None

    def result_of(self, item: ScenarioItem) -> ScenarioResult:
        """Wait for an item's result. An item whose result was already returned runs again."""
        if isinstance(item.entry, ScenarioResult):
            return item.entry
        if not self.has_begun(item):
            selected = [each for each in item.session.items if isinstance(each, ScenarioItem)]
            if item.key not in self.begin_all(selected):
                self.begin([item])
        while item.key not in self._results:
            if not self._receive_next():  # its result was already returned
                self.begin([item])
        if item.key in self._unread:
            self._unread.remove(item.key)
        return self._results.pop(item.key)

    def stop(self, *, interrupted: bool = False) -> None:
        """Stop the current run and wait until it has ended."""
        if self._run:
            if self._missing:
                self._run.stop(interrupted=interrupted)
            else:
                self._run.wait()
            self._close(self._run)

    def _receive_next(self) -> bool:
        """Wait for the next result; return False if there are no more."""
        result = next(self._arriving, None)
        if result is None:
            return False
        key = result.name, result.agent
        self._results[key] = result
        self._unread.append(key)
        return True

    def _results_of(self, units: Sequence[Unit], entries: Sequence[Entry]) -> Iterator[ScenarioResult]:
        """Run units when the first result is requested, and yield a result for each of them."""
        from agentest.pytest_plugin.background_run import BackgroundRun

        missing = self._missing = {(unit.scenario.name, unit.agent): unit for unit in units}
        try:
            self._run = run = BackgroundRun(self._project.prepare(entries), self._say)
        except UsageError as error:
            yield from _errored(missing.values(), self._project.loaded.redact(str(error)))
            return
        run.start()
        for result in run.results():
            del missing[result.name, result.agent]
            yield result
        self._close(run)
        yield from _errored(missing.values(), _problem_message(run))

    def _close(self, run: BackgroundRun) -> None:
        self._run = None
        self._ended.append(run)


def may_run(item: ScenarioItem) -> bool:
    """Return True if pytest will run the item, so that a conversation is worth its cost."""
    try:
        if evaluate_skip_marks(item):
            return False
        expected = evaluate_xfail_marks(item)
    except Exception:  # noqa: BLE001 - pytest reports it in the item's setup and does not run the item
        return False
    return expected is None or expected.run or bool(item.config.getoption("runxfail", False))


def _problem_message(run: BackgroundRun) -> str:
    """Return the reason why a run left scenarios without a result."""
    problem = run.problem
    if problem is None:
        return "the run was stopped before this scenario began"
    if isinstance(problem, UsageError):
        return str(problem)
    rows = "".join(traceback.format_exception(problem))
    return f"an unexpected error ended the run: {type(problem).__name__}: {problem}\n{rows}"


def _errored(units: Iterable[Unit], why: str) -> Iterator[ScenarioResult]:
    """Yield errored results; only the first contains the full message."""
    for number, unit in enumerate(units):
        message = why if number == 0 else why.partition("\n")[0]
        reason = Reason(Status.ERRORED, ReasonKind.FILE, message)
        yield ScenarioResult(
            name=unit.scenario.name,
            agent=unit.agent,
            file=unit.file,
            line=unit.scenario.line,
            verdict=Verdict(Status.ERRORED, (reason,)),
            tags=unit.scenario.tags,
        )
