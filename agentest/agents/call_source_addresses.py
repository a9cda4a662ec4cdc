"""The addresses of an agent's servers, and the environment variables by which programs learn them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from agentest.config.fields import check_url
from agentest.support.errors import errors_as
from agentest.support.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The addresses of an agent's servers; None for a server that it does not have."""

    mcp: str | None = None
    rest: str | None = None
    model: str | None = None  # its path begins with a token
    otlp: str | None = None
    replays_model: bool = False

    def of(self, conversation: str) -> Addresses:
        """Return the addresses at which every call belongs to the conversation with this key."""
        return replace(
            self,
            mcp=self.mcp and f"{self.mcp}/{conversation}",
            rest=self.rest and f"{self.rest}/c/{conversation}",
            model=self.model and f"{self.model}/c/{conversation}",
        )

    def in_lane(self, lane: int | None) -> Addresses:
        """Return the addresses for one copy of the agent's server; None: it has no copies."""
        return self if lane is None else replace(self, model=self.model and f"{self.model}/lane/{lane}")

    @property
    def by_placeholder(self) -> dict[str, str]:
        """Return the existing addresses by the name of their placeholder."""
        known = {"mcp_url": self.mcp, "rest_url": self.rest, "model_url": self.model, "otlp_url": self.otlp}
        return {name: url for name, url in known.items() if url}

    @property
    def by_variable(self) -> dict[str, str]:
        """Return environment variables for a program that uses mock servers and exports spans to Agentest."""
        known = {"AGENTEST_MCP_URL": self.mcp, "AGENTEST_REST_URL": self.rest}
        addresses = {name: url for name, url in known.items() if url}
        if self.model:
            addresses |= model_variables(self.model) | (_QUIET if not self.otlp else {})
        if self.otlp:
            addresses |= {f"{_OTLP}ENDPOINT": self.otlp, f"{_OTLP}TRACES_ENDPOINT": f"{self.otlp}/v1/traces"}
            addresses |= _FOR_EXPORTERS
        return addresses


_GATEWAY = "AGENTEST_MODEL_URL"


def model_variables(gateway: str) -> dict[str, str]:
    """Return the variables by which clients of model APIs find the gateway.

    Args:
        gateway: its address, or an address that names a conversation.
    """
    openai, anthropic, google = f"{gateway}/openai/v1", f"{gateway}/anthropic", f"{gateway}/google"
    return {
        _GATEWAY: gateway,
        "OPENAI_BASE_URL": openai,
        "OPENAI_API_BASE": openai,
        "ANTHROPIC_BASE_URL": anthropic,
        "ANTHROPIC_API_URL": anthropic,
        "ANTHROPIC_API_BASE": anthropic,
        "GOOGLE_GEMINI_BASE_URL": google,
        "GOOGLE_VERTEX_BASE_URL": google,
        "GEMINI_API_BASE": f"{google}/v1beta",
        "AZURE_OPENAI_ENDPOINT": f"{gateway}/azure",
    }


UNUSED_KEYS = {
    "OPENAI_API_KEY": "unused",
    "ANTHROPIC_API_KEY": "unused",
    "GEMINI_API_KEY": "unused",
    "GOOGLE_GENERATIVE_AI_API_KEY": "unused",
}
"""Variables without which clients of model APIs refuse to start, even if no API is called."""
_QUIET = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
"""Keeps frameworks from sending data to a model's API past the gateway. OpenTelemetry needs these traces."""
_OTLP = "OTEL_EXPORTER_OTLP_"
_OVERRIDING = {f"{_OTLP}TRACES_{end}": f"{_OTLP}{end}" for end in ("ENDPOINT", "PROTOCOL")}
_FOR_EXPORTERS = {
    f"{_OTLP}PROTOCOL": "http/protobuf",
    f"{_OTLP}TRACES_PROTOCOL": "http/protobuf",
    "OTEL_SDK_DISABLED": "false",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_TRACES_SAMPLER": "parentbased_always_on",
    "OTEL_PROPAGATORS": "tracecontext,baggage",
    # The default of five seconds would deliver spans long after the reply.
    "OTEL_BSP_SCHEDULE_DELAY": "200",
    # Without these two, many report names of tools but no arguments.
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
}
"""Variables of OpenTelemetry's SDKs, overriding those that the machine has for other backends."""


def with_user_variables(addresses: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Merge a program's variables with those of the user, which win.

    A general address of the user also wins over our address for traces. Only the gateway's address wins over
    that of a model, which is behind the gateway.
    """
    inherited = {name: value for name, value in addresses.items() if _OVERRIDING.get(name) not in settings}
    gateway = addresses.get(_GATEWAY)
    behind = model_addresses(settings, urlsplit(gateway).port).keys() if gateway else ()
    return {**inherited, **{name: value for name, value in settings.items() if name not in behind}}


def model_addresses(variables: Mapping[str, str], gateway_port: int | None) -> dict[str, tuple[str, str]]:
    """Return the variables that name a model's API: variable → provider and base URL. Raises ValueError.

    The base URL of OpenAI's clients ends with a slash, because they add no version to it.
    """
    found: dict[str, tuple[str, str]] = {}
    for name, path in model_variables("").items():
        url, provider = variables.get(name, "").strip().rstrip("/"), path.strip("/").partition("/")[0]
        if not (url and provider) or "{{" in url:
            continue
        with errors_as(ValueError, f"{name} "):
            parts = urlsplit(check_url(url))
        if gateway_port is None or (parts.port, f"/{provider}" in parts.path) != (gateway_port, True):
            found[name] = provider, f"{url}/" if path.endswith("/openai/v1") else url
    return found
