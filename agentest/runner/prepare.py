"""The first steps of a run: configure, discover, plan. They contact no agent and no model.

`prepare` returns a `Prepared`, which contains everything that can be checked in advance.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal

from agentest.config.agents.base import AnyAgent
from agentest.config.agents.server import AGENTS_SERVER, Server
from agentest.config.config import Config
from agentest.config.fields import parse_reports, requested_reports
from agentest.config.file import LoadedConfig, config_in, find_config, load
from agentest.config.models import RequestedModel
from agentest.domain.events import ReportOptions, ReportRequest
from agentest.domain.metrics import CRITERIA
from agentest.domain.results import JudgeCalibration, Status
from agentest.plugin import if_command
from agentest.runner.plan import Options, Plan, ResumedRun, UnmockedTools, make_plan, requested_models
from agentest.scenarios.discovery import DiscoveredScenarios, discover
from agentest.support.errors import ConfigError, UsageError, errors_as
from agentest.support.files import path_from
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import with_reminders
from agentest.support.text import first_names

if TYPE_CHECKING:
    from agentest.agents.server_process import AgentServers, RecentOutput
    from agentest.domain.shards import ShardedRun
    from agentest.models.providers import ModelSpec

_NAME_CHARS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedServer:
    """A server that the run starts."""

    name: str  # unique, and valid as a file name
    server: Server
    agents: tuple[str, ...]
    """The agents that it belongs to; empty: it is an entry of `servers`, for all agents."""
    printed: RecentOutput
    port: int | None = None
    worker: int | None = None
    """The worker (from 1) that starts it, if each worker has one (`per_worker`). None: the run starts it."""
    lane: int | None = None
    """Its number (from 1) among the copies of an agent's server; None if there is only one."""

    @property
    def log(self) -> str:
        """The name of its output file. Several workers may have a server of the same name."""
        return self.name if self.worker is None else f"{self.name}-worker-{self.worker}"

    def of_worker(self, worker: int) -> ManagedServer:
        """Return the server that this worker starts, with its own output buffer."""
        return replace(self, worker=worker, printed=_room_for_output(self.name))

    @property
    def called(self) -> str:
        """Its name in messages."""
        if self.agents and self.server.name is None:
            return AGENTS_SERVER if self.lane is None else f"copy {self.lane} of {AGENTS_SERVER}"
        return f"server {self.name!r}"


@dataclass(frozen=True, slots=True)
class ManagedServers:
    """The servers of a run, in the order in which they are started."""

    servers: tuple[ManagedServer, ...] = ()

    def of_any(self, agents: Iterable[str]) -> tuple[ManagedServer, ...]:
        """Return the servers that any of these agents depend on."""
        wanted = set(agents)
        return tuple(each for each in self.servers if not each.agents or wanted & {*each.agents})

    @property
    def printed(self) -> tuple[RecentOutput, ...]:
        """The output of each server."""
        return tuple(each.printed for each in self.servers)

    def of(self, agent: str, lane: int | None = None) -> AgentServers:
        """Return the output of the servers that an agent depends on, and of its own only this copy."""
        from agentest.agents.server_process import AgentServers

        servers = self.of_any([agent])
        return AgentServers(
            tuple(each.printed for each in servers if lane is None or each.lane in (None, lane))
        )


def managed_servers_of(
    config: Config, agents: Mapping[str, AnyAgent], redact: Callable[[str], str] = str
) -> ManagedServers:
    """Return the servers of `servers`, then the agents' own. Agents with equal servers share one."""
    owned: list[tuple[Server, list[str]]] = [(server, []) for server in config.servers]
    for agent_name, agent in agents.items():
        if agent.server is None:
            continue
        for server, agent_names in owned[len(config.servers) :]:
            if server == agent.server:
                agent_names.append(agent_name)
                break
        else:
            owned.append((agent.server, [agent_name]))
    names: set[str] = set()
    managed: list[ManagedServer] = []
    for server, agent_names in owned:
        for lane in range(1, server.copies + 1):
            words = [server.name] if server.name else _command_words(server.command)
            slug = re.sub(r"[^\w.]+", "-", redact(" ".join(words)))
            name = _free_name(slug.strip("-.")[:_NAME_CHARS] or "server", names)
            managed.append(
                ManagedServer(
                    name=name,
                    server=server,
                    agents=tuple(agent_names),
                    printed=_room_for_output(name),
                    lane=lane if server.copies > 1 else None,
                )
            )
    return ManagedServers(tuple(managed))


def _room_for_output(name: str) -> RecentOutput:
    from agentest.agents.server_process import RecentOutput

    return RecentOutput(name)


def _command_words(command: str | list[str]) -> list[str]:
    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError:  # an unclosed quote, which the shell reports
        words = []
    names = [PurePath(word).name for word in words if not word.startswith("-") and "=" not in word]
    return [re.sub(r"\.(py|[cm]?[jt]s|sh|jar)$", "", name) for name in names[:2]]


def _free_name(name: str, used: set[str]) -> str:
    free, number = name, 1
    while free.casefold() in used:  # names become file names
        number += 1
        free = f"{name}-{number}"
    used.add(free.casefold())
    return free


MODEL_VARIABLE = "AGENTEST_MODEL"
CONFIRM = "judge.confirm"
"""The role, among the models of a run, of the model that confirms the judge's answers."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request for a run: its folders, its configuration file and its options."""

    root: Path
    config: Path | None = None
    options: Options = field(default_factory=Options)
    reports: ReportOptions = field(default_factory=ReportOptions)
    here: Path | None = None  # the user's folder, if it is not `root`


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that is ready to begin. Everything that needs no agent or model has been checked."""

    request: RunRequest
    loaded: LoadedConfig
    plan: Plan
    reports: tuple[ReportRequest, ...]
    user: ModelSpec | None = None
    judge: ModelSpec | None = None
    named: Mapping[RequestedModel, ModelSpec] = field(default_factory=dict)
    """Models that scenario files request, to use instead of the model of their role."""
    confirm: ModelSpec | None = None  # the model that confirms a judge's answer before it fails a scenario
    notes: tuple[str, ...] = ()
    calibrations: Mapping[str, JudgeCalibration] = field(default_factory=dict)
    """Metric → accuracy of the judge, measured with its current settings."""
    files: frozenset[Path] = frozenset()
    """The scenario files and all of the user's modules that they imported."""
    narrowed: bool = False  # True if scenarios are left out because of their earlier results
    picked: bool = False
    """True if the user left out scenarios that could run, other than by a rerun of failed ones."""
    managed_servers: ManagedServers = ManagedServers()
    unmocked_tools: UnmockedTools | None = None
    """How to treat calls that nothing answers, if the command line or the configuration says so."""
    copies: Mapping[str, tuple[AnyAgent, ...]] = field(default_factory=dict)
    """Agent → its settings for each copy of its server, if there are several."""
    resumed_run: ResumedRun | None = None
    part: ShardedRun | None = None
    earlier: Mapping[tuple[str, str, str], Status] | None = None
    """File, scenario and agent → the verdict in the last run of the same selection; None: not looked up."""

    @property
    def output_dir(self) -> Path:
        """The folder for reports."""
        return self.request.root / self.loaded.config.output_dir

    @property
    def is_partial(self) -> bool:
        """True if the command line selected only some scenarios or agents."""
        options = self.request.options
        return options.filtered or options.agent is not None or self.narrowed

    def with_own_requests(self) -> Prepared:
        """Return the run with the settings of agents for scenarios with own `headers` or `body`, by scope."""
        agents, copies = dict(self.plan.agents), dict(self.copies)
        for unit in self.plan.units:
            of_scenario = unit.scenario.headers, unit.scenario.body
            if any(of_scenario):
                agents[unit.scope] = agents[unit.agent].with_request(*of_scenario)
                if unit.agent in copies:
                    copies[unit.scope] = tuple(e.with_request(*of_scenario) for e in copies[unit.agent])
        return replace(self, plan=replace(self.plan, agents=agents), copies=copies)

    @property
    def reporters(self) -> frozenset[str]:
        """The names of the reporters, regardless of their output paths."""
        return frozenset(report.name for report in self.reports)

    @property
    def tape_mode(self) -> str | None:
        """How to use recorded model responses, which a run with a budget records; None: not at all."""
        options = self.request.options
        keeps = options.has_budget or (self.resumed_run and self.resumed_run.answers)
        return options.tape or ("keep" if keeps and not any(self.agent_tape_modes.values()) else None)

    @property
    def uses_cache(self) -> bool:
        """True if stored answers replace model calls: in development, unless the run records or replays."""
        options, config = self.request.options, self.loaded.config
        in_ci = os.environ.get("CI", "") not in ("", "0", "false")
        return config.cache and options.cache and options.tape is None and not (options.is_remote or in_ci)

    @property
    def agent_tape_modes(self) -> dict[str, str | None]:
        """Scope → how to use recordings of the agent's model, if its gateway overrides the command line."""
        modes: dict[str, str | None] = {}
        for unit in self.plan.units:
            agent = self.plan.agents.get(unit.agent)  # labelled turns have none
            gateway = agent.model_gateway if agent else None
            if gateway and gateway.mode:
                modes[unit.scope] = None if gateway.mode == "live" else gateway.mode
        return modes

    @property
    def model_tapes(self) -> dict[str, str]:
        """Agent → how recordings of its own model are used, for agents behind a model gateway."""
        gateways = {name: agent.model_gateway for name, agent in self.plan.agents.items()}
        modes = {name: each.mode or self.request.options.tape for name, each in gateways.items() if each}
        return {name: mode for name, mode in modes.items() if mode not in (None, "live")}

    @property
    def is_recorded(self) -> bool:
        """True if the run writes cassettes."""
        return not {self.request.options.tape, *self.agent_tape_modes.values()} <= {None, "replay"}

    @property
    def concurrency(self) -> int:
        """Maximum number of conversations at once."""
        return self.request.options.concurrency or self.loaded.config.concurrency

    @property
    def is_strict(self) -> bool:
        """True if a warning that questions a verdict makes its scenario errored."""
        config, option = self.loaded.config, self.request.options.strict
        is_asked = "strict" in config.model_fields_set or not any(u.scenario.case for u in self.plan.units)
        return config.strict and is_asked if option is None else option

    def uses_model(self, role: Literal["user", "judge"]) -> bool:
        """Return True if a model plays this role anywhere in the run."""
        configured = self.user if role == "user" else self.judge
        return configured is not None or any(requested.role == role for requested in self.named)

    @property
    def model_names(self) -> dict[str, str | None]:
        """Role → model; None: offline."""
        specs = {"user": self.user, "judge": self.judge}
        roles = {role: spec.name if spec else None for role, spec in specs.items()}
        confirm = {CONFIRM: self.confirm.name} if self.confirm else {}
        models: dict[str, str] = {}  # those that replace the configured one, by role with metric or file
        for requested in requested_models(self.plan.units) if self.named else ():
            spec = self.named.get(requested)
            if spec and spec.name != roles[requested.role]:
                role = f"{requested.role} of {requested.metric or requested.file}"
                is_ambiguous = models.get(role, spec.name) != spec.name
                models[f"{role} in {requested.file}" if is_ambiguous else role] = spec.name
        return {**roles, **confirm, **models}


def prepare(
    request: RunRequest, environ: MutableMapping[str, str] = os.environ, *, may_be_empty: bool = False
) -> Prepared:
    """Load configuration and scenarios and plan the run. Raises UsageError, also for an empty plan."""
    with with_reminders("reading the configuration and the scenarios, with what they import"):
        loaded = configure(request, environ)
        discovered = discover_scenarios(request, loaded)
    plan = make_plan(loaded, discovered, request.options, request.root)
    if not may_be_empty and not plan.entries:
        if request.options.filtered:
            from agentest.runner.selection import empty_selection_reason

            raise UsageError(empty_selection_reason(discovered, request.options, request.root, loaded))
        include = ", ".join(loaded.config.include)
        raise UsageError(
            f"no scenario found: no file below {request.root} that matches {include} (`include`) calls "
            f"scenario(…){if_command('init', '. agentest init writes a first one')}"
        )
    notes = [f"{file} defines no scenario: it never calls scenario(…)" for file in discovered.empty]
    if folders := discovered.left_out:
        first = path_from(request.here or request.root, request.root / folders[0])
        which = first_names(folders, _SHOWN)
        notes.append(
            f"left out, as there is another configuration: {which}; agentest run --cwd {first} runs it"
        )
    picked = request.options.filtered and discovered.leaves_out({u.scenario.name for u in plan.units})
    return replace(prepared_for(request, loaded, plan, notes, environ, discovered.files), picked=picked)


def is_configured(request: RunRequest) -> bool:
    """Return True if there is a configuration, valid or not."""
    return bool(request.config or config_in(request.root))


def configure(request: RunRequest, environ: MutableMapping[str, str] = os.environ) -> LoadedConfig:
    """Load and check the configuration, and the reporters of the request. Raises ConfigError."""
    loaded = load(request.config or find_config(request.root), environ)
    requested_reports(request.reports.reporters, request.here or request.root)
    return loaded


def discover_scenarios(request: RunRequest, loaded: LoadedConfig) -> DiscoveredScenarios:
    """Find the scenarios in all included files, with secrets redacted. Raises UsageError."""
    config, paths, files = loaded.config, request.options.paths, request.options.files
    if paths:
        from agentest.runner.selection import missed_place, unusable_path

        if problem := unusable_path(paths, request.root, request.here, loaded):
            raise UsageError(problem)
    discovered = discover(request.root, config.include, config.exclude, files, loaded.path, paths)
    if paths and (problem := missed_place(discovered, paths)):
        raise UsageError(problem)
    return discovered.redacted(loaded.redact)


def prepared_for(
    request: RunRequest,
    loaded: LoadedConfig,
    plan: Plan,
    notes: Iterable[str] = (),
    environ: MutableMapping[str, str] = os.environ,
    files: frozenset[Path] = frozenset(),
) -> Prepared:
    """Resolve what a plan needs to run: its models, reporters and servers. Raises UsageError."""
    config, options = loaded.config, request.options
    folder = cassette_folder(config, options, request.root)
    scopes = [unit.scope for unit in plan.units]
    override = options.model or environ.get(MODEL_VARIABLE) or None
    gateways = [agent.model_gateway for agent in plan.agents.values()]
    tapes_agents = any(each and each.mode != "live" for each in gateways)
    user, judge = _model_specs(config, options, override, folder, scopes, environ, tapes_agents=tapes_agents)
    named: Mapping[RequestedModel, ModelSpec] = {}
    named_notes: tuple[str, ...] = ()
    if requested := () if options.offline else requested_models(plan.units):
        from agentest.runner.judge_models import ConfiguredModels, named_models

        recorded = _recorded_names(options, folder, scopes)
        is_replay = options.tape == "replay"
        configured = ConfiguredModels(config, environ, user, judge, override, recorded, is_replay)
        named, named_notes = named_models(requested, configured)
    confirm, confirm_note = _confirmation(loaded, options, override, environ, judge)
    _check_cost([user, judge, confirm, *named.values()], options)
    if user and not judge and config.user.check:
        raise ConfigError(
            f"{loaded.path}: `user.check` has a judge check the simulated user, but no model judges: "
            "configure `judge.model` or `model`, or leave `user.check` out"
        )
    reports = requested_reports(request.reports.reporters, request.here or request.root) or parse_reports(
        config.reporters, request.root
    )
    unmocked_tools = config.unmocked_tools if "unmocked_tools" in config.model_fields_set else None
    calibrations, calibration_notes = _calibrations(plan, loaded, judge)
    return Prepared(
        request=request,
        loaded=loaded,
        plan=plan,
        reports=reports,
        user=user,
        judge=judge,
        named=named,
        confirm=confirm,
        notes=(*notes, *named_notes, *confirm_note, *calibration_notes),
        calibrations=calibrations,
        files=files,
        managed_servers=managed_servers_of(config, plan.agents, loaded.redact),
        unmocked_tools=request.options.unmocked_tools or unmocked_tools,
    )


def _calibrations(
    plan: Plan, loaded: LoadedConfig, judge: ModelSpec | None
) -> tuple[dict[str, JudgeCalibration], tuple[str, ...]]:
    if judge is None:
        return {}, ()
    from agentest.runner.judge_models import calibration_file, known_calibrations

    metrics = {metric for unit in plan.units for metric in unit.metrics}
    criteria = {CRITERIA for unit in plan.units if unit.scenario.criteria}
    path, batch = calibration_file(loaded.path), loaded.config.judge.batch
    return known_calibrations(path, judge.name, sorted(metrics | criteria), batch)


_Specs = tuple["ModelSpec | None", "ModelSpec | None"]


def _model_specs(
    config: Config,
    options: Options,
    override: str | None,
    folder: Path,
    scopes: Sequence[str],
    environ: MutableMapping[str, str],
    *,
    tapes_agents: bool,
) -> _Specs:
    if options.offline and options.tape:
        raise ConfigError(f"--offline and --{options.tape} exclude each other: offline, no model answers")
    if options.offline:
        return None, None
    if options.tape == "replay":
        from agentest.models.cassette import recorded_models
        from agentest.models.tape import CassetteError

        with errors_as(ConfigError, "--replay: ", CassetteError):
            names = recorded_models(folder, scopes)
        if not names and not tapes_agents:
            record = "record it with agentest run --record"
            raise ConfigError(f"--replay: nothing is recorded in {folder}; {record}")
        return _uncalled_specs(config, override, names)
    if options.dry_run:
        return _uncalled_specs(config, override, {})
    specs: _Specs = (None, None)
    settings = (config, config.user, config.judge)
    if override or any((each.model, each.provider) != (None, None) for each in settings):
        from agentest.models.providers import resolve

        user, judge = (resolve(config, role, environ, override) for role in (config.user, config.judge))
        specs = user, judge
    if options.tape and not any(specs) and not tapes_agents:
        raise ConfigError(f"--{options.tape} needs a model; configure `model`, or name one with --model")
    return specs


def _uncalled_specs(config: Config, override: str | None, recorded_names: Mapping[str, str]) -> _Specs:
    from agentest.models.providers import model_name, recorded

    user = model_name(config, config.user, override) or recorded_names.get("user")
    judge = model_name(config, config.judge, override) or recorded_names.get("judge")
    return recorded(user, config.user) if user else None, recorded(judge, config.judge) if judge else None


def _confirmation(
    loaded: LoadedConfig,
    options: Options,
    override: str | None,
    environ: Mapping[str, str],
    judge: ModelSpec | None,
) -> tuple[ModelSpec | None, tuple[str, ...]]:
    config = loaded.config
    if config.judge.confirm is None or options.offline:
        return None, ()
    if judge is None:
        return None, (f"`{CONFIRM}` has no effect: no model judges; set `model`, or `judge.model`",)
    from agentest.models.providers import confirming_name, recorded, resolve_confirming

    with errors_as(ConfigError, f"{loaded.path}: {CONFIRM}: ", ConfigError):
        if options.dry_run or options.tape == "replay":
            name, settings = confirming_name(config, override), config.judge.of_confirming
            spec = recorded(name, settings) if name and settings else None
        else:
            spec = resolve_confirming(config, environ, override)
    if spec and spec.name == judge.name:
        other = "a second opinion needs another model"
        return spec, (f"`{CONFIRM}` is {judge.name}, the judge's own model: {other}",)
    return spec, ()


def _recorded_names(options: Options, folder: Path, scopes: Sequence[str]) -> frozenset[str]:
    if options.tape in (None, "record"):
        return frozenset()
    from agentest.models.cassette import recorded_named_models
    from agentest.models.tape import CassetteError

    with errors_as(ConfigError, "", CassetteError):
        return recorded_named_models(folder, scopes)


def _check_cost(specs: Sequence[ModelSpec | None], options: Options) -> None:
    if options.max_cost is None or options.tape == "replay" or options.dry_run:
        return
    from agentest.models.budget import price_of

    unknown = {spec.name for spec in specs if spec and not (spec.priced and price_of(spec.name))}
    if unknown:
        raise ConfigError(
            f"--max-cost cannot be enforced: the price of {', '.join(sorted(unknown))} is unknown; "
            "limit the number of calls with --max-llm-calls instead"
        )


def cassette_folder(config: Config, options: Options, root: Path) -> Path:
    """Return the folder of recorded responses."""
    return root / (options.cassettes or config.cassettes or f"{config.output_dir}/cassettes")
