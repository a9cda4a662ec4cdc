"""Objects of a criteria file, and its options of the judges."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from agentest.adk.formats.model_config import ModelConfig
from agentest.support.spelling import snake_case, snake_keys


def _keys(section: type[BaseModel], values: Any) -> Any:
    """Keys of either spelling as the section's own. Others are ignored, unless they look misspelled."""
    if not isinstance(values, Mapping):
        return values
    named = snake_keys(values, section.model_fields)
    for key in (key for key in named if key not in section.model_fields):
        meant = difflib.get_close_matches(snake_case(str(key)), section.model_fields, n=1, cutoff=0.6)
        if meant:
            raise ValueError(f"unknown key `{key}`; did you mean `{meant[0]}`?")
    return named


class CriteriaObject(BaseModel):
    """An object of the file. Strict: a text or a boolean is not a number."""

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
"""A model's name, in ADK's spelling or in LiteLLM's."""


class Judges(CriteriaObject):
    """Who judges, and how often: in the criterion itself, or under `judge_model_options` as in google-adk."""

    judge_model: ModelName | None = None
    judge_model_config: ModelConfig | None = None
    num_samples: Annotated[int, Field(ge=1)] | None = None
    parallelism_limit: Annotated[int, Field(ge=1)] | None = None

    def merged(self, options: Judges) -> Judges:
        """These and those options. Raises ValueError for one that is given by both."""
        own, theirs = ({name: getattr(o, name) for name in Judges.model_fields} for o in (self, options))
        for name, value in own.items():
            if None not in (value, theirs[name]):
                raise ValueError(f"`{name}` is given twice, here and in `judge_model_options`; give it once")
        return Judges.model_construct(**{n: theirs[n] if v is None else v for n, v in own.items()})


class JudgeOptions(Judges):
    """`judge_model_options`: the options and nothing else."""

    model_config = ConfigDict(extra="forbid")
