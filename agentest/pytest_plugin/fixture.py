"""The fixture `agentest`: scenarios and evaluation sets in tests of one's own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from agentest.adk.in_process_evaluation import AgentLike as EvalAgentLike
from agentest.adk.in_process_evaluation import configuration, run_result
from agentest.adk.plan import EvalRequest, prepare_eval
from agentest.runner.plan import Options
from agentest.runner.prepare import Request
from agentest.scenarios.model import Scenario
from agentest.support.errors import ConfigError
from agentest.testing.run import CheckedRun, arun_scenarios, as_checked, refuse_in_async_code, run_scenarios


class Agentest:
    """Runs scenarios and evaluation sets with the project's configuration.

    Args:
        config: its file; None where the project has none, so that each call names its agent.
    """

    def __init__(
        self, config: Path | None = None, *, offline: bool = False, strict: bool | None = None
    ) -> None:
        self._config = config
        self._offline = offline
        self._strict = strict

    def run(self, *scenarios: Scenario, **given: Any) -> CheckedRun:
        """Run scenarios and return their results; the keywords are those of `run_scenarios`.

        Raises UsageError for what cannot be run, and in async code, where `run_async` is awaited.
        """
        refuse_in_async_code("agentest.run", "await agentest.run_async(…)")
        return run_scenarios(scenarios, **self._with_config(given))

    async def run_async(self, *scenarios: Scenario, **given: Any) -> CheckedRun:
        """The same, in async code."""
        return await arun_scenarios(scenarios, **self._with_config(given))

    def eval(self, *files: str | Path, **given: Any) -> CheckedRun:
        """Evaluate evaluation sets; see `eval_async`, which is awaited in async code."""
        refuse_in_async_code("agentest.eval", "await agentest.eval_async(…)")
        return anyio.run(partial(self.eval_async, *files, **given))

    async def eval_async(
        self,
        *files: str | Path,
        agent: EvalAgentLike | None = None,
        criteria: str | Path | None = None,
        mocks: str | Path | None = None,
        num_runs: int = 1,
        options: Options | None = None,
    ) -> CheckedRun:
        """Evaluate `*.test.json` and `*.evalset.json`, or the former of a folder.

        Args:
            files: relative to the working directory; `file:case1,case2` evaluates some cases.
            agent: whatever `AgentEvaluator.evaluate` takes; default: the configuration's.
            criteria: the file of the criteria, in place of the `test_config.json` beside each set.
            mocks: a module with `tools`.

        Raises UsageError for what cannot be run.
        """
        if not files:
            raise ConfigError("agentest.eval: no file is named")
        root = self._config.parent if self._config else Path.cwd()
        request = Request(root, self._config, self._options(options, offline=self._offline))
        asked = EvalRequest(
            request,
            tuple(_absolute(file) for file in files),
            criteria=_path(criteria),
            num_runs=num_runs,
            mocks=_path(mocks),
        )
        configured = None if agent is None else configuration(agent, root)
        return as_checked(await run_result(prepare_eval(asked, configured=configured)))

    def _with_config(self, given: dict[str, Any]) -> dict[str, Any]:
        """What is given, with the project's configuration where no other is."""
        options = self._options(given.get("options"), offline=self._offline and "model" not in given)
        return {"config": self._config, **given, "options": options}

    def _options(self, options: Options | None, *, offline: bool) -> Options:
        """The options; `--agentest-offline` counts for models that a configuration names."""
        options = options or Options()
        strict = self._strict if options.strict is None else options.strict
        return replace(options, offline=offline or options.offline, strict=strict)


def _absolute(file: str | Path) -> str:
    """A path of a test, which may be followed by cases."""
    return str(Path.cwd() / file)


def _path(file: str | Path | None) -> Path | None:
    return None if file is None else Path.cwd() / file
