"""What the configuration says of the models that play the user and the judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from agentest.config.fields import (
    AtLeastOne,
    NotNegative,
    Section,
    check_headers,
    check_json,
    check_url,
    no_bool,
)

PROVIDERS = ("openai", "anthropic", "google", "ollama", "openai-compatible", "litellm")


class ProviderOptions(Section):
    """Where and as whom to reach a model."""

    base_url: str | None = None
    api_key: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    body: dict[str, Any] = Field(default_factory=dict)

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
    temperature: Annotated[float, BeforeValidator(no_bool), Field(ge=0, allow_inf_nan=False)] | None = None
    max_tokens: AtLeastOne | None = None
    timeout_ms: AtLeastOne = 120_000
    """One request to the model, from connect to the last byte."""
    deadline_ms: AtLeastOne = 600_000
    """One answer with all its retries and pauses; not what it waits for a place among others."""
    retries: NotNegative = 4
    max_concurrency: AtLeastOne | None = None
    requests_per_minute: AtLeastOne | None = None
    tokens_per_minute: AtLeastOne | None = None


class UserSettings(ModelSettings):
    """The model that plays the user."""

    check: bool = False
    """Whether a judge looks at each conversation for what the simulated user did against its role. One in
    which it did is held again once, and errored if that happens again."""


class Batch(StrEnum):
    """How much a judge is asked in one call."""

    OFF = "off"
    """One metric of one turn."""
    TURN = "turn"
    """Everything about a turn; goal and criteria at the end."""
    CONVERSATION = "conversation"
    """Everything about a conversation, eight turns a call."""


class ConfirmSettings(ModelSettings):
    """The model that confirms judgements which would fail a scenario. A name alone is its `model`."""

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
    """The judges' model. `samples` answers are asked for each metric."""

    temperature: Annotated[float, BeforeValidator(no_bool), Field(ge=0, allow_inf_nan=False)] | None = 0.0
    """Left out where it is not set and the model is known to refuse it; null: never sent."""
    samples: AtLeastOne = 1
    batch: Batch = Batch.TURN
    skip_decided: bool = False
    """Whether judges wait for the end of a conversation, and are not asked where its verdict is certain
    without them."""
    cache: bool = True
    """Mark the part that a turn's judges share, for providers that cache prompts only on request."""
    confirm: ConfirmSettings | None = None
    """A second model that must agree before a judgement can fail a scenario."""

    @property
    def of_confirming(self) -> JudgeSettings | None:
        """The settings of the confirming model: what they leave out has a judge's defaults."""
        if self.confirm is None:
            return None
        given = {name: getattr(self.confirm, name) for name in self.confirm.model_fields_set}
        return JudgeSettings.model_validate(given)

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
    """What shapes a model's answers besides the question; None leaves it to the model."""

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    top_k: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def given(self) -> dict[str, Any]:
        """Those that are given, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


NO_SAMPLING = Sampling()


@dataclass(frozen=True, slots=True)
class ModelWish:
    """A model that a file names, and how it is to answer. Equal wishes are answered by one model.

    Whether it can be asked is known when the run is prepared; else the configured model of the role answers.
    """

    role: Literal["user", "judge"]
    model: str | None = None
    """As it is written, in whatever spelling; None: the configured model, with this sampling."""
    sampling: Sampling = NO_SAMPLING
    file: str = field(default="", compare=False)
    key: str = field(default="", compare=False)
    """Where in the file it stands."""
    metric: str | None = field(default=None, compare=False)
    """Whose judge it is."""
    not_sent: tuple[str, ...] = field(default=(), compare=False)
    """Keys of the model's configuration that have no place in our requests."""

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"{self.file}: {self.key}"
