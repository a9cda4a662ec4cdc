"""Settings of the models that simulate users and judge conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from agentest.config.fields import AtLeastOne, HttpHeaders, NotNegative, Section, Url, check_json, no_bool
from agentest.support.lazy_dataclasses import dataclass

PROVIDERS = ("openai", "anthropic", "google", "ollama", "openai-compatible", "litellm")


class ProviderOptions(Section):
    """The address and credentials of a model."""

    base_url: Url | None = None
    api_key: str | None = None
    headers: HttpHeaders = Field(default_factory=dict)
    body: Annotated[dict[str, Any], AfterValidator(check_json)] = Field(default_factory=dict)


class ModelSettings(Section):
    """A model and its request settings."""

    model: str | None = Field(default=None, min_length=1)
    provider: Literal[PROVIDERS] | None = None  # type: ignore[valid-type]
    provider_options: ProviderOptions = Field(default_factory=ProviderOptions)
    temperature: Annotated[float, BeforeValidator(no_bool), Field(ge=0, allow_inf_nan=False)] | None = None
    max_tokens: AtLeastOne | None = None
    timeout_ms: AtLeastOne = 120_000
    """Time limit of one request, in milliseconds, from connecting to the last byte."""
    deadline_ms: AtLeastOne = 600_000
    """Time limit of one response, in milliseconds, with retries and pauses, but without rate-limit waits."""
    retries: NotNegative = 4
    max_concurrency: AtLeastOne | None = None
    requests_per_minute: AtLeastOne | None = None
    tokens_per_minute: AtLeastOne | None = None
    pool: str | None = None
    """Models of one endpoint and key with the same pool share one quota."""


class UserSettings(ModelSettings):
    """The model that simulates the user."""

    check: bool | None = None
    """If true, a judge checks whether the simulated user broke its role. Such a conversation is run again
    once, and is errored if it happens again. By default, strict runs only check whether the user left its
    role, and run nothing again."""

    def checked_attempts(self, *, strict: bool) -> int:
        """Return how many attempts at a conversation are checked: two with `check`, or one by default."""
        return int(strict) if self.check is None else 2 * self.check


class Batch(StrEnum):
    """How much a judge evaluates per request."""

    OFF = "off"  # one metric of one turn
    TURN = "turn"  # all metrics of a turn; the goal and criteria at the end
    CONVERSATION = "conversation"  # all metrics of a conversation, eight turns per request


class ConfirmSettings(ModelSettings):
    """A second model that confirms failing judgements. A plain string sets its `model`."""

    @model_validator(mode="before")
    @classmethod
    def _name_is_model(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"model": data}
        if not isinstance(data, Mapping | ModelSettings):
            raise ValueError(
                f"is {data!r:.80}; write `confirm: provider/model`, or a mapping with the key `model`"
            )
        return data

    @model_validator(mode="after")
    def _names_a_model(self) -> Self:
        if self.model is None and self.provider is None:
            raise ValueError("names no model; write `confirm: provider/model`, or add the key `model`")
        return self


class JudgeSettings(ModelSettings):
    """The judges' model. Each metric gets `samples` responses."""

    temperature: Annotated[float, BeforeValidator(no_bool), Field(ge=0, allow_inf_nan=False)] | None = 0.0
    """Omitted if it is not set and the model is known to reject it. Null: never sent."""
    samples: AtLeastOne = 1
    batch: Batch = Batch.TURN
    skip_decided: bool = False
    """If true, judges wait for the end of a conversation and are skipped if its verdict is certain."""
    context: AtLeastOne | None = None
    """Maximum tokens of a prompt. Longer transcripts are shortened, and prompts and reasons say so."""
    cache: bool = True
    """Mark the prompt prefix that a turn's judges share, for providers that cache only on request."""
    confirm: ConfirmSettings | None = None
    """A second model that must agree before a judgement can fail a scenario."""

    @property
    def of_confirming(self) -> JudgeSettings | None:
        """The settings of the confirming model, with the defaults of a judge."""
        if self.confirm is None:
            return None
        overrides = {name: getattr(self.confirm, name) for name in self.confirm.model_fields_set}
        return JudgeSettings.model_validate(overrides)

    @field_validator("batch", mode="before")
    @classmethod
    def _true_means_turn(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return Batch.TURN if value else Batch.OFF
        if value in tuple(Batch):
            return value
        raise ValueError(f"is {value!r:.80}; write false, turn (or true), or conversation")

    @field_validator("samples")
    @classmethod
    def _odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError("must be odd, so that a majority exists")
        return value


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. None leaves a parameter to the model."""

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    top_k: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def set_parameters(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


NO_SAMPLING = Sampling()


@dataclass(frozen=True, slots=True)
class RequestedModel:
    """A model that a file names, with its sampling. Equal requests share one model.

    When the run is prepared, the role's configured model replaces a model that is not available.
    """

    role: Literal["user", "judge"]
    model: str | None = None
    """The name as written. None: the configured model, with this sampling."""
    sampling: Sampling = NO_SAMPLING
    file: str = field(default="", compare=False)
    key: str = field(default="", compare=False)
    """The position in the file."""
    metric: str | None = field(default=None, compare=False)
    """The metric that this model judges."""
    not_sent: tuple[str, ...] = field(default=(), compare=False)
    """Keys of the model's configuration that requests cannot carry."""

    @property
    def location(self) -> str:
        """The position, formatted for messages."""
        return f"{self.file}: {self.key}"
