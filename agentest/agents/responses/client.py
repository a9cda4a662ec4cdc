"""An agent that speaks OpenAI's Responses over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from agentest.agents.bypassed_tools import OwnTools, answered_by_us
from agentest.agents.http_sender import HttpSender, read_body
from agentest.agents.json_reader import read_object, shown
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import Agent, AgentReply, Ignored, NoReply, Resources, TurnContext
from agentest.agents.responses.exchange import Answered, Exchange, Refused
from agentest.agents.responses.items import Item, asked_by_id, written
from agentest.agents.responses.response import RESPONSES_PLACE, Response, items_of, made_so_far, reply_of
from agentest.config.agents.responses import History, ResponsesAgent
from agentest.domain.messages import Message
from agentest.support.http.client import DirectResponse
from agentest.support.templates import Template, Values

_HANDED_OVER = "have the agent answer with the call alone, without its output (a tool of body.tools)"


def open_agent(_: str, config: ResponsesAgent, resources: Resources) -> ResponsesClient:
    """The client of an agent that speaks Responses."""
    return ResponsesClient(config, resources)


class ResponsesClient:
    """Sends conversations to one endpoint. What belongs to a conversation is in what `conversation` opens."""

    takes_attachments = True

    def __init__(self, config: ResponsesAgent, resources: Resources) -> None:
        self.name = config.name
        self.history = config.history
        self.ignored = Ignored(config.name, resources)
        self.own_tools = OwnTools(config.name, handed_over=_HANDED_OVER)
        sender = HttpSender(config, resources.client, resources.timeout_s, RESPONSES_PLACE)
        self.conversations = Conversations(config, sender, resources.on_note)
        self._exchange = Exchange(config.endpoint, sender, config.streaming, resources.timeout_s)
        self._streamed = {"stream": True} if config.streaming else {}
        self._body = Template(config.body)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        """A conversation, which keeps the agent's items as they came."""
        yield _Conversation(self)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The answer to a conversation of which nothing else is known. Raises NoReply, CannotSend."""
        return await _Conversation(self).reply(messages, ctx)

    async def ask(
        self,
        history: Mapping[str, Any],
        items: Sequence[Item],
        values: TurnValues,
        ctx: TurnContext,
        *,
        first: bool,
    ) -> Answered:
        """The response to items of one conversation. Raises NoReply, Refused, CannotSend.

        Args:
            history: fields that say what the server has of it already.
            first: whether the server has nothing of it, not even `body.input`.
        """
        body = self._body.filled(values)
        before = body.get("input", []) if first else []
        payload = {**body, **self._streamed, **history, "input": [*before, *items]}
        return await self._exchange.ask(payload, values, ctx.turn_index, self.ignored)


class _Conversation:
    """One conversation with an agent."""

    def __init__(self, client: ResponsesClient) -> None:
        self.name = client.name
        self._client = client
        self._items: list[Item] = []
        """What was said, but for `body.input`."""
        self._known = 0
        """How many of the turn loop's messages are in the items."""
        self._previous: str | None = None
        """The id of the last response."""
        self._conversation: Any = None
        """The id by which the server knows this conversation, or an object that holds it."""

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The agent's answer. Raises NoReply, CannotSend, MockBypassed."""
        if not self._known:
            self._client.own_tools.check_before(ctx)
        new = written(messages[self._known :], asked_by_id(self._items))
        answered = await self._ask(new, TurnValues(messages, ctx), ctx)
        try:
            reply = reply_of(answered.response, ctx.turn_index, self.name, self._client.ignored, self._items)
            self._keep(new, answered.response, ctx)
        except NoReply as error:
            raise NoReply(str(error), answered.retries, error.observed) from None
        self._client.own_tools.check_after(reply.observed, ctx, answered_by_us(messages))
        self._known = len(messages) + 1  # the reply will be the next of them
        return replace(
            reply,
            latency_ms=answered.latency_ms,
            retries=answered.retries,
            first_token_ms=answered.first_token_ms,
        )

    async def _ask(self, new: list[dict[str, Any]], values: TurnValues, ctx: TurnContext) -> Answered:
        match self._client.history:
            case History.PREVIOUS_RESPONSE_ID:
                return await self._ask_after_the_last(new, values, ctx)
            case History.CONVERSATION:
                return await self._ask_in_the_conversation(new, values, ctx)
        return await self._client.ask({}, [*self._items, *new], values, ctx, first=True)

    async def _ask_after_the_last(
        self, new: list[dict[str, Any]], values: TurnValues, ctx: TurnContext
    ) -> Answered:
        if self._previous is None:
            return await self._client.ask({}, new, values, ctx, first=True)
        history = {"previous_response_id": self._previous}
        try:
            return await self._client.ask(history, new, values, ctx, first=False)
        except Refused as error:
            if not error.is_about("previous.?response"):
                raise
            raise NoReply(f"{error} (write history: input)", error.retries) from None

    async def _ask_in_the_conversation(
        self, new: list[dict[str, Any]], values: TurnValues, ctx: TurnContext
    ) -> Answered:
        first, client = self._conversation is None, self._client
        if self._conversation is None:
            self._conversation = await client.conversations.begun(values, ctx)
        try:
            return await client.ask({"conversation": self._conversation}, new, values, ctx, first=first)
        except Refused as error:
            if not first or not client.conversations.may_make_one(error):
                raise
            self._conversation = await client.conversations.made(values)
            history = {"conversation": self._conversation}
            answered = await client.ask(history, new, values, ctx, first=True)
            return replace(answered, retries=answered.retries + error.retries + 1)

    def _keep(self, new: list[dict[str, Any]], response: Response, ctx: TurnContext) -> None:
        self._items += [*new, *items_of(response)]
        match self._client.history:
            case History.PREVIOUS_RESPONSE_ID:
                self._previous = _id_of(response, ctx)
            case History.CONVERSATION:
                self._client.conversations.look_for_one(response)


def _id_of(response: Response, ctx: TurnContext) -> str:
    identifier = response.get("id")
    if isinstance(identifier, str) and identifier:
        return identifier
    raise NoReply(
        f"the agent's response has no `id` ({shown(identifier)}), which history: previous_response_id needs; "
        "write history: input",
        observed=made_so_far(response, ctx.turn_index),
    )


class Conversations:
    """Begins conversations. It learns how the server has it, and knows nothing of any of them."""

    def __init__(self, config: ResponsesAgent, sender: HttpSender, on_note: Callable[[str], None]) -> None:
        self._agent = config.name
        self._named = Template(config.body.get("conversation"))
        self._is_named = "conversation" in config.body
        self._place = _beside(config.endpoint)
        self._sender = sender
        self._on_note = on_note
        self._makes_its_own = False
        self._noted = False

    async def begun(self, values: Values, ctx: TurnContext) -> Any:
        """What a new conversation is called. Raises NoReply, CannotSend."""
        if self._is_named:
            return self._named.filled(values)
        return await self.made(values) if self._makes_its_own else ctx.session_id

    def may_make_one(self, refused: Refused) -> bool:
        """Whether the server seems to want a conversation that it has made itself."""
        return refused.is_about("conversation") and self._place is not None and not self._is_named

    async def made(self, values: Values) -> str:
        """A conversation made by the server. Raises NoReply."""
        assert self._place is not None  # may_make_one has said so
        made = (await self._sender.post(self._place, {}, _read, values=values)).value
        if not isinstance(made.get("id"), str) or not made["id"]:
            raise NoReply(f"{self._place} answered no conversation with an `id`, but: {shown(made)}")
        self._makes_its_own = True
        return str(made["id"])

    def look_for_one(self, response: Response) -> None:
        """Note, once, that a server's responses name no conversation: it may not know what that is."""
        if response.get("conversation") or self._noted:
            return
        self._noted = True
        self._on_note(
            f"agent {self._agent!r}: its responses name no `conversation`, so it may have forgotten what was "
            "said before; if it does, write history: input"
        )


def _beside(endpoint: str) -> str | None:
    """Where conversations are made: `…/conversations` beside `…/responses`; None beside other paths."""
    parts = urlsplit(endpoint)
    path = parts.path.rstrip("/")
    if not path.endswith("/responses"):
        return None
    return parts._replace(path=f"{path.removesuffix('responses')}conversations").geturl()


async def _read(response: DirectResponse) -> Mapping[str, Any]:
    return await read_body(response, False, lambda body: read_object(body, RESPONSES_PLACE), _no_stream)


async def _no_stream(_: Any) -> Mapping[str, Any]:
    raise NoReply("the agent answered with a stream where a conversation was to be made")
