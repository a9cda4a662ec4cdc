"""Judge options of a criteria file, and the base class of its objects."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from agentest.config.models import Sampling
from agentest.support.text import snake_case, snake_keys

NOT_SENT = frozenset(
    {
        "audio_timestamp",
        "audio_transcription_config",
        "automatic_continuation",
        "automatic_function_calling",
        "cached_content",
        "candidate_count",
        "continuation_token",
        "enable_enhanced_civic_answers",
        "generation_output_config",
        "http_options",
        "image_config",
        "labels",
        "logprobs",
        "media_resolution",
        "model_armor_config",
        "model_selection_config",
        "response_json_schema",
        "response_logprobs",
        "response_mime_type",
        "response_modalities",
        "response_schema",
        "routing_config",
        "safety_settings",
        "service_tier",
        "should_return_http_response",
        "speech_config",
        "stop_sequences",
        "store",
        "system_instruction",
        "thinking_config",
        "tool_config",
        "tools",
    }
)
"""Keys that only Gemini's API has, or that would change the question or the format of its answer."""


class ModelConfig(BaseModel):
    """`judge_model_config` and `model_configuration`. Keys in either spelling; unknown keys are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[float, Field(ge=1)] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    not_sent: tuple[str, ...] = Field(default=(), strict=False)
    """Known keys that are not sent."""

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        sent = cls.model_fields.keys() - {"not_sent"}
        known = sent | NOT_SENT
        named = snake_keys(values, known)
        for key in named.keys() - known:
            raise ValueError(_unknown(str(key), known))
        options = {key: value for key, value in named.items() if key in sent}
        left_out = sorted(key for key in named.keys() & NOT_SENT if named[key] is not None)
        return {**options, "not_sent": left_out}

    @model_validator(mode="after")
    def _one_length(self) -> ModelConfig:
        if (
            None not in (self.max_output_tokens, self.max_tokens)
            and self.max_output_tokens != self.max_tokens
        ):
            raise ValueError("`max_output_tokens` and `max_tokens` are one setting; give one of them")
        return self

    @property
    def sampling(self) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            max_tokens=self.max_output_tokens or self.max_tokens,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
        )


def _unknown(key: str, known: set[str] | frozenset[str]) -> str:
    close = difflib.get_close_matches(snake_case(key), sorted(known), n=1, cutoff=0.5)
    advice = f"did you mean `{close[0]}`?" if close else "give `temperature`, `max_output_tokens` or `top_p`"
    return f"unknown key `{key}`; {advice}"


def _keys(section: type[BaseModel], values: Any) -> Any:
    """Rename keys to the section's names. Unknown keys are ignored unless they look misspelled."""
    if not isinstance(values, Mapping):
        return values
    named = snake_keys(values, section.model_fields)
    for key in (key for key in named if key not in section.model_fields):
        matches = difflib.get_close_matches(snake_case(str(key)), section.model_fields, n=1, cutoff=0.6)
        if matches:
            raise ValueError(f"unknown key `{key}`; did you mean `{matches[0]}`?")
    return named


class CriteriaObject(BaseModel):
    """An object of a criteria file. Strict: numbers cannot be given as text or booleans."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _either_spelling(cls, values: Any) -> Any:
        return _keys(cls, values)


def _a_name(value: str) -> str:
    if not value.isprintable() or not all(part.strip() for part in value.split("/")):
        raise ValueError("must be the name of a model, like gemini-2.5-flash or openai/gpt-4")
    return value


ModelName = Annotated[str, Field(min_length=1), AfterValidator(_a_name)]
"""A model's name in ADK's or LiteLLM's spelling."""


class JudgeSelection(CriteriaObject):
    """The judge and its number of samples: in the criterion, or in `judge_model_options` as in google-adk."""

    judge_model: ModelName | None = None
    judge_model_config: ModelConfig | None = None
    num_samples: Annotated[int, Field(ge=1)] | None = None
    parallelism_limit: Annotated[int, Field(ge=1)] | None = None

    def merged(self, options: JudgeSelection) -> JudgeSelection:
        """Merge both options. Raises ValueError if both set the same one."""
        mine, theirs = (
            {name: getattr(o, name) for name in JudgeSelection.model_fields} for o in (self, options)
        )
        for name, value in mine.items():
            if None not in (value, theirs[name]):
                raise ValueError(f"`{name}` is given twice, here and in `judge_model_options`; give it once")
        return JudgeSelection.model_construct(**{n: theirs[n] if v is None else v for n, v in mine.items()})


class JudgeModelOptions(JudgeSelection):
    """The judge of a metric, as a criterion's `judge_model_options`. Other keys are refused."""

    model_config = ConfigDict(extra="forbid")
