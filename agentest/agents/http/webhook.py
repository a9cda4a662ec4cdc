"""Receive the replies of agents that answer by calling us, as on Slack, Teams, WhatsApp and Twilio.

A `WebhookReceiver` listens at one port for all agents of a run with that port. Each agent has a `Webhook`,
and each conversation a `ReplyInbox` with its calls in their order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from hashlib import sha256
from hmac import compare_digest
from itertools import count
from time import time
from typing import Any
from urllib.parse import parse_qsl, unquote
from weakref import WeakKeyDictionary

import anyio
from aiohttp import web

from agentest.agents.http.extraction import AnswerPaths, ResponseExtraction, ResponsePiece
from agentest.agents.http.requests import slack_signature, twilio_signature, whatsapp_signature
from agentest.agents.json_reader import excerpt, read_any
from agentest.agents.listener import MAX_BODY_BYTES, headers_of, listen
from agentest.agents.port import Resources
from agentest.agents.reply_detection import text_of
from agentest.config.agents.http import HttpTemplateAgent, ReplyWebhook, Verify
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, CannotSend, ConfigError, OwnFault
from agentest.support.http.bodies import BodyRefused, read_body
from agentest.support.http.client import Sender
from agentest.support.jmespath_expressions import JsonPath
from agentest.support.templates import Template, Values, as_text
from agentest.support.text import count as counted

_FRESH_S = 300


class Webhook:
    """The replies of one agent, by conversation."""

    def __init__(self, config: HttpTemplateAgent, settings: ReplyWebhook, resources: Resources) -> None:
        self.name = config.name
        self.settings = settings
        self.timeout_s = resources.timeout_s
        self.late = 0  # number of messages that came after the end of their turn
        paths = {"delta": settings.message, "reply": None, "done": None}
        self.paths = AnswerPaths(config.model_copy(update=paths))
        self.until = JsonPath(settings.until) if settings.until else None
        self.id = Template(settings.id)
        self.inboxes: list[ReplyInbox] = []  # those of the conversations in progress
        self.last: Any = None
        self._message, self._conversation = JsonPath(settings.message), JsonPath(settings.conversation)
        self._resources = resources
        self._stray = ""
        self._ended: set[str] = set()
        self._unassigned: list[Any] = []
        """Calls with an unknown id, while the ids of some conversations are not known yet."""

    def message_in(self, call: Any) -> str | None:
        """Return the text in a call, if it has one."""
        return text_of(self._message.find(call))

    def take(self, call: Any) -> bool:
        """Take a call if it belongs to a conversation of this agent, or may turn out to."""
        self.last = call
        identity = text_of(self._conversation.find(call))
        if not identity:
            return False
        if inbox := next((inbox for inbox in self.inboxes if inbox.id == identity), None):
            inbox.calls.put_nowait(call)
        elif identity in self._ended:
            self.late += bool(self.message_in(call))
        elif not all(inbox.id for inbox in self.inboxes):
            self._unassigned.append(call)
        else:
            return False
        return True

    def is_named_in(self, path: str) -> bool:
        """Return True if a path contains the id of a conversation in progress."""
        return any(inbox.id and inbox.id in path for inbox in self.inboxes)

    def assign(self, ended: str | None = None) -> None:
        """Assign the calls that came before their id was known. `ended` is the id of a conversation."""
        self._ended |= {ended} if ended else set()
        calls, self._unassigned = self._unassigned, []
        for call in calls:
            if not self.take(call):
                self.report_stray(call)

    def report_stray(self, call: Any) -> None:
        """Report a call that belongs to no conversation, if it contains a message."""
        if not self.message_in(call):
            return
        if not self._stray:
            identity = text_of(self._conversation.find(call))
            named = f"it names the conversation {identity!r}" if identity else "it names no conversation"
            path = f"`reply_webhook.conversation: {self._conversation.text}`"
            self._stray = f"{named} ({path}), and none of this run has that id: {excerpt(call)}"
        if self._resources.on_stray:
            self._resources.on_stray(self.name, self._stray)
        else:
            self._resources.on_note(
                f"agent {self.name!r}: a message to `reply_webhook` is lost: {self._stray}"
            )


class ReplyInbox:
    """The calls for one conversation that no turn has read."""

    def __init__(self, webhook: Webhook) -> None:
        self.id: str | None = None  # what identifies the conversation. None until the agent has named it.
        self.calls: asyncio.Queue[Any] = asyncio.Queue()
        self._webhook = webhook
        self._late_calls: list[Any] = []
        webhook.inboxes.append(self)

    def begin_turn(self) -> None:
        """Set aside the calls that came after the turn before. Their messages belong to no reply."""
        self._late_calls = [self.calls.get_nowait() for _ in range(self.calls.qsize())]
        self._webhook.late += sum(1 for call in self._late_calls if self._webhook.message_in(call))

    def identify(self, values: Values, absent: Collection[str]) -> None:
        """Set the id, once it is known, and take the calls that have named it. Raises CannotSend."""
        webhook = self._webhook
        if not webhook.id.names.isdisjoint(absent):
            return
        identity = as_text(webhook.id.filled(values))
        if any(other.id == identity for other in webhook.inboxes if other is not self):
            raise CannotSend(
                f"two conversations have the id {identity!r} (`reply_webhook.id`), so nothing tells their "
                "replies apart: write {{session_id}} into `id` and into what is sent"
            )
        self.id = identity
        webhook.assign()

    def close(self) -> None:
        """End the conversation."""
        self.begin_turn()
        self._webhook.inboxes.remove(self)
        self._webhook.assign(ended=self.id)

    async def collect(self, gathering: ResponseExtraction, turn_s: float) -> tuple[float, float]:
        """Read the calls of a turn, which has taken `turn_s` seconds, until it is over.

        Returns when the first of its messages and its last call came. Raises AgentError.
        """
        webhook, texts = self._webhook, list[str]()
        for call in self._late_calls:
            if isinstance(call, OwnFault):
                raise call
            if webhook.paths.tool_calls:
                gathering.calls.take(webhook.paths.tool_calls.find(call))
        first_s = last_s = turn_s
        try:
            with TimeLimit(webhook.timeout_s - turn_s) as limit:
                while True:
                    is_ending = texts and webhook.until is None
                    with anyio.move_on_after(webhook.settings.quiet_ms / 1000 if is_ending else None) as wait:
                        call = await self.calls.get()
                    if wait.cancelled_caught:
                        return first_s, last_s
                    if isinstance(call, OwnFault):
                        raise call
                    last_s = turn_s + limit.elapsed
                    if text := webhook.message_in(call):
                        first_s = first_s if texts else last_s
                        texts.append(text)
                        gathering.set_text("\n".join(texts))
                    gathering.take_event(ResponsePiece(call, call))
                    if webhook.until and webhook.until.holds(call):
                        return first_s, last_s
        except TimeoutError:
            raise AgentError(self._timeout_message()) from None

    def _timeout_message(self) -> str:
        webhook = self._webhook
        condition = f"for which `until: {webhook.until.text}` is true" if webhook.until else "with a message"
        last = "no call came" if webhook.last is None else f"the last call to it was {excerpt(webhook.last)}"
        return (
            f"no call to `reply_webhook` (port {webhook.settings.port}) {condition} for the conversation "
            f"{self.id!r} came within {webhook.timeout_s:g} s (request_timeout_ms); {last}"
        )


class CallerCheck:
    """Refuses calls that are not the agent's: without its signature, too old, or sent a second time.

    Args:
        clock: returns seconds since 1970.
    """

    def __init__(self, verify: Verify, clock: Callable[[], float] = time) -> None:
        self._verify, self._clock = verify, clock
        self._seen: dict[str, float] = {}  # signature → when it came; the oldest comes first
        self.refused: Counter[str] = Counter()  # reason → the number of calls

    def refusal(self, headers: Mapping[str, str], origin: str, target: str, body: bytes) -> str:
        """Return why a call is refused; "" if it is the agent's.

        Args:
            headers: by name in lower case.
            origin: the host, and the port, to which the call was sent.
            target: path and query.
        """
        why = self._problem(headers, origin, target, body)
        self.refused += Counter([why] if why else [])
        return why

    def _problem(self, headers: Mapping[str, str], origin: str, target: str, body: bytes) -> str:
        verify, now = self._verify, self._clock()
        if verify.header:
            sent = headers.get(verify.header.lower(), "")
            return "" if _equal(sent, verify.secret or "") else f"no secret in its header {verify.header}"
        if verify.path:
            parts = unquote(target.partition("?")[0]).split("/")
            return "" if any(_equal(part, verify.path) for part in parts) else "no secret in its path"
        if verify.slack:
            moment = headers.get("x-slack-request-timestamp", "")
            if not (moment.isascii() and moment.isdigit()) or abs(now - int(moment[:20])) > _FRESH_S:
                return f"a timestamp that is missing, or further than {_FRESH_S} s from now"
            expected = [slack_signature(verify.slack, body, moment)]
        elif verify.whatsapp:
            expected = [whatsapp_signature(verify.whatsapp, body)]
        else:  # a tunnel forwards https as http
            urls = (f"{scheme}://{origin}{target}" for scheme in ("http", "https"))
            kind, secret = headers.get("content-type", ""), verify.twilio or ""
            expected = [twilio_signature(secret, url, body, kind) for url in urls]
            if "form" not in kind and body and f"bodySHA256={sha256(body).hexdigest()}" not in target:
                return "no digest of its body in its URL"
        name = list(expected[0])[-1]
        signature = headers.get(name, "")
        if not any(_equal(signature, each[name]) for each in expected):
            return f"no valid signature in its header {name}"
        while self._seen and now - next(iter(self._seen.values())) > 2 * _FRESH_S:
            del self._seen[next(iter(self._seen))]
        if signature in self._seen:
            return f"a signature that came before, within {2 * _FRESH_S} s"
        self._seen[signature] = now
        return ""


def _equal(sent: str, expected: str) -> bool:
    return compare_digest(sent.encode(errors="replace"), expected.encode())


class WebhookReceiver:
    """A server at one port, for the webhooks of all agents that have this port."""

    def __init__(self, settings: ReplyWebhook) -> None:
        self.settings = settings
        self.webhooks: list[Webhook] = []
        self.check = CallerCheck(settings.verify) if settings.verify else None
        self._numbers = count(1)

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a call, and give it to its conversation."""
        try:
            body = await read_body(request, MAX_BODY_BYTES)
        except BodyRefused as error:
            return web.json_response({"error": f"the body {error}"}, status=error.status)
        if self.check and (
            why := self.check.refusal(headers_of(request), request.host, request.raw_path, body)
        ):
            return web.json_response({"error": f"reply_webhook refused a call with {why}"}, status=403)
        call = _value_of(request, body)
        if call.get("type") == "url_verification" and "challenge" in call:
            return web.json_response({"challenge": call["challenge"]})
        if not any(webhook.take(call) for webhook in self.webhooks):
            for webhook in self.webhooks[:1]:
                webhook.report_stray(call)
            if not self.check and not any(webhook.is_named_in(request.path) for webhook in self.webhooks):
                problem = "reply_webhook refused a call that names no conversation of this run"
                return web.json_response({"error": problem}, status=403)
        paths = {f"call.{path}": JsonPath(path).find(call) for path in self.settings.ack_paths}
        return web.json_response(
            Template(self.settings.ack).filled({"call_id": str(next(self._numbers)), **paths})
        )

    async def report_fault(self, _: web.Request, problem: str) -> None:
        """End all conversations that wait for a call: this one may have been theirs."""
        for inbox in (inbox for webhook in self.webhooks for inbox in webhook.inboxes):
            inbox.calls.put_nowait(OwnFault(problem))


def _value_of(request: web.Request, body: bytes) -> dict[str, Any]:
    """Return a call as an object with the key `request`, unless it has one. Any other value is its `body`."""
    text = body.decode("utf-8", errors="replace")
    value = read_any(text) if text.strip() else {}
    if isinstance(value, str) and "form-urlencoded" in request.content_type:
        value = dict(parse_qsl(text, keep_blank_values=True))  # many clients declare this type for JSON, too
    about = {"method": request.method, "path": request.path, "query": dict(request.query)}
    return {"request": about, **(value if isinstance(value, dict) else {"body": value})}


_receivers: WeakKeyDictionary[Sender, dict[int, WebhookReceiver]] = WeakKeyDictionary()


async def open_receivers(
    agents: Iterable[object], client: Sender, stack: AsyncExitStack, on_note: Callable[[str], None]
) -> dict[int, WebhookReceiver]:
    """Listen for the calls of agents until the stack is closed. Returns the receivers by port.

    Raises ConfigError if a port is taken, or has different settings.
    """
    opened = _receivers.setdefault(client, {})
    for agent in agents:
        if not isinstance(agent, HttpTemplateAgent) or not (settings := agent.reply_webhook):
            continue
        if settings.port not in opened:
            receiver = opened[settings.port] = WebhookReceiver(settings)
            stack.callback(opened.pop, settings.port)
            key, on_fault = f"reply_webhook of agent {agent.name!r}", receiver.report_fault
            await listen(receiver.handle, settings, key, stack, on_note, on_fault=on_fault)
        elif opened[settings.port].settings != settings:
            raise ConfigError(
                f"reply_webhook of agent {agent.name!r}: port {settings.port} belongs to another agent with "
                "different settings: give each its own port, or both the same settings"
            )
    return opened


async def open_webhook(config: HttpTemplateAgent, settings: ReplyWebhook, resources: Resources) -> Webhook:
    """Listen for the replies of an agent until its run ends. Raises ConfigError if the port is taken."""
    on_note, webhook = resources.on_note, Webhook(config, settings, resources)
    receivers = await open_receivers([config], resources.client, resources.closing, on_note)
    webhooks = receivers[settings.port].webhooks
    webhooks.append(webhook)

    def close() -> None:
        webhooks.remove(webhook)
        if webhook.late:
            how = "the last call of a turn" if settings.until else "a longer quiet time"
            on_note(
                f"agent {config.name!r}: {counted(webhook.late, 'message')} came to `reply_webhook` after a "
                f"turn had ended, and belonged to no reply. If they are the rest of one, set `until` to {how}"
            )

        if (check := receivers[settings.port].check) and check.refused:
            number, why = counted(check.refused.total(), "call"), "; ".join(check.refused)
            check.refused.clear()
            on_note(
                f"warning: agent {config.name!r}: `reply_webhook` refused {number} that `verify` does not "
                f"accept: {why}"
            )

    resources.closing.callback(close)
    return webhook
