"""Rate limits of a model: concurrent requests, requests and tokens per minute, and adaptation to 429
responses.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol

import anyio

from agentest.models.port import Message
from agentest.support.http.retries import MAX_RETRY_AFTER_S

DEFAULT_CONCURRENCY = 64

_MINUTE_S = 60.0
_BURST = 0.1
"""Share of a minute's allowance that may be used at once after a pause."""
_MIN_WINDOW = 8
"""Minimum number of answers for the share of 429s; otherwise as many as there are slots."""
_TOLERATED_SHARE = 0.25
"""Share of 429s that removes no slots."""
_FAST_GROWTH_LIMIT = 0.85
"""Fraction of the number of slots at the last 429s up to which growth is fast."""
_SLOW_GROWTH_STEP = 16
"""Beyond that, a round of successes returns at least one slot per this many."""
_INSTANT_S = 1e-6
"""Shorter waits are rounding errors of the clock."""
_CHARS_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4


class Pausable(Protocol):
    """A time limit that can be paused during a wait."""

    def paused(self) -> AbstractContextManager[None]:
        """Exclude the time inside of the block."""
        ...


class Limiter:
    """Slots for requests to one model, granted in the order of the requests.

        async with limiter.place(estimate_tokens(messages), limit) as place:
            ...                                  # one attempt
            place.succeeded(usage.total_tokens)  # or place.throttled(retry_after) after a 429; else neither

    The number of slots adapts. It is halved when more than a quarter of the recent answers, about as many as
    there are slots, are 429s. Successes return slots up to `max_concurrency`: one each until near the level
    of the 429s, then a few per round. Beyond that level, the number doubles with each round without a 429.
    """

    def __init__(
        self,
        max_concurrency: int,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        clock: Callable[[], float] = anyio.current_time,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._max_concurrency = max(1, max_concurrency)
        self._clock = clock
        self._sleep = sleep
        self._requests = _Bucket(requests_per_minute, clock) if requests_per_minute else None
        self._tokens = _Bucket(tokens_per_minute, clock) if tokens_per_minute else None
        self._places = self._max_concurrency
        self._taken = 0
        self._held_until: float | None = None
        self._successes = 0
        self._answered = False
        """True if a request succeeded since the last decrease."""
        self._refused = 0.0
        """Moving share of 429s among the answers."""
        self._throttled_at = self._max_concurrency
        """Number of slots at the last decrease."""
        self._step = 1
        self._decreases = 0
        # The first in line holds this lock while it waits for capacity; the others wait for the lock.
        self._line = anyio.Lock()
        self._freed: anyio.Event | None = None

    @property
    def places(self) -> int:
        """Number of requests that may be in progress now."""
        return self._places

    @property
    def in_progress(self) -> int:
        """Number of requests in progress. It exceeds `places` only just after a decrease."""
        return self._taken

    @property
    def counts_tokens(self) -> bool:
        """True if slots need a token estimate."""
        return self._tokens is not None

    def slot(self, tokens_estimate: int = 0, limit: Pausable | None = None) -> RequestSlot:
        """Create a slot for one request, to be entered once with `async with`.

        Args:
            limit: the request's time limit, paused while it waits in line.
        """
        return RequestSlot(self, tokens_estimate, limit)

    def hold(self, seconds: float) -> None:
        """Start no request for this many seconds, at most `MAX_RETRY_AFTER_S`."""
        if seconds > 0:
            until = self._clock() + min(seconds, MAX_RETRY_AFTER_S)
            self._held_until = until if self._held_until is None else max(until, self._held_until)

    async def _take(self, tokens: int, limit: Pausable | None) -> int:
        """Wait for a slot. Returns the number of decreases so far, by which `_throttled` detects older
        requests.
        """
        if not self._take_now(tokens):
            with limit.paused() if limit else nullcontext():
                await self._stand_in_line(tokens)
        return self._decreases

    def _take_now(self, tokens: int) -> bool:
        if self._line.locked() or not self._is_free() or self._delay(tokens):
            return False
        self._start(tokens)
        return True

    async def _stand_in_line(self, tokens: int) -> None:
        async with self._line:
            await self._wait(tokens)
            self._start(tokens)

    async def _wait(self, tokens: int) -> None:
        # Check everything again after each wait, because slots may be removed and holds extended.
        while True:
            if not self._is_free():
                self._freed = anyio.Event()
                await self._freed.wait()
            elif delay := self._delay(tokens):
                await self._sleep(delay)
            else:
                return

    def _is_free(self) -> bool:
        return self._taken < self._places

    def _delay(self, tokens: int) -> float:
        """Return the seconds until rates and holds permit a request with this many tokens."""
        delay = 0.0
        if self._held_until is not None:
            delay = self._held_until - self._clock()
        if self._requests:
            delay = max(delay, self._requests.delay(1))
        if self._tokens:
            delay = max(delay, self._tokens.delay(tokens))
        return delay if delay > _INSTANT_S else 0.0

    def _start(self, tokens: int) -> None:
        self._taken += 1
        if self._requests:
            self._requests.take(1)
        if self._tokens:
            self._tokens.take(tokens)

    def _give_back(self) -> None:
        self._taken -= 1
        self._wake()

    def _wake(self) -> None:
        if self._freed and self._is_free():
            self._freed.set()

    def _unused(self, tokens: int) -> None:
        if self._requests:
            self._requests.take(-1)
        if self._tokens:
            self._tokens.take(-tokens)

    def _used(self, tokens_more: int) -> None:
        if self._tokens:
            self._tokens.take(tokens_more)

    def _succeeded(self, since: int) -> None:
        if since != self._decreases:
            return  # a request sent with more slots shows nothing about the current number
        self._answered = True
        self._refused -= self._refused * self._weight
        if self._places < self._max_concurrency:
            self._grow()

    def _grow(self) -> None:
        if self._places < self._throttled_at * _FAST_GROWTH_LIMIT:
            self._places += 1
        else:
            self._successes += 1
            if self._successes < self._places:
                return
            self._successes = 0
            self._places += max(self._step, self._places // _SLOW_GROWTH_STEP)
            if self._places > self._throttled_at:
                self._step *= 2
        self._places = min(self._places, self._max_concurrency)
        self._wake()

    def _throttled(self, since: int) -> bool:
        """Return True if the 429 concerns all requests: none is answered, or too many are throttled."""
        if since != self._decreases:
            return True  # sent before the last decrease, so part of the same burst
        self._refused += (1 - self._refused) * self._weight
        self._step = 1
        if self._refused <= _TOLERATED_SHARE:
            # An occasional 429 costs only its own pause; fewer slots would slow down all requests.
            return not self._answered
        self._decrease()
        return True

    def _decrease(self) -> None:
        left = max(1, self._places // 2)
        self._throttled_at = self._places
        self._places = left
        self._decreases += 1
        self._successes = 0
        self._refused = 0.0
        self._answered = False

    @property
    def _weight(self) -> float:
        """Weight of one answer in the share of 429s, which covers about one answer per slot."""
        return 1 / max(self._places, _MIN_WINDOW)


class RequestSlot:
    """A slot in a limiter for one request. The request's outcome is reported to it."""

    __slots__ = ("_limit", "_limiter", "_since", "_tokens")

    def __init__(self, limiter: Limiter, tokens: int, limit: Pausable | None) -> None:
        self._limiter = limiter
        self._tokens = tokens
        self._limit = limit
        self._since = 0

    async def __aenter__(self) -> RequestSlot:
        await self.take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()

    async def take(self) -> None:
        """Wait for the slot. `give_back` releases it."""
        self._since = await self._limiter._take(self._tokens, self._limit)

    def take_now(self) -> bool:
        """Take the slot if it is free. Return True if it was taken."""
        self._since = self._limiter._decreases
        return self._limiter._take_now(self._tokens)

    def give_back(self) -> None:
        """Release the slot."""
        self._limiter._give_back()

    def succeeded(self, tokens_used: int) -> None:
        """Record an answer. `tokens_used` replaces the estimate unless it is 0."""
        if tokens_used > 0:
            self._limiter._used(tokens_used - self._tokens)
        self._limiter._succeeded(self._since)

    def throttled(self, retry_after: float | None = None) -> None:
        """Record a 429. No request starts within the seconds that the server requested, unless others are
        answered.
        """
        if self._limiter._throttled(self._since) and retry_after is not None:
            self._limiter.hold(retry_after)

    def unused(self) -> None:
        """Return the slot's share of the rates, because no request was made."""
        self._limiter._unused(self._tokens)


class _Bucket:
    """A token bucket: an allowance per minute with a small burst.

    Usage beyond its contents (a request larger than a burst, a wrong estimate) becomes a debt, which later
    requests wait for.
    """

    __slots__ = ("_burst", "_clock", "_level", "_per_second", "_seen")

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_second = per_minute / _MINUTE_S
        self._burst = max(1.0, per_minute * _BURST)
        self._clock = clock
        self._level = self._burst
        self._seen: float | None = None

    def delay(self, amount: int) -> float:
        """Return the seconds until the amount, or a whole burst if that is smaller, is available."""
        self._refill()
        return (min(amount, self._burst) - self._level) / self._per_second

    def take(self, amount: int) -> None:
        """Use an amount, or return a negative one."""
        self._refill()
        self._level -= amount

    def _refill(self) -> None:
        now = self._clock()
        if self._seen is not None:
            self._level = min(self._level + (now - self._seen) * self._per_second, self._burst)
        self._seen = now


def estimate_tokens(messages: Sequence[Message]) -> int:
    """Estimate the number of tokens in messages. No tokenizer is needed, because the limiter learns the real
    number.
    """
    characters = sum(len(message["content"]) for message in messages)
    return characters // _CHARS_PER_TOKEN + _TOKENS_PER_MESSAGE * len(messages)


_ALLOWANCES = (
    "x-ratelimit-{}-requests",
    "x-ratelimit-{}-tokens",
    "anthropic-ratelimit-requests-{}",
    "anthropic-ratelimit-tokens-{}",
    "anthropic-ratelimit-input-tokens-{}",
    "anthropic-ratelimit-output-tokens-{}",
)
_RATE_LIMIT = "ratelimit"  # part of all rate-limit header names
_HEADERS = tuple((name.format("remaining"), name.format("reset")) for name in _ALLOWANCES)
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|us|µs|ns|[dhms])")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def hold_from_headers(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds until an exhausted allowance is renewed, from rate-limit headers; None if some is
    left.

    Args:
        headers: response headers, with lower-case names or in a case-insensitive mapping.
        now: reference for absolute times; defaults to the current time.
    """
    if _RATE_LIMIT not in "\n".join(headers).lower():
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
    """Parse a duration (`1h2m3s`, `20ms`, plain seconds) or an absolute time, in seconds from now; 0 if
    neither.
    """
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
