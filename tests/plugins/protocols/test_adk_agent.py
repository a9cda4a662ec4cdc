"""Agents behind ADK's server, here one of our own: sessions, what is sent, events, and every wrong answer."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import unquote

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from wire import Answer, Connection, Wire, closed_port, completion, hang, http, wire

from agentest import scenario
from agentest.agents.chat_completions import ChatCompletionsClient
from agentest.agents.factory import check_reachable, make_agents
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.config.config import Config
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import ScriptedUser
from agentest.domain.messages import AgentMessage, Session, UserText
from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import Blame, Conversation, Remark, ToolCall, Usage
from agentest.mocks.resolver import MockResolver
from agentest.plugins.protocols.adk_server.client import AdkClient, read_run
from agentest.plugins.protocols.adk_server.settings import AdkAgent
from agentest.support.errors import AgentError, AgentestError, AgentUnreachable, CannotSend, SessionMismatch
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import open_client
from agentest.testing import arun_scenarios, run_scenarios

STATE = {"customer": "Ann", "n": None, "user:tier": "gold"}
SESSION = Session("salon", "u-1", STATE, "s-1")
SAID = (
    UserText("Hi"),
    AgentMessage("Hello."),
    UserText("Book."),
)
SSE = ["content-type: text/event-stream"]
NOW = "retry-after: 0"


def event(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"author": "salon", "content": {"role": "model", "parts": list(parts)}, "actions": {}, **more}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"text": said, **more}


def call(name: str, id: str | None = None, **args: Any) -> dict[str, Any]:
    return {"functionCall": {**({"id": id} if id else {}), "name": name, "args": args}}


def answer(name: str, id: str | None = None, **response: Any) -> dict[str, Any]:
    return {"functionResponse": {**({"id": id} if id else {}), "name": name, "response": response}}


def made(name: str, args: Any, result: Any = None) -> ToolCall:
    return ToolCall(name, args, result, mocked=False, turn_index=0, seen_by=SeenBy.AGENT)


def created(state: Any = STATE, id: str = "s-1") -> bytes:
    return http(json.dumps({"id": id, "appName": "salon", "userId": "u-1", "state": state}).encode())


def listed(*events: Any) -> bytes:
    return http(json.dumps(events).encode())


def streamed(*events: Any, ending: str = "\n\n", **options: Any) -> bytes:
    return http("".join(f"data: {json.dumps(e)}{ending}" for e in events).encode(), headers=SSE, **options)


DONE = listed(event(text("Done.")))


async def ask(
    port: int,
    turn_index: int = 0,
    session: Session | None = SESSION,
    timeout_s: float = 10.0,
    **config: Any,
) -> AgentReply:
    """One request of the turn loop."""
    settings = {"endpoint": f"http://127.0.0.1:{port}", **config}
    async with open_client(AddressGuard()) as client:
        agent = AdkClient(AdkAgent(type="adk", **settings), client, timeout_s)
        ctx = TurnContext(
            "slot-1", "slot", turn_index, print, session, session_id=(session and session.session_id) or "s-1"
        )
        return await agent.reply(SAID, ctx)


def asked(*answers: Answer, **options: Any) -> tuple[AgentReply, Wire]:
    """The reply of a server that answers so."""

    async def go() -> tuple[AgentReply, Wire]:
        async with wire(*answers) as opened:
            return await ask(opened.port, **options), opened

    return anyio.run(go)


def refused(*answers: Answer, **options: Any) -> tuple[AgentestError, Wire]:
    """The error about a server that answers so."""

    async def go() -> tuple[AgentestError, Wire]:
        async with wire(*answers) as opened:
            with pytest.raises((NoReply, CannotSend)) as caught:
                await ask(opened.port, **options)
            return caught.value, opened

    return anyio.run(go)


# What is sent


def test_the_first_turn() -> None:
    """The first turn creates the session with the state, runs the agent on the last message, reads back."""
    after = {**STATE, "cart": ["notebook"]}
    reply, opened = asked(created(), DONE, created(after), headers={"Authorization": "Bearer secret"})
    session, run, read = opened.requests
    assert session.line == "POST /apps/salon/users/u-1/sessions HTTP/1.1"
    assert session.body == {"state": STATE, "session_id": "s-1"}
    assert run.line == "POST /run HTTP/1.1"
    assert run.body == {
        "app_name": "salon",
        "user_id": "u-1",
        "session_id": "s-1",
        "new_message": {"role": "user", "parts": [{"text": "Book."}]},
        "streaming": False,
    }
    assert {r.headers["authorization"] for r in opened.requests} == {"Bearer secret"}
    assert read.line == "GET /apps/salon/users/u-1/sessions/s-1 HTTP/1.1"
    assert (reply.text, reply.tool_requests, reply.retries, reply.author) == ("Done.", (), 0, "salon")
    assert (reply.state_before, reply.state, reply.state_error) == (STATE, after, None)
    assert reply.latency_ms > 0


def test_a_later_turn() -> None:
    """A later turn goes into the same session, and nothing is created again."""
    reply, opened = asked(DONE, created({"n": 2}), turn_index=1)
    run, read = opened.requests
    assert read.line.startswith("GET ")
    assert (reply.state_before, reply.state) == (None, {"n": 2})
    assert (run.line, run.body["session_id"]) == ("POST /run HTTP/1.1", "s-1")


def test_whose_session() -> None:
    """The configuration's app and user win over the case's; without either the user is `agentest`."""
    mine = {"app_name": "a b/c", "user_id": "me"}
    _, opened = asked(created(), DONE, **mine)
    assert opened.requests[0].line == "POST /apps/a%20b%2Fc/users/me/sessions HTTP/1.1"
    assert {key: opened.requests[1].body[key] for key in mine} == mine
    _, opened = asked(created({}), DONE, session=None, app_name="salon")
    assert opened.requests[0].line == "POST /apps/salon/users/agentest/sessions HTTP/1.1"
    assert opened.requests[0].body == {"state": {}, "session_id": "s-1"}


NAMES = st.text(min_size=1, max_size=8) | st.sampled_from(
    ["%2e%2e", "%2E", "...", "a/..", "../..", "..\\..", ".%2e", "a?b#c", "..;x", "%252e", "\ud800", " "]
)


@given(NAMES, NAMES)
def test_names_stay_inside_their_part_of_the_path(app: str, user: str) -> None:
    """No name of an app or a user changes the path: each is one part of it, or refused."""
    if {".", ".."} & {app, user}:
        problem, opened = refused(created(), DONE, session=Session(app, user, STATE, "s-1"))
        assert isinstance(problem, CannotSend)
        assert "cannot be the app_name, user_id or session_id" in str(problem)
        assert not opened.requests
        return
    _, opened = asked(created(), DONE, session=Session(app, user, STATE, "s-1"))
    parts = opened.requests[0].line.split(" ")[1].split("/")
    names = [name.encode(errors="replace").decode() for name in (app, user)]
    assert [unquote(part) for part in parts] == ["", "apps", names[0], "users", names[1], "sessions"]


@pytest.mark.parametrize("name", [".", ".."])
def test_session_ids_that_are_no_names(name: str) -> None:
    """A session's id that would change the path of an older server is refused."""
    problem, opened = refused(http(status="404 Not Found"), created(), session=Session("a", "u", {}, name))
    assert "cannot be the app_name, user_id or session_id" in str(problem)
    assert len(opened.requests) == 1


def test_no_app_name() -> None:
    """Without an app name nothing is sent, and the error says where to set it.

    The agent is not to blame.
    """
    for session in (None, Session(user_id="u", session_id="s")):
        found, opened = refused(DONE, session=session)
        assert isinstance(found, CannotSend)
        assert "has no app_name: set it in the agent's configuration" in str(found)
        assert f"http://127.0.0.1:{opened.port}/list-apps" in str(found)
        assert not opened.requests


@pytest.mark.parametrize(("named", "sent"), [("mine", "mine"), (None, "agentest-slot-1-")])
def test_the_session_of_a_conversation(named: str | None, sent: str) -> None:
    """A conversation uses its case's session or a new one, and the record has its id."""

    async def go() -> tuple[Conversation, Wire]:
        async with wire(http(b"", "409 Conflict"), DONE) as opened, open_client(AddressGuard()) as client:
            config = AdkAgent(type="adk", endpoint=f"http://127.0.0.1:{opened.port}")
            user, mocks = ScriptedUser(("Hi.",)), MockResolver({}, scenario="s", conversation_id="slot-1")
            session = Session("salon", session_id=named)
            spec = ConversationSpec("slot-1", "s", 2, session)
            loop = TurnLoop(spec, AdkClient(config, client, 5), user, mocks)
            return await loop.run(), opened

    held, opened = anyio.run(go)
    assert held.failure is None
    begun, before, run, after = opened.requests
    assert [request.body["session_id"] for request in (begun, run)] == [held.session_id] * 2
    place = f"GET /apps/salon/users/agentest/sessions/{held.session_id} HTTP/1.1"
    assert (before.line, after.line) == (place, place)
    assert str(held.session_id).startswith(sent)


# Sessions


EXISTS = http(b'{"detail": "Session already exists"}', "409 Conflict")


def test_an_existing_session() -> None:
    """An existing session is used if its state includes the requested one."""
    before = {**STATE, "bookings": 1}
    reply, opened = asked(EXISTS, created(before), DONE, created(STATE))
    assert (reply.text, reply.state_before, len(opened.requests)) == ("Done.", before, 4)
    reply, _ = asked(
        EXISTS, http(b"", "404 Not Found"), DONE, session=Session("salon", "u-1", {"temp:x": 1}, "s-1")
    )
    assert (reply.text, reply.state_before) == ("Done.", None)


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (created({**STATE, "customer": "Bob"}), 'has the state {"customer": "Bob"'),
        (created({}), "has the state {}"),
        (http(b"", "404 Not Found"), "could not be read: http"),
    ],
)
def test_an_existing_session_of_another_state(read: bytes, found: str) -> None:
    """A session with another state is an error that does not blame the agent, and nothing runs."""

    async def go() -> tuple[str, Wire]:
        async with wire(EXISTS, read) as opened:
            with pytest.raises(SessionMismatch) as caught:
                await ask(opened.port)
            return str(caught.value), opened

    said, opened = anyio.run(go)
    assert "the session 's-1' exists already and keeps its own state" in said
    assert found in said
    assert "Leave session_id out" in said
    assert len(opened.requests) == 2


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (http(b"boom", "500 Oops"), "sessions/<session_id> answered 500: boom"),
        (http(b"", "405 Method Not Allowed"), "sessions/<session_id> answered 405"),
        (http(b"<html>"), "is a web page, not JSON"),
        (http(b"[]"), "answered no session of ADK's, but: []"),
        (created([1]), "answered no session of ADK's"),
        (created({}, "other"), "answered no session of ADK's"),
        (http(b"{", length=100), "was cut"),
    ],
)
def test_a_state_that_cannot_be_read(read: bytes, why: str) -> None:
    """The reply counts, and the state is unknown with a reason."""
    reply, _ = asked(created(), DONE, read)
    assert (reply.text, reply.state) == ("Done.", None)
    assert "the session's state could not be read: " in str(reply.state_error)
    assert why in str(reply.state_error)


@pytest.mark.parametrize(
    "newer",
    [
        http(b'{"detail": "Not Found"}', "404 Not Found"),
        http(b"", "405 Method Not Allowed"),
        created({}, "made-up"),
    ],
)
def test_the_older_form(newer: bytes) -> None:
    """A server that does not know the newer form, or makes up an id there, is sent the bare state instead."""
    reply, opened = asked(newer, created(), DONE)
    assert opened.requests[1].line == "POST /apps/salon/users/u-1/sessions/s-1 HTTP/1.1"
    assert opened.requests[1].body == STATE
    assert reply.text == "Done."
    assert asked(newer, http(b"", "409 Conflict"), created(), DONE)[0].text == "Done."


def test_dropped_state() -> None:
    """Keys with `temp:`, which ADK drops, and keys set by others are not a mismatch."""
    session = Session("salon", "u-1", {"a": 1, "temp:x": 2}, "s-1")
    assert asked(created({"a": 1, "app:theirs": 3}), DONE, session=session)[0].text == "Done."


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([created({}, "x"), created(STATE, "x")], "no session 's-1' was created, but"),
        ([http(b"{}")], "no session 's-1' was created, but: {}"),
        ([http(b"[]")], "no session 's-1' was created, but: []"),
        ([http(b"null")], "no session 's-1' was created, but: null"),
        ([http(b"<html>")], "is a web page, not JSON (is this the address of `adk api_server`"),
        ([http(b"")], "empty"),
        ([http(b"data: {}\n\n", headers=SSE)], "a stream where a session was expected"),
        ([http(b"", "404 Not Found"), http(b"no", "404 Not Found")], "s-1 answered 404 (is this the"),
        ([http(b"boom", "500 Oops")], "sessions answered 500: boom"),
        ([http(b'{"detail": "bad"}', "400 Bad Request")], "sessions answered 400"),
        ([http(b"{", length=100)], "was cut"),
    ],
)
def test_sessions_that_are_not_created(answers: list[bytes], problem: str) -> None:
    """A different session is an error that shows both, and the agent does not run."""
    found, opened = refused(*answers)
    assert problem in str(found)
    assert len(opened.requests) == len(answers)


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([created({"state": STATE, "session_id": "s-1"})], "state differs from the one requested: found"),
        ([created({})], "state differs from the one requested"),
        ([created(None)], "state differs from the one requested"),
        ([created([1])], "state differs from the one requested"),
        ([created({**STATE, "customer": "Bob"})], 'expected {"customer": "Ann"'),
        ([http(b"", "404 Not Found"), created({})], "sessions/s-1: the session's state differs from the one"),
    ],
)
def test_a_session_without_the_state(answers: list[bytes], problem: str) -> None:
    """A server that did not take the state over makes the scenario errored, which it would not be."""

    async def go() -> tuple[Conversation, Wire]:
        async with wire(*answers) as opened, open_client(AddressGuard()) as client:
            config = AdkAgent(type="adk", endpoint=f"http://127.0.0.1:{opened.port}")
            user, mocks = ScriptedUser(("Hi.",)), MockResolver({}, scenario="s", conversation_id="slot-1")
            agent = AdkClient(config, client, 5)
            loop = TurnLoop(ConversationSpec("slot-1", "s", 2, SESSION), agent, user, mocks)
            return await loop.run(), opened

    held, opened = anyio.run(go)
    assert held.failure is not None
    assert held.failure.blame is Blame.INTERNAL
    assert problem in held.failure.message
    assert len(opened.requests) == len(answers)


def test_retries() -> None:
    """Both requests are retried if that is safe, and the reply counts all retries."""
    busy = http(b"busy", "503 Busy", [NOW])
    reply, opened = asked(busy, created(), busy, busy, DONE, busy, created())
    assert (reply.text, reply.retries, len(opened.requests)) == ("Done.", 3, 7)
    assert reply.state == STATE


# Wrong answers of a run


@pytest.mark.parametrize(
    ("answered", "problem"),
    [
        (
            http(b"Internal Server Error", "500 Oops", ["content-type: text/plain"]),
            "/run answered 500: Internal",
        ),
        (
            http(b'{"detail": "Agent not found: \'x\'"}', "404 Not Found"),
            "lists?): Agent not found: 'x'",
        ),
        (http(b""), "empty"),
        (http(b"[{"), "not JSON"),
        (http(b"[" * 100_000), "not JSON"),
        (http(b"{}"), "not a list of ADK's events: {}"),
        (http(b'{"error": "no"}'), "answered with an error: no"),
        (http(completion()), "not a list of ADK's events"),
        (http(b'"x"'), "not a list of ADK's events"),
        (http(b"[]", length=10), "was cut"),
        (listed(), "no final response among the 0 events"),
        (listed("x"), "is not a JSON object: x"),
        (listed(None), "is not a JSON object: null"),
        (listed({}), "no final response among the 1 events"),
        (listed(event(text("hm", thought=True))), "the final response of the agent is empty"),
        (listed(event(text(""))), "the final response of the agent is empty"),
        (listed(event(text("Hi"), partial=True)), "no final response"),
        (listed(event(text("Hi"), author="User")), "no final response"),
        (listed(event(text("Hi"), author=7)), "`author`"),
        (listed({"content": "Hi"}), "no list of parts"),
        (listed({"content": {"parts": "Hi"}}), "no list of parts"),
        (listed({"content": {"parts": ["Hi"]}}), "no list of parts"),
        (listed(event({"text": 7})), "`text` of an event"),
        (listed(event({"functionResponse": []}, longRunningToolIds=["1"])), "`functionResponse` of the"),
        (listed(event({"functionCall": "x"})), "`functionCall` of the agent has no name"),
        (listed(event({"functionCall": {}})), "`functionCall` of the agent has no name"),
        (listed(event({"functionResponse": {"name": 1}})), "`functionResponse` of the agent has no name"),
        (listed(event({"functionCall": {"name": "a", "id": 5}})), "`id` of a `functionCall`"),
        (listed({"errorCode": "SAFETY", "errorMessage": "blocked"}), "reports an error: SAFETY: blocked"),
        (listed({"errorMessage": "blocked"}), "reports an error: blocked"),
    ],
)
def test_wrong_answers(answered: bytes, problem: str) -> None:
    """A wrong answer is not retried, and the error describes it."""
    found, opened = refused(answered, turn_index=1)
    assert problem in str(found)
    assert len(opened.requests) == 1


def test_an_unreachable_server() -> None:
    with pytest.raises(NoReply, match=r"connection refused: nobody listens there \(2 attempts\)"):
        anyio.run(lambda: ask(closed_port(), retries=1))


async def _drip(writer: Connection) -> None:
    writer.write(http(b"", length=1000))
    while True:
        writer.write(b" ")
        await writer.drain()
        await anyio.sleep(0.01)


@pytest.mark.parametrize("slow", [hang, _drip])
@pytest.mark.parametrize("turn_index", [0, 1])
def test_slow_servers(slow: Answer, turn_index: int) -> None:
    """The time-out bounds the creation of the session and the run, however steadily bytes drip in."""
    found, opened = refused(slow, turn_index=turn_index, timeout_s=0.2)
    assert "no complete answer within 0.2 s" in str(found)
    assert len(opened.requests) == 1


@pytest.mark.parametrize("turn_index", [0, 1])
def test_huge_bodies(turn_index: int) -> None:
    """A body over 10 MB is refused, that of a session too."""
    found, _ = refused(http(b" " * (10 * 2**20 + 1)), turn_index=turn_index)
    assert "larger than 10 MB" in str(found)


# Streams


def test_streaming() -> None:
    """With `streaming` the events of `/run_sse` are read; chunks do not count next to the whole text."""
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 2}
    pieces = [event(text(t), partial=True, usageMetadata=usage) for t in ("Do", "ne.")]
    whole = event(text("Done."), usageMetadata=usage)
    reply, opened = asked(created(), streamed(*pieces, whole), streaming=True)
    assert (reply.text, reply.remarks, reply.usage) == ("Done.", (), Usage(7, 2))
    assert opened.requests[1].line == "POST /run_sse HTTP/1.1"
    assert opened.requests[1].body["streaming"] is True
    assert opened.requests[1].headers["accept"] == "text/event-stream"


def test_a_list_in_place_of_a_stream() -> None:
    """A server that answers with the whole list is read too, whatever it calls it."""
    body = json.dumps([event(text("Done."))]).encode()
    assert asked(http(body, headers=SSE), turn_index=1, streaming=True)[0].text == "Done."


LOOKS = event(text("Let me look."), call("find", "1"))


@pytest.mark.parametrize(
    ("answered", "problem"),
    [
        (streamed(), "cut: it ended without any event"),
        (streamed(event(text("Do"), partial=True)), "cut: it ended within an event"),
        (streamed(LOOKS), "no final response among the 1 events"),
        (streamed(event(call("a", "1")), event(answer("a", "1")), LOOKS), "no final response among the 3"),
        (streamed(LOOKS, event(text("Done.")), length=5000), "was cut"),
        (http(b'data: {"content": {', headers=SSE), "is not JSON"),
        (streamed(7), "is not a JSON object: 7"),
        (streamed({"error": "ValueError: no", "error_details": {}}), "reports an error: ValueError: no"),
        (streamed(event(text("Done.")), {"error": "ValueError: no"}), "reports an error: ValueError: no"),
    ],
)
def test_broken_streams(answered: bytes, problem: str) -> None:
    """A stream that is cut, or that reports an error, is an error and no short answer."""
    found, opened = refused(answered, turn_index=1, streaming=True)
    assert problem in str(found)
    assert len(opened.requests) == 1


# Events


def test_calls_in_parallel() -> None:
    """Calls keep their order, each with its response, in whatever order those arrive."""
    run, _ = read_run(
        [
            event(call("find", "1", day="Mon"), call("find", "2", day="Tue")),
            event(answer("find", "2", free=True), answer("find", "1", free=False)),
            event(text("Tuesday.")),
        ],
        0,
    )
    assert run.observed == (
        made("find", {"day": "Mon"}, {"free": False}),
        made("find", {"day": "Tue"}, {"free": True}),
    )
    assert run.text == "Tuesday."


def test_calls_without_ids() -> None:
    """Without ids a call's response is the next one of its name; a call without one has no result."""
    events = [
        event(call("a", n=1), call("b"), call("a", n=2), call("a", n=3)),
        event(answer("b", x=0), answer("a", x=1), answer("a", x=2), answer("c", x=9)),
        event(text("Done.")),
    ]
    assert read_run(events, 0)[0].observed == (
        made("a", {"n": 1}, {"x": 1}),
        made("b", {}, {"x": 0}),
        made("a", {"n": 2}, {"x": 2}),
        made("a", {"n": 3}),
    )


def test_absent_arguments() -> None:
    """A call without arguments differs from one with empty ones, as in ADK's trajectory metric."""
    events = [event({"functionCall": {"name": "a"}}, call("a")), event(text("Done."))]
    assert [c.args for c in read_run(events, 0)[0].observed] == [None, {}]


def test_remarks() -> None:
    """Texts before the reply are stored with author and number of earlier calls, joined by event; thoughts
    are not."""
    run, _ = read_run(
        [
            event(text("Book."), author="user"),
            event(text("Plan.", thought=True), text("Let me look."), call("find", "1")),
            event(answer("find", "1")),
            event(text("Found"), text("it."), author="helper"),
            event(text("Hm.", thought=True), text("Tuesday"), text("at 9.")),
        ],
        0,
    )
    assert run.remarks == (Remark("salon", "Let me look."), Remark("helper", "Found\nit."))
    assert [remark.calls_before for remark in run.remarks] == [0, 1]
    assert run.text == "Tuesday\nat 9."


@pytest.mark.parametrize(
    ("events", "reply"),
    [
        ([event(text("One.")), event(text("Two."))], "Two."),
        ([event(text("One.")), event({"inlineData": {}})], "One."),
        ([event({"inlineData": {}}), event(text("One."))], "One."),
        ([event({"inlineData": {}})], "[inlineData]"),
        ([event(text("Asked."), call("approve", "1"), longRunningToolIds=["1"])], "Asked."),
        ([event(call("approve", "1"), longRunningToolIds=["1"])], "[functionCall]"),
        ([event(answer("find", "1", n=1), actions={"skipSummarization": True})], '{"n": 1}'),
        ([event(text("x"), {"codeExecutionResult": {"output": "1"}})], None),
        ([event({"executableCode": {}}, {"codeExecutionResult": {}}, text("One."))], "One."),
        ([event({"newThing": 1}, text("One."))], "One."),
        ([{"errorCode": "MALFORMED_FUNCTION_CALL"}, event(text("One."))], "One."),
        ([event(text("One.")), {"errorCode": "SAFETY"}], None),
        ([event(text("One."), errorCode="MAX_TOKENS")], None),
        ([event(text("One.")), {"author": "salon"}, event()], "One."),
        ([event(text("One."), author=None)], "One."),
        (
            [
                {"content": None},
                {"content": {"role": "model"}},
                {"content": {"parts": None}},
                event(text("One.")),
            ],
            "One.",
        ),
    ],
)
def test_the_final_response(events: list[Any], reply: str | None) -> None:
    """The reply is the text of the last event that is final in ADK's sense; an error at the end is none."""
    run, problem = read_run(events, 0)
    assert run.text == reply
    assert (problem is None) == (reply is not None)


HANDED_OVER = [event(text("One moment."), call("hand_over", "1")), event(answer("hand_over", "1"))]


@pytest.mark.parametrize("events", [HANDED_OVER, [*HANDED_OVER, event(text(""))], HANDED_OVER[:1]])
def test_a_run_without_text(events: list[Any]) -> None:
    """An agent that called a tool and sends no text has handed over, which is not an error."""
    reply, _ = asked(listed(*events), turn_index=1)
    assert not reply.text
    assert [c.name for c in reply.observed] == ["hand_over"]
    assert reply.remarks == (Remark("salon", "One moment."),)


def test_a_streamed_run_without_text() -> None:
    """A stream that ends with a tool's response is whole, though no text follows."""
    reply, _ = asked(streamed(*HANDED_OVER), turn_index=1, streaming=True)
    assert not reply.text
    assert len(reply.observed) == 1


def test_a_handed_over_conversation() -> None:
    """A turn with a tool call and no text is completed, and the next one follows."""

    async def go() -> Any:
        async with (
            wire(created(), listed(*HANDED_OVER), DONE) as opened,
            open_client(AddressGuard()) as client,
        ):
            config = AdkAgent(type="adk", endpoint=f"http://127.0.0.1:{opened.port}")
            mocks = MockResolver({}, scenario="slot", conversation_id="slot-1")
            user = ScriptedUser(["A person, please.", "Thanks."])
            agent = AdkClient(config, client, 5)
            loop = TurnLoop(ConversationSpec("slot-1", "slot", 3, SESSION), agent, user, mocks)
            return await loop.run()

    conversation = anyio.run(go)
    assert conversation.failure is None
    assert [t.agent_message for t in conversation.turns] == ["", "Done."]
    assert [c.name for c in conversation.turns[0].tool_calls] == ["hand_over"]


def test_usage() -> None:
    """Tokens of all events are summed; what is not a number counts as 0."""
    events = [
        event(
            text("x"),
            usageMetadata={"promptTokenCount": 7, "candidatesTokenCount": 3, "cachedContentTokenCount": 2},
        ),
        event(
            text("y"),
            usageMetadata={"promptTokenCount": 5, "candidatesTokenCount": "many", "totalTokenCount": 9},
        ),
        event(text("z"), usageMetadata=True),
    ]
    assert read_run(events, 0)[0].usage == Usage(12, 3, 2)


def test_model_calls() -> None:
    """Each whole event with a model or tokens is one model call; without any, their number is unknown, not
    0."""
    told = [
        event(text("x"), usageMetadata={"promptTokenCount": 7}),
        event(text("y"), partial=True, modelVersion="m"),
        event(text("y"), modelVersion="m", usageMetadata={}),
        event(text("z"), usageMetadata=True),
    ]
    assert read_run(told, 0)[0].model_calls == 2
    assert read_run(told[-1:], 0)[0].model_calls is None
    reply, _ = asked(created(), http(json.dumps(told).encode()))
    assert reply.model_calls == 2


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_NAME = st.sampled_from(["find", "book"])
_ID = st.none() | st.sampled_from(["1", "2"])
_PARTS = st.one_of(
    st.builds(text, st.text(max_size=4)),
    st.builds(call, _NAME, _ID),
    st.builds(answer, _NAME, _ID),
    st.dictionaries(
        st.sampled_from(["text", "functionCall", "functionResponse", "thought", "x"]), _JSON, max_size=3
    ),
)
_EVENTS = st.one_of(
    _JSON,
    st.builds(
        lambda parts, more: event(*parts, **more),
        st.lists(_PARTS, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["author", "partial", "actions", "longRunningToolIds", "errorCode", "usageMetadata"]
            ),
            _JSON,
            max_size=2,
        ),
    ),
)


@given(st.lists(_EVENTS, max_size=5))
def test_any_events(events: list[Any]) -> None:
    """Any events are read or refused with an AgentError, and give a reply, a call or a reason."""
    try:
        run, problem = read_run(events, 3)
    except AgentError:
        return
    assert not (run.text and problem)
    assert run.text or problem or run.observed
    assert all(c.turn_index == 3 and not c.mocked for c in run.observed)


@given(st.lists(st.lists(_PARTS, max_size=3), max_size=4))
def test_pieces_add_nothing(turns: list[list[dict[str, Any]]]) -> None:
    """Events in pieces, before the whole ones, change nothing of what is read."""

    def read(events: list[Any]) -> AgentReply | str:
        try:
            return read_run(events, 0)[0]
        except AgentError as error:
            return str(error)

    whole = [event(*parts) for parts in turns]
    pieces = [e for parts in turns for e in (event(text("a"), partial=True), event(*parts))]
    assert read(whole) == read(pieces)


# In a conversation, and in the configuration


def test_a_conversation_that_fails_keeps_its_calls() -> None:
    """Calls that were observed before the agent failed are in the record of the unfinished turn."""

    async def go() -> Any:
        failed = streamed(event(call("find", "1")), event(answer("find", "1", n=1)), {"error": "Boom"})
        async with wire(created(), failed) as opened, open_client(AddressGuard()) as client:
            config = AdkAgent(type="adk", endpoint=f"http://127.0.0.1:{opened.port}", streaming=True)
            loop = TurnLoop(
                ConversationSpec("slot-1", "slot", 2, SESSION),
                AdkClient(config, client, 5),
                ScriptedUser(("Book.",)),
                MockResolver({}, scenario="slot", conversation_id="slot-1"),
            )
            return await loop.run()

    held = anyio.run(go)
    assert held.failure.message == "the agent reports an error: Boom"
    assert held.tool_calls == (made("find", {}, {"n": 1}),)


def test_the_configuration() -> None:
    """`type: adk` is read in either spelling, in every place of an agent; comparisons may override it."""
    config = Config.model_validate(
        {
            "agent": {"type": "adk", "endpoint": "http://h:1/", "appName": "a", "user_id": "u", "retries": 0},
            "compare": [
                {"name": "b", "appName": "b", "streaming": True},
                {"name": "c", "endpoint": "http://c", "type": "chat_completions"},
            ],
            "agents": {"d": {"type": "adk", "endpoint": "http://d"}},
        }
    )
    assert config.agent == AdkAgent(type="adk", endpoint="http://h:1/", app_name="a", user_id="u", retries=0)
    assert config.compare[0] == AdkAgent(
        type="adk", name="b", endpoint="http://h:1/", app_name="b", user_id="u", retries=0, streaming=True
    )
    assert isinstance(config.compare[1], ChatCompletionsAgent)
    assert config.agents["d"] == AdkAgent(type="adk", name="d", endpoint="http://d")
    assert config.agents["d"].address == "http://d"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"endpoint": "ftp://h"},
        {"endpoint": "http://h/run"},
        {"endpoint": "http://h/run_sse/"},
        {"endpoint": "http://h?x=1"},
        {"endpoint": "http://h", "app_name": ""},
        {"endpoint": "http://h", "app_name": ".."},
        {"endpoint": "http://h", "user_id": "."},
        {"endpoint": "http://h", "body": {}},
        {"endpoint": "http://h", "headers": {"a b": "c"}},
    ],
)
def test_wrong_configurations(wrong: dict[str, Any]) -> None:
    """An endpoint that is not a server's address, an empty name or an unknown key is refused."""
    with pytest.raises(ValidationError):
        Config.model_validate({"agent": {"type": "adk", **wrong}})


def test_an_application_in_place_of_an_address() -> None:
    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        body = json.loads((await receive())["body"])
        if "new_message" in body:
            said = body["new_message"]["parts"][0]["text"]
            answer: Any = [event(text(f"{said}!"))]
        else:
            answer = {"id": body["session_id"], "state": {}}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    made = scenario("s", turns=["Ann"])
    [held] = (
        run_scenarios([made], agent={"type": "adk", "app_name": "x", "app": app}).scenarios[0].conversations
    )
    assert held.conversation.turns[0].agent_message == "Ann!"
    assert AdkAgent(type="adk", app="bot:app").default_endpoint == "http://localhost"


def test_reachability() -> None:
    """A server that is down is found before the first conversation."""
    config = AdkAgent(type="adk", endpoint=f"http://127.0.0.1:{closed_port()}", retries=0)

    async def check() -> None:
        async with open_client(AddressGuard(False)) as client:
            await check_reachable("bot", config, client)

    with pytest.raises(AgentUnreachable, match="agent 'bot' cannot be reached at http://127"):
        anyio.run(check)


def test_agents_by_type(tmp_path: Any) -> None:
    """The configuration's type decides who speaks with the agent."""

    async def go() -> None:
        configs = {
            "a": AdkAgent(type="adk", endpoint="http://h"),
            "b": ChatCompletionsAgent(endpoint="http://h"),
        }
        async with open_client(AddressGuard()) as client, AsyncExitStack() as stack:
            resources = Resources(
                client=client,
                timeout_s=1.0,
                threads=anyio.CapacityLimiter(1),
                root=tmp_path,
                closing=stack,
                on_note=print,
            )
            agents = await make_agents(configs, resources)
        assert isinstance(agents["a"], AdkClient)
        assert isinstance(agents["b"], ChatCompletionsClient)

    anyio.run(go)


@pytest.mark.parametrize(
    ("sends", "session", "metadata"),
    [
        (True, SESSION, {"team": "x", "session_state": STATE}),
        (True, Session("salon", "u-1"), {"team": "x"}),
        (True, None, {"team": "x"}),
        (False, SESSION, {"team": "x"}),
    ],
)
def test_session_state_of_chat_completions(sends: bool, session: Session | None, metadata: Any) -> None:
    """On request, chat completions send a case's state as metadata.session_state."""

    async def go() -> Any:
        async with wire(http(completion())) as opened, open_client(AddressGuard()) as client:
            config = ChatCompletionsAgent(
                endpoint=opened.url, body={"metadata": {"team": "x"}}, send_session_state=sends
            )
            await ChatCompletionsClient(config, client, 5).reply(
                SAID, TurnContext("c", "s", 0, print, session, session_id="x")
            )
            return opened.requests[0].body["metadata"]

    assert anyio.run(go) == metadata


def test_session_state_needs_a_place() -> None:
    """`send_session_state` with a body whose metadata is not an object is refused."""
    with pytest.raises(ValidationError, match=r"body\.metadata must be an object"):
        ChatCompletionsAgent(endpoint="http://h", body={"metadata": "x"}, send_session_state=True)


_PAY = {"name": "pay", "id": "c1", "args": {"amount": 5}}
_ASKED = call("adk_request_confirmation", "q1", originalFunctionCall=_PAY, toolConfirmation={"hint": "Sure?"})
ASKS = listed(
    event({"functionCall": _PAY}),
    event(_ASKED, longRunningToolIds=["q1"]),
    event(answer("pay", "c1", error="It requires confirmation."), actions={"skipSummarization": True}),
)
PAID = listed(event(answer("pay", "c1", result="ok")), event(text("Paid.")))


def confirmed(run: Any, confirmed: bool) -> bool:
    response = {"id": "q1", "name": "adk_request_confirmation", "response": {"confirmed": confirmed}}
    return bool(run.body["new_message"] == {"role": "user", "parts": [{"functionResponse": response}]})


def decided(*turns: Any, answers: list[bytes], **options: Any) -> tuple[Conversation, Wire]:
    """A conversation in which `pay` needs a confirmation."""
    config = {"type": "adk", "app_name": "salon", "user_id": "u-1", **options.pop("config", {})}

    async def go() -> tuple[Conversation, Wire]:
        async with wire(*answers) as opened:
            agent = {**config, "endpoint": f"http://127.0.0.1:{opened.port}"}
            session = {"session_id": "s-1", "state": STATE}
            found = await arun_scenarios(
                [scenario("s", turns=[*turns], session=session, **options)], agent=agent
            )
            return found.scenarios[0].conversations[0].conversation, opened

    return anyio.run(go)


@pytest.mark.parametrize("approve", [True, {"pay": True}, False, {"pay": False}])
def test_the_scenario_answers_a_confirmation(approve: Any) -> None:
    """The answer goes out in the same turn, and overrides the setting."""
    granted = approve in (True, {"pay": True})
    end = PAID if granted else listed(event(answer("pay", "c1", error="rejected")), event(text("Not paid.")))
    config = {"approvals": "deny" if granted else "approve"}
    answers = [created(), ASKS, end, created()]
    conversation, opened = decided("Pay.", answers=answers, approve=approve, config=config)
    assert confirmed(opened.requests[2], granted)
    (turn,) = conversation.turns
    assert (turn.agent_message, turn.approvals) == ("Paid." if granted else "Not paid.", 1)
    (paid,) = turn.tool_calls
    assert (paid.name, paid.args) == ("pay", {"amount": 5})
    assert paid.approval is (Approval.GRANTED if granted else Approval.DENIED)
    assert (paid.result, paid.ran) == (({"result": "ok"}, True) if granted else (None, False))


@pytest.mark.parametrize("words", [None, "Yes, please.", "No."])
def test_the_user_answers_a_confirmation(words: str | None) -> None:
    """Without `approve`, the question is the reply, and the user's next message answers it."""
    answers = [created(), ASKS, created(), PAID, created()]
    conversation, opened = decided("Pay.", *([words] if words else []), answers=answers)
    asked, *others = conversation.turns
    assert asked.agent_message == 'The agent asks for approval to call pay with {"amount": 5} (Sure?).'
    (waits,) = asked.asked_calls if words else asked.tool_calls
    assert (waits.approval, waits.result, waits.ran) == (Approval.PENDING, None, False)
    if words:
        assert confirmed(opened.requests[3], words != "No.")
        (turn,) = others
        approval = Approval.DENIED if words == "No." else Approval.GRANTED
        assert [(each.name, each.approval) for each in turn.tool_calls] == [("pay", approval)]


def test_a_call_stays_known_when_the_agent_fails_after_the_answer() -> None:
    """A call that was confirmed may have run, although the server answered with an error."""
    answers = [created(), ASKS, http(b"broken", "500 Internal Server Error"), created()]
    conversation, _ = decided("Pay.", answers=answers, approve=True)
    assert conversation.unfinished is not None
    (call_made,) = conversation.unfinished.tool_calls
    assert (call_made.name, call_made.approval) == ("pay", Approval.GRANTED)
