"""Evaluation sets are written and read without loss, in both spellings."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from evalset_strategy import eval_sets
from hypothesis import HealthCheck, given, settings
from pydantic import ValidationError

from agentest.plugins.adk.formats.eval_set import (
    EVAL_SET,
    Content,
    EvalCase,
    EvalSet,
    FunctionCall,
    FunctionResponse,
    IntermediateData,
    Invocation,
    InvocationEvent,
    InvocationEvents,
    Part,
    SessionInput,
    content,
    eval_set_json,
    invocation_json,
    text_of,
    tool_calls,
    tool_responses,
)

large = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def a_set(state: dict[str, Any] | None = None) -> EvalSet:
    turn = Invocation(
        content("Where is parcel 7?", "user"),
        intermediate_data=IntermediateData((FunctionCall(name="find", args={"id": 7, "day": None}),)),
    )
    case = EvalCase("parcel", (turn,), session_input=SessionInput("post", "ann", state or {}))
    return EvalSet("post", (case,))


@large
@given(eval_sets())
def test_writing_and_reading_is_the_identity(eval_set: EvalSet) -> None:
    """Every set that is written is read as the same set, down to the types of the values in it."""
    assert repr(EVAL_SET.validate_json(eval_set_json(eval_set))) == repr(eval_set)


@large
@given(eval_sets())
def test_both_spellings_read_the_same(eval_set: EvalSet) -> None:
    """A set in camelCase at every level and the same set in snake_case are read as the same set."""
    snake = EVAL_SET.dump_json(eval_set, by_alias=False)
    camel = EVAL_SET.dump_json(eval_set, by_alias=True)
    assert b"evalCases" in camel
    assert b"eval_cases" in snake
    assert repr(EVAL_SET.validate_json(camel)) == repr(EVAL_SET.validate_json(snake)) == repr(eval_set)


def test_nulls_of_the_user_are_kept() -> None:
    """A null in arguments or in a state is written; a field of ours that is not given is left out."""
    written = json.loads(eval_set_json(a_set({"seen": None})))
    case = written["eval_cases"][0]
    assert case["session_input"]["state"] == {"seen": None}
    assert case["conversation"][0]["intermediate_data"]["tool_uses"] == [
        {"name": "find", "args": {"id": 7, "day": None}}
    ]
    assert "final_response" not in case["conversation"][0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), [float("nan")], "\ud800"])
def test_what_json_cannot_hold_is_not_written(value: object) -> None:
    """Infinity, NaN and half of a surrogate pair raise ValueError; they are not written as null."""
    with pytest.raises(ValueError):
        eval_set_json(a_set({"value": value}))


def test_the_words_of_json_constants_are_texts() -> None:
    """A text that reads NaN or Infinity is a text like any other."""
    eval_set = a_set({"NaN": "Infinity"})
    assert EVAL_SET.validate_json(eval_set_json(eval_set)) == eval_set


def test_infinite_numbers_are_refused() -> None:
    """A number too large to be finite is refused as a number of the format."""
    with pytest.raises(ValidationError, match="finite"):
        EVAL_SET.validate_json(b'{"eval_set_id": "a", "eval_cases": [], "creation_timestamp": 1e999}')


@pytest.mark.parametrize("given", [{}, {"conversation": [], "conversation_scenario": {}}])
def test_exactly_one_conversation(given: dict[str, Any]) -> None:
    """A case has a conversation or a scenario, not both and not neither."""
    with pytest.raises(ValidationError):
        EVAL_SET.validate_python({"eval_set_id": "a", "eval_cases": [{"eval_id": "b", **given}]})


def test_both_forms_of_intermediate_data_tell_calls_and_responses() -> None:
    """Calls and responses are found in order in tool_uses and tool_responses, and in events."""
    calls = (FunctionCall(name="a"), FunctionCall(name="b", args={}))
    responses = (FunctionResponse(name="a", response={"ok": True}),)
    first = Part(function_call=calls[0])
    then = (Part(function_response=responses[0]), Part(text="one more"), Part(function_call=calls[1]))
    events = InvocationEvents(
        (
            InvocationEvent("agent", Content("model", (first,))),
            InvocationEvent("agent"),
            InvocationEvent("agent", Content("model", then)),
        )
    )
    for data in (IntermediateData(calls, responses), events):
        assert tool_calls(data) == calls
        assert tool_responses(data) == responses
    assert tool_calls(None) == tool_responses(None) == ()


def test_the_text_of_a_message() -> None:
    """A message's texts are joined by newlines; parts without text, no parts and no message are empty."""
    assert text_of(Content("model", (Part(text="one"), Part(thought=True), Part(text="two")))) == "one\ntwo"
    assert text_of(Content("model")) == text_of(None) == ""


def test_an_invocation_in_results_is_camel_case() -> None:
    """Results report an invocation in camelCase, without what is not given and with the user's nulls."""
    (case,) = a_set().eval_cases
    assert case.conversation
    told = invocation_json(replace(case.conversation[0], invocation_id="one"))
    assert told["invocationId"] == "one"
    assert told["intermediateData"]["toolUses"] == [{"name": "find", "args": {"id": 7, "day": None}}]
    assert "finalResponse" not in told


def test_values_show_what_is_given() -> None:
    """A value is shown with the fields that it was given, so that a printed result can be read."""
    made = Invocation(
        user_content=content("hi", "user"),
        intermediate_data=IntermediateData(tool_uses=(FunctionCall(name="look", args={}),)),
    )
    assert repr(made) == (
        "Invocation(user_content=Content(role='user', parts=(Part(text='hi'),)), "
        "intermediate_data=IntermediateData(tool_uses=(FunctionCall(name='look', args={}),)))"
    )
