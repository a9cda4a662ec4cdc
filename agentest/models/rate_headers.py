"""What a model's answers tell of how much more may be asked for, in their rate-limit headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

_ALLOWANCES = (
    "x-ratelimit-{}-requests",
    "x-ratelimit-{}-tokens",
    "anthropic-ratelimit-requests-{}",
    "anthropic-ratelimit-tokens-{}",
    "anthropic-ratelimit-input-tokens-{}",
    "anthropic-ratelimit-output-tokens-{}",
)
_RATE_LIMIT = "ratelimit"  # a part of all of them
_HEADERS = tuple((name.format("remaining"), name.format("reset")) for name in _ALLOWANCES)
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|us|µs|ns|[dhms])")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def hold_from_headers(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds until a used-up allowance is renewed, by rate-limit headers; None while all have some left.

    Args:
        headers: of an answer, with names in lower case or a mapping that does not mind.
        now: by which to read points in time; default: the present.
    """
    if not any(_RATE_LIMIT in name for name in headers):
        return None
    holds = [
        _seconds_until(headers.get(reset, ""), now)
        for remaining, reset in _HEADERS
        if _is_none_left(headers.get(remaining))
    ]
    return max((hold for hold in holds if hold > 0), default=None)


def _is_none_left(remaining: str | None) -> bool:
    return remaining is not None and bool(_NUMBER.fullmatch(remaining)) and float(remaining) == 0


def _seconds_until(reset: str, now: datetime | None) -> float:
    """A duration (`1h2m3s`, `20ms`, plain seconds) or a point in time in seconds from now; else 0."""
    reset = reset.strip()
    if _NUMBER.fullmatch(reset):
        return float(reset)
    if reset and not _PART.sub("", reset):
        return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(reset))
    try:
        time = datetime.fromisoformat(reset)
    except ValueError:
        return 0.0
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - (now or datetime.now(UTC))).total_seconds()
