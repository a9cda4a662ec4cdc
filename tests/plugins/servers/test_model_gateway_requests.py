"""What a turn stores of the requests to its agent's model."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from aiohttp import web
from scripted_provider import Chat, Refused
from test_model_gateway import BOTH_WAYS, EACH_FORM, Gateway, anyio_backend, gateway
from test_model_gateway_faults import Faulty

from agentest.conversation.turn_progress import busy_ms
from agentest.domain.transcript import ModelRequest, Usage
from agentest.plugins.protocols.model_messages import instructions_of
from agentest.plugins.servers.model_gateway.request_log import MOST_CHARS, MOST_PROMPT_CHARS, RequestLog
from agentest.plugins.servers.model_gateway.wire_form import WireRequest
from agentest.support.lazy_dataclasses import replace
from agentest.support.redaction import Redactor

__all__ = ["anyio_backend"]
pytestmark = pytest.mark.anyio

REQUEST = WireRequest(body={}, streams=False)


def calls_of(request: ModelRequest) -> list[tuple[str, str, bool]]:
    return [(call.name, call.args, call.answered_inside) for call in request.calls]


def prompt_of(request: ModelRequest) -> str:
    return "\n".join(message.text for message in request.prompt)


@EACH_FORM
@BOTH_WAYS
async def test_each_request_has_what_was_new_and_what_was_answered(form: str, stream: bool) -> None:
    async with gateway() as gate, gate.talk(form, "a", stream=stream) as talk:
        await talk.say("look one")
        first = await talk.known.end_turn()
        await talk.say("both two")
        second = await talk.known.end_turn()
        assert (await talk.known.end_turn()).model_requests == ()

    outer, inner = first.model_requests
    assert [outer.round, inner.round] == [0, 1]
    assert prompt_of(outer) == "look one"
    assert outer.prompt[-1].role == "user"
    assert calls_of(outer) == [("find", '{"q": "one"}', True)]
    assert "mocked" in prompt_of(inner)
    assert "look one" not in prompt_of(inner)
    assert (inner.answer, inner.calls, inner.status, inner.error) == ("Done.", (), 200, None)
    assert outer.model == "m"  # which Gemini has in the address

    mixed, after, last = second.model_requests
    assert [mixed.round, after.round, last.round] == [0, 0, 1]
    assert prompt_of(mixed) == "both two"
    assert mixed.answer == "Let me see."
    assert calls_of(mixed) == [("find", '{"q": "two"}', True), ("send", '{"q": "two"}', False)]
    assert "mocked" in prompt_of(after)
    assert "real" in prompt_of(after)
    assert calls_of(after) == [("find", '{"q": "two2"}', True)]
    assert last.answer == "Done."
    assert sum((each.usage for each in second.model_requests), Usage()) == second.usage
    assert second.model_calls == 3
    assert mixed.begin_ms <= after.begin_ms <= last.begin_ms


@EACH_FORM
async def test_a_refusal_of_the_model_is_a_request_with_its_status(form: str) -> None:
    async def refuse(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response({"error": {"message": "slow down, key-of-hunter2"}}, status=429)

    async with gateway(provider=Faulty(refuse)) as gate:
        gate.traffic.redact = Redactor(["key-of-hunter2"])
        async with gate.talk(form, "a") as talk:
            with pytest.raises(Refused):
                await talk.say("look one")
            traces = await talk.known.end_turn()

    (request,) = traces.model_requests
    assert (request.status, request.answer, request.calls) == (429, "", ())
    assert "slow down, [redacted]" in (request.error or "")
    assert traces.model_calls is None


async def test_a_cut_answer_is_an_error_of_the_request() -> None:
    async def cut(request: web.Request, _: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"index": 0, "delta": {"content": "Hel"}}]}\n\n')
        return response

    async with gateway(provider=Faulty(cut)) as gate, gate.talk("chat", "a") as talk:
        await post(gate, "hi", stream=True)
        (request,) = (await talk.known.end_turn()).model_requests
    assert request.error == "the model's stream ended before its last event"


async def test_credentials_beside_the_messages_are_known_whatever_was_sent_before() -> None:
    async with gateway() as gate, gate.talk("chat", "a"):
        for text, key in (("hi", "key-of-hunter1"), ("hi", "key-of-hunter2"), ("more", "key-of-hunter2")):
            gate.traffic.state.keys.clear()
            await post(gate, text, metadata={"api_key": key})
            assert gate.traffic.state.keys == {key}


async def post(gate: Gateway, text: str, **more: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
    return await gate.client.post(f"{gate.origin}/openai{Chat.path}", json=body)


# --- prompts


def new_in(log: RequestLog, *messages: dict[str, Any], **body: Any) -> list[tuple[str, str]]:
    """Send a request. Returns role and text of its new messages."""
    with log.under_way({"messages": [*messages], **body}, 0, replace(REQUEST, told=instructions_of(body))):
        pass
    (request,) = log.end_turn()
    return [(message.role, message.text) for message in request.prompt]


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def test_only_messages_that_no_earlier_request_had_are_new() -> None:
    log = RequestLog()
    told, hi, hello = message("system", "Be brief."), message("user", "Hi"), message("assistant", "Hello.")
    assert new_in(log, told, hi) == [("system", "Be brief."), ("user", "Hi")]
    assert new_in(log, told, hi) == []
    assert new_in(log, told, hi, hello, message("user", "More")) == [("user", "More")]
    now = message("system", "It is 9:01.")
    assert new_in(log, now, hi, hello, message("user", "More"), message("tool", "7")) == [
        ("system", "It is 9:01."),
        ("tool", "7"),
    ]


def test_sub_agents_have_histories_of_their_own() -> None:
    log = RequestLog()
    main, helper = message("user", "Plan a trip"), message("user", "Find a hotel")
    new_in(log, main)
    assert new_in(log, helper) == [("user", "Find a hotel")]
    assert new_in(log, main, message("assistant", "…"), message("tool", "ok")) == [("tool", "ok")]


def test_instructions_of_each_api_are_part_of_the_prompt() -> None:
    user = message("user", "Hi")
    assert new_in(RequestLog(), user, system="S") == [("system", "S"), ("user", "Hi")]
    blocks = [{"type": "text", "text": "S"}]
    assert new_in(RequestLog(), user, system=blocks) == [("system", "S"), ("user", "Hi")]
    parts = {"parts": [{"text": "S"}]}
    assert new_in(RequestLog(), user, systemInstruction=parts) == [("system", "S"), ("user", "Hi")]


def test_long_prompts_keep_their_last_messages() -> None:
    log = RequestLog(redact=Redactor(["key-of-hunter2"]))
    long = "x" * (MOST_CHARS - 5) + " key-of-hunter2"
    messages = [message("user", f"{n} {long}") for n in range(5)]
    with log.under_way({"messages": [*messages, message("user", "key-of-hunter2 last")]}, 0, REQUEST):
        pass
    (request,) = log.end_turn()
    assert request.prompt[-1].text == "[redacted] last"
    assert len(request.prompt) + request.prompt_more == 6
    assert request.prompt_more > 0
    assert sum(len(each.text) for each in request.prompt) <= MOST_PROMPT_CHARS
    assert all("key" not in each.text for each in request.prompt)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": "text", "system": 7},
        {"input": [1, None, {"role": 5, "content": {"a": "\ud800"}}]},
        {"contents": [{"parts": [{"text": 1}]}], "systemInstruction": "x", "model": 3},
        {"messages": [message("user", [{"type": "image", "data": "A" * 100_000}], tool_calls=[7])]},
    ],
)
def test_strange_requests_are_recorded(body: dict[str, Any]) -> None:
    log = RequestLog()
    with log.under_way(body, 0, REQUEST):
        pass
    (request,) = log.end_turn()
    for each in request.prompt:
        (each.role + each.text).encode()
        assert len(each.text) <= MOST_CHARS + 50


# --- times


def test_the_model_is_busy_while_any_request_is_under_way() -> None:
    def at(begin: float, took: float) -> ModelRequest:
        return ModelRequest(begin_ms=begin, latency_ms=took)

    assert busy_ms(()) == 0
    assert busy_ms([at(100, 50), at(0, 80)]) == 130
    assert busy_ms([at(0, 100), at(20, 30), at(90, 60)]) == 150
