"""Resolving models, endpoints and keys from configuration, environment and command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from agentest.config.config import Config
from agentest.models.providers import ModelSpec, identity, litellm_name, resolve
from agentest.runner.plan import Options
from agentest.runner.prepare import RunRequest, prepare
from agentest.support.errors import ConfigError

KEYS = {
    "OPENAI_API_KEY": "sk-openai",
    "ANTHROPIC_API_KEY": "sk-anthropic",
    "GEMINI_API_KEY": "gemini-key",
    "OPENROUTER_API_KEY": "sk-router",
}


def config(**keys: Any) -> Config:
    return Config.model_validate({"agent": {"endpoint": "http://h"}, **keys})


def resolved(
    environ: Mapping[str, str] | None = None, override: str | None = None, role: str = "judge", **keys: Any
) -> ModelSpec:
    made = config(**keys)
    spec = resolve(made, getattr(made, role), KEYS if environ is None else environ, override)
    assert spec is not None
    return spec


@pytest.mark.parametrize(
    ("model", "asked_as", "base_url", "key"),
    [
        ("openai/gpt-5-mini", "gpt-5-mini", "https://api.openai.com/v1", "sk-openai"),
        ("gpt-5-mini", "gpt-5-mini", "https://api.openai.com/v1", "sk-openai"),
        ("o3-mini", "o3-mini", "https://api.openai.com/v1", "sk-openai"),
        ("ollama/llama3.2", "llama3.2", "http://localhost:11434/v1", None),
        ("ollama/hf.co/a/b", "hf.co/a/b", "http://localhost:11434/v1", None),
        ("ollama_chat/llama3.2", "llama3.2", "http://localhost:11434/v1", None),
        ("lm_studio/qwen", "qwen", "http://localhost:1234/v1", None),
        ("hosted_vllm/org/model", "org/model", "http://localhost:8000/v1", None),
        ("openrouter/openai/gpt-5", "openai/gpt-5", "https://openrouter.ai/api/v1", "sk-router"),
    ],
)
def test_models_that_are_called_directly(model: str, asked_as: str, base_url: str, key: str | None) -> None:
    """Providers with OpenAI's protocol use their own URL and key, and the bare model name."""
    spec = resolved(model=model)
    assert (spec.model, spec.base_url, spec.api_key) == (asked_as, base_url, key)


@pytest.mark.parametrize(
    ("model", "asked_as", "key"),
    [
        ("anthropic/claude-sonnet-5-5", "anthropic/claude-sonnet-5-5", "sk-anthropic"),
        ("claude-sonnet-5-5", "anthropic/claude-sonnet-5-5", "sk-anthropic"),
        ("gemini/gemini-2.5-flash", "gemini/gemini-2.5-flash", "gemini-key"),
        ("gemini-2.5-flash", "gemini/gemini-2.5-flash", "gemini-key"),
        ("bedrock/anthropic.claude-v2", "bedrock/anthropic.claude-v2", None),
        ("vertex_ai/gemini-2.5-pro", "vertex_ai/gemini-2.5-pro", None),
        ("somebody/new", "somebody/new", None),
    ],
)
def test_models_that_are_called_through_litellm(model: str, asked_as: str, key: str | None) -> None:
    """All other providers keep LiteLLM's spelling and have no base URL."""
    spec = resolved(model=model)
    assert (spec.model, spec.base_url, spec.api_key) == (asked_as, "", key)


@pytest.mark.parametrize(
    ("provider", "name"),
    [
        ("openai", "openai/gpt-5-mini"),
        ("anthropic", "anthropic/claude-sonnet-5-5"),
        ("google", "gemini/gemini-2.5-flash"),
        ("ollama", "ollama/llama3.2"),
    ],
)
def test_a_provider_alone(provider: str, name: str) -> None:
    """A provider without a model uses that provider's default."""
    assert resolved(provider=provider).name == name


@pytest.mark.parametrize(
    ("provider", "model", "name"),
    [
        ("openai", "gpt-4o", "openai/gpt-4o"),
        ("openai", "openai/gpt-4o", "openai/gpt-4o"),
        ("google", "gemini-2.5-pro", "gemini/gemini-2.5-pro"),
        ("google", "gemini/gemini-2.5-pro", "gemini/gemini-2.5-pro"),
        ("google", "google/gemini-2.5-pro", "gemini/gemini-2.5-pro"),
        ("anthropic", "claude-x", "anthropic/claude-x"),
        ("ollama", "org/model", "ollama/org/model"),
    ],
)
def test_separate_provider_and_model(provider: str, model: str, name: str) -> None:
    """`provider` and `model`, as separate keys, mean the same as one LiteLLM name."""
    assert resolved(provider=provider, model=model).name == name


@pytest.mark.parametrize("provider", ["openai-compatible", "litellm"])
def test_providers_without_a_default(provider: str) -> None:
    """A provider without a default model needs one."""
    with pytest.raises(ConfigError, match=f"provider {provider} has no default model; name one with `model`"):
        resolved(provider=provider, provider_options={"base_url": "http://h/v1"})


def test_openai_compatible() -> None:
    """An OpenAI-compatible endpoint gets the model name unchanged and no other provider's key."""
    options = {"baseURL": "http://h:8000/v1"}
    spec = resolved(provider="openai-compatible", model="meta-llama/Llama-3", provider_options=options)
    assert (spec.name, spec.model) == ("meta-llama/Llama-3", "meta-llama/Llama-3")
    assert (spec.base_url, spec.api_key) == ("http://h:8000/v1", None)
    options["apiKey"] = " k-1 "
    assert resolved(provider="openai-compatible", model="m", provider_options=options).api_key == "k-1"


def test_openai_compatible_without_a_url() -> None:
    """Without a base URL, the error names the key to set."""
    with pytest.raises(ConfigError, match=r"needs provider_options\.base_url"):
        resolved(provider="openai-compatible", model="m")


def test_litellm_can_be_forced() -> None:
    """`provider: litellm` routes a directly supported model through litellm, with the same key."""
    spec = resolved(provider="litellm", model="openai/gpt-4o")
    assert (spec.base_url, spec.model, spec.api_key) == ("", "openai/gpt-4o", "sk-openai")


def test_a_base_url_for_litellm() -> None:
    """A base URL is passed to litellm under the name it expects."""
    spec = resolved(
        model="anthropic/claude-x", provider_options={"base_url": "http://proxy", "body": {"n": 1}}
    )
    assert spec.body == {"api_base": "http://proxy", "n": 1}


def test_a_model_without_a_provider() -> None:
    """A bare name of no known family is an error that shows the right spelling."""
    with pytest.raises(ConfigError, match=r"'llama3' names no provider; .* ollama/llama3"):
        resolved(model="llama3")


# Keys


@pytest.mark.parametrize(
    ("keys", "variable"),
    [
        ({"model": "openai/gpt-4o"}, "OPENAI_API_KEY"),
        ({"model": "groq/llama"}, "GROQ_API_KEY"),
        ({"model": "openrouter/x/y"}, "OPENROUTER_API_KEY"),
        ({"model": "anthropic/claude"}, "ANTHROPIC_API_KEY"),
        ({"provider": "google"}, "GEMINI_API_KEY or GOOGLE_API_KEY"),
        ({"provider": "litellm", "model": "openai/gpt-4o"}, "OPENAI_API_KEY"),
    ],
)
@pytest.mark.parametrize("blank", ["", "  \n"])
def test_a_missing_key(keys: dict[str, Any], variable: str, blank: str) -> None:
    """A missing or blank key is one error before the run, with model and variable."""
    environ = dict.fromkeys(variable.split(" or "), blank)
    with pytest.raises(
        ConfigError, match=rf"needs a key: set the environment variable {variable}, or .*--offline"
    ):
        resolved(environ, **keys)


def test_the_second_variable() -> None:
    """If a provider documents two variables, either works."""
    assert resolved({"GOOGLE_API_KEY": "g"}, provider="google").api_key == "g"


def test_a_configured_key() -> None:
    """A configured key takes precedence over the environment."""
    assert resolved(provider="openai", provider_options={"api_key": "own"}).api_key == "own"


def test_a_key_with_a_line_break() -> None:
    """A trailing line break is dropped; one inside the key is an error that does not show the key."""
    assert resolved({"OPENAI_API_KEY": "sk-1\n"}, provider="openai").api_key == "sk-1"
    with pytest.raises(ConfigError, match="the key in OPENAI_API_KEY has a line break") as caught:
        resolved({"OPENAI_API_KEY": "sk-1\nsk-2"}, provider="openai")
    assert "sk-" not in str(caught.value)


def test_a_custom_endpoint_needs_no_key() -> None:
    spec = resolved({}, model="openai/m", provider_options={"base_url": "http://localhost:1/v1"})
    assert (spec.api_key, spec.base_url) == (None, "http://localhost:1/v1")


# Base URLs


@pytest.mark.parametrize(
    ("variable", "value", "model", "base_url"),
    [
        ("OPENAI_BASE_URL", "http://proxy/v1", "openai/m", "http://proxy/v1"),
        ("OPENAI_API_BASE", "http://proxy/v1", "openai/m", "http://proxy/v1"),
        ("OLLAMA_API_BASE", "http://box:11434", "ollama/m", "http://box:11434/v1"),
        ("OLLAMA_API_BASE", "http://box:11434/", "ollama/m", "http://box:11434/v1"),
        ("OLLAMA_API_BASE", "http://box:11434/v1", "ollama/m", "http://box:11434/v1"),
        ("HOSTED_VLLM_API_BASE", "http://box/v1", "hosted_vllm/m", "http://box/v1"),
    ],
)
def test_base_urls_of_the_environment(variable: str, value: str, model: str, base_url: str) -> None:
    """The variables that providers document change the endpoint."""
    assert resolved({variable: value}, model=model).base_url == base_url


@pytest.mark.parametrize("given", ["http://box:11434", "http://box:11434/api", "http://box:11434/v1"])
def test_ollamas_base_url(given: str) -> None:
    """Ollama's address can be given in each of its common forms."""
    spec = resolved({}, provider="ollama", provider_options={"baseURL": given})
    assert spec.base_url == "http://box:11434/v1"


def test_a_configured_base_url() -> None:
    """A configured base URL takes precedence over the environment."""
    options = {"base_url": "http://mine/v1"}
    environ = {"OPENAI_BASE_URL": "http://theirs/v1"}
    assert resolved(environ, model="openai/m", provider_options=options).base_url == "http://mine/v1"


@pytest.mark.parametrize("value", ["localhost:8000", "ftp://h", "http://", "http://a b/"])
def test_a_wrong_base_url_in_the_environment(value: str) -> None:
    """The error about an invalid URL names the variable."""
    with pytest.raises(ConfigError, match=r"the environment variable OPENAI_BASE_URL (must|is|has) "):
        resolved({"OPENAI_BASE_URL": value}, model="openai/m")


# Roles


def test_no_model() -> None:
    """Without model, provider or override a role is offline, even with keys in the environment."""
    made = config()
    assert resolve(made, made.user, KEYS) is None
    assert resolve(made, made.judge, KEYS) is None
    assert resolve(made, made.judge, KEYS, None) is None


def test_one_role_alone() -> None:
    """A model for only the judges leaves the simulated user offline."""
    made = config(judge={"model": "openai/gpt-5"})
    assert resolve(made, made.user, KEYS) is None
    judge = resolve(made, made.judge, KEYS)
    assert judge is not None
    assert judge.name == "openai/gpt-5"


def test_roles_fall_back_to_the_top_level() -> None:
    """Settings that a role leaves out come from the top level."""
    keys: dict[str, Any] = {
        "model": "openai/gpt-5-mini",
        "provider_options": {"base_url": "http://proxy/v1", "api_key": "k", "headers": {"a": "b"}},
        "judge": {
            "model": "gpt-5",
            "temperature": 0,
            "max_tokens": 7,
            "timeout_ms": 500,
            "retries": 1,
            "provider_options": {"api_key": "own"},
        },
    }
    judge, user = resolved(**keys), resolved(role="user", **keys)
    assert (user.name, user.api_key, user.temperature, user.retries) == ("openai/gpt-5-mini", "k", None, 4)
    assert (judge.name, judge.api_key, judge.base_url) == ("openai/gpt-5", "own", "http://proxy/v1")
    assert (judge.temperature, judge.max_tokens, judge.timeout_s, judge.retries) == (0, 7, 0.5, 1)
    assert judge.headers == {"a": "b"}


@pytest.mark.parametrize(
    ("model", "temperature"),
    [
        ("openai/gpt-4.1-mini", 0.0),
        ("openai/gpt-5-chat-latest", 0.0),
        ("openai/gpt-5.2", 0.0),
        ("anthropic/claude-sonnet-5-5", 0.0),
        ("ollama/llama3.2", 0.0),
        ("openai/gpt-5-mini", None),
        ("openai/gpt-5", None),
        ("openai/o3-mini", None),
        ("openrouter/openai/o1", None),
    ],
)
def test_judges_have_a_temperature_of_0_where_the_model_takes_it(
    model: str, temperature: float | None
) -> None:
    """Models known to refuse other temperatures get none; users get none either."""
    keys: dict[str, Any] = {"model": model, "provider_options": {"api_key": "k"}}
    assert resolved(**keys).temperature == temperature
    assert resolved(role="user", **keys).temperature is None
    assert resolved(**keys, judge={"temperature": 0.7}).temperature == 0.7
    assert resolved(**keys, judge={"temperature": None}).temperature is None


def test_a_temperature_in_the_body_is_not_overridden_by_the_default() -> None:
    """A temperature in the configured body is not overridden."""
    options = {"api_key": "k", "body": {"temperature": 1}}
    keys: dict[str, Any] = {"model": "openai/gpt-4.1", "provider_options": options}
    assert resolved(**keys).temperature is None
    assert resolved(**keys, judge={"temperature": 0}).temperature == 0


def test_a_roles_model_at_the_top_levels_provider() -> None:
    """A role's model without a provider uses the top level's."""
    keys: dict[str, Any] = {
        "provider": "openai-compatible",
        "model": "small",
        "provider_options": {"base_url": "http://box/v1"},
        "judge": {"model": "org/large"},
    }
    assert (resolved(**keys).model, resolved(**keys).base_url) == ("org/large", "http://box/v1")
    assert resolved(role="user", **keys).model == "small"


@pytest.mark.parametrize("judge", [{"model": "anthropic/claude-x"}, {"provider": "anthropic"}])
def test_keys_are_for_their_own_provider(judge: dict[str, Any]) -> None:
    """A role with another provider never gets the top level's key, URL or headers."""
    spec = resolved(
        model="openai/gpt-5",
        provider_options={"base_url": "http://proxy/v1", "api_key": "secret", "headers": {"a": "b"}},
        judge=judge,
    )
    assert (spec.api_key, spec.body, spec.headers) == ("sk-anthropic", {}, {})


# Precedence


def test_an_override() -> None:
    """The override replaces the top level's model but not a role's own."""
    keys: dict[str, Any] = {"model": "openai/gpt-5", "judge": {"model": "anthropic/claude-x"}}
    assert resolved(override="openai/gpt-4o", role="user", **keys).name == "openai/gpt-4o"
    assert resolved(override="openai/gpt-4o", role="judge", **keys).name == "anthropic/claude-x"


def test_an_override_of_another_provider() -> None:
    """An override with its own provider does not get the configured provider's key."""
    keys: dict[str, Any] = {"provider": "openai", "provider_options": {"api_key": "secret"}}
    spec = resolved(override="anthropic/claude-x", **keys)
    assert (spec.name, spec.api_key) == ("anthropic/claude-x", "sk-anthropic")


def test_an_override_at_the_configured_provider() -> None:
    """An override without a provider uses the configured one."""
    options = {"base_url": "http://box/v1"}
    spec = resolved(override="other", provider="openai-compatible", model="m", provider_options=options)
    assert (spec.model, spec.base_url) == ("other", "http://box/v1")


@pytest.mark.parametrize(
    ("configured", "variable", "flag", "name"),
    [
        (None, None, None, None),
        ("openai/a", None, None, "openai/a"),
        ("openai/a", "openai/b", None, "openai/b"),
        ("openai/a", "openai/b", "openai/c", "openai/c"),
        ("openai/a", "", None, "openai/a"),
        (None, "openai/b", None, "openai/b"),
        (None, None, "openai/c", "openai/c"),
    ],
)
def test_precedence(
    tmp_path: Path, configured: str | None, variable: str | None, flag: str | None, name: str | None
) -> None:
    """--offline comes before `--model`, then AGENTEST_MODEL, then the configuration."""
    settings: dict[str, Any] = {"agent": {"endpoint": "http://h"}}
    if configured:
        settings["model"] = configured
    (tmp_path / "agentest.config.yaml").write_text(json.dumps(settings))
    (tmp_path / "a.sim.py").write_text("from agentest import scenario\nscenario('a', goal='b')\n")
    environ = {**KEYS, **({} if variable is None else {"AGENTEST_MODEL": variable})}
    prepared = prepare(RunRequest(tmp_path, options=Options(model=flag)), environ)
    assert [spec and spec.name for spec in (prepared.user, prepared.judge)] == [name, name]
    offline = prepare(RunRequest(tmp_path, options=Options(model=flag, offline=True)), environ)
    assert (offline.user, offline.judge) == (None, None)


AZURE = {"AZURE_API_BASE": "https://r.openai.azure.com", "AZURE_API_KEY": "az-key-123"}


def test_azure() -> None:
    """Azure deployments are called directly: at a URL with a version, or at `/openai/v1`."""
    spec = resolved(AZURE, model="azure/mine")
    assert spec.base_url.startswith("https://r.openai.azure.com/openai/deployments/mine?api-version=")
    assert (spec.key_header, spec.api_key, spec.model) == ("api-key", "az-key-123", "mine")
    newer = "https://r.openai.azure.com/openai/v1"
    assert resolved({**AZURE, "AZURE_API_BASE": newer}, model="azure/mine").base_url == newer
    for variable in AZURE:
        with pytest.raises(ConfigError, match=variable):
            resolved({k: v for k, v in AZURE.items() if k != variable}, model="azure/mine")


# Names as ADK's files have them


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("gemini-2.5-flash", "gemini/gemini-2.5-flash"),
        ("models/gemini-2.5-flash", "gemini/gemini-2.5-flash"),
        (" google/gemini-2.5-pro ", "gemini/gemini-2.5-pro"),
        ("gemma-3-27b-it", "gemini/gemma-3-27b-it"),
        ("gpt-4", "openai/gpt-4"),
        ("o3-mini", "openai/o3-mini"),
        ("claude-3-opus", "anthropic/claude-3-opus"),
        ("openai/gpt-5-mini", "openai/gpt-5-mini"),
        ("openrouter/openai/gpt-5", "openrouter/openai/gpt-5"),
        ("opnai/gpt-5", "opnai/gpt-5"),
    ],
)
def test_names_of_adks_files(written: str, name: str) -> None:
    """Bare names, Gemini resource names and LiteLLM names all become LiteLLM names."""
    assert litellm_name(written) == name


@pytest.mark.parametrize("written", ["house-judge", "llama3.2", "", "projects/p/locations/l/endpoints/7"])
def test_ambiguous_names(written: str) -> None:
    """A name without a recognizable provider is refused, with the right spelling."""
    with pytest.raises(ConfigError, match="write it as "):
        litellm_name(written)


SAME_ANSWERS = {
    *("api_key", "key_header", "timeout_s", "deadline_s", "retries", "priced", "cache"),
    *("max_concurrency", "requests_per_minute", "tokens_per_minute", "pool"),
}
"""Fields of a model that do not change its answers."""


@pytest.mark.parametrize("name", [field.name for field in fields(ModelSpec)])
def test_stored_answers_are_those_of_the_same_model(name: str) -> None:
    """A change of anything that may change an answer is another model for the response cache."""
    spec = ModelSpec(
        "openai/m", "m", "http://h", headers={"X-Route": "a"}, body={"seed": 1}, sampling={"top_p": 1}
    )
    values = {"headers": {"X-Route": "b"}, "body": {"seed": 2}, "sampling": {"top_p": 0.5}}
    numbers = {"temperature", "max_tokens", "timeout_s", "deadline_s", "retries", "priced", "cache"}
    other = values.get(name, 0 if name in numbers or "max_" in name or "_per_" in name else "other")
    assert getattr(spec, name) != other
    assert (identity(spec) == identity(replace(spec, **{name: other}))) == (name in SAME_ANSWERS)
