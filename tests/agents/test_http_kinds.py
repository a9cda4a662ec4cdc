"""Typical hand-written servers: each works with configuration only."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from aiohttp import web
from http_agents import Routes, calls, replies, stream, talked

SAID = {"body": {"message": "{{message}}", "session_id": "{{session_id}}"}, "reply": "reply"}
CALL = {"tool": "pay", "input": {"amount": 5}, "output": {"paid": True}}
PAID = [("pay", {"amount": 5}, {"paid": True})] * 2


class Memory:
    """Sessions of a server: each reply counts the earlier messages."""

    def __init__(self) -> None:
        self._sessions: dict[str, list[str]] = {}
        self._ids = count(1)

    def new(self) -> str:
        return f"s-{next(self._ids)}"

    def hear(self, session: str, text: str) -> str:
        heard = self._sessions.setdefault(session, [])
        heard.append(text)
        return f"{len(heard)}. {text}"


@dataclass(frozen=True)
class Kind:
    r"""A kind of server, its configuration, and its replies to `Hi` and `a "b"\n&ü`."""

    routes: Callable[[Memory], Routes]
    agent: dict[str, Any]
    replies: list[str] = field(default_factory=lambda: ["1. Hi", '2. a "b"\n&ü'])
    calls: list[tuple[str, Any, Any]] = field(default_factory=list)


def json_in_and_out(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"reply": memory.hear(body["session_id"], body["message"])})

    return {"POST /chat": chat}


def form_in(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.Response:
        form = await request.post()
        return web.json_response({"reply": memory.hear(str(form["sid"]), str(form["q"]))})

    return {"POST /chat": chat}


def get_with_a_query(memory: Memory) -> Routes:
    async def ask(request: web.Request) -> web.Response:
        assert not request.body_exists
        assert "content-type" not in request.headers
        return web.json_response({"reply": memory.hear(request.query["sid"], request.query["q"])})

    return {"GET /chat": ask}


def session_in_the_path(memory: Memory) -> Routes:
    async def ask(request: web.Request) -> web.Response:
        return web.json_response({"reply": memory.hear(request.match_info["sid"], request.query["q"])})

    return {"PUT /chat/{sid}": ask}


def text_in_and_out(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.Response:
        return web.Response(text=memory.hear(request.headers["x-session"], await request.text()))

    return {"POST /chat": chat}


def whole_history(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.Response:
        messages = (await request.json())["messages"]
        number = len([m for m in messages if m["role"] == "user"])
        text = f"{number}. {messages[-1]['content']}"
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": text}}]})

    return {"POST /chat": chat}


def deltas(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = memory.hear(body["session_id"], body["message"])
        events = [f'data: {{"type": "token", "text": {json.dumps(c)}}}\r\n\r\n' for c in text]
        return await stream(request, [": hello\n\n", *events, 'data: {"type": "end"}\n\ndata: [DONE]\n\n'])

    return {"POST /chat": chat}


def plain_text_events(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = memory.hear(body["session_id"], body["message"])
        events = ["".join(f"data: {line}\n" for line in c.split("\n")) + "\n" for c in (text[:2], text[2:])]
        return await stream(request, [*events, "data: [DONE]\n\n"])

    return {"POST /chat": chat}


def json_text_events(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = memory.hear(body["session_id"], body["message"])
        return await stream(request, [f"event: token\ndata: {json.dumps(c)}\n\n" for c in text])

    return {"POST /chat": chat}


def text_so_far(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = memory.hear(body["session_id"], body["message"])
        sofar = [text[:end] for end in range(1, len(text) + 1)]
        return await stream(request, [f"data: {json.dumps({'text': text})}\n\n" for text in sofar])

    return {"POST /chat": chat}


def lines_of_json(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = memory.hear(body["session_id"], body["message"])
        lines = "\ufeff" + "".join(json.dumps({"delta": c}) + "\n" for c in text)
        return await stream(request, [lines[:7], lines[7:]], "application/x-ndjson")

    return {"POST /chat": chat}


def jobs_to_poll(memory: Memory) -> Routes:
    asked: dict[str, int] = {}
    texts: dict[str, str] = {}

    async def begin(request: web.Request) -> web.Response:
        body = await request.json()
        job = f"j/{len(texts)}"
        texts[job] = memory.hear(body["session_id"], body["message"])
        at = {"Location": f"/results/{len(texts) - 1}"}
        return web.json_response({"job": job}, status=202, headers=at)

    async def look(request: web.Request) -> web.Response:
        job = request.match_info.get("job") or f"j/{request.match_info['number']}"
        asked[job] = asked.get(job, 0) + 1
        if asked[job] < 3:
            return web.json_response({"status": "running"})
        return web.json_response({"status": "done", "result": {"text": texts[job]}, "steps": [CALL]})

    return {"POST /chat": begin, "GET /jobs/{job}": look, "GET /results/{number}": look}


def their_session_in_the_body(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        assert body.get("session") != ""
        session = body.get("session") or memory.new()
        return web.json_response(
            {"reply": memory.hear(session, body["message"]), "meta": {"session": session}}
        )

    return {"POST /chat": chat}


def their_session_in_a_header(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.Response:
        session = request.headers.get("x-session-id") or memory.new()
        text = memory.hear(session, (await request.json())["message"])
        return web.json_response({"reply": text}, headers={"X-Session-Id": session})

    return {"POST /chat": chat}


def their_session_in_a_cookie(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.Response:
        session = request.cookies.get("sid") or memory.new()
        response = web.json_response({"reply": memory.hear(session, (await request.json())["message"])})
        response.set_cookie("sid", session, httponly=True, path="/chat")
        return response

    return {"POST /chat": chat}


def their_session_in_the_last_event(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        session = body.get("thread") or memory.new()
        text = memory.hear(session, body["message"])
        events = [f"event: token\ndata: {json.dumps({'text': c})}\n\n" for c in text]
        return await stream(request, [*events, f'event: end\ndata: {{"thread_id": "{session}"}}\n\n'])

    return {"POST /chat": chat}


def session_made_by_setup(memory: Memory) -> Routes:
    open_now: set[str] = set()

    async def begin(request: web.Request) -> web.Response:
        open_now.add(session := memory.new())
        return web.json_response({"data": {"id": session}}, status=201)

    async def chat(request: web.Request) -> web.Response:
        session = request.match_info["sid"]
        assert session in open_now
        return web.json_response({"reply": memory.hear(session, (await request.json())["message"])})

    async def end(request: web.Request) -> web.Response:
        open_now.remove(request.match_info["sid"])
        return web.Response(status=204)

    return {"POST /sessions": begin, "POST /sessions/{sid}/messages": chat, "DELETE /sessions/{sid}": end}


def login_for_a_token(memory: Memory) -> Routes:
    async def login(request: web.Request) -> web.Response:
        body = await request.json()
        assert body == {"user": "tester", "password": "hunter22"}
        return web.json_response({"token": "tok-12345678"})

    async def chat(request: web.Request) -> web.Response:
        if request.headers.get("authorization") != "Bearer tok-12345678":
            return web.json_response({"detail": "Not authenticated"}, status=401)
        body = await request.json()
        return web.json_response({"reply": memory.hear(body["session_id"], body["message"])})

    return {"POST /login": login, "POST /chat": chat}


def login_with_a_form_and_a_cookie(memory: Memory) -> Routes:
    """A login as in web frameworks: a hidden field, a redirect, and a cookie on the redirect."""

    async def page(request: web.Request) -> web.Response:
        html = '<form><input name="csrf" value="csrf-98765"><input type="password"></form>'
        response = web.Response(text=html, content_type="text/html")
        response.set_cookie("pre", "presession")
        return response

    async def login(request: web.Request) -> web.Response:
        form = await request.post()
        if form.get("csrf") != "csrf-98765" or request.cookies.get("pre") != "presession":
            return web.Response(status=403, text="CSRF check failed")
        response = web.Response(status=303, headers={"location": "/home"})
        response.set_cookie("auth", "cookie-12345678")
        return response

    async def home(request: web.Request) -> web.Response:
        assert request.method == "GET"
        assert request.cookies["auth"] == "cookie-12345678"
        return web.Response(text="Welcome", content_type="text/html")

    async def chat(request: web.Request) -> web.Response:
        if request.cookies.get("auth") != "cookie-12345678":
            return web.Response(status=302, headers={"location": "/login?next=/chat"})
        body = await request.json()
        return web.json_response({"reply": memory.hear(body["session_id"], body["message"])})

    return {"GET /login": page, "POST /login": login, "GET /home": home, "POST /chat": chat}


def double_submitted_token(memory: Memory) -> Routes:
    async def token(request: web.Request) -> web.Response:
        response = web.json_response({})
        response.set_cookie("csrftoken", "csrf-from-a-cookie")
        return response

    async def chat(request: web.Request) -> web.Response:
        sent = request.headers.get("x-csrftoken"), request.cookies.get("csrftoken")
        if sent != ("csrf-from-a-cookie", "csrf-from-a-cookie"):
            return web.Response(status=403, text="CSRF")
        body = await request.json()
        return web.json_response({"reply": memory.hear(body["session_id"], body["message"])})

    return {"GET /csrf": token, "POST /chat": chat}


def lists_in_lists(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        text = memory.hear(body["session_id"], body["message"])
        parts = [
            {"parts": [{"type": "text", "text": text[:2]}]},
            {"parts": [{"type": "text", "text": text[2:]}]},
        ]
        return web.json_response([{"recipient": "me", "messages": parts}])

    return {"POST /chat": chat}


def tool_calls_in_answers(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response(
            {"reply": memory.hear(body["session_id"], body["message"]), "trace": {"tools": [CALL]}}
        )

    return {"POST /chat": chat}


def tool_calls_in_events(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = memory.hear(body["session_id"], body["message"])
        events = [
            {"type": "call", "id": 7, "name": "pay", "args": '{"amount": 5}'},
            {"type": "text", "delta": text[:1]},
            {"type": "result", "id": 7, "result": {"paid": True}},
            {"type": "text", "delta": text[1:]},
        ]
        return await stream(request, [f"data: {json.dumps(event)}\n\n" for event in events])

    return {"POST /chat": chat}


def multipart_in(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.Response:
        assert request.content_type == "multipart/form-data"
        form = await request.post()
        return web.json_response({"reply": memory.hear(str(form["sid"]), str(form["q"]))})

    return {"POST /chat": chat}


def graphql(memory: Memory) -> Routes:
    async def ask(request: web.Request) -> web.Response:
        body = await request.json()
        assert body["query"].startswith("mutation Say($text: String!)")
        given = body["variables"]
        return web.json_response({"data": {"say": {"text": memory.hear(given["session"], given["text"])}}})

    return {"POST /chat": ask}


def false_content_types(memory: Memory) -> Routes:
    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        text = json.dumps({"reply": memory.hear(body["session_id"], body["message"])})
        return web.Response(body=b"\n " + text.encode(), content_type="text/html")

    return {"POST /chat": chat}


FORM = "application/x-www-form-urlencoded"
KINDS = {
    "json": Kind(json_in_and_out, SAID),
    "json as text": Kind(
        json_in_and_out,
        {"body": '{"message": "{{message}}", "session_id": "{{ session_id }}"}', "reply": "reply"},
    ),
    "form": Kind(
        form_in,
        {
            "headers": {"Content-Type": FORM},
            "body": {"q": "{{message}}", "sid": "{{session_id}}"},
            "reply": "reply",
        },
    ),
    "form as text": Kind(
        form_in,
        {"headers": {"content-type": FORM}, "body": "q={{message}}&sid={{session_id}}", "reply": "reply"},
    ),
    "multipart": Kind(
        multipart_in,
        {
            "headers": {"Content-Type": "multipart/form-data"},
            "body": {"q": "{{message}}", "sid": "{{session_id}}"},
            "reply": "reply",
        },
        ["1. Hi", '2. a "b"\n&ü'],
    ),
    "get": Kind(
        get_with_a_query,
        {"method": "get", "params": {"q": "{{message}}", "sid": "{{session_id}}"}, "reply": "reply"},
    ),
    "get by address": Kind(
        get_with_a_query,
        {"method": "GET", "endpoint": "/chat?q={{message}}&sid={{session_id}}", "reply": "reply"},
    ),
    "session in the path": Kind(
        session_in_the_path,
        {"method": "PUT", "endpoint": "/chat/{{session_id}}?q={{message}}", "reply": "reply"},
    ),
    "text": Kind(text_in_and_out, {"body": "{{message}}", "headers": {"X-Session": "{{session_id}}"}}),
    "whole history": Kind(
        whole_history,
        {"body": {"model": "m", "messages": "{{messages}}"}, "reply": "choices[0].message.content"},
    ),
    "events of deltas": Kind(deltas, {**SAID, "delta": "type=='token' && text"}),
    "events of text": Kind(plain_text_events, {"body": SAID["body"], "delta": "@"}),
    "events of text, unsaid": Kind(plain_text_events, {"body": SAID["body"]}),
    "events of json texts": Kind(json_text_events, {"body": SAID["body"], "delta": "@"}),
    "text so far": Kind(text_so_far, {"body": SAID["body"], "reply": "text"}),
    "lines of json": Kind(lines_of_json, {"body": SAID["body"], "delta": "delta"}),
    "jobs": Kind(
        jobs_to_poll,
        {
            "body": SAID["body"],
            "save": {"job": "job"},
            "poll": {"endpoint": "/jobs/{{job}}", "until": "status != 'running'", "every_ms": 1},
            "reply": "result.text",
            "tool_calls": "steps[].{name: tool, args: input, result: output}",
        },
        calls=PAID,
    ),
    "jobs, named by a header": Kind(
        jobs_to_poll,
        {
            "body": SAID["body"],
            "save": {"job": {"header": "Location", "regex": "([^/]+)$"}},
            "poll": {"endpoint": "/results/{{job}}", "until": "status != 'running'", "every_ms": 1},
            "reply": "result.text",
        },
    ),
    "their session, body": Kind(
        their_session_in_the_body,
        {
            "body": {"message": "{{message}}", "session": "{{session_id}}"},
            "reply": "reply",
            "session": "meta.session",
        },
    ),
    "their session, header": Kind(
        their_session_in_a_header,
        {
            "body": {"message": "{{message}}"},
            "headers": {"X-Session-Id": "{{session_id}}"},
            "session": {"header": "x-session-id"},
        },
    ),
    "their session, cookie": Kind(their_session_in_a_cookie, {"body": {"message": "{{message}}"}}),
    "their session, last event": Kind(
        their_session_in_the_last_event,
        {
            "body": {"message": "{{message}}", "thread": "{{session_id}}"},
            "delta": "event == 'token' && text",
            "session": "thread_id",
            "done": "event == 'end'",
        },
    ),
    "session of setup": Kind(
        session_made_by_setup,
        {
            "endpoint": "/sessions/{{chat}}/messages",
            "body": {"message": "{{message}}"},
            "setup": {"endpoint": "/sessions", "save": {"chat": "data.id"}},
            "teardown": {"endpoint": "/sessions/{{chat}}", "method": "DELETE"},
        },
    ),
    "login, token": Kind(
        login_for_a_token,
        {
            **SAID,
            "headers": {"Authorization": "Bearer {{token}}"},
            "setup": {
                "per": "run",
                "endpoint": "/login",
                "body": {"user": "tester", "password": "hunter22"},
                "save": {"token": "token"},
            },
        },
    ),
    "login, form and cookie": Kind(
        login_with_a_form_and_a_cookie,
        {
            **SAID,
            "setup": [
                {
                    "per": "run",
                    "endpoint": "/login",
                    "method": "GET",
                    "save": {"csrf": {"regex": 'name="csrf" value="([^"]+)"'}},
                },
                {
                    "per": "run",
                    "endpoint": "/login",
                    "headers": {"Content-Type": FORM},
                    "body": {"user": "tester", "csrf": "{{csrf}}"},
                },
            ],
        },
    ),
    "double-submitted token": Kind(
        double_submitted_token,
        {
            **SAID,
            "headers": {"X-CSRFToken": "{{csrf}}"},
            "setup": {"endpoint": "/csrf", "method": "GET", "save": {"csrf": {"cookie": "csrftoken"}}},
        },
    ),
    "lists in lists": Kind(lists_in_lists, {**SAID, "reply": "[].messages[].parts[].text"}),
    "tool calls": Kind(
        tool_calls_in_answers,
        {**SAID, "toolCalls": "trace.tools[].{name: tool, args: input, result: output}"},
        calls=PAID,
    ),
    "tool calls in events": Kind(
        tool_calls_in_events,
        {"body": SAID["body"], "delta": "delta", "tool_calls": "type=='call' && @ || type=='result' && @"},
        calls=PAID,
    ),
    "graphql": Kind(
        graphql,
        {
            "body": {
                "query": "mutation Say($text: String!) { say(text: $text) { text } }",
                "variables": {"text": "{{message}}", "session": "{{session_id}}"},
            },
            "reply": "data.say.text",
            "error": "errors",
        },
    ),
    "false content type": Kind(false_content_types, SAID),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_server_of_this_kind(name: str) -> None:
    """Two turns use one session; replies and reported calls are read."""
    kind = KINDS[name]
    conversation = talked(kind.routes(Memory()), kind.agent, "Hi", 'a "b"\n&ü')
    assert replies(conversation) == kind.replies
    assert calls(conversation) == kind.calls
