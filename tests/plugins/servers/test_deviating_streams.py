"""Streams of real servers that deviate from their API: no mocked tool runs, and what is recorded is shown.

`STREAMS` is the table: server, shape, and where on GitHub it was reported ("made up" if nowhere). Agents read
what the gateway sends as the clients of the APIs do, not by our own code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiohttp import web
from test_model_gateway import anyio_backend, gateway
from test_model_gateway_faults import Faulty, request_of, sent

from agentest.mocks.binding import bind
from agentest.plugins.servers.model_gateway.wire_form import sse

__all__ = ["anyio_backend"]
pytestmark = pytest.mark.anyio
Json = dict[str, Any]
Call = tuple[str, Json]

FIND, SEND = ("find", {"q": "Rome"}), ("send", {"q": "x"})
A, B = json.dumps(FIND[1]), json.dumps(SEND[1])
ROME, X = {"name": "find", "arguments": A}, {"name": "send", "arguments": B}


def chat(*pieces: Json, first: Sequence[Json] = (), last: Sequence[Json] = (), **extra: Any) -> list[Json]:
    deltas = [{"role": "assistant", "content": None}, *({"tool_calls": [each]} for each in pieces)]
    chunks = [{"id": "a", "choices": [{"index": 0, "delta": delta, **extra}]} for delta in deltas]
    end = {"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls", **extra}]}
    return [*first, *chunks, end, *last]


def fn(name: Any = None, arguments: Any = None, **others: Any) -> Json:
    """A piece of a call; `None` for a key that is left out."""
    given = {"name": name, "arguments": arguments}
    return {**others, "function": {key: value for key, value in given.items() if value is not None}}


def cut(name: str, text: str, later: Json, **at: Any) -> list[Json]:
    """A call whose arguments come in two pieces; `later` is what each of them repeats."""
    return [fn(name, "", **at), fn(arguments=text[:4], **later), fn(arguments=text[4:], **later)]


def repeated(name: str, text: str, **at: Any) -> list[Json]:
    return [fn(name, piece, **at) for piece in ("", text[:4], text[4:])]


def item(name: str, text: str, n: int, **others: Any) -> Json:
    return {
        "type": "function_call",
        "id": f"f{n}",
        "call_id": f"c{n}",
        "name": name,
        "arguments": text,
        **others,
    }


def responses(*events: Json, output: Sequence[Json] | None = None) -> list[Json]:
    made = {} if output is None else {"output": [*output]}
    end = {"type": "response.completed", "response": {"id": "r", "status": "completed", **made}}
    return [{"type": "response.created", "response": {"id": "r"}}, *events, end]


def items(*calls: Json, index: Callable[[int], Json], begins: Json | None) -> list[Json]:
    """The events of calls. `begins`: what differs in the first event; None without one."""
    events: list[Json] = []
    for n, call in enumerate(calls):
        at = {**index(n), "item_id": call["id"]}
        if begins is not None:
            event = {"type": "response.output_item.added", **index(n)}
            events.append({**event, "item": {**call, "arguments": "", **begins}})
        events.append({"type": "response.function_call_arguments.delta", **at, "delta": call["arguments"]})
        events.append({"type": "response.output_item.done", **index(n), "item": call})
    return events


def anthropic(*blocks: tuple[Json, Json, Sequence[Any]]) -> list[Json]:
    """The events of blocks: index, block and pieces of the input of each."""
    events: list[Json] = [{"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 1}}}]
    for index, block, pieces in blocks:
        events.append(
            {"type": "content_block_start", **index, "content_block": {"type": "tool_use", **block}}
        )
        for piece in pieces:
            delta = {"type": "input_json_delta", "partial_json": piece}
            events.append({"type": "content_block_delta", **index, "delta": delta})
        events.append({"type": "content_block_stop", **index})
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}}
    return [*events, end, {"type": "message_stop"}]


def gemini(*chunks: Sequence[Json], ids: str = "", others: Sequence[Json] = ()) -> list[Json]:
    """Chunks of calls, with response ids that are the letters of `ids`."""
    made = [
        {
            "candidates": [
                {"index": 0, "content": {"parts": [{"functionCall": call} for call in calls]}},
                *others,
            ],
            **({"responseId": ids[n]} if ids else {}),
        }
        for n, calls in enumerate(chunks)
    ]
    return [*made, {"candidates": [{"index": 0, "content": {"parts": []}, "finishReason": "STOP"}]}]


BOTH = [item(*FIND[:1], A, 0), item(*SEND[:1], B, 1)]
FILTER = {"content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}}
PROMPT = {
    "id": "",
    "object": "",
    "model": "",
    "choices": [],
    "prompt_filter_results": [{"prompt_index": 0, **FILTER}],
}
OFFSETS = {"id": "", "choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}, **FILTER}]}
ONE, TWO = {"name": "find", "args": FIND[1]}, {"name": "send", "args": SEND[1]}

STREAMS: list[tuple[str, str, str, str, list[Json]]] = [
    (
        "Azure OpenAI",
        "filters: no choices first, no delta last",
        "microsoft/autogen/issues/6465",
        "chat",
        chat(
            *cut("find", A, {"index": 0}, index=0, id="a"),
            *cut("send", B, {"index": 1}, index=1, id="b"),
            first=[PROMPT],
            last=[OFFSETS],
            **FILTER,
        ),
    ),
    (
        "Ollama",
        "no index",
        "ollama/ollama/issues/7881",
        "chat",
        chat({"id": "a", "function": ROME}, {"id": "b", "function": X}),
    ),
    (
        "Ollama",
        "index 0 for all",
        "ollama/ollama/issues/15457",
        "chat",
        chat({"index": 0, "id": "a", "function": ROME}, {"index": 0, "id": "b", "function": X}),
    ),
    (
        "Gemini behind new-api",
        "index 0 for all, in pieces",
        "QuantumNous/new-api/pull/2701",
        "chat",
        chat(*cut("find", A, {"index": 0}, index=0, id="a"), *cut("send", B, {"index": 0}, index=0, id="b")),
    ),
    (
        "vLLM, Command-A",
        "an empty name first",
        "vercel/ai/pull/16507",
        "chat",
        chat(
            fn("", "", index=0, id="a"),
            fn("find", A, index=0),
            fn("", "", index=1, id="b"),
            fn("send", B, index=1),
        ),
    ),
    (
        "vLLM, Mistral",
        "no function first",
        "vllm-project/vllm/pull/19425",
        "chat",
        chat(
            {"index": 0, "id": "a", "function": None},
            fn("find", A, index=0, id=None),
            {"index": 1, "id": "b", "function": None},
            fn("send", B, index=1, id=None),
        ),
    ),
    (
        "vLLM",
        "no ids, names repeated",
        "vllm-project/vllm/issues/18412",
        "chat",
        chat(*repeated("find", A, index=0), *repeated("send", B, index=1)),
    ),
    (
        "MiniMax at NVIDIA",
        "the name in every piece",
        "NousResearch/hermes-agent/issues/8259",
        "chat",
        chat(*repeated("find", A, index=0, id="a"), *repeated("send", B, index=1, id="b")),
    ),
    (
        "MiniMax",
        "arguments as an object",
        "can1357/oh-my-pi/pull/1779",
        "chat",
        chat(fn(*FIND, index=0, id="a"), fn(*SEND, index=1, id="b")),
    ),
    (
        "DashScope",
        "empty ids later",
        "anomalyco/opencode/pull/40969",
        "chat",
        chat(
            *cut("find", A, {"index": 0, "id": ""}, index=0, id="a"),
            *cut("send", B, {"index": 1, "id": ""}, index=1, id="b"),
        ),
    ),
    (
        "SGLang",
        "null ids and names later",
        "sgl-project/sglang/pull/35542",
        "chat",
        chat(
            *cut("find", A, {"index": 0, "id": None}, index=0, id="a"),
            *cut("send", B, {"index": 1, "id": None}, index=1, id="b"),
        ),
    ),
    (
        "Kimi at NVIDIA",
        "no ids",
        "anomalyco/opencode/pull/25925",
        "chat",
        chat(*cut("find", A, {"index": 0}, index=0), *cut("send", B, {"index": 1}, index=1)),
    ),
    (
        "a proxy",
        "one id for all",
        "made up",
        "chat",
        chat({"index": 0, "id": "s", "function": ROME}, {"index": 1, "id": "s", "function": X}),
    ),
    (
        "a local model",
        "a name with blanks and a capital",
        "made up",
        "chat",
        chat(fn(" Find\n", A, index=0, id="a"), fn("send", B, index=1, id="b")),
    ),
    (
        "GPT-4",
        "a name with its namespace",
        "made up",
        "chat",
        chat(fn("functions.find", A, index=0, id="a"), fn("send", B, index=1, id="b")),
    ),
    (
        "openai-agents",
        "one index for all items",
        "openai/openai-agents-python/pull/3161",
        "responses",
        responses(*items(*BOTH, index=lambda _: {"output_index": 0}, begins={}), output=BOTH),
    ),
    (
        "a proxy",
        "no output_index",
        "made up",
        "responses",
        responses(*items(*BOTH, index=lambda _: {}, begins={}), output=BOTH),
    ),
    (
        "a proxy",
        "late names",
        "made up",
        "responses",
        responses(*items(*BOTH, index=lambda n: {"output_index": n}, begins={"name": ""}), output=[]),
    ),
    (
        "a proxy",
        "no first events, one index",
        "made up",
        "responses",
        responses(*items(*BOTH, index=lambda _: {"output_index": 0}, begins=None)),
    ),
    ("a proxy", "only created and completed", "made up", "responses", responses(output=BOTH)),
    (
        "a proxy",
        "one id for all items",
        "made up",
        "responses",
        responses(
            *items(
                *({**each, "id": "f", "call_id": "c"} for each in BOTH),
                index=lambda _: {"output_index": 0},
                begins={},
            )
        ),
    ),
    (
        "compatible servers",
        "the input in the first event",
        "Yeachan-Heo/gajae-code/pull/1895",
        "anthropic",
        anthropic(
            ({"index": 0}, {"id": "a", "name": "find", "input": FIND[1]}, []),
            ({"index": 1}, {"id": "b", "name": "send", "input": SEND[1]}, []),
        ),
    ),
    (
        "llama.cpp",
        "no input in the first event",
        "ggml-org/llama.cpp/pull/22960",
        "anthropic",
        anthropic(
            ({"index": 0}, {"id": "a", "name": "find"}, [A[:4], A[4:]]),
            ({"index": 1}, {"id": "b", "name": "send"}, [B[:4], B[4:]]),
        ),
    ),
    (
        "a proxy",
        "the input as an object",
        "made up",
        "anthropic",
        anthropic(
            ({"index": 0}, {"id": "a", "name": "find", "input": {}}, [FIND[1]]),
            ({"index": 1}, {"id": "b", "name": "send", "input": {}}, [SEND[1]]),
        ),
    ),
    (
        "a proxy",
        "one index and id for all",
        "made up",
        "anthropic",
        anthropic(
            ({"index": 0}, {"id": "a", "name": "find", "input": {}}, [A]),
            ({"index": 0}, {"id": "a", "name": "send", "input": {}}, [B]),
        ),
    ),
    (
        "a proxy",
        "no index",
        "made up",
        "anthropic",
        anthropic(
            ({}, {"id": "a", "name": "find", "input": {}}, [A]),
            ({}, {"id": "b", "name": "send", "input": {}}, [B]),
        ),
    ),
    ("Gemini", "calls in one chunk", "omnigent-ai/omnigent/pull/28", "gemini", gemini([ONE, TWO])),
    ("Gemini", "another responseId in each chunk", "made up", "gemini", gemini([ONE], [TWO], ids="ab")),
]
"""Server, shape, source, API, and a stream that calls `find` and `send`."""

REFUSED: list[tuple[str, str, str, str, list[Json]]] = [
    (
        "Gemini",
        "arguments in a chunk without a name",
        "smallmain/vscode-unify-chat-provider/pull/49",
        "gemini",
        gemini([{"name": "find", "args": {}}], [{"args": FIND[1]}], [TWO]),
    ),
    (
        "Gemini",
        "a second candidate",
        "made up",
        "gemini",
        gemini([ONE], others=[{"index": 1, "content": {"parts": [{"functionCall": TWO}]}}]),
    ),
    (
        "a proxy",
        "a second choice",
        "made up",
        "chat",
        chat(
            first=[
                {"id": "a", "choices": [{"index": 1, "delta": {"tool_calls": [{"index": 0, "function": X}]}}]}
            ]
        ),
    ),
    (
        "a proxy",
        "a call in the place of a list",
        "made up",
        "chat",
        chat(first=[{"id": "a", "choices": [{"index": 0, "delta": {"tool_calls": fn("find", A)}}]}]),
    ),
    (
        "Gemini",
        "a second candidate beside the first",
        "made up",
        "gemini",
        [
            {
                "candidates": [
                    {"index": 0, "content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"},
                    {"index": 1, "content": {"parts": [{"functionCall": TWO}]}},
                ]
            }
        ],
    ),
    (
        "a proxy",
        "two names without ids and arguments",
        "made up",
        "chat",
        chat(fn("fin", index=0), fn("dsend", index=0)),
    ),
    (
        "GPT-5.4 behind a proxy",
        "more arguments at one index",
        "open-webui/open-webui/pull/22235",
        "chat",
        chat({"index": 0, "id": "b", "function": X}, fn(arguments=A, index=0)),
    ),
]
"""The same, of streams that leave open what is called."""


def executed(form: str, text: str) -> list[Call]:
    """Return the calls that the client of an API makes of a stream."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    events: list[Json] = [json.loads(line) for line in lines]
    parts: dict[Any, list[Any]] = {}
    for event in events:
        if form == "chat":
            for choice in event.get("choices") or ():
                for call in choice.get("delta", {}).get("tool_calls") or ():
                    known = parts.setdefault((choice["index"], call["index"]), ["", ""])
                    known[0] += call["function"].get("name") or ""
                    known[1] += call["function"].get("arguments") or ""
        elif form == "responses" and event["type"] == "response.output_item.done":
            parts[len(parts)] = [event["item"]["name"], event["item"]["arguments"]]
        elif form == "responses" and event["type"] == "response.completed":
            final = [[each["name"], each["arguments"]] for each in event["response"]["output"]]
            assert not parts or [*parts.values()] == final
            parts = dict(enumerate(final))
        elif form == "anthropic" and event["type"] == "content_block_start":
            block = event["content_block"]
            parts[event["index"]] = [block["name"], "", block.get("input")]
        elif form == "anthropic" and event["type"] == "content_block_delta":
            piece = event["delta"]["partial_json"]
            parts[event["index"]][1] += piece if isinstance(piece, str) else json.dumps(piece)
        elif form == "gemini":
            for candidate in event.get("candidates") or ():
                for part in candidate["content"].get("parts") or ():
                    if call := part.get("functionCall"):
                        parts[len(parts)] = [call.get("name"), json.dumps(call.get("args") or {})]
    return [(name, json.loads(text) if text else given[0]) for name, text, *given in parts.values()]


async def run(form: str, events: list[Json], *, allows_real: bool) -> tuple[list[Call], list[Call], bool]:
    """Send a stream byte by byte. Returns the recorded and the executed calls, and True without a fault."""
    body = b"".join(sse(each, each.get("type")) for each in events)

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        del number
        return await sent(request, [body[at : at + 1] for at in range(len(body))])

    path, asked = request_of(form, stream=True)
    mocks = {"find": bind(lambda q: {"mocked": q})}
    async with (
        gateway(provider=Faulty(answer), allows_real=allows_real) as gate,
        gate.talk(form, "a", mocks=mocks) as talk,
    ):
        response = await gate.client.post(gate.origin + path, json=asked)
        talk.turn = 0
        made = [(call.name, call.args) for call in talk.calls]
        is_well = (
            response.status_code == 200 and not talk.known.ended_by and not await talk.known.error_of(None)
        )
    assert '"find"' not in response.text
    return made, executed(form, response.text) if response.status_code == 200 else [], is_well


async def test_a_filter_without_a_delta_reaches_the_agent() -> None:
    text = {"id": "a", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi."}}]}
    end = {"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}

    async def answer(request: web.Request, _: int) -> web.StreamResponse:
        return await sent(request, [sse(each) for each in (PROMPT, text, OFFSETS, end)])

    path, asked = request_of("chat", stream=True)
    async with gateway(provider=Faulty(answer)) as gate, gate.talk("chat", "a"):
        response = await gate.client.post(gate.origin + path, json=asked)

    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    assert [*map(json.loads, lines)] == [PROMPT, text, OFFSETS, end]


def named(row: Any) -> str:
    return f"{row[0]}: {row[1]}"


@pytest.mark.parametrize("row", STREAMS, ids=named)
async def test_a_deviating_stream_is_read(row: Any) -> None:
    _, _, _, form, events = row
    assert await run(form, events, allows_real=True) == ([FIND, SEND], [SEND], True)
    made, shown, is_well = await run(form, events, allows_real=False)
    assert (made, shown, is_well) == ([FIND, SEND], [], False)


@pytest.mark.parametrize("allows_real", [True, False], ids=["passthrough", "error"])
@pytest.mark.parametrize("row", REFUSED, ids=named)
async def test_a_stream_that_leaves_its_calls_open_is_refused(row: Any, allows_real: bool) -> None:
    _, shown, is_well = await run(row[3], row[4], allows_real=allows_real)
    assert (shown, is_well) == ([], False)


async def test_arguments_of_gemini_in_pieces_are_refused() -> None:
    """Vertex streams them as paths and values, if it is asked to."""
    path, asked = request_of("gemini", stream=True)
    config = {"functionCallingConfig": {"mode": "AUTO", "streamFunctionCallArguments": True}}
    async with gateway() as gate, gate.talk("gemini", "a") as talk:
        response = await gate.client.post(gate.origin + path, json={**asked, "toolConfig": config})
        assert response.status_code == 400
        assert "streamFunctionCallArguments" in response.text
        assert await talk.known.error_of(None) is not None
