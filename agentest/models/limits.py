"""How many requests a model gets at a time and per minute, and what its 429s teach about that."""

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
"""The part of a minute's allowance that may be used at once, after a pause."""
_LEAST_WINDOW = 8
"""Of so many answers at least the share of 429s is made; else of as many as there are places."""
_TOLERATED = 0.25
"""Share of 429s that takes no places away."""
_FAST = 0.85
"""The part of the places at which 429s came last up to which growth is fast."""
_SMOOTH = 16
"""From there, a round of successes gives back at least one place for so many."""
_INSTANT_S = 1e-6
"""Waits that are rounding errors of the clock."""
_CHARS_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4


class Pausable(Protocol):
    """A time limit of which waiting may be left out."""

    def paused(self) -> AbstractContextManager[None]:
        """What is waited for meanwhile does not count."""
        ...


class Limiter:
    """Places for requests to one model, given in the order in which they were asked for.

        async with limiter.place(estimate_tokens(messages), limit) as place:
            ...                                  # one attempt
            place.succeeded(usage.total_tokens)  # or place.throttled(retry_after) after a 429; else neither

    The places adapt: when more than a quarter of about as many answers as there are places are 429s, they are
    halved. Successes give them back, up to `max_concurrency`: one each until near where the 429s came, then a
    few with every round; beyond it, twice as many with each round that saw no 429.
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
        """Whether there was a success since the last decrease."""
        self._refused = 0.0
        """Moving share of 429s among the answers."""
        self._throttled_at = self._max_concurrency
        """How many places there were when they were halved last."""
        self._step = 1
        self._decreases = 0
        # The first in line holds this lock while it waits for what it lacks; the others wait for the lock.
        self._line = anyio.Lock()
        self._freed: anyio.Event | None = None
        self.on_short: Callable[[], None] = lambda: None
        """Is called when somebody has to stand in line: who holds a place ahead of need may give it back."""

    @property
    def places(self) -> int:
        """How many requests may be under way now."""
        return self._places

    @property
    def taken(self) -> int:
        """How many are under way. More than `places` only just after a decrease."""
        return self._taken

    @property
    def counts_tokens(self) -> bool:
        """Whether places need an estimate of tokens."""
        return self._tokens is not None

    def place(self, tokens_estimate: int = 0, limit: Pausable | None = None) -> Place:
        """A place for one request, to be entered with `async with` once.

        Args:
            limit: that of the request, which does not count the time that it stands in line.
        """
        return Place(self, tokens_estimate, limit)

    def spare(self, tokens_estimate: int = 0) -> int:
        """How many places of so many tokens may be taken ahead of need: half of what nobody asks for."""
        if self._line.locked() or self._delay(tokens_estimate):
            return 0
        free = float(self._places - self._taken)
        if self._requests:
            free = min(free, self._requests.level)
        if self._tokens:
            free = min(free, self._tokens.level / max(1, tokens_estimate))
        return max(0, int(free) // 2)

    def hold(self, seconds: float) -> None:
        """Let no request start for a while, at most `MAX_RETRY_AFTER_S`."""
        if seconds > 0:
            self.on_short()
            until = self._clock() + min(seconds, MAX_RETRY_AFTER_S)
            self._held_until = until if self._held_until is None else max(until, self._held_until)

    async def _take(self, tokens: int, limit: Pausable | None) -> int:
        """Wait for a place; the number of decreases so far, by which `_throttled` knows older requests."""
        if not self._take_now(tokens):
            self.on_short()
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
        # Everything may have changed after each wait: places go away, holds are prolonged.
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
        """Seconds until the rates and holds let a request of so many tokens start."""
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
            return  # what was sent with more places says nothing of how many there may be now
        self._answered = True
        self._refused -= self._refused * self._weight
        if self._places < self._max_concurrency:
            self._grow()

    def _grow(self) -> None:
        if self._places < self._throttled_at * _FAST:
            self._places += 1
        else:
            self._successes += 1
            if self._successes < self._places:
                return
            self._successes = 0
            self._places += max(self._step, self._places // _SMOOTH)
            if self._places > self._throttled_at:
                self._step *= 2
        self._places = min(self._places, self._max_concurrency)
        self._wake()

    def _throttled(self, since: int) -> bool:
        """Whether the 429 says something of all requests: none is answered, or too many are not."""
        if since != self._decreases:
            return True  # sent before the last decrease: of the same burst
        self._refused += (1 - self._refused) * self._weight
        self._step = 1
        if self._refused <= _TOLERATED:
            # One now and then costs its own pause: fewer places would cost all the others'.
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
        """Of one answer in the share of 429s: it is made of about as many as there are places."""
        return 1 / max(self._places, _LEAST_WINDOW)


class Place:
    """A place in a limiter, held by one request; what became of the request is reported to it."""

    __slots__ = ("_limit", "_limiter", "_since", "_tokens")

    def __init__(self, limiter: Limiter, tokens: int, limit: Pausable | None) -> None:
        self._limiter = limiter
        self._tokens = tokens
        self._limit = limit
        self._since = 0

    async def __aenter__(self) -> Place:
        await self.take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()

    async def take(self) -> None:
        """Wait for the place; to be given back."""
        self._since = await self._limiter._take(self._tokens, self._limit)

    def take_now(self) -> bool:
        """Take the place, to be given back, if nobody has to wait for it; whether it was taken."""
        self._since = self._limiter._decreases
        return self._limiter._take_now(self._tokens)

    def take_anyway(self) -> None:
        """Take the place, free or not: its request is being made."""
        self._limiter._start(self._tokens)

    def estimate(self, tokens: int) -> None:
        """The request that is made now takes so many tokens: the place was taken before they were known."""
        self._limiter._used(tokens - self._tokens)
        self._tokens = tokens

    def give_back(self) -> None:
        """Leave it to somebody else."""
        self._limiter._give_back()

    def succeeded(self, tokens_used: int) -> None:
        """The request was answered. `tokens_used` replaces the estimate; 0 where it is not known."""
        if tokens_used > 0:
            self._limiter._used(tokens_used - self._tokens)
        self._limiter._succeeded(self._since)

    def throttled(self, retry_after: float | None = None) -> None:
        """The request was answered with 429. Nobody starts within the seconds that the server asked for,
        unless others are being answered."""
        if self._limiter._throttled(self._since) and retry_after is not None:
            self._limiter.hold(retry_after)

    def unused(self) -> None:
        """No request was made: what it would have used of the rates is given back."""
        self._limiter._unused(self._tokens)


class _Bucket:
    """A token bucket: what may be used per minute, evenly but for a modest burst.

    What is used beyond its contents (a request larger than a burst, a wrong estimate) is a debt that later
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
        """Seconds until there is enough for an amount, or a whole burst, if it is larger than that."""
        self._refill()
        return (min(amount, self._burst) - self._level) / self._per_second

    @property
    def level(self) -> float:
        """What may be used now."""
        self._refill()
        return self._level

    def take(self, amount: int) -> None:
        """Use an amount, or give a negative one back."""
        self._refill()
        self._level -= amount

    def _refill(self) -> None:
        now = self._clock()
        if self._seen is not None:
            self._level = min(self._level + (now - self._seen) * self._per_second, self._burst)
        self._seen = now


def estimate_tokens(messages: Sequence[Message]) -> int:
    """About how many tokens messages have. No tokenizer: the limiter receives afterwards what was used."""
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
