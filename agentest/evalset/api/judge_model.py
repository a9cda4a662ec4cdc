"""The judge of an evaluator that is used alone, outside of any run."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentest.config.agents import CustomAgent
from agentest.config.config import Config
from agentest.config.models import JudgeSettings, ProviderOptions
from agentest.errors import ConfigError
from agentest.evalset.api.in_process import warn
from agentest.evalset.formats.criteria import Criterion
from agentest.evalset.planning import loaded_with
from agentest.llm.live import Patience
from agentest.llm.open import ModelTerms, open_models, scripted
from agentest.llm.port import ChatModel, Ledger, Model
from agentest.llm.providers import ModelSpec, resolve
from agentest.run.prepare import MODEL_VARIABLE
from agentest.support.spelling import snake_keys


@asynccontextmanager
async def judge_for(criterion: Criterion, given: Model | ChatModel | None) -> AsyncIterator[Model | None]:
    """The judge that is given; else the one that the criterion names; else the configured one, if any.

    Raises ConfigError for a model that cannot be asked.
    """
    if given is not None:
        yield _as_model(given)
        return
    spec = _spec(criterion, Path.cwd(), os.environ)
    async with open_models(None, spec, ModelTerms()) as models:
        yield models.judge


def _as_model(given: Any) -> Model:
    """A model of `agentest.testing`, or one that is open already."""
    model: Model = given if hasattr(given, "ask") else scripted(given, Ledger(), Patience(retries=0))
    return model


def _spec(criterion: Criterion, root: Path, environ: MutableMapping[str, str]) -> ModelSpec | None:
    config = loaded_with(CustomAgent(type="custom", handler=str), root, environ=environ).config
    judge = config.judge.model_copy(update=_sampling(criterion))
    override = environ.get(MODEL_VARIABLE) or None
    if criterion.judge_model is None:
        return resolve(config, judge, environ, override)
    try:
        return _named(criterion.judge_model, config, judge, environ)
    except ConfigError as error:
        configured = resolve(config, judge, environ, override)
        if configured is None:
            raise
        warn([f"{error}; {configured.name}, which is configured, is asked in its place"])
        return configured


def _sampling(criterion: Criterion) -> dict[str, Any]:
    """What `judge_model_config` says of the answers. Other keys of it have no place in our requests."""
    options = snake_keys(criterion.written, ("judge_model_options",)).get("judge_model_options") or {}
    config = snake_keys(options, ("judge_model_config",)).get("judge_model_config") or {}
    known = {"temperature": "temperature", "max_output_tokens": "max_tokens"}
    given = snake_keys(config, known)
    unknown = sorted(given.keys() - known)
    if unknown:
        warn([f"judge_model_config: {', '.join(unknown)} are not sent to the judge"])
    return {known[key]: value for key, value in given.items() if key in known}


def _named(
    model: str, config: Config, judge: JudgeSettings, environ: MutableMapping[str, str]
) -> ModelSpec | None:
    """The model that the criterion names. What is configured may be another provider's key."""
    elsewhere = {"model": None, "provider": None, "provider_options": ProviderOptions()}
    settings = judge.model_copy(update={**elsewhere, "model": model})
    return resolve(config.model_copy(update=elsewhere), settings, environ)
