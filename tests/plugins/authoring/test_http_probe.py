"""Detecting a custom chat API from the server's OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from aiohttp import web
from http_agents import served

from agentest.agents.protocol_probe import DetectedProtocol, EndpointProbe, probe_of
from agentest.support.http.client import open_client


def asks(properties: Mapping[str, str], required: list[str], reply: str = "reply") -> dict[str, Any]:
    """The description of a POST, as FastAPI writes it."""
    schema = {"properties": {name: {"type": kind} for name, kind in properties.items()}, "required": required}
    answer = {"schema": {"$ref": f"#/components/schemas/{reply}"}}
    return {
        "post": {
            "requestBody": {"content": {"application/json": {"schema": schema}}},
            "responses": {"200": {"content": {"application/json": answer}}},
        }
    }


ANSWERS = {"reply": {"properties": {"reply": {}, "id": {}}}, "two": {"properties": {"reply": {}, "text": {}}}}


def found(paths: Any, at: str = "/chat") -> DetectedProtocol | None:
    async def look() -> DetectedProtocol | None:
        async def document(request: web.Request) -> web.Response:
            return web.json_response({"paths": paths, "components": {"schemas": ANSWERS}})

        async with served({"GET /openapi.json": document}) as url, open_client() as client:
            return await probe_of("http").find(EndpointProbe(url + at, client))

    return anyio.run(look)


LOST = {"$ref": "#/lost"}
CHAT = asks({"message": "string", "sessionId": "string"}, ["message"])


def test_a_custom_chat_api() -> None:
    """The body has the message, and the session if it exists; the reply is set if there is only one text."""
    ask = asks({"question": "string"}, ["question"], "two")
    finding = found({"/health": {"get": {}}, "/v1/ask": ask, "/chat": CHAT})
    assert finding is not None
    assert finding.settings["body"] == {"message": "{{message}}", "sessionId": "{{session_id}}"}
    assert finding.settings["endpoint"].endswith("/chat")
    assert (finding.settings["type"], finding.settings["reply"]) == ("http", "reply")
    other = found({"/v1/ask": ask})
    assert other is not None
    assert other.settings["endpoint"].endswith("/v1/ask")
    assert other.settings["body"] == {"question": "{{message}}"}
    assert "reply" not in other.settings


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"thread": "string"}, "thread"),
        ({"context": "string", "chatId": "string"}, "chatId"),
        ({"conversation": "object", "dialogue_id": "string"}, "dialogue_id"),
        ({"chat": "array", "session_id": "integer", "chats": "string"}, None),
    ],
)
def test_the_field_of_a_session(fields: dict[str, str], session: str | None) -> None:
    """A text whose name says that it identifies a conversation."""
    finding = found({"/chat": asks({"message": "string", **fields}, ["message"])})
    assert finding is not None
    named = {session: "{{session_id}}"} if session else {}
    assert finding.settings["body"] == {"message": "{{message}}", **named}


@pytest.mark.parametrize(
    "paths",
    [
        {},
        [],
        {"/chat": {"get": {}}},
        {"/chat/{id}": CHAT},
        {"/chat": asks({"message": "string", "threadId": "string"}, ["message", "runId"])},
        {
            "/chat": {
                "post": {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/lost"}}}}}
            }
        },
        {"/chat": {"post": None}, "/x": 5},
    ],
)
def test_documents_without_a_chat(paths: Any) -> None:
    """Other documents, valid or not, give no result."""
    assert found(paths) is None
