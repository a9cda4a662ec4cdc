"""A tool call that goes to another process arrives with all that is known of it."""

import pickle
from dataclasses import fields

from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import ToolCall
from agentest.workers.channel import packed


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
    )
    unset = [each.name for each in fields(call) if getattr(call, each.name) == each.default]
    assert not unset, "a new field: give it a value here, so that its loss is seen"
    arrived = pickle.loads(packed(call))
    assert {each.name: getattr(arrived, each.name) for each in fields(call)} == {
        each.name: getattr(call, each.name) for each in fields(call)
    }
