"""Not asking a model that is plainly down: a long run ends in seconds, not after hours of retries."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import anyio

from agentest.errors import ModelUnavailable

_ATTEMPTS_PER_FAILURE = 3


class Circuit:
    """Opens when a model is down; while it is open, calls end at once. One per model and run.

    `check()` once at the start of each call; `if circuit.is_open: circuit.check()` before each attempt, after
    whatever was waited for (a place, a pause). Every attempt that found nobody is `attempt_failed`, every
    call that is given up is `failed`, every answer is `succeeded`. A 429 is none of these: it comes from a
    model that is up.
    """

    def __init__(
        self,
        model: str,
        failures: int = 5,
        cool_down_s: float = 30.0,
        clock: Callable[[], float] = anyio.current_time,
    ) -> None:
        self._model = model
        self._failures = failures
        self._cool_down_s = cool_down_s
        self._clock = clock
        self._failed_calls = 0
        self._failed_attempts = 0
        self._ever_answered = False
        self._problem = ""
        self._ask_again_at: float | None = None
        """None: closed. Past: the next call may probe."""
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether nobody should try now. False for the call that probes after the cool-down."""
        return self._ask_again_at is not None and not self._probing

    def check(self) -> None:
        """Raise ModelUnavailable while the model is down; after the cool-down, let exactly one call through.

        A probe that never reports, as it was cancelled, is replaced after another cool-down.
        """
        if self._ask_again_at is None:
            return
        now = self._clock()
        if now < self._ask_again_at:
            seconds = ceil(self._ask_again_at - now)
            raise ModelUnavailable(
                f"model {self._model} is down: {self._problem}; not asked again for {seconds} s"
            )
        self._probing = True
        self._ask_again_at = now + self._cool_down_s

    def succeeded(self) -> None:
        """The model answered: it is up, whatever was thought of it."""
        self._ever_answered = True
        self._failed_calls = 0
        self._probing = False
        self._ask_again_at = None

    def failed(self, problem: str, *, permanent: bool) -> None:
        """A call failed after all its retries. `permanent`: no call will do better (401, 403, 404)."""
        self._failed_calls += 1
        if permanent or self._probing or self._failed_calls >= self._failures:
            self._open(problem)

    def attempt_failed(self, problem: str) -> None:
        """An attempt found nobody: a refused connection, a 5xx, a time-out. Counts until the first answer."""
        self._failed_attempts += 1
        dead = not self._ever_answered and self._failed_attempts >= _ATTEMPTS_PER_FAILURE * self._failures
        if dead or self._probing:
            self._open(problem)

    def _open(self, problem: str) -> None:
        if self.is_open:
            return  # what was under way when it opened does not prolong it
        self._problem = problem
        self._probing = False
        self._ask_again_at = self._clock() + self._cool_down_s
