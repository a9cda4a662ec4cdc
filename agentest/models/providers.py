"""Resolve a model name in LiteLLM spelling to an endpoint, a key and request parameters."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any
from urllib.parse import urlsplit

from agentest.config.config import Config
from agentest.config.fields import check_headers, check_url
from agentest.config.models import JudgeSettings, ModelSettings, ProviderOptions, Sampling
from agentest.support.errors import ConfigError, errors_as
from agentest.support.http.address_guard import is_loopback
from agentest.support.lazy_dataclasses import dataclass


def key_variables(prefix: str) -> tuple[str, ...]:
    """Return the environment variables that may contain a provider's key.

    Empty if the provider needs no key or litellm knows its variables.

    Args:
        prefix: the provider in LiteLLM spelling.
    """
    provider = DIRECT.get(prefix)
    if provider is not None:
        return (provider.key_variable,) if provider.key_variable else ()
    return LITELLM_KEYS.get(prefix, ("AZURE_API_KEY",) if prefix == "azure" else ())


class MissingAccess(ConfigError):
    """A key or address that a model needs is missing. `what` names it."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what


@dataclass(frozen=True, slots=True)
class _DirectProvider:
    base_url: str
    base_variables: tuple[str, ...] = ()
    key_variable: str | None = None
    key_required: bool = True
    path: str = ""  # suffix of every base URL. Users omit it, as the provider's documentation does.


def _by_variables(base_url: str, prefix: str, *, local: bool = False) -> _DirectProvider:
    return _DirectProvider(base_url, (f"{prefix}_API_BASE",), f"{prefix}_API_KEY", not local)


_OLLAMA = _DirectProvider("http://localhost:11434/v1", ("OLLAMA_API_BASE",), None, False, "/v1")
_OPENAI_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
DIRECT: dict[str, _DirectProvider] = {
    "openai": _DirectProvider("https://api.openai.com/v1", _OPENAI_VARIABLES, "OPENAI_API_KEY"),
    "ollama": _OLLAMA,
    "ollama_chat": _OLLAMA,
    "lm_studio": _by_variables("http://localhost:1234/v1", "LM_STUDIO", local=True),
    "hosted_vllm": _by_variables("http://localhost:8000/v1", "HOSTED_VLLM", local=True),
    "llamafile": _by_variables("http://localhost:8080/v1", "LLAMAFILE", local=True),
    "openrouter": _by_variables("https://openrouter.ai/api/v1", "OPENROUTER"),
    "groq": _by_variables("https://api.groq.com/openai/v1", "GROQ"),
    "deepseek": _by_variables("https://api.deepseek.com/v1", "DEEPSEEK"),
    "mistral": _by_variables("https://api.mistral.ai/v1", "MISTRAL"),
    "xai": _by_variables("https://api.x.ai/v1", "XAI"),
}

_AZURE_VERSION = "2024-10-21"
"""The latest version that is not a preview and supports a JSON Schema as response format."""

LITELLM_KEYS = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "cohere": ("COHERE_API_KEY",),
    "together_ai": ("TOGETHERAI_API_KEY",),
    "fireworks_ai": ("FIREWORKS_AI_API_KEY", "FIREWORKS_API_KEY"),
}


def direct(
    prefix: str, name: str, options: ProviderOptions, environ: Mapping[str, str]
) -> tuple[str, str | None]:
    """Return base URL and key of a DIRECT provider. Raises MissingAccess or ConfigError."""
    provider = DIRECT[prefix]
    base_url = options.base_url or _base_url_from(environ, provider.base_variables) or provider.base_url
    if provider.path and not base_url.rstrip("/").endswith(provider.path):
        base_url = base_url.rstrip("/").removesuffix("/api") + provider.path
    variables = (provider.key_variable,) if provider.key_variable else ()
    api_key = key_of(name, options, environ, variables)
    if provider.key_required and not api_key and base_url.rstrip("/") == provider.base_url:
        raise _missing_key(name, provider.key_variable or "")
    return base_url, api_key


def resolve_azure(
    deployment: str, name: str, options: ProviderOptions, environ: Mapping[str, str]
) -> tuple[str, str]:
    """Return URL and key for Azure: `…/openai/v1` unchanged, else the deployment's endpoint with a version.

    Raises MissingAccess or ConfigError.
    """
    base_url = options.base_url or _base_url_from(environ, ("AZURE_API_BASE",))
    api_key = key_of(name, options, environ, ("AZURE_API_KEY",))
    if not base_url:
        raise MissingAccess(
            f"model {name} needs the resource's URL: set AZURE_API_BASE or provider_options.base_url",
            "AZURE_API_BASE in the environment",
        )
    if not api_key:
        raise _missing_key(name, "AZURE_API_KEY")
    if "/openai/" in urlsplit(base_url).path:
        return base_url, api_key
    version = environ.get("AZURE_API_VERSION") or _AZURE_VERSION
    return f"{base_url.rstrip('/')}/openai/deployments/{deployment}?api-version={version}", api_key


def _base_url_from(environ: Mapping[str, str], variables: tuple[str, ...]) -> str | None:
    for variable in variables:
        value = environ.get(variable, "").strip()
        if value:
            with errors_as(ConfigError, f"the environment variable {variable} "):
                return check_url(value)
    return None


def key_of(
    name: str, options: ProviderOptions, environ: Mapping[str, str], variables: tuple[str, ...]
) -> str | None:
    """Return the key from the options or the first set variable. Raises ConfigError if malformed."""
    sources = {"provider_options.api_key": options.api_key, **{v: environ.get(v) for v in variables}}
    for source, value in sources.items():
        key = (value or "").strip()
        if not key:
            continue
        try:
            check_headers({"authorization": key})
        except ValueError:
            raise ConfigError(
                f"model {name}: the key in {source} has a line break or another character "
                "that HTTP does not allow"
            ) from None
        return key
    return None


def litellm_key(prefix: str, name: str, options: ProviderOptions, environ: Mapping[str, str]) -> str | None:
    """Return the key; None if litellm finds it. Raises MissingAccess or ConfigError."""
    variables = LITELLM_KEYS.get(prefix, ())
    provider = DIRECT.get(prefix)
    if provider and provider.key_variable and provider.key_required and not options.base_url:
        variables = (provider.key_variable,)
    key = key_of(name, options, environ, variables)
    if variables and not key:
        raise _missing_key(name, " or ".join(variables))
    return key


def _missing_key(name: str, variable: str) -> MissingAccess:
    return MissingAccess(
        f"model {name} needs a key: set the environment variable {variable}, "
        "or run without a model with --offline",
        f"{variable} in the environment",
    )


REQUESTS_PER_CONVERSATION = 3
"""Default number of concurrent requests to a model per conversation in progress.

It is the smallest number that costs at most 5% of the time when all metrics are judged one turn at a time:
`python -m benchmarks concurrency` measures it.
"""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A resolved model with everything needed to call it. An empty `base_url` means through litellm."""

    name: str  # the name as the user wrote it, in LiteLLM spelling
    model: str  # the endpoint's name for the model, or LiteLLM spelling if litellm calls it
    base_url: str = ""
    api_key: str | None = None
    key_header: str = "authorization"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    temperature: float | None = None
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters that shape its answers: top_p, seed."""
    timeout_s: float = 120.0
    deadline_s: float = 600.0
    retries: int = 4
    max_concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    pool: str | None = None
    priced: bool = True
    """False if the name does not determine the price, because any server may call its model `gpt-4o`."""
    cache: bool = True  # True to mark the shared parts of prompts, for providers that need cache marks

    def requests_at_once(self, conversations: int) -> int:
        """Return how many requests may be in progress at this number of conversations."""
        # A model on this machine answers few requests at a time, so more would only wait there.
        is_local = bool(self.base_url) and is_loopback(self.base_url)
        each = 1 if is_local or conversations == 1 else REQUESTS_PER_CONVERSATION
        return self.max_concurrency or each * conversations


_DEFAULT_MODEL = {
    "openai": "openai/gpt-5-mini",
    "anthropic": "anthropic/claude-sonnet-5-5",
    "google": "gemini/gemini-2.5-flash",
    "ollama": "ollama/llama3.2",
}

_ONE_TEMPERATURE = re.compile(r"(?:^|/)(?:o\d|gpt-5(?![.\d]|-chat))")
"""Models that accept only temperature 1: OpenAI's o-series and the first gpt-5."""

_FAMILIES = {
    "chatgpt-": "openai",
    "gpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude": "anthropic",
    "gemini": "gemini",
    "gemma-": "gemini",
}
_ROUTES = (
    "_API_BASE",
    "_BASE_URL",
    "_ENDPOINT",
    "_VERSION",
    "_REGION",
    "_REGION_NAME",
    "_PROJECT",
    "_LOCATION",
)
_RESOURCES = frozenset({"apigee", "projects", "publishers"})
"""First parts of resource names in Google's cloud, which do not determine how to reach a model."""
_SPELLING = {"google": "gemini"}
# Otherwise, text before a slash may be part of a model's name (`meta-llama/Llama-3.2-1B`).
_PREFIXES = frozenset({*DIRECT, *LITELLM_KEYS, "azure", "azure_ai", "bedrock", "vertex_ai", "huggingface"})


def resolve(
    config: Config, settings: ModelSettings, environ: Mapping[str, str], override: str | None = None
) -> ModelSpec | None:
    """Resolve the model for one role; None if none is configured.

    Args:
        settings: `config.user` or `config.judge`. Missing values come from the top level.
        override: the model from `--model` or `AGENTEST_MODEL`, which replaces the top level's `model`.

    Raises ConfigError if the model's key or base URL is missing.
    """
    model, provider = _choose_model(config, settings, override)
    if model is None and provider is None:
        return None
    options = _options_of_role(config, settings, _provider_of(model, provider))
    return _spec(model, provider, options, settings, config, environ)


def resolve_named(
    name: str,
    config: Config,
    settings: ModelSettings,
    environ: Mapping[str, str],
    override: str | None = None,
) -> ModelSpec:
    """Resolve a model that a scenario file names, with the settings of its role.

    Raises MissingAccess if its key is missing, ConfigError if the model cannot be used.

    Args:
        name: in LiteLLM spelling, as `litellm_name` returns it.
        settings, override: as in `resolve`. Their key and base URL apply to a model of the same provider.
    """
    prefix = name.partition("/")[0]
    options = ProviderOptions()
    if prefix == _provider_of(*_choose_model(config, settings, override)):
        options = _options_of_role(config, settings, prefix)
    elif prefix == _provider_of(config.model, config.provider):
        options = config.provider_options
    provider = "litellm" if "litellm" in (settings.provider, config.provider) else None
    return _spec(name, provider, options, settings, config, environ)


def resolve_confirming(
    config: Config, environ: Mapping[str, str], override: str | None = None
) -> ModelSpec | None:
    """Resolve the model of `judge.confirm`; None if none is configured.

    It falls back to the judge as the judge falls back to the top level: the judge's key or base URL applies
    to a confirming model of the same provider.

    Raises ConfigError if the model's key or base URL is missing.
    """
    settings = _confirming_settings(config, override)
    return resolve(*settings, environ) if settings else None


def confirming_name(config: Config, override: str | None = None) -> str | None:
    """Return the name of the model of `judge.confirm`, without requiring its key."""
    settings = _confirming_settings(config, override)
    return model_name(*settings) if settings else None


def _confirming_settings(config: Config, override: str | None) -> tuple[Config, JudgeSettings] | None:
    settings = config.judge.of_confirming
    if settings is None:
        return None
    model, provider = _choose_model(config, config.judge, override)
    of_judge = _provider_of(model, provider)
    options = _options_of_role(config, config.judge, of_judge)
    as_top = {"model": model, "provider": provider, "provider_options": options}
    judge_as_top = config.model_copy(update=as_top)
    provider = _provider_of(*_choose_model(judge_as_top, settings, None))
    return (judge_as_top if provider == of_judge else config), settings


def litellm_name(written: str) -> str:
    """Convert a model name of an ADK file, bare or prefixed with `models/`, to LiteLLM spelling.

    Raises ConfigError for a name that does not identify the provider.
    """
    name = written.strip().removeprefix("models/")
    prefix, slash, rest = name.partition("/")
    if not slash:
        return _family(name)
    if prefix in _RESOURCES:
        raise ConfigError(f"model {name!r} is a resource of Google's cloud; write it as vertex_ai/<model>")
    return f"{_SPELLING.get(prefix, prefix)}/{rest}"


def sampled(spec: ModelSpec, sampling: Sampling) -> ModelSpec:
    """Return the model with these sampling parameters. Missing ones stay unchanged."""
    parameters = sampling.set_parameters()
    direct = {name: parameters.pop(name) for name in ("temperature", "max_tokens") if name in parameters}
    return replace(spec, **direct, sampling={**spec.sampling, **parameters})


def recorded(name: str, settings: ModelSettings) -> ModelSpec:
    """Return a model that is only replayed, without endpoint and key."""
    temperature = _temperature(name, settings, settings.provider_options)
    return ModelSpec(name, name, temperature=temperature, max_tokens=settings.max_tokens)


def parameters(spec: ModelSpec) -> dict[str, Any]:
    """Return the parameters that shape the model's answers in addition to the question."""
    values = {"temperature": spec.temperature, "max_tokens": spec.max_tokens, **spec.sampling}
    return {name: value for name, value in values.items() if value is not None}


def identity(spec: ModelSpec) -> dict[str, Any]:
    """Return everything about a model that may change its answers: also where they come from."""
    routes = {} if spec.base_url else {key: os.environ[key] for key in os.environ if key.endswith(_ROUTES)}
    sent = {"sent": parameters(spec), "body": dict(spec.body), "headers": dict(spec.headers)}
    return {"name": spec.name, "model": spec.model, "url": spec.base_url, "routes": routes, **sent}


def model_name(config: Config, settings: ModelSettings, override: str | None = None) -> str | None:
    """Return the name of the model for one role, as `resolve` would, without requiring its key."""
    model, provider = _choose_model(config, settings, override)
    return None if model is None and provider is None else _litellm_spelling(model, provider)


def _choose_model(
    config: Config, settings: ModelSettings, override: str | None
) -> tuple[str | None, str | None]:
    if settings.provider:
        return settings.model, settings.provider
    model = settings.model or override
    if model is None:
        return config.model, config.provider
    elsewhere = model.partition("/")[0] in _PREFIXES and config.provider != "litellm"
    return model, None if elsewhere else config.provider


def _provider_of(model: str | None, provider: str | None) -> str | None:
    if provider == "openai-compatible" or (model is None and provider not in _DEFAULT_MODEL):
        return provider
    try:
        return _litellm_spelling(model, provider).partition("/")[0]
    except ConfigError:
        return None


def _options_of_role(config: Config, settings: ModelSettings, provider: str | None) -> ProviderOptions:
    # A key or base URL of the top level belongs to its provider; no other provider may see it.
    own = settings.provider_options
    if _provider_of(config.model, config.provider) not in (None, provider):
        return own
    return config.provider_options.model_copy(update={n: getattr(own, n) for n in own.model_fields_set})


def _spec(
    model: str | None,
    provider: str | None,
    options: ProviderOptions,
    settings: ModelSettings,
    config: Config,
    environ: Mapping[str, str],
) -> ModelSpec:
    name = _litellm_spelling(model, provider)
    prefix, _, rest = name.partition("/")
    if provider == "openai-compatible":
        if not options.base_url:
            raise ConfigError(
                "provider openai-compatible needs provider_options.base_url, the URL before /chat/completions"
            )
        prefix, rest = "", name
        base_url, api_key = options.base_url, key_of(name, options, environ, ())
    elif prefix == "azure" and provider != "litellm":
        base_url, api_key = resolve_azure(rest, name, options, environ)
    elif prefix in DIRECT and provider != "litellm":
        base_url, api_key = direct(prefix, name, options, environ)
    else:
        base_url, api_key, rest = "", litellm_key(prefix, name, options, environ), name
    return ModelSpec(
        name=name,
        model=rest,
        base_url=base_url,
        api_key=api_key,
        headers=options.headers,
        body=options.body
        if base_url or not options.base_url
        else {"api_base": options.base_url} | options.body,
        temperature=_temperature(name, settings, options),
        max_tokens=settings.max_tokens,
        timeout_s=settings.timeout_ms / 1000,
        deadline_s=settings.deadline_ms / 1000,
        retries=settings.retries,
        max_concurrency=settings.max_concurrency or config.max_concurrency,
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        pool=settings.pool,
        key_header="api-key" if prefix == "azure" else "authorization",
        priced=provider != "openai-compatible",
        cache=settings.cache if isinstance(settings, JudgeSettings) else True,
    )


def _temperature(name: str, settings: ModelSettings, options: ProviderOptions) -> float | None:
    """Return the temperature to request.

    A default is omitted if the model is known to refuse it or the user's `body` has one. If a model refuses
    it unexpectedly, its adapter omits it from then on.
    """
    is_set = "temperature" in settings.model_fields_set
    if not is_set and ("temperature" in options.body or _ONE_TEMPERATURE.search(name)):
        return None
    return settings.temperature


def _litellm_spelling(model: str | None, provider: str | None) -> str:
    if model is None:
        if provider not in _DEFAULT_MODEL:
            raise ConfigError(f"provider {provider} has no default model; name one with `model`")
        return _DEFAULT_MODEL[provider]
    if provider == "openai-compatible":
        return model
    if provider in (None, "litellm"):
        return model if "/" in model else _family(model)
    prefix = _SPELLING.get(provider, provider)
    bare = model.removeprefix(f"{provider}/").removeprefix(f"{prefix}/")
    return f"{prefix}/{bare}"


def _family(model: str) -> str:
    for start, prefix in _FAMILIES.items():
        if model.startswith(start):
            return f"{prefix}/{model}"
    raise ConfigError(
        f"model {model!r} names no provider; write it as provider/model, "
        f"like openai/gpt-5-mini or ollama/{model}"
    )
