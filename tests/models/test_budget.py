"""Limits on cost and calls of a run, and the single message when they are reached."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agentest.models.admission import LocalGate
from agentest.models.budget import Budget, BudgetExhausted, Price
from agentest.models.caller import LiveModel
from agentest.models.port import CallKey, ChatReply, ChatRequest, Ledger, Question
from agentest.support.errors import ModelError


class Said(BaseModel):
    text: str


def spend(budget: Budget, cost: float | None, times: int = 1) -> int:
    """Make attempts until they are refused; return how many were made."""
    for made in range(times):
        try:
            budget.reserve()
        except BudgetExhausted:
            return made
        budget.cost += cost or 0.0
    return times


@given(st.integers(0, 20), st.integers(1, 40))
def test_never_more_attempts_than_allowed(max_calls: int, callers: int) -> None:
    """For any number of concurrent callers, exactly the allowed number of attempts is made."""
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
        budget.cost += 0.1

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(callers):
                tasks.start_soon(call)

    anyio.run(run)
    assert (made, refused) == (min(callers, max_calls), max(0, callers - max_calls))
    assert budget.calls == made
    assert len(told) == (1 if refused else 0)


def test_using_exactly_the_budget_does_not_stop_the_run() -> None:
    """The last allowed call does not stop the run; only an attempt beyond it does."""
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


def test_the_refusal_is_a_model_error() -> None:
    """The caller gets the same message as the user, as an error that makes the conversation errored."""
    budget = Budget(0.0, None, lambda why: None)
    with pytest.raises(ModelError, match="no more model calls: they cost"):
        budget.reserve()


def test_the_message_is_printed_once() -> None:
    """A hundred refusals print one message."""
    told: list[str] = []
    budget = Budget(1.0, 0, told.append)
    for _ in range(100):
        spend(budget, None)
    assert len(told) == 1


def test_an_unknown_cost_counts_only_as_a_call() -> None:
    """A call of unknown cost counts as a call and adds no cost."""
    budget = Budget(None, None, lambda why: None)
    assert spend(budget, None, 5) == 5
    assert (budget.calls, budget.cost) == (5, 0.0)


def test_without_limits_everything_is_allowed() -> None:
    """No limit, no refusal."""
    assert spend(Budget(None, None, lambda why: None), 1e9, 1000) == 1000


def test_refusals_wait_for_calls_in_progress() -> None:
    """Calls in progress when the last attempt is used finish before anyone is refused."""
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


def test_a_refusal_waits_a_bounded_time_for_idle_conversations() -> None:
    """Idle conversations may be waiting for the refused one, so the wait has a limit."""
    told: list[str] = []
    budget = Budget(None, 0, told.append)
    budget.others_go_on = lambda: True
    budget.longest_wait_s = 0.01

    async def ask() -> None:
        with anyio.fail_after(60), pytest.raises(BudgetExhausted):
            await budget.settle("c-1")

    anyio.run(ask)
    assert len(told) == 1


def test_a_refusal_that_stops_the_run_cancels_its_caller() -> None:
    """Otherwise the conversation could finish as errored and would never be resumed."""
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


def test_unknown_usage_counts_for_the_budget() -> None:
    """If the server omits `usage`, `--max-cost` counts an estimate, and the ledger an unknown cost."""
    told: list[str] = []

    class Silent:
        name = "m"

        async def complete(self, _: ChatRequest) -> ChatReply:
            return ChatReply('{"text": "hello"}')

    async def ask() -> None:
        gate = LocalGate("m", budget=Budget(0.001, None, told.append))
        ledger = Ledger()
        model = LiveModel(Silent(), ledger, gate, price=Price(1e-6, 1e-5, 1e-6))
        for number in range(50):
            question = Question([{"role": "user", "content": "?" * 400}], Said, CallKey("user", "s", number))
            await model.answer(question)
            assert ledger.total().cost is None

    with pytest.raises(ModelError, match="they cost"):
        anyio.run(ask)
    assert len(told) == 1
