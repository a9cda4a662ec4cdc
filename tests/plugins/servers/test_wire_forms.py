"""Reading any agent and model data never fails, and unknown parts stay unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest.plugins.protocols import model_messages
from agentest.plugins.protocols.model_messages import RequestReader
from agentest.plugins.servers.model_gateway.anthropic_messages import AnthropicMessages
from agentest.plugins.servers.model_gateway.chat_completions import ChatCompletions
from agentest.plugins.servers.model_gateway.gemini import Gemini
from agentest.plugins.servers.model_gateway.responses import Responses
from agentest.plugins.servers.model_gateway.wire_form import (
    CutStream,
    PassedAnswer,
    WireForm,
)
from agentest.support.http.sse import Event
from agentest.support.json_text import json_or

FORMS: list[WireForm] = [ChatCompletions(), Responses(), AnthropicMessages(), Gemini()]
_KEYS = (
    "messages input contents content parts text role type name id call_id tool_calls function "
    "arguments functionCall functionResponse response args choices message delta index finish_reason "
    "usage output output_index item content_block candidates finishReason usageMetadata tools "
    "tool_choice toolConfig system tool_use_id is_error thoughtSignature signature stop_reason "
    "conversation previous_response_id include store stream n tool_call_id prompt_tokens_details "
    "response_format instructions functionDeclarations functionCallingConfig mode "
)
KEYS = st.sampled_from(_KEYS.split())
_WORDS = (
    "user assistant model tool text tool_use tool_result function_call function_call_output message "
    "reasoning thinking text_delta input_json_delta content_block_start content_block_delta "
    "content_block_stop message_start message_delta response.created response.output_item.added "
    "response.output_item.done response.completed error required any STOP q "
)
WORDS = st.sampled_from(_WORDS.split())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
BODIES = st.dictionaries(KEYS, VALUES, max_size=5)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@given(body=BODIES, answer=BODIES)
def test_odd_requests_and_answers_are_read(form: WireForm, body: Any, answer: Any) -> None:
    request = form.request(body, "/models/m:generateContent")
    read = form.answer(answer)
    shown = form.shown(request, read, read.calls, 5)
    assert form.answer(shown).calls == () or not read.calls
    passed = PassedAnswer(
        before=[],
        message=read.message,
        owed=[],
        hidden_calls=read.calls,
        shown=form.answer(shown),
        user_text="",
    )
    json.dumps(form.completed(request, [passed]))
    changed, _ = form.next_round(form.completed(request, []), read, [], lift=request.forced is not None)
    json.dumps(changed)


def test_tools_in_a_namespace_are_offered() -> None:
    """openai 3.57, types/responses/namespace_tool.py."""
    group = {"type": "namespace", "name": "crm", "description": "d"}
    tools = [{**group, "tools": [{"type": "function", "name": "find", "parameters": {}}]}, {"type": "shell"}]

    assert [*Responses().request({"input": "look", "tools": tools}, "").tools] == ["find", "shell"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@given(events=st.lists(BODIES | VALUES, max_size=5))
def test_odd_events_are_read(form: WireForm, events: list[Any]) -> None:
    stream = form.stream(form.request({}, ""))
    for event in events:
        stream.feed(Event(json.dumps(event)))
    try:
        body = stream.round()
    except CutStream:
        return
    read = form.answer(body)
    stream.end(form.shown(form.request({}, ""), read, read.calls, 1))


_PICTURE = {"type": "image", "source": {"type": "base64", "data": "iVBO"}}


@pytest.mark.parametrize(
    ("content", "result"),
    [("5", 5), ("ok", "ok"), ([{"type": "text", "text": '{"n": 1}'}, _PICTURE], {"n": 1}), ([_PICTURE], "")],
    ids=["JSON", "text", "parts", "picture"],
)
def test_the_text_of_a_result_is_read(content: Any, result: Any) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    answer = {"type": "tool_result", "tool_use_id": "t1", "content": content, "is_error": True}
    messages = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]
    (read,) = AnthropicMessages().request({"messages": messages}, "").results
    assert (read.name, read.result, read.failed) == ("look", result, True)


@pytest.mark.parametrize(
    ("response", "failed"), [({"error": "none"}, True), ({"n": 1}, False), (5, False), (None, False)]
)
def test_a_result_of_gemini_may_be_any_value(response: Any, failed: bool) -> None:
    part = {"functionResponse": {"name": "look", "response": response}}
    (read,) = Gemini().request({"contents": [{"parts": [part]}]}, "").results
    assert (read.name, read.result, read.failed) == ("look", response, failed)


_CALL = {"id": "c", "function": {"name": "find", "arguments": "{}"}}
_HISTORY = st.lists(
    st.sampled_from(
        [
            {"role": "user", "content": "hi"},
            {"role": "user", "content": "bye"},
            {"role": "system", "content": "Be kind."},
            {"role": "assistant", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "1"},
            {"role": "tool", "content": "2"},
        ]
    ),
    max_size=14,
)


@given(
    histories=st.lists(_HISTORY, min_size=2, max_size=4),
    around=st.sampled_from([{}, {"tools": [{"input": [1]}], "input": []}, {"": {"messages": [1]}}]),
    indent=st.sampled_from([None, 0, 2]),
)
def test_a_request_is_read_alike_whatever_was_read_before(
    histories: list[list[Any]], around: Mapping[str, Any], indent: int | None
) -> None:
    """Histories grow by one or more messages, are repeated or cut, and begin like those of others."""
    form = ChatCompletions()
    reader = RequestReader(form.text_of)
    for messages in (each[:end] for each in histories for end in (1, 3, 4, 4, 14, 3)):
        sent = {"model": "[", **around, "messages": messages, "stream": False}
        body, read = reader.read(json.dumps(sent, indent=indent).encode())
        assert json.dumps(body) == json.dumps(sent)
        known, alone = form.request(body, "", read), form.request(body, "")
        assert (known, known.results) == (alone, alone.results)


@pytest.mark.parametrize(
    "texts",
    [
        ('{"input": [{}]}', '{"input": [{},]}', '{"input": [{}, ]}', '{"input": [{} {}]}', '{"input": [{}]'),
        ('{"input": [{"a": [1]}]}', '{"input": [{"a": [1]}', '{"input": [{"a": [1]}]}', '{"input": [{}]}'),
        ('{"input": [{}], "n": 1}', '{"input": [{}, "n": 1}', '{"input": [{}], "n": 2}', '{"input": [{}, {}'),
        ('{"a": {"input": [2]}, "input": [{}]}', '{"a": {"input": [2, {}]}, "input": [{}]}'),
        ('{"input": [{}], "input": [{}]}', '{"input": [{}, {}], "input": [{}]}', '{"input": []}'),
        ('{"input": [{"": "]}"}]}', '{"input": [{"": "]}, {"}]}', '{"input": [{"": "]}"}, {"": "]}"}]}'),
        ('{"input": [{"": NaN}]}', '{"input": [{"": NaN}, 1]}', '{"input": "[{}]"}', "[1]", '"input"', ""),
        (
            '{"input": [1]}',
            '{"input": [1234]}',
            '{"input": [1, 2]}',
            '{"input": [1, 2, 3]}',
            '{"input": [1.]}',
        ),
    ],
)
def test_a_request_that_is_almost_known_is_read_as_it_is(texts: tuple[str, ...]) -> None:
    reader = RequestReader(Responses().text_of)
    for text in (*texts, *texts):
        body, *_ = reader.read(text.encode())
        assert json.dumps(body) == json.dumps(json_or(text))


def test_only_new_messages_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = RequestReader(ChatCompletions().text_of)
    messages = [{"role": "user", "content": f"message {number}"} for number in range(9)]
    read = list[Any]()
    monkeypatch.setattr(model_messages, "json_or", lambda text: (read.append(json.loads(text)), read[-1])[1])
    for begin, end in ((5, 6), (0, 2), (5, 7), (0, 5), (0, 5), (5, 9)):
        reader.read(json.dumps({"messages": messages[begin:end], "tools": [{}]}).encode())
    assert read[2:] == [messages[:2], messages[6:7], messages[2:5], [], messages[7:]]
