"""What the OpenAPI document of a server reports a chat of its own form."""

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


def test_a_chat_of_its_own_form() -> None:
    """The body has the message, and the session if there is one; the reply is told where it is one alone."""
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
def test_what_tells_of_no_chat(paths: Any) -> None:
    """Whatever else a document describes, or is, is no finding."""
    assert found(paths) is None
