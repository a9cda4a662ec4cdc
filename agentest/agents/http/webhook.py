"""Receive the replies of agents that answer by calling us, as on Slack, Teams, WhatsApp and Twilio.

A `WebhookReceiver` listens at one port for all agents of a run with that port. Each agent has a `Webhook`,
and each conversation an `ReplyInbox` with its calls in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import field
from itertools import count
from typing import Any
from urllib.parse import parse_qsl
from weakref import WeakKeyDictionary

import anyio
from aiohttp import web

from agentest.agents.http.extraction import AnswerPaths, ResponseExtraction, ResponsePiece
from agentest.agents.json_reader import excerpt, read_any
from agentest.agents.port import OnStray, Resources
from agentest.agents.reply_paths import text_of
from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.agents.http_webhooks import ReplyWebhook
from agentest.mock_servers.listener import MAX_BODY_BYTES, listen
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import CannotSend, ConfigError
from agentest.support.http.client import Sender
from agentest.support.json_path import JsonPath
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import Template
from agentest.support.text import count as counted


@dataclass(slots=True)
class ReplyInbox:
    """The calls for one conversation that no turn has read."""

    id: str | None = None
    """What identifies the conversation. None until the agent has named it."""
    calls: list[Any] = field(default_factory=list)
    arrived: anyio.Event = field(default_factory=anyio.Event)

    def add(self, call: Any) -> None:
        self.calls.append(call)
        self.arrived.set()

    def drain(self) -> list[Any]:
        """Return the calls, and leave none."""
        calls, self.calls, self.arrived = self.calls, [], anyio.Event()
        return calls


class Webhook:
    """The replies of one agent, by conversation."""

    def __init__(self, config: HttpTemplateAgent, on_stray: OnStray) -> None:
        settings = config.reply_webhook
        assert settings is not None
        self.settings: ReplyWebhook = settings
        self.name = config.name
        self.late = 0
        """Number of messages that came after the end of their turn."""
        self.paths = AnswerPaths(
            config.model_copy(update={"delta": settings.message, "reply": None, "done": None})
        )
        self._message, self._conversation = JsonPath(settings.message), JsonPath(settings.conversation)
        self._until = JsonPath(settings.until) if settings.until else None
        self._on_stray = on_stray
        self._open: list[ReplyInbox] = []
        self._ended: set[str] = set()
        self._unassigned: list[tuple[str, Any]] = []
        """Messages with an unknown id, while the ids of some conversations are not known yet."""
        self._last: Any = None

    def open(self) -> ReplyInbox:
        """Return the inbox of a new conversation."""
        inbox = ReplyInbox()
        self._open.append(inbox)
        return inbox

    def identify(self, inbox: ReplyInbox, identity: str) -> None:
        """Set the id of a conversation, and give it the messages that have named it. Raises CannotSend."""
        if inbox.id == identity:
            return
        if any(other.id == identity for other in self._open):
            raise CannotSend(
                f"two conversations have the id {identity!r} (`reply_webhook.id`), so nothing tells their "
                "replies apart: write {{session_id}} into `id` and into what is sent"
            )
        inbox.id = identity
        for call in [call for named, call in self._unassigned if named == identity]:
            inbox.add(call)
        self._unassigned = [(named, call) for named, call in self._unassigned if named != identity]
        self._report_strays()

    def begin_turn(self, inbox: ReplyInbox) -> None:
        """Drop the messages that came after the turn before."""
        self.late += sum(map(self.is_message, inbox.drain()))

    def close(self, inbox: ReplyInbox) -> None:
        """End a conversation."""
        self._open.remove(inbox)
        self._ended |= {inbox.id} if inbox.id else set()
        self.begin_turn(inbox)
        self._report_strays()

    def is_message(self, call: Any) -> bool:
        """Return True if a call contains a text of the agent."""
        return bool(text_of(self._message.find(call)))

    def take(self, call: Any) -> bool:
        """Take a call if it belongs to a conversation of this agent, or may turn out to."""
        self._last = call
        identity = text_of(self._conversation.find(call)) or ""
        inbox = next((inbox for inbox in self._open if inbox.id == identity), None) if identity else None
        if inbox:
            inbox.add(call)
        elif not self.is_message(call):
            return False
        elif identity in self._ended:
            self.late += 1
        elif identity and any(inbox.id is None for inbox in self._open):
            self._unassigned.append((identity, call))
        else:
            return False
        return True

    def report_stray(self, call: Any) -> None:
        """Report a message that belongs to no conversation."""
        identity = text_of(self._conversation.find(call))
        named = f"it names the conversation {identity!r}" if identity else "it names no conversation"
        path = f"`reply_webhook.conversation: {self._conversation.text}`"
        self._on_stray(self.name, f"{named} ({path}), and none of this run has that id: {excerpt(call)}")

    def _report_strays(self) -> None:
        if not any(inbox.id is None for inbox in self._open):
            strays, self._unassigned = self._unassigned, []
            for _, call in strays:
                self.report_stray(call)

    async def collect(
        self, inbox: ReplyInbox, gathering: ResponseExtraction, limit: TimeLimit
    ) -> tuple[float, float]:
        """Read the calls of a turn until it is over.

        Returns when the first of its messages and its last call came, in seconds. Raises AgentError for an
        error that a call reports.
        """
        texts: list[str] = []
        first_s = last_s = 0.0
        while True:
            if not inbox.calls:
                with anyio.move_on_after(
                    self.settings.quiet_ms / 1000 if texts and not self._until else None
                ):
                    await inbox.arrived.wait()
                if not inbox.calls:
                    return first_s, last_s
            call = inbox.calls.pop(0)
            if not inbox.calls:
                inbox.arrived = anyio.Event()
            last_s = limit.elapsed
            if text := text_of(self._message.find(call)):
                texts.append(text)
                first_s = first_s or last_s
            gathering.take_event(ResponsePiece(call, call))
            if texts:
                gathering.set_text("\n".join(texts))
            if self._until and self._until.holds(call):
                return first_s, last_s

    def timeout_message(self, inbox: ReplyInbox, seconds: float) -> str:
        """Describe why a turn did not end."""
        condition = f" for which `until: {self._until.text}` is true" if self._until else " with a message"
        last = (
            f"; the last call to it was {excerpt(self._last)}" if self._last is not None else "; no call came"
        )
        return (
            f"no call to `reply_webhook` (port {self.settings.port}){condition} for the conversation "
            f"{inbox.id!r} came within {seconds:g} s (request_timeout_ms){last}"
        )


class WebhookReceiver:
    """A server at one port, for the webhooks of all agents that have this port."""

    def __init__(self, settings: ReplyWebhook) -> None:
        self.settings = settings
        self.webhooks: list[Webhook] = []
        self._numbers = count(1)

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a call, and give it to its conversation."""
        call = _value_of(request, await request.read())
        if isinstance(call, dict) and call.get("type") == "url_verification" and "challenge" in call:
            return web.json_response({"challenge": call["challenge"]})
        taken = any(webhook.take(call) for webhook in self.webhooks)
        webhook = self.webhooks[0] if self.webhooks else None
        if webhook and not taken and webhook.is_message(call):
            webhook.report_stray(call)
        return web.json_response(self._ack(call))

    def _ack(self, call: Any) -> Any:
        paths = {f"call.{path}": JsonPath(path).find(call) for path in self.settings.ack_paths}
        return Template(self.settings.ack).filled({"call_id": str(next(self._numbers)), **paths})


def _value_of(request: web.Request, body: bytes) -> Any:
    """Return a call as a JSON value. An object gets the key `request`, unless it has one."""
    text = body.decode("utf-8", errors="replace")
    value = read_any(text) if text.strip() else {}
    if isinstance(value, str) and "form-urlencoded" in request.content_type:
        value = dict(parse_qsl(text, keep_blank_values=True))  # many clients declare this type for JSON, too
    about = {"method": request.method, "path": request.path, "query": dict(request.query)}
    return {"request": about, **value} if isinstance(value, dict) else value


_receivers: WeakKeyDictionary[Sender, dict[int, WebhookReceiver]] = WeakKeyDictionary()
"""The receivers of each run, which has a client of its own."""


async def open_receivers(
    agents: Sequence[object], client: Sender, stack: AsyncExitStack, on_note: Callable[[str], None]
) -> dict[int, WebhookReceiver]:
    """Listen for the calls of agents until the stack is closed. Returns the receivers by port.

    Raises ConfigError if a port is taken, or has different settings.
    """
    opened = _receivers.setdefault(client, {})
    for agent in agents:
        settings = agent.reply_webhook if isinstance(agent, HttpTemplateAgent) else None
        if settings is None or not isinstance(agent, HttpTemplateAgent):
            continue
        if known := opened.get(settings.port):
            if known.settings != settings:
                raise ConfigError(
                    f"reply_webhook of agent {agent.name!r}: port {settings.port} belongs to another agent "
                    "with different settings: give each its own port, or both the same settings"
                )
            continue
        receiver = opened[settings.port] = WebhookReceiver(settings)
        stack.callback(opened.pop, settings.port)
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", receiver.handle)
        await listen(app, settings, f"reply_webhook of agent {agent.name!r}", stack, on_note)
    return opened


async def open_webhook(config: HttpTemplateAgent, resources: Resources) -> Webhook:
    """Listen for the replies of an agent until its run ends. Raises ConfigError if the port is taken."""
    settings, on_note = config.reply_webhook, resources.on_note
    assert settings is not None
    receivers = await open_receivers([config], resources.client, resources.closing, on_note)
    webhook = Webhook(
        config, resources.on_stray or (lambda name, why: on_note(f"agent {name!r}: a message {why}"))
    )
    webhooks = receivers[settings.port].webhooks
    webhooks.append(webhook)

    def close() -> None:
        webhooks.remove(webhook)
        if webhook.late:
            how = "the last call of a turn" if settings.until else "a longer quiet time"
            on_note(
                f"agent {config.name!r}: {counted(webhook.late, 'message')} came to `reply_webhook` after "
                f"the end of a turn, and belonged to no reply. If they are the rest of one, "
                f"set `until` to {how}"
            )

    resources.closing.callback(close)
    return webhook
