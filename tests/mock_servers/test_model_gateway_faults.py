"""Models that fail behind the gateway: the agent's client is told as its API tells it, and nothing hangs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aiohttp import web
from scripted_provider import FORM_OF, FORMS, ROOTS, Chat, Gemini, Provider
from test_model_gateway import Gateway, anyio_backend, gateway

__all__ = ["anyio_backend"]
from agentest.mock_servers.model_gateway.wire_form import sse

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


def request_of(form: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    """Return path and body of a first request."""
    made = FORM_OF[form]()
    path = made.path
    if stream and isinstance(made, Gemini):
        path = path.replace("generateContent", "streamGenerateContent") + "?alt=sse"
    return f"/{ROOTS[form]}{path}", made.request([made.user("look one")], stream=stream)


@asynccontextmanager
async def asked(
    form: str, answer: Answer, *, stream: bool = False
) -> AsyncIterator[tuple[httpx.Response, Gateway]]:
    async with gateway(provider=Faulty(answer)) as gate, gate.talk(form, "a"):
        path, body = request_of(form, stream=stream)
        yield await gate.client.post(gate.origin + path, json=body), gate


def events(form: str, text: str, calls: list[tuple[str, dict[str, Any]]]) -> list[bytes]:
    """Return the events of an answer."""
    made = FORM_OF[form]()
    body = {"model": "m", "include": ["reasoning.encrypted_content"]}
    shown = made.events(made.answer(body, text, calls))
    return [sse(data, name) for name, data in shown]


async def sent(request: web.Request, pieces: list[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
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
    assert "not JSON" in response.json()["error"]["message"]


async def test_the_agents_key_reaches_the_model_and_nothing_of_the_gateway() -> None:
    seen: list[dict[str, str]] = []

    async def note(request: web.Request, _: int) -> web.StreamResponse:
        seen.append(dict(request.headers))
        made = Chat()
        return web.json_response(made.answer({"model": "m"}, "Done.", []))

    async with gateway(provider=Faulty(note)) as gate, gate.talk("chat", "a"):
        path, body = request_of("chat", stream=False)
        await gate.client.post(
            gate.origin + path, json=body, headers={"Authorization": "Bearer k", "OpenAI-Beta": "b"}
        )

    assert (seen[0]["Authorization"], seen[0]["OpenAI-Beta"]) == ("Bearer k", "b")
    assert not [name for name in seen[0] if "agentest" in name.lower()]
