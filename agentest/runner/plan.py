"""The plan of a run: configuration, scenarios and options, checked, filtered and resolved into units."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentest.config.agent_types import AgentConfig
from agentest.config.config import Config
from agentest.config.models import RequestedModel
from agentest.domain.events import ConversationFinished
from agentest.domain.metrics import BUILTIN, GOAL, PASS_RATE, THRESHOLD_RANGE, TRAJECTORY_METRICS, Kind
from agentest.domain.repeat_setting import Repeat
from agentest.domain.results import (
    ConversationResult,
    ModelUsage,
    Reason,
    ReasonKind,
    RunWarning,
    ScenarioResult,
    Status,
    Verdict,
)
from agentest.runner.tools import AgentTraits, agent_traits, mock_server_tools_of
from agentest.scenarios.discovery import (
    BrokenFile,
    DiscoveredScenarios,
    PathChoice,
    matches_name,
    select_by_paths,
)
from agentest.scenarios.model import Scenario
from agentest.support.errors import ConfigError
from agentest.support.files import readable, shown_path
from agentest.support.importing import import_object
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean

if TYPE_CHECKING:
    from agentest.judging.custom_metrics import Metric
    from agentest.judging.grader import Grader
    from agentest.runner.tools import NamedTool


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedUnitPart:
    """The part of a unit that an earlier run completed."""

    conversations: Mapping[int, ConversationResult] = field(default_factory=dict)
    """Number → result of each finished conversation."""
    result: ScenarioResult | None = None
    """Set if the whole unit had finished, so that nothing is left to run."""
    usage: Mapping[str, ModelUsage] = field(default_factory=dict)
    """Role → model usage of the earlier run for this unit."""

    def is_all(self, conversations: int) -> bool:
        """Return True if it covers a whole unit of this many conversations."""
        return self.result is not None or len(self.conversations) >= conversations


NOTHING = FinishedUnitPart()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedRun:
    """The part of a run that an earlier run completed."""

    id: str
    answers: Path | None = None
    """The folder with model responses of unfinished conversations, if there is one."""
    conversations: Iterable[ConversationFinished] = ()
    """The finished conversations as they were stored; may be iterated several times."""
    unclaimed: tuple[RunWarning, ...] = ()
    """Warnings about its calls that belonged to no conversation."""


def total_usage(*used: Mapping[str, ModelUsage]) -> dict[str, ModelUsage]:
    """Return the sum of model usages by role."""
    total: dict[str, ModelUsage] = {}
    for each in used:
        for role, usage in each.items():
            total[role] = total.get(role, ModelUsage()) + usage
    return total


UnmockedTools = Literal["error", "passthrough"]


@dataclass(frozen=True, slots=True)
class Options:
    """Settings from the command line, which take precedence over the configuration."""

    paths: tuple[PathChoice, ...] = ()
    scenarios: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    agent: str | None = None
    conversations: int | None = None
    repeat: Repeat | None = None
    concurrency: int | None = None
    fail_fast: bool = False
    offline: bool = False
    model: str | None = None
    metrics: tuple[str, ...] = ()
    """Judge only these built-in metrics, regardless of the configuration."""
    max_cost: float | None = None
    max_llm_calls: int | None = None
    tape: str | None = None
    """How to use recorded responses: record, replay or replay-or-record."""
    cassettes: str | None = None
    dry_run: bool = False
    engine: str | None = None
    """The engine that runs conversations: local, workers or ray. None: workers if several are requested."""
    ray_address: str | None = None
    """The Ray cluster to join. None: the one of RAY_ADDRESS, or a new one."""
    workers: int | str | None = None
    """The number of workers, or `auto` for one per core."""
    unmocked_tools: UnmockedTools | None = None
    """How to treat calls that nothing answers; None: as configured."""
    strict: bool | None = None
    """True if a warning that questions a verdict makes its scenario errored; None: as configured."""

    @property
    def has_budget(self) -> bool:
        """True if the run has a limit on model calls or cost."""
        return self.max_cost is not None or self.max_llm_calls is not None

    @property
    def filtered(self) -> bool:
        return bool(self.paths or self.scenarios or self.files or self.tags)


@dataclass(frozen=True, slots=True)
class Unit:
    """One scenario against one agent, fully resolved."""

    scenario: Scenario
    agent: str
    file: str
    scope: str
    """Unique within the run."""
    slug: str
    """Unique within the run; prefix of its conversations' ids."""
    conversations: int
    max_turns: int
    metrics: tuple[str, ...]
    thresholds: Mapping[str, float]
    graders: tuple[Grader, ...] = ()
    """Graders for a case of an evaluation set."""
    of: int | None = None
    """The originally planned number of conversations, if an earlier run is judged again."""

    @property
    def planned(self) -> int:
        """The planned number of conversations, including those that an earlier run did not reach."""
        return self.conversations if self.of is None else self.of

    def is_parallel(self, usual: bool) -> bool:
        """Return True if its conversations may run at once: the scenario's setting, or else `usual`."""
        return usual if self.scenario.parallel is None else self.scenario.parallel

    traits: AgentTraits = AgentTraits()
    repeat: Repeat | None = None
    information: tuple[str, ...] = ()
    """Metrics whose scores are shown but decide nothing."""
    finished_part: FinishedUnitPart = NOTHING
    """The part that an earlier run completed."""
    fingerprint: str = ""
    """Equal in two runs only if nothing relevant has changed (`fingerprints`)."""
    metrics_named: bool = True
    """True if configuration, scenario or command line set `metrics`; else all metrics run by default."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run will do. An entry that cannot or should not run is already a result."""

    entries: tuple[Unit | ScenarioResult, ...]
    agents: Mapping[str, AgentConfig]
    """Name → agent, for the agents in use."""
    comparison: bool
    custom: tuple[Metric, ...] = ()
    units: tuple[Unit, ...] = field(default=())
    left_out: frozenset[str] | None = frozenset()
    """Names of mocks that are left out, by which tools are known. None: no mock was named."""
    unknown_tools: Mapping[str, tuple[NamedTool, ...]] = field(default_factory=dict)
    """Scope of a unit → tools that it names but that no mock and no schema defines."""

    @property
    def remaining(self) -> tuple[Unit, ...]:
        """The units that no earlier run has finished."""
        return tuple(unit for unit in self.units if unit.finished_part.result is None)


def requested_models(units: Iterable[Unit]) -> list[RequestedModel]:
    """Return the models that scenario files request, one for each place that names one."""
    models: dict[tuple[RequestedModel, str], RequestedModel] = {}
    for unit in units:
        plan_model = unit.scenario.plan.model if unit.scenario.plan else None
        for requested in (plan_model, *(grader.judge for grader in unit.graders)):
            if requested:
                models.setdefault((requested, requested.location), requested)
    return list(models.values())


def make_plan(
    config: Config,
    discovered: DiscoveredScenarios,
    options: Options,
    root: Path,
    others: Iterable[Scenario] = (),
) -> Plan:
    """Resolve every scenario. Raises ConfigError for problems that concern the whole run.

    Args:
        others: further scenarios, whose mocked tools count as known.
    """
    custom = load_custom_metrics(config.custom_metrics, root)
    names = {metric.name for metric in custom}
    check_metrics(config.metrics or (), names)
    check_metrics(options.metrics, names)
    check_thresholds(config.thresholds, names)
    _check_thresholds_are_judged(config)
    default, agents = agents_under_test(config, options.agent)
    entries: list[Unit | ScenarioResult] = [_broken_file_result(b, root) for b in discovered.broken]
    for scenario in _selected(discovered.scenarios, options):
        entries += _entries(scenario, config, options, default, agents, names, root)
    entries = finalized_entries(with_date(sorted(entries, key=_sort_key), config.date), agents, root)
    unknown = _unknown_tools(entries, (*discovered.scenarios, *others))
    entries = [_refuse_misspelled(entry, unknown) if isinstance(entry, Unit) else entry for entry in entries]
    units = tuple(entry for entry in entries if isinstance(entry, Unit))
    used = {unit.agent: agents[unit.agent] for unit in units}
    return Plan(tuple(entries), used, len(default) > 1, custom, units, unknown_tools=unknown)


def _unknown_tools(
    entries: Iterable[Unit | ScenarioResult], scenarios: Iterable[Scenario]
) -> Mapping[str, tuple[NamedTool, ...]]:
    units = [entry for entry in entries if isinstance(entry, Unit)]
    if not any(unit.scenario.trajectories for unit in units):
        return {}
    from agentest.runner.tools import unknown_tools

    mocked = {tool for scenario in scenarios for tool in scenario.tools}
    agents = {unit.agent: unit.traits.tools for unit in units}
    return unknown_tools({unit.scope: unit.scenario for unit in units}, mocked, agents.values())


def _refuse_misspelled(unit: Unit, unknown: Mapping[str, tuple[NamedTool, ...]]) -> Unit | ScenarioResult:
    """Return the unit, or an errored result if it misspells a tool."""
    if unit.scope not in unknown:
        return unit
    from agentest.runner.tools import misspelled_tool

    problem = misspelled_tool(unit.scenario, unit.traits.tools, unknown[unit.scope])
    return unit if problem is None else _errored_result(unit, f"{_location(unit)}: {problem}")


def _location(unit: Unit) -> str:
    return f"{unit.file}:{unit.scenario.line}: scenario {unit.scenario.name!r}"


def agents_under_test(config: Config, wanted: str | None) -> tuple[tuple[str, ...], dict[str, AgentConfig]]:
    """Return the names of the agents under test, and all agents by name."""
    under_test = (config.agent, *config.compare)
    # An agent of `agents` is known by its key; agents under test by their own names.
    known: dict[str, AgentConfig] = dict(config.agents)
    for agent in under_test:
        known.setdefault(agent.name, agent)
    if wanted is None:
        for agent in under_test:
            known[agent.name] = agent
        return tuple(agent.name for agent in under_test), known
    if wanted not in known:
        raise ConfigError(f"there is no agent {wanted!r}; {did_you_mean(wanted, known)}")
    return (wanted,), known


def unmocked_tools_setting(config: Config, options: Options) -> UnmockedTools | None:
    """Return the explicit setting for calls that nothing answers, from command line or configuration."""
    configured = config.unmocked_tools if "unmocked_tools" in config.model_fields_set else None
    return options.unmocked_tools or configured


def _selected(scenarios: Sequence[Scenario], options: Options) -> list[Scenario]:
    return [
        s
        for s in (select_by_paths(scenarios, options.paths) if options.paths else scenarios)
        if (not options.scenarios or matches_name(s.name, options.scenarios))
        and (not options.tags or set(options.tags) & set(s.tags))
    ]


def _entries(
    scenario: Scenario,
    config: Config,
    options: Options,
    default: tuple[str, ...],
    agents: Mapping[str, AgentConfig],
    custom: set[str],
    root: Path,
) -> list[Unit | ScenarioResult]:
    file = shown_path(scenario.file, root)
    if scenario.refused is not None:
        return [_unreadable_result(scenario.name, file, scenario.line, scenario.refused, scenario.tags)]
    if scenario.skip is not None:
        return [_unrun_result(scenario, default[0], file, Status.SKIPPED, scenario.skip)]
    try:
        _check_scenario(scenario, agents, custom)
    except ConfigError as error:
        message = f"{readable(scenario.file)}:{scenario.line}: scenario {scenario.name!r}: {error}"
        return [_unrun_result(scenario, default[0], file, Status.ERRORED, message)]
    names = (scenario.agent,) if scenario.agent else default
    return [_unit(scenario, name, config, options, custom, file) for name in names]


def _unit(
    scenario: Scenario, agent: str, config: Config, options: Options, custom: set[str], file: str
) -> Unit:
    repeat, conversations = first_repeat_setting(
        (options.repeat, options.conversations),
        (scenario.repeat, scenario.conversations_per_scenario),
        (None, 1) if scenario.scripted else (config.repeat, config.conversations_per_scenario),
    )
    metrics = options.metrics or (config.metrics if scenario.metrics is None else scenario.metrics)
    chosen = tuple(BUILTIN) if metrics is None else tuple(m for m in BUILTIN if m in metrics)
    if scenario.expected_outcome and not options.metrics and GOAL not in chosen:
        chosen = (*chosen, GOAL)  # an expected outcome must be judged
    chosen = scenario.judged_by(chosen)
    credited = TRAJECTORY_METRICS if any(each.about_calls for each in scenario.trajectories) else ()
    judged = {*chosen, *custom, *credited, PASS_RATE}
    of_scenario = {n: least for n, least in scenario.thresholds.items() if n in judged or not options.metrics}
    return Unit(
        scenario=scenario,
        agent=agent,
        file=file,
        scope=f"{scenario.name!r} @ {agent!r}",
        slug="",
        conversations=conversations,
        repeat=repeat,
        # One extra turn lets the script end the conversation.
        max_turns=len(scenario.turns) + 1 if scenario.scripted else scenario.max_turns or config.max_turns,
        metrics=chosen,
        # Apply a configured threshold only to scenarios in which its metric is judged.
        thresholds={
            **{name: least for name, least in config.thresholds.items() if name in judged},
            **of_scenario,
        },
        metrics_named=metrics is not None,
    )


def _check_scenario(scenario: Scenario, agents: Mapping[str, AgentConfig], custom: set[str]) -> None:
    if scenario.agent is not None and scenario.agent not in agents:
        raise ConfigError(f"there is no agent {scenario.agent!r}; {did_you_mean(scenario.agent, agents)}")
    check_metrics(scenario.metrics or (), custom)
    check_thresholds(scenario.thresholds, custom)


def _check_thresholds_are_judged(config: Config) -> None:
    for name in config.thresholds:
        if config.metrics is not None and name in BUILTIN and name not in config.metrics:
            raise ConfigError(f"thresholds.{name}: `metrics` leaves {name} out, so it would never be checked")


def _sort_key(entry: Unit | ScenarioResult) -> tuple[str, int]:
    """Return file and line. Scenarios on one line (from a loop), and agents, stay in their order."""
    return (entry.file, entry.scenario.line if isinstance(entry, Unit) else entry.line)


def with_slugs(entries: Sequence[Unit | ScenarioResult]) -> list[Unit | ScenarioResult]:
    """Give every unit a short unique name for the ids of its conversations."""
    used: set[str] = set()
    numbers: dict[str, int] = {}
    named: list[Unit | ScenarioResult] = []
    several = len({entry.agent for entry in entries if isinstance(entry, Unit)}) > 1
    for entry in entries:
        if isinstance(entry, Unit):
            base = slugify(entry.scenario.name) + (f"@{slugify(entry.agent)}" if several else "")
            slug = base
            while slug in used:
                # Continue from the last number, because thousands of names may begin alike.
                numbers[base] = numbers.get(base, 1) + 1
                slug = f"{base}~{numbers[base]}"
            used.add(slug)
            entry = replace(entry, slug=slug)
        named.append(entry)
    return named


def with_date(entries: Sequence[Unit | ScenarioResult], date: str | None) -> list[Unit | ScenarioResult]:
    """Set the configured date for scenarios that have no date."""
    return [
        replace(each, scenario=replace(each.scenario, date=date))
        if date and isinstance(each, Unit) and each.scenario.date is None
        else each
        for each in entries
    ]


def finalized_entries(
    entries: Sequence[Unit | ScenarioResult], agents: Mapping[str, AgentConfig], root: Path
) -> list[Unit | ScenarioResult]:
    """Return the entries in their final form, with short names and information about their agents."""
    return [
        _with_state(entry, agents[entry.agent]) if isinstance(entry, Unit) else entry
        for entry in with_agents(with_slugs(entries), agents, root)
    ]


def _with_state(unit: Unit, agent: AgentConfig) -> Unit | ScenarioResult:
    """Return the unit, or an errored result if its agent cannot receive the session's initial state."""
    session = unit.scenario.session
    ways = agent.state_refusal
    if session is None or not session.state or ways is None:
        return unit
    who = f"agent {unit.agent!r} (type: {agent.type})"
    return _errored_result(unit, f"the session begins with a state, which {who} cannot be given: {ways}")


def _errored_result(unit: Unit, message: str) -> ScenarioResult:
    reason = Reason(Status.ERRORED, ReasonKind.FILE, message)
    return ScenarioResult(
        unit.scenario.name,
        unit.agent,
        unit.file,
        unit.scenario.line,
        Verdict(Status.ERRORED, (reason,)),
        tags=unit.scenario.tags,
        case=unit.scenario.case,
    )


def with_agents(
    entries: Sequence[Unit | ScenarioResult], agents: Mapping[str, AgentConfig], root: Path
) -> list[Unit | ScenarioResult]:
    """Set the information about each unit's agent."""
    units = [entry for entry in entries if isinstance(entry, Unit)]
    known = {}
    for name, agent in agents.items():
        scenarios = (unit.scenario for unit in units if unit.agent == name)
        known[name] = agent_traits(name, agent, mock_server_tools_of(agent.mock_servers, scenarios, root))
    return [
        replace(entry, traits=known[entry.agent]) if isinstance(entry, Unit) else entry for entry in entries
    ]


def slugify(name: str) -> str:
    """Turn a name into a part of an id: lower-case words joined by hyphens, at most 48 characters."""
    words = re.findall(r"\w+", name.lower())
    return "-".join(words)[:48].strip("-") or "scenario"


def _broken_file_result(file: BrokenFile, root: Path) -> ScenarioResult:
    name = shown_path(file.file, root)
    return _unreadable_result(name, name, file.line, file.message)


def _unreadable_result(
    name: str, file: str, line: int, message: str, tags: tuple[str, ...] = ()
) -> ScenarioResult:
    """Return the result of a file or scenario that could not be read, whose agent is therefore unknown."""
    verdict = Verdict(Status.ERRORED, (Reason(Status.ERRORED, ReasonKind.FILE, message),))
    return ScenarioResult(name, "", file, line, verdict, tags=tags)


def _unrun_result(scenario: Scenario, agent: str, file: str, status: Status, why: str) -> ScenarioResult:
    reason = Reason(status, ReasonKind.FILE, why)
    return ScenarioResult(
        scenario.name,
        scenario.agent or agent,
        file,
        scenario.line,
        Verdict(status, (reason,)),
        tags=scenario.tags,
    )


def endpoint(agent: AgentConfig) -> str:
    """Return the address of an agent, for display."""
    return agent.address


def check_metrics(names: Sequence[str], custom: set[str]) -> None:
    """Raise ConfigError for an unknown metric."""
    for name in names:
        if name in TRAJECTORY_METRICS:
            raise ConfigError(f"metrics: {name} is measured where `thresholds` names it; write it there")
        if name not in BUILTIN and name not in custom:
            raise ConfigError(
                f"metrics: there is no metric {name!r}; {did_you_mean(name, {*BUILTIN, *custom})}"
            )


def check_thresholds(thresholds: Mapping[str, float], custom: set[str]) -> None:
    """Raise ConfigError for a threshold that is out of range or whose metric has no average."""
    valid = {*THRESHOLD_RANGE, *custom}
    for name, least in thresholds.items():
        if name in BUILTIN and BUILTIN[name].kind is Kind.LABEL:
            raise ConfigError(
                f"thresholds: {name} gives labels, not numbers; see fail_on_error_severity for failures"
            )
        if name not in valid:
            raise ConfigError(f"thresholds: there is no metric {name!r}; {did_you_mean(name, valid)}")
        low, high = THRESHOLD_RANGE.get(name, (float("-inf"), float("inf")))
        if not low <= least <= high:
            raise ConfigError(f"thresholds.{name}: {least:g} is not between {low:g} and {high:g}")


def load_custom_metrics(items: Sequence[Any], root: Path) -> tuple[Metric, ...]:
    """Load the custom metrics of a configuration: import paths, classes or instances."""
    metrics: dict[str, Metric] = {}
    for i, item in enumerate(items):
        metric = _custom_metric(item, f"custom_metrics[{i}]", root)
        if metric.name in {*BUILTIN, *THRESHOLD_RANGE, *metrics}:
            raise ConfigError(f"custom_metrics[{i}]: the name {metric.name!r} is taken")
        metrics[metric.name] = metric
    return tuple(metrics.values())


def _custom_metric(item: Any, key: str, root: Path) -> Metric:
    from agentest.judging.custom_metrics import Metric

    try:
        metric = import_object(item, root) if isinstance(item, str) else item
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None
    if isinstance(metric, type) and issubclass(metric, Metric):
        try:
            metric = metric()
        except Exception as error:  # noqa: BLE001 - the user's class may raise anything
            raise ConfigError(f"{key}: {metric.__name__}() raised {type(error).__name__}: {error}") from None
    if not isinstance(metric, Metric):
        raise ConfigError(
            f"{key}: {item!r} is no metric; "
            "subclass QuantitativeMetric, QualitativeMetric or ConversationMetric"
        )
    return metric


def first_repeat_setting(*settings: tuple[Repeat | None, int | None]) -> tuple[Repeat | None, int]:
    """Return when to stop and the most conversations, from the first setting that says either."""
    repeat, number = next(each for each in settings if any(each))
    return repeat, repeat.max if repeat else number or 1
