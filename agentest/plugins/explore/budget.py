"""The budget of an exploration: conversations, minutes, model calls and cost."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from agentest.domain.results import ModelUsage
from agentest.plugins.explore.model import BudgetSpent
from agentest.support.lazy_dataclasses import dataclass

RESERVED = 0.3
"""The share of every budget that confirming and reducing may count on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of an exploration besides the number of conversations; None: unlimited."""

    minutes: float | None = None
    calls: int | None = None
    cost: float | None = None
    """In US dollars."""


class ConversationBudget:
    """Counts conversations, and what else is limited, against the limits.

    Args:
        total: the most conversations of the exploration.
        spent: those that were run already.
        clock: returns seconds.
    """

    def __init__(
        self,
        total: int,
        spent: int = 0,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.total = total
        self.spent = spent
        self._limits = limits or Limits()
        self._used: Callable[[], ModelUsage] = ModelUsage
        self._clock = clock
        self._began = clock()
        self._spent_on_reducing = 0
        self._running = 0

    def begin(self, spent: int, used: Callable[[], ModelUsage]) -> None:
        """Count the conversations of the unchanged scenarios. `used` returns the use of models so far."""
        self.spent += spent
        self._used = used

    def take_try(self) -> bool:
        """Count one try, unless only the reserve is left. Returns False then."""
        reserve = max(0, round(self.total * RESERVED) - self._spent_on_reducing)
        if self.spent + reserve >= self.total or self._exceeded(1 - RESERVED):
            return False
        self.spent += 1
        self._running += 1
        return True

    def give_back(self) -> None:
        """Uncount one try that was not made."""
        self.spent -= 1
        self._running -= 1

    def finished(self) -> None:
        """Count a conversation as finished: what it has cost is known."""
        self._running -= 1

    def take(self) -> None:
        """Count one conversation that confirms or reduces. Raises BudgetSpent."""
        if self.spent >= self.total or self._exceeded(1.0):
            raise BudgetSpent
        self.spent += 1
        self._running += 1
        self._spent_on_reducing += 1

    @property
    def why(self) -> str:
        """What is used up, for people."""
        return self._exceeded(1 - RESERVED) or f"the budget of {self.total} conversations was spent"

    @property
    def left(self) -> int:
        """The number of conversations that are left."""
        return max(0, self.total - self.spent)

    @property
    def cost(self) -> float | None:
        """The known cost of models in US dollars; None if it is unknown."""
        return self._used().cost

    def _exceeded(self, share: float) -> str:
        """Return which limit has less left than its share for this purpose; "" if none has."""
        limits, used = self._limits, self._used()
        if limits.minutes is not None and (self._clock() - self._began) / 60 >= limits.minutes * share:
            return f"the budget of {limits.minutes:g} minutes was spent"
        # Those that run, and the next one, are expected to cost as much as the others did.
        expected = 1 + (self._running + 1) / max(1, self.spent - self._running)
        if limits.calls is not None and used.calls and used.calls * expected > limits.calls * share:
            return f"the budget of {limits.calls} model calls was spent"
        if limits.cost is not None and used.cost and used.cost * expected > limits.cost * share:
            return f"the budget of {limits.cost:g} USD was spent"
        return ""
