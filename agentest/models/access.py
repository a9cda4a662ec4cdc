"""Where a provider's models are reached and with which key: from the configuration and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from agentest.config.fields import check_headers, check_url
from agentest.config.models import ProviderOptions
from agentest.support.errors import ConfigError


def key_variables(prefix: str) -> tuple[str, ...]:
    """The environment variables in which a provider's key may stand; none where it needs no key, or where
    litellm knows them.

    Args:
        prefix: the provider, as LiteLLM spells it.
    """
    provider = DIRECT.get(prefix)
    if provider is not None:
        return (provider.key_variable,) if provider.key_variable else ()
    return LITELLM_KEYS.get(prefix, ("AZURE_API_KEY",) if prefix == "azure" else ())


class MissingAccess(ConfigError):
    """Something that a model needs is not there. `what`: a key, in words."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what


@dataclass(frozen=True, slots=True)
class _Direct:
    """A provider that speaks OpenAI's protocol."""

    base_url: str
    base_variables: tuple[str, ...] = ()
    key_variable: str | None = None
    key_required: bool = True
    path: str = ""
    """Ends every base URL; users write it without, as the provider's own documentation does."""


DIRECT: dict[str, _Direct] = {
    "openai": _Direct("https://api.openai.com/v1", ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "OPENAI_API_KEY"),
    "ollama": _Direct("http://localhost:11434/v1", ("OLLAMA_API_BASE",), None, False, "/v1"),
    "ollama_chat": _Direct("http://localhost:11434/v1", ("OLLAMA_API_BASE",), None, False, "/v1"),
    "lm_studio": _Direct("http://localhost:1234/v1", ("LM_STUDIO_API_BASE",), "LM_STUDIO_API_KEY", False),
    "hosted_vllm": _Direct(
        "http://localhost:8000/v1", ("HOSTED_VLLM_API_BASE",), "HOSTED_VLLM_API_KEY", False
    ),
    "llamafile": _Direct("http://localhost:8080/v1", ("LLAMAFILE_API_BASE",), "LLAMAFILE_API_KEY", False),
    "openrouter": _Direct("https://openrouter.ai/api/v1", ("OPENROUTER_API_BASE",), "OPENROUTER_API_KEY"),
    "groq": _Direct("https://api.groq.com/openai/v1", ("GROQ_API_BASE",), "GROQ_API_KEY"),
    "deepseek": _Direct("https://api.deepseek.com/v1", ("DEEPSEEK_API_BASE",), "DEEPSEEK_API_KEY"),
    "mistral": _Direct("https://api.mistral.ai/v1", ("MISTRAL_API_BASE",), "MISTRAL_API_KEY"),
    "xai": _Direct("https://api.x.ai/v1", ("XAI_API_BASE",), "XAI_API_KEY"),
}

_AZURE_VERSION = "2024-10-21"
"""The newest that is not a preview and takes a JSON Schema as response format."""

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
    """Base URL and key of a provider that speaks OpenAI's protocol. Raises MissingAccess, ConfigError."""
    provider = DIRECT[prefix]
    base_url = options.base_url or _base_url_from(environ, provider.base_variables) or provider.base_url
    if provider.path and not base_url.rstrip("/").endswith(provider.path):
        base_url = base_url.rstrip("/").removesuffix("/api") + provider.path
    variables = (provider.key_variable,) if provider.key_variable else ()
    api_key = key_of(name, options, environ, variables)
    if provider.key_required and not api_key and base_url.rstrip("/") == provider.base_url:
        raise _missing_key(name, provider.key_variable or "")
    return base_url, api_key


def azure(
    deployment: str, name: str, options: ProviderOptions, environ: Mapping[str, str]
) -> tuple[str, str]:
    """Azure's OpenAI-shaped endpoints: `…/openai/v1` as it is, else the deployment's own, with a version.

    Raises MissingAccess, ConfigError.
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
            try:
                return check_url(value)
            except ValueError as error:
                raise ConfigError(f"the environment variable {variable} {error}") from None
    return None


def key_of(
    name: str, options: ProviderOptions, environ: Mapping[str, str], variables: tuple[str, ...]
) -> str | None:
    """The key of the options, or of the first variable that holds one. Raises ConfigError for a bad one."""
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
    """The key of a model that litellm asks; None: litellm finds it. Raises MissingAccess, ConfigError."""
    variables = LITELLM_KEYS.get(prefix, ())
    direct = DIRECT.get(prefix)
    if direct and direct.key_variable and direct.key_required and not options.base_url:
        variables = (direct.key_variable,)
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
