"""Whom a person can talk to, and through the mocks of which scenario."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path

from agentest.config.agent_types import AgentConfig, hands_calls_over
from agentest.config.agents.over_http import HttpAgent
from agentest.config.file import LoadedConfig
from agentest.domain.results import ScenarioResult
from agentest.runner.plan import Unit, agents_under_test, make_plan
from agentest.runner.prepare import Prepared, Request, configure, discover_scenarios, prepared_for
from agentest.scenarios.discovery import Discovered, search
from agentest.scenarios.model import Scenario
from agentest.scenarios.selection import PathChoice
from agentest.support.errors import UsageError
from agentest.support.paths import shown_path

FREE = "conversation without a scenario"
"""The name of the scenario where none is chosen: it has no mocks, so that every call is answered by hand."""
MOST_TURNS = 200
"""A person knows when to stop: the limits of scenarios are for those who do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What there is to choose from."""

    scenarios: tuple[Scenario, ...]
    broken: tuple[str, ...]
    """Of each file that cannot be read, and of each scenario that was refused: where and why."""
    agents: tuple[str, ...]
    """The agents under test first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which scenario and which agent."""

    file: str | None = None
    """From the folder of the configuration; None: no scenario."""
    scenario: str | None = None
    """Its whole name."""
    agent: str | None = None
    """None: as the scenario and the configuration have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTalk:
    """A conversation that can begin."""

    prepared: Prepared
    unit: Unit

    @property
    def agent(self) -> AgentConfig:
        return self.prepared.plan.agents[self.unit.agent]

    @property
    def starts_servers(self) -> bool:
        return bool(self.prepared.own_servers.of_any([self.unit.agent]))

    @property
    def reached(self) -> bool:
        """Whether calls of the agent come to us, to be answered by mocks or by hand."""
        return hands_calls_over(self.agent) or bool(self.agent.mock_servers)

    @property
    def _answers_meanwhile(self) -> bool:
        """Whether the agent is at its answer while its call waits; else it has answered with the call."""
        inside = self.unit.about.mocks_inside or not isinstance(self.agent, HttpAgent)
        return bool(self.agent.mock_servers) or inside

    @property
    def about_calls(self) -> str:
        """What a person who answers calls by hand should know of this agent."""
        if not self.reached:
            return (
                f"Agent {self.unit.agent!r} runs its tools itself (type: {self.agent.type}): its real tools "
                "run, their calls are shown with the reply as far as it tells of them, and none can wait "
                "here. With mock servers (mcp_mock, rest_mock) they could."
            )
        if self._answers_meanwhile:
            limit_s = self.prepared.loaded.config.request_timeout_ms / 1000
            return (
                "While a call waits here, the agent's own time limits go on, and so does ours for its whole "
                f"answer: {limit_s:g} s (request_timeout_ms)."
            )
        return "While a call waits here, no request to the agent is open; its own time limits may go on."


def without_user_tools(unit: Unit) -> str:
    """What a person should know who plays a user that has tools of its own; "": this one has none."""
    tools = ", ".join(unit.scenario.user_tools)
    if not tools:
        return ""
    return (
        f"The scenario gives its simulated user tools of its own ({tools}). They are for a model: you play "
        "the user here and cannot call them, so what they would change stays as it is."
    )


def choices(request: Request, environ: MutableMapping[str, str] = os.environ) -> Choices:
    """What there is. Reads the configuration and imports all scenario files. Raises UsageError."""
    loaded = configure(request, environ)
    discovered = discover_scenarios(request, loaded)
    under_test, known = agents_under_test(loaded.config, None)
    return Choices(
        scenarios=tuple(each for each in discovered.scenarios if not each.refused),
        broken=tuple(
            f"{shown_path(file, request.root)}:{line}: {problem}"
            for file, line, problem in discovered.problems
        ),
        agents=tuple(dict.fromkeys((*under_test, *known))),
    )


def chosen_talk(
    request: Request, choice: Choice, environ: MutableMapping[str, str] = os.environ
) -> ChosenTalk:
    """The conversation of a choice, checked as far as that goes without the agent. Raises UsageError.

    Args:
        request: of which root and configuration count.
    """
    loaded = configure(request, environ)
    paths = _paths(request.root, choice, loaded)
    options = replace(request.options, paths=paths, agent=choice.agent, offline=True)
    request = replace(request, options=options)
    discovered = discover_scenarios(request, loaded) if paths else _free(request, choice, loaded)
    plan = make_plan(loaded.config, discovered, options, request.root)
    prepared = prepared_for(request, loaded, plan, (), environ)
    return ChosenTalk(prepared=prepared, unit=replace(_one(plan.entries, choice), max_turns=MOST_TURNS))


def _paths(root: Path, choice: Choice, loaded: LoadedConfig) -> tuple[PathChoice, ...]:
    """The file of the choice. Raises UsageError for one that no run would import: importing runs it."""
    if choice.file is None or choice.scenario is None:
        return ()
    path = Path(os.path.normpath(root / choice.file))
    if path not in search(root, loaded.config.include, loaded.config.exclude, loaded.path).files:
        raise UsageError(f"{choice.file}: is no scenario file of this project (`include` says which are)")
    given = f"{choice.file}::{choice.scenario}"
    return (PathChoice(given=given, path=path, name=choice.scenario),)


def _free(request: Request, choice: Choice, loaded: LoadedConfig) -> Discovered:
    under_test, _ = agents_under_test(loaded.config, choice.agent)
    nowhere = str(request.root / FREE)
    return Discovered(scenarios=(Scenario(name=FREE, file=nowhere, line=0, agent=under_test[0]),))


def _one(entries: tuple[Unit | ScenarioResult, ...], choice: Choice) -> Unit:
    """The only conversation that is meant. Raises UsageError."""
    units = [entry for entry in entries if isinstance(entry, Unit)]
    if not units:
        raise UsageError("\n".join(_why_not(entries)) or f"{choice.file} defines no {choice.scenario!r}")
    if len(units) > 1:
        names = ", ".join(unit.agent for unit in units)
        raise UsageError(f"scenario {units[0].scenario.name!r} is run with several agents: choose {names}")
    return units[0]


def _why_not(entries: tuple[Unit | ScenarioResult, ...]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, ScenarioResult):
            yield from (
                f"{entry.file}:{entry.line}: {entry.name} ({entry.verdict.status.value}): {reason.message}"
                for reason in entry.verdict.reasons
            )
