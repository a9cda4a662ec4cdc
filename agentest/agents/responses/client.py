"""The client of an agent that speaks OpenAI's Responses over HTTP, and its conversations."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import anyio

from agentest.agents.bypassed_tools import BypassDetector, ids_of_mocked_calls
from agentest.agents.http_sender import HttpSender, read_body
from agentest.agents.json_reader import TOO_DEEP, excerpt, read_object
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import Agent, AgentReply, IgnoredCounter, NoReply, Resources, TurnContext
from agentest.agents.responses.items import Item, requested_by_id, written
from agentest.agents.responses.response import (
    RESPONSES_PLACE,
    Response,
    ResponseAssembly,
    is_running,
    items_of,
    made_so_far,
    read_response,
    reply_of,
)
from agentest.config.agents.model_apis import History, ResponsesAgent
from agentest.domain.messages import Message
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import Template, Values

_HANDED_OVER = "have the agent answer with the call alone, without its output (a tool of body.tools)"


def open_agent(_: str, config: ResponsesAgent, resources: Resources) -> ResponsesClient:
    """Create the client of an agent that speaks Responses."""
    return ResponsesClient(config, resources)


class ResponsesClient:
    """Opens conversations with one endpoint. Stores nothing about them."""

    takes_attachments = True

    def __init__(self, config: ResponsesAgent, resources: Resources) -> None:
        self.name = config.name
        self.history = config.history
        self.ignored = IgnoredCounter(config.name, resources)
        self.own_tools = BypassDetector(config.name, handed_over=_HANDED_OVER)
        sender = HttpSender(config, resources.client, resources.timeout_s, RESPONSES_PLACE)
        self.conversations = ConversationStarter(config, sender, resources.on_note)
        self._exchange = ResponsesSender(config.endpoint, sender, config.streaming, resources.timeout_s)
        self._streamed = {"stream": True} if config.streaming else {}
        self._body = Template(config.body)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        """Open one conversation, which stores the agent's items as received."""
        yield _ResponsesConversation(self)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to a complete history in a new conversation. Raises NoReply, CannotSend, MockBypassed."""
        return await _ResponsesConversation(self).reply(messages, ctx)

    async def send(
        self,
        history: Mapping[str, Any],
        items: Sequence[Item],
        values: TurnValues,
        ctx: TurnContext,
        *,
        first: bool,
    ) -> EndedResponse:
        """Send items of one conversation and return the response.

        Args:
            history: fields that refer to the history on the server.
            items: the items to send.
            values: the turn's values for templates.
            ctx: the turn.
            first: True if the server has no history, so that `body.input` is sent first.

        Raises NoReply, Refused, CannotSend.
        """
        body = self._body.filled(values)
        before = body.get("input", []) if first else []
        payload = {**body, **self._streamed, **history, "input": [*before, *items]}
        return await self._exchange.send(payload, values, ctx.turn_index, self.ignored)


class _ResponsesConversation:
    """One conversation with an agent."""

    def __init__(self, client: ResponsesClient) -> None:
        self.name = client.name
        self._client = client
        self._items: list[Item] = []
        """All items of the conversation, without `body.input`."""
        self._known = 0
        """The number of the turn loop's messages that are in the items."""
        self._previous: str | None = None
        """The id of the last response."""
        self._conversation: Any = None
        """The conversation's id on the server, or an object with the id."""

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the last messages. Raises NoReply, CannotSend, MockBypassed."""
        if not self._known:
            self._client.own_tools.check_before(ctx)
        new = written(messages[self._known :], requested_by_id(self._items))
        ended = await self._send(new, TurnValues(messages, ctx), ctx)
        try:
            reply = reply_of(ended.response, ctx.turn_index, self.name, self._client.ignored, self._items)
            self._store(new, ended.response, ctx)
        except NoReply as error:
            raise NoReply(str(error), ended.retries, error.observed) from None
        self._client.own_tools.check_after(reply.observed, ctx, ids_of_mocked_calls(messages))
        self._known = len(messages) + 1  # the reply will be the next of them
        return replace(
            reply,
            latency_ms=ended.latency_ms,
            retries=ended.retries,
            first_token_ms=ended.first_token_ms,
        )

    async def _send(self, new: list[dict[str, Any]], values: TurnValues, ctx: TurnContext) -> EndedResponse:
        match self._client.history:
            case History.PREVIOUS_RESPONSE_ID:
                return await self._send_after_previous(new, values, ctx)
            case History.CONVERSATION:
                return await self._send_in_conversation(new, values, ctx)
        return await self._client.send({}, [*self._items, *new], values, ctx, first=True)

    async def _send_after_previous(
        self, new: list[dict[str, Any]], values: TurnValues, ctx: TurnContext
    ) -> EndedResponse:
        if self._previous is None:
            return await self._client.send({}, new, values, ctx, first=True)
        history = {"previous_response_id": self._previous}
        try:
            return await self._client.send(history, new, values, ctx, first=False)
        except InvalidRequest as error:
            if not error.is_about("previous.?response"):
                raise
            raise NoReply(f"{error} (write history: input)", error.retries) from None

    async def _send_in_conversation(
        self, new: list[dict[str, Any]], values: TurnValues, ctx: TurnContext
    ) -> EndedResponse:
        first, client = self._conversation is None, self._client
        if self._conversation is None:
            self._conversation = await client.conversations.start(values, ctx)
        try:
            return await client.send({"conversation": self._conversation}, new, values, ctx, first=first)
        except InvalidRequest as error:
            if not first or not client.conversations.should_create(error):
                raise
            self._conversation = await client.conversations.create(values)
            history = {"conversation": self._conversation}
            ended = await client.send(history, new, values, ctx, first=True)
            return replace(ended, retries=ended.retries + error.retries + 1)

    def _store(self, new: list[dict[str, Any]], response: Response, ctx: TurnContext) -> None:
        self._items += [*new, *items_of(response)]
        match self._client.history:
            case History.PREVIOUS_RESPONSE_ID:
                self._previous = _id_of(response, ctx)
            case History.CONVERSATION:
                self._client.conversations.note_missing_id(response)


def _id_of(response: Response, ctx: TurnContext) -> str:
    identifier = response.get("id")
    if isinstance(identifier, str) and identifier:
        return identifier
    raise NoReply(
        f"the agent's response has no `id` ({excerpt(identifier)}), which history: previous_response_id "
        "needs; write history: input",
        observed=made_so_far(response, ctx.turn_index),
    )


class ConversationStarter:
    """Starts conversations with `history: conversation`, and learns whether the server must create them."""

    def __init__(self, config: ResponsesAgent, sender: HttpSender, on_note: Callable[[str], None]) -> None:
        self._agent = config.name
        self._named = Template(config.body.get("conversation"))
        self._is_named = "conversation" in config.body
        self._url = _conversations_url(config.endpoint)
        self._sender = sender
        self._on_note = on_note
        self._are_made_by_server = False
        self._has_noted_missing = False

    async def start(self, values: Values, ctx: TurnContext) -> Any:
        """Start a conversation and return its id. Raises NoReply, CannotSend."""
        if self._is_named:
            return self._named.filled(values)
        return await self.create(values) if self._are_made_by_server else ctx.session_id

    def should_create(self, refused: InvalidRequest) -> bool:
        """Return whether a refusal suggests that the server accepts only conversations that it created."""
        return refused.is_about("conversation") and self._url is not None and not self._is_named

    async def create(self, values: Values) -> str:
        """Create a conversation on the server and return its id. Raises NoReply."""
        assert self._url is not None  # checked by should_create
        made = (await self._sender.post(self._url, {}, _read, values=values)).value
        if not isinstance(made.get("id"), str) or not made["id"]:
            raise NoReply(f"{self._url} answered no conversation with an `id`, but: {excerpt(made)}")
        self._are_made_by_server = True
        return str(made["id"])

    def note_missing_id(self, response: Response) -> None:
        """Note once if responses name no conversation, because the server may not support them."""
        if response.get("conversation") or self._has_noted_missing:
            return
        self._has_noted_missing = True
        self._on_note(
            f"agent {self._agent!r}: its responses name no `conversation`, so it may have forgotten what was "
            "said before; if it does, write history: input"
        )


def _conversations_url(endpoint: str) -> str | None:
    """Return `…/conversations` for an endpoint `…/responses`; None for other paths."""
    parts = urlsplit(endpoint)
    path = parts.path.rstrip("/")
    if not path.endswith("/responses"):
        return None
    return parts._replace(path=f"{path.removesuffix('responses')}conversations").geturl()


async def _read(response: DirectResponse) -> Mapping[str, Any]:
    return await read_body(response, False, lambda body: read_object(body, RESPONSES_PLACE), _refuse_stream)


async def _refuse_stream(_: Any) -> Mapping[str, Any]:
    raise NoReply("the agent answered with a stream where a conversation was to be made")


_REFUSAL_STATUSES = (400, 404, 422)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedResponse:
    """A response that has ended, with its timing and retries."""

    response: Response
    latency_ms: float
    retries: int
    first_token_ms: float | None


class InvalidRequest(NoReply):
    """The agent refused a request as invalid."""

    def is_about(self, pattern: str) -> bool:
        """Return whether the agent's message matches a regular expression, ignoring case."""
        return bool(re.search(pattern, str(self).partition(" answered ")[2], re.I))


class ResponsesSender:
    """Sends requests to one endpoint. Stores nothing about conversations."""

    def __init__(self, endpoint: str, sender: HttpSender, streaming: bool, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._sender = sender
        self._streaming = streaming
        self._timeout_s = timeout_s

    async def send(
        self, payload: Mapping[str, Any], values: Values, turn_index: int, ignored: IgnoredCounter
    ) -> EndedResponse:
        """Send a request and wait until its response has ended.

        Raises Refused, or NoReply with the calls that the agent made before the error.
        """
        assembly, refused = ResponseAssembly(ignored), False

        async def read(response: DirectResponse) -> Response:
            nonlocal refused
            if response.status_code in _REFUSAL_STATUSES:
                refused = True
                raise AgentError(await self._sender.problem(response))
            return await read_body(response, self._streaming, _reader_into(assembly), assembly.read)

        try:
            first = await self._sender.post(self._endpoint, payload, read, _REFUSAL_STATUSES, values=values)
            if not is_running(first.value) or not isinstance(first.value.get("id"), str):
                return _answered(first.value, first.latency_ms, first.retries, first.first_token_ms)
            done, waited_ms = await self._poll_until_ended(
                first.value, assembly, values, first.latency_ms / 1000
            )
            return _answered(done, first.latency_ms + waited_ms, first.retries, first.first_token_ms)
        except NoReply as error:
            calls_so_far = made_so_far(assembly.response(), turn_index)
            raise (InvalidRequest if refused else NoReply)(str(error), error.retries, calls_so_far) from None
        except RecursionError:
            raise NoReply(TOO_DEEP) from None

    async def _poll_until_ended(
        self, response: Response, assembly: ResponseAssembly, values: Values, took_s: float
    ) -> tuple[Response, float]:
        """Return the ended response and the time that polling took, in milliseconds. Raises NoReply."""
        url = part_of(self._endpoint, response["id"])
        pause_s = _FIRST_PAUSE_S
        limit = TimeLimit(max(0.0, self._timeout_s - took_s))
        try:
            with limit:
                while is_running(response):
                    await anyio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                    answer = await self._sender.get(url, _read_response, values=values)
                    response = assembly.take(answer.value)
        except TimeoutError:
            raise NoReply(
                f"{url}: the response is still {response.get('status')!r} after {self._timeout_s:g} s "
                "(request_timeout_ms)"
            ) from None
        return response, limit.elapsed * 1000


def part_of(endpoint: str, name: str) -> str:
    """Return the address of a path segment below an endpoint, with the endpoint's query."""
    parts = urlsplit(endpoint)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name, '')}").geturl()


def _answered(
    response: Response, latency_ms: float, retries: int, first_token_ms: float | None
) -> EndedResponse:
    return EndedResponse(
        response=response, latency_ms=latency_ms, retries=retries, first_token_ms=first_token_ms
    )


def _reader_into(assembly: ResponseAssembly) -> Callable[[bytes], Response]:
    return lambda body: assembly.take(read_response(body))


async def _read_response(response: DirectResponse) -> Response:
    return await read_body(response, False, read_response, _refuse_partial_stream)


async def _refuse_partial_stream(_: Any) -> Response:
    raise NoReply("the agent answered with a stream where its response was asked for by its id")
