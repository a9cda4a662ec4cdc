"""The environment in which an instrumented agent sends its traces to us, without a change to its code."""

from __future__ import annotations

from collections.abc import Mapping

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
_OVERRIDING = {
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": _ENDPOINT,
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": _PROTOCOL,
}
"""Variables for traces alone → the one for everything, over which they win."""


def variables(otlp: str) -> dict[str, str]:
    """The variables of OpenTelemetry's SDKs; whatever the machine has set for other backends is overridden.

    Args:
        otlp: where the receiver is, like `http://127.0.0.1:4318`.
    """
    return {
        _ENDPOINT: otlp,
        _PROTOCOL: "http/protobuf",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{otlp}/v1/traces",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_SDK_DISABLED": "false",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_TRACES_SAMPLER": "parentbased_always_on",
        "OTEL_PROPAGATORS": "tracecontext,baggage",
        # Five seconds by default: a reply would be there long before its spans.
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        # Without these two, many tell names of tools and no arguments.
        "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
    }


def with_own(told: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The variables that a program is told, and those that the user wrote, which win: also an address for
    everything over ours for traces alone."""
    kept = {name: value for name, value in told.items() if _OVERRIDING.get(name) not in own}
    return {**kept, **own}
