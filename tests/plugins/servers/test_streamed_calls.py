"""Calls that arrive in pieces come out complete and separate, in whatever way servers cut and number them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import permutations
from typing import Any

import anyio
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from scripted_provider import FORM_OF
from test_model_gateway import gateway
from test_model_gateway_faults import Faulty, request_of, sent

from agentest.agents.stream_assembly import StreamedCalls
from agentest.mocks.binding import bind
from agentest.plugins.protocols.protocol_client import StreamedBlocks
from agentest.plugins.servers.model_gateway.anthropic_messages import AnthropicMessages
from agentest.plugins.servers.model_gateway.chat_completions import ChatCompletions
from agentest.plugins.servers.model_gateway.gemini import Gemini
from agentest.plugins.servers.model_gateway.responses import Responses
from agentest.plugins.servers.model_gateway.wire_form import CutStream, ModelCall, WireForm, sse
from agentest.support.http.sse import Event, EventParser

Call = tuple[str, dict[str, Any]]
CALLS: list[Call] = [("weather", {"city": {"name": "Rome"}}), ("book", {"note": '{"a": 1}'}), ("weather", {})]
GROUPS = [group for size in (1, 2, 3) for group in permutations(CALLS, size)]


def piece(name: str | None = None, text: Any = None, **others: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", text)) if value is not None}
    return {**others, "function": function}


def assembled(pieces: Sequence[dict[str, Any]], names: Sequence[str] = ()) -> list[Call]:
    calls = StreamedCalls(names)
    for each in pieces:
        calls.add([each])
    read = [call["function"] for call in calls.calls]
    return [(function["name"], json.loads(function["arguments"] or "{}")) for function in read]


def cuts(text: str) -> Iterator[tuple[str, str]]:
    return ((text[:at], text[at:]) for at in range(len(text) + 1))


def shapes(call: Call, at: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Return the ways in which servers send a call with this index and id."""
    name, text = call[0], json.dumps(call[1])
    index = {key: value for key, value in at.items() if key == "index"}
    for first, rest in cuts(name):
        yield [piece(first, "", **at), piece(rest, **index), piece(None, text, **index)]
        yield [piece(first, "", **at), piece(name, "", **at), piece(name, text, **at)]  # all so far
    for first, rest in cuts(text):
        yield [piece(name, first, **at), piece("", rest, **index)]
        yield [piece(name, first, **at), piece(name, rest, **at)]  # repeated
        yield [piece("", first, **at), piece(None, rest, **index), piece(name, **index)]  # late
    yield [piece(name, call[1], **at)]
    yield [piece(name, **at), *(piece(None, letter, **index) for letter in text)]


PLACES = {
    "an index and an id": lambda n: {"index": n, "id": f"c{n}"},
    "an index": lambda n: {"index": n},
    "an index and an equal id": lambda n: {"index": n, "id": "same"},
    "index 0 and an id": lambda n: {"index": 0, "id": f"c{n}"},
    "an id": lambda n: {"id": f"c{n}"},
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: "-".join(name for name, _ in group))
def test_calls_of_every_shape_are_complete_and_separate(place: Any, group: tuple[Call, ...]) -> None:
    for number in range(len(list(shapes(group[0], {})))):
        chosen = [list(shapes(call, place(n))) for n, call in enumerate(group)]
        streamed = [pieces[min(number, len(pieces) - 1)] for pieces in chosen]
        assert assembled([each for pieces in streamed for each in pieces]) == list(group), streamed


@pytest.mark.parametrize("index", [{"index": 0}, {}], ids=["index 0", "no index"])
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: "-".join(name for name, _ in group))
def test_calls_without_ids_are_separate_if_their_arguments_are_whole(index: Any, group: Any) -> None:
    whole = [piece(name, json.dumps(args), **index) for name, args in group]
    named = [each for name, args in group for each in (piece(name, **index), piece(None, args, **index))]
    assert assembled(whole) == assembled(named) == list(group)


@given(data=st.data(), group=st.sampled_from(GROUPS))
def test_pieces_of_parallel_calls_may_alternate(data: Any, group: tuple[Call, ...]) -> None:
    queues = [
        list(data.draw(st.sampled_from(list(shapes(call, {"index": n, "id": f"c{n}"})))))
        for n, call in enumerate(group)
    ]
    pieces = []
    while any(queues):
        pieces.append(data.draw(st.sampled_from([queue for queue in queues if queue])).pop(0))
    assert assembled(pieces) == list(group)


@pytest.mark.parametrize("index", [{"index": 0}, {}], ids=["index 0", "no index"])
def test_calls_without_arguments_are_separate_by_their_ids(index: Any) -> None:
    whole = [piece("book", id="c1", **index), piece("weather", id="c2", **index)]
    late = [piece(None, "", id="c1", **index), piece("weather", "", id="c2", **index)]
    assert assembled(whole) == [("book", {}), ("weather", {})]
    assert assembled([*late, piece("book", "", id="c1", **index)]) == [("book", {}), ("weather", {})]


@pytest.mark.parametrize(
    ("pieces", "names"),
    [
        ([piece("book", index=0), piece("weather", index=0)], ("book", "weather")),
        ([piece("book", "", index=0), piece("weather", "", index=0)], ()),
        ([piece("book", index=0, type="function"), piece("weather", index=0, type="function")], ()),
        ([piece("book"), piece("weather")], ()),
        ([piece("bo", index=0), piece("ok", index=0), piece("weather", index=0)], ("book", "weather")),
        ([piece("bo", index=0), piece("book", index=0), piece("weather", index=0)], ("book", "weather")),
    ],
    ids=["known tools", "empty arguments", "types", "no index", "a name in pieces", "a name that grows"],
)
def test_names_of_calls_without_ids_and_arguments_are_not_joined(pieces: Any, names: Any) -> None:
    assert assembled(pieces, names) == [("book", {}), ("weather", {})]


@pytest.mark.parametrize("names", [(), ("cancel",)])
def test_bare_names_that_may_be_those_of_two_calls_are_doubtful(names: Any) -> None:
    calls = StreamedCalls(names)
    for each in (piece("book", index=0), piece("weather", index=0)):
        calls.add([each])
    assert calls.has_doubtful_name
    known = StreamedCalls(["bookweather", "book"])
    for each in (piece("book", index=0), piece("weather", index=0)):
        known.add([each])
    assert not known.has_doubtful_name
    assert [call["function"]["name"] for call in known.calls] == ["bookweather"]


def test_pieces_of_one_delta_continue_the_calls_at_their_positions() -> None:
    """Without indexes and ids, only the order in each delta separates parallel calls."""
    calls = StreamedCalls()
    calls.add([piece("book", ""), piece("weather", "")])
    calls.add([piece(None, '{"n":'), piece(None, '{"city":')])
    calls.add([piece(None, " 1}"), piece(None, ' "Rome"}')])
    calls.add([piece("book", '{"n": 2}'), piece("weather", "{}")])
    read = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls.calls]
    assert read == [("book", {"n": 1}), ("weather", {"city": "Rome"}), ("book", {"n": 2}), ("weather", {})]


@pytest.mark.parametrize("first", ["", "boo", None])
def test_a_call_waits_for_its_name(first: str | None) -> None:
    """Nothing of a call leaves before the end, whatever its first piece has for a name."""
    stream = ChatCompletions().stream(ChatCompletions().request({}, ""))
    begin = piece(first, "", index=0, id="c1")
    for each in (begin, piece("k" if first else "book", index=0), piece(None, "{}", index=0)):
        delta = {"choices": [{"index": 0, "delta": {"tool_calls": [each]}}]}
        assert stream.feed(Event(json.dumps(delta))) == b""
    stream.feed(Event(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})))
    (call,) = ChatCompletions().answer(stream.round()).calls
    assert (call.name, call.arguments) == ("book", {})


def test_a_reused_id_without_an_index_is_the_next_call() -> None:
    reused = [piece(name, "{}", id=known) for name, known in (("a", "c1"), ("b", "c2"), ("c", "c1"))]
    assert assembled(reused) == [("a", {}), ("b", {}), ("c", {})]


def test_a_call_that_is_repeated_whole_is_one_call() -> None:
    whole = piece("book", '{"n": 1}', index=0, id="c1")
    assert assembled([whole, whole]) == [("book", {"n": 1})]


def test_a_block_that_reuses_an_index_is_another_block() -> None:
    blocks = StreamedBlocks()
    for name in ("weather", "book"):
        blocks.start(0, {"type": "tool_use", "name": name, "input": {}})
        for text in ('{"n"', ": 1}"):
            assert blocks.grow(0, {"type": "input_json_delta", "partial_json": text})
    assert [(block["name"], block["input"]) for block in blocks.blocks] == [
        ("weather", {"n": 1}),
        ("book", {"n": 1}),
    ]


def test_an_event_after_the_end_of_its_item_is_of_that_item() -> None:
    """Otherwise the agent would miss the index of the next item."""
    stream = Responses().stream(Responses().request({}, ""))
    first, second = ({"type": "message", "id": known, "content": []} for known in ("m1", "m2"))
    late = {"type": "response.output_text.annotation.added", "output_index": 0, "item_id": "m1"}
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": first},
        {"type": "response.output_item.done", "output_index": 0, "item": first},
        late,
        {"type": "response.output_item.added", "output_index": 1, "item": second},
    ]
    sent = b"".join(stream.feed(Event(json.dumps(event), event["type"])) for event in events)
    indexes = [json.loads(event.data)["output_index"] for event in EventParser().feed(sent)]
    assert indexes == [0, 0, 0, 1]


def chat(group: Sequence[Call], index: Any, call_id: Any) -> list[dict[str, Any]]:
    def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
        return {"id": "a", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    pieces = [
        each
        for n, (name, args) in enumerate(group)
        for each in (
            piece(name[:2], "", index=index(n), id=call_id(n)),
            piece(name[2:], json.dumps(args), index=index(n)),
        )
    ]
    return [chunk(content="Yes. "), *(chunk(tool_calls=[each]) for each in pieces), chunk("tool_calls")]


def responses(group: Sequence[Call], index: Any, call_id: Any) -> list[dict[str, Any]]:
    text: dict[str, Any] = {
        "type": "message",
        "id": "m",
        "content": [{"type": "output_text", "text": "Yes. "}],
    }
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "m"}},
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": "Yes. "},
        {"type": "response.output_item.done", "output_index": 0, "item": text},
    ]
    for n, (name, args) in enumerate(group):
        item = {"type": "function_call", "id": f"f{call_id(n)}", "call_id": call_id(n)}
        whole = {**item, "name": name, "arguments": json.dumps(args)}
        at = {} if index(n) is None else {"output_index": index(n) + 1}
        events += [
            {"type": "response.output_item.added", **at, "item": {**item, "name": ""}},
            {"type": "response.function_call_arguments.delta", **at, "item_id": item["id"], "delta": "{"},
            {"type": "response.output_item.done", **at, "item": whole},
        ]
    return [*events, {"type": "response.completed", "response": {"id": "r"}}]


def anthropic(group: Sequence[Call], index: Any, call_id: Any) -> list[dict[str, Any]]:
    blocks: list[tuple[int | None, dict[str, Any], dict[str, Any]]] = [
        (0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Yes. "})
    ]
    for n, (name, args) in enumerate(group):
        delta = {"type": "input_json_delta", "partial_json": json.dumps(args)}
        at = None if index(n) is None else index(n) + 1
        blocks.append((at, {"type": "tool_use", "id": call_id(n), "name": name, "input": {}}, delta))
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"id": "m"}}]
    for at, block, delta in blocks:
        place = {} if at is None else {"index": at}
        events.append({"type": "content_block_start", **place, "content_block": block})
        events.append({"type": "content_block_delta", **place, "delta": delta})
        events.append({"type": "content_block_stop", **place})
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}
    return [*events, end, {"type": "message_stop"}]


def gemini(group: Sequence[Call], index: Any, call_id: Any) -> list[dict[str, Any]]:
    parts = [
        {"text": "Yes. "},
        *(
            {"functionCall": {"name": name, "args": args, "id": call_id(n)}}
            for n, (name, args) in enumerate(group)
        ),
    ]
    last = {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]}
    return [*({"candidates": [{"content": {"parts": [part]}}]} for part in parts), last]


FORMS: list[tuple[WireForm, Any]] = [
    (ChatCompletions(), chat),
    (Responses(), responses),
    (AnthropicMessages(), anthropic),
    (Gemini(), gemini),
]


def read(form: WireForm, stream: bytes) -> tuple[str, list[Call]]:
    """Return the text and the calls that an agent reads in a stream."""
    reader = form.stream(form.request({}, ""))
    parser = EventParser()
    for event in (*parser.feed(stream), *parser.rest()):
        reader.feed(event)
    answer = form.answer(reader.round())
    return reader.text, [(call.name, call.arguments) for call in answer.calls]


@pytest.mark.parametrize(("form", "events"), FORMS, ids=lambda each: getattr(each, "name", ""))
@pytest.mark.parametrize("group", [group for group in GROUPS if len(group) > 1], ids=str)
@pytest.mark.parametrize(
    "call_id", [lambda n: f"c{n}", lambda n: "same", lambda n: None], ids=["ids", "equal", "none"]
)
@pytest.mark.parametrize(
    "index", [lambda n: n, lambda n: 0, lambda n: None], ids=["indices", "equal index", "no index"]
)
def test_an_agent_is_shown_all_calls_but_those_that_are_hidden(
    form: WireForm, events: Any, group: Sequence[Call], call_id: Any, index: Any
) -> None:
    """Calls wait for the end of the answer, and none but the hidden ones is lost."""
    offers = form.request({"tools": [{"function": {"name": name}} for name in ("weather", "book")]}, "")
    for hidden in range(len(group)):
        stream = form.stream(offers)
        begun = b"".join(
            stream.feed(Event(json.dumps(event), event.get("type")))
            for event in events(group, index, call_id)
        )
        assert not any(name.encode() in begun for name in ("weather", "book"))
        answer = form.answer(stream.round())
        assert [(call.name, call.arguments) for call in answer.calls] == list(group)
        hides: list[ModelCall] = [answer.calls[hidden]]
        sent = begun + stream.end(form.shown(form.request({}, ""), answer, hides, 1), hides)
        text, calls = read(form, sent)
        assert text.startswith("Yes. ")
        assert calls == [*group[:hidden], *group[hidden + 1 :]]


TRAFFIC: list[Call] = [
    ("find", {"q": "Rome"}),
    ("send", {"q": '{"a": 1}'}),
    ("find", {"q": "x"}),
    ("send", {}),
]
INDICES: list[Any] = [lambda n: n, lambda n: 0, lambda n: None]
IDS: list[Any] = [lambda n: f"c{n}", lambda n: "same", lambda n: None, lambda n: f"c{n % 2}"]


def whole_of(form: str, group: Sequence[Call], call_id: Any) -> dict[str, Any]:
    """Return an answer without streaming."""
    match form:
        case "chat":
            calls = [
                {**piece(name, json.dumps(args)), "id": call_id(n)} for n, (name, args) in enumerate(group)
            ]
            return {"id": "a", "choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
        case "responses":
            items = [event["item"] for event in responses(group, lambda n: n, call_id) if "item" in event]
            return {"id": "r", "output": [item for item in items if item.get("name") or item.get("content")]}
        case "anthropic":
            blocks = [
                {"type": "tool_use", "id": call_id(n), "name": name, "input": args}
                for n, (name, args) in enumerate(group)
            ]
            return {"id": "m", "content": blocks, "stop_reason": "tool_use", "usage": {"output_tokens": 1}}
    parts = [
        part for each in gemini(group, None, call_id) for part in each["candidates"][0]["content"]["parts"]
    ]
    return {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}


def streamed_of(data: Any, form: str, group: Sequence[Call], call_id: Any) -> list[dict[str, Any]]:
    """Return the events of a stream, with names and arguments cut in any way."""
    index = data.draw(st.sampled_from(INDICES))
    if form != "chat":
        make = {"responses": responses, "anthropic": anthropic, "gemini": gemini}[form]
        return make(group, index, call_id)
    pieces = []
    for n, call in enumerate(group):
        at = {key: value for key, value in (("index", index(n)), ("id", call_id(n))) if value is not None}
        pieces += data.draw(st.sampled_from(list(shapes(call, at))))
    deltas = [{"content": "Yes. "}, *({"tool_calls": [each]} for each in pieces)]
    chunks = [{"id": "a", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return [*chunks, {"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]


@given(
    data=st.data(),
    kind=st.sampled_from(["chat", "responses", "anthropic", "gemini"]),
    group=st.lists(st.sampled_from(TRAFFIC), min_size=1, max_size=3, unique_by=repr),
    call_id=st.sampled_from(IDS),
    stream=st.booleans(),
    allows_real=st.booleans(),
)
def test_what_is_recorded_is_shown_and_what_is_shown_is_run(
    data: Any, kind: str, group: list[Call], call_id: Any, stream: bool, allows_real: bool
) -> None:
    """Over random traffic no mocked tool runs, and the agent is shown all others that were recorded."""
    form = dict(zip(("chat", "responses", "anthropic", "gemini"), (each for each, _ in FORMS), strict=True))[
        kind
    ]
    body = json.dumps(whole_of(kind, group, call_id)).encode()
    if stream:
        events = streamed_of(data, kind, group, call_id)
        body = b"".join(sse(each, each.get("type")) for each in events)
    at = data.draw(st.integers(0, len(body)))
    then = whole_of(kind, [], call_id)
    path, asked = request_of(kind, stream=stream)

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        if number > 1:  # after a round with mocked calls alone
            made = FORM_OF[kind]()
            usual = [sse(each, name) for name, each in made.events(made.answer({"model": "m"}, "Done.", []))]
            return await sent(request, usual) if stream else web.json_response(then)
        kind_of = "text/event-stream" if stream else "application/json"
        return await sent(request, [body[:at], body[at:]] if 0 < at < len(body) else [body], kind_of)

    async def hold() -> None:
        mocks = {"find": bind(lambda q: {"mocked": q})}
        async with (
            gateway(provider=Faulty(answer), allows_real=allows_real) as gate,
            gate.talk(kind, "a", mocks=mocks) as talk,
        ):
            response = await gate.client.post(gate.origin + path, json=asked)
            talk.turn = 0
            made = [(call.name, call.args) for call in talk.calls]
            fault = await talk.known.error_of(None)
            refused = response.status_code != 200 or talk.known.ended_by or fault
        assert '"find"' not in response.text
        shown: list[Call] = []
        with suppress(CutStream):
            if not stream and response.status_code == 200:
                calls = form.answer(response.json()).calls
                shown = [(call.name, call.arguments) for call in calls]
            elif stream:
                shown = read(form, response.content)[1]
        if refused:
            real = any(name == "send" for name, _ in group)
            assert (real and not allows_real) or (kind == "chat" and stream and call_id(1) != "c1")
            assert shown == []
            return
        assert made == group
        assert shown == [call for call in group if call[0] == "send"]

    anyio.run(hold)
