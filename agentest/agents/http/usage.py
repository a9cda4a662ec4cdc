"""Tokens, under the names that agents give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentest.domain.transcript import Usage

_PROMPT = ("prompt_tokens", "input_tokens", "promptTokens", "inputTokens", "promptTokenCount", "prompt")
_COMPLETION = (
    "completion_tokens",
    "output_tokens",
    "completionTokens",
    "outputTokens",
    "candidatesTokenCount",
    "completion",
)
_CACHED = ("cached_tokens", "cachedTokens", "cachedInputTokens", "cache_read_input_tokens", "cached")
_DETAILS = ("prompt_tokens_details", "input_tokens_details", "inputTokenDetails")


def read_usage(reported: Any) -> Usage | None:
    """Tokens that an answer tells of; None for what tells of none."""
    if not isinstance(reported, Mapping):
        return None
    details: Mapping[str, Any] = next(
        (reported[name] for name in _DETAILS if isinstance(reported.get(name), Mapping)), {}
    )
    prompt, completion = _count(reported, _PROMPT), _count(reported, _COMPLETION)
    if prompt is None and completion is None:
        return None
    return Usage(prompt or 0, completion or 0, _count(reported, _CACHED) or _count(details, _CACHED) or 0)


def _count(reported: Mapping[str, Any], names: Sequence[str]) -> int | None:
    values = (reported.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0), None)
