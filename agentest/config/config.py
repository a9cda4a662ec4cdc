"""The top level of the configuration: keys, defaults and rules.

This module holds values only. `agentest.config.file` finds and reads the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, field_validator, model_validator

from agentest.config.agent_types import AgentConfig, agent_keys, type_name
from agentest.config.agents.companion_servers import ModelGateway, Override
from agentest.config.agents.server import Servers
from agentest.config.fields import AtLeastOne, NotNegative, Number, Section, no_bool, parse_reports
from agentest.config.models import PROVIDERS, JudgeSettings, ProviderOptions, UserSettings
from agentest.domain.metrics import metric_name, normalize_thresholds
from agentest.domain.repeat_setting import EXCLUDES, Repeat, parse_repeat
from agentest.domain.results import Severity
from agentest.plugin import PLUGINS, PluginError
from agentest.support.dates import normalize_date
from agentest.support.errors import errors_as
from agentest.support.text import did_you_mean, snake_keys

_INSTRUCTIONS = frozenset({"instructions", "instructions_file"})
"""Two forms of one setting: an override that gives one replaces the other."""


INVARIANTS = (
    *("no_error", "in_schema", "no_repeated_write", "consent", "no_secret", "no_obeyed_injection"),
    *("no_claim", "grounded_ids", "bounded", "relation"),
)
"""What must hold in every conversation of an exploration; `relation`: of a mutated script."""
ExplorePart = Literal["faults", "injections", "mutations", "attacks"]
_USUAL_PARTS: tuple[ExplorePart, ...] = ("faults", "injections", "mutations")  # those that need no model


class ShrinkSettings(Section):
    """How far findings are reduced."""

    conversations: NotNegative = 60
    """Conversations for reducing one finding."""
    max_runs: AtLeastOne = 40
    """Conversations for deciding about one reduction."""
    error: Annotated[float, BeforeValidator(no_bool), Field(gt=0, le=0.5)] = 0.05
    """The chance that a reduction is accepted although it lost the finding."""


class CanarySettings(Section):
    """The tool that injections try to make the agent call."""

    tool: str = Field(min_length=1)


class ExploreSettings(Section):
    """Settings of `agentest explore`."""

    conversations: AtLeastOne = 200
    """Conversations in all, including those that confirm and reduce findings."""
    parts: list[ExplorePart] = Field(default_factory=lambda: list(_USUAL_PARTS))
    confirm: AtLeastOne = 5
    """Conversations that confirm a finding."""
    shrink: ShrinkSettings = Field(default_factory=ShrinkSettings)
    report_rate: NotNegative = 20
    """Fresh conversations that measure how often a finding occurs."""
    found: str = Field(default="scenarios/found", min_length=1)
    """The folder for scenarios of findings."""
    corpus: str = Field(default=".agentest/corpus", min_length=1)
    """The folder for what is worth trying again."""
    invariants: dict[str, bool | str] = Field(default_factory=dict)
    """Invariants that are switched off, and the `reason`."""
    writes: list[str] = Field(default_factory=list)
    """Tools that change something; names may have wildcards."""
    parties: dict[str, str] = Field(default_factory=dict)
    """Tool → the argument that names who receives what it sends."""
    canary: CanarySettings | None = None

    @field_validator("invariants", mode="before")
    @classmethod
    def _known_invariants(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        off = []
        for name, setting in value.items():
            if name == "reason":
                if not isinstance(setting, str) or not setting.strip():
                    raise ValueError("`reason`: say in words why invariants are switched off")
            elif name not in INVARIANTS:
                raise ValueError(f"there is no invariant {name!r}; {did_you_mean(str(name), INVARIANTS)}")
            elif not isinstance(setting, bool):
                raise ValueError(f"{name}: expected true or false, found {setting!r}")
            elif not setting:
                off.append(name)
        if off and "reason" not in value:
            raise ValueError(f'{off[0]} is switched off without a reason; add `reason: "…"`')
        return value

    @field_validator("parts")
    @classmethod
    def _some_part(cls, value: list[str]) -> list[str]:
        if not value:
            raise ValueError("is empty; name faults, injections, mutations or attacks")
        return list(dict.fromkeys(value))

    @property
    def switched_off(self) -> Mapping[str, str]:
        """The invariants that are switched off, each with the reason."""
        reason = str(self.invariants.get("reason", ""))
        return {name: reason for name, on in self.invariants.items() if on is False}


class Config(Section):
    """All settings of a run, apart from its scenarios."""

    agent: AgentConfig
    agents: dict[str, AgentConfig] = Field(default_factory=dict)
    compare: list[AgentConfig] = Field(default_factory=list)
    servers: Servers = Field(default_factory=list)
    """Servers to start before the agents' own servers, in this order. They end after them."""
    model: str | None = Field(default=None, min_length=1)
    provider: Literal[PROVIDERS] | None = None  # type: ignore[valid-type]
    provider_options: ProviderOptions = Field(default_factory=ProviderOptions)
    user: UserSettings = Field(default_factory=UserSettings)
    judge: JudgeSettings = Field(default_factory=JudgeSettings)
    conversations_per_scenario: AtLeastOne = 3
    repeat: Annotated[Repeat | None, BeforeValidator(parse_repeat)] = None
    """Run conversations until the verdict is decided, instead of a fixed number."""
    max_turns: AtLeastOne = 8
    request_timeout_ms: AtLeastOne = 30_000
    concurrency: AtLeastOne = 20
    max_concurrency: AtLeastOne | None = None
    """Concurrent requests to each model. None: use `concurrency`."""
    parallel: bool = True
    """If true, conversations of one scenario may run at the same time."""
    debounce_ms: NotNegative = 0
    date: Annotated[str, BeforeValidator(normalize_date)] | None = None
    """The date or date-time in ISO 8601 that users, judges and `{{date}}` see. None: today."""
    metrics: list[str] | None = None
    custom_metrics: list[Any] = Field(default_factory=list)
    thresholds: Annotated[dict[str, Number], AfterValidator(normalize_thresholds)] = Field(
        default_factory=dict
    )
    include: list[str] = Field(default_factory=lambda: ["**/*.sim.py", "**/*.sim.yaml", "**/*.sim.yml"])
    exclude: list[str] = Field(default_factory=lambda: [".venv/**", "venv/**", "node_modules/**", ".git/**"])
    reporters: list[str] = Field(default_factory=lambda: ["console"])
    output_dir: str = ".agentest"
    keep_runs: AtLeastOne = 20
    """Number of runs to store in `output_dir`. Older runs are removed."""
    baseline: str | None = Field(default=None, min_length=1)
    """The run to compare each run with: an id, a folder or a file."""
    fail_on_regression: bool = False
    """If true, a regression fails the run."""
    cache: bool = True
    """If true, models are not asked again what they have answered today, except in CI."""
    cassettes: str | None = None
    """Folder of recorded model responses. None: `cassettes` in `output_dir`."""
    unmocked_tools: Literal["error", "passthrough", "simulate"] = "error"
    strict: bool = True
    """If true, a warning that questions a verdict makes its scenario errored. Evaluation sets are strict
    only if this is set explicitly."""
    redact_transcripts: bool = True
    """If true, known secrets are hidden in messages of agents and tools."""
    redact: dict[str, str] = Field(default_factory=dict)
    """Name → regular expression of personal data that `agentest import` replaces in traces, too."""
    fail_on_error_severity: Literal["low", "medium", "high", "critical"] = "high"
    explore: ExploreSettings = Field(default_factory=ExploreSettings)
    plugins: list[str] = Field(default_factory=list)
    """Modules whose `plugin` hands in features, such as types of agents, besides installed packages."""

    @model_validator(mode="before")
    @classmethod
    def _compare_overrides(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("compare"), list):
            return data
        agent = data.get("agent")
        agents = [apply_override(agent, entry, f"compare[{i}]") for i, entry in enumerate(data["compare"])]
        return {**data, "compare": agents}

    @model_validator(mode="before")
    @classmethod
    def _agents_know_their_names(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("agents"), Mapping):
            return data
        named = {
            key: {"name": key, **agent} if isinstance(agent, Mapping) else agent
            for key, agent in data["agents"].items()
        }
        return {**data, "agents": named}

    @model_validator(mode="before")
    @classmethod
    def _plugins_first(cls, data: Any) -> Any:
        read_plugins(data)
        return data

    @model_validator(mode="after")
    def _one_number_of_conversations(self) -> Self:
        if self.repeat and "conversations_per_scenario" in self.model_fields_set:
            raise ValueError(EXCLUDES)
        return self

    @field_validator("agent", "agents", "compare")
    @classmethod
    def _bodies_can_be_sent(cls, value: Any) -> Any:
        agents = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        for agent in agents:
            agent.check_can_be_sent()
        return value

    @field_validator("reporters")
    @classmethod
    def _known_reporters(cls, value: list[str]) -> list[str]:
        parse_reports(value, Path())
        return value

    @field_validator("redact")
    @classmethod
    def _regular_expressions(cls, value: dict[str, str]) -> dict[str, str]:
        for name, pattern in value.items():
            with errors_as(ValueError, f"{name}: {pattern!r} is not a regular expression: ", re.error):
                re.compile(pattern)
        return value

    @field_validator("metrics")
    @classmethod
    def _either_spelling_of_metrics(cls, value: list[str] | None) -> list[str] | None:
        return None if value is None else [metric_name(name) for name in value]

    @model_validator(mode="after")
    def _distinct_agent_names(self) -> Self:
        names = [self.agent.name, *(agent.name for agent in self.compare)]
        for name in names:
            if names.count(name) > 1 and self.compare:
                raise ValueError(f"compare: two agents are named {name!r}; results are listed by name")
        for agent in (self.agent, *self.compare):
            namesake = self.agents.get(agent.name)
            if namesake and namesake.model_dump(exclude={"name"}) != agent.model_dump(exclude={"name"}):
                raise ValueError(f"agents.{agent.name}: the agent under test has that name already")
        return self

    @model_validator(mode="after")
    def _each_server_once(self) -> Self:
        ready = {server.ready for server in self.servers}
        for agent in (self.agent, *self.agents.values(), *self.compare):
            if agent.server and agent.server.ready in ready:
                raise ValueError(
                    f"`servers` and the `server` of agent {agent.name!r} start what answers at "
                    f"{agent.server.ready}: leave one of them out"
                )
        return self

    @property
    def severity(self) -> Severity:
        return Severity.of(self.fail_on_error_severity)


def read_plugins(data: Any, locate: Callable[[int], str] = "plugins[{}]".format) -> None:
    """Read the plug-ins that a configuration names. Raises PluginError, which begins with the place.

    Args:
        locate: formats the place of one of them.
    """
    named = data.get("plugins") if isinstance(data, Mapping) else None
    for at, module in enumerate(named if isinstance(named, list | tuple) else ()):
        if isinstance(module, str):
            try:
                PLUGINS.add(module, "configuration")
            except PluginError as error:
                raise PluginError(f"{locate(at)}: {error}") from error


def apply_override(agent: Any, entry: Any, key: str = "compare") -> Any:
    """Return a complete agent for an entry of `compare`: its `body` and `model_gateway` are merged with those
    of the agent, other keys are replaced.

    An entry with its own `type` is already complete.
    """
    if not isinstance(entry, Mapping):
        return entry
    keys = agent_keys([type_name(agent), type_name(entry)])
    entry = snake_keys(entry, keys)
    if not entry.get("name"):
        raise ValueError(f"{key}: needs a `name`; results are listed by name")
    if "type" in entry:
        return entry
    if isinstance(agent, BaseModel):
        agent = agent.model_dump(exclude_unset=True, by_alias=True)
    base = snake_keys(agent, keys) if isinstance(agent, Mapping) else {}
    if entry.keys() & _INSTRUCTIONS:
        base = {key: value for key, value in base.items() if key not in _INSTRUCTIONS}
    merged = {**base, **entry}
    if isinstance(base.get("body"), Mapping) and isinstance(entry.get("body"), Mapping):
        merged["body"] = {**base["body"], **entry["body"]}
    gateways = base.get("model_gateway"), entry.get("model_gateway")
    if all(isinstance(gateway, Mapping) for gateway in gateways):
        merged["model_gateway"] = _merged_gateway(*gateways)
    elif gateways[0] and gateways[1] is True:
        merged["model_gateway"] = gateways[0]
    return merged


def _merged_gateway(base: Any, entry: Any) -> dict[str, Any]:
    base, entry = (snake_keys(each, ModelGateway.model_fields) for each in (base, entry))
    merged = {**base, **entry}
    for key, fields in (("override", Override.model_fields), ("upstream", ())):
        if isinstance(base.get(key), Mapping) and isinstance(entry.get(key), Mapping):
            merged[key] = {**snake_keys(base[key], fields), **snake_keys(entry[key], fields)}
    return merged
