"""Providers that hide calls of tools where only some agents look: no mocked tool runs unseen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web
from scripted_provider import FORMS, Provider
from test_model_gateway import anyio_backend, gateway
from test_model_gateway_faults import Faulty, events, request_of, sent

from agentest.plugins.servers.model_gateway.wire_form import named_in, sse
from agentest.support.errors import MockError

__all__ = ["anyio_backend"]
pytestmark = pytest.mark.anyio
Json = dict[str, Any]
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}


def whole(*calls: Json) -> Json:
    return {"id": "a", "choices": [{"index": 0, "message": {"role": "assistant", "tool_calls": [*calls]}}]}


async def asked(form: str, provider: Provider, *, stream: bool) -> tuple[bytes, MockError | None]:
    """Return what the agent received, and the error of the conversation."""
    async with gateway(provider=provider) as gate, gate.talk(form, "a") as talk:
        path, body = request_of(form, stream=stream)
        with talk.known.said("look one"):
            response = await gate.client.post(gate.origin + path, json=body)
        error = await talk.known.error_of(None)
        assert error is None or isinstance(error, MockError)
        return response.content, error


@pytest.mark.parametrize("status", [400, 404, 429, 500])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("form", FORMS)
async def test_a_call_in_the_body_of_an_error_does_not_reach_the_agent(
    form: str, stream: bool, status: int
) -> None:
    async def fails(_: web.Request, __: int) -> web.StreamResponse:
        made = events(form, "", [("find", {"q": "one"})])
        text = b"".join(made) if stream else json.dumps(whole(CALL)).encode()
        return web.Response(status=status, body=text)

    received, error = await asked(form, Faulty(fails), stream=stream)

    assert b'"find"' not in received.replace(b"\\", b"")
    assert "blocked a model response with tool calls" in str(error)


async def test_an_error_that_repeats_the_request_reaches_the_agent() -> None:
    """As of servers in Python that say which message is wrong."""
    told = {"detail": [{"type": "missing", "loc": ["messages", 1], "input": {"tool_calls": [CALL]}}]}

    async def refuses(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response(told, status=422)

    received, error = await asked("chat", Faulty(refuses), stream=False)

    assert (json.loads(received), error) == (told, None)


async def test_two_values_in_one_event_do_not_reach_the_agent() -> None:
    async def two(request: web.Request, _: int) -> web.StreamResponse:
        text = json.dumps({"id": "a", "choices": []}) + json.dumps(whole(CALL))
        return await sent(request, [sse(text), *events("chat", "Done.", [])])

    received, error = await asked("chat", Faulty(two), stream=True)

    assert b"find" not in received
    assert "not JSON" in str(error)


DONE = {"type": "response.function_call_arguments.done", "output_index": 0, "item_id": "f", "name": "find"}
NEVER: dict[str, list[Json]] = {
    "a call that the answer lacks": [
        {**DONE, "arguments": "{}"},
        {"type": "response.completed", "response": {"id": "r", "output": [{"type": "message", "id": "m"}]}},
    ],
    "an answer that is not finished": [
        {"type": "response.completed", "response": {"id": "r", "status": "queued", "output": []}}
    ],
    "an answer that goes on": [
        {"type": "response.completed", "response": {"id": "r", "status": "in_progress", "output": []}}
    ],
}


@pytest.mark.parametrize("name", NEVER)
async def test_events_of_a_call_that_never_comes_do_not_reach_the_agent(name: str) -> None:
    async def begins(request: web.Request, _: int) -> web.StreamResponse:
        created = {"type": "response.created", "response": {"id": "r"}}
        return await sent(request, [sse(each) for each in (created, *NEVER[name])])

    received, error = await asked("responses", Faulty(begins), stream=True)

    assert b"find" not in received
    assert "cannot read the model's answer" in str(error)


@pytest.mark.parametrize("name", ["fіnd", "default_api.find", "find\0", "find()"])  # one `і` is Cyrillic
async def test_a_name_that_agents_may_repair_is_that_of_the_mock(name: str) -> None:
    async def misspelt(_: web.Request, number: int) -> web.StreamResponse:
        call = {**CALL, "function": {"name": name, "arguments": '{"q": "one"}'}}
        done = {"id": "b", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Done."}}]}
        return web.json_response(whole(call) if number == 1 else done)

    async with gateway(provider=Faulty(misspelt)) as gate, gate.talk("chat", "a") as talk:
        path, body = request_of("chat", stream=False)
        talk.turn = 0
        with talk.known.said("look one"):
            response = await gate.client.post(gate.origin + path, json=body)

    assert response.json()["choices"][0]["message"]["content"] == "Done."
    assert [(call.name, call.mocked) for call in talk.calls] == [("find", True)]


@pytest.mark.parametrize("name", ["ѕend", "functions/send", "send:0"])  # one `ѕ` is Cyrillic
async def test_a_name_that_agents_may_repair_counts_for_bans(name: str) -> None:
    async def misspelt(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response(whole({**CALL, "function": {"name": name, "arguments": "{}"}}))

    async with gateway(provider=Faulty(misspelt)) as gate, gate.talk("chat", "a", mocks={}) as talk:
        talk.known.named = frozenset({"send"})
        path, body = request_of("chat", stream=False)
        talk.turn = 0
        with talk.known.said("look one"):
            await gate.client.post(gate.origin + path, json=body)

    assert [call.name for call in talk.calls] == ["send"]


async def test_a_named_call_from_a_model_elsewhere_makes_the_turn_unseen() -> None:
    async def done(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response({"id": "b", "choices": [{"message": {"role": "assistant", "content": "x"}}]})

    async with gateway(provider=Faulty(done)) as gate, gate.talk("chat", "a", mocks={}) as talk:
        talk.known.named = frozenset({"send"})
        path, body = request_of("chat", stream=False)
        call = {**CALL, "function": {"name": "send", "arguments": "{}"}}
        body["messages"] += [{"role": "assistant", "content": None, "tool_calls": [call]}]
        body["messages"] += [{"role": "tool", "tool_call_id": "c1", "content": "1"}]
        with talk.known.said("look one"):
            await gate.client.post(gate.origin + path, json=body)
        traces = await talk.known.end_turn()

    assert "a call of 'send' that did not pass the gateway" in str(traces.missing)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("fіnd", "find"),
        ("FIND!", "find"),
        ("finds", None),
        ("查询数据", None),
        ("a fınd b", "find"),
        ("", None),
    ],
)
def test_names_of_letters_that_look_alike(text: str, found: str | None) -> None:
    assert named_in(text, ["find", "send"]) == found


SECRET = "k3y+of/the.agent=77"


@pytest.mark.parametrize(
    "sent",
    [
        {"data": {"api_key": SECRET, "model": "m"}},
        {"files": {"client_secret": (None, SECRET), "purpose": (None, "batch")}},
        {"json": {"session": {"auth_token": SECRET}}},
    ],
    ids=["form", "multipart", "json"],
)
@pytest.mark.parametrize("answers", [False, True])
async def test_credentials_in_forms_and_answers_are_secrets_of_the_run(sent: Json, answers: bool) -> None:
    given = "ek_0123456789abcdef"

    async def opens(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response({"client_secret": {"value": "x", "token": given}} if answers else {})

    async with gateway(provider=Faulty(opens)) as gate, gate.talk("chat", "a"):
        await gate.client.post(f"{gate.origin}/openai/v1/realtime/sessions", **sent)
        assert gate.traffic.state.keys == ({SECRET, given} if answers else {SECRET})
        assert gate.traffic.redact(f"{SECRET} {given}").count("[redacted]") == 1 + answers
