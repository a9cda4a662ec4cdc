"""The client of an agent that speaks A2A, versions 1.0 and 0.3, and its conversations.

The agent runs its own tools. Calls that its server reports are observed; mocks do not apply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from agentest.agents.a2a.discovery import RequestWay, WayFinder, langgraph_assistant
from agentest.agents.a2a.exchange import (
    A2A_PLACE,
    LOST_TASK,
    UNSUPPORTED,
    A2aSender,
    ReportedError,
    params_of,
)
from agentest.agents.a2a.reply import (
    ReplyText,
    check_ended_well,
    parts_of,
    read_calls,
    read_reply_text,
    read_usage,
    reports_all_calls,
    texts_by_artifact,
)
from agentest.agents.a2a.task import INPUT_REQUIRED, AgentWork
from agentest.agents.http_sender import cancelled_on_server
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.agents.protocol_client import ProtocolClient, ProtocolEndpoint
from agentest.config.agents.a2a import A2aAgent
from agentest.domain.messages import Message, last_user_message
from agentest.domain.transcript import ToolCall
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_PAUSE_GROWTH = 1.5
Pause = Callable[[float], Awaitable[Any]]


def open_agent(_: str, config: A2aAgent, resources: Resources, pause: Pause = anyio.sleep) -> ProtocolClient:
    """Create the client of an A2A agent. `pause` waits between two polls of a task, in seconds."""
    endpoint = _A2aEndpoint(config, resources, pause)
    return ProtocolClient(config.name, lambda: A2aConversation(endpoint))


class _A2aEndpoint(ProtocolEndpoint):
    """One agent and the way to reach it."""

    def __init__(self, config: A2aAgent, resources: Resources, pause: Pause) -> None:
        super().__init__(config, resources, A2A_PLACE)
        self.pause = pause
        self.timeout_s = resources.timeout_s
        self.contact = WayFinder(config, resources.timeout_s, self.notes)
        self.requests = A2aSender(self.sender, self.credentials)
        self._streaming = config.streaming

    def credentials(self) -> str:
        """Describe the credentials that the agent's card requires; "" for none."""
        return self.contact.card.credentials if self.contact.card else ""

    def streams(self) -> bool:
        """Return whether to request streams. If the agent's card refuses them, note that once."""
        refused = self.contact.card is not None and not self.contact.card.streams
        if self._streaming and refused:
            self.notes.add(
                "streaming",
                "its card says that it does not stream (capabilities.streaming: false), so it is asked for "
                "whole answers; leave `streaming` out",
            )
        return self._streaming and not refused


class A2aConversation:
    """One conversation: the context and task on the server, and what earlier turns have shown."""

    def __init__(self, endpoint: _A2aEndpoint) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint
        self._context_id: str | None = None
        self._task_id: str | None = None
        """The task that waits for input from the user."""
        self._shown_artifacts: dict[str, str] = {}
        """Artifacts of that task → the text that earlier turns have shown."""
        self._known_messages: set[str] = set()
        self._known_calls: set[tuple[str, str | None]] = set()
        """Task and id of each reported call."""
        self._known_events: set[str] = set()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the user's last message.

        If the agent is still working on its task, poll the task until it ends. One time limit covers
        the request and all polls. Raises NoReply with the calls that were seen, CannotSend.
        """
        exchange = _MessageExchange(self._endpoint, messages, ctx, self._known_messages)
        try:
            async with cancelled_on_server(exchange.cancel):
                # Before the server has made a context, the scenario's session id names it.
                session_id = ctx.session.session_id if ctx.session else None
                await exchange.send(self._context_id or session_id or None, self._task_id)
                await exchange.finish()
            return self._read(exchange, ctx.turn_index)
        except RecursionError:
            raise NoReply("the agent's answer is nested too deeply to be read", exchange.retries) from None
        except AgentError as error:
            retries = exchange.retries + (error.retries if isinstance(error, NoReply) else 0)
            calls_so_far = self._calls_so_far(exchange.work, ctx.turn_index)
            raise NoReply(self._explain(error, exchange.url), retries, calls_so_far) from None

    def _read(self, exchange: _MessageExchange, turn_index: int) -> AgentReply:
        work = exchange.work
        if self._context_id and work.context_id and work.context_id != self._context_id:
            raise AgentError(
                f"the agent answered in another context (contextId {work.context_id}) than that of this "
                f"conversation ({self._context_id}): it has lost the conversation"
            )
        check_ended_well(work, self._endpoint.credentials())
        calls = self._new_calls(work, turn_index)
        reply_text = read_reply_text(work, self.name, self._shown_artifacts)
        _check_not_empty(reply_text, calls, work)
        self._context_id = self._context_id or work.context_id or None
        waits = work.state == INPUT_REQUIRED and work.message is None
        self._task_id = work.task_id or None if waits else None
        self._shown_artifacts = texts_by_artifact(work) if waits else {}
        card = self._endpoint.contact.card
        usage, model_calls = read_usage(work, self._known_events)
        return AgentReply(
            reply_text.text,
            usage=usage,
            model_calls=model_calls,
            latency_ms=exchange.latency_ms,
            retries=exchange.retries,
            observed=calls,
            remarks=reply_text.remarks,
            author=reply_text.author,
            first_token_ms=reply_text.first_ms,
            tells_calls=reports_all_calls(work) or (card is not None and card.tells_calls),
        )

    def _new_calls(self, work: AgentWork, turn_index: int) -> tuple[ToolCall, ...]:
        """Return the calls of this turn. A continued task repeats those of earlier turns."""
        reported = read_calls(parts_of(work), turn_index)
        new = [call for call in reported if (work.task_id, call.call_id) not in self._known_calls]
        self._known_calls.update((work.task_id, call.call_id) for call in new if call.call_id)
        return tuple(new)

    def _calls_so_far(self, work: AgentWork, turn_index: int) -> tuple[ToolCall, ...]:
        try:
            return self._new_calls(work, turn_index)
        except AgentError:  # the turn already fails with another error
            return ()

    def _explain(self, error: AgentError, url: str) -> str:
        if assistant := langgraph_assistant(url, str(error)):
            return f"{error}; of the graph's own assistant that is {assistant}"
        if isinstance(error, ReportedError) and self._task_id and error.code in (LOST_TASK, UNSUPPORTED):
            return f"{error}; the message answers what task {self._task_id} had asked: the agent has lost it"
        if isinstance(error, ReportedError) and error.code == LOST_TASK and self._context_id:
            return f"{error}; the agent has lost the conversation"
        if isinstance(error, ReportedError) and error.code == UNSUPPORTED and self._endpoint.streams():
            return f"{error}; if it does not stream, leave `streaming` out"
        return str(error)


class _MessageExchange:
    def __init__(
        self, endpoint: _A2aEndpoint, messages: Sequence[Message], ctx: TurnContext, known_messages: set[str]
    ) -> None:
        self._endpoint = endpoint
        self._user_text = last_user_message(messages)
        self._values = TurnValues(messages, ctx)
        self._known_messages = known_messages
        self._way = RequestWay(url="")
        self.work = self._new_work()
        self.latency_ms = 0.0
        self.retries = 0

    def _new_work(self) -> AgentWork:
        return AgentWork(on_unknown=self._endpoint.ignored.note, known=self._known_messages)

    @property
    def url(self) -> str:
        """The address that the message was sent to; "" before it is sent."""
        return self._way.url

    async def send(self, context_id: str | None, task_id: str | None) -> None:
        """Send the message in the first way that the agent accepts. Raises AgentError, CannotSend."""
        endpoint = self._endpoint
        body = endpoint.body.filled(self._values)

        async def say(way: RequestWay, only_place: bool) -> None:
            self._way, self.work, streams = way, self._new_work(), endpoint.streams()
            params = params_of(
                self._user_text, way, body=body, context_id=context_id, task_id=task_id, streaming=streams
            )
            answer = await endpoint.requests.send(
                way, params, self.work, self._values, streaming=streams, only_place=only_place
            )
            self.latency_ms, self.retries = answer.latency_ms, answer.retries

        await endpoint.contact.use_first_way(lambda url: endpoint.requests.fetch(url, self._values), say)

    async def cancel(self) -> None:
        """Cancel the agent's task if it has not ended. Raises NoReply, CannotSend."""
        if self.work.task_id and not self.work.ended:
            await self._endpoint.requests.cancel(self._way, self.work.task_id, self._values)

    async def finish(self) -> None:
        """Poll the task until it has ended. Raises AgentError."""
        work, timeout_s = self.work, self._endpoint.timeout_s
        if work.ended:
            return
        if not work.task_id:
            outcome = (
                f"a task in the state {work.state}, without an id" if work.state else "no task or message"
            )
            raise AgentError(f"the agent answered with {outcome}: there is nothing to wait for")
        limit = TimeLimit(max(0.0, timeout_s - self.latency_ms / 1000))
        try:
            with limit:
                await self._poll_until_ended()
        except TimeoutError:
            raise AgentError(
                f"{self.url}: the agent's task is still in the state {work.state} after {timeout_s:g} s "
                "(request_timeout_ms)"
            ) from None
        finally:
            self.latency_ms += limit.elapsed * 1000

    async def _poll_until_ended(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self.work.ended:
            await self._endpoint.pause(pause)
            pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_S)
            answer = await self._endpoint.requests.get_task(
                self._way, self.work.task_id, self.work, self._values
            )
            self.retries += answer.retries


def _check_not_empty(reply_text: ReplyText, calls: Sequence[ToolCall], work: AgentWork) -> None:
    if reply_text.text or calls:
        return
    if work.message is not None:
        raise AgentError("the agent's reply is empty: its message has no text")
    if work.artifacts:
        raise AgentError(
            f"the agent's reply is empty: its task is {work.state}, and its artifacts have no text (what it "
            "said on the way to them is not the reply)"
        )
    raise AgentError(
        f"the agent's reply is empty: its task is {work.state}, and neither artifacts nor status nor history "
        "have a text"
    )
