"""Usage of workers' model calls reaches the run's ledger soon, and once."""

from __future__ import annotations

import pickle

import anyio
from fake_time import run

from agentest.domain.results import ModelUsage
from agentest.domain.transcript import Usage
from agentest.models.port import CallKey, Ledger
from agentest.workers.channel import deliver, packed
from agentest.workers.forwarding import COLLECTORS, SUMMED_S, RunCollectors, SendingLedger

SCOPE = "'books a slot' @ 'default'"
FIRST, SECOND = CallKey("user", SCOPE, 1, 0), CallKey("judge", SCOPE, 2, 0)
LIVE = ModelUsage(1, Usage(10, 5), 1, 0.5)
RECORDED = ModelUsage(2, Usage(20, 7), 0, None)


def connected(ledger: Ledger, *, exact: bool = True) -> tuple[SendingLedger, RunCollectors]:
    """A worker's ledger, and the object that receives its messages."""
    desk = RunCollectors(ledger)
    ledger = SendingLedger(
        lambda message: deliver(pickle.loads(packed(message)), {COLLECTORS: desk}),
        lambda: None,
        exact=exact,
    )
    return ledger, desk


def test_without_a_budget_calls_are_summed_up_for_a_moment() -> None:
    """They count a moment later, or before the result of their conversation."""
    whole = Ledger()

    async def use() -> None:
        ledger, _ = connected(whole, exact=False)
        ledger.add(FIRST, LIVE)
        for _ in range(3):
            ledger.add(SECOND, LIVE)
        assert whole.of(SCOPE) == {}
        await anyio.sleep(SUMMED_S)
        assert whole.of(SCOPE) == {"user": LIVE, "judge": LIVE + LIVE + LIVE}
        ledger.add(FIRST, LIVE)
        ledger.report()
        assert whole.of(SCOPE)["user"] == LIVE + LIVE
        await anyio.sleep(3 * SUMMED_S)
        assert whole.of(SCOPE)["user"] == LIVE + LIVE

    run(use)


def test_a_call_counts_at_once() -> None:
    """With a budget, each attempt is in the run's ledger before its conversation ends."""
    whole = Ledger()
    ledger, desk = connected(whole)
    ledger.add(FIRST, LIVE)
    ledger.add(SECOND, LIVE)
    assert whole.of(SCOPE) == {"user": LIVE, "judge": LIVE}
    desk.forget(SCOPE, 1)
    desk.done(SCOPE, 2)
    assert whole.of(SCOPE) == {"user": LIVE, "judge": LIVE}


def test_replayed_answers_count_once() -> None:
    """Answers of a conversation lost with its worker are replayed again, but count once."""
    whole = Ledger()
    lost, desk = connected(whole)
    lost.add_replayed(FIRST, RECORDED)
    desk.forget(SCOPE, 1)
    again = SendingLedger(lambda message: deliver(message, {COLLECTORS: desk}), lambda: None)
    again.add_replayed(FIRST, RECORDED)
    again.add_replayed(SECOND, LIVE)
    desk.done(SCOPE, 1)
    assert whole.of(SCOPE) == {"user": RECORDED}
    desk.done(SCOPE, 1)
    desk.done(SCOPE, 2)
    assert whole.of(SCOPE) == {"user": RECORDED, "judge": LIVE}


def test_the_worker_measures_too() -> None:
    """The usage of a question is recorded where the question was asked."""
    ledger, _ = connected(Ledger())
    ledger.watch(FIRST)
    ledger.add(FIRST, LIVE)
    ledger.add(FIRST, LIVE)
    ledger.add(SECOND, LIVE)
    assert ledger.taken(FIRST) == LIVE + LIVE
