"""Stand-ins for bots on channels: they check signatures, answer at once, and reply with calls."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any
from urllib.parse import parse_qsl, urlencode

import aiohttp
from aiohttp import web
from known_apis import Json, Memory

SECRET = b"none"


def by_slack(request: web.Request, body: bytes) -> bool:
    stamp = request.headers["X-Slack-Request-Timestamp"]
    if abs(time() - int(stamp)) > 300:
        return False
    digest = hmac.new(SECRET, f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
    return request.headers["X-Slack-Signature"] == f"v0={digest}"


def by_meta(request: web.Request, body: bytes) -> bool:
    digest = hmac.new(SECRET, body, hashlib.sha256).hexdigest()
    return request.headers["X-Hub-Signature-256"] == f"sha256={digest}"


def by_twilio(request: web.Request, body: bytes) -> bool:
    fields = dict(parse_qsl(body.decode(), keep_blank_values=True))
    signed = str(request.url) + "".join(key + fields[key] for key in sorted(fields))
    digest = hmac.new(SECRET, signed.encode(), hashlib.sha1).digest()
    return request.headers["X-Twilio-Signature"] == base64.b64encode(digest).decode()


def by_nobody(request: web.Request, body: bytes) -> bool:
    return True


@dataclass(frozen=True)
class Channel:
    """How a bot on a channel receives messages and replies."""

    path: str
    is_signed: Callable[[web.Request, bytes], bool]
    heard: Callable[[Json], tuple[str, str]]
    """The conversation and the text of a request."""
    reply: Callable[[str, str], tuple[str, Json]]
    """The path and the body of a call with a reply."""
    typing: Callable[[str], tuple[str, Json]] | None = None
    acked: Callable[[Json, Json], bool] = lambda ack, call: True
    """Whether a call was answered as the channel does."""
    form: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


def _whatsapp_heard(body: Json) -> tuple[str, str]:
    [message] = body["entry"][0]["changes"][0]["value"]["messages"]
    return message["from"], message["text"]["body"]


CHANNELS: Mapping[str, Channel] = {
    "Slack": Channel(
        "/slack/events",
        by_slack,
        lambda body: (body["event"]["channel"], body["event"]["text"]),
        lambda to, text: ("/api/chat.postMessage", {"channel": to, "text": text}),
        acked=lambda ack, call: ack["ok"] is True and ack["channel"] == call["channel"] and ack["ts"],
        headers={"Authorization": "Bearer xoxb-1"},
    ),
    "Teams and Bot Framework": Channel(
        "/api/messages",
        by_nobody,
        lambda body: (body["conversation"]["id"], body["text"]),
        lambda to, text: (
            f"/v3/conversations/{to}/activities/1",
            {"type": "message", "conversation": {"id": to}, "text": text, "replyToId": "1"},
        ),
        typing=lambda to: (
            f"/v3/conversations/{to}/activities",
            {"type": "typing", "conversation": {"id": to}},
        ),
        acked=lambda ack, call: bool(ack["id"]),
    ),
    "WhatsApp": Channel(
        "/webhook",
        by_meta,
        _whatsapp_heard,
        lambda to, text: (
            "/v23.0/1/messages",
            {"messaging_product": "whatsapp", "to": to, "type": "text", "text": {"body": text}},
        ),
        typing=lambda to: ("/v23.0/1/messages", {"status": "read", "typing_indicator": {"type": "text"}}),
        acked=lambda ack, call: bool(ack["messages"][0]["id"]),
        headers={"Authorization": "Bearer none"},
    ),
    "Twilio": Channel(
        "/sms",
        by_twilio,
        lambda body: (body["From"], body["Body"]),
        lambda to, text: (
            "/of-the-test/2010-04-01/Accounts/AC0/Messages.json",
            {"From": "+15551234567", "To": to, "Body": text},
        ),
        acked=lambda ack, call: ack["sid"].startswith("SM"),
        form=True,
    ),
}


class Bot:
    """A bot on a channel: it sends two messages for each of the user's, after its response."""

    def __init__(self, channel: Channel, port: int, parts: Callable[[str], list[str]]) -> None:
        self.channel = channel
        self.problems: list[str] = []
        self._port = port
        self._parts = parts
        self._memory = Memory()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def routes(self) -> dict[str, Any]:
        return {f"POST {self.channel.path}": self._hear}

    async def _hear(self, request: web.Request) -> web.Response:
        body = await request.read()
        if not self.channel.is_signed(request, body):
            return web.Response(status=401)
        text = body.decode()
        value = dict(parse_qsl(text)) if self.channel.form else json.loads(text)
        conversation, said = self.channel.heard(value)
        task = asyncio.create_task(self._reply(conversation, said))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.channel.form:
            return web.Response(text="<Response/>", content_type="text/xml")
        return web.Response()

    async def _reply(self, conversation: str, said: str) -> None:
        calls = [self.channel.typing(conversation)] if self.channel.typing else []
        parts = self._parts(self._memory.hear(conversation, said))
        calls += [self.channel.reply(conversation, part) for part in parts]
        async with aiohttp.ClientSession(f"http://127.0.0.1:{self._port}") as session:
            for path, call in calls:
                data = {"data": urlencode(call)} if self.channel.form else {"json": call}
                kind = {"Content-Type": "application/x-www-form-urlencoded"} if self.channel.form else {}
                headers = {**kind, **self.channel.headers}
                async with session.post(path, headers=headers, **data) as response:
                    ack = await response.json()
                    if response.status != 200 or not self.channel.acked(ack, call):
                        self.problems.append(f"{path} was answered with {ack}")
