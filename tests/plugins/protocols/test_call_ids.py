"""Ids of calls: an agent's own call and an equal one for the client are two, each with its id."""

from __future__ import annotations

import json
from typing import Any

from agentest import scenario
from agentest.domain.results import Status
from agentest.domain.tool_visibility import SeenBy
from agentest.testing import Raw, ScriptedAgent, run_scenarios

PAY = {"type": "function_call", "name": "pay", "arguments": '{"amount": 5}'}


def asks_and_pays(body: dict[str, Any]) -> Raw:
    """Asks the caller to pay, and then pays the same once more, itself."""
    asked = any(item.get("type") == "function_call_output" for item in body["input"])
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Paid."}]}
    own = [{**PAY, "call_id": "c2"}, {"type": "function_call_output", "call_id": "c2", "output": "{}"}, said]
    output = own if asked else [{**PAY, "call_id": "c1"}]
    return Raw(
        json.dumps({"id": "r", "object": "response", "status": "completed", "output": output}).encode()
    )


def test_its_own_call_and_ours() -> None:
    """If a Responses agent pays twice, once through our mock, both calls are recorded: a limit of one is
    exceeded."""
    made = scenario("s", turns=["Pay."], tools={"pay": {"ok": True}}, trajectory={"max_calls": 1})
    with ScriptedAgent(asks_and_pays) as server:
        agent = {"type": "responses", "endpoint": server.endpoint, "body": {"model": "m"}}
        [found] = run_scenarios([made], agent=agent).scenarios
    held = found.conversations[0].conversation
    told = [(call.call_id, call.seen_by, call.mocked) for call in held.tool_calls]
    assert told == [("c1", SeenBy.CALLER, True), ("c2", SeenBy.AGENT, False)]
    assert held.failure is not None  # the mock did not keep the real tool from running
    assert found.verdict.status is Status.FAILED
