"""Failing models behind the gateway: the agent's client gets its API's errors, and nothing hangs."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import anyio
import httpx
import pytest
from aiohttp import web
from scripted_provider import FORM_OF, FORMS, ROOTS, Chat, Gemini, Provider
from test_model_gateway import Gateway, anyio_backend, gateway

__all__ = ["anyio_backend"]
from agentest.conversation.turn_progress import TurnProgress
from agentest.mocks.binding import bind
from agentest.plugins.servers.model_gateway.server import target_of
from agentest.plugins.servers.model_gateway.wire_form import sse
from agentest.plugins.servers.server_calls import ModelCalls
from agentest.support.errors import MockError
from agentest.support.http.sse import Event, EventParser
from agentest.support.redaction import Redactor

pytestmark = pytest.mark.anyio

Answer = Callable[[web.Request, int], Awaitable[web.StreamResponse]]


class Faulty(Provider):
    """A provider whose answers a test writes. It counts its requests."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.count = 0
        self._answer = answer

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.count += 1
        return await self._answer(request, self.count)


def request_of(form: str, *, stream: bool, text: str = "look one") -> tuple[str, dict[str, Any]]:
    """Return path and body of a first request."""
    made = FORM_OF[form]()
    path = made.path
    if stream and isinstance(made, Gemini):
        path = path.replace("generateContent", "streamGenerateContent") + "?alt=sse"
    return f"/{ROOTS[form]}{path}", made.request([made.user(text)], stream=stream)


BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@asynccontextmanager
async def asked(
    form: str, answer: Answer, *, stream: bool = False, mocks: dict[str, Any] | None = None
) -> AsyncIterator[tuple[httpx.Response, Gateway]]:
    bound = mocks and {name: bind(mock) for name, mock in mocks.items()}
    async with gateway(provider=Faulty(answer)) as gate, gate.talk(form, "a", mocks=bound):
        path, body = request_of(form, stream=stream)
        yield await gate.client.post(gate.origin + path, json=body), gate


def events(form: str, text: str, calls: list[tuple[str, dict[str, Any]]]) -> list[bytes]:
    """Return the events of an answer."""
    made = FORM_OF[form]()
    body = {"model": "m", "include": ["reasoning.encrypted_content"]}
    shown = made.events(made.answer(body, text, calls))
    return [sse(data, name) for name, data in shown]


async def sent(
    request: web.Request,
    pieces: list[bytes],
    kind: str = "text/event-stream",
    headers: dict[str, str] | None = None,
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": kind, **(headers or {})})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
    return response


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("form", FORMS)
async def test_an_error_of_the_model_comes_as_it_is(form: str, stream: bool) -> None:
    async def limit(_: web.Request, __: int) -> web.StreamResponse:
        return web.Response(
            status=429, text='{"error": "slow down"}', headers={"Retry-After": "7", "X-Limit": "1"}
        )

    async with asked(form, limit, stream=stream) as (response, gate):
        assert (response.status_code, response.text) == (429, '{"error": "slow down"}')
        assert (response.headers["retry-after"], response.headers["x-limit"]) == ("7", "1")
        assert gate.provider.count == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", FORMS)
async def test_an_error_after_a_stream_began_is_an_event_of_the_stream(form: str) -> None:
    async def second_fails(request: web.Request, number: int) -> web.StreamResponse:
        if number == 2:
            return web.Response(status=503, text="overloaded")
        return await sent(request, events(form, "Let me see.", [("find", {"q": "one"})]))

    async with asked(form, second_fails, stream=True) as (response, _):
        assert response.status_code == 200
        last = [line for line in response.text.splitlines() if line.startswith("data: {")][-1]
        assert "503" in last
        assert "overloaded" in last
        assert "find" not in response.text


@pytest.mark.parametrize("form", FORMS)
async def test_a_stream_that_is_cut_is_an_error_of_the_stream(form: str) -> None:
    async def cut(request: web.Request, _: int) -> web.StreamResponse:
        pieces = events(form, "A long answer.", [])
        return await sent(request, pieces[: len(pieces) // 2])

    async with asked(form, cut, stream=True) as (response, _):
        assert "ended before its last event" in response.text


@pytest.mark.parametrize("form", FORMS)
async def test_garbage_in_a_stream_passes_through_and_harms_nothing(form: str) -> None:
    async def garbage(request: web.Request, _: int) -> web.StreamResponse:
        noise = [
            b": comment\n\n",
            b"data: {not json\n\n",
            b'data: {"other": 1}\n\n',
            b"data: [1]\n\n",
            b"data: \xff\n\n",
        ]
        first, *rest = events(form, "Done.", [])
        return await sent(request, [first, *noise, *rest])

    async with asked(form, garbage, stream=True) as (response, _):
        assert response.status_code == 200
        assert "Don" in response.text
        assert "ended before" not in response.text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "{}", '{"choices": 5}', '{"output": {}, "content": 1, "candidates": "x"}']
)
async def test_an_answer_that_makes_no_sense_is_passed_on_or_an_error(form: str, text: str) -> None:
    async def nonsense(_: web.Request, __: int) -> web.StreamResponse:
        return web.Response(text=text, content_type="application/json")

    async with asked(form, nonsense) as (response, _):
        assert response.status_code in (200, 502)
        assert response.json() is not None


async def test_a_model_that_cannot_be_reached_is_named() -> None:
    async with gateway() as gate, gate.talk("chat", "a"):
        gate_settings = gate.upstream
        gate_settings["openai"] = "http://127.0.0.1:9/v1"
        path, body = request_of("chat", stream=False)
        response = await gate.client.post(gate.origin + path, json=body)

    assert response.status_code == 502
    assert (
        "cannot reach the model at http://127.0.0.1:9/v1/chat/completions"
        in response.json()["error"]["message"]
    )
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"n": 2}, "several answers"),
        ({"messages": "text"}, None),
        ({"messages": [1, None, {"role": "user"}, {"role": "assistant", "tool_calls": [3]}]}, None),
        ({"tools": [{"function": {"name": "find"}}, 7], "tool_choice": {"function": "x"}}, None),
    ],
)
async def test_requests_that_are_odd_are_passed_on_or_refused(
    change: dict[str, Any], told: str | None
) -> None:
    async with gateway() as gate, gate.talk("chat", "a"):
        _, body = request_of("chat", stream=False)
        response = await gate.client.post(
            f"{gate.origin}/openai/v1/chat/completions", json={**body, **change}
        )

    if told:
        assert told in response.json()["error"]["message"]
    assert response.status_code in (200, 400, 500)


async def test_a_request_that_is_no_json_is_refused() -> None:
    async with gateway() as gate, gate.talk("chat", "a"):
        response = await gate.client.post(f"{gate.origin}/openai/v1/chat/completions", content=b"{")

    assert response.status_code == 400
    assert "not a JSON object" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("called", "recorded"),
    [("send", "send"), ("mcp__shop__send", "send"), ("mcp__shop__find", "find"), ("mcp__shop__post",) * 2],
)
async def test_a_call_has_the_name_that_the_scenario_gives_its_tool(called: str, recorded: str) -> None:
    """So bans on tools of an MCP server hold, although its client lengthens their names."""

    async def answer(_: web.Request, number: int) -> web.StreamResponse:
        made = [] if number > 1 else [(called, {"q": "1"})]
        return web.json_response(Chat().answer({"model": "m"}, "", made))

    path, body = request_of("chat", stream=False)
    async with gateway(provider=Faulty(answer)) as gate, gate.talk("chat", "a") as talk:
        talk.known.named = {"send"}
        await gate.client.post(gate.origin + path, json=body)
        talk.turn = 0
        assert [call.name for call in talk.calls][:1] == [recorded]
        assert talk.known.plain_name(called) == (recorded if recorded in ("find", "send") else None)


SPOILED = (
    *("default_api.find", "default_api:find", "find()", '"find"', "ﬁnd", "find\u200b"),
    *("find<|channel|>commentary", "functions.Find", "tools__x/find"),
    *("ＦＩＮＤ", "𝒻ind", "f\u200bind", "fi\u00adnd", "\ufefffind"),
)
"""Names for `find` that models write, and that some agents repair."""


@BOTH_WAYS
@pytest.mark.parametrize("called", SPOILED)
async def test_a_spoiled_name_that_the_agent_does_not_offer_is_that_of_the_mock(
    called: str, stream: bool
) -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        made = [] if number > 1 else [(called, {"q": "1"})]
        if stream:
            return await sent(request, events("chat", "Done.", made))
        return web.json_response(Chat().answer({"model": "m"}, "Done.", made))

    async with asked("chat", answer, stream=stream, mocks={"find": lambda: 1}) as (response, gate):
        (known,) = gate.traffic.active
        assert await known.error_of(None) is None
    assert response.status_code == 200
    assert "Don" in response.text
    assert called not in response.text
    assert "find" not in response.text.casefold()


@pytest.mark.parametrize(
    ("called", "arguments", "is_refused"),
    [
        ("multi_tool_use.parallel", {"tool_uses": [{"recipient_name": "functions.find"}]}, True),
        ("multi_tool_use.parallel", {"tool_uses": [{"recipient_name": "functions.send"}]}, False),
        ("get_docs", {"topic": "find"}, False),
        ("look_up", {"q": "find a table"}, False),  # a text, as of a tool that the agent loads late
        ("send", {"q": "find"}, False),  # the agent offers it
    ],
)
async def test_a_call_by_which_a_mocked_tool_would_be_called_is_refused(
    called: str, arguments: dict[str, Any], is_refused: bool
) -> None:
    async def answer(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response(Chat().answer({"model": "m"}, "", [(called, arguments)]))

    async with asked("chat", answer, mocks={"find": lambda: 1}) as (response, gate):
        (known,) = gate.traffic.active
        fault = await known.error_of(None)
    assert (called in response.text and not fault) is not is_refused
    assert ("which is not offered, so mocks cannot answer" in str(fault)) is is_refused


AS_TEXT = {
    '<tool_call>{"name": "find", "arguments": {"q": "1"}}</tool_call>': True,
    '```json\n{"name" : "find" ,\n"parameters": {}}\n```': True,
    'Thought: I need it.\nAction: find\nAction Input: {"q": "1"}': True,
    '<function_calls><invoke name="find"><parameter name="q">1</parameter></invoke>': True,
    '<function=find>{"q": "1"}</function>': True,
    '{"name": "send", "arguments": {}}': False,
    '{"name": "find", "price": 3}': False,
    "Action: findings are below. I could call find for you.": False,
    "Action: find[1]": True,
    'Action:\n```\n{"action": "find", "action_input": {}}\n```': True,
    "Recommended Action: find a replacement.": False,
    'I have {"name": "find", "parameters": {"type": "object"}}': False,
    json.dumps(json.dumps({"name": "find", "arguments": {"q": 1}})): True,
    '[find(q="1"), send(q="1")]': True,
    "found = [find(q=each) for each in texts]": False,
    "found = [find(q=q) for place, q in enumerate(texts)]": False,
    '[find(q="a (b) for c")]': True,
    "See [find](https://a.example) (and more).": False,
}
"""Texts of a model, and whether some agents read a call of `find` in them."""


@BOTH_WAYS
@pytest.mark.parametrize("text", AS_TEXT)
async def test_a_call_of_a_mocked_tool_as_text_may_have_run_the_real_one(text: str, stream: bool) -> None:
    async def answer(request: web.Request, _: int) -> web.StreamResponse:
        if stream:
            return await sent(request, events("chat", text, []))
        return web.json_response(Chat().answer({"model": "m"}, text, []))

    async with asked("chat", answer, stream=stream, mocks={"find": lambda: 1}) as (_, gate):
        (known,) = gate.traffic.active
        with pytest.raises(MockError, match="call of 'find' as text") if AS_TEXT[text] else nullcontext():
            await known.end_turn()


@pytest.mark.parametrize(
    ("path", "body"),
    [("chat/completions", request_of("chat", stream=False)[1]), ("embeddings", {"input": "x"})],
)
async def test_a_model_that_switches_protocols_is_not_passed_on(path: str, body: dict[str, Any]) -> None:
    async def switch(request: web.Request, _: int) -> web.StreamResponse:
        response = web.StreamResponse(status=101, headers={"Upgrade": "websocket", "Connection": "upgrade"})
        await response.prepare(request)
        return response

    async with gateway(provider=Faulty(switch)) as gate, gate.talk("chat", "a"):
        response = await gate.client.post(f"{gate.origin}/openai/v1/{path}", json=body)
    assert response.status_code == 502
    assert "switches to a protocol that the gateway cannot read" in response.text


async def test_the_agents_key_reaches_the_model_and_nothing_of_the_gateway() -> None:
    seen: list[dict[str, str]] = []

    async def note(request: web.Request, _: int) -> web.StreamResponse:
        seen.append(dict(request.headers))
        made = Chat()
        return web.json_response(made.answer({"model": "m"}, "Done.", []))

    async with gateway(provider=Faulty(note)) as gate, gate.talk("chat", "a") as talk:
        path, body = request_of("chat", stream=False)
        await gate.client.post(
            gate.origin + path,
            json=body,
            headers={"Authorization": "Bearer hunter2hunter2", "OpenAI-Beta": "b"},
        )

        redact = Redactor()  # as a worker has one of its own
        await ModelCalls(talk.known, redact).complete(TurnProgress(0, "look one"))
        assert redact.transcript("the key hunter2hunter2") == "the key [redacted]"

    assert (seen[0]["Authorization"], seen[0]["OpenAI-Beta"]) == ("Bearer hunter2hunter2", "b")
    assert not [name for name in seen[0] if "agentest" in name.lower()]


class Odd(Provider):
    """A provider that sends answers in an odd way."""

    def __init__(self, send: Callable[[web.Request, bytes, str], Awaitable[web.StreamResponse]]) -> None:
        super().__init__()
        self._send = send

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        usual = await super()._handle(request, write=False)
        assert isinstance(usual, web.Response)
        assert isinstance(usual.body, bytes)
        return await self._send(request, usual.body, usual.headers["Content-Type"])


async def bytes_of_crlf(request: web.Request, data: bytes, kind: str) -> web.StreamResponse:
    """Send lines as Windows ends them, in pieces that part characters."""
    if "event" in kind:
        data = b": a comment\r\n\r\n" + data.replace(b"\n", b"\r\n")
    return await sent(request, [data[at : at + 1] for at in range(len(data))], kind)


async def packed(request: web.Request, data: bytes, kind: str) -> web.StreamResponse:
    whole = gzip.compress(data)
    pieces = [whole[at : at + 5] for at in range(0, len(whole), 5)]
    return await sent(request, pieces, kind, {"Content-Encoding": "gzip"})


async def mislabelled(_: web.Request, data: bytes, kind: str) -> web.StreamResponse:
    return web.Response(body=data, content_type="text/plain")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("send", [bytes_of_crlf, packed, mislabelled])
async def test_answers_may_come_in_odd_ways(send: Any, form: str, stream: bool) -> None:
    async with gateway(provider=Odd(send)) as gate, gate.talk(form, "a", stream=stream) as talk:
        await talk.say("both Grüße 🍋")
        assert "{'mocked': 'Grüße 🍋2'}" in await talk.say("recall")

    assert talk.agent.ran == [("send", {"q": "Grüße 🍋"})]


async def test_a_packed_request_reaches_the_model_unpacked() -> None:
    async def echo(request: web.Request, _: int) -> web.StreamResponse:
        packing = request.headers.get("Content-Encoding")
        return web.json_response({"choices": [{"message": {"content": f"{packing}"}}]})

    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    body = gzip.compress(json.dumps(asked).encode())
    async with gateway(provider=Faulty(echo)) as gate, gate.talk("chat", "a"):
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        url = f"{gate.origin}/openai/v1/chat/completions"
        response = await gate.client.post(url, content=body, headers=headers)

    assert response.json()["choices"][0]["message"]["content"] == "None"


async def test_an_event_of_several_lines_stays_one_event() -> None:
    [event] = EventParser().feed(sse('{"a":\n1}', "delta"))
    assert event == Event('{"a":\n1}', "delta")


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("form", FORMS)
async def test_a_model_that_hangs_up_is_to_blame(form: str, stream: bool, begins: bool) -> None:
    async def hang_up(request: web.Request, _: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "9999"})
        if begins:
            await response.prepare(request)
            for event in events(form, "A long answer.", [])[:3]:
                await response.write(event)
        assert request.transport is not None
        request.transport.close()
        return response

    async with gateway(provider=Faulty(hang_up)) as gate, gate.talk(form, "a") as talk:
        path, body = request_of(form, stream=stream)
        response = await gate.client.post(gate.origin + path, json=body)

    assert "closed before the answer was complete" in response.text
    assert await talk.known.error_of(None) is not None


async def test_what_is_passed_on_may_be_large_and_never_looks_whole_if_it_is_cut() -> None:
    async def file(request: web.Request, _: int) -> web.StreamResponse:
        if request.path.endswith("/large"):
            return web.Response(body=b"x" * 20_000_000)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"a part")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with gateway(provider=Faulty(file)) as gate, gate.talk("chat", "a"):
        large = await gate.client.get(f"{gate.origin}/openai/v1/files/large")
        with pytest.raises(httpx.HTTPError):
            await gate.client.get(f"{gate.origin}/openai/v1/files/cut")

    assert len(large.content) == 20_000_000


@pytest.mark.parametrize("form", FORMS)
async def test_a_request_without_the_token_is_refused(form: str) -> None:
    async with gateway() as gate, gate.talk(form, "a") as talk:
        path, body = request_of(form, stream=False)
        outside, _, token = gate.origin.rpartition("/")
        wrong = ("", "/lane/1", f"/c/{talk.known.who.key}", f"/{token[:-1]}", f"/{token}x", "/other")
        with talk.known.said("look one"):
            refused = [await gate.client.get(f"{outside}{path}") for path in ("/", path)]
            assert (gate.notes, talk.known.fault) == ([], None)
            refused += [await gate.client.post(f"{outside}{each}{path}", json=body) for each in wrong]
            error = await talk.known.error_of(None)
            assert (await gate.client.post(gate.origin + path, json=body)).status_code == 200
            assert await talk.known.error_of(None) is None

    assert {each.status_code for each in refused} == {403}
    assert f"_URL={outside}/<token>/{ROOTS[form]}" in refused[2].json()["error"]["message"]
    assert token not in "".join(each.text for each in refused)
    assert str(error).startswith("its address lacks the gateway's token: set ")
    assert len(gate.provider.histories) == 2


@pytest.mark.parametrize("line", ["OPTIONS *", "CONNECT HOST", "GET HOST"])
async def test_a_request_without_a_path_is_refused(line: str) -> None:
    """Proxies and scanners send them. They end no conversation."""
    async with gateway() as gate, gate.talk("chat", "a") as talk:
        host = gate.origin.split("/")[2]
        address, _, port = host.partition(":")
        async with await anyio.connect_tcp(address, int(port)) as connection:
            request = f"{line.replace('GET HOST', f'GET http://{host}').replace('HOST', host)} HTTP/1.1\r\n"
            await connection.send(f"{request}Host: {host}\r\n\r\n".encode())
            assert (await connection.receive()).startswith(b"HTTP/1.1 403 ")
        assert (gate.notes, await talk.known.error_of(None)) == ([], None)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_several_answers_to_one_request_all_reach_the_agent(stream: bool) -> None:
    choices = [
        {"index": at, key: {"content": f"answer {at}"}, "finish_reason": "stop"}
        for at, key in enumerate(["delta" if stream else "message"] * 2)
    ]

    async def answer(request: web.Request, _: int) -> web.StreamResponse:
        if stream:
            return await sent(request, [*(sse({"choices": [each]}) for each in choices), sse("[DONE]")])
        return web.json_response({"choices": choices})

    async with gateway(provider=Faulty(answer)) as gate, gate.talk("chat", "a") as talk:
        body = {"n": 2, "stream": stream, "messages": [{"role": "user", "content": "hello"}]}
        response = await gate.client.post(f"{gate.origin}/openai/v1/chat/completions", json=body)
        (request,) = (await talk.known.end_turn()).model_requests

    assert "answer 0" in response.text
    assert "answer 1" in response.text
    assert request.status == 200


@BOTH_WAYS
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["find", "send"])
async def test_a_mocked_call_never_leaves_in_an_answer_that_belongs_to_no_conversation(
    form: str, stream: bool, name: str
) -> None:
    """Requests with stored prompts offer no tools, and are answered with calls all the same."""
    provider = Provider(lambda _: ("Let me see.", [(name, {"q": "one"})]))
    path, body = request_of(form, stream=stream)
    del body["tools"]
    async with (
        gateway(provider=provider) as gate,
        gate.talk(form, "a") as first,
        gate.talk(form, "b", mocks={}) as second,
    ):
        response = await gate.client.post(gate.origin + path, json={**body, "prompt": {"id": "p"}})
        for talk in (first, second):
            assert talk.serving.doubt_of(0)
            assert talk.calls == ()

    assert (f'"{name}"' in response.text) is (name == "send")
    if name == "find":
        assert "Agentest refuses a call of 'find'" in response.text
        assert response.status_code == (200 if stream else 409)
        assert any("refuses a call of 'find'" in note for note in gate.notes)


async def test_an_answer_that_belongs_to_no_conversation_may_call_any_tool_if_nothing_is_guarded() -> None:
    provider = Provider(lambda _: ("", [("find", {"q": "one"})]))
    async with gateway(provider=provider) as gate:
        path, body = request_of("chat", stream=False)
        response = await gate.client.post(gate.origin + path, json=body)

    assert '"find"' in response.text


CALLED = {"tool_calls": [{"id": "c", "function": {"name": "find", "arguments": "{}"}}]}
LATE_CALL = {"type": "function_call", "call_id": "c", "name": "find", "arguments": "{}"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("openai/v1/threads/t/runs", {"assistant_id": "a"}),
        ("openai/v1/chat/completions", {"n": 2, "messages": []}),
        ("openai/v1/responses", {"background": True, "input": "hello"}),
        ("google/v1beta/models/m:streamGenerateContent", {"contents": []}),
        ("google/v1beta/models/m:generateContent", {"generationConfig": {"candidateCount": 2}}),
    ],
)
async def test_a_call_in_an_answer_that_is_not_read_does_not_leave(path: str, body: dict[str, Any]) -> None:
    async def answer(request: web.Request, _: int) -> web.StreamResponse:
        return web.json_response(CALLED)

    async with gateway(provider=Faulty(answer)) as gate, gate.talk("chat", "a") as talk:
        response = None
        with suppress(httpx.RemoteProtocolError):
            response = await gate.client.post(f"{gate.origin}/{path}", json=body)
        assert await talk.known.error_of(None) is not None

    assert response is None or (
        response.status_code == 502
        and "the gateway blocked a model response with tool calls" in response.text
    )


async def test_a_stored_prompt_in_the_background_is_refused() -> None:
    async with gateway() as gate, gate.talk("responses", "a") as talk:
        body = {"background": True, "prompt": {"id": "p"}, "input": "look one"}
        response = await gate.client.post(f"{gate.origin}/openai/v1/responses", json=body)
        assert await talk.known.error_of(None) is not None

    assert response.status_code == 400
    assert "runs in the background" in response.text


def gemini_of(*candidates: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "candidates": [
            {"index": at, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
            for at, parts in enumerate(candidates)
        ]
    }


GEMINI_CALL = {"functionCall": {"name": "find", "args": {"q": "one"}}}
USAGE = {"input_tokens": 1, "output_tokens": 1}
CREATED = {"type": "response.created", "response": {"id": "r", "output": []}}
ADDED = {"type": "response.output_item.added", "output_index": 0, "item": {**LATE_CALL, "name": ""}}
COMPLETED = {
    "type": "response.completed",
    "response": {"id": "r", "output": [LATE_CALL], "usage": USAGE},
}
THOUGHT = {"type": "reasoning", "id": "rs", "summary": []}
FINISH: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
DEVIATING: dict[str, tuple[str, Any]] = {
    "a second choice": ("chat", {"choices": [{"message": {"content": "a"}}, {"message": CALLED}]}),
    "function_call instead of tool_calls": (
        "chat",
        {"choices": [{"message": {"function_call": {"name": "find", "arguments": "{}"}}}]},
    ),
    "one call that is not in a list": (
        "chat",
        {"choices": [{"message": {"tool_calls": CALLED["tool_calls"][0]}}]},
    ),
    "calls in the message of a chunk": (
        "chat",
        [{"choices": [{**FINISH, "message": CALLED}]}],
    ),
    "a second choice of a stream": (
        "chat",
        [{"choices": [{"index": 1, "delta": CALLED}]}, {"choices": [FINISH]}],
    ),
    "a piece of a call of a second choice": (
        "chat",
        [
            {"choices": [{"index": 1, "delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]},
            {"choices": [FINISH]},
        ],
    ),
    "function_call in a stream": (
        "chat",
        [{"choices": [{"index": 0, "delta": {"function_call": {"name": "find"}}}]}, {"choices": [FINISH]}],
    ),
    "text in parts": (
        "chat",
        [
            {"choices": [{"index": 0, "delta": {"content": [{"type": "text", "text": "a"}], **CALLED}}]},
            {"choices": [FINISH]},
        ],
    ),
    "arguments as an object": (
        "chat",
        {"choices": [{"message": {"tool_calls": [{"function": {"name": "find", "arguments": {"q": "a"}}}]}}]},
    ),
    "created and completed only": ("responses", [CREATED, COMPLETED]),
    "a name that only the end has": ("responses", [CREATED, ADDED, COMPLETED]),
    "an end without the reasoning": (
        "responses",
        [
            CREATED,
            {"type": "response.output_item.done", "output_index": 0, "item": THOUGHT},
            {"type": "response.output_item.done", "output_index": 1, "item": LATE_CALL},
            COMPLETED,
        ],
    ),
    "an end with another call": (
        "responses",
        [
            CREATED,
            {"type": "response.output_item.done", "output_index": 0, "item": {**LATE_CALL, "name": "send"}},
            COMPLETED,
        ],
    ),
    "arguments of a response as an object": (
        "responses",
        {"id": "r", "output": [{**LATE_CALL, "arguments": {"q": "one"}}]},
    ),
    "arguments of a streamed response as an object": (
        "responses",
        [
            CREATED,
            ADDED,
            {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": {"q": "one"}},
            {
                "type": "response.output_item.done",
                "output_index": 0,
                "item": {**LATE_CALL, "arguments": {"q": "one"}},
            },
            COMPLETED,
        ],
    ),
    "streamed input as an object": (
        "anthropic",
        [
            {"type": "message_start", "message": {"id": "m", "usage": USAGE}},
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "tool_use", "id": "t", "name": "find", "input": {}},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": {"q": "one"}},
            },
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": USAGE},
        ],
    ),
    "bare names, the first of no offered tool": (
        "chat",
        [
            *(
                {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": n}}]}}]}
                for n in ("bo", "find")
            ),
            {"choices": [FINISH]},
        ],
    ),
    "another key of a delta": (
        "chat",
        [
            {"choices": [{"delta": {"functionCalls": [{"name": "find", "arguments": "{}"}]}}]},
            {"choices": [FINISH]},
        ],
    ),
    "a second candidate": ("gemini", gemini_of([{"text": "a"}], [GEMINI_CALL])),
    "a second candidate of a stream": ("gemini", [gemini_of([{"text": "a"}], [GEMINI_CALL])]),
    "a candidate by itself": (
        "gemini",
        [{"candidates": [{"index": 1, "content": {"parts": [GEMINI_CALL]}}]}, gemini_of([{"text": "a"}])],
    ),
    "a snake": (
        "gemini",
        gemini_of([{"function_call": {"name": "find", "args": {"q": "one"}}}]),
    ),
}


@pytest.mark.parametrize("name", DEVIATING)
async def test_what_deviates_is_read_or_refused(name: str) -> None:
    form, shape = DEVIATING[name]
    stream = isinstance(shape, list)

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        if number > 1:
            usual = events(form, "Done.", []) if stream else []
            whole = FORM_OF[form]().answer({"model": "m"}, "Done.", [])
            return await sent(request, usual) if stream else web.json_response(whole)
        if stream:
            return await sent(request, [sse(each, each.get("type")) for each in shape])
        return web.json_response(shape)

    async with asked(form, answer, stream=stream, mocks={"find": lambda: 1}) as (response, gate):
        (known,) = gate.traffic.active
        turn = await known.end_turn()
        calls = [(each.name, each.answered_inside) for one in turn.model_requests for each in one.calls]
        fault = await known.error_of(None)

    assert '"find"' not in response.text
    assert fault is not None or calls or "second candidate of a stream" in name
    assert ("find", False) not in calls or fault is not None
    assert "bofind" not in response.text
    if name == "an end without the reasoning":
        assert (calls, fault) == ([("find", True)], None)
    if name == "a candidate by itself":
        assert fault is not None


WHOLE_CALL = '{"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}'
TWICE = '{"id": "c", "type": "function", "function": {"name": "find", "name": "send", "arguments": "{}"}}'
ESCAPED = r'"tool\u005fcalls": [{"functio\u006e": {"name": "find", "arguments": "{}"}}]'
SAYS = '{"index": 0, "finish_reason": "stop", "message": {"content": "a"'
DISGUISED = {
    "calls twice": ("chat", f'{{"choices": [{SAYS}, "tool_calls": [{WHOLE_CALL}], "tool_calls": null}}}}]}}'),
    "a name twice": ("chat", f'{{"choices": [{SAYS}, "tool_calls": [{TWICE}]}}}}]}}'),
    "choices twice": (
        "chat",
        f'{{"choices": [{SAYS}, "tool_calls": [{WHOLE_CALL}]}}}}], "choices": [{SAYS}}}}}]}}',
    ),
    "escapes": ("chat", f'{{"choices": [{SAYS}}}}}, {{"index": 1, "message": {{{ESCAPED}}}}}]}}'),
    "UTF-16": (
        "chat",
        f'{{"choices": [{SAYS}}}}}, {{"index": 1, "message": {{"tool_calls": [{WHOLE_CALL}]}}}}]}}',
    ),
    "a type twice": (
        "anthropic",
        '{"content": [{"type": "tool_use", "type": "text", "text": "a", "name": "find"}], "usage": {}}',
    ),
    "another key": ("chat", f'{{"choices": [{SAYS}, "function_calls": [{WHOLE_CALL}]}}}}]}}'),
    "another place": (
        "chat",
        f'{{"choices": [{SAYS}, "messages": [{{"tool_calls": [{WHOLE_CALL}]}}]}}}}]}}',
    ),
    "another case": (
        "anthropic",
        '{"content": [{"type": "text", "text": "a"}], "toolUse": {"name": "find", "input": {}}, "usage": {}}',
    ),
    "output twice": (
        "responses",
        '{"output": [{"type": "function_call", "name": "find", "arguments": "{}"}], "output": []}',
    ),
}
"""Calls in JSON that parsers read in several ways, that its bytes do not show, or at places of no API."""


COPIES: dict[str, tuple[str, Any]] = {
    "its request": (
        "responses",
        {
            "output": [{"type": "message", "role": "assistant", "content": []}],
            "tools": [{"type": "function", "name": "find", "parameters": {"tool_calls": {}}}],
            "instructions": [{"type": "function_call", "name": "find", "arguments": "{}"}],
            "prompt": {"variables": {"tool_use": {"type": "input_text", "text": "a"}}},
            "text": {"format": {"schema": {"properties": {"tool_calls": {"type": "array"}}}}},
        },
    ),
    "a search by Google": (
        "gemini",
        gemini_of([{"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "args": {}, "id": "a"}}, {"text": "a"}]),
    ),
    "text": (
        "chat",
        {"choices": [{"message": {"content": '{"tool_calls": [{"type": "tool_use"}]}', "tool_calls": []}}]},
    ),
}
"""Answers without a call of the agent's tools that contain what looks like one."""


@pytest.mark.parametrize("name", COPIES)
async def test_what_only_looks_like_a_call_is_passed_on(name: str) -> None:
    form, body = COPIES[name]

    async def answer(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response(body)

    async with asked(form, answer, mocks={"find": lambda: 1}) as (response, gate):
        (known,) = gate.traffic.active
        assert (response.json(), await known.error_of(None)) == (body, None)


@pytest.mark.parametrize("name", DISGUISED)
async def test_a_disguised_call_never_reaches_the_agent(name: str) -> None:
    form, text = DISGUISED[name]

    async def answer(request: web.Request, _: int) -> web.StreamResponse:
        body = text.encode("utf-16" if name == "UTF-16" else "utf-8")
        return await sent(request, [body], "application/json")

    async with asked(form, answer, mocks={"find": lambda: 1}) as (response, gate):
        (known,) = gate.traffic.active
        fault = str(await known.error_of(None))

    assert response.status_code == 502
    assert "blocked a model response with tool calls" in fault


async def test_a_disguised_call_in_a_stream_never_reaches_the_agent() -> None:
    first = '{"choices": [{"index": 0, "delta": {"content": "a"}}]}'
    second = f'{{"choices": [{{"index": 1, "delta": {{{ESCAPED}}}}}]}}'

    async def answer(request: web.Request, _: int) -> web.StreamResponse:
        return await sent(request, [f"data: {each}\n\n".encode() for each in (first, second)])

    async with asked("chat", answer, stream=True, mocks={"find": lambda: 1}) as (response, gate):
        (known,) = gate.traffic.active
        assert await known.error_of(None) is not None

    assert '"name": "find"' not in response.text


async def test_a_call_in_an_unknown_api_is_found_in_any_pieces() -> None:
    pieces = [b'data: {"tool', rb"\u00", b'5fcalls"', *[b" "] * 300, b"\ndata: :", b"[", b"{}]}\n\n"]

    async def answer(request: web.Request, _: int) -> web.StreamResponse:
        return await sent(request, pieces)

    async with gateway(provider=Faulty(answer)) as gate, gate.talk("chat", "a") as talk:
        with suppress(httpx.HTTPError):  # unless all pieces came at once, the response had begun
            response = await gate.client.post(f"{gate.origin}/openai/v1/other", json={"prompt": "look one"})
            assert response.status_code == 502
        assert await talk.known.error_of(None) is not None


async def test_a_call_of_a_session_that_its_client_runs_never_reaches_the_agent() -> None:
    """As Anthropic's managed agents hand over calls of custom tools (anthropic 2.14, types/beta/sessions)."""
    event = {"type": "agent.custom_tool_use", "id": "e", "name": "find", "input": {"q": "one"}}

    async def answer(request: web.Request, _: int) -> web.StreamResponse:
        return await sent(request, [f"event: message\ndata: {json.dumps(event)}\n\n".encode()])

    async with gateway(provider=Faulty(answer)) as gate, gate.talk("anthropic", "a") as talk:
        with suppress(httpx.HTTPError):  # unless all pieces came at once, the response had begun
            path = "anthropic/v1/sessions/s/events/stream"
            assert (await gate.client.get(f"{gate.origin}/{path}")).status_code == 502
        assert await talk.known.error_of(None) is not None


async def test_arguments_that_have_a_key_twice_are_recorded_as_they_came() -> None:
    arguments = '{"q": "a", "q": "b"}'
    call = {"id": "c", "type": "function", "function": {"name": "send", "arguments": arguments}}

    async def answer(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response({"choices": [{"message": {"tool_calls": [call]}}]})

    async with (
        gateway(provider=Faulty(answer)) as gate,
        gate.talk("chat", "a", mocks={"find": bind(lambda: 1)}) as talk,
    ):
        path, body = request_of("chat", stream=False)
        response = await gate.client.post(gate.origin + path, json=body)
        talk.turn = 0
        (made,) = talk.calls

    assert made.args == arguments
    assert made.invalid_arguments is not None
    assert response.json()["choices"][0]["message"]["tool_calls"] == [call]


ECHOED = [
    {"type": "function", "name": name, "parameters": {"properties": {name: {"type": "object"}}}}
    for name in ("tool_calls", "function_call", "functionCall")
]
SCHEMA = {"format": {"type": "json_schema", "schema": {"properties": {"tool_calls": {"type": "array"}}}}}
SEND = {"id": "c", "type": "function", "function": {"name": "send", "arguments": "{}"}}
COPY = {
    "tool_calls": None,
    "provider_specific_fields": {"tool_calls": [SEND], "function_call": {"name": "send"}},
}
ECHO = {"id": "r", "tools": ECHOED, "text": SCHEMA, "usage": USAGE, "tool_calls": None}


@BOTH_WAYS
@pytest.mark.parametrize("called", [[], ["send"]], ids=["text", "call"])
async def test_what_an_answer_repeats_of_its_request_is_no_call(
    called: tuple[str, ...], stream: bool
) -> None:
    output = [{**LATE_CALL, "name": name} for name in called]

    async def answer(request: web.Request, _: int) -> web.StreamResponse:
        if not stream:
            return web.json_response({**ECHO, "output": output})
        begun = {"type": "response.created", "response": {**ECHO, "output": []}}
        ended = {"type": "response.completed", "response": {**ECHO, "output": output}}
        return await sent(request, [sse(each, each["type"]) for each in (begun, ended)])

    async with asked("responses", answer, stream=stream) as (response, gate):
        (known,) = gate.traffic.active
        (request,) = (await known.end_turn()).model_requests
        assert await known.error_of(None) is None

    assert response.status_code == 200
    assert "Agentest" not in response.text
    assert "blocked" not in response.text
    assert [each.name for each in request.calls] == called


@BOTH_WAYS
async def test_empty_keys_and_copies_of_proxies_are_no_further_calls(stream: bool) -> None:
    async def answer(request: web.Request, _: int) -> web.StreamResponse:
        message = {"content": None, **COPY, "tool_calls": [SEND]}
        if not stream:
            return web.json_response({**COPY, "choices": [{**COPY, "message": message}]})
        first = {"choices": [{"index": 0, "delta": {**COPY, "content": "a"}}]}
        second = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **SEND}]}}]}
        return await sent(request, [sse(each) for each in (first, second, {"choices": [FINISH]})])

    async with asked("chat", answer, stream=stream) as (response, gate):
        (known,) = gate.traffic.active
        (request,) = (await known.end_turn()).model_requests
        assert await known.error_of(None) is None

    assert response.status_code == 200
    assert [each.name for each in request.calls] == ["send"]


STORED = {"object": "list", "data": [{**LATE_CALL, "name": "send"}, LATE_CALL], "tools": ECHOED}
STORED_ITEMS = "openai/v1/conversations/conv_1/items"
READ_AGAIN = [
    ("GET", STORED_ITEMS, 200),
    ("POST", STORED_ITEMS, 200),
    ("GET", "openai/v1/responses/resp_1?include=x", 200),
    ("GET", "openai/v1/responses/resp_1/input_items", 200),
    ("GET", "azure/openai/v1/responses/resp_1", 200),
    ("GET", "openai/v1/chat/completions?limit=2", 200),
    ("POST", "openai/v1/conversations/conv_1", 502),
    ("POST", "openai/v1/responses/resp_1", 502),
    ("GET", "openai/v1/threads/t/runs/r", 502),
    ("GET", "anthropic/v1/messages/batches/b/results", 502),
]


@pytest.mark.parametrize(("method", "path", "status"), READ_AGAIN)
async def test_a_history_that_is_read_again_may_have_calls(method: str, path: str, status: int) -> None:
    async def answer(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response(STORED)

    async with gateway(provider=Faulty(answer)) as gate, gate.talk("responses", "a") as talk:
        gate.upstream["azure"] = gate.upstream["anthropic"]
        body = {"items": [LATE_CALL]} if method == "POST" else None
        response = await gate.client.request(method, f"{gate.origin}/{path}", json=body)
        assert response.status_code == status
        assert (response.json() == STORED) is (status == 200)
        assert (await talk.known.error_of(None) is None) is (status == 200)


@pytest.mark.parametrize("cut", range(1, 16))
async def test_a_call_that_comes_in_two_pieces_does_not_leave(cut: int) -> None:
    received = anyio.Event()

    async def answer(request: web.Request, _: int) -> web.StreamResponse:
        data = json.dumps(CALLED).encode()
        response = await sent(request, [data[:cut]], "application/json")
        await received.wait()
        await response.write(data[cut:])
        return response

    read = b""
    async with gateway(provider=Faulty(answer)) as gate, gate.talk("chat", "a"):
        with suppress(httpx.RemoteProtocolError):
            async with gate.client.stream("POST", f"{gate.origin}/openai/v1/threads/t/runs") as response:
                async for piece in response.aiter_bytes():
                    read += piece
                    received.set()

    assert b"find" not in read


@BOTH_WAYS
@pytest.mark.parametrize("away", ["", "http://localhost:9"])
async def test_a_redirect_of_the_model_is_followed_inside_on_the_same_host_only(
    stream: bool, away: str
) -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        if number == 1:
            raise web.HTTPTemporaryRedirect(f"{away}/v2/chat/completions")
        assert request.path == "/v2/chat/completions"
        calls = [("find", {"q": "one"})] if number == 2 else []
        if stream:
            return await sent(request, events("chat", "Done.", calls))
        return web.json_response(Chat().answer({"model": "m"}, "Done.", calls))

    async with asked("chat", answer, stream=stream) as (response, gate):
        (known,) = gate.traffic.active
        assert (await known.error_of(None) is None) is (not away)
    assert '"find"' not in response.text
    assert response.status_code == (502 if away else 200)
    assert ("redirects to another host" in response.text) is bool(away)
    assert ("Don" in response.text) is (not away)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_blocked_prompt_is_an_answer(stream: bool) -> None:
    refusal = {"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": "m"}

    async def block(request: web.Request, _: int) -> web.StreamResponse:
        return await sent(request, [sse(refusal)]) if stream else web.json_response(refusal)

    async with asked("gemini", block, stream=stream) as (response, _):
        assert json.loads(response.text.removeprefix("data: ")) == refusal


@pytest.mark.parametrize(
    ("path", "upstream"),
    [
        ("/openai/v1//chat/completions", "/v1/chat/completions"),
        ("/openai/v1/v1/responses/?a=b", "/v1/responses?a=b"),
        ("//anthropic//v1/v1/messages", "/v1/messages"),
        ("/google/v1beta/v1beta/models/m:generateContent", "/v1beta/models/m:generateContent"),
        ("/google/v1beta/tunedModels/m:streamGenerateContent", "/v1beta/tunedModels/m:streamGenerateContent"),
        ("/google/v1/projects/p/endpoints/7:generateContent", "/v1/projects/p/endpoints/7:generateContent"),
    ],
)
def test_addresses_may_have_slashes_and_versions_too_many(path: str, upstream: str) -> None:
    path, _, query = path.partition("?")
    target = target_of(path, query, dict.fromkeys(("openai", "anthropic", "google"), "http://model"))

    assert target.url == f"http://model{upstream}"
    assert target.form is not None
    threads = target_of("/openai/v1/threads/t/messages", "", {})
    assert threads.form is None


@pytest.mark.parametrize("path", ["models/a%2Fb", "files/a%23b", "files//a%3Fb/", "files/%C3%A4?q=a%26b%2Bc"])
async def test_paths_travel_as_they_came(path: str) -> None:
    async def echo(request: web.Request, _: int) -> web.StreamResponse:
        return web.Response(text=request.raw_path)

    async with gateway(provider=Faulty(echo)) as gate:
        response = await gate.client.get(f"{gate.origin}/openai/v1/{path}")

    assert response.text == f"/v1/{path}"


@pytest.mark.parametrize("path", ["/../admin", "/files/%2e%2e/admin", "/files/..%2F..%2Fadmin", "/./files"])
def test_paths_stay_inside_the_base(path: str) -> None:
    with pytest.raises(ValueError, match="send it without"):
        target_of(f"/openai/v1{path}", "", {"openai": "http://model"})


async def test_a_refused_path_blames_the_conversation_that_it_names() -> None:
    async with gateway(lanes=2) as gate, gate.talk("chat", "a") as first, gate.talk("chat", "b") as second:
        path, body = request_of("chat", stream=False)
        for prefix, blamed in (
            (f"/c/{first.known.who.key}", [True, False]),
            (f"/lane/{second.known.lane}", [False, True]),
            ("/c/%2e%2e", [True, True]),
            ("", [True, True]),
        ):
            with first.known.said("look one"), second.known.said("look one"):
                refused = await gate.client.post(f"{gate.origin}{prefix}/%2e%2e{path}", json=body)
                errors = [await each.known.error_of(None) for each in (first, second)]
                for each in (first, second):  # the next request is answered
                    address = f"{gate.origin}/c/{each.known.who.key}{path}"
                    assert (await gate.client.post(address, json=body)).status_code == 200
            assert refused.status_code == 404
            assert [error is not None for error in errors] == blamed, prefix


def test_an_escaped_address_of_a_model_is_read() -> None:
    target = target_of("/google/v1beta/models%2Fm%3AgenerateContent", "", {"google": "http://model"})
    assert target.form is not None
    assert target.url == "http://model/v1beta/models%2Fm%3AgenerateContent"


@pytest.mark.parametrize("form", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_tools_that_take_a_text_are_mocked(form: str, stream: bool) -> None:
    def custom(value: Any) -> Any:
        """Turn the calls of functions into calls of such tools."""
        if isinstance(value, list):
            return [custom(each) for each in value]
        if not isinstance(value, dict):
            return value
        changed = {
            {"function": "custom", "arguments": "input"}.get(key, key): custom(each)
            for key, each in value.items()
        }
        kinds = {"function": "custom", "function_call": "custom_tool_call"}
        kind = str(changed.get("type"))
        kinds |= {
            f"response.function_call_arguments.{end}": f"response.custom_tool_call_input.{end}"
            for end in ("delta", "done")
        }
        return {**changed, "type": kinds.get(kind, kind)} if "type" in changed else changed

    bodies: list[dict[str, Any]] = []

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        bodies.append(await request.json())
        made = FORM_OF[form]()
        calls = [("find", {"q": "x"})] if number == 1 else []
        body = made.answer({"model": "m", "include": ["reasoning.encrypted_content"]}, "Done.", calls)
        if stream:
            return await sent(request, [sse(custom(data), name) for name, data in made.events(body)])
        return web.json_response(custom(body))

    async with (
        gateway(provider=Faulty(answer)) as gate,
        gate.talk(form, "a", mocks={"find": bind(lambda input: f"found {input}")}) as talk,
    ):
        talk.turn = 0
        path, body = request_of(form, stream=stream)
        response = await gate.client.post(gate.origin + path, json=custom(body))

    (call,) = talk.calls
    assert call.args == {"input": '{"q": "x"}'}
    assert "input" not in response.text.replace("input_tokens", "")
    result = (bodies[1].get("messages") or bodies[1]["input"])[-1]
    assert result.get("type", "") in ("", "custom_tool_call_output")
    assert "found" in str(result)


@pytest.mark.parametrize("data", [b"{not json", b"[1]"], ids=["garbage", "a list"])
async def test_a_request_that_the_model_would_refuse_reached_the_gateway(data: bytes) -> None:
    """Its agent knows the gateway's address, and is judged by what it makes of the error."""
    async with gateway(provider=Provider()) as gate, gate.talk("chat", "a") as talk:
        refused = await gate.client.post(gate.origin + "/openai/v1/chat/completions", content=data)
        await talk.known.end_turn()

    assert refused.status_code == 400
    assert "the request is not " in refused.json()["error"]["message"]
