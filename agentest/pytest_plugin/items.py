"""Scenario files as pytest's collectors, and their scenarios as its items."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from agentest.domain.results import ScenarioResult, Status
from agentest.pytest_plugin.project import only_shown
from agentest.runner.plan import Unit
from agentest.support.terminal import clean

if TYPE_CHECKING:
    from agentest.pytest_plugin.project import Project

Entry = Unit | ScenarioResult
"""What is to run, or what will not run as its result."""


class Results(Protocol):
    """Runs items, and has their results."""

    def result_of(self, item: ScenarioItem) -> ScenarioResult:
        """Wait for an item's result."""
        ...


class Unsuccessful(Exception):
    """A scenario failed or is errored; pytest shows what the console says of it."""

    def __init__(self, result: ScenarioResult) -> None:
        super().__init__(result.verdict.reasons[0].message if result.verdict.reasons else "")
        self.result = result


class ScenarioFile(pytest.File):
    """A scenario file."""

    def __init__(self, *, project: Project, runs: Results, **others: Any) -> None:
        super().__init__(**others)
        self._project, self._runs = project, runs

    def collect(self) -> Iterator[ScenarioItem]:
        """The file's scenarios, one item for each of its agents."""
        if not self._project.has(self.path):
            raise self.CollectError(self._project.why_not(self.path))
        found = self._project.discover(self.path)
        if found.broken:
            refused = (each.refused for each in found.scenarios if each.refused)
            raise self.CollectError("\n".join([found.broken[0].message, *refused]))
        entries = self._project.entries(found)
        if not entries:
            self.warn(
                pytest.PytestCollectionWarning(f"{self.name} defines no scenario: it never calls scenario(…)")
            )
        yield from self._items(entries)

    def _items(self, entries: Iterable[Entry]) -> Iterator[ScenarioItem]:
        taken: dict[str, int] = {}
        for entry in entries:
            name = item_name(_scenario_name(entry), entry.agent)
            taken[name] = taken.get(name, 0) + 1
            if taken[name] > 1:
                name += f"~{taken[name]}"
            # As a whole: what pytest keeps between runs is read back from it, brackets and all.
            nodeid = f"{self.nodeid}::{name}"
            yield ScenarioItem.from_parent(self, name=name, nodeid=nodeid, entry=entry, runs=self._runs)


class ScenarioItem(pytest.Item):
    """A scenario and an agent. The setup waits for the result, so that what is errored is pytest's error."""

    def __init__(self, *, entry: Entry, runs: Results, **others: Any) -> None:
        super().__init__(**others)
        self.entry = entry
        self.result: ScenarioResult | None = entry if isinstance(entry, ScenarioResult) else None
        """What came of it, when that is known."""
        self._runs = runs
        if self.config.pluginmanager.hasplugin("timeout") and not self.get_closest_marker("timeout"):
            self.add_marker(pytest.mark.timeout(0))  # the first item would wait for the whole run
        for tag in entry.scenario.tags if isinstance(entry, Unit) else entry.tags:
            mark(self, tag)

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others of a run: the names of scenario and agent."""
        return _scenario_name(self.entry), self.entry.agent

    def setup(self) -> None:
        """Wait for the result."""
        if only_shown(self.config):
            return
        self.result = result = self._runs.result_of(self)
        self.user_properties[:] = _properties(result)
        if result.verdict.status is Status.SKIPPED:
            pytest.skip("; ".join(reason.message for reason in result.verdict.reasons))
        if result.verdict.status is Status.ERRORED:
            raise Unsuccessful(result)

    def runtest(self) -> None:
        """Fail where the scenario has failed."""
        if self.result and self.result.verdict.status is Status.FAILED:
            raise Unsuccessful(self.result)

    def _repr_failure_py(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Nothing of a traceback that nobody sees: pytest would read all sources of it, for each failure."""
        if isinstance(excinfo.value, Unsuccessful):
            return str(excinfo.value)
        return super()._repr_failure_py(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the scenario is; lines count from 0."""
        line = self.entry.scenario.line if isinstance(self.entry, Unit) else self.entry.line
        return self.path, line - 1 if line else None, self.name


def _scenario_name(entry: Entry) -> str:
    return entry.scenario.name if isinstance(entry, Unit) else entry.name


def _properties(result: ScenarioResult) -> list[tuple[str, object]]:
    """What is known of a scenario in numbers, for reports such as JUnit's."""
    totals = result.totals
    if not totals.conversations:
        return []
    counted = {"conversations": totals.conversations, "passed_conversations": totals.passed}
    averages = {name: round(value, 4) for name, value in result.averages.items()}
    return [*counted.items(), *averages.items()]


_PYTEST = ("skip", "skipif", "xfail", "parametrize", "usefixtures", "filterwarnings", "tryfirst", "trylast")
_PLUGINS = ("anyio", "asyncio", "dependency", "django_db", "flaky", "order", "timeout", "trio", "xdist_group")
_WORDS = ("and", "or", "not", "True", "False", "None")
_MEANINGFUL = frozenset({*_PYTEST, *_PLUGINS, *_WORDS})
"""Names that would make pytest do something, or that `-m` cannot say."""


def marker_name(tag: str) -> str:
    """The marker of a tag: what `-m` cannot read becomes `_`; what pytest would act on begins with `tag_`."""
    name = re.sub(r"[^\w.+/-]", "_", tag)
    return f"tag_{name}" if name in _MEANINGFUL or name[:1] in ("", "_") else name


def mark(item: pytest.Item, tag: str) -> None:
    """Mark an item with a tag, under a marker that `--strict-markers` knows."""
    name = marker_name(tag)
    if not any(re.split("[:(]", line)[0].strip() == name for line in item.config.getini("markers")):
        item.config.addinivalue_line("markers", f"{name}: tag of scenarios")
    item.add_marker(getattr(pytest.mark, name))


def item_name(scenario: str, agent: str) -> str:
    """The name of an item: the scenario's, without the `::` that divides node ids, then the agent's."""
    return f"{_in_a_row(scenario)}[{_in_a_row(agent)}]" if agent else _in_a_row(scenario)


def _in_a_row(name: str) -> str:
    row = " ".join(clean(name).split())
    while "::" in row:
        row = row.replace("::", ": :")
    return row
