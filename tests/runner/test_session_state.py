"""Session state in runs: handlers, and agents that cannot take a state."""

from __future__ import annotations

from typing import Any

import pytest

from agentest import scenario
from agentest.agents.port import TurnContext
from agentest.domain.results import ScenarioResult, Status
from agentest.domain.transcript import state_changes
from agentest.testing import ScriptedAgent, run_scenarios


def held(agent: Any, *turns: Any, **options: Any) -> ScenarioResult:
    """Run a scenario with these turns and return its result."""
    return run_scenarios([scenario("s", turns=turns, **options)], agent=agent, strict=False).scenarios[0]


def test_agents_that_cannot_take_a_state() -> None:
    """The scenario is errored before the first message, with the way to send the state."""
    session = {"state": {"tier": "gold"}}
    with ScriptedAgent(["Hello."]) as agent:
        found = held(agent, "Hi", session=session)
        assert not agent.requests
        assert held(agent, "Hi", session={"state": {}, "user_id": "u"}).verdict.passed
        sends = {"endpoint": agent.endpoint, "sendSessionState": True}
        assert held(sends, "Hi", session=session).verdict.passed
        unseen = held(sends, "Hi", final_session_state={"tier": "gold"})
    assert found.verdict.status is Status.ERRORED
    (reason,) = found.verdict.reasons
    assert (
        "agent 'agent' (type: chat_completions) cannot be given: set send_session_state: true"
        in reason.message
    )
    assert agent.requests[-2]["metadata"] == {"session_state": {"tier": "gold"}}
    assert unseen.verdict.status is Status.ERRORED
    assert "cannot be seen: it does not report it" in unseen.verdict.reasons[0].message


def test_a_handler_reads_and_records_state() -> None:
    """ctx.session has the state, and the recorded one is the state after the turn."""

    def handler(messages: list[Any], ctx: TurnContext) -> str:
        assert ctx.session is not None
        cart = [*ctx.session.state["cart"], messages[-1]["content"]]
        ctx.record_state({"cart": "forgotten"})
        ctx.record_state({"cart": cart, "tuple": (1,)})
        return "Done."

    expect = {"session_state": {"cart": ["pen", "book"], "tuple": [1]}}
    found = held(handler, {"user_message": "book", "expect": expect}, session={"state": {"cart": ["pen"]}})
    assert found.verdict.passed, found.verdict.reasons
    assert state_changes(found.conversations[0].conversation)[0].changed == {
        "cart": (["pen"], ["pen", "book"])
    }
    assert (
        held(lambda _messages, _ctx: "Hi", "Hi", final_session_state={"a": 1}).verdict.status
        is Status.ERRORED
    )


@pytest.mark.parametrize(
    ("recorded", "says"),
    [
        ("cart", "ctx.record_state: expected a dict with texts as keys, found a str"),
        ({1: 2}, "ctx.record_state: expected a dict with texts as keys, found a dict"),
        ({"a": object()}, "ctx.record_state: the state is not JSON: a object is not JSON-serialisable"),
    ],
)
def test_a_handler_that_records_an_invalid_state(recorded: Any, says: str) -> None:
    """An invalid state is the handler's error."""

    def handler(_messages: list[Any], ctx: TurnContext) -> str:
        ctx.record_state(recorded)
        return "Done."

    found = held(handler, "Hi")
    assert found.verdict.status is Status.FAILED
    assert says in found.verdict.reasons[0].message
