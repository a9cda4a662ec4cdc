"""Models that go down during a run, on a clock that only moves when every task waits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import anyio
import pytest
from fake_time import run
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agentest.models.admission import LocalGate
from agentest.models.budget import Budget, BudgetExhausted
from agentest.models.caller import LiveModel, RetryPolicy
from agentest.models.circuit import Circuit, Places
from agentest.models.port import (
    CallKey,
    ChatReply,
    ChatRequest,
    Ledger,
    Question,
    RequestRefused,
    TransientError,
)
from agentest.support.errors import ModelError, ModelUnavailable

UNREACHABLE = TransientError("503: no upstream")
NOBODY_THERE = TransientError("connection refused", misaddressed=True)
BROKEN = TransientError("500: oops")
TOO_MANY = TransientError("429: slow down", throttled=True)
REVOKED = ModelUnavailable("401: no such key", permanent=True)
Fault = Callable[[float, ChatRequest], ModelError | None]
"""Seconds since the beginning, request → what becomes of it; None: an answer."""


class Said(BaseModel):
    text: str


@dataclass
class Model:
    """A model whose every answer takes a while."""

    fault: Fault = lambda at, request: None
    lasts: float = 0.5
    name: str = "m"
    asked_at: list[float] = field(default_factory=list)
    under_way: int = 0
    most: int = 0

    async def complete(self, request: ChatRequest) -> ChatReply:
        began = anyio.current_time()
        self.asked_at.append(began)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await anyio.sleep(self.lasts)
        finally:
            self.under_way -= 1
        if error := self.fault(began, request):
            raise error
        return ChatReply('{"text": "hello"}')

    def asked_between(self, begin: float, end: float) -> int:
        return sum(begin <= at < end for at in self.asked_at)


@dataclass
class Run:
    """Concurrent conversations that each make several calls in sequence."""

    model: Model
    at_once: int = 20
    retries: int = 4
    deadline_s: float = 600.0
    timeout_s: float = 120.0
    places: int = 200
    budget: Budget | None = None
    errors: list[str] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    took: float = 0.0

    def __call__(self, conversations: int = 300, calls: int = 4) -> Run:
        run(lambda: self._run(conversations, calls))
        return self

    async def _run(self, conversations: int, calls: int) -> None:
        answers = LiveModel(
            self.model,
            Ledger(),
            LocalGate(
                "m", Places(self.places), Circuit("m", self.deadline_s, self.notes.append), self.budget
            ),
            patience=RetryPolicy(self.timeout_s, self.deadline_s, self.retries),
        )
        left = iter(range(conversations))

        async def hold() -> None:
            for number in left:
                for turn in range(calls):
                    key = CallKey("user", "s", number, turn)
                    try:
                        await answers.answer(Question([{"role": "user", "content": "?"}], Said, key))
                    except (ModelUnavailable, BudgetExhausted) as error:
                        self.errors.append(str(error))
                        self.failed.add(number)
                        break

        async with anyio.create_task_group() as tasks:
            for _ in range(self.at_once):
                tasks.start_soon(hold)
        self.took = anyio.current_time()


@pytest.mark.slow
def test_queueing_does_not_count_as_a_delay() -> None:
    """A slow model with one place answers all calls, however late the last ones are."""
    done = Run(Model(lasts=5), at_once=400, places=1, deadline_s=60, timeout_s=20)(conversations=400, calls=1)
    assert done.errors == []
    assert (done.model.most, round(done.took)) == (1, 2000)


def test_the_deadline_counts_the_models_time() -> None:
    """Attempts and pauses between them count toward the deadline; time in the queue does not."""
    failing = Model(lambda at, request: BROKEN if at > 900 else None, lasts=5)
    done = Run(failing, at_once=200, places=1, retries=1000, deadline_s=60)(conversations=200, calls=1)
    assert len(done.errors) > 0
    assert done.took < 905 + 60 + 60


def between(begin: float, end: float, error: ModelError) -> Fault:
    return lambda at, request: error if begin <= at < end else None


@pytest.mark.parametrize("error", [UNREACHABLE, BROKEN, TOO_MANY], ids=["503", "500", "429"])
@pytest.mark.parametrize(("begin", "lasts"), [(0, 3), (0, 20), (0, 90), (5, 3), (5, 20), (5, 90)])
@pytest.mark.parametrize("at_once", [1, 2, 20, 200])
@pytest.mark.parametrize("retries", [1, 4])
@pytest.mark.slow
def test_an_outage_costs_no_conversation(
    error: ModelError, begin: float, lasts: float, at_once: int, retries: int
) -> None:
    """Calls wait for a model that is down, from the first request on or later, and only time is lost."""
    model = Model(between(begin, begin + lasts, error))
    done = Run(model, at_once, retries=retries)(conversations=max(10, min(300, 15 * at_once)))
    assert done.errors == []
    slow, few = (30, 30) if error is TOO_MANY else (12, 10)  # seconds: a learnt rate rises again
    assert done.took < max(10, min(300, 15 * at_once)) * 4 * 0.5 / at_once + lasts + slow
    few += lasts / 3
    assert model.asked_between(begin, begin + lasts) <= 4 * at_once + few


def test_an_outage_with_a_single_caller() -> None:
    """A single conversation waits for an unreachable model, with the default retries."""
    done = Run(Model(between(5, 65, UNREACHABLE)), at_once=1)(conversations=10)
    assert done.errors == []


@pytest.mark.slow
def test_one_call_probes_at_a_time() -> None:
    """During an outage one request at a time is made, soon at first, then every few seconds."""
    model = Model(between(5, 65, UNREACHABLE), lasts=0.1)
    Run(model, at_once=200)(conversations=2000, calls=10)
    probes = [at for at in model.asked_at if 5.3 <= at < 65]
    pauses = [later - at for at, later in pairwise(probes)]
    assert probes[0] < 6
    assert all(pause >= 0.1 for pause in pauses)
    assert all(2 < pause < 5 for pause in pauses[5:])


def test_an_outage_is_reported_once() -> None:
    """An outage prints two lines: the model is waited for and at most how long; it is back."""
    done = Run(Model(between(5, 25, UNREACHABLE)), deadline_s=60)()
    first, second = done.notes
    assert first.startswith("model m does not answer (503: no upstream): waiting for it, at most 59 s")
    assert re.fullmatch(r"model m answers again \(no answer for 2\d s\)", second)


@pytest.mark.parametrize("error", [UNREACHABLE, BROKEN, TOO_MANY], ids=["503", "500", "429"])
@pytest.mark.parametrize("deadline_s", [3, 60])
def test_a_model_that_dies_for_good(error: ModelError, deadline_s: float) -> None:
    """If a model never recovers, the run ends soon after one deadline, with only tens of requests."""
    answered = 0

    def fault(at: float, request: ChatRequest) -> ModelError | None:
        nonlocal answered
        answered += 1
        return None if answered <= 30 else error

    model = Model(fault)
    done = Run(model, deadline_s=deadline_s)(conversations=1440, calls=1)
    assert len(done.errors) == 1440 - 30
    assert done.took < deadline_s + 8
    assert len(model.asked_at) < 30 + 100
    assert str(error) in done.errors[-1]


def test_a_model_that_hangs_for_good() -> None:
    """The same holds if requests are never answered."""

    def fault(at: float, request: ChatRequest) -> ModelError | None:
        model.lasts = 0.5 if at < 5 else 1e6
        return None

    model = Model(fault)
    done = Run(model, deadline_s=60, timeout_s=10)(conversations=1000)
    assert done.took < 5 + 10 + 60 + 12
    assert len(model.asked_at) < 20 * 10 + 100


def test_a_model_that_is_slower_than_its_time_limit() -> None:
    """A model that always exceeds `timeout_ms` is not waited for; its calls fail after their retries."""
    model = Model(lasts=0.5)
    done = Run(model, timeout_s=0.1, retries=1)(conversations=40)
    assert len(done.failed) == 40
    assert set(done.errors) == {
        "the simulated user: model m: no answer within 0.1 s (tried 2 times); "
        "raise `timeout_ms` if the model takes longer"
    }
    assert len(model.asked_at) == 2 * 40
    assert done.notes == []


def test_a_model_that_hangs_from_the_beginning() -> None:
    """A large run ends soon after one deadline instead of retrying each call."""
    model = Model(lasts=1e6)
    done = Run(model, deadline_s=60, timeout_s=10)(conversations=1000)
    assert len(done.failed) == 1000
    assert done.took < 10 + 60 + 12
    assert len(model.asked_at) < 20 * 10 + 100
    assert "is down: no answer within 10 s" in done.errors[-1]
    assert "raise `timeout_ms`" in done.errors[-1]


@pytest.mark.parametrize("at_once", [1, 20])
def test_a_wrong_address_ends_a_run_after_a_minute(at_once: int) -> None:
    """If the address was never reachable, all calls fail after a minute, with reason and advice."""
    model = Model(between(0, 1e9, NOBODY_THERE))
    done = Run(model, at_once)()
    assert len(done.failed) == 300
    assert done.took < 65
    assert len(model.asked_at) < 60
    assert "connection refused" in done.notes[0]
    assert "at most 5" in done.notes[0]
    assert "connection refused (no answer for 60 s)" in done.errors[-1]
    assert "check its address" in done.errors[-1]


def test_an_address_that_was_right_is_waited_for() -> None:
    """An address unreachable for two minutes costs nothing if the model answered before."""
    done = Run(Model(between(5, 125, NOBODY_THERE)))()
    assert done.errors == []


@pytest.mark.parametrize("at_once", [1, 20])
def test_a_request_that_always_fails(at_once: int) -> None:
    """A request that always gets 500 while others succeed fails after its own retries."""

    def fault(at: float, request: ChatRequest) -> ModelError | None:
        return BROKEN if request.key.conversation == 50 else None

    model = Model(fault)
    done = Run(model, at_once)(conversations=100, calls=1)
    assert done.failed == {50}
    assert [error.partition(";")[0] for error in done.errors] == [
        "the simulated user: model m: 500: oops (tried 5 times)"
    ]
    assert len(model.asked_at) <= 99 + 5 + 2
    assert done.notes == []


ALL_FAIL = [BROKEN, UNREACHABLE, TOO_MANY, TransientError("reset")]


@pytest.mark.parametrize("error", ALL_FAIL, ids=str)
@pytest.mark.parametrize("at_once", [1, 20])
@pytest.mark.parametrize("retries", [0, 1, 4])
def test_one_kind_of_question_that_is_never_answered(error: ModelError, at_once: int, retries: int) -> None:
    """The last question of each conversation always fails: each fails after its retries, even with no other
    requests, because earlier answers show that the model is up."""

    def fault(at: float, request: ChatRequest) -> ModelError | None:
        return error if request.key.turn == 3 else None

    model = Model(fault)
    done = Run(model, at_once, retries=retries)(conversations=40)
    assert len(done.failed) == 40
    quota = error is TOO_MANY  # 429s use no retries: only `deadline_ms` ends the request
    late = "no answer within 600 s, all attempts together: 429"
    why = ("other requests were answered", late) if quota else ("other requests were answered",)
    assert all(any(each in problem for each in why) for problem in done.errors)
    assert quota or done.took < 40 * (2 + 15) / at_once + 45
    # A 429 costs nothing, and waiting for the lowest rate would keep the others for hours.
    assert len(model.asked_at) <= 40 * (3 + 2 * (retries + 1 + 12 * quota) + 1)


@pytest.mark.parametrize("asked_for", [None, 0.0, -5.0, 1.0])
@pytest.mark.parametrize("at_once", [3, 20, 100])
def test_a_quota_costs_no_conversation(at_once: int, asked_for: float | None) -> None:
    """A model that answers five requests a second, and 429 to all others, loses nothing and is not flooded.

    The 429s use up no budget.
    """
    answered: list[float] = []

    def fault(at: float, request: ChatRequest) -> ModelError | None:
        if len([each for each in answered if at - each < 1]) >= 5:
            return TransientError("429: slow down", asked_for, throttled=True)
        answered.append(at)
        return None

    model = Model(fault)
    done = Run(model, at_once, budget=Budget(None, 240, str))(conversations=60)
    assert done.errors == []
    assert len(model.asked_at) <= 3.5 * len(answered)
    assert done.took < 2.5 * len(answered) / 5


def test_all_that_is_left_fails() -> None:
    """A run whose last questions are never answered ends, with all others answered."""

    def fault(at: float, request: ChatRequest) -> ModelError | None:
        return BROKEN if request.key.conversation >= 280 else None

    done = Run(Model(fault))()
    assert done.failed == set(range(280, 300))
    assert done.took < 300 * 4 * 0.5 / 20 + 20


def test_a_first_question_that_always_fails() -> None:
    """A first question that is never answered delays the others by only a few seconds."""

    def fault(at: float, request: ChatRequest) -> ModelError | None:
        return BROKEN if request.key.conversation == 0 and request.key.scope else None

    done = Run(Model(fault), at_once=1)(conversations=10)
    assert done.failed == {0}
    assert done.took < 9 * 4 * 0.5 + 12


KINDS = st.sampled_from([None, UNREACHABLE, BROKEN])  # 429s are of a quota, if they are so many


@given(st.lists(KINDS, min_size=1, max_size=30), st.integers(1, 30))
@settings(max_examples=50)
@pytest.mark.slow
def test_stray_faults_cost_little(faults: list[ModelError | None], at_once: int) -> None:
    """Occasional faults of any kind, in any order, lose nothing and cost little time."""
    row = iter([fault for fault in faults for fault in (None, None, None, fault)] * 40)
    model = Model(lambda at, request: next(row, None), lasts=0.1)
    done = Run(model, at_once, retries=10)(conversations=60, calls=4)
    assert done.errors == []
    assert done.took < 10 * (240 * 0.1 / at_once) + 10


@pytest.mark.parametrize("at_once", [1, 20])
@pytest.mark.parametrize("first", [0, 50])
def test_a_refusal_is_the_calls_own(at_once: int, first: int) -> None:
    """A few 401s in a row, even at the start of a run, fail only their own calls."""
    some = set(range(first, first + 25))

    def fault(at: float, request: ChatRequest) -> ModelError | None:
        return REVOKED if request.key.scope and request.key.conversation in some else None

    done = Run(Model(fault), at_once)(conversations=100)
    assert done.failed == some
    assert all("the server refuses only this one" in error for error in done.errors)


@pytest.mark.parametrize("at_once", [1, 20])
@pytest.mark.parametrize("begin", [0, 5])
def test_a_refused_key_ends_all(at_once: int, begin: float) -> None:
    """If every request is refused, all calls fail after a few requests, with reason and advice."""
    revoked = Model(between(begin, 1e9, REVOKED))
    done = Run(revoked, at_once)(conversations=1000)
    assert revoked.asked_between(begin, 1e9) <= 2 * at_once + 1
    assert done.took < begin + 3
    assert "401: no such key" in done.errors[-1]
    assert "check the model's name, its key and the account" in done.errors[-1]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("begin", [0, 5])
def test_a_pause_beyond_the_deadline_ends_the_run(status: int, begin: float) -> None:
    """If a server requests a pause of an hour, all calls fail at once and no new requests are sent."""
    error = TransientError(f"{status}: later", 3600, throttled=status == 429)
    model = Model(between(begin, 1e9, error))
    done = Run(model)(conversations=1000)
    assert done.took <= begin + 5
    assert model.asked_between(begin, 1e9) <= 40
    assert "asks to wait 3600 s" in done.errors[0]
    assert "asks to wait 3600 s" in done.errors[-1]


def test_a_pause_within_the_deadline_is_waited_for() -> None:
    """If a server requests two minutes, all calls wait and do not send requests meanwhile."""
    error = TransientError("429: later", 120, throttled=True)
    model = Model(between(5, 100, error))
    done = Run(model)()
    assert done.errors == []
    assert model.asked_between(5.5, 125) <= 1  # to find out whether it is the same for all
    assert "429: later" in done.notes[0]


def test_nothing_but_429s_from_the_beginning() -> None:
    """A model that only answers 429 is given up after one deadline, for all calls."""
    model = Model(between(0, 1e9, TOO_MANY))
    done = Run(model, deadline_s=120)(conversations=1000)
    assert 115 < done.took < 130
    assert len(model.asked_at) < 300
    assert "429: slow down (no answer for 12" in done.errors[-1]


@pytest.mark.parametrize("seconds", [60, 3600])
def test_a_long_pause_for_one_kind_of_question(seconds: float) -> None:
    """If only some questions get 429 with a long pause, the others continue."""
    error = TransientError("429: later", seconds, throttled=True)
    model = Model(lambda at, request: error if request.key.turn == 3 else None)
    done = Run(model, deadline_s=50)(conversations=60)
    assert len(done.failed) == 60
    assert all("429: later" in problem for problem in done.errors)
    assert not any("is down" in problem for problem in done.errors)
    assert done.took < 60 * 4 * 0.5 / 20 + 60


def test_a_daily_quota_is_noticed_with_few_requests() -> None:
    """Beyond the 20 in progress: each refusal may be one call's own, so the others wait for a moment."""
    model = Model(between(20, 1e9, TransientError("429: tomorrow", 40_000, throttled=True)))
    done = Run(model, at_once=20)(conversations=1000)
    assert model.asked_between(20, 1e9) < 20 + 6
    assert "429: tomorrow; it asks to wait 40000 s" in done.errors[-1]


def test_the_probe_is_a_call_like_any_other() -> None:
    """Probes count toward `--max-llm-calls`, which is never exceeded."""
    stopped: list[str] = []
    budget = Budget(None, 100, stopped.append)
    model = Model(between(5, 1e9, UNREACHABLE))
    done = Run(model, at_once=4, budget=budget)(conversations=300)
    assert len(model.asked_at) == 100
    assert stopped == ["no more model calls: all 100 that --max-llm-calls allows were made"]
    assert "--max-llm-calls" in done.errors[-1]


def test_the_rush_after_an_outage_is_bounded() -> None:
    """When a model recovers, at most as many requests as places run at once."""
    model = Model(between(5, 25, UNREACHABLE))
    done = Run(model, at_once=100, places=8)()
    assert done.errors == []
    assert model.most == 8


def test_a_400_ends_an_outage() -> None:
    """A 400 to the probe ends the wait, because the server responds again."""

    def fault(at: float, request: ChatRequest) -> ModelError | None:
        if 5 <= at < 25:
            return UNREACHABLE
        return RequestRefused("400: too long") if 25 <= at < 30 else None

    done = Run(Model(fault), at_once=3)(conversations=300)
    assert 0 < len(done.failed) < 100
    assert all("400: too long" in error for error in done.errors)


@given(
    st.lists(st.tuples(st.floats(0.1, 20), st.sampled_from([None, UNREACHABLE])), max_size=8),
    st.lists(st.floats(0.1, 60), max_size=10),
)
@settings(max_examples=60)
@pytest.mark.slow
def test_cancelled_calls_do_not_block_others(
    phases: list[tuple[float, ModelError | None]], ends: list[float]
) -> None:
    """A call cancelled while waiting or probing does not prevent others from being answered."""
    spans, at = [], 2.0
    for lasts, error in phases:
        spans.append((at, at + lasts, error))
        at += lasts

    def fault(now: float, request: ChatRequest) -> ModelError | None:
        return next((error for begin, end, error in spans if begin <= now < end), None)

    model = Model(fault)
    answers = LiveModel(model, Ledger(), LocalGate("m", Places(4), Circuit("m", 600)))
    answered = 0

    async def ask(number: int) -> None:
        nonlocal answered
        for turn in range(20):
            key = CallKey("user", "s", number, turn)
            await answers.answer(Question([{"role": "user", "content": "?"}], Said, key))
            answered += 1

    async def use() -> None:
        async def cancelled(number: int, after: float) -> None:
            with anyio.move_on_after(after):
                await ask(number)

        async with anyio.create_task_group() as tasks:
            for number, after in enumerate(ends):
                tasks.start_soon(cancelled, number, after)
            tasks.start_soon(ask, 99)

    run(use)
    assert answered >= 20
    assert model.under_way == 0
