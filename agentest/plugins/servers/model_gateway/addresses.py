"""The addresses of the gateway and of the model APIs behind it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from agentest.config.agents.mock_servers import Provider
from agentest.plugins.servers.model_gateway.anthropic_messages import AnthropicMessages
from agentest.plugins.servers.model_gateway.chat_completions import ChatCompletions
from agentest.plugins.servers.model_gateway.gemini import Gemini
from agentest.plugins.servers.model_gateway.responses import Responses
from agentest.plugins.servers.model_gateway.wire_form import WireForm
from agentest.support.lazy_dataclasses import dataclass

_DEFAULT_UPSTREAMS: dict[Provider, str] = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
}
PROVIDERS: tuple[Provider, ...] = (*_DEFAULT_UPSTREAMS, "azure")
_VERSIONS = ("v1", "v1beta", "v1alpha")
_FORMS: tuple[tuple[re.Pattern[str], WireForm], ...] = (
    (re.compile(r"(.*/)?chat/completions"), ChatCompletions()),
    (re.compile(r"(.*/)?responses"), Responses()),
    (re.compile(r"(?!threads/)(.*/)?messages"), AnthropicMessages()),  # threads are OpenAI's assistants
    (re.compile(r"(.*/)?[^/]+:(stream)?[gG]enerateContent"), Gemini()),
)

_CALLS_NOTHING = re.compile(r".*(count_?tokens|/input_tokens|/compact)|cachedContents", re.IGNORECASE)
"""Requests that may offer tools although no model answers them."""
_BATCH = re.compile(r"batches|messages/batches|.*:(async)?[bB]atchGenerateContent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a request to the gateway leads."""

    conversation: str | None
    """The key of the conversation that the address names."""
    lane: int | None
    """The copy of the agent's server that the address names."""
    url: str
    base: str
    """The beginning of `url`: the API's address with its version."""
    form: WireForm | None
    """None: the gateway passes the request on as it is."""
    is_batch: bool
    """True if it sends many requests to a model at once."""
    may_call: bool
    """True if tools that it offers may be called."""


def target_of(path: str, query: str, upstreams: Mapping[Provider, str]) -> Target:
    """Return where a request leads. Raises ValueError for an address that names no model API."""
    parts = [part for part in path.split("/") if part] or [""]
    conversation = lane = None
    if len(parts) > 2 and parts[0] == "c":
        conversation, parts = parts[1], parts[2:]
    elif len(parts) > 2 and parts[0] == "lane" and parts[1].isdecimal():
        lane, parts = int(parts[1]), parts[2:]
    provider = next((name for name in PROVIDERS if name == parts[0]), None)
    if provider:
        parts.pop(0)
    else:
        provider = _provider_of("/".join(parts))
    base = (upstreams.get(provider) or _DEFAULT_UPSTREAMS.get(provider, "")).rstrip("/")
    if not base:
        raise ValueError(f"no address of {provider} is known: write model_gateway.upstream.{provider}")
    version = None
    while parts and parts[0] in _VERSIONS:  # clients may add one to an address that has one
        version = parts.pop(0)
    rest = "/".join(parts)
    form = next((form for pattern, form in _FORMS if pattern.fullmatch(rest)), None)
    if base.rsplit("/", 1)[-1] not in _VERSIONS and provider != "azure":
        base = f"{base}/{version or ('v1beta' if provider == 'google' else 'v1')}"
    url = f"{base}/{rest}" if rest else base
    url = f"{url}?{query}" if query else url
    return Target(
        conversation=conversation,
        lane=lane,
        url=url,
        base=base,
        form=form,
        is_batch=_BATCH.fullmatch(rest) is not None,
        may_call=_CALLS_NOTHING.fullmatch(rest) is None,
    )


def _provider_of(path: str) -> Provider:
    if path.endswith("messages") or "/messages/" in path:
        return "anthropic"
    return "google" if re.search(r"[^/]:\w+$", path) else "openai"
