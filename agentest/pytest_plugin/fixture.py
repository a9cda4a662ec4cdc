"""The fixture `agentest`, which runs scenarios and evaluation sets inside tests."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import anyio
import pytest
from _pytest._code.code import ExceptionChainRepr

from agentest.domain.results import ScenarioResult
from agentest.plugin import PLUGINS
from agentest.pytest_plugin.project import headline
from agentest.report.content import NOT_PASSED, and_more
from agentest.runner.plan import Options
from agentest.runner.prepare import RunRequest
from agentest.scenarios.model import Scenario
from agentest.support.errors import ConfigError
from agentest.support.importing import is_users_file
from agentest.testing.run import (
    CheckedRun,
    Runner,
    RunnerArguments,
    ScenarioErrored,
    ScenarioFailed,
    refuse_in_async_code,
    to_checked_run,
)


class EvalArguments(TypedDict, total=False):
    """The arguments of a run of evaluation sets."""

    agent: Any
    criteria: str | Path | None
    mocks: str | Path | None
    num_runs: int
    options: Options | None


class Agentest:
    """Run scenarios and evaluation sets with the project's configuration.

    Args:
        config: path of the configuration; None if the project has none and each call names its agent.
        offline: True to use no models of the configuration.
        strict: default of the option `strict`.
    """

    def __init__(
        self, config: Path | None = None, *, offline: bool = False, strict: bool | None = None
    ) -> None:
        self._config = config
        self._offline = offline
        self._strict = strict

    def run(self, *scenarios: Scenario, **arguments: Unpack[RunnerArguments]) -> CheckedRun:
        """Run scenarios and return their results. The arguments are those of `Runner`.

        The default of `config` is the project's configuration.

        Raises UsageError if something cannot be run, or if called in async code, which needs
        `run_async`.
        """
        refuse_in_async_code("agentest.run", "await agentest.run_async(…)")
        return self._runner(arguments).run(*scenarios)

    async def run_async(self, *scenarios: Scenario, **arguments: Unpack[RunnerArguments]) -> CheckedRun:
        """Run scenarios in async code; see `run`."""
        return await self._runner(arguments).run_async(*scenarios)

    def _runner(self, arguments: RunnerArguments) -> Runner:
        has_model = arguments.get("model") is not None
        arguments["options"] = self._options(arguments.get("options"), has_model=has_model)
        arguments["config"] = arguments.get("config") or self._config
        return Runner(**arguments)

    def eval(self, *files: str | Path, **arguments: Unpack[EvalArguments]) -> CheckedRun:
        """Run evaluation sets and return their results; see `eval_async`, which async code needs."""
        refuse_in_async_code("agentest.eval", "await agentest.eval_async(…)")
        return anyio.run(partial(self.eval_async, *files, **arguments))

    async def eval_async(self, *files: str | Path, **arguments: Unpack[EvalArguments]) -> CheckedRun:
        """Run `*.test.json` and `*.evalset.json` files, or all `*.test.json` files of a folder.

        Args:
            files: paths relative to the working directory; `file:case1,case2` runs only these cases.
            agent: any agent that `AgentEvaluator.evaluate` accepts; default: the agent of the configuration.
            criteria: a file of criteria that replaces the `test_config.json` next to each set.
            mocks: a Python module that defines `tools`.

        Raises UsageError if something cannot be run.
        """
        if not files:
            raise ConfigError("agentest.eval: no file is named")
        root = self._config.parent if self._config else Path.cwd()
        request = RunRequest(root, self._config, self._options(arguments.get("options")))
        evaluate_files = PLUGINS.hook("fixture agentest.eval", "adk")
        result = await evaluate_files(
            [Path.cwd() / file for file in files],
            request,
            agent=arguments.get("agent"),
            criteria=_path(arguments.get("criteria")),
            mocks=_path(arguments.get("mocks")),
            num_runs=arguments.get("num_runs", 1),
        )
        return to_checked_run(result)

    def _options(self, options: Options | None, *, has_model: bool = False) -> Options:
        options = options or Options()
        offline = options.offline or (self._offline and not has_model)
        strict = self._strict if options.strict is None else options.strict
        return replace(options, offline=offline, strict=strict)


def _path(file: str | Path | None) -> Path | None:
    return None if file is None else Path.cwd() / file


def end_at_test(failure: pytest.ExceptionInfo[BaseException]) -> None:
    """Cut off the frames below the last one of the user's own code."""
    frames = failure.traceback
    last = max((at for at, frame in enumerate(frames) if is_users_file(str(frame.path))), default=None)
    if last is not None:
        failure.traceback = frames[: last + 1]


def shorten_report(report: pytest.TestReport, error: BaseException) -> None:
    """Write the reason into pytest's short summary, and leave out where the exception is defined."""
    shown = report.longrepr
    if not isinstance(shown, ExceptionChainRepr) or shown.reprcrash is None:
        return
    shown.reprcrash.message = _cause(error)
    place = f"{type(error).__module__}.{type(error).__qualname__}: "
    for entry in shown.reprtraceback.reprentries:
        entry.lines = [line.replace(place, "", 1) if line[:1] == "E" else line for line in entry.lines]


def _cause(error: BaseException) -> str:
    unpassed: list[ScenarioResult] = []
    if isinstance(error, ScenarioFailed | ScenarioErrored):
        unpassed = [each for status in NOT_PASSED for each in error.result.with_status(status)]
    if not unpassed:
        return str(error).partition("\n")[0]
    first, *others = unpassed
    return f"{first.name}: {headline(first)}{and_more(others, 'scenario')}"
