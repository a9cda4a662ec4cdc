"""Agents that speak OpenAI's Realtime over a WebSocket: both spellings of its events, and what goes wrong."""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from test_websocket_agent import serving

from agentest import scenario
from agentest.config import Config
from agentest.domain.messages import Attachment
from agentest.domain.results import RunResult, Status
from agentest.plugins.authoring.endpoint_detection import detect_agent
from agentest.plugins.protocols.realtime.client import _file
from agentest.support.errors import CannotSend
from agentest.testing import run_scenarios

Socket = web.WebSocketResponse
Event = dict[str, Any]
Answers = Callable[[list[Event]], list[Event]]


def message(text: str, kind: str = "output_text") -> Event:
    part = {"type": kind, "transcript" if "audio" in kind else "text": text}
    return {"type": "message", "id": "item_m", "role": "assistant", "content": [part]}


def call(name: str, n: int, **arguments: Any) -> Event:
    text = json.dumps(arguments)
    return {
        "type": "function_call",
        "id": f"item_{n}",
        "call_id": f"call_{n}",
        "name": name,
        "arguments": text,
    }


class RealtimeServer:
    """Answers each `response.create` with the items that `answer` makes of the conversation."""

    def __init__(
        self, answer: Answers, *, beta: bool = False, end: Event | None = None, dones: int = 1
    ) -> None:
        self.sessions: list[Event] = []
        self.conversations: list[list[Event]] = []
        self._answer, self._beta, self._end = answer, beta, end or {"status": "completed"}
        self._dones = dones

    async def talk(self, socket: Socket, _: web.Request) -> None:
        given = {"modalities": ["audio", "text"]} if self._beta else {"output_modalities": ["audio"]}
        await socket.send_json({"type": "session.created", "session": {"id": "sess_1", **given}})
        items: list[Event] = []
        self.conversations.append(items)
        async for received in socket:
            event = json.loads(received.data)
            if event["type"] == "session.update":
                self.sessions.append(event["session"])
                await socket.send_json({"type": "session.updated", "session": event["session"]})
            elif event["type"] == "conversation.item.create":
                items.append(event["item"])
                await socket.send_json({"type": "conversation.item.added", "item": event["item"]})
            else:
                await self._respond(socket, items)

    async def _respond(self, socket: Socket, items: list[Event]) -> None:
        await socket.send_json(
            {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
        )
        output = self._answer(items)
        for index, item in enumerate(output):
            place = {"output_index": index, "item_id": item["id"]}
            await socket.send_json(
                {"type": "response.output_item.added", **place, "item": {**item, "content": []}}
            )
            for part in item.get("content", ()):
                text, name = part.get("text", part.get("transcript")), "output_text"
                if "transcript" in part:
                    name = "audio_transcript" if self._beta else "output_audio_transcript"
                elif self._beta:
                    name = "text"
                for piece in (text[:3], text[3:]):
                    await socket.send_json(
                        {"type": f"response.{name}.delta", **place, "content_index": 0, "delta": piece}
                    )
            if item["type"] == "function_call":
                await socket.send_json(
                    {"type": "response.function_call_arguments.done", **place, "arguments": item["arguments"]}
                )
            await socket.send_json({"type": "response.output_item.done", **place, "item": item})
            items.append(item)
        usage = {"input_tokens": 9, "output_tokens": 4, "input_token_details": {"cached_tokens": 2}}
        done = {"id": "resp_1", "output": output, "usage": usage, **self._end}
        for _ in range(self._dones):
            await socket.send_json({"type": "response.done", "response": done})
        await socket.send_json({"type": "rate_limits.updated", "rate_limits": []})


def books(items: list[Event]) -> list[Event]:
    """Book what the user names: two calls at once, then their results as text."""
    last = items[-1]
    if last["type"] == "function_call_output":
        results = [
            json.loads(item["output"])["id"] for item in items if item["type"] == "function_call_output"
        ]
        return [message(f"Booked {results[-2]} and {results[-1]}.")]
    said = last["content"][0]["text"]
    if "book" not in said:
        return [message(f"Message {sum(item['type'] == 'message' for item in items)}: {said}")]
    return [call("book", len(items), what="a"), call("book", len(items) + 1, what="b")]


@contextmanager
def server(talk: Callable[[Socket, web.Request], Awaitable[None]]) -> Iterator[str]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving(talk)) as url:
        yield url


def run(url: str, *scenarios: Any, **agent: Any) -> RunResult:
    config = Config.model_validate(
        {
            "agent": {"type": "realtime", "endpoint": f"{url}/v1/realtime?model=m", **agent},
            "request_timeout_ms": 5000,
            "strict": False,  # an agent that calls nothing is no error here
        }
    )
    return run_scenarios(scenarios, config=config)


def booking(name: str = "books") -> Any:
    return scenario(
        name,
        turns=["hi", {"user_message": "book both", "expect": {"contains": "Booked id-a and id-b."}}],
        tools={"book": lambda args: {"id": f"id-{args['what']}"}},
        trajectory={"match_mode": "strict", "expected": ["book", "book"]},
        conversations_per_scenario=10,
    )


@pytest.mark.parametrize("beta", [False, True])
def test_mocks_answer_the_calls_of_many_conversations_at_once(beta: bool) -> None:
    """The session requests text and declares the mocks; each conversation has its own socket."""
    talking = RealtimeServer(books, beta=beta)
    with server(talking.talk) as url:
        result = run(url, booking("one"), booking("two"), body={"instructions": "Be kind."})
    assert [each.verdict.status for each in result.scenarios] == [Status.PASSED] * 2, result.scenarios[
        0
    ].verdict
    asked = talking.sessions[0]
    assert asked["modalities" if beta else "output_modalities"] == ["text"]
    assert asked.get("type") == (None if beta else "realtime")
    assert (asked["instructions"], [tool["name"] for tool in asked["tools"]]) == ("Be kind.", ["book"])
    assert len(talking.conversations) == 20
    turn = result.scenarios[0].conversations[0].conversation.turns[1]
    assert [item.seen_by for item in turn.tool_calls] == ["caller", "caller"]
    assert (turn.usage.prompt_tokens, turn.usage.cached_tokens) == (18, 4)
    assert turn.first_token_ms is not None


@pytest.mark.parametrize("beta", [False, True])
def test_transcripts_are_the_text_of_audio(beta: bool) -> None:
    kind = "audio" if beta else "output_audio"
    with server(RealtimeServer(lambda items: [message("Good morning.", kind)], beta=beta).talk) as url:
        result = run(
            url, scenario("s", turns=[{"user_message": "hi", "expect": {"contains": "Good morning."}}])
        )
    assert result.scenarios[0].verdict.status is Status.PASSED


def test_a_repeated_end_is_not_the_reply_to_the_next_message() -> None:
    with server(RealtimeServer(books, dones=2).talk) as url:
        result = run(url, scenario("s", turns=["hi", "you"]))
    assert result.scenarios[0].conversations[0].conversation.replies == ("Message 1: hi", "Message 3: you")


async def silent(socket: Socket, _: web.Request) -> None:
    await socket.send_json({"type": "session.created", "session": {}})
    await socket.receive()
    await socket.close(code=1011)


async def flooding(socket: Socket, _: web.Request) -> None:
    await socket.send_json({"type": "session.created", "session": {}})
    with suppress(ConnectionError):
        while True:
            await socket.send_json({"type": "session.updated", "session": "x" * 1_000_000})


async def refusing(socket: Socket, _: web.Request) -> None:
    await socket.send_json({"type": "error", "error": {"code": "invalid_api_key", "message": "no such key"}})


async def greeting(socket: Socket, _: web.Request) -> None:
    await socket.send_json({"type": "hello"})


async def babbling(socket: Socket, _: web.Request) -> None:
    await socket.send_json({"type": "session.created", "session": {}})
    await socket.send_str("[1, 2")
    while not (await socket.receive()).type.name.startswith("CLOS"):
        pass


def ended(**end: Any) -> Any:
    return RealtimeServer(lambda items: [message("x")], end=end).talk


@pytest.mark.parametrize(
    ("talk", "problem"),
    [
        (
            ended(status="failed", status_details={"error": {"code": "E7", "message": "out of order"}}),
            "out of order",
        ),
        (
            ended(status="incomplete", status_details={"reason": "content_filter"}),
            "incomplete (content_filter)",
        ),
        (
            ended(status="failed", output=[{"type": "function_call", "name": "a"}]),
            "the agent's response failed",
        ),
        (ended(status="completed", output=[{"type": "function_call", "call_id": "c"}]), "has no name"),
        (ended(status="cancelled"), "cancelled"),
        (ended(status="odd"), "unknown status 'odd'"),
        (flooding, "the messages of one response are larger than 10 MB"),
        (silent, "code 1011, internal error) before the response was done"),
        (refusing, "no such key"),
        (greeting, "is not session.created"),
        (babbling, "not JSON"),
    ],
)
def test_what_goes_wrong_is_the_agents_error(talk: Any, problem: str) -> None:
    with server(talk) as url:
        result = run(url, scenario("s", turns=["hi"]))
    failure = result.scenarios[0].conversations[0].conversation.failure
    assert failure
    assert problem in failure.message
    assert result.scenarios[0].verdict.status is Status.FAILED


@pytest.mark.parametrize(
    ("talk", "found_settings"),
    [(silent, {"type": "realtime"}), (greeting, {"type": "websocket", "welcome": "@"})],
)
def test_init_recognizes_it_by_its_first_message(talk: Any, found_settings: dict[str, str]) -> None:
    with server(talk) as url:
        found = detect_agent(f"{url}/v1/realtime?model=m")
    assert found.settings == {"endpoint": f"{url}/v1/realtime?model=m", **found_settings}


async def picky(socket: Socket, _: web.Request) -> None:
    """Answer messages of one form, and be silent to all others."""
    await socket.send_json({"text": "Welcome!"})
    async for message in socket:
        if message.data.startswith("{") and "text" in (asked := json.loads(message.data)):
            await socket.send_json({"text": f"You said: {asked['text']}"})


def test_init_does_not_wait_for_forms_that_get_no_answer() -> None:
    with server(picky) as url:
        found = detect_agent(f"{url}/chat")
    assert found.is_complete
    assert found.settings["body"] == {"text": "{{message}}"}


def test_files() -> None:
    """A WAV file is sent as its samples, other audio as it is; what the protocol cannot take is refused."""
    sound = io.BytesIO()
    with wave.open(sound, "wb") as out:
        out.setparams((1, 2, 24_000, 0, "NONE", ""))
        out.writeframes(b"\1\2\3\4")
    wav = base64.b64encode(sound.getvalue()).decode()
    samples = base64.b64encode(b"\1\2\3\4").decode()
    assert _file(Attachment(mime_type="audio/wav", base64=wav)) == {"type": "input_audio", "audio": samples}
    assert _file(Attachment(mime_type="audio/pcm", base64=samples)) == {
        "type": "input_audio",
        "audio": samples,
    }
    assert (
        _file(Attachment(mime_type="image/png", base64="AAAA"))["image_url"] == "data:image/png;base64,AAAA"
    )
    for refused in (
        Attachment(mime_type="text/plain", base64="AAAA"),
        Attachment(mime_type="audio/mp3", base64="AA=="),
        Attachment(mime_type="audio/wav", base64="AAAA"),
    ):
        with pytest.raises(CannotSend):
            _file(refused)


RESULT = {"type": "function_call_output", "call_id": "call_9", "output": '{"ok": true}'}


class RunsItsTools(RealtimeServer):
    """Calls `delete` itself before it answers, and adds the call and its result to the conversation."""

    added = (call("delete", 9, what="x"), RESULT)

    async def _respond(self, socket: Socket, items: list[Event]) -> None:
        for item in self.added:
            await socket.send_json({"type": "conversation.item.added", "item": item})
        await super()._respond(socket, items)


class AddsOnlyCalls(RunsItsTools):
    added = (call("delete", 9, what="x"),)


class AddsOnlyResults(RunsItsTools):
    added = (RESULT,)


class ListsItsTools(RealtimeServer):
    """Runs its tools itself and tells nobody, although its session lists them."""

    async def _respond(self, socket: Socket, items: list[Event]) -> None:
        tools = [{"type": "function", "name": "delete"}]
        await socket.send_json({"type": "session.updated", "session": {"tools": tools}})
        await super()._respond(socket, items)


@pytest.mark.parametrize(
    ("kind", "mocks", "status"),
    [
        (RunsItsTools, {}, Status.FAILED),
        (RunsItsTools, {"find": 1}, Status.FAILED),
        (RunsItsTools, {"delete": 1}, Status.FAILED),
        (AddsOnlyCalls, {}, Status.FAILED),
        (AddsOnlyCalls, {"delete": 1}, Status.FAILED),
        (AddsOnlyResults, {}, Status.ERRORED),  # of which tool, nobody knows
        (RealtimeServer, {}, Status.ERRORED),  # nothing shows that it hands calls over
        (RealtimeServer, {"delete": 1}, Status.ERRORED),
        (ListsItsTools, {}, Status.ERRORED),
        (ListsItsTools, {"delete": 1}, Status.ERRORED),
    ],
)
def test_a_ban_on_a_tool_that_the_server_runs_itself(kind: Any, mocks: Any, status: Status) -> None:
    banned = scenario("s", turns=["delete it"], tools=mocks, trajectory={"forbidden": ["delete"]})
    with server(kind(lambda items: [message("Deleted.")]).talk) as url:
        (result,) = run(url, banned).scenarios
    assert result.verdict.status is status
    calls = result.conversations[0].conversation.tool_calls
    results = {RunsItsTools: {"ok": True}, AddsOnlyCalls: None}
    assert [(each.name, each.args, each.result) for each in calls] == (
        [("delete", {"what": "x"}, results[kind])] if kind in results else []
    )


@pytest.mark.parametrize("turns", [["book both"], ["hi", "book both"], ["book both", "hi"]])
def test_a_call_that_is_handed_over_shows_all_turns(turns: list[str]) -> None:
    """Whether the call came in the first turn or later, bans on other tools hold."""
    book = {"book": lambda args: {"id": f"id-{args['what']}"}}
    banned = scenario("s", turns=turns, tools=book, trajectory={"forbidden": ["delete"]})
    with server(RealtimeServer(books).talk) as url:
        (result,) = run(url, banned).scenarios
    assert result.verdict.status is Status.PASSED
    assert {turn.calls_hidden for turn in result.conversations[0].conversation.turns} == {None}


@pytest.mark.parametrize(("tool", "status"), [("delete", Status.ERRORED), ("book", Status.FAILED)])
def test_a_server_that_runs_some_tools_itself_is_partly_visible(tool: str, status: Status) -> None:
    book = {"book": lambda args: {"id": f"id-{args['what']}"}}
    banned = scenario("s", turns=["book both"], tools=book, trajectory={"forbidden": [tool]})
    with server(RealtimeServer(books).talk) as url:
        (result,) = run(url, banned, tool_visibility="partial").scenarios
    assert result.verdict.status is status


def test_a_server_without_tools_of_its_own_may_call_nothing() -> None:
    banned = scenario("s", turns=["hi"], trajectory={"forbidden": ["delete"]})
    with server(RealtimeServer(books).talk) as url:
        (result,) = run(url, banned, tool_visibility="returned").scenarios
    assert result.verdict.status is Status.PASSED
