"""Turns of several requests: their order, conditions, and values saved between them."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from http_agents import Routes, calls, replies, talked

from agentest.domain.transcript import Blame

LISTED: dict[str, Any] = {
    "endpoint": "/start",
    "first": {"body": {"text": "{{message}}"}, "save": {"chat": "id"}},
    "then": [
        {"endpoint": "/{{chat}}/confirm", "body": {"token": "{{approval}}"}, "if": "approval"},
        {"endpoint": "/{{chat}}/say", "body": {"text": "{{message}}"}, "save": {"approval": "token"}},
    ],
    "tool_calls": "calls",
    "reply": "reply",
}


def recorded(heard: list[tuple[str, Any]]) -> Routes:
    """A server that requires an approval after each message with `pay`."""

    async def start(request: web.Request) -> web.Response:
        heard.append(("start", await request.json()))
        return web.json_response({"id": "c-1", "reply": "Welcome"})

    async def confirm(request: web.Request) -> web.Response:
        heard.append(("confirm", await request.json()))
        return web.json_response({"calls": [{"name": "pay", "args": {"amount": 5}}]})

    async def say(request: web.Request) -> web.Response:
        body = await request.json()
        heard.append(("say", body))
        token = {"token": f"t-{len(heard)}"} if "pay" in body["text"] else {}
        return web.json_response({"reply": f"You said {body['text']}", **token})

    return {"POST /start": start, "POST /c-1/confirm": confirm, "POST /c-1/say": say}


def test_a_condition_sees_what_the_last_answer_saved() -> None:
    heard: list[tuple[str, Any]] = []
    conversation = talked(recorded(heard), LISTED, "Hi", "pay", "Yes", "Bye")
    assert replies(conversation) == ["Welcome", "You said pay", "You said Yes", "You said Bye"]
    assert heard == [
        ("start", {"text": "Hi"}),
        ("say", {"text": "pay"}),
        ("confirm", {"token": "t-2"}),
        ("say", {"text": "Yes"}),
        ("say", {"text": "Bye"}),
    ]
    assert calls(conversation) == [("pay", {"amount": 5}, None)]


@pytest.mark.parametrize(
    ("agent", "lines", "blame", "problem"),
    [
        (
            {**LISTED, "then": {"body": ["{{message}}"], "if": "{{turn_index}} > `5`"}},
            ("Hi", "Hello"),
            Blame.INTERNAL,
            "turn 2: no request with the user's message was sent, because its condition is false: "
            "`then[0].if: {{turn_index}} > `5``",
        ),
        (
            {**LISTED, "first": {"body": ["{{message}}"], "save": {"chat": "chat_id"}}},
            ("Hi",),
            Blame.AGENT,
            "`first[0].save.chat: chat_id` finds nothing in the agent's answer; found text at",
        ),
    ],
    ids=["no message", "not saved"],
)
def test_a_turn_that_cannot_be_sent_says_why(
    agent: dict[str, Any], lines: tuple[str, ...], blame: Blame, problem: str
) -> None:
    failure = talked(recorded([]), agent, *lines).failure
    assert failure is not None
    assert problem in failure.message
    assert failure.blame is blame


def test_a_stale_value_never_stands_for_a_new_one() -> None:
    """If the second answer names no job, the first job's result is not its reply."""
    answers = iter([{"job": "1"}, {"detail": "busy"}])

    async def start(request: web.Request) -> web.Response:
        return web.json_response(next(answers))

    async def result(request: web.Request) -> web.Response:
        return web.json_response({"reply": "The first", "done": True})

    agent = {
        "then": [
            {"body": ["{{message}}"], "save": {"job": "job"}},
            {"endpoint": "/jobs/{{job}}", "method": "GET", "until": "done", "every_ms": 1},
        ]
    }
    conversation = talked({"POST /chat": start, "GET /jobs/1": result}, agent, "Hi", "And now?")
    assert conversation.failure is not None
    assert "`then[0].save.job: job` finds nothing" in conversation.failure.message


def test_a_job_on_another_server_gets_no_credentials() -> None:
    seen: list[Any] = []

    async def start(request: web.Request) -> web.Response:
        port = request.url.port
        return web.Response(status=202, headers={"Location": f"http://localhost:{port}/jobs/1"})

    async def result(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"reply": "Done"})

    agent = {
        "headers": {"Authorization": "Bearer abc"},
        "body": ["{{message}}"],
        "save": {"job": {"header": "Location"}},
        "poll": {"endpoint": "{{job}}"},
    }
    assert replies(talked({"POST /chat": start, "GET /jobs/1": result}, agent, "Hi")) == ["Done"]
    assert seen == [None]
