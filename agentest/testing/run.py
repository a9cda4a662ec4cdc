"""Running scenarios from Python, against an agent and a model of one's own or those of a configuration."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from unittest import SkipTest

import anyio

from agentest.config.agents.adk import is_adk_object
from agentest.config.agents.base import AnyAgent
from agentest.config.config import Config
from agentest.config.file import NAMES, LoadedConfig, find, load, load_values, with_changes
from agentest.config.frameworks import framework_of
from agentest.domain.events import Event, Noted
from agentest.domain.results import RunResult, ScenarioResult, Status
from agentest.domain.verdict import run_status
from agentest.models.caller import Patience
from agentest.models.factory import Models, scripted
from agentest.models.port import ChatModel, Ledger
from agentest.report.console.scenario import block
from agentest.runner.plan import Options, make_plan
from agentest.runner.prepare import MODEL_VARIABLE, Prepared, Request, prepared_for
from agentest.runner.run import Mode, run_steps
from agentest.runner.session import Outcome, Session, Stop, settings_of
from agentest.scenarios.discovery import Discovered
from agentest.scenarios.model import Scenario
from agentest.support.errors import AgentestError, ConfigError, UsageError
from agentest.testing.agent import ScriptedAgent

AgentLike = ScriptedAgent | str | Callable[..., Any] | Mapping[str, Any] | AnyAgent
ConfigLike = str | Path | Mapping[str, Any] | Config
_SUFFIXES = frozenset(Path(name).suffix for name in NAMES)
_WHO = Path("run_scenarios")
"""Stands in errors where the name of a configuration file would."""


def _ignore(_: Event) -> None:
    """Ignore an event."""


class NeverBegan(AgentestError):
    """A run was stopped before its first conversation."""


def run_scenarios(
    scenarios: Iterable[Scenario],
    *,
    agent: AgentLike | None = None,
    config: ConfigLike | None = None,
    model: ChatModel | str | None = None,
    options: Options | None = None,
    on_event: Callable[[Event], object] = _ignore,
    **settings: Any,
) -> CheckedRun:
    """Run scenarios in this process and return their results; see `arun_scenarios`.

    Raises UsageError inside async code, too, where only that one can be awaited.
    """
    refuse_in_async_code("run_scenarios", "await arun_scenarios(…)")

    async def go() -> CheckedRun:
        return await arun_scenarios(
            scenarios, agent=agent, config=config, model=model, options=options, on_event=on_event, **settings
        )

    return anyio.run(go)


def refuse_in_async_code(name: str, instead: str) -> None:
    """Raise UsageError where waiting for a run would hold up an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        f"{name} cannot wait inside async code, such as a test that is an `async def`: "
        f"`{instead}` there, with the same arguments"
    )


async def arun_scenarios(
    scenarios: Iterable[Scenario],
    *,
    agent: AgentLike | None = None,
    config: ConfigLike | None = None,
    model: ChatModel | str | None = None,
    options: Options | None = None,
    on_event: Callable[[Event], object] = _ignore,
    stop: Stop | None = None,
    **settings: Any,
) -> CheckedRun:
    """Run scenarios and return their results. Servers of agents are started, and ended with the run.

    Args:
        agent: a ScriptedAgent, an endpoint, a handler function, an agent object of a framework, the `agent`
            section of a configuration as a mapping or an object, or the name of an agent of `config`
            (default: its).
        config: the path of a configuration file or of its folder, or a configuration as a mapping or object.
        model: plays the user and judges: a model, or a name such as `openai/gpt-5-mini`. Default: what the
            configuration says; without any, the run is offline.
        on_event: receives every event of the run.
        stop: calling it stops the run.
        settings: keys of the configuration, which count in place of those of `config`.

    Raises UsageError for what cannot be run: its ConfigError says which key is wrong, and what was expected.
    """
    asked = _Asked(agent=agent, config=config, model=model, options=options or Options(), settings=settings)
    prepared = _prepared(tuple(scenarios), asked)

    def note(text: str) -> None:
        on_event(Noted(text))

    session = Session(
        prepared=prepared,
        settings=settings_of(prepared.loaded.config, prepared.request.options),
        emit=on_event,
        stop=stop or Stop(),
        on_note=note,
        given=_given(model, prepared.loaded.config),
    )
    for text in prepared.notes:
        note(text)
    return as_checked(await run_session(session))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What `run_scenarios` was called with."""

    agent: AgentLike | None
    config: ConfigLike | None
    model: ChatModel | str | None
    options: Options
    settings: Mapping[str, Any]

    @property
    def named_agent(self) -> str | None:
        """The agent, where it is the name of one of the configuration's."""
        is_name = isinstance(self.agent, str) and "://" not in self.agent
        return str(self.agent) if is_name and self.config is not None else None

    @property
    def changes(self) -> dict[str, Any]:
        """The keys that count in place of the configuration's."""
        if self.agent is None or self.named_agent:
            return dict(self.settings)
        # What the configuration compares are variants of its own agent.
        return {"agent": _agent_section(self.agent), "compare": [], **self.settings}


def _prepared(scenarios: tuple[Scenario, ...], asked: _Asked) -> Prepared:
    """The run, checked and ready to begin."""
    loaded, root, environ = _configuration(asked)
    request = Request(root, options=_options(asked))
    plan = make_plan(loaded.config, Discovered(scenarios), request.options, root)
    return prepared_for(request, loaded, plan, environ=environ)


def _configuration(asked: _Asked) -> tuple[LoadedConfig, Path, dict[str, str]]:
    """The configuration, what paths are relative to, and the environment in which models are looked up."""
    if isinstance(asked.config, str | Path):
        path = _config_file(Path.cwd() / asked.config)
        return load(path, os.environ, asked.changes), path.parent, dict(os.environ)
    if asked.config is None and asked.agent is None and "agent" not in asked.settings:
        raise ConfigError(f"{_WHO}: which agent? Give one with agent=…, or a configuration with config=…")
    if asked.config is not None and not isinstance(asked.config, Mapping | Config):
        raise ConfigError(f"config: {asked.config!r} is neither a path nor a mapping nor a Config")
    # Values of a test mean what they say: the environment's model is for `agentest run`, and may cost.
    environ = {name: value for name, value in os.environ.items() if name != MODEL_VARIABLE}
    values = with_changes(asked.config or {}, asked.changes, _WHO)
    return load_values(values, str(_WHO), Path.cwd(), environ), Path.cwd(), environ


def _config_file(path: Path) -> Path:
    return find(path) if path.is_dir() else path


def _options(asked: _Asked) -> Options:
    """The options, with what is given beside them. Raises ConfigError."""
    options = asked.options
    if options.workers not in (None, 1) or options.engine not in (None, "local"):
        raise ConfigError("options: run_scenarios runs in this process; leave `engine` and `workers` out")
    if asked.named_agent:
        options = replace(options, agent=asked.named_agent)
    if isinstance(asked.model, str):
        return replace(options, model=asked.model)
    if asked.model is None:
        return options
    if not callable(getattr(asked.model, "complete", None)):
        raise ConfigError(f"model: {asked.model!r} is neither a model's name nor an object with `complete`")
    if options.tape:
        raise ConfigError("options: `tape` is for configured models; leave it out, or `model`")
    return replace(options, offline=True)  # no other model is looked for


def _given(model: ChatModel | str | None, config: Config) -> tuple[Models, Ledger] | None:
    """A model that is an object, ready to be asked, and the ledger of its calls."""
    if model is None or isinstance(model, str):
        return None
    ledger = Ledger()
    opened = scripted(model, ledger, Patience(retries=config.judge.retries))
    return Models(opened, opened), ledger


async def run_session(
    session: Session, starting: anyio.CancelScope | None = None, mode: Mode | None = None
) -> RunResult:
    """Run what was prepared, with its servers; every error as it is.

    Args:
        starting: cancelled, it keeps the run from beginning, which raises NeverBegan.
        mode: where conversations come from, and what is kept of them; default: the agents, and everything.
    """
    outcome = Outcome()
    problem: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            await run_steps(session, mode or Mode(), outcome, starting or anyio.CancelScope(), tasks)
        except UsageError as error:
            problem = type(error)(session.prepared.loaded.redact(str(error)))
        except Exception as error:  # noqa: BLE001 - kept: a task group would wrap it
            problem = error
        tasks.cancel_scope.cancel()
    if problem:
        raise problem
    if outcome.result is None:
        raise NeverBegan("the run was stopped before its first conversation")
    return outcome.result


def _agent_section(agent: AgentLike) -> Any:
    """The `agent` section of a configuration. Raises ConfigError for what cannot be one."""
    if isinstance(agent, Mapping | AnyAgent):
        return agent
    if isinstance(agent, ScriptedAgent):
        return {"name": agent.name, "endpoint": agent.endpoint}
    if isinstance(agent, str) and ("://" in agent or Path(agent).suffix not in _SUFFIXES):
        return {"endpoint": agent}
    if is_adk_object(agent):
        return {"type": "adk_module", "module": agent}
    if callable(agent) or framework_of(agent) is not None:
        return {"type": "custom", "handler": agent}
    hint = f"; name a configuration file with config={str(agent)!r}" if isinstance(agent, str | Path) else ""
    raise ConfigError(
        f"agent: {agent!r} is no agent: expected an endpoint, a mapping as in a configuration, a handler "
        f"function, an agent object of a framework or a ScriptedAgent{hint}"
    )


_SHOWN = 20
"""How many scenarios an error shows whole."""


class ScenarioFailed(AgentestError, AssertionError):
    """A scenario failed. `result` is the whole run."""

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.result = result


class ScenarioErrored(AgentestError):
    """Nothing failed, and something could not be judged: no AssertionError, as nothing was found out.

    `result` is the whole run.
    """

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.result = result


class CheckedRun(RunResult):
    """The whole run, with a check."""

    __slots__ = ()

    def check(self) -> None:
        """Raise unless every scenario passed, with what the console says of those that did not.

        Raises ScenarioFailed, which is an AssertionError; ScenarioErrored where nothing failed; and
        unittest.SkipTest, which pytest knows, too, where every scenario is skipped.
        """
        __tracebackhide__ = True  # pytest shows the test's line instead
        status = run_status(self)
        if status is Status.PASSED:
            return
        skipped = self.with_status(Status.SKIPPED)
        if skipped and len(skipped) == len(self.scenarios) and not self.unclaimed:
            raise SkipTest("; ".join(reason.message for each in skipped for reason in each.verdict.reasons))
        kind = ScenarioFailed if status is Status.FAILED else ScenarioErrored
        raise kind(_told(self), self)


def as_checked(result: RunResult) -> CheckedRun:
    """The same result, with a check."""
    return CheckedRun(**{field.name: getattr(result, field.name) for field in fields(result)})


def _told(result: RunResult) -> str:
    """What the console says of the scenarios that did not pass."""
    short = [each for each in result.scenarios if each.verdict.status in (Status.FAILED, Status.ERRORED)]
    of = f"{len(short)} of {len(result.scenarios)} scenarios did not pass"
    rows = [of if result.scenarios else "no scenario was run"]
    rows += [warning.message for warning in result.unclaimed]
    rows += _blocks(short[:_SHOWN], several_agents=len(result.agents) > 1)
    rows += [f"… {len(short) - _SHOWN} more"] if len(short) > _SHOWN else []
    return "\n".join(rows)


def _blocks(results: Iterable[ScenarioResult], *, several_agents: bool) -> list[str]:
    return [block(result, several_agents=several_agents) for result in results]
