"""The project whose scenarios pytest runs, the collectors of its scenario files, and their items."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from agentest.cli.location import project_of
from agentest.cli.rerun_selection import name_of
from agentest.config.file import config_in, find_config
from agentest.domain.events import ReportOptions
from agentest.domain.results import ScenarioResult, Status
from agentest.report.content import ScenarioReport
from agentest.runner.plan import Options, Unit, make_plan, with_entries
from agentest.runner.prepare import Prepared, RunRequest, configure, prepared_for
from agentest.scenarios.discovery import DiscoveredScenarios, discover_file, is_scenario_file, search
from agentest.scenarios.model import Scenario
from agentest.support.errors import UsageError
from agentest.support.importing import Imports
from agentest.support.redaction import CredentialFilter
from agentest.support.terminal import clean

_OPTIONS = re.compile(r"--(config|offline)\b")
Entry = Unit | ScenarioResult


def project_file(config: pytest.Config) -> Path | None:
    """Return the configuration file: the named one, or the nearest as `agentest run` finds it."""
    folder = config.invocation_params.dir
    if named := config.getoption("agentest_config"):
        return folder / str(named)
    return project_of(folder).config_above or config_in(folder) or config_in(config.rootpath)


def open_project(config: pytest.Config) -> PytestProject:
    """Open and validate the project of this pytest run. Raises pytest.UsageError."""
    try:
        reruns = any(config.getoption(name, False) for name in ("lf", "stepwise"))
        return PytestProject(_request(config), reruns=reruns)
    except UsageError as error:
        message = _OPTIONS.sub(r"--agentest-\1", str(error))
        raise pytest.UsageError(f"agentest: {message}") from None


class PytestProject:
    """A configuration and the scenarios discovered with it. `reruns`: of failed tests. Raises UsageError."""

    def __init__(self, request: RunRequest, *, reruns: bool = False) -> None:
        self.request, self._reruns = request, reruns
        self.loaded = configure(request)
        self._imports = Imports()
        self._scenarios: list[Scenario] = []
        self._entries = 0
        self._read: set[Path] = set()
        # Report errors in metrics, agents and models before any scenario is collected.
        nothing = make_plan(self.loaded, DiscoveredScenarios(), request.options, self.root)
        self.models = prepared_for(request, self.loaded, nothing)

    @property
    def root(self) -> Path:
        """Folder that file patterns and configured paths are relative to."""
        return self.request.root

    def has(self, path: Path) -> bool:
        """Return True if a file is a scenario file of the project."""
        config = self.loaded.config
        return is_scenario_file(path, self.root, config.include, config.exclude, self.loaded.path)

    def why_not(self, path: Path) -> str:
        """Return a message that says why a named file is not a scenario file of the project."""
        config = self.loaded.config
        return (
            f"{path} is not a scenario file of {self.loaded.path}: it is not below {self.root}, does not "
            f"match `include` ({', '.join(config.include)}), is excluded by `exclude` "
            f"({', '.join(config.exclude)}), or lies in a folder with a configuration of its own; "
            "--agentest-config PATH names another configuration"
        )

    def discover(self, path: Path) -> DiscoveredScenarios:
        """Load the scenarios of a file. Names are unique across all discovered files."""
        discovered = discover_file(path, self._imports, self._scenarios, self.root).redacted(
            self.loaded.redact
        )
        self._scenarios += discovered.scenarios
        self._read.add(path)
        return discovered

    def entries(self, discovered: DiscoveredScenarios) -> Sequence[Entry]:
        """Return the units of a file, and the results of scenarios that will not run."""
        entries = make_plan(self.loaded, discovered, self.request.options, self.root, self._scenarios).entries
        self._entries += len(entries)
        return entries

    def prepare(self, wanted: Sequence[Entry]) -> Prepared:
        """Return a run of only these entries, in this order. Raises UsageError."""
        names = {entry.scenario.name for entry in wanted if isinstance(entry, Unit)}
        selected = DiscoveredScenarios(tuple(each for each in self._scenarios if each.name in names))
        plan = make_plan(self.loaded, selected, self.request.options, self.root, self._scenarios)
        by_scope = {unit.scope: unit for unit in plan.units}
        entries = [by_scope[each.scope] if isinstance(each, Unit) else each for each in wanted]
        prepared = prepared_for(self.request, self.loaded, with_entries(plan, entries, entries))
        config = self.loaded.config
        files = search(self.root, config.include, config.exclude, self.loaded.path).files
        known = DiscoveredScenarios(tuple(self._scenarios), is_partial=not self._read.issuperset(files))
        narrowed = known.is_partial or len(wanted) < self._entries
        return replace(prepared, narrowed=narrowed, picked=not self._reruns and known.leaves_out(names))


def is_setup_only(config: pytest.Config) -> bool:
    """Return True if pytest only shows what it would run (`--setup-plan`, `--setup-only`)."""
    return bool(config.getoption("setuponly", False) or config.getoption("setupplan", False))


def verbosity(config: pytest.Config) -> int:
    """Return the number of -v options. The option does not exist without a terminal (`-p no:terminal`)."""
    return config.get_verbosity() if hasattr(config.option, "verbose") else 0


def _request(config: pytest.Config) -> RunRequest:
    folder = config.invocation_params.dir
    file = project_file(config) or find_config(folder, "--agentest-config")
    named = config.getoption("agentest_config") is not None
    options = Options(
        offline=bool(config.getoption("agentest_offline")), strict=config.getoption("agentest_strict")
    )
    reports = ReportOptions(verbosity=2 if verbosity(config) > 1 else 0)
    return RunRequest(folder if named else file.parent, file, options, reports, folder)


class ResultSource(Protocol):
    """Runs items and returns their results."""

    def result_of(self, item: ScenarioItem) -> ScenarioResult:
        """Wait for the result of an item."""


def headline(result: ScenarioResult) -> str:
    """Return what kept a scenario from passing, in one short row."""
    return clean(ScenarioReport(CredentialFilter()(result)).headline)


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
        counts: dict[str, int] = {}
        for entry in entries:
            name = _in_a_row(name_of(entry)) + (f"[{_in_a_row(entry.agent)}]" if entry.agent else "")
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
        return name_of(self.entry), self.entry.agent

    def setup(self) -> None:
        """Wait for the result, and skip or raise if the scenario is skipped or errored."""
        if is_setup_only(self.config):
            return
        self.result = result = self._runs.result_of(self)
        totals = result.totals
        averages = {name: round(value, 4) for name, value in result.averages.items()}
        figures = {"conversations": totals.conversations, "passed_conversations": totals.passed, **averages}
        self.user_properties[:] = figures.items() if totals.conversations else []  # for JUnit XML
        if result.verdict.status is Status.SKIPPED:
            pytest.skip("; ".join(reason.message for reason in result.verdict.reasons))
        if result.verdict.status is Status.ERRORED:
            raise ScenarioDidNotPass(result)

    def runtest(self) -> None:
        """Raise if the scenario failed."""
        if self.result and self.result.verdict.status is Status.FAILED:
            raise ScenarioDidNotPass(self.result)

    def _repr_failure_py(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, ScenarioDidNotPass):
            return str(excinfo.value)
        return super()._repr_failure_py(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the location of the scenario; lines count from 0."""
        line = self.entry.scenario.line if isinstance(self.entry, Unit) else self.entry.line
        return self.path, line - 1 if line else None, self.name


_PYTEST = ("skip", "skipif", "xfail", "parametrize", "usefixtures", "filterwarnings", "tryfirst", "trylast")
_PLUGINS = ("anyio", "asyncio", "dependency", "django_db", "flaky", "order", "timeout", "trio", "xdist_group")
_WORDS = ("and", "or", "not", "True", "False", "None")
_MEANINGFUL = frozenset({*_PYTEST, *_PLUGINS, *_WORDS})
"""Names with a meaning for pytest or its plugins, and words that `-m` cannot parse."""


def mark(item: pytest.Item, tag: str) -> None:
    """Mark an item with a tag, and register the marker for `--strict-markers`.

    Characters that `-m` cannot parse become `_`. Names with a meaning for pytest get the prefix `tag_`.
    """
    name = re.sub(r"[^\w.+/-]", "_", tag)
    name = f"tag_{name}" if name in _MEANINGFUL or name[:1] in ("", "_") else name
    if not any(re.split("[:(]", line)[0].strip() == name for line in item.config.getini("markers")):
        item.config.addinivalue_line("markers", f"{name}: tag of scenarios")
    item.add_marker(getattr(pytest.mark, name))


def _in_a_row(name: str) -> str:
    row = " ".join(clean(name).split())  # without `::`, which separates node ids
    while "::" in row:
        row = row.replace("::", ": :")
    return row
