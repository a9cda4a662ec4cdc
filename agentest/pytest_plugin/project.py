"""The project whose scenarios pytest runs: configuration, scenario files and plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentest.cli.location import project_of
from agentest.config.file import NAMES, find_config
from agentest.domain.results import ScenarioResult
from agentest.runner.plan import Options, Plan, Unit, make_plan
from agentest.runner.prepare import Prepared, ReportOptions, RunRequest, configure, prepared_for
from agentest.scenarios.discovery import DiscoveredScenarios, discover_file, is_scenario_file, search
from agentest.scenarios.model import Scenario
from agentest.support.errors import ConfigError, UsageError
from agentest.support.importing import Imports

_OPTIONS = re.compile(r"--(config|offline)\b")
"""Options of `agentest run` in messages, which have other names in pytest."""


def project_file(config: pytest.Config) -> Path | None:
    """Return the configuration file: the named one, or the nearest as `agentest run` finds it."""
    folder = config.invocation_params.dir
    if named := config.getoption("agentest_config"):
        return folder / str(named)
    return project_of(folder).config_above or _in(folder) or _in(config.rootpath)


def open_project(config: pytest.Config) -> PytestProject:
    """Open and validate the project of this pytest run. Raises pytest.UsageError."""
    try:
        return PytestProject(_request(config))
    except UsageError as error:
        message = _OPTIONS.sub(r"--agentest-\1", str(error))
        raise pytest.UsageError(f"agentest: {message}") from None


class PytestProject:
    """A configuration and the scenarios discovered with it. Raises UsageError."""

    def __init__(self, request: RunRequest) -> None:
        self.request = request
        self.loaded = configure(request)
        self._imports = Imports()
        self._scenarios: list[Scenario] = []
        self._entries = 0
        self._read: set[Path] = set()
        # Report errors in metrics, agents and models before any scenario is collected.
        self.models = self._prepared(
            make_plan(self.loaded.config, DiscoveredScenarios(), request.options, self.root)
        )

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

    def entries(self, discovered: DiscoveredScenarios) -> Sequence[Unit | ScenarioResult]:
        """Return the units of a file, and the results of scenarios that will not run."""
        entries = make_plan(
            self.loaded.config, discovered, self.request.options, self.root, self._scenarios
        ).entries
        self._entries += len(entries)
        return entries

    def prepare(self, wanted: Sequence[Unit | ScenarioResult]) -> Prepared:
        """Return a run of only these entries, in this order. Raises UsageError."""
        names = {entry.scenario.name for entry in wanted if isinstance(entry, Unit)}
        selected = DiscoveredScenarios(tuple(each for each in self._scenarios if each.name in names))
        plan = make_plan(self.loaded.config, selected, self.request.options, self.root, self._scenarios)
        prepared = self._prepared(_only(plan, wanted))
        return replace(prepared, narrowed=len(wanted) < self._entries or not self._files <= self._read)

    @property
    def _files(self) -> set[Path]:
        """Return all scenario files of the project, including files that pytest does not collect."""
        config = self.loaded.config
        return set(search(self.root, config.include, config.exclude, self.loaded.path).files)

    def _prepared(self, plan: Plan) -> Prepared:
        return prepared_for(self.request, self.loaded, plan)


def is_setup_only(config: pytest.Config) -> bool:
    """Return True if pytest only shows what it would run (`--setup-plan`, `--setup-only`)."""
    return bool(config.getoption("setuponly", False) or config.getoption("setupplan", False))


def verbosity(config: pytest.Config) -> int:
    """Return the number of -v options. The option does not exist without a terminal (`-p no:terminal`)."""
    return config.get_verbosity() if hasattr(config.option, "verbose") else 0


def _in(folder: Path) -> Path | None:
    try:
        return find_config(folder)
    except ConfigError:
        return None


def _request(config: pytest.Config) -> RunRequest:
    folder, file = config.invocation_params.dir, project_file(config)
    if file is None:
        folders = dict.fromkeys(map(str, (folder, config.rootpath)))
        raise ConfigError(
            f"no configuration found in {' or '.join(folders)}: expected {NAMES[0]}, {NAMES[1]} or "
            f"{NAMES[2]}. Write one (agentest init), or name it with --config PATH"
        )
    named = config.getoption("agentest_config") is not None
    options = Options(
        offline=bool(config.getoption("agentest_offline")), strict=config.getoption("agentest_strict")
    )
    reports = ReportOptions(verbose=verbosity(config) > 1)
    return RunRequest(folder if named else file.parent, file, options, reports, folder)


def _only(plan: Plan, wanted: Sequence[Unit | ScenarioResult]) -> Plan:
    by_scope = {unit.scope: unit for unit in plan.units}
    entries = tuple(by_scope[each.scope] if isinstance(each, Unit) else each for each in wanted)
    units = tuple(each for each in entries if isinstance(each, Unit))
    used = {unit.agent: plan.agents[unit.agent] for unit in units}
    return replace(plan, entries=entries, units=units, agents=used)
