"""The client of an agent that speaks OpenAI's Responses over HTTP, and its conversations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import anyio

from agentest.agents.bypassed_tools import ids_of_mocked_calls
from agentest.agents.http_sender import OutgoingRequest, read_body
from agentest.agents.json_reader import TOO_DEEP, check_object, excerpt, text_at
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, ConversationalAgent, NoReply, Resources, TurnContext
from agentest.domain.messages import Message
from agentest.plugins.protocols import response_items as wire
from agentest.plugins.protocols.protocol_client import ProtocolEndpoint, ProtocolTurn, read_json_body
from agentest.plugins.protocols.responses.settings import History, ResponsesAgent
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.templates import Values

_HANDED_OVER = "have the agent answer with the call alone, without its output (a tool of body.tools)"
_REFUSAL_STATUSES = (400, 404, 422)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


def open_agent(_: str, config: ResponsesAgent, resources: Resources) -> ConversationalAgent:
    """Create the client of an agent that speaks Responses."""
    endpoint = _ResponsesEndpoint(config, resources)
    return ConversationalAgent(config.name, lambda: _ResponsesConversation(endpoint), takes_history=True)


class InvalidRequest(NoReply):
    """The agent refused a request as invalid."""

    def is_about(self, pattern: str) -> bool:
        """Return whether the agent's message matches a regular expression, ignoring case."""
        return bool(re.search(pattern, str(self).partition(" answered ")[2], re.I))


class _ResponsesEndpoint(ProtocolEndpoint):
    def __init__(self, config: ResponsesAgent, resources: Resources) -> None:
        super().__init__(config, resources, wire.RESPONSES_PLACE, handed_over=_HANDED_OVER)
        self.history = config.history
        self._url = config.endpoint
        self._streaming = config.streaming
        self._timeout_s = resources.timeout_s
        self._names_conversation = "conversation" in config.body
        self._creates_conversations = False

    async def send(
        self, history: Mapping[str, Any], items: Sequence[wire.Item], turn: ProtocolTurn, *, first: bool
    ) -> wire.Response:
        body = self.body.filled(turn.values)
        streamed = {"stream": True} if self._streaming else {}
        before = body.get("input", []) if first else []
        payload = {**body, **streamed, **history, "input": [*before, *items]}
        assembly, refused = wire.ResponseAssembly(self.ignored), False

        async def read(response: DirectResponse) -> wire.Response:
            nonlocal refused
            if response.status_code in _REFUSAL_STATUSES:
                refused = True
                raise AgentError(await self.sender.problem(response))
            return await read_body(response, self._streaming, assembly.take, assembly.read)

        try:
            answer = await self.sender.post(self._url, payload, read, _REFUSAL_STATUSES, values=turn.values)
            ended = turn.add(answer)
            if wire.is_running(ended) and isinstance(ended.get("id"), str):
                ended = await self._poll_until_ended(ended, assembly, turn)
            return ended
        except NoReply as error:
            calls_so_far = wire.made_so_far(assembly.response(), turn.ctx.turn_index)
            raise (InvalidRequest if refused else NoReply)(str(error), error.retries, calls_so_far) from None
        except RecursionError:
            raise NoReply(TOO_DEEP) from None

    async def _poll_until_ended(
        self, response: wire.Response, assembly: wire.ResponseAssembly, turn: ProtocolTurn
    ) -> wire.Response:
        parts = urlsplit(self._url)
        url = parts._replace(path=f"{parts.path.rstrip('/')}/{quote(response['id'], '')}").geturl()
        pause_s = _FIRST_PAUSE_S
        limit = TimeLimit(max(0.0, self._timeout_s - turn.latency_ms / 1000))
        try:
            with limit:
                while wire.is_running(response):
                    await anyio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                    request = OutgoingRequest(url=url, method="GET")
                    answer = await self.sender.send(request, _read_polled, values=turn.values)
                    response = assembly.replace(answer.value)
        except TimeoutError:
            raise NoReply(
                f"{url}: the response is still {response.get('status')!r} after {self._timeout_s:g} s "
                "(request_timeout_ms)"
            ) from None
        turn.latency_ms += limit.elapsed * 1000
        return response

    async def start_conversation(self, turn: ProtocolTurn) -> Any:
        if self._names_conversation:
            return self.body.filled(turn.values)["conversation"]
        creates = self._creates_conversations
        return await self.create_conversation(turn.values) if creates else turn.ctx.session_id

    def should_create(self, refused: InvalidRequest) -> bool:
        is_possible = _conversations_url(self._url) is not None and not self._names_conversation
        return is_possible and refused.is_about("conversation")

    async def create_conversation(self, values: Values) -> str:
        url = _conversations_url(self._url)
        assert url is not None  # checked by should_create
        made = (await self.sender.post(url, {}, _read_conversation, values=values)).value
        if not text_at(made, "id"):
            raise NoReply(f"{url} answered no conversation with an `id`, but: {excerpt(made)}")
        self._creates_conversations = True
        return str(made["id"])


def _conversations_url(endpoint: str) -> str | None:
    parts = urlsplit(endpoint)
    path = parts.path.rstrip("/")
    if not path.endswith("/responses"):
        return None
    return parts._replace(path=f"{path.removesuffix('responses')}conversations").geturl()


async def _read_conversation(response: DirectResponse) -> Mapping[str, Any]:
    if_stream = "the agent answered with a stream where a conversation was to be made"
    return check_object(await read_json_body(response, wire.RESPONSES_PLACE, if_stream))


async def _read_polled(response: DirectResponse) -> wire.Response:
    if_stream = "the agent answered with a stream when its response was requested by id"
    return wire.check_response(await read_json_body(response, wire.RESPONSES_PLACE, if_stream))


class _ResponsesConversation:
    def __init__(self, endpoint: _ResponsesEndpoint) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint
        self._items: list[wire.Item] = []  # all items of the conversation, without `body.input`
        self._known = 0  # the number of the turn loop's messages that are in the items
        self._previous: str | None = None  # the id of the last response
        self._conversation: Any = None  # the conversation's id on the server, or an object with the id

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        if not self._known:
            self._endpoint.own_tools.check_before(ctx)
        new = wire.written(messages[self._known :], wire.requested_by_id(self._items))
        turn = ProtocolTurn(ctx=ctx, values=TurnValues(messages, ctx))
        response = await self._send(new, turn)
        try:
            reply = wire.reply_of(response, ctx.turn_index, self.name, self._endpoint.ignored, self._items)
            self._store(new, response, ctx)
        except NoReply as error:
            raise turn.no_reply(str(error), error.observed) from None
        self._endpoint.own_tools.check_after(reply.observed, ctx, ids_of_mocked_calls(messages))
        self._known = len(messages) + 1  # the reply will be the next of them
        return turn.timed(reply)

    async def _send(self, new: list[dict[str, Any]], turn: ProtocolTurn) -> wire.Response:
        endpoint = self._endpoint
        history: dict[str, Any] = {}
        if endpoint.history is History.INPUT:
            return await endpoint.send(history, [*self._items, *new], turn, first=True)
        first = self._previous is None and self._conversation is None
        if endpoint.history is History.CONVERSATION:
            if first:
                self._conversation = await endpoint.start_conversation(turn)
            history = {"conversation": self._conversation}
        elif not first:
            history = {"previous_response_id": self._previous}
        try:
            return await endpoint.send(history, new, turn, first=first)
        except InvalidRequest as error:
            if "previous_response_id" in history and error.is_about("previous.?response"):
                raise NoReply(f"{error} (write history: input)", error.retries) from None
            if not (first and "conversation" in history and endpoint.should_create(error)):
                raise
            turn.retries += error.retries + 1
        self._conversation = await endpoint.create_conversation(turn.values)
        history = {"conversation": self._conversation}
        return await endpoint.send(history, new, turn, first=True)

    def _store(self, new: list[dict[str, Any]], response: wire.Response, ctx: TurnContext) -> None:
        self._items += [*new, *wire.items_of(response)]
        identifier = response.get("id")
        if self._endpoint.history is History.PREVIOUS_RESPONSE_ID:
            if not isinstance(identifier, str) or not identifier:
                raise NoReply(
                    f"the agent's response has no `id` ({excerpt(identifier)}), which history: "
                    "previous_response_id needs; write history: input",
                    observed=wire.made_so_far(response, ctx.turn_index),
                )
            self._previous = identifier
        elif self._endpoint.history is History.CONVERSATION and not response.get("conversation"):
            # The server may not support conversations.
            self._endpoint.notes.add(
                "conversation",
                "its responses name no `conversation`, so it may have forgotten what was said before; if it "
                "does, write history: input",
            )
