"""From the items that pytest has selected to one run, and from its results back to the items."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from _pytest.skipping import evaluate_skip_marks, evaluate_xfail_marks

from agentest.domain.results import Reason, ReasonKind, RunResult, ScenarioResult, Status, Verdict
from agentest.pytest_plugin.items import Entry, ScenarioItem
from agentest.pytest_plugin.project import Project
from agentest.runner.plan import Unit
from agentest.support.errors import UsageError

if TYPE_CHECKING:
    from agentest.pytest_plugin.background_run import BackgroundRun

Key = tuple[str, str]


class Runs:
    """The run of the selected items, and one more for each item that another plugin wants again.

    Args:
        say: receives each line for whoever waits.
    """

    def __init__(self, project: Project, say: Callable[[str], object]) -> None:
        self._project = project
        self._say = say
        self._run: BackgroundRun | None = None
        self._arriving: Iterator[ScenarioResult] = iter(())
        self._results: dict[Key, ScenarioResult] = {}
        self._unread: deque[Key] = deque()
        """Whose results have arrived, and nobody has asked for."""
        self._missing: dict[Key, Unit] = {}
        """Those of the run under way whose results have not arrived."""
        self._begun: set[Key] = set()
        self._ended: list[BackgroundRun] = []

    @property
    def notes(self) -> list[str]:
        """What the user should know of the runs so far."""
        return list(dict.fromkeys(chain.from_iterable(run.notes for run in self._ended)))

    @property
    def ended(self) -> list[RunResult]:
        """The runs that have ended, each as a whole."""
        return [run.result for run in self._ended if run.result]

    @property
    def incomplete(self) -> bool:
        """Whether a report that was asked for could not be written."""
        return any(run.incomplete for run in self._ended)

    @property
    def commands(self) -> list[str]:
        """Workflow commands of GitHub, to be printed when pytest has reported."""
        return list(chain.from_iterable(run.commands for run in self._ended))

    def begin_all(self, items: Sequence[ScenarioItem]) -> dict[Key, ScenarioItem]:
        """Run those of the selected items that no run has had. Returns them."""
        running = {item.key: item for item in items if not self.has_begun(item) and may_run(item)}
        if running:
            settled = (item for item in items if isinstance(item.entry, ScenarioResult))
            order = {item: number for number, item in enumerate(items)}
            self.begin(sorted((*running.values(), *settled), key=order.__getitem__))
        return running

    def begin(self, items: Iterable[ScenarioItem]) -> None:
        """Run these items together, concurrently; what will not run is kept with them."""
        entries = [item.entry for item in items]
        units = [entry for entry in entries if isinstance(entry, Unit)]
        self._begun |= {(unit.scenario.name, unit.agent) for unit in units}
        self._arriving = chain(self._arriving, self._results_of(units, entries))

    def has_begun(self, item: ScenarioItem) -> bool:
        """Whether a run has the item, or it needs none."""
        return item.key in self._begun or not isinstance(item.entry, Unit)

    def next(self) -> Key | None:
        """Wait for the next result that nobody has had; None when there is none left."""
        if self._unread or self._arrives():
            return self._unread.popleft()
        return None

    def result_of(self, item: ScenarioItem) -> ScenarioResult:
        """Wait for an item's result. One that is asked for again runs again."""
        if isinstance(item.entry, ScenarioResult):
            return item.entry
        if not self.has_begun(item):
            selected = [each for each in item.session.items if isinstance(each, ScenarioItem)]
            if item.key not in self.begin_all(selected):
                self.begin([item])
        while item.key not in self._results:
            if not self._arrives():  # its result was given before
                self.begin([item])
        if item.key in self._unread:
            self._unread.remove(item.key)
        return self._results.pop(item.key)

    def stop(self, *, interrupted: bool = False) -> None:
        """Stop what is under way, and wait until it is gone."""
        if self._run:
            if self._missing:
                self._run.stop(interrupted=interrupted)
            else:
                self._run.wait()
            self._close(self._run)

    def _arrives(self) -> bool:
        """Wait for the next result; False when there is none left."""
        result = next(self._arriving, None)
        if result is None:
            return False
        key = result.name, result.agent
        self._results[key] = result
        self._unread.append(key)
        return True

    def _results_of(self, units: Sequence[Unit], entries: Sequence[Entry]) -> Iterator[ScenarioResult]:
        """Run units, from the moment in which the first result is asked for; each of them has a result."""
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
        yield from _errored(missing.values(), _why(run))

    def _close(self, run: BackgroundRun) -> None:
        self._run = None
        self._ended.append(run)


def may_run(item: ScenarioItem) -> bool:
    """Whether an item is worth a conversation: pytest does not run those that are marked so."""
    try:
        if evaluate_skip_marks(item):
            return False
        expected = evaluate_xfail_marks(item)
    except Exception:  # noqa: BLE001 - pytest says it where it sets up the item, and runs nothing
        return False
    return expected is None or expected.run or bool(item.config.getoption("runxfail", False))


def _why(run: BackgroundRun) -> str:
    """Why a run has left scenarios without a result."""
    problem = run.problem
    if problem is None:
        return "the run was stopped before this scenario began"
    if isinstance(problem, UsageError):
        return str(problem)
    rows = "".join(traceback.format_exception(problem))
    return f"an unexpected error ended the run: {type(problem).__name__}: {problem}\n{rows}"


def _errored(units: Iterable[Unit], why: str) -> Iterator[ScenarioResult]:
    """Results of scenarios that did not run; the first says why in full."""
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
