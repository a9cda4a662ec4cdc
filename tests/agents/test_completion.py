"""Chat completions: any agent data is a reply, or an AgentError that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest.agents.chat_completions import from_wire, read_completion, read_stream
from agentest.agents.http_sender import EventStream
from agentest.agents.port import AgentReply
from agentest.domain.messages import ToolRequest
from agentest.domain.transcript import Usage
from agentest.support.errors import AgentError
from agentest.support.http.sse import Event


def completion(message: Any, **more: Any) -> bytes:
    return json.dumps({"choices": [{"message": message}], **more}).encode()


def stream(*events: Any) -> AgentReply:
    async def written() -> AsyncIterator[Event]:
        for event in events:
            yield Event(event if isinstance(event, str) else json.dumps(event))

    async def go() -> AgentReply:
        return await read_stream(EventStream(written()))

    return anyio.run(go)


def delta(finish_reason: Any = None, /, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def function(name: Any = "find", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


# Anything that JSON can say, with the keys of a chat completion where they do most harm.
KEYS = st.sampled_from(["choices", "message", "delta", "finish_reason", "usage", "prompt_tokens"]) | (
    st.sampled_from(["content", "type", "text", "error", "refusal", "tool_calls", "id", "index"])
    | st.sampled_from(["function", "name", "arguments"])
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "text", "stop", "\ud800", "[DONE]", "{}", '{"a": 1}'])
    | st.text(max_size=5)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
CHOICES = JSON | st.lists(
    st.dictionaries(st.sampled_from(["message", "delta", "finish_reason"]), JSON), max_size=2
)
ANSWERS = JSON | st.fixed_dictionaries({"choices": CHOICES}, optional={"usage": JSON, "error": JSON})


def check(reply: AgentReply) -> None:
    assert reply.text is None or isinstance(reply.text, str)
    for request in reply.tool_requests:
        assert isinstance(request.id, str)
        assert isinstance(request.name, str)
        assert request.name
        assert isinstance(request.arguments, str)
    assert reply.usage.total_tokens >= 0


@given(st.binary(max_size=40) | ANSWERS.map(lambda answer: json.dumps(answer).encode()))
def test_any_body(body: bytes) -> None:
    """Any body is a reply or an AgentError."""
    with suppress(AgentError):
        check(read_completion(body))


@given(st.lists(ANSWERS | st.text(max_size=10), max_size=6), st.booleans())
def test_any_stream(events: list[Any], done: bool) -> None:
    """Any events are a reply or an AgentError."""
    with suppress(AgentError):
        check(stream(*events, *(["[DONE]"] if done else [])))


@given(
    JSON
    | st.sets(st.integers(), max_size=2)
    | st.dictionaries(st.tuples(st.integers()) | KEYS, JSON | st.binary() | st.just(object()), max_size=3)
)
def test_any_object_of_a_handler(answer: Any) -> None:
    """Any Python object that a handler returns is a reply or an AgentError."""
    with suppress(AgentError):
        message = from_wire(answer)
        check(AgentReply(message.text, message.tool_requests))


@pytest.mark.parametrize("depth", [200, 900, 1_000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting(depth: int, opening: str, closing: str) -> None:
    """Nesting of any depth, anywhere in an answer, is read or an AgentError."""
    deep = opening * depth + "1" + closing * depth
    for place in (
        "%s",
        '{"choices": %s}',
        '{"choices": [{"message": %s}]}',
        '{"choices": [{"message": {"content": %s}}]}',
        '{"choices": [{"message": {"content": [{"type": %s}]}}]}',
        '{"choices": [{"message": {"tool_calls": %s}}]}',
        '{"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": %s}}]}}]}',
    ):
        with suppress(AgentError):
            check(read_completion((place % deep).encode()))


def test_a_container_that_contains_itself() -> None:
    """A cyclic message of a handler is an AgentError."""
    message: dict[str, Any] = {"content": {}}
    message["content"]["again"] = message
    with pytest.raises(AgentError, match="content"):
        from_wire(message)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, None),
        ("Hello", "Hello"),
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": "Hel"}, {"type": "output_text", "text": "lo"}], "Hello"),
        (["Hel", "lo"], "Hello"),
        ([{"type": "image_url", "image_url": {}}], "[image_url]"),
        ([{}], "[unknown part]"),
        ([{"type": "refusal", "refusal": "No."}], "No."),
    ],
)
def test_content(content: Any, text: str | None) -> None:
    """Content may be null, text or a list of parts; parts without text are named."""
    assert read_completion(completion({"content": content})).text == text


def test_refusal() -> None:
    """A refusal replaces missing content."""
    assert read_completion(completion({"content": None, "refusal": "No."})).text == "No."
    assert stream(delta(refusal="N"), delta("stop", refusal="o.")).text == "No."


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"nonsense", "not JSON: 'nonsense'"),
        (
            b"\n <!doctype html>\n<p>",
            r"is a web page, not JSON \(is the path right\? .*/v1/chat/completions\): '",
        ),
        (b"\xff\xfe\xfa", "not UTF-8"),
        ('{"choices": "é"}'.encode("latin-1"), "not UTF-8"),
        (b"[]", "not a JSON object"),
        (b"{}", "no `choices`"),
        (b'{"choices": []}', "no `choices`"),
        (b'{"choices": {"0": 1}}', "no `choices`"),
        (b'{"error": {"message": "quota"}}', "an error: .*quota"),
        (b'{"choices": [{}]}', "`message` is not an object"),
        (completion({"content": 5}), "`content` is neither"),
        (completion({"content": {"text": "x"}}), "`content` is neither"),
        (completion({"content": [5]}), "part .* is not an object"),
        (completion({"content": [{"type": "text"}]}), "has no text"),
        (completion({"tool_calls": {}}), "`tool_calls` is not a list"),
        (completion({"tool_calls": ["find"]}), "no function name"),
        (completion({"tool_calls": [{"id": "1"}]}), "no function name"),
        (completion({"tool_calls": [function(name="")]}), "no function name"),
        (completion({"tool_calls": [function(name=5)]}), "no function name"),
    ],
)
def test_wrong_answers(body: bytes, problem: str) -> None:
    """The error says what is wrong with the answer."""
    with pytest.raises(AgentError, match=problem):
        read_completion(body)


def test_encodings() -> None:
    """UTF-8 with a byte order mark and UTF-16 are read."""
    text = json.dumps({"choices": [{"message": {"content": "grüße"}}]}, ensure_ascii=False)
    for body in (text.encode("utf-8-sig"), text.encode("utf-16")):
        assert read_completion(body).text == "grüße"


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("not JSON", "not JSON"),
        ("", ""),
        (None, ""),
        ({"a": 1}, '{"a": 1}'),
        ([], "[]"),
    ],
)
def test_tool_call_arguments(arguments: Any, read: str) -> None:
    """Argument text is stored unchanged; objects are written as text."""
    reply = read_completion(completion({"tool_calls": [function(arguments=arguments)]}))
    assert reply.tool_requests == (ToolRequest("call_1", "find", read),)


@pytest.mark.parametrize("given_id", [None, 7, [], {}])
def test_tool_calls_without_an_id(given_id: Any) -> None:
    """A tool call whose id is not text has no id."""
    call = {**function(), "id": given_id}
    assert read_completion(completion({"tool_calls": [call]})).tool_requests == (
        ToolRequest("", "find", "{}"),
    )


@pytest.mark.parametrize(
    ("usage", "read"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, Usage(3, 4)),
        ({"prompt_tokens": 3}, Usage(3, 0)),
        ({"prompt_tokens": "3", "completion_tokens": True}, Usage()),
        ({"prompt_tokens": -1, "completion_tokens": 1.5}, Usage()),
        (None, Usage()),
        ([], Usage()),
    ],
)
def test_usage(usage: Any, read: Usage) -> None:
    """Only positive integers count as tokens."""
    assert read_completion(completion({"content": "x"}, usage=usage)).usage == read


def test_streamed_text_and_usage() -> None:
    """Streamed text is joined, and usage comes from the event without choices."""
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    reply = stream(
        delta(role="assistant"), delta(content="Hel"), delta("stop", content="lo"), usage, "[DONE]"
    )
    assert reply == AgentReply("Hello", (), Usage(1, 2))


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=6), st.dictionaries(st.text(), st.integers())), max_size=4
    ),
    st.data(),
)
def test_streamed_tool_calls(calls: list[tuple[str, dict[str, int]]], data: st.DataObject) -> None:
    """Interleaved pieces of tool calls are joined and ordered by index."""
    waiting = []
    for index, (name, arguments) in enumerate(calls):
        text = json.dumps(arguments)
        place = data.draw(st.integers(0, len(text)))
        first = {"index": index, "id": f"id{index}", "function": {"name": name, "arguments": text[:place]}}
        waiting.append([first, {"index": index, "function": {"arguments": text[place:]}}])
    events: list[Any] = []
    while any(waiting):
        pieces = data.draw(st.sampled_from([p for p in waiting if p]))
        events.append(delta(tool_calls=[pieces.pop(0)]))
    reply = stream(*events, delta("tool_calls"), "[DONE]")
    assert reply.tool_requests == tuple(
        ToolRequest(f"id{i}", name, json.dumps(arguments)) for i, (name, arguments) in enumerate(calls)
    )


def names(pieces: Iterable[Any]) -> list[str]:
    return [r.name for r in stream(*(delta(tool_calls=[p]) for p in pieces), "[DONE]").tool_requests]


def test_streamed_tool_names() -> None:
    """A tool's name may come whole, in pieces, or repeated in every piece."""
    assert names([{"index": 0, "function": {"name": "find"}}]) == ["find"]
    assert names([{"index": 0, "function": {"name": "fi"}}, {"index": 0, "function": {"name": "nd"}}]) == [
        "find"
    ]
    assert names([{"index": 0, "function": {"name": "find"}}] * 2) == ["find"]


def test_streamed_tool_calls_without_index() -> None:
    """Without an index, a piece with an id starts a call and others continue it."""
    pieces = [
        {"id": "1", "function": {"name": "one", "arguments": "{"}},
        {"function": {"arguments": "}"}},
        {"id": "2", "function": {"name": "two", "arguments": "[]"}},
    ]
    reply = stream(*(delta(tool_calls=[p]) for p in pieces), "[DONE]")
    assert reply.tool_requests == (ToolRequest("1", "one", "{}"), ToolRequest("2", "two", "[]"))


def test_streamed_tool_calls_of_one_index() -> None:
    """If an agent repeats one index, a new id and name start a new call."""
    pieces = [
        {"index": 0, "id": "1", "function": {"name": "one", "arguments": "{}"}},
        {"index": 0, "id": "2", "function": {"name": "two", "arguments": "[]"}},
    ]
    reply = stream(*(delta(tool_calls=[p]) for p in pieces), "[DONE]")
    assert reply.tool_requests == (ToolRequest("1", "one", "{}"), ToolRequest("2", "two", "[]"))


@pytest.mark.slow
def test_very_many_streamed_tool_calls_without_index() -> None:
    """Joining calls without an index takes linear time."""
    pieces = [{"id": str(n), "function": {"name": "one"}} for n in range(50_000)]
    assert len(stream(delta(tool_calls=pieces), "[DONE]").tool_requests) == 50_000


@pytest.mark.parametrize(
    "events",
    [
        [],
        [delta(content="Hel")],
        [delta("", content="Hel")],
        [{"choices": [], "usage": {"prompt_tokens": 1}}],
        [delta(tool_calls=[{"index": 0, "id": "1", "function": {"name": "find", "arguments": '{"a'}}])],
    ],
)
def test_cut_streams(events: list[Any]) -> None:
    """A stream that ends without [DONE] or a finish_reason is an error."""
    with pytest.raises(AgentError, match="was cut"):
        stream(*events)


def test_a_stream_without_done() -> None:
    """A finish_reason ends a stream without [DONE]."""
    assert stream(delta(content="Hi"), delta("stop")).text == "Hi"


def test_empty_events() -> None:
    """Keep-alive events without data are ignored."""
    assert stream("", delta(content="Hi"), " ", delta("stop"), "[DONE]").text == "Hi"


def test_a_whole_message_at_the_end() -> None:
    """A whole message after deltas does not repeat the text; without deltas it is the text."""
    whole = {"message": {"content": "Hi"}, "finish_reason": "stop"}
    assert stream(delta(content="Hi"), {"choices": [{**whole, "delta": {}}]}).text == "Hi"
    assert stream({"choices": [whole]}).text == "Hi"


def test_after_done() -> None:
    """Events after [DONE] are ignored."""
    assert stream(delta(content="Hi"), "[DONE]", "garbage").text == "Hi"


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ("{", "not JSON"),
        ("5", "not a JSON object"),
        ({"error": {"message": "overloaded"}}, "overloaded"),
        ({"choices": "x"}, "`choices`"),
        ({"choices": ["x"]}, "`choices`"),
        ({"choices": [{"delta": "x"}]}, "`delta`"),
        (delta(content=5), "`content`"),
        (delta(tool_calls={"0": 1}), "`tool_calls`"),
        (delta(tool_calls=["x"]), "`tool_calls`"),
        (delta(tool_calls=[{"index": 0, "function": "x"}]), "no function"),
    ],
)
def test_wrong_events(event: Any, problem: str) -> None:
    """The error says what is wrong with the event."""
    with pytest.raises(AgentError, match=problem):
        stream(delta(content="Hi"), event, "[DONE]")
