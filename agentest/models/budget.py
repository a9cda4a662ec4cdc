"""Prices of model calls and the budget of a run: `--max-cost` and `--max-llm-calls`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import field
from functools import cache, partial
from importlib.util import find_spec
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import anyio
from anyio.lowlevel import checkpoint

from agentest.domain.transcript import Usage
from agentest.support.errors import ModelError
from agentest.support.lazy_dataclasses import dataclass

_TABLE = "model_prices_and_context_window_backup.json"
_EXAMPLE = "sample_spec"
_PROVIDER_ALIASES = {
    "bedrock": frozenset({"bedrock_converse"}),
    "cohere": frozenset({"cohere_chat"}),
    "openai": frozenset({"text-completion-openai"}),
}
"""Other names that the table uses for a provider, in addition to the prefix followed by a dash."""


@dataclass(frozen=True, slots=True)
class Price:
    """USD per token at the standard rate.

    Surcharges for cache writes and for prompts of more than 100,000 tokens are not included.
    """

    prompt: float
    completion: float
    cached: float

    def cost(self, usage: Usage) -> float:
        """Return the cost of one call. Cached tokens are part of the prompt tokens."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        fresh = usage.prompt_tokens - cached
        return fresh * self.prompt + cached * self.cached + usage.completion_tokens * self.completion


ModelTable = Mapping[str, Mapping[str, Any]]
"""Model → what litellm's table says of it."""


def price_of(model: str) -> Price | None:
    """Return the price of a model in LiteLLM spelling. None means unknown, not free."""
    return find_price(_installed_table(), model)


def find_price(table: ModelTable, model: str) -> Price | None:
    """Find the price by the model's name, or without its provider if the entry is that provider's."""
    provider, _, name = model.partition("/")
    entry = table.get(name, {})
    known, aliases = str(entry.get("litellm_provider")), (provider, *_PROVIDER_ALIASES.get(provider, ()))
    entry = table.get(model) or (entry if known in aliases or known.startswith(f"{provider}-") else {})
    keys = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost")
    prompt, completion, cached = (_usd(entry.get(key)) for key in keys)
    if prompt is None or completion is None:
        return None
    return Price(prompt, completion, prompt if cached is None else cached)


@cache
def _installed_table() -> ModelTable:
    try:
        spec = find_spec("litellm")
    except (ImportError, ValueError):
        return {}
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((read_table(Path(folder, _TABLE)) for folder in folders), {})


def read_table(path: Path) -> ModelTable:
    """Return the entries of litellm's table; empty if the file is missing or broken."""
    try:
        entries = json.loads(path.read_bytes()).items()
    except (OSError, ValueError, RecursionError, AttributeError):
        return {}
    return {name: entry for name, entry in entries if isinstance(entry, dict) and name != _EXAMPLE}


def _usd(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) and value >= 0 else None


CallerId = tuple[str, int] | None
"""Scope and number of the conversation that calls a model. Number 0 stands for work after all conversations.
"""


class Pausable(Protocol):
    """The time limit of a call. It is paused while the call waits in line."""

    @property
    def ends_at(self) -> float:
        """End of the limit, on the event loop's clock."""

    def paused(self) -> AbstractContextManager[None]: ...


_numbers = count(1)


@dataclass(slots=True, eq=False)
class Call:
    """A call for one answer, with all its attempts."""

    limit: Pausable
    number: int = field(default_factory=partial(next, _numbers))  # identifies it within its process
    process: int = 0  # identifies the calling process at a shared gate; 0 is the gate's own
    asker: CallerId = None  # the conversation that needs the answer
    is_user: bool = False  # True if it needs what the simulated user says
    problem: str = ""  # why its last attempt failed
    was_throttled: bool = False
    is_odd: bool = False
    """True if its 429s say nothing about the quota, because other requests are answered between them."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and (other.number, other.process) == (self.number, self.process)

    def __hash__(self) -> int:
        return hash((self.number, self.process))


class BudgetExhausted(ModelError):
    """The call was not made because the budget is exhausted."""


class Budget:
    """Counts attempts and their cost in the run. `on_exhausted` receives the reason once none is left."""

    def __init__(
        self, max_cost: float | None, max_calls: int | None, on_exhausted: Callable[[str], None]
    ) -> None:
        self.max_cost = max_cost
        self.max_calls = max_calls
        self.on_exhausted = on_exhausted
        self._reported = False
        self.calls = 0  # attempts reserved so far
        self.cost = 0.0
        """Known cost so far in USD. It exceeds `max_cost` by that of attempts which were in progress then."""
        self._under_way = 0
        self._settled = asyncio.Event()
        self.refused: Counter[CallerId] = Counter()
        """Conversation → how many of its calls wait for an attempt when none is left."""
        self.others_go_on: Callable[[], bool] = lambda: False
        """Returns True if a conversation that is not refused may still finish without another attempt."""
        self.longest_wait_s = 60.0
        """If no call is made for so long, a call that the budget denies stops waiting for others."""

    @property
    def left_calls(self) -> int | None:
        """Remaining attempts; None if their number is not limited."""
        return None if self.max_calls is None else self.max_calls - self.calls

    @property
    def left_cost(self) -> float | None:
        """Remaining USD; None if the cost is not limited."""
        return None if self.max_cost is None else self.max_cost - self.cost

    @property
    def spent_so_far(self) -> str:
        """Describe how much of the budget is spent."""
        calls = f"{self.calls} of {self.max_calls} model calls that --max-llm-calls allows were made"
        cost = f"{self.cost:.4f} of {self.max_cost or 0:g} USD that --max-cost allows were spent"
        return " and ".join([calls] * (self.max_calls is not None) + [cost] * (self.max_cost is not None))

    def used_up(self) -> str | None:
        """Return why no attempt is left, or None if one is."""
        if self.max_calls is not None and self.calls >= self.max_calls:
            return f"no more model calls: all {self.max_calls} that --max-llm-calls allows were made"
        if self.max_cost is not None and self.cost >= self.max_cost:
            return f"no more model calls: they cost {self.cost:.4f} USD, --max-cost allows {self.max_cost:g}"
        return None

    def reserve(self) -> None:
        """Reserve one attempt immediately before it is made. Raises BudgetExhausted if none is left."""
        if why := self.used_up():
            self._report(why)
            raise BudgetExhausted(why)
        self.calls += 1
        self._under_way += 1

    async def settle(self, asker: CallerId = None) -> None:
        """Wait until it is known whether an attempt is left. Raises BudgetExhausted if none is.

        Attempts in progress are already paid for, so they may finish, and other conversations with them,
        before any call is refused.

        Args:
            asker: the conversation that requests the attempt.
        """
        if self.used_up() is None:
            return
        self.refused[asker] += 1
        self.wake_waiting_calls()
        try:
            while self.used_up() and (self._under_way or self.others_go_on()):
                with anyio.move_on_after(self.longest_wait_s) as silence:
                    await self._settled.wait()
                # What goes on may itself wait for this call: for its place, its server or its trial.
                if silence.cancelled_caught and not self._under_way:
                    break
        finally:
            self.refused[asker] -= 1
        if why := self.used_up():
            self._report(why)
            await checkpoint()  # if that stopped the run, the conversation ends here and is not errored
            raise BudgetExhausted(why)

    def over(self, *, made: bool = True) -> None:
        """Record that a reserved attempt has ended, whatever its outcome, or was not made."""
        self.calls -= not made
        self._under_way -= 1
        self.wake_waiting_calls()

    def wake_waiting_calls(self) -> None:
        """Wake up all waiting calls, because an attempt or a conversation has ended."""
        self._settled.set()
        self._settled = asyncio.Event()

    def _report(self, why: str) -> None:
        if not self._reported:
            self._reported = True
            self.on_exhausted(why)
