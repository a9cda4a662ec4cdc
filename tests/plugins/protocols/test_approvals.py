"""Calls that need the user's approval: recorded at the request, counted by bans, never counted as run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import ag_ui_events as ag_ui
import hurrying
import pytest
from talking import as_events, as_json, held
from wire import http, wire

from agentest import scenario
from agentest.domain.results import RunResult, ScenarioResult, Status, WarningCode
from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import WAITS_FOR_APPROVAL
from agentest.testing import arun_scenarios

Chunk = dict[str, Any]


def ui(*chunks: Chunk) -> bytes:
    begin: list[Chunk] = [{"type": "start", "messageId": "m-1"}, {"type": "start-step"}]
    return as_events(*begin, *chunks, {"type": "finish", "finishReason": "stop"}, "[DONE]", names=False)


def text(said: str) -> list[Chunk]:
    return [{"type": "text-delta", "id": "t", "delta": said}]


AI_SDK = (
    {"type": "ai_sdk"},
    [
        ui(
            {"type": "tool-input-available", "toolCallId": "c1", "toolName": "pay", "input": {"amount": 5}},
            {"type": "tool-approval-request", "approvalId": "p1", "toolCallId": "c1"},
        )
    ],
    [ui({"type": "tool-output-available", "toolCallId": "c1", "output": "ok"}, *text("Paid."))],
    [ui({"type": "tool-output-denied", "toolCallId": "c1"}, *text("Not paid."))],
)
_QUESTION = {"id": "i1", "message": "Pay 5?", "toolCallId": "c1"}
AG_UI = (
    {"type": "ag_ui"},
    [
        ag_ui.stream(
            ag_ui.STARTED,
            *ag_ui.call("c1", "pay", amount=5),
            {**ag_ui.FINISHED, "outcome": {"type": "interrupt", "interrupts": [_QUESTION]}},
        )
    ],
    [ag_ui.run(ag_ui.answer("c1", "ok"), *ag_ui.text("Paid."))],
    [ag_ui.run(ag_ui.answer("c1", "The tool call was denied."), *ag_ui.text("Not paid."))],
)
HUMAN = {"type": "human", "content": "Pay"}
PAY = {
    "type": "ai",
    "id": "a1",
    "content": "",
    "tool_calls": [{"name": "pay", "args": {"amount": 5}, "id": "c1", "type": "tool_call"}],
}
_ASKED = {"value": {"action_requests": [{"name": "pay", "args": {"amount": 5}}]}, "id": "i1"}


def graph(*messages: Chunk, asks: bool = False) -> list[bytes]:
    state = {"values": {"messages": [HUMAN, PAY, *messages]}, "next": ["tools"] if asks else []}
    updates = [{"model": {"messages": [PAY, *messages]}}, *([{"__interrupt__": [_ASKED]}] if asks else [])]
    events = "".join(f"event: updates\ndata: {json.dumps(update)}\n\n" for update in updates)
    return [http(events.encode(), headers=("content-type: text/event-stream",)), as_json(state)]


def ended(result: str, said: str) -> list[bytes]:
    tool = {"type": "tool", "content": result, "tool_call_id": "c1", "id": "t1"}
    return graph(tool, {"type": "ai", "content": said, "id": "a2"})


LANGGRAPH = (
    {"type": "langgraph", "assistant_id": "shop"},
    graph(asks=True),
    ended("ok", "Paid."),
    ended("User rejected the tool call.", "Not paid."),
)
PROTOCOLS = pytest.mark.parametrize(
    "protocol", [AI_SDK, AG_UI, LANGGRAPH], ids=["ai_sdk", "ag_ui", "langgraph"]
)
Protocol = tuple[dict[str, Any], list[bytes], list[bytes], list[bytes]]


@PROTOCOLS
@pytest.mark.parametrize("word", [None, "Yes", "No"])
def test_recording_of_approvals(protocol: Protocol, word: str | None) -> None:
    """A call is recorded at the request for approval; once decided, it belongs to the turn of the answer."""
    config, asks, paid, refused = protocol
    lines = ("Pay", word) if word else ("Pay",)
    told = held(config, lines, *asks, *(refused if word == "No" else paid))
    assert told.problem == ""
    (call,) = told.conversation.tool_calls
    assert (call.name, call.args, call.seen_by) == ("pay", {"amount": 5}, SeenBy.AGENT)
    approval = {None: Approval.PENDING, "Yes": Approval.GRANTED, "No": Approval.DENIED}[word]
    assert (call.approval, call.turn_index) == (approval, 1 if word else 0)
    if word is None:
        assert (call.result, call.error) == (None, WAITS_FOR_APPROVAL)


@PROTOCOLS
@pytest.mark.parametrize(("approvals", "approval"), [("approve", "granted"), ("deny", "denied")])
def test_approvals_by_the_configuration(protocol: Protocol, approvals: str, approval: str) -> None:
    """A call that the configuration decides records the decision."""
    config, asks, paid, refused = protocol
    after = paid if approvals == "approve" else refused
    told = held({**config, "approvals": approvals}, ("Pay",), *asks, *after)
    assert [(call.name, call.approval) for call in told.conversation.tool_calls] == [("pay", approval)]


def without_effect(found: ScenarioResult) -> list[str]:
    warnings = found.verdict_warnings
    return [each.message for each in warnings if each.code is WarningCode.VACUOUS_CHECK]


@PROTOCOLS
@pytest.mark.parametrize("approve", [True, {"pay": True}, False, {"pay": False}])
def test_the_scenario_answers_and_overrides_the_setting(protocol: Protocol, approve: Any) -> None:
    config, asks, paid, refused = protocol
    is_granted = approve in (True, {"pay": True})
    setting = "deny" if is_granted else "approve"
    found = ran(
        ({**config, "approvals": setting}, [], [], []),
        ["Pay"],
        *asks,
        *(paid if is_granted else refused),
        approve=approve,
    )
    (result,) = found.conversations
    assert [(call.name, call.approval) for call in result.conversation.tool_calls] == [
        ("pay", Approval.GRANTED if is_granted else Approval.DENIED)
    ]
    assert result.conversation.turns[0].agent_message == ("Paid." if is_granted else "Not paid.")
    assert without_effect(found) == []


@pytest.mark.parametrize(("approve", "warned"), [(True, False), ({"pay": True}, True)])
def test_a_question_about_no_tool_counts_for_an_answer_to_all(approve: Any, warned: bool) -> None:
    """The dict has no answer to it, so the setting decides."""
    asked = {"__interrupt__": [{"value": "Shall I?", "id": "i1"}]}
    events = f"event: updates\ndata: {json.dumps(asked)}\n\n".encode()
    asks = [
        http(events, headers=("content-type: text/event-stream",)),
        as_json({"values": {"messages": [HUMAN]}, "next": ["ask"]}),
    ]
    said = {"type": "ai", "content": "Done.", "id": "a2"}
    end = [
        http(
            f"event: updates\ndata: {json.dumps({'model': {'messages': [said]}})}\n\n".encode(),
            headers=("content-type: text/event-stream",),
        ),
        as_json({"values": {"messages": [HUMAN, said]}, "next": []}),
    ]
    found = ran(({**LANGGRAPH[0], "approvals": "approve"}, [], [], []), ["Pay"], *asks, *end, approve=approve)
    assert found.conversations[0].conversation.turns[0].agent_message == "Done."
    assert bool(without_effect(found)) is warned


@PROTOCOLS
def test_a_turn_overrides_the_scenario_and_its_own_message(protocol: Protocol) -> None:
    config, asks, paid, _ = protocol
    turns = [{"user_message": "Pay", "approve": {"refund": False}}, {"user_message": "No", "approve": True}]
    found = ran((config, [], [], []), turns, *asks, *paid, approve=False)
    (result,) = found.conversations
    assert [call.approval for call in result.conversation.tool_calls] == [Approval.GRANTED]
    assert without_effect(found) == [
        "approve: the agent never asked for approval",
        "turns[0].approve.refund: the agent never asked for approval of 'refund'",
    ]


@PROTOCOLS
def test_a_misspelled_tool_is_an_error(protocol: Protocol) -> None:
    found = ran(protocol, ["Pay"], approve={"pey": True}, tools={"pay": 1})
    assert found.verdict.status is Status.ERRORED
    assert "approve names tool 'pey', which is not known; did you mean 'pay'?" in str(found.verdict.reasons)


@PROTOCOLS
def test_a_mock_of_a_call_that_did_not_run(protocol: Protocol) -> None:
    """A call that waits, or was denied, has bypassed no mock."""
    config, asks, _, refused = protocol
    told = held(
        config, ("Pay", "No"), *asks, *refused, tools={} if config["type"] == "langgraph" else {"pay": 1}
    )
    assert told.problem == ""


def ran(protocol: Protocol, turns: Sequence[Any], *answers: bytes, **options: Any) -> ScenarioResult:
    async def go() -> RunResult:
        async with wire(*answers) as opened:
            agent = {**protocol[0], "endpoint": f"http://127.0.0.1:{opened.port}/"}
            return await arun_scenarios([scenario("s", turns=turns, **options)], agent=agent)

    result: RunResult = hurrying.run(go)
    return result.scenarios[0]


@PROTOCOLS
@pytest.mark.parametrize("word", [None, "No"])
def test_a_ban(protocol: Protocol, word: str | None) -> None:
    """A forbidden call fails the scenario while it waits for approval, and when it was denied."""
    _, asks, _, refused = protocol
    turns = ["Pay", word] if word else ["Pay"]
    found = ran(protocol, turns, *asks, *refused, trajectory={"forbidden": ["pay"]})
    assert found.verdict.status is Status.FAILED
    assert "forbidden calls were made: pay" in found.verdict.reasons[0].message


def test_a_ban_in_a_turn() -> None:
    """For bans, the call belongs to the turn of the request; for the rest, to that of the decision."""
    _, asks, paid, _ = AI_SDK
    banned = {"user_message": "Pay", "trajectory": {"forbidden": ["pay"]}}
    assert ran(AI_SDK, [banned, "Yes"], *asks, *paid).verdict.status is Status.FAILED
    none = {"user_message": "Pay", "trajectory": {"expected": []}}
    one = {"user_message": "Yes", "trajectory": {"expected": ["pay"]}}
    assert ran(AI_SDK, [none, one], *asks, *paid).verdict.status is Status.PASSED
