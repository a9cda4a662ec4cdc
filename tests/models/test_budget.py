"""A run spends no more than it may, and says so once."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from agentest.models.budget import Budget, BudgetExhausted, Price, check_prices
from agentest.support.errors import ConfigError, ModelError

KNOWN = {"openai/known": Price(1, 1, 1), "ollama/free": Price(0, 0, 0)}


def spend(budget: Budget, cost: float | None, times: int = 1) -> int:
    """Make attempts until they are refused; how many were made."""
    for made in range(times):
        try:
            budget.reserve()
        except BudgetExhausted:
            return made
        budget.spent(cost)
    return times


@given(st.integers(0, 20), st.integers(1, 40))
def test_never_more_attempts_than_allowed(max_calls: int, callers: int) -> None:
    """However many ask at the same time, exactly the allowed number of attempts is made, the rest refused."""
    told: list[str] = []
    budget = Budget(None, max_calls, told.append)
    made = refused = 0

    async def call() -> None:
        nonlocal made, refused
        await checkpoint()
        try:
            budget.reserve()
        except BudgetExhausted:
            refused += 1
            return
        made += 1
        await checkpoint()
        budget.spent(0.1)

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(callers):
                tasks.start_soon(call)

    anyio.run(run)
    assert (made, refused) == (min(callers, max_calls), max(0, callers - max_calls))
    assert budget.calls == made
    assert len(told) == (1 if refused else 0)


def test_who_needs_exactly_the_budget_is_not_stopped() -> None:
    """Using up the last call is no reason to stop; only wanting one more is."""
    told: list[str] = []
    budget = Budget(None, 3, told.append)
    assert spend(budget, 0.0, 3) == 3
    assert told == []
    assert spend(budget, 0.0) == 0
    assert told == ["no more model calls: all 3 that --max-llm-calls allows were made"]


def test_no_attempt_after_the_cost_is_reached() -> None:
    """Attempts are made while the cost is below the limit, and none after."""
    told: list[str] = []
    budget = Budget(1.0, None, told.append)
    assert spend(budget, 0.25, 100) == 4
    assert told == ["no more model calls: they cost 1.0000 USD, --max-cost allows 1"]


def test_the_refusal_is_a_models_error() -> None:
    """Who asked hears the same sentence as the user, as an error that leaves the conversation errored."""
    budget = Budget(0.0, None, lambda why: None)
    with pytest.raises(ModelError, match="no more model calls: they cost"):
        budget.reserve()


def test_the_user_is_told_once() -> None:
    """A hundred refusals are one message."""
    told: list[str] = []
    budget = Budget(1.0, 0, told.append)
    for _ in range(100):
        spend(budget, None)
    assert len(told) == 1


def test_an_unknown_cost_spends_nothing_known() -> None:
    """A cost that nobody knows is counted as a call, not as money."""
    budget = Budget(None, None, lambda why: None)
    assert spend(budget, None, 5) == 5
    assert (budget.calls, budget.cost) == (5, 0.0)


def test_without_limits_everything_is_allowed() -> None:
    """No limit, no refusal."""
    assert spend(Budget(None, None, lambda why: None), 1e9, 1000) == 1000


def test_nobody_is_refused_while_others_go_on() -> None:
    """What is under way when the last attempt is gone comes back first, and others finish."""
    told: list[str] = []
    budget = Budget(None, 1, told.append)
    going_on = True
    budget.others_go_on = lambda: going_on

    async def run() -> None:
        nonlocal going_on
        budget.reserve()
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises(BudgetExhausted):
                    await budget.settle(("s", 1))

            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert (told, budget.refused["s", 1]) == ([], 1)
            budget.over()
            await anyio.wait_all_tasks_blocked()
            assert told == []
            going_on = False
            budget.wake_waiting_calls()

    anyio.run(run)
    assert len(told) == 1
    assert budget.refused["s", 1] == 0


def test_who_is_refused_waits_no_longer_for_others_that_make_no_call() -> None:
    """Others may wait for the refused one itself: for its place, its mock server or its trial."""
    told: list[str] = []
    budget = Budget(None, 0, told.append)
    budget.others_go_on = lambda: True
    budget.longest_wait_s = 0.01

    async def ask() -> None:
        with anyio.fail_after(60), pytest.raises(BudgetExhausted):
            await budget.settle("c-1")

    anyio.run(ask)
    assert len(told) == 1


def test_who_is_refused_does_not_go_on_in_a_run_that_this_stops() -> None:
    """The conversation is cancelled there: it could finish as errored before, and would never be resumed."""
    went_on = False

    async def run() -> None:
        nonlocal went_on
        with anyio.CancelScope() as stop:
            budget = Budget(None, 0, lambda why: stop.cancel())
            try:
                await budget.settle()
            except BudgetExhausted:
                went_on = True
        assert stop.cancelled_caught

    anyio.run(run)
    assert not went_on


def test_a_cost_limit_needs_prices() -> None:
    """Under --max-cost a model of unknown price is refused by name, with the limit that works without."""
    with pytest.raises(ConfigError) as raised:
        check_prices(["openai/known", "x/b", "x/a", "x/a"], 1.0, KNOWN.get)
    message = str(raised.value)
    assert "x/a, x/b is unknown" in message
    assert "--max-llm-calls" in message
    assert "openai/known" not in message


def test_known_and_free_models_pass() -> None:
    """A price of 0 is a known price."""
    check_prices(KNOWN, 1.0, KNOWN.get)


def test_without_a_cost_limit_no_price_is_needed() -> None:
    """Prices matter to --max-cost only."""
    check_prices(["x/a"], None, KNOWN.get)


def test_prices_come_from_the_table() -> None:
    """Without anything else said, litellm's table knows the prices."""
    check_prices(["openai/gpt-5-mini"], 1.0)
    with pytest.raises(ConfigError, match="ollama/my-own"):
        check_prices(["ollama/my-own"], 1.0)
