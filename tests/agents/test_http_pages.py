"""The documented configurations of HTTP agents, each with a server that behaves as its page says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from http_agents import Handler, Routes, calls, held, opened, replies, served, stream

from agentest.config.file import load
from agentest.domain.transcript import Conversation

PAGES = Path(__file__).parents[2] / "docs" / "agents"
PAY = {"name": "pay", "args": {"amount": 5}, "result": "ok"}
TOOL = {"type": "tool", "tool": "pay", "input": {"amount": 5}, "output": "ok"}
PAID = [("pay", {"amount": 5}, "ok")] * 2


async def given(request: web.Request) -> dict[str, Any]:
    """Return what a request sends: JSON, a form, or its query."""
    if request.method == "GET":
        return {**request.query, **request.match_info}
    if request.content_type == "application/json":
        return {**(await request.json()), **request.match_info}
    return {**(await request.post())}


class Words:
    """Sessions of a server: each reply repeats the session's earlier message."""

    def __init__(self) -> None:
        self._before: dict[str, str] = {}

    def reply(self, session: str, text: str) -> str:
        before, self._before[session] = self._before.get(session, "nothing"), text
        return before


def chat(answer: Callable[[str, str], Any], text: str = "message", session: str = "session_id") -> Handler:
    """A server whose `answer` builds the response from the reply and the session's id."""
    words = Words()

    async def handle(request: web.Request) -> web.Response:
        asked = await given(request)
        known = asked.get(session) or "made-here"
        return web.json_response(answer(words.reply(known, asked[text]), known))

    return handle


def whole() -> Handler:
    async def handle(request: web.Request) -> web.Response:
        said = [m["content"] for m in (await request.json())["messages"] if m["role"] == "user"]
        before = said[-2] if len(said) > 1 else "nothing"
        return web.json_response({"choices": [{"message": {"content": before}}]})

    return handle


def dialog() -> Handler:
    async def handle(request: web.Request) -> web.Response:
        turns = (await request.json())["dialog"]
        said = [turn["parts"][0]["text"] for turn in turns if turn["speaker"] == "human"]
        before = said[-2] if len(said) > 1 else "nothing"
        return web.json_response({"turn": {"speaker": "bot", "parts": [{"text": before}]}})

    return handle


def events() -> Handler:
    words = Words()

    async def handle(request: web.Request) -> web.StreamResponse:
        asked = await given(request)
        text = words.reply(asked["session_id"], asked["message"])
        tokens = [f"event: token\ndata: {json.dumps({'text': character})}\n\n" for character in text]
        tool = f"event: tool\ndata: {json.dumps(TOOL)}\n\n"
        return await stream(request, [tool, *tokens, "event: end\ndata: {}\n\n"])

    return handle


def jobs() -> Routes:
    said: list[str] = []

    async def begin(request: web.Request) -> web.Response:
        said.append((await given(request))["question"])
        return web.json_response({"job_id": len(said)})

    async def look(request: web.Request) -> web.Response:
        number = int(request.match_info["job"])
        text = said[number - 2] if number > 1 else "nothing"
        return web.json_response({"status": "done", "result": {"text": text}, "failure": None})

    return {"POST /jobs": begin, "GET /jobs/{job}": look}


def several() -> Routes:
    """A server where the first message creates a chat, and later ones go to its address."""
    words = Words()

    async def begin(request: web.Request) -> web.Response:
        return web.json_response({"id": "c-1", "text": words.reply("c-1", (await given(request))["text"])})

    async def message(request: web.Request) -> web.Response:
        asked = await given(request)
        return web.json_response({"text": words.reply(asked["chat"], asked["text"])})

    return {"POST /chats": begin, "POST /chats/{chat}/messages": message}


def logged_in() -> Routes:
    answer = chat(lambda text, _: {"text": text}, "text", "chat")

    async def login(request: web.Request) -> web.Response:
        assert await given(request) == {"user": "tester", "password": "secret"}
        return web.json_response({"access_token": "token-12345"})

    async def begin(request: web.Request) -> web.Response:
        return web.json_response({"id": "c-1"})

    async def message(request: web.Request) -> web.StreamResponse:
        assert request.headers["authorization"] == "Bearer token-12345"
        return await answer(request)

    async def end(request: web.Request) -> web.Response:
        return web.Response(status=204)

    return {
        "POST /login": login,
        "POST /chats": begin,
        "POST /chats/{chat}/messages": message,
        "DELETE /chats/{chat}": end,
    }


def form_login() -> Routes:
    answer = chat(lambda text, _: {"reply": text})

    async def page(request: web.Request) -> web.Response:
        return web.Response(text='<input name="csrf" value="c-98765">', content_type="text/html")

    async def login(request: web.Request) -> web.Response:
        assert (await given(request))["csrf"] == "c-98765"
        response = web.Response(status=302, headers={"location": "/home"})
        response.set_cookie("auth", "cookie-12345")
        return response

    async def message(request: web.Request) -> web.StreamResponse:
        assert request.cookies["auth"] == "cookie-12345"
        return await answer(request)

    async def home(request: web.Request) -> web.Response:
        return web.Response(text="Welcome")

    return {"GET /login": page, "POST /login": login, "GET /home": home, "POST /chat": message}


def java() -> Handler:
    words = Words()

    async def ask(request: web.Request) -> web.Response:
        session = request.cookies.get("JSESSIONID", "made-here")
        response = web.json_response({"answer": words.reply(session, (await given(request))["question"])})
        response.set_cookie("JSESSIONID", session, path="/", httponly=True)
        return response

    return ask


def go() -> Handler:
    answer = chat(lambda text, session: {"answer": {"text": text}, "session": session}, "text", "session")

    async def as_text(request: web.Request) -> web.Response:
        response = await answer(request)
        assert isinstance(response, web.Response)
        return web.Response(body=response.body, content_type="text/plain")

    return as_text


SERVERS: dict[str, list[tuple[Routes, list[Any]]]] = {
    "http": [
        ({"POST /chat": chat(lambda text, _: {"reply": text})}, []),
        ({"POST /v1/answer": whole()}, []),
        ({"POST /ask": chat(lambda text, _: {"answer": text}, "question", "session")}, []),
        ({"POST /dialog": dialog()}, []),
        ({"GET /sessions/{session}/answer": chat(lambda text, _: {"answer": text}, "q", "session")}, []),
        ({"POST /chat/stream": events()}, PAID),
        ({"POST /chat": chat(lambda text, _: {"answer": text, "steps": [{"type": "x"}, TOOL]})}, PAID),
        (
            {
                "POST /chat": chat(
                    lambda text, known: {"reply": text, "thread": {"id": known}}, session="thread"
                )
            },
            [],
        ),
        (jobs(), []),
        (several(), []),
        (logged_in(), []),
        (form_login(), []),
    ],
    "fastapi": [
        (
            {"POST /chat": chat(lambda text, known: {"reply": text, "session_id": known, "tools": [TOOL]})},
            PAID,
        )
    ],
    "node": [
        ({"POST /chat": chat(lambda text, _: {"reply": text, "toolCalls": [PAY]}, session="sessionId")}, PAID)
    ],
    "go": [({"POST /v1/chat": go()}, [])],
    "java": [({"POST /ask": java()}, [])],
}
BLOCKS = {
    page: re.findall(r"```yaml\n(.*?)```", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.S)
    for page in SERVERS
}
SHOWN = [(page, number) for page in SERVERS for number in range(len(SERVERS[page]))]


def test_each_configuration_has_a_server() -> None:
    """Every configuration on these pages is tested."""
    assert {page: len(blocks) for page, blocks in BLOCKS.items()} == {p: len(s) for p, s in SERVERS.items()}


@pytest.mark.parametrize(("page", "number"), SHOWN, ids=[f"{page}-{number}" for page, number in SHOWN])
def test_a_configuration_as_it_is_shown(page: str, number: int, tmp_path: Path) -> None:
    """With only the port changed, it works with its server: sessions last and calls are recorded."""
    routes, made = SERVERS[page][number]

    async def run() -> Conversation:
        async with served(routes) as url:
            text = re.sub(r"http://localhost:\d+", url, BLOCKS[page][number])
            path = tmp_path / "agentest.config.yaml"
            path.write_text(text.replace("every_ms: 500", "every_ms: 1"), encoding="utf-8")
            async with opened(load(path, {}).config.agent) as client:
                return await held(client, "one", "two")

    conversation = anyio.run(run)
    assert replies(conversation) == ["nothing", "one"]
    assert calls(conversation) == made
