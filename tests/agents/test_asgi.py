"""Agents that are ASGI applications in this process: requests, lifespan, limits and failures."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from project import Project

from agentest import scenario
from agentest.agents import asgi as application
from agentest.agents.asgi import load_app, running_app
from agentest.agents.port import AppFailed
from agentest.config.agents.chat_completions import AsgiAgent, ChatCompletionsAgent
from agentest.config.config import Config
from agentest.domain.results import RunResult
from agentest.domain.transcript import Conversation
from agentest.support import calling
from agentest.support.errors import ConfigError
from agentest.testing import run_scenarios

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class App:
    """An application that answers chat completions with `answer` and stores its requests."""

    def __init__(self, answer: Callable[[dict[str, Any], Send, Receive], Awaitable[None]]) -> None:
        self.answer = answer
        self.seen: list[str] = []
        self.requests: list[tuple[Scope, dict[str, Any]]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.live(scope, receive, send)
            return
        body = json.loads((await receive())["body"])
        self.requests.append((scope, body))
        self.seen.append("request")
        await self.answer(body, send, receive)

    async def live(self, scope: Scope, receive: Receive, send: Send) -> None:
        for what in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{what}"
            self.seen.append(what)
            scope["state"]["db"] = "open"
            await send({"type": f"lifespan.{what}.complete"})


def start(status: int = 200, kind: str = "application/json", *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-type", kind.encode()), *headers],
    }


def piece(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


def saying(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


async def hello(body: dict[str, Any], send: Send, receive: Receive) -> None:
    await send(start())
    await send(piece(saying(f"Hello, {body['messages'][-1]['content']}")))


def run(app: Any, *turns: str, agent: Mapping[str, Any] | None = None, **config: Any) -> RunResult:
    made = scenario("s", turns=list(turns) or ["Ann"])
    return run_scenarios([made], agent={"type": "asgi", "app": app, **(agent or {})}, **config)


def held(result: RunResult) -> Conversation:
    return result.scenarios[0].conversations[0].conversation


def problem(app: Any, **config: Any) -> str:
    """Return how the conversation failed, with the agent to blame."""
    failure = held(run(app, **config)).failure
    assert failure is not None
    assert failure.blame == "agent"
    return failure.message


def test_a_conversation_with_an_application() -> None:
    """The application starts once, gets chat completions at its path, and is shut down at the end."""
    app = App(hello)
    compared = run(
        app, "Ann", "Bob", agent={"headers": {"X-Key": "k"}}, compare=[{"name": "b", "path": "/p?q=1"}]
    )
    for result in compared.scenarios:
        assert [t.agent_message for t in result.conversations[0].conversation.turns] == [
            "Hello, Ann",
            "Hello, Bob",
        ]
    assert app.seen == ["startup", *["request"] * 4, "shutdown"]
    by_path = {scope["path"]: (scope, body) for scope, body in app.requests}
    assert set(by_path) == {"/v1/chat/completions", "/p"}
    scope, body = by_path["/v1/chat/completions"]
    assert [m["content"] for m in body["messages"]] == ["Ann", "Hello, Ann", "Bob"]
    headers = dict(scope["headers"])
    assert (headers[b"host"], headers[b"x-key"], scope["method"]) == (b"localhost", b"k", "POST")
    assert int(headers[b"content-length"]) > 0
    assert scope["state"] == {"db": "open"}
    assert by_path["/p"][0]["query_string"] == b"q=1"


def test_an_application_of_any_http_type() -> None:
    """`app` replaces the address for any HTTP agent type; an endpoint then gives the path."""

    async def chat(body: dict[str, Any], send: Send, receive: Receive) -> None:
        await send(start())
        await send(piece(json.dumps({"text": f"{body['said']}!"}).encode()))

    made = scenario("s", turns=["Ann"])
    agent = {"type": "http", "app": App(chat), "body": {"said": "{{message}}"}, "reply": "text"}
    assert held(run_scenarios([made], agent=agent)).turns[0].agent_message == "Ann!"
    app = App(hello)
    run_scenarios([made], agent={"app": app, "endpoint": "http://shop.example/chat"})
    scope = app.requests[0][0]
    assert (scope["path"], dict(scope["headers"])[b"host"]) == ("/chat", b"shop.example")


def test_a_stream_comes_as_it_is_sent() -> None:
    """Chunks are read while the application still runs, and compressed ones are decompressed."""

    async def stream(body: dict[str, Any], send: Send, receive: Receive) -> None:
        packed = b"".join(
            f'data: {{"choices": [{{"delta": {{"content": "{word}"}}}}]}}\n\n'.encode()
            for word in ("Hel", "lo")
        )
        await send(start(200, "text/event-stream", (b"content-encoding", b"gzip")))
        await send(piece(gzip.compress(packed + b"data: [DONE]\n\n")))

    assert held(run(App(stream), agent={"streaming": True})).turns[0].agent_message == "Hello"

    async def go() -> None:
        read = anyio.Event()

        async def waits(body: dict[str, Any], send: Send, receive: Receive) -> None:
            await send(start())
            await send(piece(b"one", more=True))
            await read.wait()
            await send(piece(b"two"))

        async with running_app("a", App(waits), print) as running:
            answer = await running.send_direct("POST", "http://localhost/", [], b"{}")
            got = []
            async for part in answer.pieces():
                got.append(part)
                read.set()
            await answer.aclose()
        assert got == [b"one", b"two"]

    anyio.run(go)


async def _raises(body: dict[str, Any], send: Send, receive: Receive) -> None:
    raise ValueError("no idea")


async def _answers_500_and_raises(body: dict[str, Any], send: Send, receive: Receive) -> None:
    await send(start(500, "text/plain"))
    await send(piece(b"Internal Server Error"))
    raise KeyError("order")


async def _raises_in_between(body: dict[str, Any], send: Send, receive: Receive) -> None:
    await send(start())
    await send(piece(b'{"choi', more=True))
    raise OSError("disk full")


async def _says_nothing(body: dict[str, Any], send: Send, receive: Receive) -> None:
    pass


async def _no_start(body: dict[str, Any], send: Send, receive: Receive) -> None:
    await send(piece(b"{}"))


async def _endless(body: dict[str, Any], send: Send, receive: Receive) -> None:
    await send(start())
    while True:
        await send(piece(b" " * 2**20, more=True))


async def _no_end(body: dict[str, Any], send: Send, receive: Receive) -> None:
    await send(start())
    assert (await receive())["type"] == "http.disconnect"


def _sends(*messages: Any) -> Callable[..., Awaitable[None]]:
    async def answer(body: dict[str, Any], send: Send, receive: Receive) -> None:
        for message in messages:
            await send(message)

    return answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (_sends(5), "the application sent an invalid ASGI message: 5"),
        (_sends({"status": 200}), "the application sent an invalid ASGI message: {'status': 200}"),
        (_sends(start(), piece("{}")), "sent a str as the body of its answer, expected bytes"),  # type: ignore[arg-type]
        (_sends(start(), piece(9**9)), "sent a int as the body of its answer, expected bytes"),  # type: ignore[arg-type]
        (_raises, "the application raised ValueError: no idea"),
        (_answers_500_and_raises, "the application raised KeyError: 'order'"),
        (_raises_in_between, "the application raised OSError: disk full"),
        (_says_nothing, "the application returned before its answer was complete"),
        (_no_start, "the application sent 'http.response.body' before the start of its answer"),
        (_endless, "the answer is larger than 10 MB"),
        (_no_end, "no complete answer within 0.05 s. If the agent may take longer"),
    ],
)
def test_an_application_that_fails(answer: Any, said: str) -> None:
    """An exception is the agent's error with type and message; size and time are limited."""
    timeout = 50 if answer is _no_end else 30_000
    assert said in problem(App(answer), request_timeout_ms=timeout)


def test_work_after_the_answer() -> None:
    """Work after the answer is waited for, and an exception in it is noted."""
    notes: list[str] = []
    done: list[str] = []

    async def late(body: dict[str, Any], send: Send, receive: Receive) -> None:
        await hello({"messages": [{"content": "x"}]}, send, receive)
        await anyio.lowlevel.checkpoint()
        done.append("late")
        raise RuntimeError("too late")

    async def go() -> None:
        async with running_app("bot", App(late), notes.append) as running:
            for _ in range(2):
                answer = await running.send_direct("POST", "http://localhost/", [], b"{}")
                assert [part async for part in answer.pieces()] == [saying("Hello, x")]

    anyio.run(go)
    assert done == ["late", "late"]
    assert notes == ["agent 'bot': the application raised RuntimeError: too late after its answer, 2 times"]


def test_an_exception_right_after_the_answer_is_noted() -> None:
    """An exception before the answer was read is still one after the answer."""
    notes: list[str] = []

    async def at_once(body: dict[str, Any], send: Send, receive: Receive) -> None:
        await hello({"messages": [{"content": "x"}]}, send, receive)
        raise RuntimeError("too late")

    async def go() -> None:
        async with running_app("bot", App(at_once), notes.append) as running:
            answer = await running.send_direct("POST", "http://localhost/", [], b"{}")
            assert [part async for part in answer.pieces()] == [saying("Hello, x")]

    anyio.run(go)
    assert notes == ["agent 'bot': the application raised RuntimeError: too late after its answer, once"]


def test_an_application_that_cannot_be_cancelled_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that ignores cancellation is abandoned with a note, and the event loop closes."""
    monkeypatch.setattr(calling, "_END_LIMIT_S", 0.01)
    monkeypatch.setattr(application, "_LAST_REQUESTS_S", 0.01)
    notes: list[str] = []

    async def for_ever(body: dict[str, Any], send: Send, receive: Receive) -> None:
        await hello({"messages": [{"content": "x"}]}, send, receive)
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def go() -> None:
        async with running_app("bot", App(for_ever), notes.append) as running:
            await running.send_direct("POST", "http://localhost/", [], b"{}")

    anyio.run(go)
    assert len(notes) == 1
    assert "does not end: it continues when it is cancelled" in notes[0]


def test_the_application_notices_a_disconnect() -> None:
    """Sending to a closed connection raises OSError, as behind a server."""
    got: list[str] = []

    async def sends_on(body: dict[str, Any], send: Send, receive: Receive) -> None:
        await send(start())
        try:
            while True:
                await send(piece(b"x", more=True))
        except OSError as error:
            got.append(str(error))

    async def go() -> None:
        async with running_app("bot", App(sends_on), print) as running:
            answer = await running.send_direct("POST", "http://localhost/", [], b"{}")
            await answer.aclose()

    anyio.run(go)
    assert got == ["nobody listens any more"]


async def _without_lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    await hello(json.loads((await receive())["body"]), send, receive)


async def _failing(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "Traceback …\nRuntimeError: no database"})


async def _raising(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    raise RuntimeError("no database")


async def _ending_badly(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "lifespan":
        return await hello(json.loads((await receive())["body"]), send, receive)
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    raise RuntimeError("still open")


def test_lifespans() -> None:
    """An application without a lifespan works; a failed startup stops the run."""
    assert held(run(_without_lifespan)).turns[0].agent_message == "Hello, Ann"
    with pytest.raises(
        ConfigError, match=r"agent 'agent': the application did not start: its startup failed: Runt"
    ):
        run(_failing)
    with pytest.raises(ConfigError, match=r"did not start: the application raised RuntimeError: no database"):
        run(_raising)


def test_a_shutdown_that_fails_is_noted() -> None:
    """It is only a note, because the conversations are over."""
    notes: list[str] = []

    async def go() -> None:
        async with running_app("bot", _ending_badly, notes.append):
            pass

    anyio.run(go)
    assert notes == [
        "agent 'bot': the application ended badly: the application raised RuntimeError: still open"
    ]


def test_a_failed_request_does_not_stop_the_application() -> None:
    """`AppFailed` affects one request, and the next one succeeds."""

    async def go() -> None:
        app = App(_raises)
        async with running_app("bot", app, print) as running:
            with pytest.raises(AppFailed):
                await running.send_direct("POST", "http://localhost/", [], b"{}")
            app.answer = hello
            content = json.dumps({"messages": [{"content": "Ann"}]}).encode()
            answer = await running.send_direct("POST", "http://localhost/", [], content)
            assert [part async for part in answer.pieces()] == [saying("Hello, Ann")]

    anyio.run(go)


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({"type": "asgi"}, "Field required"),
        ({"type": "asgi", "app": "bot"}, "has the form pkg.module:app"),
        ({"type": "asgi", "app": 5}, "is 5, expected an import path of the form pkg.module:app"),
        ({"type": "asgi", "app": "bot:app", "path": "chat"}, "must begin with a slash"),
        ({"app": "bot:app", "path": "/a", "endpoint": "http://h"}, "`path` goes with an `app`"),
        ({"endpoint": "http://h", "path": "/a"}, "`path` goes with an `app`"),
        ({"streaming": True}, "Field required"),
        (
            {"app": "bot:app", "server": {"command": "x", "ready": "tcp://h:1"}},
            "`app` and `server` exclude each other",
        ),
    ],
)
def test_settings_that_do_not_go_together(agent: dict[str, Any], said: str) -> None:
    """An agent needs an address or an application, without settings of the other."""
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        Config.model_validate({"agent": agent})


def test_addresses_of_applications() -> None:
    """Messages show the application; requests have the address that the protocol needs."""
    agent = AsgiAgent(type="asgi", app="bot:app")
    assert (agent.address, agent.default_endpoint) == ("app bot:app", "http://localhost/v1/chat/completions")
    assert ChatCompletionsAgent(app=print).address == "an app in Python (builtin_function_or_method)"


APPLICATION = """
import json

number = 3

def note(event):
    with open("events", "a") as file:
        print(event, file=file)

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        note("up")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        note("down")
        return await send({"type": "lifespan.shutdown.complete"})
    said = json.loads((await receive())["body"])["messages"][-1]["content"]
    if said == "crash":
        raise RuntimeError("no idea")
    body = json.dumps({"choices": [{"message": {"content": f"{said}!"}}]}).encode()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})

def make():
    return app
"""


def test_a_run_with_workers(tmp_path: Path) -> None:
    """Each worker starts its own application, and the main process starts none."""
    project = Project(tmp_path)
    project.write("bot.py", APPLICATION)
    project.config("", agent={"type": "asgi", "app": "bot:app"})
    project.scenario('scenario("good", turns=["hi"])\nscenario("bad", turns=["crash"])')
    done = project.run("--offline", "--workers", "2")
    assert done.returncode == 1, done.stderr
    assert "agent   agent  app bot:app" in done.stdout
    assert project.scenario_result("good")["conversations"][0]["turns"][0]["agentMessage"] == "hi!"
    assert "the application raised RuntimeError: no idea" in done.stdout
    assert sorted((tmp_path / "events").read_text().split()) == ["down", "down", "up", "up"]


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("nowhere:app", "agent 'agent': app: importing 'nowhere' failed: ModuleNotFoundError"),
        ("bot:nothing", "agent 'agent': app: module 'bot' has no 'nothing'"),
        ("bot:number", "agent 'agent': app: 'bot:number' is not an ASGI application"),
        ("bot:make", "agent 'agent': app: 'bot:make' does not take (scope, receive, send)"),
    ],
)
def test_invalid_applications(app: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one message with key and import path."""
    monkeypatch.chdir(tmp_path)
    Project(tmp_path).write("bot.py", APPLICATION)
    with pytest.raises(ConfigError) as caught:
        load_app("agent", app, tmp_path)
    assert str(caught.value).startswith(said)
    sys.modules.pop("bot", None)


def test_a_run_without_its_application(tmp_path: Path) -> None:
    """If the application cannot be imported, the run ends before any conversation with status 2."""
    project = Project(tmp_path)
    project.config("", agent={"type": "asgi", "app": "nowhere:app"})
    project.scenario('scenario("good", turns=["hi"])')
    done = project.run("--offline")
    assert (done.returncode, done.stdout) == (2, "")
    said = "importing 'nowhere' failed: ModuleNotFoundError: No module named 'nowhere'"
    assert done.stderr.startswith(f"agentest: agent 'agent': app: {said}")
    assert done.stderr.count("\n") == 1


def test_an_application_that_blocks_is_too_late() -> None:
    """Time in which an application blocks the event loop counts against its limit."""

    async def blocks(body: dict[str, Any], send: Send, receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.3
        while loop.time() < end:
            pass
        await hello(body, send, receive)

    assert "no complete answer within 0.1 s" in problem(App(blocks), request_timeout_ms=100)
