"""A circuit breaker per model: during an outage, calls wait together or fail together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import ceil, inf

import anyio

from agentest.models.port import TransientError
from agentest.support.errors import ModelUnavailable
from agentest.support.http.retries import MAX_RETRY_AFTER_S
from agentest.support.lazy_dataclasses import dataclass

_FAILURES = 3
_STORM_S = 2.0
_STALE_S = 240.0
"""Failures that are further apart are no outage."""
_WRONG_ADDRESS_S = 60.0
"""Seconds to wait for a model if nothing in this run shows that its address is right."""
_FIRST_PROBE_S = 0.25
_MAX_PROBE_S = 3.0
_COOL_DOWN_S = 30.0
_MAX_WAIT_S = 86_400.0
RAISE_TIMEOUT = "; raise `timeout_ms` if the model takes longer"


@dataclass(slots=True)
class _Streak:
    since: float
    last: float
    failed: int = 0
    throttled: int = 0
    misaddressed: bool = True
    """True if a wrong address may have caused all of them."""
    late: bool = True
    """True if all of them ended at `timeout_ms`."""

    def add(self, error: TransientError, now: float) -> None:
        self.last = now
        self.late = self.late and error.late
        self.misaddressed = self.misaddressed and error.misaddressed
        if error.throttled:
            self.throttled += 1
        else:
            self.failed += 1

    def is_outage(self, now: float, storm_s: float) -> bool:
        is_storm = self.throttled >= _FAILURES and now - self.since >= storm_s
        return self.failed >= _FAILURES or is_storm


class Circuit:
    """The state of one model in a run: up or down, and which call may probe it.

    All calls wait together for a model that answers none of them, from the first request on. The model is
    given up when no call got an answer for a whole deadline, or after a minute if it never answered in this
    run and its address may be wrong. For each attempt:

        try:
            if circuit.is_open:
                await circuit.admit(caller, deadline_at)    # raises ModelUnavailable
            if circuit.keeps_out(caller): ...               # it opened during another wait
            ...                                             # the attempt, and then one of
            circuit.answered(); circuit.attempt_failed(caller, error, alone=…)
        finally:
            circuit.leave(caller)

    Args:
        deadline_s: how long calls wait for the model; 0 means not at all.
        announce: receives a message when a noticeable wait begins and when it ends.
        clock: the event loop's clock.
    """

    def __init__(
        self,
        model: str,
        deadline_s: float = 0.0,
        announce: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = anyio.current_time,
    ) -> None:
        self._model = model
        self._deadline_s = deadline_s
        self._announce = announce
        self._clock = clock
        self.is_open = False
        """True if all calls wait and one at a time probes, or if `_refuses`."""
        self._refuses = False
        """True if calls end at once. After a while one probes."""
        self._streak: _Streak | None = None
        self._probe: object = None
        """The call that probes or waits to probe; None if the next call will."""
        self._probe_at = 0.0
        self._advice = ""
        """Advice for a model that was given up, to follow a semicolon."""
        self._interval_s = _FIRST_PROBE_S
        self._announced = False
        self._changed = asyncio.Event()
        self.answers = self.waits_begun = 0
        """Number of requests that the server answered, including rejections (400), and of outages so far."""
        self.problem = ""
        """Why the circuit is open."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when the circuit opens or closes, or when the reason changes."""

    @property
    def waits(self) -> bool:
        """True if calls wait for the model while it is down."""
        return self._deadline_s > 0

    def keeps_out(self, caller: object) -> bool:
        """Return True if this call may not make an attempt now."""
        return self.is_open and self._probe != caller

    async def admit(self, caller: object, deadline_at: float) -> None:
        """Wait until this call may make an attempt, together with all others or as the probe.

        Raises ModelUnavailable if the call's deadline comes first.
        """
        while self.is_open:
            now = self._clock()
            if self._refuses:
                return self._probe_or_refuse(caller, now)
            if now >= self._give_up_at:
                self._give_up(now)
                continue
            if self._probe_at > deadline_at and self._probe_at - now > _MAX_PROBE_S:
                raise ModelUnavailable(self._too_long(now))
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

    def answered(self, waits: int | None = None) -> None:
        """Record a response, including a rejection of the request (400): the server is up.

        Args:
            waits: `waits_begun` when the attempt began. An attempt that is older than a wait does not end it:
                the calls that it lets through would fail, and the outage would be announced again.
        """
        self.answers += 1
        if self.is_open and not self._refuses and waits not in (None, self.waits_begun):
            now = self._clock()
            self._streak = _Streak(now, now)
            return
        if self.is_open:
            self._close()
        self._streak = None

    def attempt_failed(self, caller: object, error: TransientError, *, alone: bool = False) -> None:
        """Record an attempt that failed and may be repeated: no connection, or too many requests.

        Args:
            alone: True if other calls were answered meanwhile, so that a requested pause applies to this call
                only.
        """
        now = self._clock()
        if self._streak is None or (not self.is_open and now - self._streak.last > _STALE_S):
            self._streak = _Streak(now, now)
        self._streak.add(error, now)
        asked_for = min(error.retry_after or 0.0, _MAX_WAIT_S)
        if self.waits and not alone and asked_for > min(MAX_RETRY_AFTER_S, self._deadline_s):
            self._postpone(str(error), asked_for, now)
        elif self.is_open:
            if self._probe == caller:
                self._probe_failed(str(error), asked_for, now)
        elif self.waits and self._may_be_slow:
            # A call is given up after its retries. The run must not wait for each of thousands like that.
            if now >= self._give_up_at:
                self.problem = str(error)
                self._give_up(now)
        elif self.waits and self._streak.is_outage(now, min(_STORM_S, self._deadline_s)):
            self._wait(str(error), asked_for, now)

    def refuse_all(self, problem: str) -> None:
        """Fail all calls: the key, the account or the model's name is wrong (401, 403, 404)."""
        self._refuse(problem, self._clock() + _COOL_DOWN_S)
        self._advice = "; check the model's name, its key and the account"

    @property
    def _give_up_at(self) -> float:
        if self._streak is None:
            return self._clock() + self._deadline_s
        return self._streak.since + min(self._deadline_s, _WRONG_ADDRESS_S if self._may_be_wrong else inf)

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
        if self._refuses or asked_for > self._deadline_s:
            self._refuse(f"{problem}; it asks to wait {asked_for:.0f} s", again)
            return
        if not self.is_open:
            self._wait(problem, asked_for, now)
        self._probe_at = max(self._probe_at, again)
        self._announce_wait(now)
        self._wake()

    def _probe_failed(self, problem: str, asked_for: float, now: float) -> None:
        self.problem = problem
        self.on_change()
        if self._refuses:
            self._probe_at = now + max(_COOL_DOWN_S, asked_for)
            return
        self._interval_s = min(2 * self._interval_s, _MAX_PROBE_S)
        self._probe_at = now + max(self._interval_s, asked_for)
        self._announce_wait(now)

    def _probe_or_refuse(self, caller: object, now: float) -> None:
        if now < self._probe_at or self._probe not in (None, caller):
            seconds = max(1, ceil(self._probe_at - now))
            raise ModelUnavailable(
                f"model {self._model} is down: {self.problem}{self._for_how_long(now)}; "
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

    def _close(self) -> None:
        self.is_open = self._refuses = False
        self._announce_end("answers again")
        self.on_change()
        self._wake()

    def _announce_wait(self, now: float) -> None:
        if not self._announced:
            self._announced = True
            most = max(0.0, self._give_up_at - now)
            self._announce(
                f"model {self._model} does not answer ({self.problem}): waiting for it, at most {most:.0f} s"
            )

    def _announce_end(self, what: str) -> None:
        if self._announced:
            self._announced = False
            self._announce(f"model {self._model} {what}{self._for_how_long(self._clock())}")

    def _for_how_long(self, now: float) -> str:
        waited = now - self._streak.since if self._streak else 0.0
        return f" (no answer for {waited:.0f} s)" if waited >= 1 else ""

    def _too_long(self, now: float) -> str:
        return (
            f"model {self._model} is not called for another {ceil(self._probe_at - now)} s, "
            f"longer than `deadline_ms` leaves: {self.problem}"
        )

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
