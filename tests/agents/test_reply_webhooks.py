"""Agents that reply with webhook calls: documented channels, concurrency and failures."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import hmac
import re
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

import aiohttp
import anyio
import hurrying
import pytest
import yaml
from aiohttp import web
from channels import CHANNELS, Bot
from http_agents import Routes, held, opened, replies, served
from project import Project, free_port

from agentest.agents.http.webhook import CallerCheck, ReplyInbox
from agentest.config.agents.http import Verify
from agentest.config.config import Config
from agentest.config.file import load_values
from agentest.domain.transcript import Blame, Conversation
from agentest.support.errors import OwnFault

PAGE = (Path(__file__).parent.parent.parent / "docs" / "agents" / "reply-webhooks.md").read_text("utf-8")
TURNS = ("Hi", 'a "b"\n&ü', "Thanks")
AT_ONCE = 20
SIMPLE: dict[str, Any] = {
    "type": "http",
    "endpoint": "http://localhost:1/inbox",
    "body": {"chat": "{{session_id}}", "text": "{{message}}"},
}


def documented(heading: str, url: str, port: int) -> Any:
    """The agent documented under a heading, at another address and with a short quiet time."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    block = re.search(r"```yaml\n(.*?)```", section, re.S)
    assert block
    text = re.sub(r"endpoint: http://localhost:\d+", f"endpoint: {url}", block[1]).replace("9100", str(port))
    text = re.sub(r"\$\{\w+:-([\w-]+)\}", r"\1", text).replace("quiet_ms: 1500", "quiet_ms: 1000")
    secrets = {"SLACK_BOT_TOKEN": "xoxb-1", "WHATSAPP_TOKEN": "none", "REPLY_SECRET": "of-the-test"}
    return load_values(yaml.safe_load(text), "test", Path(), secrets).config.agent


async def at_once(agent: Any, number: int, notes: list[str] | None = None) -> list[Conversation]:
    done: dict[int, Conversation] = {}
    async with opened(agent, timeout_s=60, notes=notes) as client, anyio.create_task_group() as tasks:

        async def one(index: int) -> None:
            done[index] = await held(client, *(f"{turn} {index}" for turn in TURNS), number=index)

        for index in range(number):
            tasks.start_soon(one, index)
    return [done[index] for index in range(number)]


@pytest.mark.parametrize("heading", CHANNELS)
def test_conversations_at_once_stay_apart(heading: str) -> None:
    """Each bot sends two messages after its response. Signatures and answers are the channel's."""
    notes: list[str] = []

    async def talk() -> tuple[list[Conversation], list[str]]:
        port = free_port()
        bot = Bot(CHANNELS[heading], port, lambda text: [f"{text}.", "More?"])
        async with served(bot.routes) as url:
            return await at_once(documented(heading, url, port), AT_ONCE, notes), bot.problems

    conversations, problems = anyio.run(talk)
    for number, conversation in enumerate(conversations):
        expected = [f"{index}. {turn} {number}.\nMore?" for index, turn in enumerate(TURNS, 1)]
        assert replies(conversation) == expected
    assert problems == []
    assert notes == []


def calling(port: int, *calls: Any, before: bool = False, chat: str | None = None) -> Routes:
    """An agent that makes these calls for each message; `chat` names its own conversation."""

    tasks: list[asyncio.Future[None]] = []

    async def hear(request: web.Request) -> web.Response:
        body = await request.json()
        known = {"$chat": chat or body.get("chat"), "$text": body["text"]}

        async def call() -> None:
            async with aiohttp.ClientSession() as session:
                for each in calls:
                    value = {key: known.get(str(item), item) for key, item in each.items()}
                    async with session.post(f"http://127.0.0.1:{port}/of-the-test", json=value):
                        pass

        if before:
            await call()
        else:
            tasks.append(asyncio.ensure_future(call()))
        return web.json_response({"chat": chat} if chat else {})

    return {"POST /inbox": hear}


def talked(
    calls: list[Any],
    webhook: dict[str, Any],
    *lines: str,
    agent: dict[str, Any] | None = None,
    **options: Any,
) -> Conversation:
    async def talk() -> Conversation:
        port = free_port()
        named = {"port": port, "message": "text", "conversation": "chat", **webhook}
        async with served(calling(port, *calls, **options)) as url:
            settings = {**SIMPLE, "endpoint": f"{url}/inbox", "reply_webhook": named, **(agent or {})}
            async with opened(Config.model_validate({"agent": settings}).agent, timeout_s=60) as client:
                return await held(client, *lines)

    found: Conversation = hurrying.run(talk)
    return found


ONE = {"chat": "$chat", "text": "$text"}


def test_a_turn_ends_with_the_call_for_which_until_is_true() -> None:
    calls = [{**ONE, "calls": [{"name": "pay", "args": {"amount": 5}}]}, {"chat": "$chat", "done": True}]
    conversation = talked(calls, {"until": "done"}, "Hi", "Bye", agent={"tool_calls": "calls"})
    assert replies(conversation) == ["Hi", "Bye"]
    assert [(call.name, call.args) for call in conversation.tool_calls] == [("pay", {"amount": 5})] * 2


def test_replies_may_come_before_the_agent_has_named_the_conversation() -> None:
    """The agent's calls name an id that only its later response contains."""
    body = {"chat": "{{session_id}}", "text": "{{message}}"}
    agent = {"session": "chat", "body": body}
    conversation = talked(
        [ONE],
        {"until": "text", "verify": {"path": "of-the-test"}},
        "Hi",
        "Bye",
        agent=agent,
        before=True,
        chat="made-here",
    )
    assert replies(conversation) == ["Hi", "Bye"]


def test_each_conversation_may_have_its_own_address_and_replies_may_be_text() -> None:
    async def talk() -> list[Conversation]:
        port = free_port()

        async def hear(request: web.Request) -> web.Response:
            asked = await request.json()
            text = f"You said {asked['text']}"
            async with aiohttp.ClientSession() as session, session.post(asked["callback"], data=text):
                return web.Response(text="OK")

        webhook = {
            "port": port,
            "message": "body",
            "conversation": "request.path",
            "id": "/to/{{session_id}}",
            "until": "body",
        }
        body = {"callback": f"http://127.0.0.1:{port}/to/{{{{session_id}}}}", "text": "{{message}}"}
        async with served({"POST /inbox": hear}) as url:
            settings = {**SIMPLE, "endpoint": f"{url}/inbox", "body": body, "reply_webhook": webhook}
            return await at_once(Config.model_validate({"agent": settings}).agent, 10)

    for number, conversation in enumerate(anyio.run(talk)):
        assert replies(conversation) == [f"You said {turn} {number}" for turn in TURNS]


@pytest.mark.parametrize(
    ("calls", "agent", "problem"),
    [
        (
            [{"chat": "$chat", "error": "no model"}],
            {"error": "error"},
            "the agent reports an error (`error: error`)",
        ),
        ([{"chat": "$chat", "done": True}], {}, "finds nothing in the agent's answer"),
    ],
    ids=["error", "no text"],
)
def test_calls_without_a_reply_are_the_agents_error(
    calls: list[Any], agent: dict[str, Any], problem: str
) -> None:
    failure = talked(calls, {"until": "done"}, "Hi", agent=agent).failure
    assert failure is not None
    assert failure.blame is Blame.AGENT
    assert problem in failure.message


def test_no_call_is_the_agents_error() -> None:
    async def talk() -> Conversation:
        port = free_port()

        async def hear(request: web.Request) -> web.Response:
            hurrying.hurry()
            return web.Response()

        webhook = {"port": port, "message": "text", "conversation": "chat"}
        async with served({"POST /inbox": hear}) as url:
            settings = {**SIMPLE, "endpoint": f"{url}/inbox", "reply_webhook": webhook}
            async with opened(Config.model_validate({"agent": settings}).agent) as client:
                return await held(client, "Hi")

    failure = hurrying.run(talk).failure
    assert failure.blame is Blame.AGENT
    assert re.search(
        r"no call to `reply_webhook` \(port \d+\) with a message for .* within 5 s", failure.message
    )


def test_slacks_url_verification_is_answered() -> None:
    async def talk() -> Any:
        port = free_port()
        webhook = {"port": port, "message": "text", "conversation": "channel"}
        agent = Config.model_validate({"agent": {**SIMPLE, "reply_webhook": webhook}}).agent
        async with opened(agent), aiohttp.ClientSession() as session:
            challenge = {"type": "url_verification", "challenge": "abc"}
            async with session.post(f"http://127.0.0.1:{port}/", json=challenge) as response:
                return await response.json()

    assert anyio.run(talk) == {"challenge": "abc"}


def test_a_call_may_be_packed_and_has_a_limit() -> None:
    """A body that unpacks to more than 10 MB is refused, and the next call is answered."""

    async def talk() -> list[int]:
        port = free_port()
        webhook = {"port": port, "message": "text", "conversation": "channel"}
        agent = Config.model_validate({"agent": {**SIMPLE, "reply_webhook": webhook}}).agent
        statuses = []
        async with opened(agent), aiohttp.ClientSession() as session:
            for body in (b" " * 20_000_000, b'{"type": "url_verification", "challenge": "abc"}'):
                sent = {"data": gzip.compress(body), "headers": {"Content-Encoding": "gzip"}}
                async with session.post(f"http://127.0.0.1:{port}/", **sent) as response:
                    statuses.append(response.status)
                    answer = await response.text()
        assert "abc" in answer
        return statuses

    assert anyio.run(talk) == [413, 200]


SECRET = "a-secret-of-the-channel"
BODY = b"chat=x&text=Hello+you"
JSON_BODY = b'{"chat": "x", "text": "Hello"}'
FORM = "application/x-www-form-urlencoded"


def signed(way: str, url: str, now: int) -> tuple[dict[str, str], bytes]:
    """Headers and body of a call as its channel sends it, written after its documentation."""

    def digest(content: bytes) -> str:
        return hmac.new(SECRET.encode(), content, hashlib.sha256).hexdigest()

    if way == "slack":
        stamp = str(now)
        sign = f"v0={digest(b'v0:' + stamp.encode() + b':' + JSON_BODY)}"
        return {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": sign}, JSON_BODY
    if way == "whatsapp":
        return {"X-Hub-Signature-256": f"sha256={digest(JSON_BODY)}"}, JSON_BODY
    if way == "twilio":
        text = f"{url}chatxtextHello you".encode()
        sign = base64.b64encode(hmac.new(SECRET.encode(), text, hashlib.sha1).digest()).decode()
        return {"X-Twilio-Signature": sign, "Content-Type": FORM}, BODY
    return {"X-Bot": SECRET}, JSON_BODY


@pytest.mark.parametrize("way", ["slack", "whatsapp", "twilio", "header"])
def test_only_calls_that_verify_accepts_are_read(way: str) -> None:
    """Calls without, with another or with a used signature are refused, counted, and of no conversation."""
    verify = {"header": "X-Bot", "secret": SECRET} if way == "header" else {way: SECRET}
    notes: list[str] = []

    async def talk() -> list[int]:
        webhook = {"port": free_port(), "message": "text", "conversation": "chat", "verify": verify}
        agent = Config.model_validate({"agent": {**SIMPLE, "reply_webhook": webhook}}).agent
        url = f"http://127.0.0.1:{webhook['port']}/reply?to=x"
        headers, body = signed(way, url, int(time()))
        [name] = [each for each in headers if each not in ("X-Slack-Request-Timestamp", "Content-Type")]
        without = {key: value for key, value in headers.items() if key != name}
        changed = [({**headers, name: f"x{headers[name]}"}, body), ({**headers, name: "\u00e9"}, body)]
        changed += [(headers, body + b" ")] if way != "header" else []
        async with opened(agent, notes=notes), aiohttp.ClientSession() as session:
            statuses = []
            for sent, content in (*changed, (without, body), (headers, body), (headers, body)):
                async with session.post(url, data=content, headers=sent) as response:
                    statuses.append(response.status)
        return statuses

    statuses = anyio.run(talk)
    assert statuses == ([403] * 3 + [200, 200] if way == "header" else [403] * 4 + [200, 403])
    refused = f"`reply_webhook` refused {statuses.count(403)} calls"
    assert [note for note in notes if refused in note and SECRET not in note], notes
    assert sum("is lost" in note for note in notes) == statuses.count(200), "only accepted calls are read"


@pytest.mark.parametrize("verify", [{"path": SECRET}, None], ids=["of the run", "of the conversation"])
def test_a_call_has_a_secret_in_its_path(verify: dict[str, str] | None) -> None:
    """Without `verify`, it is the conversation's session id, in the path or at `conversation`."""
    notes, statuses = list[str](), list[int]()
    port = free_port()

    async def hear(request: web.Request) -> web.Response:
        chat = (await request.json())["chat"]
        secret = SECRET if verify else chat
        calls = [
            ("/x", {"chat": "nobody", "text": "Forged"}),
            (f"/x?{secret}", {"chat": "nobody", "text": "Forged"}),
            (f"/{secret}x/y", {"chat": "nobody"}),
            (f"/x/{secret}/y", {"chat": "nobody"}),
            (f"/x/{secret}/y" if verify else "/x", {"chat": chat, "text": "Real"}),
        ]
        async with aiohttp.ClientSession() as session:
            for path, call in calls:
                async with session.post(f"http://127.0.0.1:{port}{path}", json=call) as response:
                    statuses.append(response.status)
        return web.Response()

    async def talk() -> Conversation:
        webhook = {"port": port, "message": "text", "conversation": "chat", "until": "text == 'Real'"}
        async with served({"POST /inbox": hear}) as url:
            settings = {**SIMPLE, "endpoint": f"{url}/inbox", "reply_webhook": {**webhook, "verify": verify}}
            async with opened(Config.model_validate({"agent": settings}).agent, notes=notes) as client:
                return await held(client, "Hi")

    assert replies(anyio.run(talk)) == ["Real"]
    assert statuses == [403, 403, 403 if verify else 200, 200, 200]
    refused = "refused 3 calls that `verify` does not accept: no secret in its path"
    assert any(refused in note for note in notes) == bool(verify)


def test_an_old_timestamp_is_refused() -> None:
    """A signature of Slack is valid for five minutes before and after its time, once."""
    clock = SimpleNamespace(now=0)
    check = CallerCheck(Verify(slack=SECRET), lambda: clock.now)

    def refusal(now: int, at: int) -> str:
        headers, body = signed("slack", "", at)
        clock.now = now
        return check.refusal({name.lower(): value for name, value in headers.items()}, "h", "/", body)

    start = 1_700_000_000
    assert refusal(start, start - 301).startswith("a timestamp")
    assert refusal(start, start + 301).startswith("a timestamp")
    assert refusal(start, start) == ""
    assert refusal(start + 300, start).startswith("a signature that came before")
    assert refusal(start + 301, start).startswith("a timestamp")
    assert refusal(start + 301, start + 2) == ""


AGENT = """
import json, threading, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Bot(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        names = [asked["chat"], "nobody"] if asked["text"] == "stray" else [asked["chat"]]
        for name in reversed(names):
            call = {"name": asked["text"]}
            body = json.dumps({"chat": name, "text": "You said " + asked["text"], "calls": [call]})
            try:
                urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:PORT/", body.encode())).read()
            except urllib.error.HTTPError as error:
                assert (error.code, name) == (403, "nobody")
        self.send_response(204); self.end_headers()
    def log_message(self, *_): pass

ThreadingHTTPServer(("127.0.0.1", AT), Bot).serve_forever()
"""


def test_a_message_without_a_conversation_makes_the_run_errored(tmp_path: Path) -> None:
    """A check for forbidden calls sees those in the messages."""
    project, port, at = Project(tmp_path), free_port(), free_port()
    (tmp_path / "bot.py").write_text(AGENT.replace("PORT", str(port)).replace("AT", str(at)))
    endpoint = f"http://127.0.0.1:{at}/"
    project.config(
        endpoint,
        agent={
            **SIMPLE,
            "endpoint": endpoint,
            "tool_calls": "calls",
            "reply_webhook": {
                "port": port,
                "message": "text",
                "conversation": "chat",
                "until": {"quiet_ms": 100},
            },
            "server": {"command": "python bot.py", "ready": endpoint},
        },
    )
    project.scenario('scenario("pays", turns=["pay"], trajectory={"forbidden": ["pay"]})\n')
    run = project.run()
    assert run.returncode == 1, run.stdout + run.stderr
    project.scenario('scenario("strays", turns=["Hi", "stray"])\n')
    run = project.run()
    assert run.returncode == 2, run.stdout + run.stderr
    assert "1 message of agent 'agent' to `reply_webhook` belonged to no conversation" in run.stdout
    assert "it names the conversation 'nobody'" in run.stdout
    assert [each["status"] for each in project.results["scenarios"]] == ["passed"]
    refused = project.run("--workers", "2", "--conversations", "2")
    assert refused.returncode == 2
    assert "run without --workers" in refused.stderr


@pytest.mark.parametrize(
    ("agent", "problem"),
    [
        (
            {"reply": "text"},
            "`reply` is for replies in the agent's responses, and `reply_webhook` receives them",
        ),
        ({"reply_webhook": {"port": 1, "message": "text"}}, "reply_webhook.conversation"),
        ({"webhook": {"until": "a b"}}, "is 'a b', which is not JMESPath"),
        ({"webhook": {"until": {"quiet_ms": 2}}}, "quiet_ms"),
        ({"webhook": {"id": "{{session}}"}}, "`reply_webhook.id` has the placeholder {{session}}"),
        ({"webhook": {"id": "{{phone}}"}}, "which a stranger may guess: write reply_webhook: {verify: {path"),
        ({"session": "chat"}, "which a stranger may guess"),
        ({"webhook": {"verify": {"path": "of/the/test"}}}, "`path` is one part of a path"),
        ({"webhook": {"id": "me"}}, "`reply_webhook.id` is 'me', the same for every conversation"),
        ({"webhook": {"ack": {"id": "{{id}}"}}}, "`reply_webhook.ack` has the placeholder {{id}}"),
        ({"sign": {"slack": "a", "twilio": "b"}}, "takes one of {aws: {service: …}}, {slack: SECRET}"),
        ({"sign": {"teams": "a"}}, "teams"),
        ({"webhook": {"verify": {"slack": "a", "twilio": "b"}}}, "takes one of {slack: SECRET}"),
        ({"webhook": {"verify": {"header": "X-Bot"}}}, "takes one of {slack: SECRET}"),
        ({"body": ["{{message}}", "{{phone}}"], "reply_webhook": None}, "{{phone}}"),
    ],
    ids=[
        "reply",
        "missing",
        "until",
        "quiet",
        "id",
        "phone as id",
        "session as id",
        "two parts",
        "same id",
        "ack",
        "two secrets",
        "channel",
        "two ways",
        "no secret",
        "phone",
    ],
)
def test_wrong_settings(agent: dict[str, Any], problem: str) -> None:
    webhook = {"port": 9100, "message": "text", "conversation": "chat", **agent.pop("webhook", {})}
    with pytest.raises(ValueError, match=re.escape(problem)):
        Config.model_validate({"agent": {**SIMPLE, "reply_webhook": webhook, **agent}})


def test_a_fault_of_ours_between_two_turns_is_not_lost() -> None:
    """A call on which our server broke may have been a reply or a tool call, so the next turn is errored."""

    async def next_turn() -> None:
        webhook: Any = SimpleNamespace(inboxes=[], late=0, message_in=lambda call: "", assign=lambda: None)
        inbox = ReplyInbox(webhook)
        inbox.calls.put_nowait(OwnFault("our server broke"))
        inbox.begin_turn()
        await inbox.collect(Any, 0.0)

    with pytest.raises(OwnFault, match="our server broke"):
        anyio.run(next_turn)
