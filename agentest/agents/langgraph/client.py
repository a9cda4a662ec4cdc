"""A graph behind a LangGraph server: threads, `/runs/wait` and `/runs/stream`.

The graph runs its tools itself: calls are observed in its messages, mocks do not apply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager

from agentest.agents.answers import read_body
from agentest.agents.http_sender import HttpAnswer, HttpSender
from agentest.agents.ignored import Ignored
from agentest.agents.langgraph.conversation import GraphConversation
from agentest.agents.langgraph.requests import Requests
from agentest.agents.langgraph.runs import PLACE, RunTold, StreamReader, read_answer
from agentest.agents.langgraph.threads import Server
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.config.agents.langgraph import LangGraphAgent
from agentest.errors import CannotSend
from agentest.http.client import DirectResponse
from agentest.messages import Message
from agentest.support.json_path import JsonPath
from agentest.support.templates import Values

_LATE = "`langgraph dev` takes one run at a time: start it with --n-jobs-per-worker 20"
_NO_GRAPH = (404, 422)
"""How the server answers that has no such graph."""


def open_agent(_: str, config: LangGraphAgent, resources: Resources) -> LangGraphClient:
    """The client of a graph behind a LangGraph server."""
    return LangGraphClient(config, resources)


class LangGraphClient:
    """Sends conversations to one LangGraph server. Keeps nothing of any conversation."""

    takes_attachments = True

    def __init__(self, config: LangGraphAgent, resources: Resources) -> None:
        self.name = config.name
        self.path = JsonPath(config.reply) if config.reply else None
        self.approvals = config.approvals
        self.requests = Requests(config)
        self.ignored = Ignored(config.name, resources)
        self._assistant = config.assistant_id
        self._streaming = config.streaming
        self._root = config.endpoint.rstrip("/")
        self._sender = HttpSender(config, resources.client, resources.timeout_s, PLACE, _LATE)
        self.server = Server(self._root, config.name, self._sender)
        self._stream = StreamReader(self.ignored.note)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[GraphConversation]:
        """One conversation: it knows which messages of its thread are old, and what the graph asks."""
        yield GraphConversation(self)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The answer to the only message of a conversation."""
        async with self.conversation() as conversation:
            return await conversation.reply(messages, ctx)

    async def assistant(self, values: Values) -> str:
        """The graph to run. Raises CannotSend where the server has several."""
        return self._assistant or await self.server.only_graph(values)

    async def run(self, thread: str, body: dict[str, object], values: Values) -> HttpAnswer[RunTold]:
        """What a run tells. Raises NoReply, and CannotSend where there is no such graph."""
        url = f"{self._root}/threads/{thread}/runs/{'stream' if self._streaming else 'wait'}"
        answered = await self._sender.post(url, body, self._read, _NO_GRAPH, values=values)
        if isinstance(answered.value, RunTold):
            return HttpAnswer(answered.value, answered.latency_ms, answered.retries, answered.first_token_ms)
        graphs = await self.server.graphs(values)
        named = body["assistant_id"]
        if graphs and self._assistant and named not in graphs and not _is_uuid(named):
            raise CannotSend(
                f"the LangGraph server has no graph {named!r}: set assistant_id of agent {self.name!r} to "
                f"one of {', '.join(graphs)} ({answered.value})"
            )
        raise NoReply(answered.value, answered.retries)

    async def _read(self, response: DirectResponse) -> RunTold | str:
        """What the run tells, or what is wrong with the request."""
        if response.status_code in _NO_GRAPH:
            return await self._sender.problem(response)
        return await self._body(response)

    def _body(self, response: DirectResponse) -> Awaitable[RunTold]:
        return read_body(response, self._streaming, read_answer, self._stream.read)


def _is_uuid(value: object) -> bool:
    return isinstance(value, str) and value.count("-") == 4
