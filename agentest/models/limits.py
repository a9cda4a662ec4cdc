"""Rate limits of a model: concurrent requests, requests and tokens per minute, and adaptation to 429
responses.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
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
_CHARS_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4


class Pausable(Protocol):
    """The time limit of a call. It is paused while the call waits in line."""

    @property
    def ends_at(self) -> float:
        """End of the limit, on the event loop's clock."""

    def paused(self) -> AbstractContextManager[None]: ...


class Limiter:
    """Slots for requests to one model, granted in the order of the requests. `LocalAttempt` uses them.

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
        self.counts_tokens = self._tokens is not None
        self.places = self._max_concurrency
        """Number of requests that may be in progress now."""
        self.in_progress = 0
        """Number of requests in progress. It exceeds `places` only just after a decrease."""
        self.decreases = 0
        """Number of decreases so far, which tells older requests from newer ones."""
        self._may_delay = bool(requests_per_minute or tokens_per_minute)
        """False if neither rates nor holds have ever limited the requests."""
        self._held_until: float | None = None
        self._successes = 0
        self._answered = False
        """True if a request succeeded since the last decrease."""
        self._refused = 0.0
        """Moving share of 429s among the answers."""
        self._throttled_at = self._max_concurrency
        """Number of slots at the last decrease."""
        self._step = 1
        # Futures of the calls that wait. The first one's is set when it may look for capacity.
        self._line: deque[asyncio.Future[None]] = deque()

    def hold(self, seconds: float) -> None:
        """Start no request for this many seconds, at most `MAX_RETRY_AFTER_S`."""
        if seconds > 0:
            self._may_delay = True
            until = self._clock() + min(seconds, MAX_RETRY_AFTER_S)
            self._held_until = until if self._held_until is None else max(until, self._held_until)

    def take_now(self, tokens: int) -> bool:
        """Take a slot if one is free. Return True if it was taken."""
        if self._line or self.in_progress >= self.places or (self._may_delay and self._delay(tokens)):
            return False
        self._start(tokens)
        return True

    async def take(self, tokens: int, limit: Pausable) -> None:
        """Wait for a slot. `limit` is paused meanwhile."""
        if self.take_now(tokens):
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._line.append(turn)
        with limit.paused():
            try:
                # Check everything again after each wait, because slots may be removed and holds extended.
                while True:
                    if self._line[0] is not turn or self.in_progress >= self.places:
                        if turn.done():
                            turn = self._line[0] = loop.create_future()
                        await turn
                    elif self._may_delay and (delay := self._delay(tokens)):
                        await self._sleep(delay)
                    else:
                        self._start(tokens)
                        return
            finally:
                self._line.remove(turn)
                self._wake()

    def _delay(self, tokens: int) -> float:
        delay = self._held_until - self._clock() if self._held_until is not None else 0.0
        if self._requests:
            delay = max(delay, self._requests.delay(1))
        if self._tokens:
            delay = max(delay, self._tokens.delay(tokens))
        return delay if delay > _INSTANT_S else 0.0

    def _start(self, tokens: int) -> None:
        self.in_progress += 1
        if self._may_delay:
            self.use(tokens, 1)

    def use(self, tokens: int, requests: int = 0) -> None:
        """Use some of the rates, or return a negative number."""
        if self._requests and requests:
            self._requests.take(requests)
        if self._tokens:
            self._tokens.take(tokens)

    def give_back(self) -> None:
        """Release a slot."""
        self.in_progress -= 1
        if self._line:
            self._wake()

    def _wake(self) -> None:
        if self._line and self.in_progress < self.places and not self._line[0].done():
            self._line[0].set_result(None)

    def succeeded(self, since: int) -> None:
        """Record the answer to a request that was sent after this many decreases."""
        if since != self.decreases:
            return  # a request sent with more slots shows nothing about the current number
        self._answered = True
        if self._refused:
            self._refused -= self._refused * self._weight
        if self.places < self._max_concurrency:
            self._grow()

    def _grow(self) -> None:
        if self.places < self._throttled_at * _FAST_GROWTH_LIMIT:
            self.places += 1
        else:
            self._successes += 1
            if self._successes < self.places:
                return
            self._successes = 0
            self.places += max(self._step, self.places // _SLOW_GROWTH_STEP)
            if self.places > self._throttled_at:
                self._step *= 2
        self.places = min(self.places, self._max_concurrency)
        self._wake()

    def throttled(self, since: int, retry_after: float | None) -> None:
        """Record a 429 to a request that was sent after this many decreases.

        No request starts within the seconds that the server requested if the 429 concerns all requests: none
        is answered, or too many are throttled.
        """
        of_all = True  # sent before the last decrease, so part of the same burst
        if since == self.decreases:
            self._refused += (1 - self._refused) * self._weight
            self._step = 1
            if self._refused > _TOLERATED_SHARE:
                self._decrease()
            else:  # an occasional 429 costs only its own pause; fewer slots would slow down all requests
                of_all = not self._answered
        if of_all and retry_after is not None:
            self.hold(retry_after)

    def _decrease(self) -> None:
        self._throttled_at = self.places
        self.places = max(1, self.places // 2)
        self.decreases += 1
        self._successes = 0
        self._refused = 0.0
        self._answered = False

    @property
    def _weight(self) -> float:
        return 1 / max(self.places, _MIN_WINDOW)


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
    """Estimate the tokens in messages, without a tokenizer: the limiter learns the real number."""
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
_PART = re.compile(r"(?<![0-9])([0-9]+(?:\.[0-9]+)?)(ms|us|µs|ns|[dhms])")
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
        _seconds_until(headers.get(reset, "").strip(), now)
        for remaining, reset in _HEADERS
        if _NUMBER.fullmatch(left := headers.get(remaining, "")) and float(left) == 0
    ]
    return max((hold for hold in holds if hold > 0), default=None)


def _seconds_until(reset: str, now: datetime | None) -> float:
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
