"""The circuit breaker: callers back off while a model is down, and one probes it later."""

from __future__ import annotations

import anyio
import pytest
from fake_time import run
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentest.models.admission import LocalGate
from agentest.models.budget import Call
from agentest.models.circuit import Circuit
from agentest.models.limits import Quota
from agentest.models.port import TransientError
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import ModelUnavailable

MODEL = "openai/gpt-5-mini"
UNREACHABLE = TransientError("503")
NOBODY_THERE = TransientError("connection refused", misaddressed=True)
BROKEN = TransientError("500")
TOO_MANY = TransientError("429", throttled=True)
FOR_EVER = 1e9


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def circuit(clock: Clock) -> Circuit:
    """A circuit of a model that callers wait for."""
    return Circuit(MODEL, 600, clock=clock)


@pytest.fixture
def dead(clock: Clock) -> Circuit:
    """A circuit whose model refused the key."""
    circuit = Circuit(MODEL, 600, clock=clock)
    circuit.refuse_all("401")
    return circuit


def refused(circuit: Circuit, caller: object = None) -> str | None:
    """Return the error message that a caller gets, or None if it is admitted."""
    try:
        # Whether a call ends at once or is let through is said without waiting.
        circuit.admit(caller or object(), FOR_EVER).send(None)
    except ModelUnavailable as error:
        return str(error)
    except StopIteration:
        return None
    raise AssertionError("it waits")


def fails(circuit: Circuit, error: TransientError, times: int = 1) -> None:
    """Report this many failed attempts in a row."""
    for _ in range(times):
        circuit.attempt_failed(object(), error)


# A model that refuses all


def test_a_refused_key_ends_all_at_once(dead: Circuit) -> None:
    """If every request is refused because of the key, all calls fail."""
    assert refused(dead)


def test_the_message_says_what_is_wrong_and_for_how_long(dead: Circuit, clock: Clock) -> None:
    """The error names the model, the reason, and the seconds until it is called again."""
    clock.now += 10.5
    assert refused(dead) == (
        f"model {MODEL} is down: 401; not called again for 20 s; "
        "check the model's name, its key and the account"
    )


def test_exactly_one_call_probes_after_the_cool_down(dead: Circuit, clock: Clock) -> None:
    """After the cool-down one call is admitted; the others are refused until it finishes."""
    clock.now += 29.9
    assert refused(dead)
    clock.now += 0.1
    probe = object()
    assert not refused(dead, probe)
    assert not dead.keeps_out(probe)
    assert all(refused(dead) for _ in range(10))


def test_a_successful_probe_closes_the_circuit(dead: Circuit, clock: Clock) -> None:
    """After an answer all calls are admitted, and the count of failures starts over."""
    clock.now += 30
    assert not refused(dead)
    dead.answered()
    assert not dead.is_open
    fails(dead, UNREACHABLE, 2)
    assert not dead.is_open


@pytest.mark.parametrize("report", ["attempt", "call"])
def test_a_failed_probe_means_another_cool_down(dead: Circuit, clock: Clock, report: str) -> None:
    """One failed probe starts another cool-down, with the new error."""
    clock.now += 30
    probe = object()
    assert not refused(dead, probe)
    clock.now += 2
    if report == "attempt":
        dead.attempt_failed(probe, TransientError("502"))
    else:
        dead.refuse_all("502")
    dead.leave(probe)
    assert (refused(dead) or "").startswith(f"model {MODEL} is down: 502; not called again for 30 s; ")


def test_a_probe_that_is_cancelled_is_replaced(dead: Circuit, clock: Clock) -> None:
    """A probe that leaves without a result does not block the others forever."""
    clock.now += 30
    probe = object()
    assert not refused(dead, probe)
    dead.leave(probe)
    clock.now += 30
    assert not refused(dead)


def test_calls_that_were_under_way_do_not_prolong_it(dead: Circuit, clock: Clock) -> None:
    """The cool-down runs from its start, however many failures arrive later."""
    clock.now += 20
    dead.refuse_all("503")
    fails(dead, UNREACHABLE, 20)
    clock.now += 10
    assert not refused(dead)


def test_a_late_answer_closes_the_circuit(dead: Circuit) -> None:
    """Any answer proves that the model is up."""
    dead.answered()
    assert not dead.is_open


def test_an_answer_older_than_an_outage_closes_a_circuit_that_refuses(circuit: Circuit) -> None:
    """Sums of earlier answers do not: nobody knows when they came."""
    fails(circuit, UNREACHABLE, 3)
    circuit.refuse_all("401")
    circuit.answered(-1)
    assert circuit.is_open
    circuit.answered(0)
    assert not circuit.is_open


# A model that is waited for


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("error", [UNREACHABLE, BROKEN, NOBODY_THERE])
def test_failed_attempts_in_a_row_are_an_outage(
    circuit: Circuit, error: TransientError, answered: bool
) -> None:
    """Three consecutive failures are an outage, from the first request on or later."""
    if answered:
        circuit.answered()
    fails(circuit, error, 2)
    assert not circuit.is_open
    fails(circuit, error)
    assert circuit.is_open


def test_an_answer_between_starts_the_count_again(circuit: Circuit) -> None:
    """An answer resets the count of failures."""
    for _ in range(10):
        fails(circuit, UNREACHABLE, 2)
        circuit.answered()
    assert not circuit.is_open


def test_a_failed_probe_waits_as_long_as_the_server_asks(circuit: Circuit, clock: Clock) -> None:
    """`Retry-After` in the answer to a probe postpones the next one."""
    fails(circuit, UNREACHABLE, 3)
    clock.now += 1
    probe = object()
    assert refused(circuit, probe) is None
    circuit.attempt_failed(probe, TransientError("503", 20.0))
    circuit.leave(probe)
    with pytest.raises(ModelUnavailable, match="not called for another 20 s"):
        circuit.admit(object(), clock.now + 5).send(None)
    clock.now += 20
    assert refused(circuit) is None


def test_an_outage_begins_with_as_long_a_wait_as_the_server_asks(circuit: Circuit, clock: Clock) -> None:
    """`Retry-After` in the failure that shows the outage postpones the first probe."""
    fails(circuit, TransientError("503", 20.0), 3)
    with pytest.raises(ModelUnavailable, match="not called for another 20 s"):
        circuit.admit(object(), clock.now + 5).send(None)
    clock.now += 20
    assert refused(circuit) is None


def test_failures_minutes_apart_are_no_outage(circuit: Circuit, clock: Clock) -> None:
    """A failure that is five minutes old does not count."""
    for _ in range(5):
        fails(circuit, UNREACHABLE)
        clock.now += 300
    assert not circuit.is_open
    fails(circuit, UNREACHABLE, 3)
    assert circuit.is_open


def test_429s_are_an_outage_when_there_is_nothing_else_for_a_while(circuit: Circuit, clock: Clock) -> None:
    """A burst of 429s is left to the quota; more than a minute of nothing but 429s is an outage."""
    circuit.answered()
    fails(circuit, TOO_MANY, 500)
    assert not circuit.is_open
    clock.now += 60
    fails(circuit, TOO_MANY)
    assert not circuit.is_open
    clock.now += 30
    fails(circuit, TOO_MANY)
    assert circuit.is_open


def test_429s_are_announced_before_they_are_an_outage(clock: Clock) -> None:
    """After half a minute, the user learns why nothing happens, and later that it is over."""
    told: list[str] = []
    silences: list[tuple[bool, int]] = []
    circuit = Circuit(MODEL, 600, told.append, clock=clock)
    for _ in range(3):
        clock.now += 20
        fails(circuit, TOO_MANY)
        silences.append((circuit.is_open, len(told)))
    assert silences == [(False, 0), (False, 0), (False, 1)]
    circuit.answered()
    circuit.answered()
    assert told[1:] == [f"model {MODEL} answers again (no answer for 40 s)"]


@pytest.mark.parametrize("seconds", [60, 3600])
def test_a_pause_for_one_call_does_not_delay_others(circuit: Circuit, seconds: float) -> None:
    """If other calls are answered, a requested pause applies only to the call that got it."""
    circuit.answered()
    error = TransientError("429", seconds, throttled=True)
    circuit.attempt_failed(object(), error, alone=True)
    assert not circuit.is_open
    circuit.attempt_failed(object(), error)
    assert circuit.is_open


def test_without_a_deadline_calls_are_never_blocked(clock: Clock) -> None:
    """The circuit of a model without a deadline never opens."""
    circuit = Circuit(MODEL, clock=clock)
    fails(circuit, UNREACHABLE, 100)
    assert not circuit.is_open
    assert not circuit.waits


def test_all_wait_and_one_probes() -> None:
    """During an outage all calls wait, one probes soon, and its answer admits all."""

    async def use() -> None:
        circuit = Circuit(MODEL, 600)
        circuit.answered()
        fails(circuit, UNREACHABLE, 3)
        admitted: list[object] = []

        async def wait(caller: object) -> None:
            await circuit.admit(caller, FOR_EVER)
            admitted.append(caller)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(wait, object())
            await anyio.sleep(0.24)
            assert admitted == []
            await anyio.sleep(100)
            assert len(admitted) == 1
            assert not circuit.keeps_out(admitted[0])
            circuit.answered()
        assert len(admitted) == 20

    run(use)


def test_an_answer_that_was_under_way_ends_no_outage() -> None:
    """It is older than the failures: the outage is announced once, and a probe's answer ends it."""

    told: list[str] = []
    circuit, quota = Circuit(MODEL, 600, told.append), Quota(eager=True)
    gate, limit = LocalGate(MODEL, circuit=circuit, quota=quota), TimeLimit(600)

    async def use() -> None:
        async def fail() -> None:
            async with gate.attempt(Call(limit), int) as attempt:
                attempt.failed(UNREACHABLE, alone=False)

        async with gate.attempt(Call(limit), int) as slow:
            for _ in range(4):  # the last one is a probe
                await fail()
            assert (gate.state.is_open, len(told)) == (True, 1)
            slow.succeeded(0, None, None)
            assert gate.state.is_open
            assert gate.state.answers == 1
        for _ in range(3):
            await fail()
        assert len(told) == 1
        async with gate.attempt(Call(limit), int) as probe:
            probe.succeeded(0, None, None)
        assert not gate.state.is_open
        assert [each.split(" (")[0] for each in told[1:]] == [f"model {MODEL} answers again"]

    async def limited() -> None:
        with limit:
            await use()

    run(limited)


def test_calls_without_enough_time_fail_at_once() -> None:
    """If a server requests a pause, calls with an earlier deadline fail at once; the others wait."""

    async def use() -> None:
        circuit = Circuit(MODEL, 600)
        circuit.answered()
        circuit.attempt_failed(object(), TransientError("503: later", 50))
        with pytest.raises(
            ModelUnavailable, match="another 50 s, longer than `deadline_ms` leaves: 503: later"
        ):
            await circuit.admit(object(), anyio.current_time() + 40)
        assert anyio.current_time() == 0
        await circuit.admit(object(), anyio.current_time() + 60)
        assert anyio.current_time() == pytest.approx(50)

    run(use)


@pytest.mark.parametrize(
    ("answered", "error", "deadline_s", "expected"),
    [
        (True, UNREACHABLE, 90, 90),
        (True, NOBODY_THERE, 90, 90),
        (False, UNREACHABLE, 90, 90),
        (False, NOBODY_THERE, 90, 60),
        (False, NOBODY_THERE, 20, 20),
    ],
)
def test_it_is_given_up_after_a_deadline_without_an_answer(
    answered: bool, error: TransientError, deadline_s: float, expected: float
) -> None:
    """All waiting calls fail together even if no call probed, and later calls fail at once.

    A model that never answered and may have a wrong address is waited for at most a minute.
    """

    async def use() -> None:
        circuit = Circuit(MODEL, deadline_s)
        if answered:
            circuit.answered()
        fails(circuit, error, 3)
        probe, heard = object(), []
        await circuit.admit(probe, FOR_EVER)  # and then nothing is heard of it

        async def wait() -> None:
            with pytest.raises(ModelUnavailable, match=rf"is down: {error} \(no answer for {expected} s\)"):
                await circuit.admit(object(), FOR_EVER)
            heard.append(anyio.current_time())

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(wait)
        assert heard == [pytest.approx(expected)] * 20
        await wait()
        assert anyio.current_time() == pytest.approx(expected)

    run(use)


class CircuitMachine(RuleBasedStateMachine):
    """For any reports: an answer admits all, a cool-down admits one, and one call probes at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.circuit = Circuit(MODEL, clock=self.clock)
        self.probe: object | None = None

    @rule(seconds=st.sampled_from([0.5, 10, 29, 30]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def all_are_refused(self) -> None:
        self.circuit.refuse_all("401")

    @rule(own=st.booleans(), error=st.sampled_from([UNREACHABLE, BROKEN, TOO_MANY]))
    def attempt_fails(self, own: bool, error: TransientError) -> None:
        self.circuit.attempt_failed(self.probe if own else object(), error)

    @rule()
    def answers(self) -> None:
        self.circuit.answered()
        assert not self.circuit.is_open

    @precondition(lambda self: self.circuit.is_open and self.probe is None)
    @rule()
    def ask(self) -> None:
        caller = object()
        if not refused(self.circuit, caller):
            self.probe = caller
            assert refused(self.circuit)

    @precondition(lambda self: self.probe is not None)
    @rule()
    def the_probe_is_over(self) -> None:
        self.circuit.leave(self.probe)
        self.probe = None

    @precondition(lambda self: self.probe is None)
    @rule()
    def somebody_is_let_through_after_a_cool_down(self) -> None:
        self.clock.now += 30
        caller = object()
        assert not refused(self.circuit, caller)
        self.circuit.leave(caller)

    @invariant()
    def open_means_that_others_are_kept_out(self) -> None:
        assert self.circuit.keeps_out(object()) is self.circuit.is_open


TestCircuitMachine = CircuitMachine.TestCase
