"""Calls to other processes: method calls between a run and its workers, and tool calls in them."""

import asyncio
import pickle
from dataclasses import fields
from typing import Any

from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import ToolCall
from agentest.models.port import TransientError
from agentest.models.providers import ModelSpec
from agentest.workers.channel import deliver, packed, remote
from agentest.workers.leases import LeasedGates


def test_no_field_of_a_call_is_lost() -> None:
    call = ToolCall(
        name="find",
        args={"day": "Tuesday"},
        result=["09:00"],
        mocked=False,
        turn_index=3,
        invalid_arguments="not JSON",
        error="no",
        seen_by=SeenBy.MOCK_SERVER,
        call_id="c1",
        also_seen_by=(SeenBy.CALLER,),
        duration_ms=12.5,
        round=2,
        approval=Approval.GRANTED,
        raised="KeyError at salon.sim.py:12",
        by_real_tool=True,
        simulated=True,
    )
    unset = [each.name for each in fields(call) if getattr(call, each.name) == each.default]
    assert not unset, "a new field: give it a value here, so that its loss is seen"
    arrived = pickle.loads(packed(call))
    assert {each.name: getattr(arrived, each.name) for each in fields(call)} == {
        each.name: getattr(call, each.name) for each in fields(call)
    }


class Part:
    """An object in the other process."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def note(self, text: str, *, times: int = 1) -> None:
        self.calls.append((text, times))


def test_a_call_reaches_the_object_it_names() -> None:
    """The call has all its arguments; a call to an object that is gone is ignored."""
    first, second = Part(), Part()

    def send(message: object) -> None:
        deliver(pickle.loads(packed(message)), {"first": first}, {7: second})

    remote("first", send).note("a", times=2)
    remote(7, send).note("b")
    remote(8, send).note("c")
    assert (first.calls, second.calls) == ([("a", 2)], [("b", 1)])


def test_a_failed_attempt_is_reported_without_its_secrets() -> None:
    """The main process gets every field that decides about retries and outages."""
    sent: list[Any] = []
    gates = LeasedGates(sent.append, lambda text: text.replace("hunter2", "***"))
    attempt = gates.of(ModelSpec("m", "m", "https://models.example.com")).attempt(None, int)  # type: ignore[arg-type]
    attempt.failed(TransientError("429: key hunter2", 2.5, throttled=True, misaddressed=True), alone=True)
    asyncio.run(attempt.__aexit__(None, None, None))
    _, method, (_, answer, error), options = pickle.loads(packed(sent[-1]))
    assert (method, answer, options) == ("end", None, {"alone": True})
    assert isinstance(error, TransientError)
    assert str(error) == "429: key ***"
    assert (error.retry_after, error.throttled, error.misaddressed) == (2.5, True, True)
