"""What failures of a model change: its circuit breaker, and how many requests it gets at once.

During an outage, calls wait together or fail together. Overload takes places away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import field
from math import ceil, inf

import anyio

from agentest.models.limits import WaitingLine
from agentest.models.port import TransientError
from agentest.support.errors import ModelUnavailable
from agentest.support.http.retries import MAX_RETRY_AFTER_S
from agentest.support.lazy_dataclasses import dataclass

_FAILURES = 3
_STORM_S = 90.0
"""Seconds of nothing but 429s after which the model counts as down. A quota for a minute is over by then."""
_STALE_S = 240.0  # failures that are further apart are no outage
_WRONG_ADDRESS_S = 60.0  # seconds to wait for a model if nothing in this run shows that its address is right
_FIRST_PROBE_S = 0.25
_MAX_PROBE_S = 3.0
_COOL_DOWN_S = 30.0
RAISE_TIMEOUT = "; raise `timeout_ms` if the model takes longer"


@dataclass(slots=True)
class _Streak:
    since: float
    last: float
    failed: int = 0
    throttled: int = 0
    misaddressed: bool = True  # True if a wrong address may have caused all of them
    late: bool = True  # True if all of them ended at `timeout_ms`

    def add(self, error: TransientError, now: float) -> None:
        self.last = now
        self.late = self.late and error.late
        self.misaddressed = self.misaddressed and error.misaddressed
        self.throttled += error.throttled
        self.failed += not error.throttled

    def is_outage(self, now: float, storm_s: float) -> bool:
        is_storm = self.throttled >= _FAILURES and now - self.since >= storm_s
        return self.failed >= _FAILURES or is_storm


class ModelState:
    """What a process knows about a model of the run. `waits`: calls wait for the model while it is down."""

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits
        self.is_open = False  # True if the model is down, so that only a probe may call it
        self.problem = ""  # why it is down
        self.answers = 0
        """Number of requests that the server answered, including rejections (400). It never decreases."""


@dataclass(eq=False)
class Circuit(ModelState):
    """The state of one model in a run: up or down, and which call may probe it.

    All calls wait together for a model that answers none of them, from the first request on. The model is
    given up when no call got an answer for a whole deadline, or after a minute if it never answered in this
    run and its address may be wrong.
    """

    model: str
    deadline_s: float = 0.0  # how long calls wait for the model; 0 means not at all
    announce: Callable[[str], None] = lambda _: None
    """Receives a message when a noticeable wait begins and when it ends."""
    stop: Callable[[str], None] = lambda _: None
    """Ends the run, for the reason that the model refuses every request for now or for good."""
    clock: Callable[[], float] = anyio.current_time
    waits_begun: int = 0  # number of outages so far
    on_change: Callable[[], None] = lambda: None
    """Called when the circuit opens or closes, or when the reason changes."""
    _refuses: bool = False
    """True if calls end at once. After a while one probes."""
    _streak: _Streak | None = None
    _probe: object = None  # the call that probes or waits to probe; None if the next call will
    _probe_at: float = 0.0
    _advice: str = ""  # advice for a model that was given up, to follow a semicolon
    _interval_s: float = _FIRST_PROBE_S
    _announced: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__init__(waits=self.deadline_s > 0)

    def keeps_out(self, caller: object) -> bool:
        """Return True if this call may not make an attempt now."""
        return self.is_open and self._probe != caller

    async def admit(self, caller: object, deadline_at: float) -> None:
        """Wait until this call may make an attempt, together with all others or as the probe.

        Raises ModelUnavailable if the call's deadline comes first.
        """
        while self.is_open:
            now = self.clock()
            if self._refuses:
                return self._probe_or_refuse(caller, now)
            if now >= self._give_up_at:
                self._give_up(now)
                continue
            if self._probe_at > deadline_at and self._probe_at - now > _MAX_PROBE_S:
                raise ModelUnavailable(
                    f"model {self.model} is not called for another {ceil(self._probe_at - now)} s, "
                    f"longer than `deadline_ms` leaves: {self.problem}"
                )
            if self._probe is None:
                self._probe = caller
            if self._probe == caller and now >= self._probe_at:
                return None
            until = min(self._give_up_at, self._probe_at if self._probe == caller else inf)
            with anyio.move_on_after(until - now):
                await self._changed.wait()
        return None

    def leave(self, caller: object) -> None:
        """Record that the attempt has ended. If it was the probe, another one may follow."""
        if self._probe is not None and self._probe == caller:
            self._probe = None
            self._wake()

    def answered(self, waits: int | None = None, times: int = 1) -> None:
        """Record responses, including a rejection of the request (400): the server is up.

        Args:
            waits: `waits_begun` when the attempt began; -1 for those that ended a while ago. These, and any
                that is older than a wait, do not end it: calls would fail, and it would be announced again.
        """
        self.answers += times
        if self.is_open and waits not in (None, self.waits_begun) and (waits == -1 or not self._refuses):
            now = self.clock()
            self._streak = _Streak(now, now)
            return
        self._announce_end("answers again")
        if self.is_open:
            self.is_open = self._refuses = False
            self.on_change()
            self._wake()
        self._streak = None

    def attempt_failed(self, caller: object, error: TransientError, *, alone: bool = False) -> None:
        """Record an attempt that failed and may be repeated: no connection, or too many requests.

        Args:
            alone: True if other calls were answered meanwhile, so that a requested pause applies to this call
                only.
        """
        now = self.clock()
        if self._streak is None or (not self.is_open and now - self._streak.last > _STALE_S):
            self._streak = _Streak(now, now)
        self._streak.add(error, now)
        asked_for = min(error.retry_after or 0.0, 1e9)  # some ask for an infinite pause
        if self.waits and not alone and asked_for > min(MAX_RETRY_AFTER_S, self.deadline_s):
            self._postpone(str(error), asked_for, now)
        elif self.is_open:
            if self._probe == caller:
                self._probe_failed(str(error), asked_for, now)
        elif self.waits and self._may_be_slow:
            # A call is given up after its retries. The run must not wait for each of thousands like that.
            if now >= self._give_up_at:
                self.problem = str(error)
                self._give_up(now)
        elif self.waits and self._streak.is_outage(now, min(_STORM_S, self.deadline_s / 2)):
            self._wait(str(error), asked_for, now)
        elif self.waits and error.throttled and now - self._streak.since > MAX_RETRY_AFTER_S:
            self._announce_wait(now, str(error))

    def refuse_all(self, problem: str) -> None:
        """Fail all calls: the key, the account or the model's name is wrong (401, 403, 404)."""
        self._refuse(problem, self.clock() + _COOL_DOWN_S)
        self._advice = "; check the model's name, its key and the account"
        self.stop(f"model {self.model} refuses every request: {problem}{self._advice}")

    @property
    def _give_up_at(self) -> float:
        if self._streak is None:
            return self.clock() + self.deadline_s
        return self._streak.since + min(self.deadline_s, _WRONG_ADDRESS_S if self._may_be_wrong else inf)

    @property
    def _may_be_wrong(self) -> bool:
        return not self.answers and self._streak is not None and self._streak.misaddressed

    @property
    def _may_be_slow(self) -> bool:
        return not self.answers and self._streak is not None and self._streak.late

    def _wait(self, problem: str, asked_for: float, now: float) -> None:
        self.waits_begun += 1
        self.is_open, self._refuses, self.problem = True, False, problem
        self._interval_s = _FIRST_PROBE_S
        self._probe_at = now + max(self._interval_s, asked_for)
        self.on_change()

    def _postpone(self, problem: str, asked_for: float, now: float) -> None:
        again = now + asked_for
        if self._refuses or asked_for > self.deadline_s:
            problem = f"{problem}; it asks to wait {asked_for:.0f} s"
            self._refuse(problem, again)
            self.stop(f"model {self.model}: {problem}, longer than `deadline_ms`{self._advice}")
            return
        if not self.is_open:
            self._wait(problem, asked_for, now)
        self._probe_at = max(self._probe_at, again)
        self._announce_wait(now, self.problem)
        self._wake()

    def _probe_failed(self, problem: str, asked_for: float, now: float) -> None:
        self.problem = problem
        self.on_change()
        if self._refuses:
            self._probe_at = now + _COOL_DOWN_S
            return
        self._interval_s = min(2 * self._interval_s, _MAX_PROBE_S)
        self._probe_at = now + max(self._interval_s, asked_for)
        self._announce_wait(now, problem)

    def _probe_or_refuse(self, caller: object, now: float) -> None:
        if now < self._probe_at or self._probe not in (None, caller):
            seconds = max(1, ceil(self._probe_at - now))
            raise ModelUnavailable(
                f"model {self.model} is down: {self.problem}{self._for_how_long(now)}; "
                f"not called again for {seconds} s{self._advice}"
            )
        self._probe, self._probe_at = caller, now + _COOL_DOWN_S

    def _give_up(self, now: float) -> None:
        self._refuse(self.problem, max(self._probe_at, now + _COOL_DOWN_S))
        if self._may_be_wrong:
            self._advice = "; check its address (`provider_options.base_url`)"
        elif self._may_be_slow:
            self._advice = RAISE_TIMEOUT

    def _refuse(self, problem: str, again_at: float) -> None:
        if self._refuses and self._probe is None:
            return  # attempts that were in progress when it began do not extend it
        self.is_open = self._refuses = True
        self.problem, self._probe_at = problem, again_at
        self._advice = "; run again with --last-failed when it answers"
        self._announce_end("does not answer: what needs it fails from now on")
        self.on_change()
        self._wake()

    def _announce_wait(self, now: float, problem: str) -> None:
        if not self._announced:
            self._announced = True
            most = max(0.0, self._give_up_at - now)
            self.announce(
                f"model {self.model} does not answer ({problem}): waiting for it, at most {most:.0f} s"
            )

    def _announce_end(self, what: str) -> None:
        if self._announced:
            self._announced = False
            self.announce(f"model {self.model} {what}{self._for_how_long(self.clock())}")

    def _for_how_long(self, now: float) -> str:
        waited = now - self._streak.since if self._streak else 0.0
        return f" (no answer for {waited:.0f} s)" if waited >= 1 else ""

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


_MIN_WINDOW = 8  # minimum number of answers for the share of failures; otherwise as many as there are places
_TOLERATED_SHARE = 0.25  # share of failures that removes no places
_FAST_GROWTH_LIMIT = 0.85  # fraction of the number of places at the last failures up to which growth is fast
_SLOW_GROWTH_STEP = 16  # beyond that, a round of successes returns at least one place per this many


class Places(WaitingLine):
    """Places for requests that are in progress at once.

    Their number adapts to overload. It is halved when more than a quarter of the recent answers, about as
    many as there are places, are 5xx or time-outs. Successes return places up to `max_concurrency`: one each
    until near the level of the failures, then a few per round. Beyond that level, the number doubles with
    each round without a failure.
    """

    def __init__(self, max_concurrency: int) -> None:
        super().__init__()
        self.max_concurrency = max(1, max_concurrency)
        self.places = self.max_concurrency  # number of requests that may be in progress now
        self.in_progress = 0
        """Number of requests in progress. It exceeds `places` only just after a decrease."""
        self.decreases = 0  # number of decreases so far, which tells older requests from newer ones
        self._successes = 0
        self._failed = 0.0  # moving share of failures among the answers
        self._overloaded_at = self.max_concurrency  # number of places at the last decrease
        self._step = 1

    def _delay(self, _: int, /) -> float:
        return 0.0 if self.in_progress < self.places else inf

    def _start(self, _: int, /) -> None:
        self.in_progress += 1

    def give_back(self) -> None:
        """Release a place."""
        self.in_progress -= 1
        self._wake()

    def succeeded(self, since: int, times: int = 1) -> None:
        """Record the answers to requests that were sent after this many decreases."""
        if since != self.decreases:
            return  # a request sent with more places shows nothing about the current number
        if self._failed:
            self._failed *= (1 - self._weight) ** times
        if self.places < self.max_concurrency:
            self._grow()

    def _grow(self) -> None:
        if self.places < self._overloaded_at * _FAST_GROWTH_LIMIT:
            self.places += 1
        else:
            self._successes += 1
            if self._successes < self.places:
                return
            self._successes = 0
            self.places += max(self._step, self.places // _SLOW_GROWTH_STEP)
            if self.places > self._overloaded_at:
                self._step *= 2
        self.places = min(self.places, self.max_concurrency)
        self._wake()

    def overloaded(self, since: int) -> None:
        """Record a 5xx or a time-out of a request that was sent after this many decreases."""
        if since != self.decreases:
            return
        self._failed += (1 - self._failed) * self._weight
        self._step = 1
        if self._failed > _TOLERATED_SHARE:
            self._overloaded_at = self.places
            self.places = max(1, self.places // 2)
            self.decreases += 1
            self._successes = 0
            self._failed = 0.0

    @property
    def _weight(self) -> float:
        return 1 / max(self.places, _MIN_WINDOW)
