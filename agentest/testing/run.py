"""Run scenarios from Python, with your own agent and model or those of a configuration.

`Runner.run` returns a `CheckedRun`; its `check` raises if a scenario did not pass. `run_scenarios` is the
same in one call.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Unpack
from unittest import SkipTest

import anyio

from agentest.config.agents.base import AnyAgent
from agentest.config.agents.in_process import agent_section
from agentest.config.config import Config
from agentest.config.file import (
    NAMES,
    LoadedConfig,
    RunSettings,
    find_config,
    load,
    load_values,
    with_changes,
)
from agentest.domain.events import Event, Noted
from agentest.domain.results import RunResult, Status
from agentest.domain.verdict import run_status
from agentest.models.caller import RetryPolicy
from agentest.models.factory import scripted
from agentest.models.port import ChatModel, Ledger, Models
from agentest.report.console.scenario import block
from agentest.runner.plan import Options, make_plan
from agentest.runner.prepare import MODEL_VARIABLE, RunRequest, prepared_for
from agentest.runner.run import RunMode, run_steps
from agentest.runner.session import RunOutcome, RunSession, Stop, settings_of
from agentest.scenarios.discovery import DiscoveredScenarios
from agentest.scenarios.model import Scenario
from agentest.support.errors import AgentestError, ConfigError, UsageError
from agentest.testing.scripted import ScriptedAgent

AgentLike = ScriptedAgent | str | Callable[..., Any] | Mapping[str, Any] | AnyAgent
ConfigLike = str | Path | Mapping[str, Any] | Config
_SUFFIXES = frozenset(Path(name).suffix for name in NAMES)
_ERROR_PLACE = Path("run_scenarios")
_MAX_SCENARIOS_SHOWN = 20


class RunNeverStarted(AgentestError):
    """A run was stopped before its first conversation."""


class Runner:
    """Runs scenarios in this process, with one configuration.

        Runner(config="agentest.config.yaml", max_turns=4).run(first, second).check()

    Args:
        agent: a ScriptedAgent, an endpoint, a handler function, an agent object of a framework, the `agent`
            section of a configuration as a mapping or an object, or the name of an agent of `config`.
            Default: the agent of `config`.
        config: the path of a configuration file or of its folder, or a configuration as a mapping or object.
        model: plays the user and judges: a model, or a name such as `openai/gpt-5-mini`. Default: the models
            of the configuration; without any, the run is offline.
        options: options of the run, as on the command line.
        on_event: receives every event of the run.
        settings: configuration keys that override those of `config`.
    """

    def __init__(
        self,
        *,
        agent: AgentLike | None = None,
        config: ConfigLike | None = None,
        model: ChatModel | str | None = None,
        options: Options | None = None,
        on_event: Callable[[Event], object] | None = None,
        **settings: Unpack[RunSettings],
    ) -> None:
        self._agent = agent
        self._config = config
        self._model = model
        self._options = options or Options()
        self._emit = on_event or (lambda _: None)
        self._settings: Mapping[str, Any] = settings

    def run(self, *scenarios: Scenario) -> CheckedRun:
        """Run scenarios and return their results; see `run_async`, which async code must await.

        Raises UsageError if something cannot be run, or if called in async code.
        """
        refuse_in_async_code("Runner.run", "await runner.run_async(…)")
        return anyio.run(self.run_async, *scenarios)

    async def run_async(self, *scenarios: Scenario, stop: Stop | None = None) -> CheckedRun:
        """Run scenarios and return their results. Servers of agents are started, and stopped after the run.

        A call of `stop` stops the run. Raises UsageError if something cannot be run. Its subclass ConfigError
        names the key and the expected value.
        """
        loaded, root, environ = self._configuration()
        request = RunRequest(root, options=self._run_options())
        plan = make_plan(loaded, DiscoveredScenarios(scenarios), request.options, root)
        prepared = prepared_for(request, loaded, plan, environ=environ)

        def note(text: str) -> None:
            self._emit(Noted(text))

        session = RunSession(
            prepared=prepared,
            settings=settings_of(prepared),
            emit=self._emit,
            stop=stop or Stop(),
            on_note=note,
            opened_models=self._opened_model(prepared.loaded.config),
        )
        for text in prepared.notes:
            note(text)
        return to_checked_run(await run_session(session))

    @property
    def _named_agent(self) -> str | None:
        is_name = isinstance(self._agent, str) and "://" not in self._agent
        return str(self._agent) if is_name and self._config is not None else None

    @property
    def _changes(self) -> dict[str, Any]:
        if self._agent is None or self._named_agent:
            return dict(self._settings)
        # `compare` lists variants of the configured agent, which is replaced.
        return {"agent": _agent_section(self._agent), "compare": [], **self._settings}

    def _configuration(self) -> tuple[LoadedConfig, Path, dict[str, str]]:
        config = self._config
        if isinstance(config, str | Path):
            path = Path.cwd() / config
            path = find_config(path) if path.is_dir() else path
            return load(path, os.environ, self._changes), path.parent, dict(os.environ)
        if config is None and self._agent is None and "agent" not in self._settings:
            raise ConfigError(
                f"{_ERROR_PLACE}: which agent? Give one with agent=…, or a configuration with config=…"
            )
        if config is not None and not isinstance(config, Mapping | Config):
            raise ConfigError(f"config: {config!r} is neither a path nor a mapping nor a Config")
        # A test must not silently use the paid model of the environment variable meant for `agentest run`.
        environ = {name: value for name, value in os.environ.items() if name != MODEL_VARIABLE}
        values = with_changes(config or {}, self._changes, _ERROR_PLACE)
        return load_values(values, str(_ERROR_PLACE), Path.cwd(), environ), Path.cwd(), environ

    def _run_options(self) -> Options:
        options, model = self._options, self._model
        if options.workers not in (None, 1) or options.engine not in (None, "local"):
            raise ConfigError("options: run_scenarios runs in this process; leave `engine` and `workers` out")
        if self._named_agent:
            options = replace(options, agent=self._named_agent)
        if isinstance(model, str):
            return replace(options, model=model)
        if model is None:
            return options
        if not callable(getattr(model, "complete", None)):
            raise ConfigError(f"model: {model!r} is neither a model's name nor an object with `complete`")
        if options.tape:
            raise ConfigError("options: `tape` is for configured models; leave it out, or `model`")
        return replace(options, offline=True)  # prevents the configuration's models from being opened

    def _opened_model(self, config: Config) -> tuple[Models, Ledger] | None:
        if self._model is None or isinstance(self._model, str):
            return None
        ledger = Ledger()
        opened = scripted(self._model, ledger, RetryPolicy(retries=config.judge.retries))
        return Models(opened, opened), ledger


class RunnerArguments(RunSettings, total=False):
    """The arguments of `Runner`."""

    agent: AgentLike | None
    config: ConfigLike | None
    model: ChatModel | str | None
    options: Options | None
    on_event: Callable[[Event], object] | None


def run_scenarios(scenarios: Iterable[Scenario], **arguments: Unpack[RunnerArguments]) -> CheckedRun:
    """Run scenarios in this process and return their results; see `Runner` for the arguments.

    Raises UsageError inside async code, too, which must await `arun_scenarios`.
    """
    refuse_in_async_code("run_scenarios", "await arun_scenarios(…)")
    return Runner(**arguments).run(*scenarios)


async def arun_scenarios(
    scenarios: Iterable[Scenario], *, stop: Stop | None = None, **arguments: Unpack[RunnerArguments]
) -> CheckedRun:
    """Run scenarios in async code and return their results; see `Runner` for the arguments."""
    return await Runner(**arguments).run_async(*scenarios, stop=stop)


def refuse_in_async_code(name: str, instead: str) -> None:
    """Raise UsageError if the caller is async code, because waiting for a run would block its event loop."""
    if asyncio._get_running_loop() is None:
        return
    raise UsageError(
        f"{name} cannot wait inside async code, such as a test that is an `async def`: "
        f"`{instead}` there, with the same arguments"
    )


async def run_session(
    session: RunSession, starting: anyio.CancelScope | None = None, mode: RunMode | None = None
) -> RunResult:
    """Execute a prepared run with its servers. Errors are raised without an exception group.

    Args:
        starting: cancel it to prevent the run from starting; the function then raises RunNeverStarted.
        mode: source of conversations and how much to store; default: the agents, and everything.
    """
    outcome = RunOutcome()
    problem: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            await run_steps(session, mode or RunMode(), outcome, starting or anyio.CancelScope(), tasks)
        except UsageError as error:
            problem = type(error)(session.prepared.loaded.redact(str(error)))
        except Exception as error:  # noqa: BLE001 - stored, because a task group would wrap it
            problem = error
        tasks.cancel_scope.cancel()
    if problem:
        raise problem
    if outcome.result is None:
        raise RunNeverStarted("the run was stopped before its first conversation")
    return outcome.result


class ScenarioFailed(AgentestError, AssertionError):
    """A scenario failed. `result` is the whole run."""

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.result = result


class ScenarioErrored(AgentestError):
    """A scenario is errored and none failed. Not an AssertionError, because there is no verdict.

    `result` is the whole run.
    """

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.result = result


class CheckedRun(RunResult):
    """The result of a run, with a check for tests."""

    __slots__ = ()

    def check(self) -> None:
        """Raise unless every scenario passed, with the console report of those that did not.

        Raises ScenarioFailed, an AssertionError; ScenarioErrored if no scenario failed; and
        unittest.SkipTest, which pytest also handles, if every scenario was skipped.
        """
        __tracebackhide__ = True  # pytest shows the line of the test instead
        status = run_status(self)
        if status is Status.PASSED:
            return
        skipped = self.with_status(Status.SKIPPED)
        if skipped and len(skipped) == len(self.scenarios) and not self.unclaimed:
            raise SkipTest("; ".join(reason.message for each in skipped for reason in each.verdict.reasons))
        kind = ScenarioFailed if status is Status.FAILED else ScenarioErrored
        short = [each for each in self.scenarios if each.verdict.status in (Status.FAILED, Status.ERRORED)]
        count_text = f"{len(short)} of {len(self.scenarios)} scenarios did not pass"
        rows = [count_text if self.scenarios else "no scenario was run"]
        rows += [warning.message for warning in self.unclaimed]
        several = len(self.agents) > 1
        rows += [block(each, several_agents=several) for each in short[:_MAX_SCENARIOS_SHOWN]]
        more = len(short) - _MAX_SCENARIOS_SHOWN
        rows += [f"… {more} more"] if more > 0 else []
        raise kind("\n".join(rows), self)


def to_checked_run(result: RunResult) -> CheckedRun:
    return CheckedRun(**{field.name: getattr(result, field.name) for field in fields(result)})


def _agent_section(agent: AgentLike) -> Any:
    if isinstance(agent, Mapping | AnyAgent):
        return agent
    if isinstance(agent, ScriptedAgent):
        return {"name": agent.name, "endpoint": agent.endpoint}
    if isinstance(agent, str) and ("://" in agent or Path(agent).suffix not in _SUFFIXES):
        return {"endpoint": agent}
    section = agent_section(agent)
    if section is not None:
        return section
    hint = f"; name a configuration file with config={str(agent)!r}" if isinstance(agent, str | Path) else ""
    raise ConfigError(
        f"agent: {agent!r} is not an agent: expected an endpoint, a mapping as in a configuration, a handler "
        f"function, an agent object of a framework or a ScriptedAgent{hint}"
    )
