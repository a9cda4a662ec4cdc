"""Answers that a wrong `type` got: which protocol they are of, and what to write instead."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from agentest.agents.advice import Advisor
from agentest.agents.probing import Look, Seen
from agentest.agents.recognising import recognised
from agentest.config.agent_types import AGENT_TYPES
from agentest.http.client import DirectResponse, Headers


def seen(body: Any = b"", status: int = 200, **headers: str) -> Seen:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Seen(status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}, body=content)


def lacking(*fields: str) -> Seen:
    """A refusal as FastAPI has it."""
    detail = [{"type": "missing", "loc": ["body", name], "msg": "Field required"} for name in fields]
    return seen({"detail": detail}, 422)


ANSWERS = {
    "chat_completions": [seen({"choices": [], "error": None}), lacking("messages", "model")],
    "responses": [
        seen({"object": "response", "output": []}),
        seen(b'event: response.created\ndata: {"type": "response.created"}\n\n'),
        lacking("input"),
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
NOBODYS = [seen(), seen({"reply": "Hi"}), seen([1]), seen(b"\xff\x00"), seen(b"data: x\n\n"), seen("text")]


@pytest.mark.parametrize("kind", ANSWERS)
def test_each_protocol_is_recognised(kind: str) -> None:
    """What only one protocol sends is recognised, answers and refusals alike; what anybody sends is not."""
    assert [recognised(one) for one in ANSWERS[kind]] == [kind] * len(ANSWERS[kind])
    assert [recognised(one) for one in NOBODYS] == [None] * len(NOBODYS)
    assert kind in AGENT_TYPES


class Nobody:
    """A server that is not there any more."""

    async def send_direct(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> DirectResponse:
        raise ConnectionRefusedError


def advised(one: Seen, kind: str = "chat_completions") -> str:
    look = Look(url="http://localhost:1/chat", client=Nobody())
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
    ],
    ids=["other-type", "own-form", "login", "moved", "own-type", "gone"],
)
def test_what_is_advised(one: Seen, said: str) -> None:
    """The configuration that would fit, where there is a better one than the configured."""
    assert advised(one) == said
