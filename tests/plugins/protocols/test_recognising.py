"""Answers that a wrong `type` got: which protocol they are of, and what to write instead."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import anyio
import hurrying
import pytest
from aiohttp import web
from http_agents import Handler, Routes, served
from project import Project

from agentest.agents.configuration_advice import Advisor
from agentest.agents.error_hints import ProbeResponse
from agentest.agents.protocol_probe import EndpointProbe, detect_type
from agentest.config.agent_types import unknown_type_message
from agentest.plugin import PLUGINS
from agentest.support.http.client import DirectResponse, Headers, open_client
from agentest.testing import Raw, ScriptedAgent


def seen(body: Any = b"", status: int = 200, **headers: str) -> ProbeResponse:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ProbeResponse(
        status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}, body=content
    )


def lacking(*fields: str) -> ProbeResponse:
    """A refusal as FastAPI has it."""
    detail = [{"type": "missing", "loc": ["body", name], "msg": "Field required"} for name in fields]
    return seen({"detail": detail}, 422)


def lacks(parameter: str) -> ProbeResponse:
    """A refusal as OpenAI has it."""
    said = f"Missing required parameter: '{parameter}'."
    return seen({"error": {"message": said, "type": "invalid_request_error", "param": parameter}}, 400)


TAG = "tag using discriminator 'trigger'"
PASSWORD = b"<!doctype html><form><input name=u><input type='password'></form>"
OPENAI_400 = {"error": {"message": "Invalid model name passed in model=None", "param": None}}
JS = {"error": "TypeError: Cannot read properties of undefined (reading 'some')"}

ANSWERS = {
    "chat_completions": [
        seen({"choices": [], "error": None}),
        lacking("messages", "model"),
        lacks("messages"),
    ],
    "responses": [
        seen({"object": "response", "output": []}),
        seen(b'event: response.created\ndata: {"type": "response.created"}\n\n'),
        lacking("input"),
        lacks("input"),
    ],
    "anthropic_messages": [
        seen({"type": "message", "role": "assistant", "content": []}),
        seen({"type": "error", "error": {"type": "invalid_request_error", "message": "m"}}, 400),
        seen(b'event: message_start\ndata: {"type": "message_start", "message": {}}\n\n'),
    ],
    "a2a": [seen({"jsonrpc": "2.0", "id": None, "error": {"code": -32600}}), lacking("jsonrpc", "method")],
    "ag_ui": [
        seen(b': hello\n\ndata: {"type":"RUN_STARTED","threadId":"t"}\n\n'),
        lacking("threadId", "runId", "messages"),
        lacking("thread_id", "run_id"),
        seen([{"type": "missing", "loc": [name]} for name in ("threadId", "runId")], 422),
    ],
    "ai_sdk": [
        seen(b"", x_vercel_ai_ui_message_stream="v1"),
        seen(b'data: {"type":"start"}\n\n'),
        lacking("trigger", "id", "messages"),
        seen([{"type": "union_tag_not_found", "msg": f"Unable to extract {TAG}"}], 422),
    ],
    "langgraph": [
        seen({"messages": [{"type": "human", "content": "Hi"}, {"type": "ai", "content": "Hello"}]}),
        seen({"__error__": {"error": "E", "message": "m"}}),
        lacking("assistant_id"),
    ],
    "adk": [
        seen([{"author": "a", "invocationId": "e", "content": None}]),
        lacking("appName", "userId", "sessionId", "newMessage"),
    ],
    "websocket": [seen(b'Can "Upgrade" only to "WebSocket".', 400), seen(b"", 426)],
}
NOBODYS = [
    seen({"error": {"message": "The input is too long.", "type": "t", "param": "input"}}, 400),
    seen({"error": {"message": "'input' is missing"}}, 400),
    lacking("messages"),
    seen(),
    seen({"reply": "Hi"}),
    seen([1]),
    seen(b"\xff\x00"),
    seen(b"data: x\n\n"),
    seen("text"),
]


@pytest.mark.parametrize("kind", ANSWERS)
def test_each_protocol_is_recognised(kind: str) -> None:
    """Answers and refusals of only one protocol identify it; common ones do not."""
    assert [detect_type(one) for one in ANSWERS[kind]] == [kind] * len(ANSWERS[kind])
    assert [detect_type(one) for one in NOBODYS] == [None] * len(NOBODYS)
    assert kind in PLUGINS.all("agent type")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smalltalk", "; valid are: `a2a`, `adk`, `adk_module`, `ag_ui`, "),
        ("langraph", "; did you mean `langgraph`?"),
        (
            "next.js",
            "agent speaks: ai_sdk (a chat endpoint of Vercel's AI SDK)",
        ),
        ("wss", "agent speaks: websocket (a WebSocket endpoint)"),
        (
            "pydantic-ai",
            "in Python), a2a (an A2A agent), ag_ui (an AG-UI endpoint) or ai_sdk (",
        ),
        ("MCP", "the protocol between user and agent; MCP is between the agent and its tools"),
    ],
)
def test_a_name_that_is_no_type(name: str, said: str) -> None:
    """The error names the types of all plug-ins that have this word, else the nearest name, else all."""
    assert said in unknown_type_message(name)


class Nobody:
    """A server that is not there any more."""

    async def send_direct(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> DirectResponse:
        raise ConnectionRefusedError


def advised(one: ProbeResponse, kind: str = "chat_completions", path: str = "/chat") -> str:
    look = EndpointProbe(url=f"http://localhost:1{path}", client=Nobody())
    return anyio.run(Advisor(kind, look).advice, one)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (ANSWERS["ag_ui"][0], "this looks like an AG-UI endpoint: `type: ag_ui`"),
        (
            lacking("question", "session_id"),
            "it has a form of its own: `type: http` with "
            '`body: {question: "{{message}}", session_id: "{{session_id}}"}`',
        ),
        (
            seen(b"", 302, location="https://h/auth/login?next=%2Fchat"),
            "that looks like a login: send the credentials with `headers`, or log in first by a `setup` "
            "request (type: http)",
        ),
        (seen(b"", 302, location="https://h/chat/"), ""),
        (ANSWERS["chat_completions"][0], ""),
        (seen(b"<html>", 404), ""),
        (seen(b"", 302, location="http://[/login"), ""),
        (
            seen(PASSWORD),
            "that looks like a login: send the credentials with `headers`, or log in first by a `setup` "
            "request (type: http)",
        ),
        (seen({"detail": "Not authenticated"}, 401), ""),
        (
            seen({"answer": {"text": "Hi"}, "session": "s"}),
            "if it has a form of its own: `type: http`, which agentest init FOLDER --curl 'curl …' writes "
            "for a request that works",
        ),
        (seen({"error": "No.", "message": "Hi"}), ""),
        (
            lacking("messages"),
            'it has a form of its own: `type: http` with `body: {messages: "{{messages}}"}`',
        ),
        (
            seen(JS, 500),
            "if this is a backend of Vercel's AI SDK, which misses the `parts` of messages: `type: ai_sdk`",
        ),
        (
            seen(b"question is missing", 400),
            "if it has a form of its own: `type: http`, which agentest init FOLDER --curl 'curl …' writes "
            "for a request that works",
        ),
        (
            seen(b"Client sent an HTTP request to an HTTPS server.", 400),
            "that server speaks TLS: write https:// (or wss://) in the endpoint",
        ),
    ],
    ids=[
        "other-type",
        "own-form",
        "login",
        "moved",
        "own-type",
        "gone",
        "no-url",
        "login-page",
        "credentials",
        "own-reply",
        "error",
        "messages",
        "parts",
        "refusal",
        "tls",
    ],
)
def test_advice(one: ProbeResponse, said: str) -> None:
    """The advice is a better configuration, if there is one."""
    assert advised(one) == said


def test_advice_by_the_path_says_so() -> None:
    """If an answer shows nothing, the end of an existing path may."""
    said = "by its path, this may be a chat-completions endpoint: `type: chat_completions`"
    assert advised(seen(b"no", 500), "responses", "/v1/chat/completions") == said
    assert advised(seen(b"no", 404), "responses", "/v1/chat/completions") == ""
    assert advised(seen(b"no", 500), "chat_completions", "/v1/chat/completions") == ""


# With a server


def answers(value: Any, status: int = 200) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(value, status=status)

    return answer


LACKS_A_RUN = [{"type": "missing", "loc": ["body", name]} for name in ("threadId", "runId")]
TAKES_RUNS = {"requestBody": {"content": {"x": {"schema": {"$ref": "#/components/schemas/RunAgentInput"}}}}}
ROUTES: Routes = {
    "GET /v1/models": answers({"object": "list", "data": [{"id": "shop"}]}),
    "POST /v1/chat/completions": answers(OPENAI_400, 400),
    "POST /v1/responses": answers({"error": {"param": "input", "message": "'input'"}}, 400),
    "GET /openapi.json": answers({"paths": {"/run": {"post": TAKES_RUNS}}}),
    "POST /run": answers({"detail": LACKS_A_RUN}, 422),
}


async def told(routes: Routes, kind: str, path: str, one: ProbeResponse) -> str:
    """The advice on an answer of a server, whose address is left out."""
    async with served(routes) as url, open_client() as client:
        look = EndpointProbe(url=f"{url}{path}", client=client)
        return (await Advisor(kind, look).advice(one)).replace(url, "")


NOT_THERE = seen({"detail": "Not Found"}, 404)


@pytest.mark.parametrize(
    ("kind", "path", "one", "said"),
    [
        ("ag_ui", "/", NOT_THERE, "type: ag_ui, endpoint: /run"),
        ("responses", "/x", NOT_THERE, "type: responses, endpoint: /v1/responses"),
        ("chat_completions", "/", NOT_THERE, "type: chat_completions, endpoint: /v1/chat/completions"),
        ("adk", "/run", NOT_THERE, "type: ag_ui, endpoint: /run"),
        ("http", "/v1/responses", NOT_THERE, "type: responses, endpoint: /v1/responses"),
        ("ai_sdk", "/v1/chat/completions", seen(OPENAI_400, 400), "type: chat_completions"),
        ("chat_completions", "/v1/chat/completions", seen(OPENAI_400, 400), "`body: {model: shop}`"),
        ("chat_completions", "/v1/chat/completions", seen(b"boom", 500), ""),
    ],
    ids=["own-root", "own-path", "own-server", "here", "here-last", "by-get", "model", "own"],
)
def test_the_order_of_detection(kind: str, path: str, one: ProbeResponse, said: str) -> None:
    """The endpoint itself comes first, then the configured type at other paths, then other types."""
    found = anyio.run(told, ROUTES, kind, path, one)
    assert said in found if said else found == ""


def test_detection_uses_only_get() -> None:
    """The server gets each request once, however many conversations fail."""
    asked: list[tuple[str, bytes]] = []

    async def note(request: web.Request) -> web.Response:
        asked.append((request.method, await request.read()))
        return web.Response(status=404)

    async def fail(kind: str, one: ProbeResponse, times: int = 50) -> set[tuple[str, bytes]]:
        asked.clear()
        async with served({"* /{path:.*}": note}) as url, open_client() as client:
            advisor = Advisor(kind, EndpointProbe(url=f"{url}/chat", client=client))
            async with anyio.create_task_group() as group:
                for _ in range(times):
                    group.start_soon(advisor.advice, one)
            once = len(asked)
            advisor.has_answered = True
            await advisor.advice(one)
            assert len(asked) == once < 30
        return set(asked)

    assert anyio.run(fail, "responses", seen(b"boom", 500)) == {("GET", b"")}
    assert anyio.run(fail, "responses", NOT_THERE) == {("GET", b"")}


def test_a_local_delay_does_not_look_like_silence() -> None:
    """Whenever this program is delayed, an available answer is read."""

    async def look(steps: int) -> ProbeResponse | None:
        def step(left: int) -> None:
            if left:
                asyncio.get_running_loop().call_soon(step, left - 1)
            else:
                hurrying.leap(60)

        async with served({"GET /chat": answers({})}) as url, open_client() as client:
            step(steps)
            return await EndpointProbe(url=f"{url}/chat", client=client).get()

    assert all(hurrying.run(look, steps) for steps in range(12))


def test_the_first_error_is_never_hidden() -> None:
    """Advice follows the error, or precedes it if the end would be cut."""
    look = EndpointProbe(url="http://localhost:1/chat", client=Nobody())

    async def say(problem: str, one: ProbeResponse) -> str:
        return await Advisor("http", look).advised(problem, one)

    fits = "This looks like an AG-UI endpoint: `type: ag_ui`"
    run = ANSWERS["ag_ui"][0]
    assert anyio.run(say, "It failed.", run) == f"It failed. {fits}"
    assert anyio.run(say, "x" * 490, run) == f"{fits}. {'x' * 490}"
    assert anyio.run(say, "It failed.", seen({"error": "No."}, 500)) == "It failed."


PROBES = ("configuration_advice", "protocol_probe", "core_probes", "endpoint_detection", "doctor", "checks")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("Hello.", set()), (Raw(b'{"answer": "Hello."}'), {"configuration_advice", "protocol_probe"})],
    ids=["usable", "unusable"],
)
def test_endpoints_are_examined_only_after_an_error(
    project: Project, answer: str | Raw, expected: set[str]
) -> None:
    """A plain run imports nothing that guesses protocols; the first unusable answer does."""
    with ScriptedAgent([answer]) as agent:
        project.config(agent.endpoint, conversations_per_scenario=1)
        project.scenario("scenario('greets', turns=['Hi'])\n")
        shown = project.run("--offline", env={"PYTHONPROFILEIMPORTTIME": "1"}).stderr
    imported = set(re.findall(r"agentest\.(?:\w+\.)+(\w+)$", shown, re.MULTILINE))
    assert {"http_sender", "executor"} <= imported
    assert expected <= imported
    assert expected or not imported & {*PROBES}
