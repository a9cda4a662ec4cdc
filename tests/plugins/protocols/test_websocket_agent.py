"""Agents behind a WebSocket: real sockets on loopback, four dialects, and all that goes wrong."""

from __future__ import annotations

import errno
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import hurrying
import pytest
import yaml
from aiohttp import WSCloseCode, WSMsgType, web
from anyio.from_thread import start_blocking_portal
from lacking_machine import NOTHING_LEFT, Machine
from stopping import stop
from talking import converse

from agentest import scenario
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import Resources, TurnContext
from agentest.config import Config
from agentest.domain.messages import UserText
from agentest.domain.results import RunResult
from agentest.domain.transcript import Conversation
from agentest.plugins.authoring.endpoint_detection import detect_agent
from agentest.plugins.protocols.sockets import WebSocketConnector
from agentest.plugins.protocols.websocket.client import open_agent
from agentest.plugins.protocols.websocket.settings import WebSocketAgent
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, CannotSend
from agentest.support.http.client import open_client
from agentest.testing import run_scenarios

Socket = web.WebSocketResponse
Dialect = Callable[[Socket, web.Request], Awaitable[None]]


@asynccontextmanager
async def serving(dialect: Dialect, **options: Any) -> AsyncIterator[str]:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/page":
            return web.Response(text="<html>")
        if request.path == "/moved":
            raise web.HTTPFound("ws://169.254.169.254/")
        if request.path == "/closed":
            raise web.HTTPUnauthorized
        socket = web.WebSocketResponse(**options)
        await socket.prepare(request)
        await dialect(socket, request)
        return socket

    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"ws://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await stop(runner)


@contextmanager
def server(dialect: Dialect) -> Iterator[str]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving(dialect)) as url:
        yield url


async def texts(socket: Socket, request: web.Request) -> None:
    """Plain text in, plain text out."""
    async for message in socket:
        await socket.send_str(f"You said: {message.data}")


async def tokens(socket: Socket, request: web.Request) -> None:
    """Typed messages, tokens, its own calls, and an end; sessions by address."""
    count = 0
    async for message in socket:
        said, count = json.loads(message.data)["text"], count + 1
        await socket.send_json({"type": "ping"})
        call = {"tool": "find", "input": {"q": said}, "output": count}
        await socket.send_json({"type": "tool", "call": call})
        for token in (f"{said} ", f"{count} ", request.query.get("s", "")):
            await socket.send_bytes(json.dumps({"type": "token", "text": token}).encode())
        await socket.send_json({"type": "end"})


async def welcoming(socket: Socket, request: web.Request) -> None:
    """Says first which session it is, and wants to hear it again."""
    await socket.send_json({"event": "connected", "session": {"id": "s-7"}})
    async for message in socket:
        heard = json.loads(message.data)
        await socket.send_json({"event": "message", "reply": f"{heard['sid']}: {heard['q']}", "more": None})


async def asking(socket: Socket, request: web.Request) -> None:
    """Has its tools called by the caller."""
    async for message in socket:
        what = json.loads(message.data)["text"]
        answers = []
        for number in range(2):
            asked = {"id": number, "name": "book", "arguments": {"what": what, "number": number}}
            await socket.send_json({"type": "tool_call", **asked})
            answers.append(await socket.receive_json())
        booked = ",".join(f"{a['id']}:{a['result']['ok']}" for a in answers)
        await socket.send_json({"type": "assistant", "text": f"Booked {booked}"})


TOKENS = {
    "body": {"text": "{{message}}"},
    "delta": "type == 'token' && text",
    "done": "type == 'end'",
    "tool_calls": "call.{name: tool, args: input, result: output}",
}
PAGE = Path(__file__).parents[3] / "docs" / "agents" / "websocket.md"
SHOWN = [yaml.safe_load(block)["agent"] for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)]
ASKING = {key: value for key, value in SHOWN[1].items() if key != "endpoint"}
"""As the documentation has it."""
WELCOMING = {
    "body": {"q": "{{message}}", "sid": "{{session_id}}"},
    "welcome": "event == 'connected'",
    "session": "session.id",
    "reply": "reply",
}


def run(
    dialect: Dialect,
    settings: dict[str, Any],
    *turns: str | dict[str, Any],
    path: str = "/chat",
    **options: Any,
) -> RunResult:
    with server(dialect) as url:
        agent = {"type": "websocket", "endpoint": url + path, **settings}
        return run_scenarios(
            [scenario("s", turns=list(turns), **options)],
            agent=agent,
            request_timeout_ms=60_000,
            unmocked_tools="passthrough",
            concurrency=50,
        )


def replies(*args: Any, **options: Any) -> list[str]:
    (held,) = run(*args, **options).scenarios[0].conversations
    assert held.conversation.failure is None, held.conversation.failure
    return [turn.agent_message for turn in held.conversation.turns]


def problem(dialect: Dialect, settings: dict[str, Any], path: str) -> str:
    async def go() -> Conversation:
        async with serving(dialect) as url:
            agent = {"type": "websocket", "endpoint": url + path, **settings}
            return await converse(agent, ["Hi"], [], timeout_s=60.0)

    failure = hurrying.run(go).failure
    assert failure is not None
    return str(failure.message)


def test_plain_text() -> None:
    """Without any key but the address, text goes out and text comes back."""
    assert replies(texts, {}, 'Say "hi"', "two\nlines") == ['You said: Say "hi"', "You said: two\nlines"]


async def naming(socket: Socket, request: web.Request) -> None:
    async for _ in socket:
        await socket.send_str(request.headers["Authorization"])


def test_credentials_of_the_address() -> None:
    """A user in the address is sent as Basic, unless there is a header Authorization."""
    with server(naming) as url:
        endpoint = url.replace("//", "//user:pass@")
        for headers, sent in (({}, "Basic"), ({"Authorization": "Own one"}, "Own one")):
            agent = {"type": "websocket", "endpoint": endpoint, "headers": headers}
            made = scenario("s", turns=[{"user_message": "Hi", "expect": {"contains": sent}}])
            assert run_scenarios([made], agent=agent).scenarios[0].verdict.passed


def test_commands_fill_headers_of_the_handshake() -> None:
    """The value is a secret of the run."""
    command = [sys.executable, "-c", "print('Bearer token-number-1')"]
    settings = {"headers": {"Authorization": {"command": command}}}
    turn = {"user_message": "Hi", "expect": {"contains": "Bearer token-number-1"}}
    result = run(naming, settings, turn)
    assert result.scenarios[0].verdict.passed
    (held,) = result.scenarios[0].conversations
    assert held.conversation.turns[0].agent_message == "[redacted]"


def test_tokens_and_reported_calls() -> None:
    """Pieces are joined, the connection stays for the conversation, calls are seen and first tokens timed."""
    result = run(tokens, TOKENS, "Hi", "Ho", path="/chat?s={{scenario}}", trajectory={"forbidden": ["find"]})
    (held,) = result.scenarios[0].conversations
    first, second = held.conversation.turns
    assert (first.agent_message, second.agent_message) == ("Hi 1 s", "Ho 2 s")
    assert [(c.name, c.args, c.result) for c in second.tool_calls] == [("find", {"q": "Ho"}, 2)]
    assert first.first_token_ms is not None
    assert first.first_token_ms <= first.latency_ms
    assert result.scenarios[0].verdict.status == "failed"


def test_a_server_that_speaks_first() -> None:
    """The welcome is waited for, its session id sent back; what comes between turns is not a reply."""
    assert replies(welcoming, WELCOMING, "One", "Two") == ["s-7: One", "s-7: Two"]


def test_late_messages_are_noted() -> None:
    """Messages after the end of a turn are dropped, except for calls, with a note."""
    notes: list[str] = []
    heard: list[anyio.Event] = []

    async def late(socket: Socket, request: web.Request) -> None:
        while (await socket.receive()).type is WSMsgType.TEXT:
            await socket.send_json({"reply": "Hello"})
            await socket.send_json({"more": "much too late", "call": {"name": "pay"}})
            await socket.ping()
            assert (await socket.receive()).type is WSMsgType.PONG  # so the client has read what came before
            heard[-1].set()

    async def go() -> None:
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(serving(late, autoping=False))
            resources = Resources(
                client=await stack.enter_async_context(open_client()),
                timeout_s=5,
                threads=anyio.CapacityLimiter(1),
                root=Path(),
                closing=stack,
                on_note=notes.append,
            )
            config = WebSocketAgent(type="websocket", endpoint=url, reply="reply", tool_calls="call")
            talk = await stack.enter_async_context(open_agent("a", config, resources).conversation())
            for turn in range(3):
                ctx = TurnContext("c-1", "s", turn, lambda *_: None, session_id="x")
                heard.append(anyio.Event())
                reply = await talk.reply([UserText("Hi")], ctx)
                assert (reply.text, [call.name for call in reply.observed]) == ("Hello", ["pay"] * bool(turn))
                await heard[-1].wait()

    anyio.run(go)
    assert notes == [
        "agent 'agent': 3 messages came after the end of a turn, and belonged to no reply. If they are the "
        "rest of one, set `done` to what is true for the last message of a turn"
    ]


def test_tools_answered_by_mocks() -> None:
    """Tool requests are answered by mocks in the middle of the turn; fifty conversations do not mix."""
    mocks = {"book": lambda args, ctx: {"ok": f"{ctx.conversation_id}-{args['number']}"}}
    result = run(asking, ASKING, "a", "b", tools=mocks, conversations_per_scenario=50)
    held = [one.conversation for one in result.scenarios[0].conversations]
    assert len(held) == 50
    for one in held:
        mine = f"Booked 0:{one.conversation_id}-0,1:{one.conversation_id}-1"
        assert [turn.agent_message for turn in one.turns] == [mine, mine]
        assert [(c.args["what"], c.mocked) for c in one.tool_calls] == [("a", True)] * 2 + [("b", True)] * 2


async def closing(socket: Socket, request: web.Request) -> None:
    await socket.receive()
    await socket.send_json({"delta": "Hel"})
    await socket.close(code=WSCloseCode.INTERNAL_ERROR)


async def leaving(socket: Socket, request: web.Request) -> None:
    await socket.receive()
    assert request.transport is not None
    request.transport.abort()


async def silent(socket: Socket, request: web.Request) -> None:
    while (await socket.receive()).type is WSMsgType.TEXT:
        await socket.send_json({"status": "thinking"})
        hurrying.hurry()


async def failing(socket: Socket, request: web.Request) -> None:
    await socket.receive()
    await socket.send_json({"type": "error", "message": "no such model"})
    await socket.receive()


async def garbage(socket: Socket, request: web.Request) -> None:
    await socket.receive()
    await socket.send_bytes(b"\xff\xfe")
    await socket.receive()


async def flooding(socket: Socket, request: web.Request) -> None:
    await socket.receive()
    await socket.send_str("x" * 11_000_000)
    await socket.receive()


async def endless(socket: Socket, request: web.Request) -> None:
    await socket.receive()
    with suppress(ConnectionError):
        while True:
            await socket.send_str("x" * 1_000_000)


@pytest.mark.parametrize(
    ("dialect", "settings", "path", "said"),
    [
        (
            closing,
            {"reply": "reply"},
            "/",
            "closed by the server (code 1011, internal error) before",
        ),
        (leaving, {}, "/", "the connection was lost before the turn was done; it sent no message"),
        (leaving, {}, "/", "it was sent plain text: where it takes JSON, `body` says which"),
        (silent, {"reply": "reply"}, "/", "no message for which there is a `reply` within 60 s"),
        (silent, {"done": "end", "reply": "x"}, "/", "found text at `status` in its last message"),
        (
            failing,
            {"error": "type == 'error' && message"},
            "/",
            "&& message`): no such model",
        ),
        (garbage, {}, "/", "2 bytes that are not a text in UTF-8"),
        (flooding, {}, "/", "the connection broke"),
        (endless, {"done": "end", "reply": "x"}, "/", "the messages of one turn are larger than 10 MB"),
        (texts, {}, "/page", "answered as a web page or an API does, and opened no WebSocket"),
        (texts, {}, "/moved", "it answered 302 and points to ws://169.254.169.254/"),
        (texts, {}, "/closed", "opened no WebSocket, it answered 401 (are the credentials right?"),
    ],
    ids=[
        "closed",
        "lost",
        "lost-after-text",
        "silent",
        "undone",
        "error",
        "garbage",
        "flood",
        "endless",
        "page",
        "moved",
        "401",
    ],
)
def test_errors(dialect: Dialect, settings: dict[str, Any], path: str, said: str) -> None:
    """An agent's error has what was expected and what was received."""
    assert said in problem(dialect, settings, path)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"endpoint": "http://h"}, "must start with ws:// or wss://"),
        ({"endpoint": "ws://h", "body": {"a": 1}}, "the request does not contain the user's message"),
        ({"endpoint": "ws://h", "tool_request": "a"}, "belong together"),
        ({"endpoint": "ws://h", "delta": "a"}, "`delta` needs `done`: which message is a turn's last"),
        ({"endpoint": "ws://h", "tool_request": "a", "tool_response": "{{tol}}"}, "{{tol}}"),
        ({"endpoint": "ws://h/{{sesion_id}}"}, "`endpoint` has the placeholder {{sesion_id}}"),
        ({"endpoint": "ws://h", "app": "a:b"}, "start this one by `server`"),
        ({}, "Field required"),
        ({"endpoint": "ws://h", "then": [{"a": 1}]}, 'put "{{message}}" into `then`'),
        ({"endpoint": "ws://h", "body": "{{message}}", "then": ["{{message}}"]}, "`body` is never sent"),
        ({"endpoint": "ws://h", "hello": {"send": {}, "wiat": "a"}}, "wiat"),
        ({"endpoint": "ws://h", "hello": None}, "Input should be a valid list"),
        ({"endpoint": "ws://h", "ping": "a"}, "`ping` and `pong` belong together"),
        ({"endpoint": "ws://h", "after_tools": "a"}, "`after_tools` follows the results of `tool_request`"),
        (
            {"endpoint": "ws://h", "hello": {"text": "in {{room}}"}, "save": {"room": "id"}},
            "`hello[0]` sends {{room}} before any message can have saved it: set `welcome`, or `wait`",
        ),
        (
            {"endpoint": "ws://h", "then": {"send": "{{message}}", "if": "rom"}},
            "looks at `rom`, which nothing saves",
        ),
    ],
    ids=[
        *("http", "deaf", "half", "endless", "tool", "endpoint", "app", "missing"),
        *("deaf list", "two bodies", "key", "no hello", "ping", "after", "unsaved", "condition"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], said: str) -> None:
    """Wrong settings are refused with the key and what it takes."""
    with pytest.raises(ValueError, match=re.escape(said)):
        Config.model_validate({"agent": {"type": "websocket", **settings}})


async def open_socket(client: Any, retries: int) -> object:
    config = WebSocketAgent(type="websocket", endpoint="ws://bot/", reply="reply", retries=retries)
    context = TurnContext("c-1", "s", 0, lambda *_: None, session_id="x")
    with TimeLimit(5) as limit:
        return await WebSocketConnector(config, client).connect(TurnValues([UserText("Hi")], context), limit)


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("number", NOTHING_LEFT)
def test_nothing_to_make_a_connection_with(retries: int, number: int) -> None:
    """If this machine cannot open connections, the agent is not to blame."""
    machine = Machine(number)
    with pytest.raises(CannotSend, match="this machine has no more to give"):
        anyio.run(open_socket, machine, retries)
    assert machine.asked == retries + 1


def test_an_agent_that_refuses_has_failed() -> None:
    with pytest.raises(AgentError, match="nobody listens there"):
        anyio.run(open_socket, Machine(errno.ECONNREFUSED), 0)


def test_nothing_is_left_open() -> None:
    """The connection is closed with the conversation."""
    ended: list[int | None] = []

    async def counting(socket: Socket, request: web.Request) -> None:
        await texts(socket, request)
        ended.append(socket.close_code)

    assert replies(counting, {}, "Hi") == ["You said: Hi"]
    assert ended == [WSCloseCode.OK]


async def rooms(socket: Socket, request: web.Request) -> None:
    """A login, a room that the first answer names and later messages must resume, and pings between turns."""
    assert (await socket.receive_json()) == {"type": "login", "token": "t"}
    await socket.send_json({"type": "welcome"})
    resumed = 0
    async for message in socket:
        event = json.loads(message.data)
        if event["type"] == "resume":
            assert event["room"] == "r-1"
            resumed += 1
            await socket.send_json({"type": "resumed"})
            continue
        await socket.send_json({"type": "ping", "ping": {"id": resumed}})
        await socket.send_json({"type": "answer", "text": f"{event['text']}, {resumed}", "room_id": "r-1"})
        assert (await socket.receive_json()) == {"type": "pong", "id": resumed}


ROOMS: dict[str, Any] = {
    "hello": {"send": {"type": "login", "token": "t"}, "wait": "type == 'welcome'"},
    "then": [
        {"send": {"type": "resume", "room": "{{room}}"}, "if": "room", "wait": "type == 'resumed'"},
        {"type": "say", "text": "{{message}}"},
    ],
    "save": {"room": "room_id"},
    "ping": "type == 'ping'",
    "pong": {"type": "pong", "id": "{{ping.ping.id}}"},
    "reply": "type == 'answer' && text",
}


def test_a_login_lists_of_messages_and_pings_between_turns() -> None:
    assert replies(rooms, ROOMS, "Hi", "And", "Bye") == ["Hi, 0", "And, 1", "Bye, 2"]


@pytest.mark.parametrize(
    ("dialect", "changes", "said"),
    [
        (silent, {}, "no message for which `hello[0].wait` is true within 60 s"),
        (
            rooms,
            {"then": {"send": {"text": "{{message}}"}, "if": "room"}},
            "turn 1: no message with the user's text was sent, because its condition (`if` in `then`) is",
        ),
        (
            rooms,
            {"error": "type == 'welcome'"},
            "the agent reports an error (`error: type == 'welcome'`): true",
        ),
    ],
    ids=["acknowledgement", "condition", "error at connect"],
)
def test_what_never_comes_is_named(dialect: Dialect, changes: dict[str, Any], said: str) -> None:
    assert said in problem(dialect, {**ROOMS, **changes}, "/chat")


async def kept_json(socket: Socket, request: web.Request) -> None:
    """A greeting, then JSON in and out; any other message ends the connection."""
    await socket.send_json({"kind": "hello", "text": "Welcome!"})
    async for message in socket:
        await socket.send_json({"kind": "bot", "text": f"You said: {json.loads(message.data)['content']}"})


async def constant(socket: Socket, request: web.Request) -> None:
    async for _ in socket:
        await socket.send_str("I do not understand.")


@pytest.mark.parametrize(
    ("dialect", "more", "said"),
    [
        (texts, {}, "with 'You said: Hello, my name is Ada.'"),
        (kept_json, {"welcome": "@", "body": {"content": "{{message}}"}}, "with 'You said: Hello,"),
        (constant, None, "every message gets the reply 'I do not understand.'"),
    ],
)
def test_init_tries_the_usual_forms_of_messages(dialect: Dialect, more: dict[str, Any], said: str) -> None:
    """A greeting is not taken for a reply, and a form is right if the reply changes with the message."""
    with server(dialect) as url:
        found = detect_agent(url, {}, ())
    assert said in " ".join(found.remarks)
    assert found.is_complete is (more is not None)
    assert found.settings == {"type": "websocket", "endpoint": url, **(more or {})}
