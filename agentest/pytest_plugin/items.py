"""pytest collectors for scenario files and items for their scenarios."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from agentest.domain.results import ScenarioResult, Status
from agentest.pytest_plugin.project import is_setup_only
from agentest.runner.plan import Unit
from agentest.support.terminal import clean

if TYPE_CHECKING:
    from agentest.pytest_plugin.project import PytestProject

Entry = Unit | ScenarioResult
"""A unit to run, or the result of a scenario that will not run."""


class ResultSource(Protocol):
    """Runs items and returns their results."""

    def result_of(self, item: ScenarioItem) -> ScenarioResult:
        """Wait for the result of an item."""
        ...


class ScenarioDidNotPass(Exception):
    """A scenario failed or is errored. pytest shows the console report of the scenario."""

    def __init__(self, result: ScenarioResult) -> None:
        super().__init__(result.verdict.reasons[0].message if result.verdict.reasons else "")
        self.result = result


class ScenarioFile(pytest.File):
    """Collector of a scenario file."""

    def __init__(
        self,
        *,
        parent: pytest.Collector,
        path: Path,
        fspath: None = None,
        project: PytestProject,
        runs: ResultSource,
    ) -> None:
        super().__init__(fspath, parent=parent, path=path)
        self._project, self._runs = project, runs

    def collect(self) -> Iterator[ScenarioItem]:
        """Return one item for each scenario and agent."""
        if not self._project.has(self.path):
            raise self.CollectError(self._project.why_not(self.path))
        discovered = self._project.discover(self.path)
        if discovered.broken:
            refused = (each.refused for each in discovered.scenarios if each.refused)
            raise self.CollectError("\n".join([discovered.broken[0].message, *refused]))
        entries = self._project.entries(discovered)
        if not entries:
            self.warn(
                pytest.PytestCollectionWarning(f"{self.name} defines no scenario: it never calls scenario(…)")
            )
        yield from self._items(entries)

    def _items(self, entries: Iterable[Entry]) -> Iterator[ScenarioItem]:
        counts: dict[str, int] = {}
        for entry in entries:
            name = item_name(_scenario_name(entry), entry.agent)
            counts[name] = counts.get(name, 0) + 1
            if counts[name] > 1:
                name += f"~{counts[name]}"
            # Set the whole node id: pytest reads ids back from its cache, including the brackets.
            nodeid = f"{self.nodeid}::{name}"
            yield ScenarioItem.from_parent(self, name=name, nodeid=nodeid, entry=entry, runs=self._runs)


class ScenarioItem(pytest.Item):
    """A scenario with one agent. Its setup waits for the result, so that pytest reports errors as errors."""

    def __init__(
        self, *, parent: ScenarioFile, name: str, nodeid: str, entry: Entry, runs: ResultSource
    ) -> None:
        super().__init__(name, parent, nodeid=nodeid)
        self.entry = entry
        self.result: ScenarioResult | None = entry if isinstance(entry, ScenarioResult) else None
        """The result, when it is available."""
        self._runs = runs
        if self.config.pluginmanager.hasplugin("timeout") and not self.get_closest_marker("timeout"):
            self.add_marker(
                pytest.mark.timeout(0)
            )  # otherwise the first item would time out while the whole run executes
        for tag in entry.scenario.tags if isinstance(entry, Unit) else entry.tags:
            mark(self, tag)

    @property
    def key(self) -> tuple[str, str]:
        """Names of the scenario and the agent, which are unique in a run."""
        return _scenario_name(self.entry), self.entry.agent

    def setup(self) -> None:
        """Wait for the result, and skip or raise if the scenario is skipped or errored."""
        if is_setup_only(self.config):
            return
        self.result = result = self._runs.result_of(self)
        self.user_properties[:] = _properties(result)
        if result.verdict.status is Status.SKIPPED:
            pytest.skip("; ".join(reason.message for reason in result.verdict.reasons))
        if result.verdict.status is Status.ERRORED:
            raise ScenarioDidNotPass(result)

    def runtest(self) -> None:
        """Raise if the scenario failed."""
        if self.result and self.result.verdict.status is Status.FAILED:
            raise ScenarioDidNotPass(self.result)

    def _repr_failure_py(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the report without a traceback: for each one, pytest would read all of its source files."""
        if isinstance(excinfo.value, ScenarioDidNotPass):
            return str(excinfo.value)
        return super()._repr_failure_py(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the location of the scenario; lines count from 0."""
        line = self.entry.scenario.line if isinstance(self.entry, Unit) else self.entry.line
        return self.path, line - 1 if line else None, self.name


def _scenario_name(entry: Entry) -> str:
    return entry.scenario.name if isinstance(entry, Unit) else entry.name


def _properties(result: ScenarioResult) -> list[tuple[str, object]]:
    """Return the scenario's figures for reports such as JUnit XML."""
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
"""Names with a meaning for pytest or its plugins, and words that `-m` cannot parse."""


def marker_name(tag: str) -> str:
    """Return the marker for a tag.

    Characters that `-m` cannot parse become `_`. Names with a meaning for pytest get the prefix `tag_`.
    """
    name = re.sub(r"[^\w.+/-]", "_", tag)
    return f"tag_{name}" if name in _MEANINGFUL or name[:1] in ("", "_") else name


def mark(item: pytest.Item, tag: str) -> None:
    """Mark an item with a tag, and register the marker for `--strict-markers`."""
    name = marker_name(tag)
    if not any(re.split("[:(]", line)[0].strip() == name for line in item.config.getini("markers")):
        item.config.addinivalue_line("markers", f"{name}: tag of scenarios")
    item.add_marker(getattr(pytest.mark, name))


def item_name(scenario: str, agent: str) -> str:
    """Return the name of an item: the scenario without `::`, which separates node ids, and the agent."""
    return f"{_in_a_row(scenario)}[{_in_a_row(agent)}]" if agent else _in_a_row(scenario)


def _in_a_row(name: str) -> str:
    row = " ".join(clean(name).split())
    while "::" in row:
        row = row.replace("::", ": :")
    return row
