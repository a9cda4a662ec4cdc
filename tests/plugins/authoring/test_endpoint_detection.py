"""`agentest init --endpoint` against servers as people write them: what it finds, and what it sends."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote, unquote

import pytest
from aiohttp import web
from channels import CHANNELS, Bot
from documented_apis import at as at_address
from http_agents import Routes
from known_apis import chatkit, gradio, graphql
from stand_ins import (
    NOT_FOUND,
    Asked,
    Given,
    StandIn,
    at,
    completion_of,
    document,
    events,
    last_user_text,
    missing,
    reply_to,
    standing_in,
)
from tls_server import tls_server

from agentest.plugins.authoring.endpoint_detection import detect_agent
from agentest.support.errors import UsageError

DOCS = Path(__file__).parents[3] / "docs" / "agents"
MESSAGES = {"messages": {"type": "array"}}


def chat(request: Asked) -> Given:
    """Chat completions that read what they need, and die of anything else."""
    return completion_of(reply_to(last_user_text(request.json["messages"])))


def chat_with_model(request: Asked) -> Given:
    absent = [name for name in ("model", "messages") if name not in request.json]
    return missing(*absent) if absent else chat(request)


def plain(request: Asked) -> Given:
    return Given({"reply": reply_to(request.json["message"].strip()), "session": request.json["session_id"]})


def ui_messages(request: Asked) -> Given:
    """A route of the AI SDK."""
    try:
        text = "".join(part["text"] for part in request.json["messages"][-1]["parts"])
    except KeyError:
        return Given("Internal Server Error", 500)
    start, end = {"type": "text-start", "id": "t"}, {"type": "text-end", "id": "t"}
    delta = {"type": "text-delta", "id": "t", "delta": reply_to(text)}
    header = {"x-vercel-ai-ui-message-stream": "v1"}
    return events({"type": "start"}, start, delta, end, {"type": "finish"}, "[DONE]", **header)


AGNO = document(
    ("/knowledge/search", {"query": {"type": "string"}}, ["query"]),
    ("/agents/{agent_id}/runs/{run_id}/continue", {"message": {}}, ["message"]),
    kind="application/json",
    gets=("/agents",),
)
RUN_FIELDS = {"message": {}, "stream": {"type": "boolean", "default": True}, "session_id": {}, "files": {}}
AGNO["paths"]["/agents/{agent_id}/runs"] = document(
    ("/run", RUN_FIELDS, ["message"]), kind="multipart/form-data"
)["paths"]["/run"]


def agno(request: Asked) -> Given:
    match request.method, request.path:
        case "GET", "/openapi.json":
            return Given(AGNO)
        case "GET", "/agents":
            return Given([{"id": "desk", "name": "Desk"}])
        case "POST", "/agents/desk/runs":
            fields = request.form
            if "message" not in fields:
                return missing("message")
            run = {"run_id": "r-1", "agent_id": "desk", "content": reply_to(fields["message"])}
            return Given(run) if fields.get("stream") == "false" else events({**run, "event": "RunContent"})
    return NOT_FOUND


def form(request: Asked) -> Given:
    fields = request.form
    return Given({"answer": reply_to(fields["question"])}) if "question" in fields else missing("question")


def ndjson(request: Asked) -> Given:
    words = reply_to(request.json["prompt"]).split(" ")
    tokens = [{"type": "token", "text": f"{word} "} for word in words]
    lines = [{"type": "status", "text": "thinking"}, *tokens, {"type": "end"}]
    kind = {"content-type": "application/x-ndjson"}
    return Given("".join(f"{json.dumps(line)}\n" for line in lines), 200, kind)


def sse(request: Asked) -> Given:
    words = reply_to(request.json["question"]).split(" ")
    return events(*({"delta": f"{word} "} for word in words), "[DONE]")


def named_field(request: Asked) -> Given:
    text = request.json.get("utterance")
    return Given({"say": reply_to(text)}) if text else Given({"error": "'utterance' is required"}, 400)


def jobs(request: Asked) -> Given:
    """A job, whose address only a header has."""
    if request.method == "GET":
        path, _, text = request.path.partition("?text=")
        return Given({"reply": reply_to(unquote(text))}) if path == "/jobs/1" else NOT_FOUND
    address = f"/jobs/1?text={quote(request.json['message'])}"
    return Given(b"", 202, {"location": address}) if request.path == "/run" else NOT_FOUND


def ag_ui(request: Asked) -> Given:
    absent = [name for name in ("threadId", "runId") if name not in request.json]
    if absent:
        return missing(*absent)
    ids = {"threadId": request.json["threadId"], "runId": request.json["runId"]}
    text = {"messageId": "m", "delta": reply_to(last_user_text(request.json["messages"]))}
    return events(
        {"type": "RUN_STARTED", **ids},
        {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", **text},
        {"type": "TEXT_MESSAGE_END", "messageId": "m"},
        {"type": "RUN_FINISHED", **ids},
    )


def langserve(request: Asked) -> Given:
    if not isinstance(request.json.get("input"), str):
        return missing("input")
    return Given({"output": {"content": reply_to(request.json["input"]), "type": "ai"}, "metadata": {}})


def a2a(request: Asked) -> Given:
    card = {
        "name": "desk",
        "url": f"http://{request.headers['host']}/",
        "protocolVersion": "0.3.0",
        "preferredTransport": "JSONRPC",
        "capabilities": {},
        "skills": [],
        "version": "1",
    }
    if request.method == "GET":
        return Given(card) if request.path == "/.well-known/agent-card.json" else NOT_FOUND
    call = request.json
    if call.get("method") != "message/send":
        return Given({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Invalid"}})
    parts = [{"kind": "text", "text": reply_to(call["params"]["message"]["parts"][0]["text"])}]
    message = {"kind": "message", "role": "agent", "messageId": "m", "parts": parts}
    return Given({"jsonrpc": "2.0", "id": call["id"], "result": message})


WITH_CHAT = document(("/health", {}, []), ("/v1/chat/completions", MESSAGES, ["messages"]))
WITH_MODEL = document(
    ("/search", {"query": {}}, ["query"]), ("/v1/chat/completions", {**MESSAGES, "model": {}}, ["model"])
)
LANGSERVE = document(
    ("/bot/batch", {"inputs": {}}, ["inputs"]),
    ("/bot/invoke", {"input": {}, "config": {}}, ["input"]),
    ("/bot/stream", {"input": {}, "config": {}}, ["input"]),
)
FASTAPI = document(
    ("/feedback", {"message": {}}, ["message"]), ("/api/talk", {"message": {}, "session_id": {}}, ["message"])
)
SESSION = {"session_id": "{{session_id}}"}
WITH_PERSON = document(
    ("/agents", {"name": {}, "model": {}}, ["name", "model"]),  # would make an agent
    ("/orders", {"text": {}, "user_id": {}}, ["text", "user_id"]),
    ("/v1/query", {"question": {}, "user_id": {}}, ["question", "user_id"]),
)


def with_person(request: Asked) -> Given:
    absent = [name for name in ("question", "user_id") if name not in request.json]
    answer = {
        "data": {"answer": reply_to(request.json.get("question", ""))},
        "user": request.json.get("user_id"),
    }
    return missing(*absent) if absent else Given(answer)


@pytest.mark.parametrize(
    ("server", "path", "settings"),
    [
        (at("POST", "/v1/chat/completions", chat, WITH_CHAT), "/v1/chat/completions", {}),
        (
            at("POST", "/v1/chat/completions", chat_with_model, WITH_MODEL),
            "/v1/chat/completions",
            {"body": {"model": "agent"}},
        ),
        (at("POST", "/v1/chat/completions", chat), "/v1/chat/completions", {}),
        (at("POST", "/api/chat", ui_messages), "/api/chat", {"type": "ai_sdk"}),
        (
            agno,
            "/agents/desk/runs",
            {
                "type": "http",
                "headers": {"Content-Type": "multipart/form-data"},
                "body": {"message": "{{message}}", **SESSION, "stream": False},
                "reply": "content",
            },
        ),
        (
            plain,
            "",
            {"type": "http", "body": {"message": "{{message}}", **SESSION}, "reply": "reply"},
        ),
        (
            at("POST", "/ask", form),
            "/ask",
            {
                "type": "http",
                "headers": {"Content-Type": "application/x-www-form-urlencoded"},
                "body": {"question": "{{message}}"},
                "reply": "answer",
            },
        ),
        (
            at("POST", "/chat", ndjson),
            "/chat",
            {
                "type": "http",
                "body": {"prompt": "{{message}}"},
                "delta": "type == 'token' && text",
            },
        ),
        (
            at("POST", "/chat", sse),
            "/chat",
            {"type": "http", "body": {"question": "{{message}}"}, "delta": "delta"},
        ),
        (
            at("POST", "/api/chat", named_field),
            "/api/chat",
            {"type": "http", "body": {"utterance": "{{message}}"}, "reply": "say"},
        ),
        (at("POST", "/ag-ui", ag_ui), "/ag-ui", {"type": "ag_ui"}),
        (
            at("POST", "/bot/invoke", langserve, LANGSERVE),
            "/bot/invoke",
            {"type": "http", "body": {"input": "{{message}}"}, "reply": "output.content"},
        ),
        (
            at("POST", "/api/talk", plain, FASTAPI),
            "/api/talk",
            {"type": "http", "body": {"message": "{{message}}", **SESSION}, "reply": "reply"},
        ),
        (
            at("POST", "/v1/query", with_person, WITH_PERSON),
            "/v1/query",
            {
                "type": "http",
                "body": {"user_id": "{{session_id}}", "question": "{{message}}"},
                "reply": "data.answer",
            },
        ),
        (a2a, "/", {"type": "a2a"}),
        (
            jobs,
            "/run",
            {
                "type": "http",
                "body": {"message": "{{message}}"},
                "save": {"job": {"header": "Location"}},
                "poll": {"endpoint": "{{job}}"},
                "reply": "reply",
            },
        ),
    ],
    ids=[
        "fastapi-chat",
        "fastapi-chat-with-model",
        "naive-chat",
        "ai-sdk",
        "agno",
        "naive-json-at-root",
        "form",
        "ndjson",
        "sse",
        "named-field",
        "ag-ui",
        "langserve",
        "fastapi-json",
        "fastapi-json-with-person",
        "a2a",
        "jobs",
    ],
)
def test_the_agent_of_a_root_is_found_and_answers(
    server: StandIn, path: str, settings: dict[str, Any]
) -> None:
    """The settings are those of the agent, it was tried with them, and no body was empty."""
    asked: list[Asked] = []
    with standing_in(server, asked) as root:
        found = detect_agent(root)
    assert found.is_complete, (found.remarks, found.tried)
    expected = {"type": "chat_completions", "endpoint": f"{root}{path}", **settings}
    assert found.settings == expected, found.tried
    assert re.match(r"It answered '.*' with 'You said: ", found.remarks[-1]), found.remarks
    bodies = [request.body for request in asked if request.method == "POST"]
    assert bodies
    assert not {b"{}", b"[]", b""} & set(bodies)


def login(_: Asked) -> Given:
    return Given({"detail": "Not authenticated"}, 401)


def page(request: Asked) -> Given:
    if request.method == "POST" and request.path != "/":
        return NOT_FOUND
    return Given("<!doctype html><title>Shop</title>", 200, {"content-type": "text/html"})


def mcp(request: Asked) -> Given:
    if request.path != "/mcp":
        return NOT_FOUND
    error = {"code": -32600, "message": "Not Acceptable"}
    return Given({"jsonrpc": "2.0", "id": "server-error", "error": error}, 406)


def sessions(request: Asked) -> Given:
    """Begins a session, to whose own address messages go."""
    if (request.method, request.path) != ("POST", "/sessions"):
        return NOT_FOUND
    return Given({"session": {"id": "1dd912e8-1b84", "key": "abc"}, "status": "open"}, 201)


@pytest.mark.parametrize(
    ("server", "path", "said"),
    [
        (sessions, "/sessions", "no text of the answer changes with the message"),
        (login, "", "it answered a message with 401: Not authenticated; are the credentials right?"),
        (page, "", "it answered a message with 200: a web page"),
        (mcp, "", "it answers in JSON-RPC, as MCP servers do"),
        (mcp, "/mcp", "it answers in JSON-RPC, as MCP servers do"),
        (lambda _: None, "", "no answer came (POST /run: the connection was closed"),
    ],
    ids=["sessions", "login", "page", "mcp-root", "mcp", "silent"],
)
def test_other_endpoints_are_reported(server: StandIn, path: str, said: str) -> None:
    """The remark has the response, and the attempts are listed in order."""
    with standing_in(server) as root:
        found = detect_agent(root + path)
    assert not found.is_known
    assert said in " ".join(found.remarks), (found.remarks, found.tried)
    assert any(each.startswith("POST ") for each in found.tried)


async def described(request: web.Request) -> web.Response:
    return web.json_response({"dependencies": [], "named_endpoints": {"/chat": {}}})


def _bot(channel: str) -> Routes:
    return Bot(CHANNELS[channel], 9, lambda text: [text]).routes


@pytest.mark.parametrize("is_named", [True, False], ids=["path", "root"])
@pytest.mark.parametrize(
    ("routes", "path", "recipe"),
    [
        (
            lambda: {**gradio(), "GET /config": described, "GET /gradio_api/info": described},
            "/gradio_api/call/chat",
            "known-apis`, 'Gradio'",
        ),
        (graphql, "/graphql", "known-apis`, 'GraphQL subscriptions'"),
        (chatkit, "/chatkit", "known-apis`, 'ChatKit'"),
        (lambda: _bot("Slack"), "/slack/events", "reply-webhooks`, 'Slack'"),
        (
            lambda: _bot("Teams and Bot Framework"),
            "/api/messages",
            "reply-webhooks`, 'Teams and Bot Framework'",
        ),
    ],
    ids=["gradio", "graphql", "chatkit", "slack", "bot-framework"],
)
def test_a_public_api_is_named_with_its_recipe(
    routes: Callable[[], Routes], path: str, recipe: str, is_named: bool
) -> None:
    """No guess is written: neither a body nor the path of a reply."""
    with at_address(routes()) as root:
        found = detect_agent(f"{root}{path if is_named else ''}")
    if path == "/graphql" and not is_named:
        assert not found.is_known
        return
    assert f"agentest docs {recipe}" in found.remarks[0]
    assert (found.is_known, found.is_complete) == (False, False)
    assert found.settings.keys() == {"type", "endpoint"}
    page, _, heading = recipe.partition("`, ")
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert f"\n## {heading.strip(chr(39))}\n" in text


def test_an_api_of_its_own_at_the_path_of_a_public_one_is_proved() -> None:
    """A path alone is no sign of a bot of the Bot Framework."""
    with standing_in(at("POST", "/api/messages", plain)) as root:
        found = detect_agent(f"{root}/api/messages")
    assert found.is_complete, found.remarks


def test_an_agent_that_dies_while_it_is_asked_is_reported() -> None:
    """Nothing is written; the message has the request after which the agent stopped."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    begin = connection.recv(4)
                    if begin == b"POST":
                        listener.close()
                        return
                    if begin:
                        connection.recv(65536)
                        connection.sendall(
                            b"HTTP/1.1 404 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                        )

        thread = Thread(target=serve)
        thread.start()
        with pytest.raises(UsageError, match=r"stopped while its protocol was detected \(.*POST /chat: "):
            detect_agent(f"http://127.0.0.1:{listener.getsockname()[1]}/chat")
        thread.join()


def test_an_http_address_of_a_tls_server_is_reported(tmp_path: Path) -> None:
    """The message has the command to run instead, whether or not the certificate is trusted."""
    with tls_server(tmp_path) as place, pytest.raises(UsageError) as caught:
        detect_agent(f"http://{place}/v1/chat/completions")
    assert str(caught.value).endswith(f"agentest init --endpoint https://{place}/v1/chat/completions")
