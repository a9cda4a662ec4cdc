"""Limits of a model: requests and tokens a minute, which belong to a key (`Quota`).

A request needs a place (`circuit.Places`) and then the quota's consent. Both have a line: user and judges
take turns, the oldest conversation comes first, and a request that got a 429 returns to its old position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

import anyio

from agentest.models.budget import Call, CallerId
from agentest.models.port import Message, Room
from agentest.support.http.retries import MAX_RETRY_AFTER_S, pause_before_retry

DEFAULT_CONCURRENCY = 64

_MINUTE_S = 60.0
_MARGIN = 0.02
"""Share of a configured rate that stays unused, because requests do not arrive exactly as they are sent."""
_INSTANT_S = 1e-6
_MOST_AGES = 10_000
_CHARS_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4


class _Turn(NamedTuple):
    """A position in a line: by the age of the conversation, then of the call."""

    age: int
    number: int
    arrival: int
    woken: list[asyncio.Future[None]]
    """Future that is set when the call may look for capacity; empty after it has left."""


class WaitingLine:
    """Calls that wait for the same capacity. Subclasses say when there is some.

    Users and judges take turns, so neither can starve the other. Among each of them, the oldest conversation
    comes first.
    """

    def __init__(self, clock: Callable[[], float] = anyio.current_time) -> None:
        self._clock = clock
        self._heaps: tuple[list[_Turn], list[_Turn]] = ([], [])
        """Judges' calls and users' calls."""
        self._next = 1
        """The heap whose turn it is."""
        self._waiting = 0
        self._ages: dict[CallerId, int] = {}
        self._arrivals = count()

    def _delay(self, tokens: int, /) -> float:
        """Return the seconds until a request may start; infinite if something else has to end first."""
        raise NotImplementedError

    def _start(self, tokens: int, /) -> None:
        raise NotImplementedError

    def take_now(self, call: Call, tokens: int = 0) -> bool:
        """Start a request if that is possible without waiting. Return True if it was started."""
        if call.asker and call.asker not in self._ages:
            if len(self._ages) >= _MOST_AGES:
                self._ages.clear()
            self._ages[call.asker] = next(self._arrivals)
        if self._waiting or self._delay(tokens):
            return False
        self._start(tokens)
        return True

    async def take(self, call: Call, tokens: int = 0) -> None:
        """Wait until the request may start. The call's time limit is paused, unless it got a 429 before."""
        if self.take_now(call, tokens):
            return
        loop = asyncio.get_running_loop()
        turn = _Turn(self._ages.get(call.asker, 0), call.number, next(self._arrivals), [loop.create_future()])
        heap = self._heaps[call.is_user]
        heappush(heap, turn)
        self._waiting += 1
        with nullcontext() if call.was_throttled else call.limit.paused():
            try:
                # Check everything again after each wait, because capacity may be removed and pauses extended.
                while self._first() is not turn or (delay := self._delay(tokens)):
                    if turn.woken[0].done():
                        turn.woken[0] = loop.create_future()
                    if self._first() is turn and delay < inf:
                        with anyio.move_on_after(delay):
                            await turn.woken[0]
                    else:
                        await turn.woken[0]
                self._start(tokens)
                self._next = not call.is_user
            finally:
                turn.woken.clear()
                self._waiting -= 1
                self._wake()

    def _first(self) -> _Turn | None:
        for heap in self._heaps:
            while heap and not heap[0].woken:
                heappop(heap)
        heap = self._heaps[self._next] or self._heaps[not self._next]
        return heap[0] if heap else None

    def _wake(self) -> None:
        if self._waiting and (first := self._first()) and not first.woken[0].done():
            first.woken[0].set_result(None)


ALONE_S = 3.0
"""How long others wait for the first request, which shows whether and how a model answers."""
_FIRST_AT_ONCE, _FIRST_PER_S, _MORE_PER_S = 8, 100.0, 10.0
"""Requests at once and per second after the first answer. Each further answer allows more."""
_PROVEN = 64
"""After so many answers, a model is taken to have no small quota."""
_LEARNT_FROM = 4
"""Answers from which a rate can be learnt."""
_SHARE_OF, _MOST_STRAY = 40, 0.12
"""More 429s than this share of the latest answers are not stray ones."""
_STRAY_PAUSE_S = 0.2
_LEAST_PER_S, _MOST_PER_S = 0.05, 1000.0
_LEAST_FALL, _LARGEST_FALL, _RARE = 0.97, 0.7, 8
"""Factors of the rate at a 429: the first if so many answers came between the latest three 429s."""
_SLOW_RISE, _FAST_RISE, _CLEAN = 0.0015, 0.025, 20
"""By how much an answer raises the rate; the slow rise becomes faster with every so many answers."""
_LONG_S = 8.0
_NEAR = 0.97
"""Part of the rate at the last 429 from which the rise is slow."""
_UNLIMITED = Room()


class Quota(WaitingLine):
    """The requests and tokens that a provider allows for one key and model: the least of three limits.

    1. Configured rates. Requests start evenly, so that a minute never sees more than its allowance.
    2. What the headers of the latest answer say is left. No more than that is in progress.
    3. What was learnt from 429s. The first request is alone; answers let more and more start. A 429 sets the
       rate to what was answered so far. After that each 429 lowers it a little, and answers raise it slowly.

    Several 429s in a row pause all requests, for as long as the provider asks or, at least, for a growing
    time. Then one request at a time finds out whether the pause was long enough.

    Args:
        eager: True to start as many requests as there are places, until the first 429.
    """

    def __init__(self, *, eager: bool = False, clock: Callable[[], float] = anyio.current_time) -> None:
        super().__init__(clock)
        self.in_progress = 0
        self.lowered = 0
        """How many times a 429 changed the limit, which tells older requests from newer ones."""
        self.rate: float | None = None
        """Learnt requests per second; None before it was learnt."""
        self._request_s = self._token_s = 0.0
        """Seconds that a request, and a token, use up of a configured rate."""
        self._next_request = self._next_tokens = self._next_learnt = self._paused_until = 0.0
        self._answers = _PROVEN if eager else 0
        """Answers before any 429, up to `_PROVEN`."""
        self._room = _UNLIMITED
        self.counts_tokens = False
        """True if requests must say how many tokens they take."""
        self._reserved = 0
        """Tokens of the requests in progress."""
        self._row = 0
        """Number of 429s since the last answer."""
        self._clean, self._gap = 0, _RARE
        """Number of answers since the last 429, and between the last two."""
        self._since = inf
        """When the first request after the one alone started."""
        self._accepted = 0
        """Requests since then that got no 429."""
        self._peak = 0.0
        self._share = 0.0
        """Moving share of 429s among the answers."""

    def require(self, requests_per_minute: int | None, tokens_per_minute: int | None) -> None:
        """Apply configured rates, unless lower ones apply already."""
        for per_minute, name in ((requests_per_minute, "_request_s"), (tokens_per_minute, "_token_s")):
            if per_minute:
                seconds = _MINUTE_S / (per_minute * (1 - _MARGIN))
                setattr(self, name, max(getattr(self, name), seconds))
        self.counts_tokens = self._token_s > 0

    def _delay(self, tokens: int, /) -> float:
        room, is_free = self._room, self._is_free
        if is_free and room is _UNLIMITED:
            return 0.0
        most = inf if self._answers >= _PROVEN or self.rate else _FIRST_AT_ONCE + self._answers
        most = 1 if self._row > 1 else min(most, max(1, room.requests))
        is_too_large = self.in_progress and self._reserved + tokens > room.tokens
        if self.in_progress >= most or is_too_large:
            return inf
        waits_for = (self._paused_until, self._next_request, self._next_tokens, self._next_learnt)
        delay = 0.0 if is_free else max(waits_for) - self._clock()
        return delay if delay > _INSTANT_S else 0.0

    @property
    def _is_free(self) -> bool:
        """True if nothing but headers limits the requests."""
        rates = self._request_s or self._token_s or self.rate or self._paused_until
        return not rates and self._answers >= _PROVEN

    def _start(self, tokens: int, /) -> None:
        self.in_progress += 1
        self._reserved += tokens
        if self._is_free:
            return
        now = self._clock()
        if self._answers or self.in_progress > 1:  # the first request is alone, which tells no rate
            self._since = min(self._since, now)
        self._accepted += self._since < inf
        self._next_request = max(now, self._next_request) + self._request_s
        self._next_tokens = max(now, self._next_tokens) + tokens * self._token_s
        first = _FIRST_PER_S + _MORE_PER_S * self._answers if self._answers else 1 / ALONE_S
        per_s = self.rate or (first if self._answers < _PROVEN else inf)
        self._next_learnt = max(now, self._next_learnt) + 1 / per_s

    def give_back(self, tokens: int, *, made: bool = True) -> None:
        """Record that a request has ended, or that it was not made.

        Args:
            tokens: the estimate with which it started.
        """
        self.in_progress -= 1
        self._reserved -= tokens
        if not made:
            self._next_request -= self._request_s
            self.settle(tokens, 0)
        if not made or not (self.in_progress or self._answers):
            self._next_learnt = 0.0
        self._wake()

    def settle(self, reserved: int, used: int) -> None:
        """Replace the estimate of a request's tokens by what it used."""
        self._next_tokens += (used - reserved) * self._token_s

    def succeeded(self, since: int, room: Room | None) -> None:
        """Record the answer to a request that was sent when the limit had changed this many times."""
        self._room = room or _UNLIMITED
        if room:
            self.counts_tokens = True
            self._pause(room.pause_s)
            if room.requests < inf and self.rate is None:
                self._answers = _PROVEN  # the provider says how far one may go
        if not self._answers:
            self._next_learnt = 0.0  # the others need not wait any longer
        self._answers += self._answers < _PROVEN
        self._share -= self._share / _SHARE_OF
        if since == self.lowered:
            self._row = 0
            self._clean += 1
            if self.rate:
                slow = min(_FAST_RISE, _SLOW_RISE * (1 + self._clean // _CLEAN))
                rise = slow if self.rate >= _NEAR * self._peak else _FAST_RISE
                self.rate = min(self.rate * (1 + rise), _MOST_PER_S)

    def throttled(self, since: int, retry_after: float | None) -> None:
        """Record a 429 to a request that was sent when the limit had changed this many times."""
        self._accepted -= self._since < inf
        if since != self.lowered:
            return  # sent before the last change, so part of the same storm
        self._row += 1
        self._share += (1 - self._share) / _SHARE_OF
        between = self._clean + self._gap
        self._clean, self._gap = 0, self._clean
        if self.rate and self._row == 1:
            # If every third request of the latest is refused, the rate is too high by a third.
            fall = _LEAST_FALL if between >= _RARE else max(between / (between + 2), _LARGEST_FALL)
            self._peak, self.rate = self.rate, max(self.rate * fall, _LEAST_PER_S)
        elif self._row > 1 or self._share > _MOST_STRAY or (retry_after or 0.0) > MAX_RETRY_AFTER_S:
            self._lower(retry_after or 0.0)
        elif self._answers < _PROVEN:  # it may be a stray one: a few requests find out
            self._answers //= 2
            self._pause(_STRAY_PAUSE_S)

    def _lower(self, asked_for: float) -> None:
        self.lowered += 1
        now, least = self._clock(), pause_before_retry(self._row + 1)
        self._pause(max(least, asked_for if asked_for <= MAX_RETRY_AFTER_S else 0.0))
        if self._accepted < _LEARNT_FROM:
            self._answers = 0  # the next request is alone again
        elif self.rate is None:
            self.rate = max(self._accepted / (now - self._since + max(least, asked_for)), _LEAST_PER_S)
            # What was answered in a minute or more says more than what was answered before the first 429.
            self._peak = self.rate if asked_for > _LONG_S else inf
            self._next_learnt = now

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            self._paused_until = max(self._paused_until, self._clock() + min(seconds, MAX_RETRY_AFTER_S))


def estimate_tokens(messages: Sequence[Message], further_chars: int = 0) -> int:
    """Estimate the tokens in messages and more text, without a tokenizer: the quota learns the number."""
    characters = sum(len(message["content"]) for message in messages) + further_chars
    return characters // _CHARS_PER_TOKEN + _TOKENS_PER_MESSAGE * len(messages)
