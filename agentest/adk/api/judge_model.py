"""The judge of an evaluator that is used alone, outside of any run."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentest.adk.api.in_process import warn
from agentest.adk.formats.criteria import Criterion
from agentest.adk.planning import loaded_with
from agentest.config.agents.custom import CustomAgent
from agentest.config.wishes import ModelWish
from agentest.models.access import MissingAccess
from agentest.models.live import Patience
from agentest.models.open import ModelTerms, open_models, scripted
from agentest.models.port import ChatModel, Ledger, Model
from agentest.models.providers import ModelSpec, litellm_name, resolve, sampled
from agentest.runner.named_models import Configured, named_models
from agentest.runner.prepare import MODEL_VARIABLE
from agentest.support.errors import ConfigError


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
    override = environ.get(MODEL_VARIABLE) or None
    judge = resolve(config, config.judge, environ, override)
    wish, configured = criterion.judge, Configured(config, environ, None, judge, override)
    if wish is None:
        return judge
    if judge is None and wish.model is not None:
        return _wished(wish, wish.model, configured)
    specs, notes = named_models([wish], configured)
    warn(notes)
    return specs.get(wish, judge)


def _wished(wish: ModelWish, model: str, configured: Configured) -> ModelSpec:
    """The model of the wish, though none is configured: outside a run, whoever names one wants it asked."""
    try:
        return sampled(configured.resolved(wish, litellm_name(model)), wish.sampling)
    except MissingAccess as missing:
        raise ConfigError(
            f"{wish.file}: the judge {model} needs {missing.what}, and no other model is configured"
        ) from None
