"""Model prices from litellm's table, and unknown prices."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest.domain.transcript import Usage
from agentest.models import budget
from agentest.models.budget import Price, find_price, price_of, read_table


def line(provider: str, prompt: Any = 1e-6, completion: Any = 2e-6, **more: Any) -> dict[str, Any]:
    costs = {"input_cost_per_token": prompt, "output_cost_per_token": completion, **more}
    return {"litellm_provider": provider, **{name: cost for name, cost in costs.items() if cost is not None}}


def found(tmp_path: Path, model: str, **lines: Any) -> Price | None:
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({name.replace("__", "/"): value for name, value in lines.items()}))
    return find_price(read_table(file), model)


@pytest.mark.parametrize(
    "model",
    [
        "openai/gpt-5-mini",
        "anthropic/claude-sonnet-4-5",
        "gemini/gemini-2.5-flash",
        "azure/gpt-4o",
        "bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0",
        "vertex_ai/gemini-2.5-flash",
    ],
)
def test_the_table_of_litellm_knows_common_models(model: str) -> None:
    """The usual spelling of a model finds a price above 0, and output costs more than input."""
    price = price_of(model)
    assert price
    assert 0 < price.cached <= price.prompt < price.completion < 0.01


@pytest.mark.slow
def test_litellm_is_not_imported_for_prices() -> None:
    """Looking up a price imports neither litellm nor its dependencies."""
    code = "import sys; from agentest.models.budget import price_of; assert price_of('openai/gpt-5-mini'); "
    code += "print([m for m in sys.modules if m.split('.')[0] in ('litellm', 'openai', 'tiktoken')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_local_model_is_free_only_if_the_table_says_so() -> None:
    """ollama's llama3 is listed with a price of 0; a custom model is unknown, not free."""
    assert price_of("ollama/llama3") == Price(0, 0, 0)
    for model in ("ollama/my-model", "lm_studio/x", "hosted_vllm/x", "llamafile/x"):
        assert price_of(model) is None


@pytest.mark.parametrize(
    "model", ["", "/", "openai/", "no/such/model", "openai/gpt-5-mini-1999-01-01", "sample_spec"]
)
def test_unlisted_models_are_unknown(model: str) -> None:
    """Dated variants, partial names and the table's sample entry have no price."""
    assert price_of(model) is None


def test_a_name_goes_before_the_name_without_provider(tmp_path: Path) -> None:
    """The entry of the full name takes precedence over that of the short name."""
    lines = {
        "azure__m": line("azure", 5e-6),
        "m": line("azure"),
        "openrouter__openai__m": line("openrouter", 7e-6),
    }
    for model, prompt in (("azure/m", 5e-6), ("openrouter/openai/m", 7e-6), ("m", 1e-6)):
        price = found(tmp_path, model, **lines)
        assert price
        assert price.prompt == prompt


@pytest.mark.parametrize(
    ("model", "provider", "known"),
    [
        ("openai/m", "openai", True),
        ("azure/m", "openai", False),
        ("gemini/m", "vertex_ai-language-models", False),
        ("vertex_ai/m", "vertex_ai-language-models", True),
        ("bedrock/m", "bedrock_converse", True),
        ("cohere/m", "cohere_chat", True),
        ("open/m", "openai", False),
    ],
)
def test_the_short_name_must_be_the_same_providers(
    tmp_path: Path, model: str, provider: str, known: bool
) -> None:
    """The entry of a short name counts only if it has the same provider."""
    assert (found(tmp_path, model, m=line(provider)) is not None) is known


@pytest.mark.parametrize("bad", [None, "1e-6", True, -1e-6, float("nan"), float("inf"), [], {}])
def test_an_entry_without_usable_prices_is_unknown(tmp_path: Path, bad: Any) -> None:
    """A missing or invalid price makes the model unknown, not free."""
    assert found(tmp_path, "m", m=line("openai", prompt=bad)) is None
    assert found(tmp_path, "m", m=line("openai", completion=bad)) is None
    assert found(tmp_path, "m", m=line("openai", cache_read_input_token_cost=bad)) == Price(1e-6, 2e-6, 1e-6)


def test_cached_tokens_cost_what_reading_them_costs() -> None:
    """Cached tokens are a part of the prompt, at their own price."""
    price = Price(prompt=10.0, completion=100.0, cached=1.0)
    assert (
        price.cost(Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=3)) == 2 * 10 + 3 * 1 + 2 * 100
    )
    assert price.cost(Usage()) == 0


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**7))
def test_a_cost_is_never_negative(prompt: int, completion: int, cached: int) -> None:
    """More cached tokens than prompt tokens do not make a cost negative."""
    price = Price(1e-6, 2e-6, 1e-7)
    cost = price.cost(Usage(prompt, completion, cached))
    assert prompt * 1e-7 + completion * 2e-6 <= cost * 1.000001 + 1e-12
    assert cost <= (prompt * 1e-6 + completion * 2e-6) * 1.000001 + 1e-12


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "\udcff", '{"m": 3}', '{"m": null}', "[" * 100_000])
def test_a_broken_table_makes_prices_unknown(tmp_path: Path, text: str) -> None:
    """A table that cannot be read counts as empty."""
    file = tmp_path / "prices.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert read_table(file) == {}


def test_without_litellm_prices_are_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing or broken litellm, or one without the table, breaks nothing."""

    def broken(name: str) -> ModuleSpec:
        raise ValueError("litellm.__spec__ is None")

    empty = ModuleSpec("litellm", None, is_package=True)
    empty.submodule_search_locations = [str(tmp_path)]
    for finder in (lambda name: None, lambda name: ModuleSpec("litellm", None), lambda name: empty, broken):
        monkeypatch.setattr(budget, "find_spec", finder)
        monkeypatch.setattr(budget, "_installed_table", budget._installed_table.__wrapped__)
        assert price_of("openai/gpt-5-mini") is None
        monkeypatch.undo()
