"""A model that is down is not asked, and is asked again when it may be up."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentest.errors import ModelUnavailable
from agentest.llm.circuit import Circuit

MODEL = "openai/gpt-5-mini"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def circuit(clock: Clock) -> Circuit:
    return Circuit(MODEL, clock=clock)


def refused(circuit: Circuit) -> bool:
    try:
        circuit.check()
    except ModelUnavailable:
        return True
    return False


def break_down(circuit: Circuit, problem: str = "503") -> None:
    circuit.failed(problem, permanent=True)


def test_failed_calls_in_a_row_open_it(circuit: Circuit) -> None:
    """The fifth call in a row that failed after all its retries opens the circuit, the fourth does not."""
    for _ in range(4):
        circuit.failed("503", permanent=False)
    assert not circuit.is_open
    assert not refused(circuit)
    circuit.failed("503", permanent=False)
    assert circuit.is_open
    assert refused(circuit)


def test_a_success_between_starts_the_count_again(circuit: Circuit) -> None:
    """Failures with a success between them are not in a row."""
    for _ in range(3):
        for _ in range(4):
            circuit.failed("503", permanent=False)
        assert not circuit.is_open
        circuit.succeeded()


def test_a_permanent_failure_opens_it_at_once(circuit: Circuit) -> None:
    """A refused key opens the circuit with the first call, even after successes."""
    circuit.succeeded()
    circuit.failed("answered 401: invalid key", permanent=True)
    assert circuit.is_open


def test_the_message_says_what_is_wrong_and_for_how_long(circuit: Circuit, clock: Clock) -> None:
    """Who is not let through hears which model is down, why, and for how many seconds it is not asked."""
    break_down(circuit, "connection refused")
    clock.now += 10.5
    with pytest.raises(ModelUnavailable) as raised:
        circuit.check()
    assert str(raised.value) == f"model {MODEL} is down: connection refused; not asked again for 20 s"


def test_a_dead_endpoint_is_known_by_its_attempts(circuit: Circuit) -> None:
    """Fifteen failed attempts before any answer open the circuit, though no call has used up its retries."""
    for _ in range(14):
        circuit.attempt_failed("connection refused")
    assert not circuit.is_open
    circuit.attempt_failed("connection refused")
    assert circuit.is_open


def test_attempts_do_not_count_once_the_model_has_answered(circuit: Circuit) -> None:
    """A model that answered in this run is judged by whole calls with their retries, not by attempts."""
    circuit.succeeded()
    for _ in range(100):
        circuit.attempt_failed("503")
    assert not circuit.is_open


def test_exactly_one_call_probes_after_the_cool_down(circuit: Circuit, clock: Clock) -> None:
    """After the cool-down one call is let through, and its retries; all others are still refused."""
    break_down(circuit)
    clock.now += 29.9
    assert refused(circuit)
    clock.now += 0.1
    assert circuit.is_open
    assert [refused(circuit) for _ in range(10)] == [False] + [True] * 9
    assert not circuit.is_open


def test_a_successful_probe_closes_it(circuit: Circuit, clock: Clock) -> None:
    """When the probe is answered, everyone may ask again, and failures count from the beginning."""
    break_down(circuit)
    clock.now += 30
    circuit.check()
    circuit.succeeded()
    assert not any(refused(circuit) for _ in range(10))
    circuit.failed("503", permanent=False)
    assert not circuit.is_open


@pytest.mark.parametrize("report", ["attempt", "call"])
def test_a_failed_probe_opens_it_again(circuit: Circuit, clock: Clock, report: str) -> None:
    """One failed attempt of the probe is enough for another cool-down, with the new problem."""
    circuit.succeeded()
    break_down(circuit)
    clock.now += 30
    circuit.check()
    clock.now += 2
    if report == "attempt":
        circuit.attempt_failed("502")
    else:
        circuit.failed("502", permanent=False)
    assert circuit.is_open
    with pytest.raises(ModelUnavailable, match="502; not asked again for 30 s"):
        circuit.check()


def test_a_probe_that_never_reports_is_replaced(circuit: Circuit, clock: Clock) -> None:
    """A probe that was cancelled does not keep the circuit open for ever."""
    break_down(circuit)
    clock.now += 30
    assert not refused(circuit)
    clock.now += 29
    assert refused(circuit)
    clock.now += 1
    assert not refused(circuit)


def test_calls_that_were_under_way_do_not_prolong_it(circuit: Circuit, clock: Clock) -> None:
    """The cool-down counts from the opening, however many failures come in after it."""
    break_down(circuit)
    clock.now += 20
    circuit.failed("503", permanent=True)
    circuit.attempt_failed("503")
    clock.now += 10
    assert not refused(circuit)


def test_an_answer_that_was_under_way_closes_it(circuit: Circuit) -> None:
    """Any answer proves that the model is up."""
    break_down(circuit)
    circuit.succeeded()
    assert not refused(circuit)


def test_a_thousand_calls_to_a_dead_endpoint_are_few_attempts(circuit: Circuit) -> None:
    """Calls that ask before each attempt make fifteen of them altogether, whatever their retries."""
    attempts = 0
    for _ in range(1000):
        if refused(circuit):
            continue
        for _ in range(5):
            if circuit.is_open:
                break
            attempts += 1
            circuit.attempt_failed("connection refused")
    assert attempts == 15


class CircuitMachine(RuleBasedStateMachine):
    """Whatever is reported: an answer closes it, a cool-down lets one in, one probes at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.circuit = Circuit(MODEL, failures=2, cool_down_s=30, clock=self.clock)

    @rule(seconds=st.sampled_from([0.5, 10, 29, 30]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(permanent=st.booleans())
    def call_fails(self, permanent: bool) -> None:
        self.circuit.failed("503", permanent=permanent)
        assert self.circuit.is_open or not permanent

    @rule()
    def attempt_fails(self) -> None:
        self.circuit.attempt_failed("503")

    @rule()
    def answers(self) -> None:
        self.circuit.succeeded()
        assert not refused(self.circuit)

    @precondition(lambda self: self.circuit.is_open)
    @rule()
    def ask(self) -> None:
        if not refused(self.circuit):
            assert refused(self.circuit)

    @rule()
    def somebody_is_let_through_after_a_cool_down(self) -> None:
        self.clock.now += 30
        assert not refused(self.circuit)

    @invariant()
    def open_means_that_others_are_refused(self) -> None:
        if self.circuit.is_open and refused(self.circuit):
            assert self.circuit.is_open


TestCircuitMachine = CircuitMachine.TestCase
