"""What a model's tokens cost, by the price table inside the litellm package, which is not imported for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from agentest.domain.transcript import Usage

_TABLE = "model_prices_and_context_window_backup.json"
_EXAMPLE = "sample_spec"
"""Explains the table's fields, all of them 0."""
_ALSO_CALLED = {
    "bedrock": frozenset({"bedrock_converse"}),
    "cohere": frozenset({"cohere_chat"}),
    "openai": frozenset({"text-completion-openai"}),
}
"""Other names in the table for the provider of a prefix, besides the prefix with something after a dash."""


@dataclass(frozen=True, slots=True)
class Price:
    """USD per token, at the standard rate: surcharges for writing a cache or for prompts of more than
    100,000 tokens are not in it."""

    prompt: float
    completion: float
    cached: float

    def cost(self, usage: Usage) -> float:
        """What one call cost. Cached tokens are counted among the prompt's."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        fresh = usage.prompt_tokens - cached
        return fresh * self.prompt + cached * self.cached + usage.completion_tokens * self.completion


@dataclass(frozen=True, slots=True)
class PricedModel:
    """A line of the table."""

    provider: str
    price: Price


def price_of(model: str) -> Price | None:
    """The price of a model in LiteLLM spelling. None: not known, which is not the same as free."""
    return find_price(_installed_table(), model)


def find_price(table: Mapping[str, PricedModel], model: str) -> Price | None:
    """The price under a model's name, or under its name without the provider if it is that provider's."""
    if entry := table.get(model):
        return entry.price
    provider, _, name = model.partition("/")
    entry = table.get(name)
    return entry.price if entry and _is_of(entry, provider) else None


def _is_of(entry: PricedModel, provider: str) -> bool:
    return (
        entry.provider == provider
        or entry.provider.startswith(f"{provider}-")
        or entry.provider in _ALSO_CALLED.get(provider, ())
    )


@cache
def _installed_table() -> Mapping[str, PricedModel]:
    try:
        spec = find_spec("litellm")
    except (ImportError, ValueError):
        return {}
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((read_table(Path(folder, _TABLE)) for folder in folders), {})


def read_table(path: Path) -> Mapping[str, PricedModel]:
    """The entries that have token prices; none where the file is missing or broken."""
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(raw, dict):
        return {}
    entries = {name: _entry(value) for name, value in raw.items() if name != _EXAMPLE}
    return {name: entry for name, entry in entries.items() if entry}


def _entry(raw: Any) -> PricedModel | None:
    if not isinstance(raw, dict):
        return None
    prompt, completion = _usd(raw.get("input_cost_per_token")), _usd(raw.get("output_cost_per_token"))
    if prompt is None or completion is None:
        return None
    cached = _usd(raw.get("cache_read_input_token_cost"))
    price = Price(prompt, completion, prompt if cached is None else cached)
    return PricedModel(str(raw.get("litellm_provider")), price)


def _usd(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) and value >= 0 else None
