"""Agents of type http: errors, and isolation between conversations."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import anyio
import pytest
from aiohttp import web
from http_agents import Handler, calls, held, opened, replies, served, settings, stream, talked
from hurrying import hurry

from agentest.config.config import Config
from agentest.domain.transcript import Blame, Conversation

BODY: dict[str, Any] = {"body": {"message": "{{message}}"}}


def answering(value: Any, status: int = 200, **headers: str) -> Handler:
    """A handler that always returns the same JSON."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(value, status=status, headers=headers)

    return answer


def texting(text: str, content_type: str = "text/plain", status: int = 200, **headers: str) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status, content_type=content_type, headers=headers)

    return answer


def streaming(*pieces: str, content_type: str = "text/event-stream", cut: bool = False) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = await stream(request, pieces, content_type)
        if cut:
            assert request.transport
            request.transport.abort()
        return response

    return answer


def failure(handler: Handler, blame: Blame = Blame.AGENT, **agent: Any) -> str:
    """Return the error about an agent with this handler."""
    conversation = talked({"POST /chat": handler}, {**BODY, **agent}, "Hi")
    assert conversation.failure is not None
    assert conversation.failure.blame is blame
    return conversation.failure.message


# What a path finds, or not.


@pytest.mark.parametrize(
    ("value", "path", "text"),
    [
        ({"reply": False}, "reply", "false"),
        ({"reply": 0}, "reply", "0"),
        ({"reply": ["a", "b"]}, "reply", "ab"),
        ({"reply": {"a": "é"}}, "reply", '{"a": "é"}'),
        ("just text", None, "just text"),
        ({"answer": "A", "id": "7"}, None, "A"),
        ({"choices": [{"message": {"content": "A"}}]}, None, "A"),
        ({"content": [{"type": "text", "text": "A"}]}, None, "A"),
    ],
)
def test_replies(value: Any, path: str | None, text: str) -> None:
    """`false`, 0, lists and objects are replies; without `reply` the only likely key is used."""
    agent = BODY if path is None else {**BODY, "reply": path}
    notes: list[str] = []
    assert replies(talked({"POST /chat": answering(value)}, agent, "Hi", notes=notes)) == [text]
    assert bool(notes) is (path is None and not isinstance(value, str))
    assert all("`reply` is not set, so its reply is the text at `" in note for note in notes)


NOTHING_FOUND = {
    "reply": (
        {"reply": "data.text"},
        answering({"data": {"answer": "Hello"}, "id": "x"}),
        "`reply: data.text` finds nothing in the agent's answer; found text at `data.answer`, `id`: {",
    ),
    "two usual places": (
        {},
        answering({"reply": "A", "text": "B"}),
        "the agent's answer has text at `reply` and `text`: set `reply` to",
    ),
    "an error where no path looks": (
        {},
        answering({"error": {"code": 9}, "message": "Something went wrong"}),
        "the agent's answer seems to report an error at `error`: {",
    ),
    "a status where no path looks": (
        {},
        answering({"status": "error", "message": "The database is down"}),
        "seems to report an error at `status`",
    ),
    "no usual place": (
        {},
        answering({"says": {"it": "A"}}),
        "set `reply` to its JMESPath; found text at `says.it`: {",
    ),
    "no text": ({"reply": "a"}, answering({"n": 1}), "it contains no text"),
    "events, nothing said": (
        {},
        streaming('data: {"t": "A"}\n\n', 'data: {"t": "B"}\n\n'),
        "say by `delta`, a JMESPath, where a piece of the reply stands in each, or by `reply` where the "
        "whole is; found text at `t`",
    ),
    "delta": (
        {"delta": "text"},
        streaming('data: {"t": "A"}\n\n'),
        '`delta: text` finds nothing in the agent\'s answer; found text at `t`: {"t": "A"}',
    ),
    "session": (
        {"session": "sid", "body": {"m": "{{message}}", "s": "{{session_id}}"}},
        answering({"reply": "A", "session": "s-1"}),
        "`session: sid` finds nothing in the agent's answer; found text at `reply`, `session`",
    ),
    "session header": (
        {"session": {"header": "X-Id"}, "body": {"m": "{{message}}", "s": "{{session_id}}"}},
        answering({"reply": "A"}),
        "`session: {header: X-Id}` finds nothing",
    ),
    "saved": (
        {"save": {"job": "job"}, "poll": {"endpoint": "/j/{{job}}", "until": "done"}},
        answering({"job_id": "7"}),
        "`save.job: job` finds nothing in the agent's answer; found text at `job_id`",
    ),
    "setup": (
        {"setup": {"endpoint": "/chat", "save": {"token": "token"}}, "headers": {"X": "{{token}}"}},
        answering({"access_token": "must-not-be-shown", "expires": 60}),
        "`save.token: token` finds nothing in the agent's answer; found text at `access_token`: "
        '{"access_token": "…", "expires": 60}',
    ),
    "empty": ({"reply": "a"}, texting(""), "the agent's answer is empty"),
    "empty stream": ({"delta": "a"}, streaming(), "the agent's answer is empty"),
    "not JSON": (
        {"reply": "a"},
        texting("{oops", "application/json"),
        "the agent's answer is not JSON: '{oops'",
    ),
    "half an event": (
        {"delta": "t"},
        streaming('data: {"t": "A"}\n\ndata: {"t": "B'),
        'an event of the agent\'s stream is not JSON: \'{"t": "B',
    ),
    "half a line": (
        {"delta": "t"},
        streaming('{"t": "A"}\n{"t', content_type="application/x-ndjson"),
        "a line of the agent's stream is not JSON: '{\"t",
    ),
    "a call without a name": (
        {"reply": "reply", "tool_calls": "tools"},
        answering({"reply": "A", "tools": [{"called": "pay"}]}),
        'a tool call of the agent has no `name`: {"called": "pay"}; write `tool_calls` so that it gives name',
    ),
    "a call with strange arguments": (
        {"reply": "reply", "tool_calls": "tools"},
        answering({"reply": "A", "tools": [{"name": "pay", "given": {"amount": 5}}]}),
        "a tool call of the agent has no `args`, but given",
    ),
    "no call": (
        {"reply": "reply", "tool_calls": "tools"},
        answering({"reply": "A", "tools": ["pay"]}),
        "`tool_calls` finds an entry that is not a tool call: pay",
    ),
    "the last event": (
        {"delta": "t", "done": "type == 'end'"},
        streaming('data: {"t": "A"}\n\n'),
        "the agent's stream was cut: it ended without the event that is the last one (`done: type == 'end'`)",
    ),
    "cut": ({"delta": "t"}, streaming('data: {"t": "A"}\n\n', cut=True), "the answer was cut"),
}


@pytest.mark.parametrize("name", NOTHING_FOUND)
def test_unexpected_answers(name: str) -> None:
    """The message has the key, places with text, and the answer, but never a login's answer."""
    agent, handler, message = NOTHING_FOUND[name]
    said = failure(handler, **agent)
    assert message in said
    assert "must-not-be-shown" not in said


REFUSALS = {
    "500 JSON": (answering({"error": "on fire"}, 500), 'answered 500: {"error": "on fire"}'),
    "400": (answering({"m": "bad"}, 400), "are sent as they are written"),
    "401": (
        answering({}, 401),
        "are the credentials in `headers` right? For an agent with a login, log in with",
    ),
    "403": (answering({}, 403), "may their user do this?"),
    "404": (answering({}, 404), "is the path of `endpoint` right?"),
    "405": (answering({}, 405), "POST http://127.0.0.1:"),
    "415": (
        answering({}, 415),
        "say which by a header, like `Content-Type: application/x-www-form-urlencoded`",
    ),
    "422": (
        answering({"detail": [{"loc": ["body", "query"], "msg": "Field required", "type": "missing"}]}, 422),
        "or has one of another type, that the agent requires): body.query: Field required",
    ),
    "login": (
        texting("", status=302, location="/accounts/login?next=/chat"),
        "log in with `setup: {per: run",
    ),
    "moved": (texting("", status=301, location="/other"), "set the endpoint to that address"),
    "web page": (texting("<html>Welcome</html>", "text/html"), "is a web page (is `endpoint` right?"),
    "login page": (
        texting('<html><input type="password"></html>', "text/html"),
        "it looks like the one where users log in",
    ),
    "error at 200": (
        answering({"error": {"message": "on fire"}}),
        '(`error: error`): {"message": "on fire"}',
    ),
    "error in a stream": (
        streaming('data: {"reply": "A"}\n\n', 'event: error\ndata: {"error": "on fire"}\n\n'),
        "(`error: error`): on fire",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    """The error names the likely cause and the key that would help. A wrong address, path or login does not
    blame the agent; other refusals do."""
    handler, message = REFUSALS[name]
    is_denied = name in ("401", "403", "404", "login", "web page", "login page")
    blame = Blame.INTERNAL if is_denied else Blame.AGENT
    assert message in failure(handler, blame, reply="reply", error="error")


def test_advice_depends_on_the_configuration() -> None:
    """If `body` already has the missing field, the advice differs and shows the refused body."""

    def missing(*names: str) -> Handler:
        places = [{"loc": ["body", name], "msg": "Field required", "type": "missing"} for name in names]
        return answering({"detail": places}, 422)

    told = failure(missing("message"), reply="reply")
    assert "`body` has these fields, so the agent reads them from another place: a form takes" in told
    assert failure(missing("user"), reply="reply").endswith('Add to `body`: user: "…"')
    told = failure(answering({"detail": "unknown thread"}, 422), reply="reply")
    assert told.endswith('unknown thread. The request had this body: {"message": "Hi"}')


@pytest.mark.parametrize("status", [401, 403, 404])
def test_whom_a_refusal_blames(status: int) -> None:
    """A refusal of a conversation's first request does not blame the agent, even if other conversations
    succeed; after an answer in the same conversation it does."""

    async def answer(request: web.Request) -> web.Response:
        is_fine = (await request.json())["message"] == "fine"
        return web.json_response({"reply": "A"}, status=200 if is_fine else status)

    async def talk() -> list[Blame | None]:
        async with (
            served({"POST /chat": answer}) as url,
            opened(settings(url, {**BODY, "reply": "reply"})) as client,
        ):
            conversations = [await held(client, *lines) for lines in (["no"], ["fine", "no"], ["no", "fine"])]
            return [each.failure.blame if each.failure else None for each in conversations]

    assert anyio.run(talk) == [Blame.INTERNAL, Blame.AGENT, Blame.INTERNAL]


def test_texts_in_another_character_set() -> None:
    """The content type's charset is used; an unknown one counts as UTF-8."""

    async def latin(request: web.Request) -> web.Response:
        kind = "text/plain; charset=" + ("latin-1" if "latin" in await request.text() else "klingon")
        return web.Response(
            body="é".encode("latin-1" if "latin" in kind else "utf-8"), headers={"content-type": kind}
        )

    assert replies(talked({"POST /chat": latin}, BODY, "latin", "other")) == ["é", "é"]


def test_events_called_error() -> None:
    """Without an `error` path, an event named error is the agent's error, even after text."""
    events = 'data: {"t": "A"}\n\n', 'event: error\ndata: {"detail": "on fire"}\n\n'
    assert '(event `error`): {"detail": "on fire"}' in failure(streaming(*events), delta="t")
    conversation = talked(
        {"POST /chat": streaming(*events)}, {**BODY, "delta": "t", "error": "failure"}, "Hi"
    )
    assert replies(conversation) == ["A"]


@pytest.mark.parametrize("told", [None, False, "", [], {}, 0])
def test_no_error(told: Any) -> None:
    """An empty `error` is ignored."""
    agent = {**BODY, "reply": "reply", "error": "error"}
    assert replies(talked({"POST /chat": answering({"reply": "A", "error": told})}, agent, "Hi")) == ["A"]


PAY = {"name": "pay", "args": {"amount": 5}}


@pytest.mark.parametrize(
    "handler",
    [
        answering({"calls": [PAY], "error": "x"}),
        streaming(f"data: {json.dumps({'calls': PAY})}\n\n", 'data: {"error": "x"}\n\n'),
        streaming(f"data: {json.dumps({'calls': PAY})}\n\n", cut=True),
        answering({"calls": [PAY], "other": "x"}),
    ],
    ids=["error", "error in a stream", "cut", "no reply path"],
)
def test_calls_before_an_error_stay(handler: Handler) -> None:
    """Calls before an agent's error are recorded."""
    agent = {**BODY, "delta": "t", "reply": "reply.text", "error": "error", "tool_calls": "calls"}
    conversation = talked({"POST /chat": handler}, agent, "Hi")
    assert (conversation.failure is None) is (conversation.turns != ())
    assert calls(conversation) == [("pay", {"amount": 5}, None)]


# Tool calls, tokens, time.


def test_repeated_calls() -> None:
    """A list that repeats the calls of earlier turns adds only new ones; short ids may restart."""

    async def growing(request: web.Request) -> web.Response:
        turn = (await request.json())["turn"]
        made = [{"id": f"call-of-a-uuid-{n}", **PAY} for n in range(turn + 1)]
        return web.json_response({"reply": "A", "calls": made})

    agent = {"body": {"m": "{{message}}", "turn": "{{turn_index}}"}, "reply": "reply", "tool_calls": "calls"}
    assert len(talked({"POST /chat": growing}, agent, "a", "b", "c").tool_calls) == 3
    again = answering({"reply": "A", "calls": [{"id": "1", **PAY}]})
    assert len(talked({"POST /chat": again}, agent, "a", "b", "c").tool_calls) == 3


def test_calls_under_one_id() -> None:
    """A different name, or different arguments after an answer, is a new call despite the same id."""
    told = [
        {"id": "1", "name": "look", "args": {"n": 1}},
        {"id": "1", "name": "look", "args": {"n": 2}},
        {"id": "1", "result": "found"},
        {"id": "1", "name": "look", "args": {"n": 3}},
        {"id": "1", "function": {"name": "pay", "arguments": "{}"}},
        {"id": "1", "result": "paid"},
    ]
    conversation = talked(
        {"POST /chat": answering({"reply": "A", "calls": told})},
        {**BODY, "reply": "reply", "tool_calls": "calls"},
        "Hi",
    )
    assert calls(conversation) == [("look", {"n": 2}, "found"), ("look", {"n": 3}, None), ("pay", {}, "paid")]


def test_calls_in_many_forms() -> None:
    """Common keys for arguments and results are read, also OpenAI's; invalid JSON is recorded as such."""
    told = [
        {"function": {"name": "a", "arguments": '{"n": 1}'}, "id": "1"},
        {"name": "b", "arguments": {"n": 2}, "output": "done"},
        {"name": "c", "input": None},
        {"name": "d", "args": "{n"},
        {"name": None, "args": None},
    ]
    agent = {**BODY, "reply": "reply", "tool_calls": "calls[:4]"}
    conversation = talked({"POST /chat": answering({"calls": told})}, agent, "Hi")
    assert replies(conversation) == [""]  # it handed over
    assert calls(conversation) == [
        ("a", {"n": 1}, None),
        ("b", {"n": 2}, "done"),
        ("c", {}, None),
        ("d", "{n", None),
    ]
    assert "not valid JSON" in str(conversation.tool_calls[3].invalid_arguments)


def test_usage_and_first_token_time() -> None:
    """Token counts are read by their common keys, and a stream's first text is timed."""
    events = ['data: {"t": "A"}\n\n', 'data: {"usage": {"input_tokens": 7, "output_tokens": 2}}\n\n']
    (turn,) = talked({"POST /chat": streaming(*events)}, {**BODY, "delta": "t"}, "Hi").turns
    assert (turn.usage.prompt_tokens, turn.usage.completion_tokens) == (7, 2)
    assert turn.first_token_ms is not None
    assert 0 < turn.first_token_ms <= turn.latency_ms
    usage = {
        "meta": {"tokens": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}},
        "reply": "A",
    }
    agent = {**BODY, "usage": "meta.tokens", "reply": "reply"}
    (turn,) = talked({"POST /chat": answering(usage)}, agent, "Hi").turns
    assert (turn.usage.prompt_tokens, turn.usage.cached_tokens, turn.first_token_ms) == (3, 1, None)


def test_a_busy_agent_is_retried() -> None:
    """HTTP agents of this type also retry a 503."""
    asked = Counter[str]()

    async def busy(request: web.Request) -> web.Response:
        asked["chat"] += 1
        return web.json_response(
            {"reply": "A"}, status=503 if asked["chat"] == 1 else 200, headers={"retry-after": "0"}
        )

    (turn,) = talked({"POST /chat": busy}, {**BODY, "reply": "reply"}, "Hi").turns
    assert (turn.retries, turn.agent_message) == (1, "A")


def test_unread_calls_are_noted() -> None:
    """If answers seem to report calls, a note names the key that reads them."""
    notes: list[str] = []
    talked({"POST /chat": answering({"reply": "A", "toolCalls": [PAY]})}, BODY, "Hi", notes=notes)
    assert any("seem to report tool calls at `toolCalls`" in note for note in notes)


def test_unread_errors_are_noted() -> None:
    """If an answer has a reply and an error, a note names the key that reads the error."""
    notes: list[str] = []
    told = {"POST /chat": answering({"reply": "A", "error": {"code": 5}})}
    talked(told, {**BODY, "reply": "reply"}, "Hi", notes=notes)
    assert any("seem to report an error at `error`" in note for note in notes)


async def in_process(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that streams the request's path, message and cookie."""
    if scope["type"] == "lifespan":
        await receive()
        return
    asked = json.loads((await receive())["body"])
    cookie = dict(scope["headers"]).get(b"cookie", b"none").decode()
    headers = [(b"content-type", b"text/event-stream"), (b"set-cookie", b"sid=1")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in (scope["path"], asked["m"], cookie):
        await send({"type": "http.response.body", "body": f"data: {piece} \n\n".encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def test_an_application_in_this_process() -> None:
    """With `app`, the endpoint is only the path; cookies and streams work as over HTTP."""

    async def run() -> Conversation:
        agent = {
            "type": "http",
            "app": in_process,
            "endpoint": "/chat",
            "body": {"m": "{{message}}"},
            "delta": "@",
        }
        async with opened(Config.model_validate({"agent": agent}).agent) as client:
            return await held(client, "Hi", "again")

    assert replies(anyio.run(run)) == ["/chat Hi none ", "/chat again sid=1 "]


# Jobs.

JOB = {
    **BODY,
    "save": {"job": "job"},
    "poll": {"endpoint": "/jobs/{{job}}", "until": "state == 'done'", "every_ms": 1},
    "reply": "reply",
    "error": "error",
    "tool_calls": "calls",
}


def test_a_job_that_never_ends() -> None:
    """After the request timeout the agent's error names the key and shows the last answer."""
    looks = Counter[str]()

    async def look(request: web.Request) -> web.Response:
        looks["n"] += 1
        if looks["n"] == 2:  # so the answer to the first has been read
            hurry()
        return web.json_response({"state": "thinking", "calls": [PAY]})

    routes = {"POST /chat": answering({"job": 1}), "GET /jobs/1": look}
    conversation = talked(routes, JOB, "Hi", timeout_s=60.0)
    assert conversation.failure is not None
    assert conversation.failure.message == (
        "the job was not done within 60 s (request_timeout_ms): `poll.until: state == 'done'` never held; "
        'the last answer: {"state": "thinking", "calls": [{"name": "pay", "args": {"amount": 5}}]}'
    )
    assert calls(conversation) == [("pay", {"amount": 5}, None)]


def test_calls_reported_while_a_job_runs() -> None:
    """Each call counts once, whether answers repeat earlier calls or not."""
    asked = Counter[str]()
    told = [[PAY], [PAY, {"name": "b", "args": {}}], [{"name": "b", "args": {}}]]

    async def look(request: web.Request) -> web.Response:
        asked["n"] += 1
        state = "done" if asked["n"] == 3 else "running"
        return web.json_response({"state": state, "calls": told[asked["n"] - 1], "reply": "A"})

    conversation = talked({"POST /chat": answering({"job": "7"}), "GET /jobs/7": look}, JOB, "Hi")
    assert replies(conversation) == ["A"]
    assert [call.name for call in conversation.tool_calls] == ["pay", "b"]


@pytest.mark.parametrize(
    ("handler", "message"),
    [(answering({"error": "lost"}), "(`error: error`): lost"), (answering({}, 404), "GET http://127.0.0.1:")],
    ids=["error", "404"],
)
def test_a_job_that_fails(handler: Handler, message: str) -> None:
    """Errors while a job runs are the agent's."""
    conversation = talked({"POST /chat": answering({"job": 1}), "GET /jobs/1": handler}, JOB, "Hi")
    assert conversation.failure is not None
    assert message in conversation.failure.message


# Login and sessions.


class Guarded:
    """An agent with a login whose tokens expire after several requests."""

    def __init__(self, lasts: int = 10**9, password: str = "hunter22") -> None:
        self.logins = 0
        self._left = 0
        self._lasts = lasts
        self._password = password
        self.cookies: list[str | None] = []

    async def login(self, request: web.Request) -> web.Response:
        self.logins += 1
        if (await request.json())["password"] != self._password:
            return web.json_response({"detail": "wrong password"}, status=401)
        await asyncio.sleep(0)
        self._left = self._lasts
        return web.json_response({"token": f"token-number-{self.logins}"})

    async def chat(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer token-number-{self.logins}" or self._left <= 0:
            return web.json_response({"detail": "token expired"}, status=401)
        self._left -= 1
        session = request.cookies.get("sid") or f"cookie-of-{(await request.json())['message']}"
        response = web.json_response({"reply": session, "calls": [{"name": session, "args": {}}]})
        response.set_cookie("sid", session)
        return response

    @property
    def routes(self) -> dict[str, Handler]:
        return {"POST /login": self.login, "POST /chat": self.chat}


LOGIN = {
    **BODY,
    "reply": "reply",
    "tool_calls": "calls",
    "headers": {"Authorization": "Bearer {{token}}"},
    "setup": {
        "per": "run",
        "endpoint": "/login",
        "body": {"password": "hunter22"},
        "save": {"token": "token"},
    },
}


def all_of(count: int, guarded: Guarded, **options: Any) -> list[Conversation]:
    """Run this many conversations concurrently."""

    async def run() -> list[Conversation]:
        async with served(guarded.routes) as url, opened(settings(url, LOGIN), **options) as client:
            ways = [held(client, f"u{n}", f"v{n}", number=n) for n in range(count)]
            return list(await asyncio.gather(*ways))

    return anyio.run(run)


def test_fifty_conversations_at_once() -> None:
    """They share one login; each has its own cookie, replies and calls."""
    guarded, secrets = Guarded(), list[str]()
    for number, conversation in enumerate(all_of(50, guarded, secrets=secrets)):
        assert replies(conversation) == [f"cookie-of-u{number}"] * 2
        assert [call.name for call in conversation.tool_calls] == [f"cookie-of-u{number}"] * 2
    assert guarded.logins == 1
    assert {"token-number-1", "cookie-of-u7"} <= set(secrets)


def test_an_expired_token() -> None:
    """A 401 triggers one new login for all conversations, and the request is repeated."""
    guarded = Guarded(lasts=20)
    for conversation in all_of(20, guarded):
        assert len(replies(conversation)) == 2
    assert 2 <= guarded.logins <= 3


def test_an_expired_login_cookie() -> None:
    """If a login sets a cookie, a redirect to the login triggers a new one, as a 401 does."""
    logins = Counter[str]()

    async def login(request: web.Request) -> web.Response:
        logins["n"] += 1
        response = web.Response(status=302, headers={"location": "/home"})
        response.set_cookie("auth", f"cookie-{logins['n']}")
        return response

    async def chat(request: web.Request) -> web.Response:
        if request.cookies.get("auth") != "cookie-2":
            return web.Response(status=302, headers={"location": "/auth/login"})
        return web.json_response({"reply": "A"})

    routes = {"POST /login": login, "GET /home": texting("Welcome"), "POST /chat": chat}
    agent = {**BODY, "reply": "reply", "setup": {"per": "run", "endpoint": "/login"}}
    assert replies(talked(routes, agent, "Hi", "again")) == ["A", "A"]
    assert logins["n"] == 2


def test_a_login_that_fails() -> None:
    """All waiting conversations get the same failure, without credentials in the message."""
    guarded = Guarded(password="another")
    messages = {str(c.failure and c.failure.message) for c in all_of(20, guarded)}
    assert guarded.logins < 20
    assert len(messages) == 1
    assert "setup[0]: POST http://127.0.0.1" in messages.pop()


def test_requests_at_the_end() -> None:
    """Teardown runs for each conversation, logout for the run; a failure in either is a note."""
    seen: list[str] = []

    def noting(name: str, value: Any, status: int = 200) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            seen.append(f"{name} {request.headers.get('x-token')} {request.path_qs}")
            return web.json_response(value, status=status)

        return answer

    routes = {
        "POST /login": noting("login", {"token": "token-of-the-run"}),
        "POST /sessions": noting("begin", {"id": "s-1"}),
        "POST /chat": noting("chat", {"reply": "A"}),
        "DELETE /sessions/s-1": noting("end", {"detail": "busy"}, 500),
        "POST /logout": noting("logout", {}),
    }
    agent = {
        "endpoint": "/chat?s={{sid}}",
        "body": {"m": "{{message}}"},
        "headers": {"X-Token": "{{token}}"},
        "setup": [
            {"per": "run", "endpoint": "/login", "save": {"token": "token"}},
            {"endpoint": "/sessions", "save": {"sid": "id"}},
        ],
        "teardown": [
            {"endpoint": "/sessions/{{sid}}", "method": "DELETE"},
            {"per": "run", "endpoint": "/logout", "headers": {"x-token": "{{token}}"}},
        ],
    }
    notes: list[str] = []
    assert replies(talked(routes, agent, "Hi", notes=notes)) == ["A"]
    assert seen == [
        "login None /login",
        "begin token-of-the-run /sessions",
        "chat token-of-the-run /chat?s=s-1",
        "end token-of-the-run /sessions/s-1",
        "logout token-of-the-run /logout",
    ]
    assert any("teardown[0]: DELETE" in note and "answered 500: busy" in note for note in notes)


@pytest.mark.parametrize(
    ("more", "headers", "noted"),
    [
        ({}, {}, True),
        ({"id": "{{session_id}}"}, {}, False),
        ({"all": "{{messages}}"}, {}, False),
        ({}, {"Set-Cookie": "sid=1"}, False),
    ],
    ids=["nothing", "id", "messages", "cookie"],
)
def test_a_forgotten_session(more: dict[str, str], headers: dict[str, str], noted: bool) -> None:
    """If requests identify no conversation, a note says so from the second turn on."""

    async def chat(request: web.Request) -> web.Response:
        return web.json_response({"reply": "A"}, headers=headers)

    notes: list[str] = []
    agent = {"body": {"message": "{{message}}", **more}, "reply": "reply"}
    talked({"POST /chat": chat}, agent, "a", notes=notes)
    assert not notes
    talked({"POST /chat": chat}, agent, "a", "b", "c", notes=notes)
    assert ["it cannot know the first turn in the second" in note for note in notes] == [True] * noted
    assert not any("tool calls" in note for note in notes)
    notes.clear()
    talked({"POST /chat": chat}, {**agent, "mcp_mock": {"port": 8931}}, "a", "b", notes=notes)
    assert ["This is about messages" in note for note in notes] == [True] * noted


def test_a_history_in_a_form_of_its_own() -> None:
    """Each message has the form of its role; its text is not a template."""
    seen: list[Any] = []

    async def chat(request: web.Request) -> web.Response:
        seen.append((await request.json())["dialog"])
        return web.json_response({"reply": "Hello {{content}}"})

    forms = {
        "user": {"speaker": "human", "parts": [{"text": "{{content}}"}]},
        "assistant": {"speaker": "bot", "parts": [{"text": "{{content}}"}]},
    }
    agent = {"body": {"dialog": "{{messages}}"}, "reply": "reply", "messages": forms}
    talked({"POST /chat": chat}, agent, "Hi", "Bye")
    assert seen[0] == [{"speaker": "human", "parts": [{"text": "Hi"}]}]
    assert [(each["speaker"], each["parts"][0]["text"]) for each in seen[1]] == [
        ("human", "Hi"),
        ("bot", "Hello {{content}}"),
        ("human", "Bye"),
    ]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            {"body": {"m": "{{messages}}"}, "messages": {"user": "{{text}}", "assistant": "x"}},
            "messages.user",
        ),
        (
            {"body": {"m": "{{message}}"}, "messages": {"user": "u", "assistant": "x"}},
            "which no request sends",
        ),
    ],
)
def test_forms_of_messages_that_fit_no_request(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Config.model_validate({"agent": {"type": "http", "endpoint": "http://x/", **more}})


def test_notes_are_few() -> None:
    """If many conversations have the same problem, one note has an example and the count."""

    async def run(notes: list[str]) -> None:
        agent = {**BODY, "teardown": {"endpoint": "/end"}}
        routes = {"POST /chat": answering({"reply": "A"})}
        async with served(routes) as url, opened(settings(url, agent), notes=notes) as client:
            await asyncio.gather(*(held(client, "Hi", number=n) for n in range(5)))

    notes: list[str] = []
    anyio.run(run, notes)
    guess, teardown, more = notes
    assert "text at `reply`" in guess
    assert "teardown[0]: POST" in teardown
    assert more == "agent 'agent': `teardown` went wrong 4 times more"


def test_a_session_that_changes() -> None:
    """The latest id is sent, and a note says that the server may have lost the session."""
    asked: list[Any] = []

    async def forgetful(request: web.Request) -> web.Response:
        asked.append((await request.json()).get("s"))
        return web.json_response({"reply": "A", "s": f"s-{len(asked)}"})

    notes: list[str] = []
    agent = {"body": {"m": "{{message}}", "s": "{{session_id}}"}, "session": "s", "reply": "reply"}
    talked({"POST /chat": forgetful}, agent, "a", "b", "c", notes=notes)
    assert asked == [None, "s-1", "s-2"]
    assert "has lost the session" in notes[0]


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (
            {"endpoint": "/chat/{{session_id}}", "session": "s", "body": {"m": "{{message}}"}},
            "{{session_id}} has no value before the agent has answered",
        ),
        ({"endpoint": "/chat/{{message}}"}, "cannot be a part of a path"),
        ({"headers": {"X-Said": "{{message}}"}}, "a header the value of header 'x-said' has a line break"),
    ],
    ids=["session", "path", "header"],
)
def test_values_that_cannot_be_sent(agent: dict[str, Any], message: str) -> None:
    """The agent is not to blame, and the message says what to change in the configuration."""
    said = ".." if "path" in message else "a\nb"
    conversation = talked({"POST /chat": answering({})}, agent, said)
    assert conversation.failure is not None
    assert conversation.failure.blame is not Blame.AGENT
    assert message in conversation.failure.message


def test_credentials_stay_with_their_server() -> None:
    """Neither redirects nor setup requests send an agent's headers and cookies to another server."""
    seen: list[dict[str, str]] = []

    async def elsewhere(request: web.Request) -> web.Response:
        seen.append({name.lower(): value for name, value in request.headers.items()})
        return web.json_response({"reply": "A"})

    async def run() -> None:
        async with served({"POST /x": elsewhere, "GET /x": elsewhere}) as other:

            async def away(request: web.Request) -> web.Response:
                status = 303 if "see" in await request.text() else 307
                response = web.Response(status=status, headers={"location": f"{other}/x"})
                response.set_cookie("sid", "cookie-12345678")
                return response

            agent = {
                **BODY,
                "reply": "reply",
                "headers": {"Authorization": "Bearer token-12345678", "Cookie": "own=cookie"},
                "setup": {"endpoint": f"{other}/x", "headers": {"x-own": "1"}},
            }
            async with served({"POST /chat": away}) as url, opened(settings(url, agent)) as client:
                assert replies(await held(client, "keep", "see")) == ["A", "A"]

    anyio.run(run)
    assert len(seen) == 3
    assert [headers.get("x-own") for headers in seen] == ["1", None, None]
    assert not any({"authorization", "cookie"} & headers.keys() for headers in seen)


def test_a_state_is_sent() -> None:
    """`{{state.x}}` is a typed value from the scenario's session."""

    async def echo(request: web.Request) -> web.Response:
        return web.json_response({"reply": json.dumps((await request.json())["user"])})

    async def run() -> Conversation:
        agent = {"body": {"m": "{{message}}", "user": "{{state.user}}"}, "reply": "reply"}
        async with served({"POST /chat": echo}) as url, opened(settings(url, agent)) as client:
            return await held(client, "Hi", state={"user": {"id": 7}})

    assert replies(anyio.run(run)) == ['{"id": 7}']


def test_a_conversation_that_is_cancelled_ends_its_session() -> None:
    """Teardown requests are sent even if a conversation is cancelled."""

    async def run() -> None:
        ended, begun = asyncio.Event(), asyncio.Event()

        async def hang(request: web.Request) -> web.Response:
            begun.set()
            await asyncio.Event().wait()
            return web.Response()

        async def end(request: web.Request) -> web.Response:
            ended.set()
            return web.Response()

        agent = {**BODY, "teardown": {"endpoint": "/end"}}
        async with (
            served({"POST /chat": hang, "POST /end": end}) as url,
            opened(settings(url, agent)) as client,
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(held, client, "Hi")
                await begun.wait()
                tasks.cancel_scope.cancel()
            assert ended.is_set()

    anyio.run(run)
