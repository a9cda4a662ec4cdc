"""Limits of a model: requests and tokens a minute, which belong to a key (`Quota`).

A request needs a place (`circuit.Places`) and then the quota's consent. Both have a line: user and judges
take turns, the oldest conversation comes first, and a request that got a 429 returns to its old position.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

import anyio

from agentest.domain.results import QuotaUse
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

    def __init__(self) -> None:
        self._heaps: tuple[list[_Turn], list[_Turn]] = ([], [])
        """Judges' calls and users' calls."""
        self._next = 1
        """The heap whose turn it is."""
        self.waiting = 0  # number of calls
        self._waiting_since = self.waited_s = 0.0
        self._ages: dict[CallerId, int] = {}
        self._arrivals = count()
        self.on_wait: Callable[[], None] = lambda: None
        """Called when a call begins to wait."""

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
        if self.waiting or self._delay(tokens):
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
        if not self.waiting:
            self._waiting_since = anyio.current_time()
        self.waiting += 1
        self.on_wait()
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
                self.waiting -= 1
                if not self.waiting:
                    self.waited_s += anyio.current_time() - self._waiting_since
                self._wake()

    def _first(self) -> _Turn | None:
        for heap in self._heaps:
            while heap and not heap[0].woken:
                heappop(heap)
        heap = self._heaps[self._next] or self._heaps[not self._next]
        return heap[0] if heap else None

    def _wake(self) -> None:
        if self.waiting and (first := self._first()) and not first.woken[0].done():
            first.woken[0].set_result(None)


FIRST_GAP_S = 0.5
"""How long the second request waits for an answer to the first, because most refusals come sooner."""
_LEAST_GAP_S = 0.1
_SOONER = 3
"""By how much of the first gap each answer shortens the later ones."""
_PROVEN = 64
"""After so many answers, a model is taken to have no small quota."""
_LEARNT_FROM = 4
"""Requests without a 429 from which a rate can be learnt."""
_WINDOWS_S = (1.0, 10.0, _MINUTE_S)
"""Times over which providers count. They round `Retry-After` up to a second."""
_WINDOW_MARGIN, _HURRY = 1.03, 1.5
"""By how much a window is stretched, as arrivals vary, and how much faster than evenly requests start."""
_LEAST_PER_S, _FALL = 0.05, 0.95
"""The lowest rate, and its factor at a 429. It falls by up to half if less was accepted lately."""
_RISE, _FASTER, _MOST_RISE = 0.0005, 1.13, 0.3
"""Share by which an answer raises the limit: after a 429, its factor of each answer, most in a window."""
_UNLIMITED = Room()


class Quota(WaitingLine):
    """The requests and tokens that a provider allows for one key and model: the least of three limits.

    1. Configured rates. Requests start evenly, so that a minute never sees more than its allowance.
    2. What the headers of the latest answer say is left. No more than that is in progress.
    3. What was learnt from 429s: how many requests may start within a window, or, if a 429 asks for no pause,
       be in progress. Each 429 lowers it, and answers raise it, slowly at first.

    Several 429s in a row pause all requests, for as long as the provider asks or, at least, for a growing
    time. Then one request at a time finds out whether the pause was long enough.

    Args:
        eager: True to start as many requests as there are places, until the first 429.
    """

    def __init__(self, *, eager: bool = False) -> None:
        super().__init__()
        self.model = ""
        self.in_progress = 0
        self.lowered = 0
        """How many times a 429 lowered something, which tells older requests from newer ones."""
        self.rate: float | None = None
        """Learnt requests per second; None before it was learnt."""
        self._window_s = _WINDOWS_S[0]
        self._most = inf
        """Learnt number of requests in progress."""
        self._rise = _RISE
        self._request_s = self._token_s = 0.0
        """Seconds that a request, and a token, use up of a configured rate."""
        self._next_request = self._next_tokens = self._next_learnt = self._paused_until = 0.0
        self._answers = _PROVEN if eager else 0
        """Answers before any 429, up to `_PROVEN`."""
        self._room = _UNLIMITED
        self._reserved = 0
        """Tokens of the requests in progress."""
        self._row = 0
        """Number of 429s since the last answer."""
        self._starts = deque[float]()
        """When the requests of the last minute started, without those that got a 429."""
        self.requests = self.tokens = self.refused = 0

    def require(self, requests_per_minute: int | None, tokens_per_minute: int | None) -> None:
        """Apply configured rates, unless lower ones apply already."""
        minute_s = _MINUTE_S / (1 - _MARGIN)
        self._request_s = max(self._request_s, minute_s / (requests_per_minute or inf))
        self._token_s = max(self._token_s, minute_s / (tokens_per_minute or inf))

    def _delay(self, tokens: int, /) -> float:
        if self.is_unlimited:
            return 0.0
        room = self._room
        most = 1 if self._row > 1 else max(1, min(room.requests, self._most))
        is_too_large = self.in_progress and self._reserved + tokens > room.tokens
        if self.in_progress + 1 > most or is_too_large:
            return inf
        waits_for = (self._next_request, self._next_tokens, self._next_learnt, self._starts_at)
        delay = max(waits_for) - anyio.current_time()
        return delay if delay > _INSTANT_S else 0.0

    @property
    def is_unlimited(self) -> bool:
        """True if any number of requests may start at any time."""
        return self._answers >= _PROVEN and self._room is _UNLIMITED and not self.is_limited

    @property
    def is_limited(self) -> bool:
        """True if a configured rate, a 429 or what headers said limits the requests."""
        return bool(self._request_s or self._token_s or self.rate or self._paused_until or self._most < inf)

    @property
    def use(self) -> QuotaUse:
        """What was used so far."""
        waited_ms, rate = 1000 * self.waited_s * self.is_limited, self.rate and self.rate * _MINUTE_S
        allowed = self._room.requests_per_minute, self._room.tokens_per_minute
        return QuotaUse(self.model, self.requests, self.tokens, self.refused, waited_ms, rate, *allowed)

    def _start(self, tokens: int, /) -> None:
        self.in_progress += 1
        self._reserved += tokens
        now = self.count(1)
        if self.is_unlimited:
            return
        self._next_request = max(now, self._next_request) + self._request_s
        self._next_tokens = max(now, self._next_tokens) + tokens * self._token_s
        self._next_learnt = max(now, self._next_learnt) + self._gap_s

    def count(self, requests: int, tokens: int = 0) -> float:
        """Count requests that start now, and tokens that they used. Return the time."""
        self.requests, self.tokens = self.requests + requests, self.tokens + tokens
        now = anyio.current_time()
        self._starts.extend([now] * requests)
        while self._starts[0] < now - _MINUTE_S:
            self._starts.popleft()
        return now

    @property
    def _gap_s(self) -> float:
        """The seconds until the next request may start, if there was no 429."""
        if self.rate or self._answers >= _PROVEN:
            return 0.0
        # A request that gets no 429 for a while is likely to be accepted, however long its answer takes.
        first = max(_LEAST_GAP_S, FIRST_GAP_S / self.in_progress)
        return first / (1 + _SOONER * self._answers)

    def give_back(self, tokens: int, *, made: bool = True) -> None:
        """Record that a request has ended, or that it was not made.

        Args:
            tokens: the estimate with which it started.
        """
        self.in_progress -= 1
        self._reserved -= tokens
        if not made:
            self.requests -= 1
            self._next_request -= self._request_s
            self.settle(tokens, 0)
        if not made or not (self.in_progress or self._answers):
            self._next_learnt = 0.0
        self._wake()

    def settle(self, reserved: int, used: int) -> None:
        """Replace the estimate of a request's tokens by what it used."""
        self._next_tokens += (used - reserved) * self._token_s

    def succeeded(self, since: int, room: Room | None) -> None:
        """Record the answer to a request that was sent after so many 429s lowered something."""
        self._room = room or _UNLIMITED
        if room:
            self._pause(room.pause_s)
            if room.requests < inf and self.rate is None:
                self._answers, self._next_learnt = _PROVEN, 0.0  # the provider says how far one may go
        if not self._answers:
            self._next_learnt = 0.0  # the others need not wait any longer
        self._answers += self._answers < _PROVEN
        if since == self.lowered:
            self._row = 0
            if since:
                rise = 1 + min(self._rise, _MOST_RISE / (self._amount if self.rate else self._most))
                self._rise *= _FASTER
                self._most *= rise
                self.rate = self.rate and self.rate * rise

    @property
    def _amount(self) -> int:
        """Requests that may start within a window."""
        return max(1, round((self.rate or 0) * self._window_s))

    @property
    def _starts_at(self) -> float:
        """When the next request may start, by the learnt limit."""
        if not (self.rate and self._starts):
            return self._paused_until
        at, amount = self._starts[-1] + 1 / self.rate / _HURRY, self._amount
        if len(self._starts) >= amount:
            at = max(at, self._starts[-amount] + amount / self.rate * _WINDOW_MARGIN)
        return max(self._paused_until, at)

    def throttled(self, since: int, retry_after: float | None) -> None:
        """Record a 429 to a request that was sent after so many 429s lowered something."""
        if self._starts:
            self._starts.pop()
        if since != self.lowered:  # part of the same storm
            return
        self.lowered += 1
        self._row += 1
        self._rise = _RISE
        now, others, asked_for = anyio.current_time(), self.in_progress - 1, retry_after or 0.0
        is_first = self._row == 1
        if is_first and not self.rate and retry_after is None and 1 < others < self._most:
            self._most = others
            return
        least = pause_before_retry(self._row + 1)
        if self.rate and self._row < 3:  # more in a row say that the pause was too short
            seconds = max(self._window_s, 4 / self.rate) if is_first else self._amount / self.rate / 4
            recent = (1 + sum(at > now - seconds for at in self._starts)) / seconds
            self.rate = max(min(self.rate * _FALL, recent), self.rate / 2, _LEAST_PER_S)
            if is_first or asked_for <= _WINDOWS_S[0]:
                return
        elif len(self._starts) < _LEARNT_FROM:
            self._answers = 0
        elif self.rate is None and asked_for <= _MINUTE_S:
            self._learn(now, now + max(least, asked_for))
            if is_first:
                return
        self._pause(max(least, asked_for if asked_for <= MAX_RETRY_AFTER_S else 0.0))

    def _learn(self, now: float, end: float) -> None:
        """Take what was accepted as the limit, if requests are accepted again at `end`."""
        self._most = inf
        self._window_s = end - self._starts[0]
        for seconds in _WINDOWS_S:
            starts = [at for at in self._starts if at > now - seconds]
            if len(starts) >= _LEARNT_FROM and abs(starts[0] + seconds - end) <= _WINDOWS_S[0]:
                self._window_s = seconds
                break
        self.rate = sum(at > now - self._window_s for at in self._starts) / self._window_s

    def restart(self) -> None:
        """Start requests as slowly as the first ones, because a long pause may soon concern all of them."""
        self._answers = 0
        self._next_learnt = max(self._next_learnt, anyio.current_time() + FIRST_GAP_S)

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            until = anyio.current_time() + min(seconds, MAX_RETRY_AFTER_S)
            self._paused_until = max(self._paused_until, until)


def estimate_tokens(messages: Sequence[Message], further_chars: int = 0) -> int:
    """Estimate the tokens in messages and more text, without a tokenizer: the quota learns the number."""
    characters = sum(len(message["content"]) for message in messages) + further_chars
    return characters // _CHARS_PER_TOKEN + _TOKENS_PER_MESSAGE * len(messages)
