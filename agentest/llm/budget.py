"""What a run may spend on models: `--max-cost` and `--max-llm-calls`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NoReturn

from agentest.errors import ConfigError, ModelError
from agentest.llm.prices import Price, price_of

_SCARCE = 32
"""When fewer attempts are left, none is lent ahead of need."""


class BudgetExhausted(ModelError):
    """The call was not made: the run has spent what it may."""


class Budget:
    """Counts attempts and their cost over the run; `on_exhausted` receives, once, why no more are made."""

    def __init__(
        self,
        max_cost: float | None,
        max_calls: int | None,
        on_exhausted: Callable[[str], None],
    ) -> None:
        self._max_cost = max_cost
        self._max_calls = max_calls
        self._on_exhausted = on_exhausted
        self._reported = False
        self._calls = 0
        self._cost = 0.0
        self._lent = 0
        self._settled = asyncio.Event()
        self.on_short: Callable[[], None] = lambda: None
        """Is called when what is lent may be what somebody needs, or may not be made any more."""

    @property
    def calls(self) -> int:
        """Attempts reserved so far."""
        return self._calls

    @property
    def cost(self) -> float:
        """USD that is known to be spent so far."""
        return self._cost

    def reserve(self) -> None:
        """Claim one attempt, right before it is made. Raises BudgetExhausted when there is none left."""
        if why := self._cost_is_used_up():
            self._refuse(why)
        if self._max_calls is not None and self._calls >= self._max_calls:
            self._refuse(f"no more model calls: all {self._max_calls} that --max-llm-calls allows were made")
        self._calls += 1

    @property
    def lent(self) -> int:
        """Attempts that may be made without asking, and were not so far."""
        return self._lent

    def has_one(self) -> bool:
        """Whether an attempt may be reserved at once."""
        left = self._left
        return (left is None or left > self._lent) and not self._cost_is_used_up()

    @property
    def is_unsure(self) -> bool:
        """Whether attempts that are lent, and may come back unmade, are all that is left."""
        left = self._left
        return self._lent > 0 and left is not None and left <= self._lent and not self._cost_is_used_up()

    async def settle(self) -> None:
        """Wait until it is known whether there is an attempt left."""
        while self.is_unsure:
            self.on_short()
            await self._settled.wait()

    def may_lend(self) -> bool:
        """Whether so many attempts are left that some may be lent, to be made later without asking."""
        left = self._left
        return (left is None or left - self._lent > _SCARCE) and not self._cost_is_used_up()

    def lend(self) -> None:
        """Lend one attempt; `take_back` settles it."""
        self._lent += 1

    def take_back(self, *, made: bool) -> None:
        """A lent attempt is settled."""
        self._lent -= 1
        if made:
            self._calls += 1
        self._settled.set()
        self._settled = asyncio.Event()

    def unmade(self) -> None:
        """A reserved attempt is not made after all."""
        self._calls -= 1

    @property
    def _left(self) -> int | None:
        return None if self._max_calls is None else self._max_calls - self.calls

    def spent(self, cost: float | None) -> None:
        """An attempt cost so many USD; None: the cost is not known.

        What is under way together when the last dollar goes is still paid for: cost is known only afterwards.
        """
        if cost:
            self._cost += cost
            if self._lent and self._cost_is_used_up():
                self.on_short()

    def _cost_is_used_up(self) -> str | None:
        if self._max_cost is not None and self.cost >= self._max_cost:
            return f"no more model calls: they cost {self.cost:.4f} USD, --max-cost allows {self._max_cost:g}"
        return None

    def _refuse(self, why: str) -> NoReturn:
        if not self._reported:
            self._reported = True
            self._on_exhausted(why)
        raise BudgetExhausted(why)


def check_prices(
    models: Iterable[str],
    max_cost: float | None,
    price_of: Callable[[str], Price | None] = price_of,
    unpriced: Iterable[str] = (),
) -> None:
    """Raise ConfigError if a cost is to be kept to and the price of a model to be asked is not known."""
    if max_cost is None:
        return
    unknown = sorted({*unpriced, *(model for model in models if price_of(model) is None)})
    if unknown:
        raise ConfigError(
            f"--max-cost cannot be kept to: the price of {', '.join(unknown)} is not known; "
            "limit the number of calls with --max-llm-calls instead"
        )
