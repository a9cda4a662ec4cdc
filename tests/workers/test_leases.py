"""Shared limits of several workers by leases, on a clock that only moves when every task waits."""

from __future__ import annotations

import pickle
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any

import anyio
import pytest
from fake_time import run
from hypothesis import given
from hypothesis import strategies as st
from lease_lab import DELAY_S, Lab, Model, Worker, in_lab

from agentest.models.budget import BudgetExhausted, Call
from agentest.models.port import ChatReply, ChatRequest, Room, TransientError
from agentest.models.providers import ModelSpec
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.workers.channel import packed
from agentest.workers.leases import LeasedGates

UNREACHABLE = TransientError("503: no upstream")
BUSY = TransientError("429: too many requests", throttled=True)
REFUSED = TransientError("409: in use")
REVOKED = ModelUnavailable("401: no such key", permanent=True)


@given(
    st.lists(st.floats(0, 3), min_size=1, max_size=60),
    st.integers(1, 4),
    st.integers(1, 12),
    st.booleans(),
    st.randoms(use_true_random=False),
)
@pytest.mark.slow
def test_never_more_at_a_time_than_places(
    starts: list[float], workers: int, places: int, shares: bool, random: Any
) -> None:
    """For any arrival of calls at workers, at most as many as places run at once, and all run."""
    model = Model(lasts=lambda: random.uniform(0.01, 1))

    async def use(lab: Lab) -> None:
        async def later(worker: Worker, after: float) -> None:
            await anyio.sleep(after)
            await worker.ask()
            await worker.ask()

        async with anyio.create_task_group() as tasks:
            for number, after in enumerate(starts):
                tasks.start_soon(later, lab.workers[number % workers], after)

    lab = in_lab(use, model, workers=workers, max_concurrency=places, shares=shares)
    assert model.most <= places
    assert len(model.asked_at) == 2 * len(starts)
    assert shares or lab.budget.calls == len(model.asked_at)


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.slow
def test_all_places_are_used(workers: int, shares: bool) -> None:
    """Under load, throughput is within a few percent of one process."""
    model = Model()

    async def use(lab: Lab) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(60):
                tasks.start_soon(lab.workers[number % workers].ask_on, 60.0)

    in_lab(use, model, workers=workers, max_concurrency=20, shares=shares)
    assert model.most == 20
    assert len(model.asked_at) >= 0.97 * 20 * 60 / 0.5


def test_calls_below_the_limit_need_few_messages() -> None:
    """Workers with a share report answers in sums, and the run counts all of them."""
    model = Model(lasts=lambda: 0.1)

    async def use(lab: Lab) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(lab.workers[number % 2].ask_on, 10.0)

    lab = in_lab(use, model, max_concurrency=100, shares=True)
    assert len(model.asked_at) >= 0.97 * 20 * 10 / 0.1
    assert lab.gate.circuit.answers == len(model.asked_at)
    assert sum(sum(worker.sent.calls.values()) for worker in lab.workers) < len(model.asked_at) / 2


def test_an_idle_share_returns_when_another_worker_needs_it() -> None:
    """A worker that stopped calling delays no other one."""
    model = Model(lasts=lambda: 0.1)

    async def use(lab: Lab) -> None:
        for worker in lab.workers:
            await worker.ask()
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(lab.workers[1].ask)
        assert anyio.current_time() < began + 0.1 + 10 * DELAY_S

    in_lab(use, model, max_concurrency=20, shares=True)
    assert model.most == 20


def test_kept_leases_do_not_block_the_runs_own_calls() -> None:
    """Leases of idle workers return as soon as a call of the run's own process waits for a place."""
    model = Model(lasts=lambda: 0.1)

    async def use(lab: Lab) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(10):  # each worker makes its first call alone
                tasks.start_soon(lab.workers[number % 2].ask)
        assert lab.gate.places.in_progress == sum(len(each.gate.unused) for each in lab.workers) == 8
        for _ in range(9):  # the run's own calls fail, which leaves five places
            lab.gate.places.overloaded(0)
        with TimeLimit(60) as limit, anyio.fail_after(10):
            async with lab.gate.attempt(Call(limit), lambda: 0):
                assert lab.gate.places.in_progress <= lab.gate.places.places == 5

    in_lab(use, model, max_concurrency=10, shares=True)


@pytest.mark.parametrize("fails", [False, True])
def test_an_error_ends_kept_leases_for_a_while(fails: bool) -> None:
    """All workers count attempt by attempt, and later keep leases again."""
    errors, requests = [REFUSED] * fails, list[int]()
    model = Model(lasts=lambda: 0.1, fault=lambda at: errors.pop() if errors and at >= 3 else None)

    async def use(lab: Lab) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(lab.workers[number % 2].ask_on, 6.0)
            for at in (2.9, 3.9, 5.0, 5.9):
                await anyio.sleep(at - anyio.current_time())
                requests.append(sum(each.sent.calls["request"] for each in lab.workers))

    in_lab(use, model, max_concurrency=100, shares=True)
    before, during, after, end = requests
    assert during - before > 30 if fails else during == before
    assert after == end


def test_what_headers_say_reaches_the_run_at_once() -> None:
    """An answer that says what is left is reported, and its lease is not kept."""

    class Reporting(Model):
        async def complete(self, request: ChatRequest) -> ChatReply:
            return replace(await super().complete(request), room=Room(5, requests_per_minute=600))

    async def use(lab: Lab) -> None:
        for _ in range(3):
            await lab.workers[0].ask()
        await anyio.sleep(1)
        assert lab.gate.quota.use.allowed_requests_per_minute == 600
        assert lab.workers[0].gate.unused == []

    in_lab(use, Reporting(), max_concurrency=20, shares=True)


def test_leases_are_kept_again_only_after_a_while() -> None:
    """If places were scarce, each attempt takes a lease for a second, so that leases do not come and go."""

    async def use(lab: Lab) -> None:
        for _ in range(2):
            await lab.workers[0].ask()
        assert lab.workers[0].gate.unused
        with TimeLimit(60) as limit:
            async with AsyncExitStack() as stack:
                for _ in range(10):
                    await stack.enter_async_context(lab.gate.attempt(Call(limit), int))
        assert not lab.gate.is_spare
        await anyio.sleep(1.1)
        assert lab.gate.is_spare

    in_lab(use, max_concurrency=10, shares=True)


def test_a_worker_that_has_ended_gets_no_lease() -> None:
    """A request that was still on its way takes no place."""

    async def use(lab: Lab) -> None:
        leases = lab.workers[0].leases
        leases.close()
        leases.request(0, 1, 0, (1, None, False, False, 60.0))
        assert lab.gate.places.in_progress == 0

    in_lab(use)


def test_the_check_after_an_error_shows_that_all_have_to_wait() -> None:
    """It has a lease of its own, so answers to earlier attempts do not count as answers to others."""
    busy = TransientError("429: too many requests", 90.0, throttled=True)
    model = Model(lasts=lambda: 0.1, fault=lambda at: busy if 5 <= at < 95 else None)

    async def use(lab: Lab) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(lab.workers[0].ask)
        assert lab.workers[0].gate.unused
        await lab.workers[0].ask_on(100.0)

    lab = in_lab(use, model, max_concurrency=100, shares=True)
    assert [note.partition(" (")[0] for note in lab.notes][:1] == ["model m does not answer"]


def test_a_limit_that_becomes_known_ends_all_shares() -> None:
    """After a 429, each attempt of any worker asks, so that the rate is learnt as in one process."""
    model = Model(lasts=lambda: 0.1, fault=lambda at: BUSY if 5 <= at < 5.2 else None)
    before: list[int] = []

    async def use(lab: Lab) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(lab.workers[number % 2].ask_on, 20.0)
            await anyio.sleep(7)
            before.extend((len(model.asked_at), sum(w.sent.calls["request"] for w in lab.workers)))

    lab = in_lab(use, model, max_concurrency=100, shares=True)
    calls, requests = before
    requests = sum(worker.sent.calls["request"] for worker in lab.workers) - requests
    assert len(model.asked_at) - calls <= requests + 20  # those whose request came before
    assert lab.gate.quota.requests == len(model.asked_at)
    assert lab.gate.quota.lowered == 1


def most_in_a_minute(at: list[float]) -> int:
    return max(sum(begin <= one < begin + 60 for one in at) for begin in at)


@pytest.mark.parametrize("rate", [60, 600, 1500])
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.slow
def test_the_request_rate_is_exact(rate: int, workers: int) -> None:
    """All workers together start exactly the allowed requests per minute, plus the burst."""
    model = Model(lasts=lambda: 0.3)

    async def use(lab: Lab) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(lab.workers[number % workers].ask_on, 180.0)

    in_lab(use, model, workers=workers, requests_per_minute=rate)
    later = [at for at in model.asked_at if 30 <= at < 150]
    assert 0.95 * 2 * rate <= len(later) <= 1.05 * 2 * rate
    assert most_in_a_minute(later) <= 1.05 * rate
    assert most_in_a_minute(model.asked_at) <= 1.15 * rate  # the burst at the begin


def test_the_token_rate_is_exact() -> None:
    """All workers together use exactly the allowed tokens per minute."""
    model = Model(lasts=lambda: 0.3, tokens=400)

    async def use(lab: Lab) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(lab.workers[number % 3].ask_on, 180.0)

    in_lab(use, model, workers=3, tokens_per_minute=60_000)
    later = [at for at in model.asked_at if 30 <= at < 150]
    assert 0.95 * 300 <= len(later) <= 1.05 * 300


@pytest.mark.parametrize("demand", [0.5, 0.9])
def test_below_the_rate_there_is_no_delay(demand: float) -> None:
    """Two workers that together stay below the rate never wait."""
    model, rate, late = Model(lasts=lambda: 0.1), 600, [0.0]

    async def use(lab: Lab) -> None:
        async def one(worker: Worker) -> None:
            began = anyio.current_time()
            await worker.ask()
            late.append(anyio.current_time() - began - 0.1)

        async with anyio.create_task_group() as tasks:
            for number in range(int(rate * demand)):
                tasks.start_soon(one, lab.workers[number % 2])
                await anyio.sleep(60 / rate / demand)

    in_lab(use, model, requests_per_minute=rate)
    assert max(late) < 0.5


@given(st.integers(1, 150), st.integers(1, 4), st.integers(1, 40), st.sampled_from([0.0, 0.002, 0.03]))
@pytest.mark.slow
def test_exactly_the_allowed_calls_are_made(most: int, workers: int, at_once: int, delay: float) -> None:
    """Any workers together make exactly `--max-llm-calls`, and none is refused earlier."""
    model = Model(lasts=lambda: 0.05)
    refused_at: list[int] = []

    async def use(lab: Lab) -> None:
        async def ask(worker: Worker) -> None:
            while True:
                try:
                    await worker.ask()
                except BudgetExhausted:
                    refused_at.append(lab.budget.calls)
                    return

        async with anyio.create_task_group() as tasks:
            for number in range(at_once):
                tasks.start_soon(ask, lab.workers[number % workers])

    lab = in_lab(use, model, workers=workers, max_calls=most, delay=delay)
    assert len(model.asked_at) == most == lab.budget.calls
    assert refused_at == [most] * at_once
    assert len(lab.stopped) == 1


@pytest.mark.parametrize("shares", [False, True])
def test_a_dead_worker_releases_its_leases(shares: bool) -> None:
    """Its places are released, and calls it had started count."""
    model = Model(lasts=lambda: 1.0)

    async def use(lab: Lab) -> None:
        dying, other = lab.workers
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(dying.ask, number)
            await anyio.sleep(3.5)
            dying.dies()
            tasks.cancel_scope.cancel()
        assert lab.gate.places.in_progress == 0
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(other.ask, number)
        assert model.asked_by["w1"] == 10
        assert len(model.asked_at) > 20
        assert shares or lab.budget.calls == len(model.asked_at)

    in_lab(use, model, max_concurrency=10, shares=shares)


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.slow
def test_all_workers_wait_for_a_model_together(shares: bool) -> None:
    """One call probes at a time over all workers; then all continue, with one message."""
    model = Model(lasts=lambda: 0.2, fault=lambda at: UNREACHABLE if 10 <= at < 40 else None)

    async def use(lab: Lab) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(lab.workers[number % 4].ask_on, 60.0)

    lab = in_lab(use, model, workers=4, shares=shares)
    assert sum(11 <= at < 40 for at in model.asked_at) <= 15
    assert sum(44 <= at < 60 for at in model.asked_at) > 0.9 * 40 * 16 / 0.2 * 0.95
    assert [note.partition(" (")[0] for note in lab.notes] == [
        "model m does not answer",
        "model m answers again",
    ]


@pytest.mark.parametrize("shares", [False, True])
def test_a_key_that_is_refused_ends_calls_of_all_workers(shares: bool) -> None:
    """After a refused key, calls of other workers fail without a request."""
    model, problems = Model(fault=lambda at: REVOKED), []

    async def use(lab: Lab) -> None:
        for worker in (*lab.workers, *lab.workers):
            with pytest.raises(ModelUnavailable) as caught:
                await worker.ask()
            problems.append(str(caught.value))
            await anyio.sleep(3 * DELAY_S)

    in_lab(use, model, shares=shares)
    assert len(model.asked_at) == 2  # and once more with a question that any model answers
    assert all("model m is down" in problem for problem in problems[1:])


class Rejected(ModelError):
    """An error of a custom model, with arguments of its own."""

    def __init__(self, status: int, request: str) -> None:
        super().__init__(f"{status}: no")
        self.request = request


class Busy(TransientError):
    """A failure of a custom model that a retry may fix."""

    def __init__(self, status: int, request: str) -> None:
        super().__init__(f"{status}: busy", 0.5, throttled=True)
        self.request = request


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (Rejected(400, "secret"), ModelError("400: no")),
        (Busy(429, "secret"), TransientError("429: busy", 0.5, throttled=True)),
        (REVOKED, REVOKED),
    ],
)
def test_of_a_custom_error_only_what_the_limits_need_is_sent(error: ModelError, sent: ModelError) -> None:
    messages: list[Any] = []
    call: Any = None
    attempt = (
        LeasedGates(messages.append).of(ModelSpec("m", "m", "https://models.example.com")).attempt(call, int)
    )

    async def fail() -> None:
        attempt.failed(error, alone=False)
        await attempt.__aexit__()

    run(fail)
    _, method, (_, _, arrived), _ = pickle.loads(packed(messages[-1]))
    assert method == "end"
    assert (type(arrived), str(arrived), vars(arrived)) == (type(sent), str(sent), vars(sent))


@given(
    st.lists(st.tuples(st.floats(0, 8), st.floats(0, 6)), min_size=1, max_size=40),
    st.sampled_from([(0.0, 0.0), (1.0, 4.0), (2.0, 100.0)]),
    st.booleans(),
)
def test_cancelled_calls_release_their_places(
    calls: list[tuple[float, float]], down: tuple[float, float], shares: bool
) -> None:
    """This holds at any moment, waiting or probing."""
    model = Model(fault=lambda at: UNREACHABLE if down[0] <= at < down[1] else None)

    async def use(lab: Lab) -> None:
        async def asks(worker: Worker, after: float, lasts: float) -> None:
            await anyio.sleep(after)
            # A model that is down from the begin is given up.
            with anyio.move_on_after(lasts), suppress(ModelUnavailable):
                for _ in range(20):
                    await worker.ask()

        async with anyio.create_task_group() as tasks:
            for number, (after, lasts) in enumerate(calls):
                tasks.start_soon(asks, lab.workers[number % 3], after, lasts)

    lab = in_lab(use, model, workers=3, max_concurrency=5 + 30 * shares, shares=shares)
    assert shares or lab.budget.calls == len(model.asked_at)


def test_a_lease_that_is_given_back_when_it_is_granted_counts_for_nothing() -> None:
    """A call that is cancelled at the moment when its turn comes uses no place, rate or budget."""
    messages: list[Any] = []

    async def use(lab: Lab) -> None:
        leases = lab.desk.add_worker(messages.append, lab.tasks)
        for lease in (1, 2):
            leases.request(0, lease, 0, (lease, None, False, False, 60.0))
        await anyio.sleep(1)
        leases.end(1, (0, None, None), None, alone=False)
        leases.give_back(2)
        await anyio.sleep(1)
        assert [message[2][0] for message in messages if message[1] == "decide"] == [1]

    lab = in_lab(use, max_concurrency=1)
    assert lab.budget.calls == 1


def test_answers_that_are_reported_late_end_no_refusal() -> None:
    """A worker's sum of answers arrives after another worker has met a revoked key."""

    async def use(lab: Lab) -> None:
        first, second = lab.workers
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second.ask_on, anyio.current_time() + 2)
        await second.ask()
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(second.ask)
        assert second.gate.answers  # not reported yet
        first.gate.refuse_all("401: no such key")
        await anyio.sleep(0.2)
        assert lab.gate.circuit.is_open

    in_lab(use, Model(), shares=True, workers=2, max_concurrency=20)


def test_waiting_for_a_lease_does_not_use_the_deadline() -> None:
    model = Model(lasts=lambda: 5.0)

    async def use(lab: Lab) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(lab.workers[number % 2].ask)

    in_lab(use, model, max_concurrency=1, deadline_s=60, timeout_s=20)
    assert len(model.asked_at) == 40


@pytest.mark.parametrize("was_throttled", [False, True])
def test_waiting_after_a_429_uses_the_deadline(was_throttled: bool) -> None:
    """Only `deadline_ms` ends a request that is refused again and again, in a worker too."""
    timed_out = False

    async def use(lab: Lab) -> None:
        nonlocal timed_out

        async def wait() -> None:
            nonlocal timed_out
            with TimeLimit(2) as limit, anyio.move_on_after(4):
                call = Call(limit)
                call.was_throttled = was_throttled
                async with lab.workers[0].gate.attempt(call, int):
                    pass

        with TimeLimit(60) as limit:
            async with lab.gate.attempt(Call(limit), int):
                try:
                    await wait()
                except TimeoutError:
                    timed_out = True

    in_lab(use, max_concurrency=1)
    assert timed_out is was_throttled


def test_waiting_for_a_model_uses_the_deadline() -> None:
    """A call to a model that never recovers fails at its deadline, with the reason."""
    model = Model(fault=lambda at: UNREACHABLE if at >= 5 else None)
    problems: list[str] = []

    async def use(lab: Lab) -> None:
        async def asks(worker: Worker) -> None:
            try:
                await worker.ask_on(30.0)
            except ModelUnavailable as error:
                problems.append(str(error))

        async with anyio.create_task_group() as tasks:
            for worker in (*lab.workers, *lab.workers):
                tasks.start_soon(asks, worker)
        assert 25 < anyio.current_time() < 30

    in_lab(use, model, deadline_s=20)
    assert len(problems) == 4
    assert all("503" in problem for problem in problems)
