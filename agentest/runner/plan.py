"""The plan of a run: configuration, scenarios and options, checked, filtered and resolved into units."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentest.config.agent_types import AgentConfig
from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.config.models import RequestedModel
from agentest.domain.events import ConversationFinished
from agentest.domain.metrics import (
    BUILTIN,
    GOAL,
    LIMITS,
    PASS_RATE,
    THRESHOLD_RANGE,
    TRAJECTORY_METRICS,
    Kind,
)
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
from agentest.plugin import PLUGINS, Feature
from agentest.runner.known_tools import (
    AgentTraits,
    NamedTool,
    agent_traits,
    misspelled_tool,
    served_tools,
    unknown_tools,
)
from agentest.scenarios.discovery import DiscoveredScenarios, PathChoice, matches_name, select_by_paths
from agentest.scenarios.model import Scenario
from agentest.support.errors import ConfigError, errors_as
from agentest.support.files import readable, shown_path
from agentest.support.importing import import_object
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean

if TYPE_CHECKING:
    from agentest.judging.custom_metrics import Metric
    from agentest.judging.grader import Grader


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedUnitPart:
    """The part of a unit that an earlier run completed."""

    numbers: Sequence[int] = ()  # of its finished conversations
    conversations: Sequence[ConversationResult] = ()  # their results, which may be read when they are used
    result: ScenarioResult | None = None  # set if the whole unit had finished, so that nothing is left to run
    usage: Mapping[str, ModelUsage] = field(default_factory=dict)
    """Role → model usage of the earlier run for this unit."""

    def is_all(self, conversations: int) -> bool:
        """Return True if it covers a whole unit of this many conversations."""
        return self.result is not None or len(self.conversations) >= conversations


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedRun:
    """The part of a run that an earlier run completed."""

    id: str
    answers: Path | None = None
    """The folder with model responses of unfinished conversations, if there is one."""
    conversations: Iterable[ConversationFinished] = ()
    """The finished conversations as they were stored; may be iterated several times."""
    unclaimed: tuple[RunWarning, ...] = ()  # warnings about its calls that belonged to no conversation


UnmockedTools = Literal["error", "passthrough", "simulate"]


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
    """Judge only these built-in metrics, and measure these of plug-ins, regardless of the configuration."""
    max_cost: float | None = None
    max_llm_calls: int | None = None
    cache: bool = True  # False if models answer every question anew
    tape: str | None = None  # how to use recorded responses: record, replay or replay-or-record
    cassettes: str | None = None
    dry_run: bool = False
    engine: str | None = None
    """The engine that runs conversations. None: `local`, or `workers` if several are requested."""
    ray_address: str | None = None
    """The Ray cluster to join. None: the one of RAY_ADDRESS, or a new one."""
    workers: int | str | None = None  # the number of workers, or `auto` for one per core
    unmocked_tools: UnmockedTools | None = None
    """How to treat calls that nothing answers; None: as configured."""
    strict: bool | None = None
    """True if a warning that questions a verdict makes its scenario errored; None: as configured."""

    @property
    def engine_feature(self) -> Feature:
        """The selected engine. Raises UsageError if no plug-in has it."""
        name = self.engine or ("local" if self.workers in (None, 1) else "workers")
        return PLUGINS.get("engine", name)

    @property
    def is_remote(self) -> bool:
        """True if conversations may run on other machines: see `agentest.runner.engines`."""
        return bool(self.engine_feature.load().is_remote)

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
    scope: str  # unique within the run
    slug: str  # unique within the run; prefix of its conversations' ids
    conversations: int
    max_turns: int
    metrics: tuple[str, ...]
    thresholds: Mapping[str, float]
    graders: tuple[Grader, ...] = ()
    written: Scenario | None = None
    """The scenario without its changes, if it has any: `scenario` has them in its mocks and texts."""
    of: int | None = None  # the originally planned number of conversations, if an earlier run is judged again

    @property
    def planned(self) -> int:
        """The planned number of conversations, including those that an earlier run did not reach."""
        return self.conversations if self.of is None else self.of

    def is_parallel(self, usual: bool) -> bool:
        """Return True if its conversations may run at once: the scenario's setting, or else `usual`."""
        return usual if self.scenario.parallel is None else self.scenario.parallel

    traits: AgentTraits = AgentTraits()
    repeat: Repeat | None = None
    information: tuple[str, ...] = ()  # metrics whose scores are shown but decide nothing
    finished_part: FinishedUnitPart = FinishedUnitPart()
    fingerprint: str = ""  # equal in two runs only if nothing relevant has changed (`fingerprints`)
    metrics_named: bool = True
    """True if configuration, scenario or command line set `metrics`; else all metrics run by default."""
    unmeasured: frozenset[str] = frozenset()  # metrics of plug-ins that only other scenarios name


PlanEntry = Unit | ScenarioResult


def units_among(entries: Iterable[PlanEntry]) -> tuple[Unit, ...]:
    return tuple(entry for entry in entries if isinstance(entry, Unit))


def map_units(entries: Iterable[PlanEntry], change: Callable[[Unit], PlanEntry]) -> list[PlanEntry]:
    """Apply a function to each unit among the entries of a plan."""
    return [change(entry) if isinstance(entry, Unit) else entry for entry in entries]


def with_units(plan: Plan, change: Callable[[Unit], Unit]) -> Plan:
    """Apply a function to each unit of the plan."""
    changed = {unit.scope: change(unit) for unit in plan.units}
    entries = map_units(plan.entries, lambda unit: changed[unit.scope])
    return replace(plan, entries=tuple(entries), units=tuple(changed.values()))


def narrow_plan(plan: Plan, is_kept: Callable[[PlanEntry], bool]) -> Plan:
    """Return the plan with some of its entries and the agents that they need. Ids do not change."""
    return with_entries(plan, filter(is_kept, plan.entries), filter(is_kept, plan.units))


def with_entries(plan: Plan, entries: Iterable[PlanEntry], units: Iterable[PlanEntry]) -> Plan:
    """Return the plan with other entries, the units among them in this order, and the agents they need."""
    in_order = units_among(units)
    used = {unit.agent for unit in in_order}
    agents = {name: agent for name, agent in plan.agents.items() if name in used}
    return replace(plan, entries=tuple(entries), units=in_order, agents=agents)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run will do."""

    entries: tuple[PlanEntry, ...]
    agents: Mapping[str, AgentConfig]  # name → agent, for the agents in use
    comparison: bool
    custom: tuple[Metric, ...] = ()
    units: tuple[Unit, ...] = field(default=())
    left_out: frozenset[str] | None = frozenset()
    """Names of mocks that are left out, by which tools are known. None: no mock was named."""
    unknown_tools: Mapping[str, tuple[NamedTool, ...]] = field(default_factory=dict)
    """Scope of a unit → tools that it names but that no mock and no schema defines."""

    @property
    def refusals(self) -> str:
        """Why entries will not run, one per line."""
        return "\n".join(
            f"{entry.file}:{entry.line}: {entry.name} ({entry.verdict.status.value}): {reason.message}"
            for entry in self.entries
            if isinstance(entry, ScenarioResult)
            for reason in entry.verdict.reasons
        )

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
    loaded: LoadedConfig,
    discovered: DiscoveredScenarios,
    options: Options,
    root: Path,
    others: Iterable[Scenario] = (),
) -> Plan:
    """Resolve every scenario. Raises ConfigError for problems that concern the whole run.

    Args:
        others: further scenarios, whose mocked tools count as known.
    """
    config = loaded.config
    chosen = select_by_paths(discovered.scenarios, options.paths) if options.paths else discovered.scenarios
    custom = load_custom_metrics(config.custom_metrics, root, loaded.place("custom_metrics"))
    configured = {*(config.metrics or ()), *options.metrics, *config.thresholds}
    named = {name for each in chosen for name in each.named_metrics}
    plugged = _plugin_metrics(configured | named, custom)
    custom = (*custom, *plugged.values())
    names = {metric.name for metric in custom}
    check_metrics(options.metrics, names)
    _check_settings(loaded, names)
    default, agents = agents_under_test(config, options.agent)
    files = [shown_path(each.file, root) for each in discovered.broken]
    broken = zip(files, discovered.broken, strict=True)
    entries: list[PlanEntry] = [unrun_result(f, "", f, each.line, each.message) for f, each in broken]
    for scenario in chosen:
        is_named = not options.scenarios or matches_name(scenario.name, options.scenarios)
        if is_named and (not options.tags or set(options.tags) & set(scenario.tags)):
            entries += _entries(scenario, config, options, default, agents, names, root)
    # Scenarios on one line (from a loop), and agents, stay in their order.
    entries.sort(key=lambda each: (each.file, each.scenario.line if isinstance(each, Unit) else each.line))
    if plugged:
        entries = map_units(entries, lambda unit: _without_unasked(unit, configured, plugged))
    entries = finalized_entries(entries, agents, root, config)
    unknown = _unknown_tools(units_among(entries), (*discovered.scenarios, *others))
    entries = map_units(entries, lambda unit: _with_known_tools(unit, unknown.get(unit.scope, ())))
    units = units_among(entries)
    used = {unit.agent: agents[unit.agent] for unit in units}
    return Plan(tuple(entries), used, len(default) > 1, custom, units, unknown_tools=unknown)


def _check_settings(loaded: LoadedConfig, custom: set[str]) -> None:
    metrics, thresholds = loaded.config.metrics, loaded.config.thresholds
    with errors_as(ConfigError, loaded.place("metrics"), ConfigError):
        check_metrics(metrics or (), custom)
    with errors_as(ConfigError, loaded.place("thresholds"), ConfigError):
        check_thresholds(thresholds, custom)
        if metrics is not None and (unchecked := thresholds.keys() & BUILTIN.keys() - {*metrics}):
            raise ConfigError(f"thresholds.{min(unchecked)}: `metrics` leaves it out, so it is never checked")


def _unknown_tools(
    units: Sequence[Unit], scenarios: Iterable[Scenario]
) -> Mapping[str, tuple[NamedTool, ...]]:
    if not any(unit.scenario.trajectories or unit.scenario.approve_keys for unit in units):
        return {}
    mocked = {tool for scenario in scenarios for tool in scenario.tools}
    tools = {unit.agent: unit.traits.tools for unit in units}
    return unknown_tools({unit.scope: unit.scenario for unit in units}, mocked, tools.values())


def _with_known_tools(unit: Unit, unknown: Sequence[NamedTool]) -> PlanEntry:
    problem = misspelled_tool(unit.scenario, unit.traits.tools, unknown)
    where = f"{unit.file}:{unit.scenario.line}: scenario {unit.scenario.name!r}"
    return unit if problem is None else _errored_result(unit, f"{where}: {problem}")


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


def _entries(
    scenario: Scenario,
    config: Config,
    options: Options,
    default: tuple[str, ...],
    agents: Mapping[str, AgentConfig],
    custom: set[str],
    root: Path,
) -> list[PlanEntry]:
    def unrun(message: str, status: Status = Status.ERRORED) -> list[PlanEntry]:
        agent = "" if scenario.refused is not None else scenario.agent or default[0]
        line, tags = scenario.line, scenario.tags
        message = message.replace(f"{readable(scenario.file)}:", f"{file}:")
        return [unrun_result(scenario.name, agent, file, line, message, status=status, tags=tags)]

    file = shown_path(scenario.file, root)
    if scenario.refused is not None:
        return unrun(scenario.refused)
    if scenario.skip is not None:
        return unrun(scenario.skip, Status.SKIPPED)
    try:
        if scenario.agent is not None and scenario.agent not in agents:
            raise ConfigError(f"there is no agent {scenario.agent!r}; {did_you_mean(scenario.agent, agents)}")
        check_metrics(scenario.metrics or (), custom)
        check_thresholds(scenario.thresholds, custom)
        names = (scenario.agent,) if scenario.agent else default
        for name in names:
            agents[name].with_request(scenario.headers, scenario.body)
            if scenario.model_faults and not agents[name].model_gateway:
                advice = agents[name].gateway_advice
                raise ConfigError(f"model_faults: agent {name!r} calls its model without Agentest; {advice}")
    except (ConfigError, ValueError) as error:
        return unrun(f"{file}:{scenario.line}: scenario {scenario.name!r}: {error}")
    return [_unit(scenario, name, config, options, custom, file) for name in names]


def turn_limit(scenario: Scenario, simulated: int) -> int:
    """Return the most turns of a conversation; `simulated`: with a simulated user."""
    if scenario.scripted:  # one extra turn lets a script or an attack end the conversation
        return len(scenario.turns) + 1
    return scenario.attack.turns + 1 if scenario.attack else max(simulated, len(scenario.turns) + 1)


def _unit(
    scenario: Scenario, agent: str, config: Config, options: Options, custom: set[str], file: str
) -> Unit:
    written = scenario
    if scenario.changes or scenario.mutations:
        from agentest.scenarios.variations import acted

        scenario = acted(scenario)
    repeat, conversations = first_repeat_setting(
        (options.repeat, options.conversations),
        (scenario.repeat, scenario.conversations_per_scenario),
        (None, 1) if scenario.scripted else (config.repeat, config.conversations_per_scenario),
    )
    metrics = options.metrics or (config.metrics if scenario.metrics is None else scenario.metrics)
    must = {GOAL} if scenario.expected_outcome and not options.metrics else set[str]()
    chosen = scenario.judged_by(m for m in BUILTIN if metrics is None or m in {*metrics} | must)
    credited = TRAJECTORY_METRICS if any(each.about_calls for each in scenario.trajectories) else ()
    information = scenario.shown_only((*chosen, *sorted(custom)))
    judged = {*chosen, *custom, *credited, PASS_RATE, *LIMITS} - {*information}
    of_scenario = {n: least for n, least in scenario.thresholds.items() if n in judged or not options.metrics}
    return Unit(
        scenario=scenario,
        written=written,
        agent=agent,
        file=file,
        scope=f"{scenario.name!r} @ {agent!r}",
        slug="",
        conversations=conversations,
        repeat=repeat,
        max_turns=turn_limit(scenario, scenario.max_turns or config.max_turns),
        metrics=chosen,
        # Apply a configured threshold only to scenarios in which its metric is judged.
        thresholds={
            **{name: least for name, least in config.thresholds.items() if name in judged},
            **of_scenario,
        },
        information=information,
        metrics_named=metrics is not None,
    )


def finalized_entries(
    entries: Sequence[PlanEntry], agents: Mapping[str, AgentConfig], root: Path, config: Config
) -> list[PlanEntry]:
    """Return the entries with short unique names, information about their agents, and the configured date."""
    units = units_among(entries)
    traits = {}
    for name, agent in agents.items():
        scenarios = (unit.scenario for unit in units if unit.agent == name)
        traits[name] = agent_traits(name, agent, served_tools(agent, root, config.output_dir, scenarios))
    slugs = _slugs(units)

    def final(unit: Unit) -> PlanEntry:
        slug, scenario, agent = next(slugs), unit.scenario, agents[unit.agent]
        has_state = scenario.session and scenario.session.state
        if has_state and (ways := agent.state_refusal) is not None:
            # Without the state, the run would test a different situation.
            who = f"agent {unit.agent!r} (type: {agent.type})"
            message = f"the session begins with a state, which {who} cannot be given: {ways}"
            return _errored_result(unit, message)
        if config.date and scenario.date is None:
            scenario = replace(scenario, date=config.date)
        return replace(unit, slug=slug, scenario=scenario, traits=traits[unit.agent])

    return map_units(entries, final)


def _slugs(units: Sequence[Unit]) -> Iterator[str]:
    used: set[str] = set()
    numbers: dict[str, int] = {}
    several = len({unit.agent for unit in units}) > 1
    for unit in units:
        slug = base = slugify(unit.scenario.name) + (f"@{slugify(unit.agent)}" if several else "")
        while slug in used:
            # Continue from the last number, because thousands of names may begin alike.
            numbers[base] = numbers.get(base, 1) + 1
            slug = f"{base}~{numbers[base]}"
        used.add(slug)
        yield slug


def _errored_result(unit: Unit, message: str) -> ScenarioResult:
    scenario = unit.scenario
    result = unrun_result(scenario.name, unit.agent, unit.file, scenario.line, message, tags=scenario.tags)
    return replace(result, case=scenario.case)


def unrun_result(
    name: str,
    agent: str,
    file: str,
    line: int,
    message: str,
    *,
    status: Status = Status.ERRORED,
    tags: tuple[str, ...] = (),
    planned: int = 0,
) -> ScenarioResult:
    """Return the result of a scenario that does not run, or of a file that could not be read."""
    verdict = Verdict(status, (Reason(status, ReasonKind.FILE, message),))
    return ScenarioResult(name, agent, file, line, verdict, tags=tags, planned=planned)


def slugify(name: str) -> str:
    """Turn a name into a part of an id: lower-case words joined by hyphens, at most 48 characters."""
    words = re.findall(r"\w+", name.lower())
    return "-".join(words)[:48].strip("-") or "scenario"


def check_metrics(names: Sequence[str], custom: set[str]) -> None:
    """Raise ConfigError for an unknown metric."""
    for name in names:
        if name in TRAJECTORY_METRICS:
            raise ConfigError(f"metrics: {name} is measured where `thresholds` names it; write it there")
        if name not in BUILTIN and name not in custom:
            from agentest.plugin import PLUGINS

            raise ConfigError(
                f"metrics: there is no metric {name!r}; "
                f"{did_you_mean(name, {*BUILTIN, *custom, *PLUGINS.all('metric')})}"
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
        no_range = (float("-inf"), float("inf"))
        low, high = no_range if name in custom else THRESHOLD_RANGE.get(name, no_range)
        if not low <= least <= high:
            percent = f"; write {least / 100:g} for {least:g} %" if high == 1 and 1 < least <= 100 else ""
            raise ConfigError(f"thresholds.{name}: {least:g} is not between {low:g} and {high:g}{percent}")


def load_custom_metrics(items: Sequence[Any], root: Path, place: str = "") -> tuple[Metric, ...]:
    """Load custom metrics: import paths, classes or instances. Errors begin with the `place` of the list."""
    metrics: dict[str, Metric] = {}
    for i, item in enumerate(items):
        metric = _custom_metric(item, f"{place}custom_metrics[{i}]", root)
        if metric.name in {*BUILTIN, *metrics} | (THRESHOLD_RANGE.keys() - LIMITS):
            raise ConfigError(f"{place}custom_metrics[{i}]: the name {metric.name!r} is taken")
        metrics[metric.name] = metric
    return tuple(metrics.values())


def _plugin_metrics(named: Iterable[str], custom: Iterable[Metric]) -> dict[str, Metric]:
    known = {*BUILTIN, *THRESHOLD_RANGE, *(metric.name for metric in custom)}
    if not (unknown := {*named} - known):
        return {}
    from agentest.plugin import PLUGINS  # no other run needs it

    found = {name: PLUGINS.find("metric", name) for name in sorted(unknown)}
    return {name: _custom_metric(name, "metrics", Path()) for name, feature in found.items() if feature}


def _without_unasked(unit: Unit, configured: Iterable[str], plugged: Iterable[str]) -> Unit:
    unmeasured = {*plugged} - {*configured} - {*unit.scenario.named_metrics}
    return replace(unit, unmeasured=frozenset(unmeasured))


def _custom_metric(item: Any, key: str, root: Path) -> Metric:
    from agentest.judging.custom_metrics import Metric
    from agentest.plugin import PLUGINS

    plugged = PLUGINS.find("metric", item) if isinstance(item, str) and item.isidentifier() else None
    with errors_as(ConfigError, f"{key}: "):
        if plugged:
            metric = plugged.load(of=Metric)
        else:
            metric = import_object(item, root) if isinstance(item, str) else item
    if isinstance(metric, type) and issubclass(metric, Metric):
        try:
            metric = metric()
        except Exception as error:  # noqa: BLE001 - the user's class may raise anything
            if plugged:
                raise plugged.problem("failed", error) from None
            raise ConfigError(f"{key}: {metric.__name__}() raised {type(error).__name__}: {error}") from None
    if not isinstance(metric, Metric):
        raise ConfigError(
            f"{key}: {item!r} is not a metric; "
            "subclass QuantitativeMetric, QualitativeMetric or ConversationMetric"
        )
    if plugged:
        metric.name = plugged.name  # by which it was found, whatever its class is called
    return metric


def first_repeat_setting(*settings: tuple[Repeat | None, int | None]) -> tuple[Repeat | None, int]:
    """Return when to stop and the most conversations, from the first setting that says either."""
    repeat, number = next(each for each in settings if any(each))
    return repeat, repeat.max if repeat else number or 1
