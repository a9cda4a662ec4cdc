"""The configuration: its keys, defaults and rules (contract, section 1).

Values only; `load` finds and reads the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from agentest.jsonvalue import NotJson, check_plain
from agentest.metric_names import BUILTIN
from agentest.results import Severity
from agentest.sight import OF_TYPE, Sight
from agentest.spelling import did_you_mean, snake_case, snake_keys

PROVIDERS = ("openai", "anthropic", "google", "ollama", "openai-compatible", "litellm")
REPORTERS = ("console", "json", "github-actions")

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is expected, not true or false")
    return value


AtLeastOne = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
NotNegative = Annotated[int, BeforeValidator(_no_bool), Field(ge=0)]
Number = Annotated[float, BeforeValidator(_no_bool)]


class Section(BaseModel):
    """A part of the configuration: keys in either spelling, unknown keys refused, values frozen."""

    # Built when first used: the configuration as a whole, and not each of its parts before it.
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _either_spelling(cls, data: Any) -> Any:
        return snake_keys(data, cls.model_fields) if isinstance(data, Mapping) else data


def check_headers(headers: dict[str, str]) -> dict[str, str]:
    """Refuse header names and values that HTTP does not allow; values are never repeated in the message."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid header name")
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(
                f"the value of header {name!r} has a line break or another character that HTTP does not "
                "allow (does the variable it comes from end with a line break?)"
            )
    return headers


def check_json(body: dict[str, Any]) -> None:
    """Raise ValueError for what cannot be sent as JSON, like the date that YAML makes of 2024-01-31."""
    try:
        check_plain(body)
    except NotJson as error:
        raise ValueError(f"cannot be sent as JSON: {error} (write it as a text, in quotes)") from None


class Server(Section):
    """How to start the agent before the first scenario."""

    command: str | list[str]
    ready: str
    timeout_s: Annotated[float, BeforeValidator(_no_bool), Field(gt=0, allow_inf_nan=False)] = 60.0
    reuse: bool = True
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None

    @field_validator("command")
    @classmethod
    def _not_empty(cls, value: str | list[str]) -> str | list[str]:
        if not value or (isinstance(value, str) and not value.strip()):
            raise ValueError("is empty; write the command that starts the agent")
        return value

    @field_validator("ready")
    @classmethod
    def _reachable_form(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https", "tcp") or not parts.hostname:
            raise ValueError("is neither an http(s) URL nor tcp://host:port")
        if not _has_valid_port(parts) or (parts.scheme == "tcp" and parts.port is None):
            raise ValueError("needs a port: tcp://host:port")
        return value


class AnyAgent(Section):
    """What every agent has."""

    name: str = Field(default="agent", min_length=1)
    tool_visibility: Sight | None = None
    """How its tool calls come to be known; None: as its type says (`sight_of`)."""
    server: Server | None = None


class HttpAgent(AnyAgent):
    """What every agent over HTTP has."""

    endpoint: str
    headers: dict[str, str] = {}
    streaming: bool = False
    retries: NotNegative = 2

    @field_validator("endpoint")
    @classmethod
    def _http_url(cls, value: str) -> str:
        return check_url(value)

    @field_validator("headers")
    @classmethod
    def _valid_headers(cls, value: dict[str, str]) -> dict[str, str]:
        return check_headers(value)


class ChatCompletionsAgent(HttpAgent):
    """An agent that speaks OpenAI's chat completions over HTTP."""

    type: Literal["chat_completions"] = "chat_completions"
    body: dict[str, Any] = {}
    send_session_state: bool = False
    """Send the state of a case's session as `metadata.session_state`."""

    @field_validator("body")
    @classmethod
    def _messages_are_a_list(cls, value: dict[str, Any]) -> dict[str, Any]:
        messages = value.get("messages", [])
        if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
            raise ValueError("`messages` is put before the conversation and must be a list of messages")
        return value

    @model_validator(mode="after")
    def _state_has_a_place(self) -> Self:
        if self.send_session_state and not isinstance(self.body.get("metadata", {}), Mapping):
            raise ValueError("body.metadata must be an object: send_session_state puts session_state into it")
        return self


class AdkAgent(HttpAgent):
    """An agent of Google's ADK behind its own server (`adk api_server`)."""

    type: Literal["adk"]
    app_name: str | None = Field(default=None, min_length=1)
    """None: the one that the case's session names."""
    user_id: str | None = Field(default=None, min_length=1)
    """None: the one that the case's session names, else `agentest`."""

    @field_validator("app_name", "user_id")
    @classmethod
    def _part_of_an_address(cls, value: str | None) -> str | None:
        if value in (".", ".."):
            raise ValueError("becomes a part of an address, where . and .. stand for other parts")
        return value

    @field_validator("endpoint")
    @classmethod
    def _root_of_the_server(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.query or parts.fragment or parts.path.rstrip("/").endswith(("/run", "/run_sse")):
            raise ValueError("is the address of the ADK server alone, like http://localhost:8000")
        return value

    @field_validator("tool_visibility")
    @classmethod
    def _runs_its_tools_itself(cls, value: Sight | None) -> Sight | None:
        if value is Sight.RETURNED:
            raise ValueError(
                "an agent behind ADK's server runs its tools itself and hands no call to the caller; write "
                "`reported` (the default) or `unseen`"
            )
        return value


class CustomAgent(AnyAgent):
    """An agent in Python: a function from messages to a message."""

    type: Literal["custom"]
    handler: Callable[..., Any] | str
    """An async or plain function `(messages, ctx) -> message | str`, or its import path `pkg.module:name`."""


def _agent_type(value: Any) -> str:
    given = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return "chat_completions" if given is None else str(given)


AgentConfig = Annotated[
    Annotated[ChatCompletionsAgent, Tag("chat_completions")]
    | Annotated[AdkAgent, Tag("adk")]
    | Annotated[CustomAgent, Tag("custom")],
    Discriminator(_agent_type),
]
AGENT_CLASSES = (ChatCompletionsAgent, AdkAgent, CustomAgent)
AGENT_TYPES = ("chat_completions", "adk", "custom")
"""The types of these classes, in their order."""
AGENT_KEYS = frozenset(name for kind in AGENT_CLASSES for name in kind.model_fields)
"""The keys of every type together."""


def sight_of(agent: AgentConfig) -> Sight:
    """How the agent's tool calls come to be known."""
    return agent.tool_visibility or OF_TYPE[agent.type]


class ProviderOptions(Section):
    """Where and as whom to reach a model."""

    base_url: str | None = None
    api_key: str | None = None
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}

    @field_validator("base_url")
    @classmethod
    def _http_url(cls, value: str | None) -> str | None:
        return value if value is None else check_url(value)

    @field_validator("headers")
    @classmethod
    def _valid_headers(cls, value: dict[str, str]) -> dict[str, str]:
        return check_headers(value)

    @field_validator("body")
    @classmethod
    def _can_be_sent(cls, value: dict[str, Any]) -> dict[str, Any]:
        check_json(value)
        return value


class ModelSettings(Section):
    """A model and how it is asked."""

    model: str | None = Field(default=None, min_length=1)
    provider: Literal[PROVIDERS] | None = None  # type: ignore[valid-type]
    provider_options: ProviderOptions = Field(default_factory=ProviderOptions)
    temperature: Annotated[float, BeforeValidator(_no_bool), Field(ge=0, allow_inf_nan=False)] | None = None
    max_tokens: AtLeastOne | None = None
    timeout_ms: AtLeastOne = 120_000
    """One request to the model, from connect to the last byte."""
    deadline_ms: AtLeastOne = 600_000
    """One answer with all its retries and waiting."""
    retries: NotNegative = 4
    max_concurrency: AtLeastOne | None = None
    requests_per_minute: AtLeastOne | None = None
    tokens_per_minute: AtLeastOne | None = None


class JudgeSettings(ModelSettings):
    """The judges' model. `samples` answers are asked for each metric."""

    samples: AtLeastOne = 1
    batch: bool = False
    """Ask for all 1–5 metrics of a turn in one call."""
    cache: bool = True
    """Mark the part that a turn's judges share for providers that cache prompts only when told to."""

    @field_validator("samples")
    @classmethod
    def _odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError("must be odd, so that a majority exists")
        return value


class Config(Section):
    """Everything a run needs to know besides its scenarios."""

    agent: AgentConfig
    agents: dict[str, AgentConfig] = Field(default_factory=dict)
    compare: list[AgentConfig] = Field(default_factory=list)
    model: str | None = Field(default=None, min_length=1)
    provider: Literal[PROVIDERS] | None = None  # type: ignore[valid-type]
    provider_options: ProviderOptions = Field(default_factory=ProviderOptions)
    user: ModelSettings = Field(default_factory=ModelSettings)
    judge: JudgeSettings = Field(default_factory=JudgeSettings)
    conversations_per_scenario: AtLeastOne = 3
    max_turns: AtLeastOne = 8
    request_timeout_ms: AtLeastOne = 30_000
    concurrency: AtLeastOne = 20
    debounce_ms: NotNegative = 0
    metrics: list[str] | None = None
    custom_metrics: list[Any] = Field(default_factory=list)
    thresholds: dict[str, Number] = Field(default_factory=dict)
    include: list[str] = Field(default_factory=lambda: ["**/*.sim.py"])
    exclude: list[str] = Field(default_factory=lambda: [".venv/**", "venv/**", "node_modules/**", ".git/**"])
    reporters: list[str] = Field(default_factory=lambda: ["console"])
    output_dir: str = ".agentest"
    cassettes: str | None = None
    """Folder of recorded model answers; None: `cassettes` in `output_dir`."""
    unmocked_tools: Literal["error", "passthrough"] = "error"
    fail_on_error_severity: Literal["low", "medium", "high", "critical"] = "critical"

    @model_validator(mode="before")
    @classmethod
    def _compare_overrides(cls, data: Any) -> Any:
        """Turn each entry of `compare` into a whole agent."""
        if not isinstance(data, Mapping) or not isinstance(data.get("compare"), list):
            return data
        agent = data.get("agent")
        whole = [override(agent, entry, f"compare[{i}]") for i, entry in enumerate(data["compare"])]
        return {**data, "compare": whole}

    @model_validator(mode="before")
    @classmethod
    def _agents_know_their_names(cls, data: Any) -> Any:
        """An entry of `agents` is named by its key."""
        if not isinstance(data, Mapping) or not isinstance(data.get("agents"), Mapping):
            return data
        named = {
            key: {"name": key, **agent} if isinstance(agent, Mapping) else agent
            for key, agent in data["agents"].items()
        }
        return {**data, "agents": named}

    @field_validator("agent", "agents", "compare")
    @classmethod
    def _bodies_can_be_sent(cls, value: Any) -> Any:
        agents = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        for agent in agents:
            if isinstance(agent, ChatCompletionsAgent):
                try:
                    check_json(agent.body)
                except ValueError as error:
                    raise ValueError(f"the body of {agent.name!r} {error}") from None
        return value

    @field_validator("reporters")
    @classmethod
    def _known_reporters(cls, value: list[str]) -> list[str]:
        return [check_name(name, REPORTERS, "reporter") for name in value]

    @field_validator("metrics")
    @classmethod
    def _either_spelling_of_metrics(cls, value: list[str] | None) -> list[str] | None:
        return None if value is None else [metric_name(name) for name in value]

    @field_validator("thresholds")
    @classmethod
    def _either_spelling_of_thresholds(cls, value: dict[str, float]) -> dict[str, float]:
        return normal_thresholds(value)

    @model_validator(mode="after")
    def _distinct_agent_names(self) -> Self:
        names = [self.agent.name, *(agent.name for agent in self.compare)]
        for name in names:
            if names.count(name) > 1 and self.compare:
                raise ValueError(f"compare: two agents are named {name!r}; names tell the results apart")
        for agent in (self.agent, *self.compare):
            namesake = self.agents.get(agent.name)
            if namesake and namesake.model_dump(exclude={"name"}) != agent.model_dump(exclude={"name"}):
                raise ValueError(f"agents.{agent.name}: the agent under test has that name already")
        return self

    @property
    def severity(self) -> Severity:
        return Severity.of(self.fail_on_error_severity)


def check_url(value: str) -> str:
    """An http or https URL with a host; anything else raises ValueError."""
    if any(c.isspace() or not c.isprintable() for c in value):
        raise ValueError("is not a URL: it has a space, a line break or another invisible character")
    try:
        parts = urlsplit(value)
        port_is_valid = _has_valid_port(parts)
        _check_international(value)
    except ValueError as error:
        raise ValueError(f"is not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"must start with http:// or https://, but is {value!r}")
    if not parts.hostname or not port_is_valid:
        raise ValueError(f"has no valid host and port: {value!r}")
    return value


def _has_valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        # The value is not repeated: it may be a part of a password.
        raise ValueError(
            "its port is no number from 1 to 65535 (in a user or password, write / ? # as %2F %3F %23)"
        ) from None


def _check_international(url: str) -> None:
    if url.isascii() and "xn--" not in url:
        return
    import httpx  # a tenth of a second to import: only for who uses such a name

    try:
        host = httpx.URL(url).host
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from None
    if not host:
        raise ValueError("it has no host")


def check_name(name: str, valid: tuple[str, ...], what: str) -> str:
    if name not in valid:
        raise ValueError(f"there is no {what} {name!r}; {did_you_mean(name, valid)}")
    return name


def metric_name(name: str) -> str:
    """A built-in metric's name in its own spelling; other names (custom metrics) as they are."""
    snake = snake_case(name)
    return snake if snake in BUILTIN or snake == "pass_rate" else name


def normal_thresholds(given: Mapping[str, float]) -> dict[str, float]:
    """Thresholds under the metrics' own names. Raises ValueError for one that is no finite number."""
    thresholds: dict[str, float] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise ValueError(f"expected the name of a metric, found {name!r}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"the threshold of `{name}` must be a number, but is {value!r}")
        if metric_name(name) in thresholds:
            raise ValueError(f"`{metric_name(name)}` is given twice, in both spellings")
        thresholds[metric_name(name)] = float(value)
    return thresholds


def override(agent: Any, entry: Any, key: str = "compare") -> Any:
    """A whole agent from an entry of `compare`: `body` merged shallowly, everything else replaced.

    An entry with a `type` of its own is a whole agent already.
    """
    if not isinstance(entry, Mapping):
        return entry
    entry = snake_keys(entry, AGENT_KEYS)
    if not entry.get("name"):
        raise ValueError(f"{key}: needs a `name`; names tell the results apart")
    if "type" in entry:
        return entry
    if isinstance(agent, BaseModel):
        agent = agent.model_dump(exclude_unset=True)
    base = snake_keys(agent, AGENT_KEYS) if isinstance(agent, Mapping) else {}
    merged = {**base, **entry}
    if isinstance(base.get("body"), Mapping) and isinstance(entry.get("body"), Mapping):
        merged["body"] = {**base["body"], **entry["body"]}
    return merged
