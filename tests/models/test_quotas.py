"""Models with a quota: nothing is lost, few requests are refused, and little time is wasted."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from math import inf

import anyio
import pytest
from fake_time import run
from lease_lab import Lab, Worker, in_lab
from pydantic import BaseModel

from agentest.domain.transcript import Usage
from agentest.models.admission import LocalGate, LocalGates
from agentest.models.budget import Budget, Call, Price
from agentest.models.caller import LiveModel, RetryPolicy
from agentest.models.circuit import Circuit, Places
from agentest.models.limits import Quota
from agentest.models.port import CallKey, ChatReply, ChatRequest, Ledger, Question, Room, TransientError
from agentest.models.providers import ModelSpec
from agentest.support.errors import ModelError, ModelUnavailable

SPEC = ModelSpec("m", "m", "https://models.example.com", api_key="k")
LASTS_S = 0.5


class NoLimit:
    ends_at = inf

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()


class Said(BaseModel):
    text: str


Allows = Callable[[float, int], bool]
"""Seconds since the beginning, requests in progress → whether one more is allowed."""


def in_window(most: int, seconds: float) -> Allows:
    """A sliding window."""
    taken: deque[float] = deque()

    def allows(now: float, _: int) -> bool:
        while taken and taken[0] <= now - seconds:
            taken.popleft()
        if len(taken) < most:
            taken.append(now)
            return True
        return False

    return allows


def by_the_clock(most: int, seconds: float) -> Allows:
    """An allowance that is renewed at fixed times."""
    taken: Counter[float] = Counter()

    def allows(now: float, _: int) -> bool:
        taken[now // seconds] += 1
        return taken[now // seconds] <= most

    return allows


def from_bucket(per_s: float, most: float) -> Allows:
    """A bucket that is filled evenly."""
    left, at = most, 0.0

    def allows(now: float, _: int) -> bool:
        nonlocal left, at
        left, at = min(most, left + (now - at) * per_s), now
        if left < 0.999_999:
            return False
        left -= 1
        return True

    return allows


def at_once(most: int) -> Allows:
    return lambda _, under_way: under_way < most


class Limited:
    """A model with a quota. Its refusals come at once."""

    name = "m"

    def __init__(self, allows: Allows, retry_after: Callable[[float], float | None]) -> None:
        self.allows, self.retry_after = allows, retry_after
        self.lasts_s = LASTS_S
        self.requests = self.refused = self.under_way = 0

    async def complete(self, _: ChatRequest) -> ChatReply:
        self.requests += 1
        now = anyio.current_time()
        if not self.allows(now, self.under_way):
            self.refused += 1
            await anyio.sleep(0.003)
            raise TransientError("429: slow down", self.retry_after(now), throttled=True)
        self.under_way += 1
        try:
            await anyio.sleep(self.lasts_s)
        finally:
            self.under_way -= 1
        return ChatReply('{"text": "hello"}')


QUOTAS: dict[str, tuple[Callable[[], Allows], Callable[[float], float | None], float]] = {
    "5 a second, 1 s asked": (lambda: in_window(5, 1), lambda _: 1.0, 48),
    "5 a second, 0 s asked": (lambda: in_window(5, 1), lambda _: 0.0, 48),
    "20 a second": (lambda: in_window(20, 1), lambda _: 1.0, 13),
    "60 a minute": (lambda: by_the_clock(60, 60), lambda now: 60 - now % 60, 240),
    "a bucket": (lambda: from_bucket(2, 20), lambda _: 1.0, 120),
    "10 at once": (lambda: at_once(10), lambda _: None, 12),
}
"""Name → what it allows, what `Retry-After` says, and the seconds that 240 requests may take."""


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("concurrency", [3, 20, 100])
@pytest.mark.parametrize("name", QUOTAS)
@pytest.mark.slow
def test_a_quota_costs_nothing_but_time(name: str, concurrency: int, workers: int) -> None:
    """240 requests of 60 conversations lose none, and one of ten is refused at most."""
    allows, retry_after, seconds = QUOTAS[name]
    model, took = Limited(allows(), retry_after), 0.0

    async def use(lab: Lab) -> None:
        nonlocal took
        left = iter(range(60))

        async def converse(worker: Worker) -> None:
            for number in left:
                for _ in range(4):
                    await worker.ask(number)

        async with anyio.create_task_group() as tasks:
            for number in range(concurrency):
                tasks.start_soon(converse, lab.workers[number % workers])
        took = anyio.current_time()

    in_lab(use, model, workers=workers, concurrency=concurrency)
    assert model.requests - model.refused - 240 in range(8)  # a few questions are repeated to check a pause
    assert model.requests <= 1.1 * 240
    assert took <= 1.2 * max(seconds, 240 / concurrency * LASTS_S)


def test_a_quota_that_rises_again_is_used() -> None:
    """Answers raise a learnt rate ever faster: 10 a second, 1 a second for half a minute, and 10 again."""
    usual, low = in_window(10, 1), in_window(1, 1)
    model, took = Limited(lambda now, n: (low if 6 <= now < 36 else usual)(now, n), lambda _: 1.0), 0.0

    async def use(lab: Lab) -> None:
        nonlocal took

        async def converse(number: int) -> None:
            for _ in range(15):
                await lab.workers[0].ask(number)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(converse, number)
        took = anyio.current_time()

    in_lab(use, model, workers=1, concurrency=20)
    assert model.requests <= 1.1 * 300
    assert took <= 2 * 57  # the least; a request whose pauses grew ends last in some runs


def answer_times(gate: LocalGate, model: Limited, questions: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Ask all at once; return role and conversation in the order of the answers."""
    order: list[tuple[str, int]] = []

    async def use() -> None:
        answers = LiveModel(model, Ledger(), gate, patience=RetryPolicy())

        async def ask(role: str, number: int) -> None:
            key = CallKey("user" if role == "user" else "judge", "s", number)
            await answers.answer(Question([{"role": "user", "content": "?"}], Said, key))
            order.append((role, number))

        await ask("user", 0)
        async with anyio.create_task_group() as tasks:
            for role, number in questions:
                tasks.start_soon(ask, role, number)

    run(use)
    return order[1:]


def test_the_line_is_fair() -> None:
    """Users and judges take turns, and of each the oldest conversation comes first."""
    gate = LocalGate("m", Places(1), quota=Quota(eager=True))
    judges = [("judge", 1), *[("judge", 2)] * 4, *[("judge", 1)] * 2]
    order = answer_times(gate, Limited(at_once(1), lambda _: None), [*judges, ("user", 2), ("user", 1)])
    assert [role for role, _ in order[:5]] == ["judge", "user", "judge", "user", "judge"]
    assert order[0] == ("judge", 1)
    assert [number for role, number in order if role == "judge"] == [1, 1, 1, 2, 2, 2, 2]
    assert [order.index(("user", number)) < 5 for number in (1, 2)] == [True, True]


def test_a_refused_request_returns_to_its_position() -> None:
    """A request that got a 429 is sent again before those that have not been sent."""
    allowed = iter([True, False, *[True] * 99])
    model = Limited(lambda *_: next(allowed), lambda _: 0.0)
    gate = LocalGate("m", Places(1), quota=Quota(eager=True))
    order = answer_times(gate, model, [("user", number) for number in range(1, 6)])
    assert order.index(("user", 1)) <= 1  # one of the others may have been sent during its pause


def test_a_quota_belongs_to_a_key() -> None:
    """User and judge on one key share a quota, with the lower rates; places belong to the roles."""
    gates = LocalGates(20)
    assert (
        len(
            {
                id(gates.of(replace(SPEC, **{name: "other"})).quota)
                for name in ("base_url", "model", "api_key")
            }
        )
        == 3
    )
    user = gates.of(replace(SPEC, requests_per_minute=60, max_concurrency=3))
    judge = gates.of(replace(SPEC, tokens_per_minute=6000))
    other_key = gates.of(replace(SPEC, api_key="other"))
    assert user.quota is judge.quota is not other_key.quota
    assert (user.places.places, judge.places.places) == (3, 60)
    alone = LocalGates(1)
    first, second = alone.of(SPEC), alone.of(replace(SPEC, base_url="https://other.example.com"))
    assert first.places is second.places
    assert first.quota is not second.quota


def test_models_of_a_pool_share_a_quota() -> None:
    """Other models, and the same pool of another key, do not; formats and outages belong to the model."""
    gates = LocalGates(20)
    user = gates.of(replace(SPEC, model="small", pool="ours"))
    judge = gates.of(replace(SPEC, model="large", pool="ours"))
    others = [gates.of(replace(SPEC, model="small")), gates.of(replace(SPEC, pool="ours", api_key="other"))]
    assert user.quota is judge.quota
    assert user.circuit is not judge.circuit
    assert user.capabilities is not judge.capabilities
    assert all(each.quota is not user.quota for each in others)
    assert user.quota.model == "ours"


@pytest.mark.parametrize("is_odd", [True, False])
def test_429s_that_are_a_requests_own_lower_nothing(is_odd: bool) -> None:
    """Of a request that is refused while others are answered, 429s say nothing about the quota."""

    async def use() -> None:
        gate, call = LocalGate("m", quota=Quota(eager=True)), Call(NoLimit())
        call.is_odd = is_odd
        async with gate.attempt(call, int) as attempt:
            attempt.failed(TransientError("429", 1.0, throttled=True), alone=False)
        assert gate.quota.lowered == (not is_odd)

    run(use)


@pytest.mark.parametrize("rates", [(60, 120), (120, 60)])
def test_the_lower_of_two_rates_applies(rates: tuple[int, int]) -> None:
    async def use() -> None:
        quota = Quota(eager=True)
        for rate in rates:
            quota.require(rate, None)
        for _ in range(2):
            await quota.take(Call(NoLimit()))
        assert anyio.current_time() == pytest.approx(1 / 0.98)

    run(use)


def test_what_headers_say_is_left_bounds_the_requests() -> None:
    """No more requests and tokens are in progress than are left."""

    async def use() -> None:
        quota, call = Quota(eager=True), Call(NoLimit())
        assert quota.take_now(call, 10)
        quota.succeeded(quota.lowered, Room(requests=2, tokens=100))
        quota.give_back(10)
        assert [quota.take_now(call, 40) for _ in range(3)] == [True, True, False]
        quota.give_back(40)
        assert not quota.take_now(call, 70)
        assert quota.take_now(call, 60)

    run(use)


def test_a_provider_that_names_its_limit_needs_no_slow_start() -> None:
    """As many requests as the first answer's headers allow start at once."""

    async def use() -> None:
        quota, call = Quota(), Call(NoLimit())
        assert quota.take_now(call)
        assert not quota.take_now(call)
        quota.succeeded(quota.lowered, Room(requests=40))
        quota.give_back(0)
        assert [quota.take_now(call) for _ in range(41)] == [True] * 40 + [False]

    run(use)


def test_a_long_pause_that_headers_ask_for_is_bounded() -> None:
    """A provider that names tomorrow is asked again after half a minute."""

    async def use() -> None:
        quota, call = Quota(eager=True), Call(NoLimit())
        await quota.take(call)
        quota.succeeded(quota.lowered, Room(requests=0, pause_s=86_400))
        quota.give_back(0)
        await quota.take(call)
        assert anyio.current_time() == pytest.approx(30)

    run(use)


@pytest.mark.parametrize("others_are_answered", [False, True])
def test_a_long_pause_is_the_requests_own_if_others_are_answered(others_are_answered: bool) -> None:
    """Only a pause of a model that answers nothing is one for all."""

    async def use() -> None:
        circuit = Circuit("m", 600)
        gate, call = LocalGate("m", circuit=circuit, quota=Quota(eager=True)), Call(NoLimit())
        async with gate.attempt(call, int) as attempt:
            if others_are_answered:
                async with gate.attempt(Call(NoLimit()), int) as other:
                    other.succeeded(0, None, None)
            attempt.failed(TransientError("429", 100.0, throttled=True), alone=False)
        assert circuit.is_open is not others_are_answered

    run(use)


def test_what_headers_said_is_forgotten_without_headers() -> None:
    """An answer without rate-limit headers ends the bounds of an earlier one."""

    async def use() -> None:
        quota, call = Quota(eager=True), Call(NoLimit())
        assert quota.take_now(call)
        quota.succeeded(quota.lowered, Room(requests=0, tokens=5000, pause_s=0.3))
        quota.give_back(0)
        await quota.take(call)
        assert not quota.take_now(call)
        quota.succeeded(quota.lowered, None)
        quota.give_back(0)
        assert all(quota.take_now(call, 6000) for _ in range(40))

    run(use)


def test_a_slow_model_gets_its_first_requests_soon() -> None:
    """Requests without a 429 let others start, however long the answers take."""
    model, started = Limited(lambda *_: True, lambda _: None), list[float]()

    def allows(now: float, _: int) -> bool:
        started.append(now)
        return True

    async def use(lab: Lab) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(lab.workers[0].ask, number)

    model.allows, model.lasts_s = allows, 30.0
    in_lab(use, model)
    assert started[1] >= 0.5
    assert started[19] < 3


def test_a_429_that_asks_for_no_pause_limits_the_requests_in_progress() -> None:
    """As many as were accepted may be in progress, and answers raise that again."""

    async def use() -> None:
        quota, call = Quota(eager=True), Call(NoLimit())
        assert all(quota.take_now(call) for _ in range(8))
        quota.throttled(quota.lowered, None)
        quota.give_back(0)
        assert not quota.take_now(call)
        for _ in range(60):
            quota.succeeded(quota.lowered, None)
            quota.give_back(0)
            assert quota.take_now(call)
        assert quota.take_now(call)
        assert quota.rate is None

    run(use)


def test_a_learnt_rate_allows_no_burst() -> None:
    """After a long time without requests, no more of them start than in any other window."""

    async def use() -> None:
        quota, call = Quota(eager=True), Call(NoLimit())
        quota.rate = 2.0
        await anyio.sleep(100)
        for _ in range(3):
            await quota.take(call)
        assert anyio.current_time() == pytest.approx(101.03)

    run(use)


@pytest.mark.parametrize("workers", [1, 3])
def test_what_a_run_used_of_a_quota(workers: int) -> None:
    """The run's process counts requests, tokens, 429s and waits, whichever process asks."""

    class Reporting(Limited):
        async def complete(self, request: ChatRequest) -> ChatReply:
            room = Room(requests_per_minute=600, tokens_per_minute=90_000)
            return replace(await super().complete(request), usage=Usage(40, 10), room=room)

    async def use(lab: Lab) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(lab.workers[number % workers].ask, number)

    model = Reporting(in_window(5, 1.0), lambda _: 1.0)
    [quota] = in_lab(use, model, workers=workers, concurrency=30).gates.quotas.values()
    found = quota.use
    assert (found.allowed_requests_per_minute, found.allowed_tokens_per_minute) == (600, 90_000)
    assert (found.model, found.requests, found.refused) == ("m", model.requests, model.refused)
    assert found.refused > 0
    assert found.tokens == 30 * 50
    assert 4000 < found.waited_ms < 10_000
    assert 200 < (found.learnt_per_minute or 0) < 400


def test_the_start_of_a_run_is_no_wait_for_a_quota() -> None:
    """Without limits, the first requests wait for each other, which says nothing of a quota."""
    gates = LocalGates(20)
    answers = LiveModel(Limited(lambda *_: True, lambda _: None), Ledger(), gates.of(SPEC))

    async def use() -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                question = Question([{"role": "user", "content": "?"}], Said, CallKey("user", "s", number))
                tasks.start_soon(answers.answer, question)

    run(use)
    [quota] = gates.quotas.values()
    assert (quota.use.requests, quota.use.waited_ms) == (20, 0.0)


def test_reservations_are_settled_by_usage() -> None:
    """A request reserves prompt, schema and expected answer; unknown usage keeps that."""

    async def use() -> None:
        quota = Quota(eager=True)
        quota.require(None, 6000)
        starts = []
        for used in (1000, 100, 0, 1000):
            await quota.take(Call(NoLimit()), 1000)
            starts.append(anyio.current_time())
            quota.give_back(1000)
            if used:
                quota.settle(1000, used)
        assert [round(later - at) for at, later in pairwise(starts)] == [10, 1, 10]

    run(use)


def test_an_unused_request_costs_nothing() -> None:
    async def use() -> None:
        quota = Quota(eager=True)
        quota.require(60, 6000)
        for _ in range(100):
            assert quota.take_now(Call(NoLimit()), 1000)
            quota.give_back(1000, made=False)
        assert quota.in_progress == 0
        assert quota.take_now(Call(NoLimit()), 1000)

    run(use)


def test_unknown_usage_counts_for_the_budget() -> None:
    """If the server omits `usage`, `--max-cost` counts what the request may have cost."""
    told: list[str] = []
    budget = Budget(0.01, None, told.append)
    gate = LocalGate("m", budget=budget, quota=Quota(eager=True))

    async def use() -> None:
        model = Limited(lambda *_: True, lambda _: None)
        answers = LiveModel(model, Ledger(), gate, price=Price(1e-6, 1e-5, 1e-6))
        for number in range(50):
            key = CallKey("user", "s", number)
            await answers.answer(Question([{"role": "user", "content": "?"}], Said, key))

    with pytest.raises(ModelError, match="they cost"):
        run(use)
    assert len(told) == 1


def test_usage_is_estimated_from_nine_of_ten_answers() -> None:
    reserved: list[int] = []

    class Counting(Quota):
        def _start(self, tokens: int, /) -> None:
            reserved.append(tokens)
            super()._start(tokens)

    class Chatty:
        name = "m"

        async def complete(self, _: ChatRequest) -> ChatReply:
            return ChatReply('{"text": "hello"}', Usage(10, 40))

    async def use() -> None:
        quota = Counting(eager=True)
        quota.require(None, 60_000_000)
        answers = LiveModel(Chatty(), Ledger(), LocalGate("m", quota=quota))
        for number in range(3):
            key = CallKey("user", "s", number)
            await answers.answer(Question([{"role": "user", "content": "?" * 400}], Said, key))

    run(use)
    assert reserved[0] - reserved[1] == 300 - 40
    assert reserved[1] == reserved[2] > 140


@pytest.mark.parametrize("refusal", [ModelUnavailable("401: no", permanent=True), None])
def test_a_model_that_refuses_all_ends_the_run(refusal: ModelError | None) -> None:
    """A wrong key, and a pause of hours, take a few requests of thirty questions, and say why."""
    stopped: list[str] = []
    error = refusal or TransientError("429: per day", 20_000, throttled=True)
    requests = 0

    class Refusing:
        name = "m"

        async def complete(self, _: ChatRequest) -> ChatReply:
            nonlocal requests
            requests += 1
            raise error

    async def use() -> None:
        circuit = Circuit("m", 600, stop=stopped.append)
        answers = LiveModel(Refusing(), Ledger(), LocalGate("m", circuit=circuit))

        async def ask(number: int) -> None:
            key = CallKey("judge", "s", number)
            with pytest.raises(ModelUnavailable, match=str(error)):
                await answers.answer(Question([{"role": "user", "content": "?"}], Said, key))

        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(ask, number)

    run(use)
    assert requests <= 3
    assert str(error) in stopped[0]


def test_a_rate_for_a_second_is_learnt_from_its_first_429() -> None:
    """`Retry-After: 1` is rounded up: requests accepted in less than a second are the rate for a second."""

    async def use() -> None:
        quota = Quota()
        await quota.take(Call(NoLimit()))
        await anyio.sleep(0.3)
        quota.succeeded(quota.lowered, None)
        for _ in range(5):
            await quota.take(Call(NoLimit()))
        assert 0.3 < anyio.current_time() < 1
        quota.throttled(quota.lowered, 1.0)
        assert quota.rate == 5

    run(use)


def test_a_learnt_window_opens_when_its_requests_are_a_second_old() -> None:
    """What was accepted in a second starts again in the next one, however long the first 429 asks to wait."""

    async def use() -> None:
        quota = Quota(eager=True)
        for _ in range(9):
            await quota.take(Call(NoLimit()))
        await anyio.sleep(0.5)
        quota.throttled(quota.lowered, 1.0)
        starts = []
        for _ in range(9):
            await quota.take(Call(NoLimit()))
            starts.append(anyio.current_time())
        assert starts[0] == pytest.approx(1.03)
        assert starts[7] < 2 < starts[8]

    run(use)


def test_answers_raise_a_learnt_rate_by_a_third_in_a_window_at_most() -> None:
    async def use() -> None:
        quota = Quota(eager=True)
        for _ in range(21):
            await quota.take(Call(NoLimit()))
        quota.throttled(quota.lowered, 1.0)
        rates = []
        for _ in range(4):
            for _ in range(20):
                quota.succeeded(quota.lowered, None)
            assert quota.rate
            rates.append(quota.rate)
        assert 20 < rates[0] < 21
        assert all(before < rate < 1.36 * before for before, rate in pairwise(rates))

    run(use)


@pytest.mark.parametrize(("accepted", "rate"), [(1, 10), (13, 14), (30, 19)])
def test_a_429_lowers_the_rate_to_what_was_accepted(accepted: int, rate: float) -> None:
    """The rate falls by 5%, or to the requests that were accepted in the last second, by half at most."""

    async def use() -> None:
        quota = Quota(eager=True)
        for _ in range(accepted + 1):
            await quota.take(Call(NoLimit()))
        quota.rate = 20
        quota.throttled(quota.lowered, 1.0)
        assert quota.rate == rate

    run(use)


@pytest.mark.parametrize(("asked_for", "pause"), [(1.0, 0), (5.0, 5.0)])
def test_a_second_429_in_a_row_pauses_all_if_it_asks_for_long(asked_for: float, pause: float) -> None:
    """A second is asked for by servers that round up, so it says nothing of other requests."""

    async def use() -> None:
        quota = Quota(eager=True)
        quota.rate = 1000.0
        for _ in range(2):
            await quota.take(Call(NoLimit()))
            quota.throttled(quota.lowered, asked_for)
            quota.give_back(0)
        began = anyio.current_time()
        await quota.take(Call(NoLimit()))
        assert anyio.current_time() - began == pytest.approx(pause, abs=0.01)

    run(use)
