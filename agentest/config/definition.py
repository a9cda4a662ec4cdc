"""Define a configuration in Python, with the types of its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from pydantic import ValidationError

from agentest.config.config import Config
from agentest.config.errors import describe
from agentest.support.errors import ConfigError
from agentest.support.redaction import Redactor

if TYPE_CHECKING:
    from agentest.config.agents.base import AnyAgent
    from agentest.config.config import ExploreSettings
    from agentest.config.models import JudgeSettings, ProviderOptions, UserSettings
    from agentest.domain.repeat_setting import Repeat

_CALL = Path("define_config")


class RunSettings(TypedDict, total=False):
    """Keys of a configuration besides `agent` and `model`. `Config` has their defaults."""

    agents: Mapping[str, AnyAgent | Mapping[str, Any]]
    compare: Sequence[AnyAgent | Mapping[str, Any]]
    servers: Mapping[str, Any] | Sequence[Any]
    provider: str | None
    provider_options: ProviderOptions | Mapping[str, Any]
    user: UserSettings | Mapping[str, Any]
    judge: JudgeSettings | Mapping[str, Any]
    conversations_per_scenario: int
    repeat: Repeat | Mapping[str, Any] | str | None
    max_turns: int
    request_timeout_ms: int
    concurrency: int
    max_concurrency: int | None
    parallel: bool
    debounce_ms: int
    date: str | None
    metrics: Sequence[str] | None
    custom_metrics: Sequence[Any]
    thresholds: Mapping[str, float]
    include: Sequence[str]
    exclude: Sequence[str]
    reporters: Sequence[str]
    output_dir: str
    keep_runs: int
    baseline: str | None
    fail_on_regression: bool
    cache: bool
    cassettes: str | None
    unmocked_tools: Literal["error", "passthrough", "simulate"]
    strict: bool
    redact_transcripts: bool
    redact: Mapping[str, str]
    fail_on_error_severity: Literal["low", "medium", "high", "critical"]
    explore: ExploreSettings | Mapping[str, Any]
    plugins: Sequence[str]


class ConfigSettings(RunSettings, total=False):
    """All keys of a configuration."""

    agent: AnyAgent | Mapping[str, Any]
    model: str | None


def define_config(mapping: Mapping[str, Any] | None = None, /, **settings: Unpack[ConfigSettings]) -> Config:
    """Return a configuration, as `config` of an agentest.config.py or for `Runner`.

        config = define_config(agent={"endpoint": "http://localhost:8000/v1/chat/completions"}, max_turns=4)

    Keywords take precedence over the keys of a mapping.

    Raises ConfigError that names the key and the expected value.
    """
    try:
        return Config.model_validate({**(mapping or {}), **settings})
    except ValidationError as error:
        raise ConfigError(describe(error, _CALL, {}, Redactor())) from error
