"""The client of an agent that speaks A2A, versions 1.0 and 0.3, and its conversations.

The agent runs its own tools. Calls that its server reports are observed; mocks do not apply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from agentest.agents.a2a.discovery import AgentAddress, RequestWay, WayFinder, langgraph_assistant
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
from agentest.agents.a2a.task import INPUT_REQUIRED, AgentWork, OnUnknown
from agentest.agents.http_sender import HttpSender, cancelled_on_server
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import Agent, AgentReply, IgnoredCounter, NoReply, Resources, TurnContext
from agentest.config.agents.agent_servers import A2aAgent
from agentest.domain.messages import Message, UserText
from agentest.domain.transcript import ToolCall
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import Template

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_PAUSE_GROWTH = 1.5
Pause = Callable[[float], Awaitable[Any]]


def open_agent(_: str, config: A2aAgent, resources: Resources) -> A2aClient:
    """Create the client of an agent that speaks A2A."""
    return A2aClient(config, resources)


class A2aClient:
    """Opens conversations with one agent. Conversations share only the way to reach the agent."""

    takes_attachments = True

    def __init__(self, config: A2aAgent, resources: Resources, pause: Pause = anyio.sleep) -> None:
        """Create the client; `pause` waits for a number of seconds between two polls of a task."""
        self.name = config.name
        self._streaming = config.streaming
        self._on_note = resources.on_note
        self._has_noted_no_streaming = False
        self._contact = WayFinder(_address(config), resources.timeout_s, resources.on_note)
        sender = HttpSender(config, resources.client, resources.timeout_s, A2A_PLACE)
        self._line = A2aResources(
            name=config.name,
            contact=self._contact,
            exchange=A2aSender(sender, self._credentials),
            body=Template(config.body),
            streams=self._streams,
            timeout_s=resources.timeout_s,
            pause=pause,
            on_unknown=IgnoredCounter(config.name, resources).note,
        )

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        """Open one conversation. Nothing needs to be closed: contexts end on the server."""
        yield A2aConversation(self._line)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the user's last message in a new conversation. Raises NoReply, CannotSend."""
        async with self.conversation() as conversation:
            return await conversation.reply(messages, ctx)

    def _credentials(self) -> str:
        return self._contact.card.credentials if self._contact.card else ""

    def _streams(self) -> bool:
        """Return whether to request streams. If the agent's card refuses them, note that once."""
        refused = self._contact.card is not None and not self._contact.card.streams
        if self._streaming and refused and not self._has_noted_no_streaming:
            self._has_noted_no_streaming = True
            self._on_note(
                f"agent {self.name!r}: its card says that it does not stream (capabilities.streaming: "
                "false), so it is asked for whole answers; leave `streaming` out"
            )
        return self._streaming and not refused


def _address(config: A2aAgent) -> AgentAddress:
    return AgentAddress(
        name=config.name,
        endpoint=config.endpoint,
        version=config.protocol_version,
        in_process=config.app is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class A2aResources:
    """The parts that all conversations with one agent share."""

    name: str
    contact: WayFinder
    exchange: A2aSender
    body: Template
    streams: Callable[[], bool]
    """Returns whether to request streams."""
    timeout_s: float
    pause: Pause
    """Waits for a number of seconds between two polls of a task."""
    on_unknown: OnUnknown


class A2aConversation:
    """One conversation: the context and task on the server, and what earlier turns have shown."""

    def __init__(self, line: A2aResources) -> None:
        self.name = line.name
        self._line = line
        self._context_id: str | None = None
        self._task_id: str | None = None
        """The task that waits for input from the user."""
        self._shown_artifacts: dict[str, str] = {}
        """Artifacts of that task → the text that earlier turns have shown."""
        self._known_messages: set[str] = set()
        self._known_calls: set[tuple[str, str]] = set()
        """Task and id of each reported call."""
        self._known_events: set[str] = set()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the user's last message.

        If the agent is still working on its task, poll the task until it ends. One time limit covers
        the request and all polls. Raises NoReply with the calls that were seen, CannotSend.
        """
        exchange = _MessageExchange(self._line, messages, ctx, self._known_messages)
        try:
            async with cancelled_on_server(exchange.cancel):
                await exchange.send(self._context_of(ctx), self._task_id)
                await exchange.finish()
            return self._read(exchange, ctx.turn_index)
        except RecursionError:
            raise NoReply("the agent's answer is nested too deeply to be read", exchange.retries) from None
        except AgentError as error:
            retries = exchange.retries + (error.retries if isinstance(error, NoReply) else 0)
            calls_so_far = self._calls_so_far(exchange.work, ctx.turn_index)
            raise NoReply(self._explain(error, exchange.url), retries, calls_so_far) from None

    def _context_of(self, ctx: TurnContext) -> str | None:
        """Return the server's context id, or the scenario's session id before the server has made one."""
        return self._context_id or (ctx.session.session_id if ctx.session else None) or None

    def _read(self, exchange: _MessageExchange, turn_index: int) -> AgentReply:
        work = exchange.work
        self._check_context(work)
        card = self._line.contact.card
        check_ended_well(work, card.credentials if card else "")
        calls = self._new_calls(work, turn_index)
        reply_text = read_reply_text(work, self.name, self._shown_artifacts)
        _check_not_empty(reply_text, calls, work)
        self._remember_task(work)
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

    def _check_context(self, work: AgentWork) -> None:
        if self._context_id and work.context_id and work.context_id != self._context_id:
            raise AgentError(
                f"the agent answered in another context (contextId {work.context_id}) than that of this "
                f"conversation ({self._context_id}): it has lost the conversation"
            )

    def _remember_task(self, work: AgentWork) -> None:
        self._context_id = self._context_id or work.context_id or None
        waits = work.state == INPUT_REQUIRED and work.message is None
        self._task_id = work.task_id or None if waits else None
        self._shown_artifacts = texts_by_artifact(work) if waits else {}

    def _new_calls(self, work: AgentWork, turn_index: int) -> tuple[ToolCall, ...]:
        """Return the calls of this turn. A continued task repeats those of earlier turns."""
        reported = read_calls(parts_of(work), turn_index)
        new = [call for call in reported if not call.id or (work.task_id, call.id) not in self._known_calls]
        self._known_calls.update((work.task_id, call.id) for call in new)
        return tuple(call.call for call in new)

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
        if isinstance(error, ReportedError) and error.code == UNSUPPORTED and self._line.streams():
            return f"{error}; if it does not stream, leave `streaming` out"
        return str(error)


class _MessageExchange:
    """Sends one user message and collects the agent's work on it."""

    def __init__(
        self, line: A2aResources, messages: Sequence[Message], ctx: TurnContext, known_messages: set[str]
    ) -> None:
        self._line = line
        self._user_text = next(message for message in reversed(messages) if isinstance(message, UserText))
        self._values = TurnValues(messages, ctx)
        self._known_messages = known_messages
        self._way = RequestWay(url="")
        self.work = AgentWork(on_unknown=line.on_unknown, known=known_messages)
        self.latency_ms = 0.0
        self.retries = 0

    @property
    def url(self) -> str:
        """The address that the message was sent to; "" before it is sent."""
        return self._way.url

    async def send(self, context_id: str | None, task_id: str | None) -> None:
        """Send the message in the first way that the agent accepts. Raises AgentError, CannotSend."""
        line = self._line
        body = line.body.filled(self._values)

        async def say(way: RequestWay, only_place: bool) -> None:
            self._way, self.work = way, AgentWork(on_unknown=line.on_unknown, known=self._known_messages)
            streams = line.streams()
            params = params_of(
                self._user_text, way, body=body, context_id=context_id, task_id=task_id, streaming=streams
            )
            answer = await line.exchange.send(
                way, params, self.work, self._values, streaming=streams, only_place=only_place
            )
            self.latency_ms, self.retries = answer.latency_ms, answer.retries

        await line.contact.use_first_way(lambda url: line.exchange.fetch(url, self._values), say)

    async def cancel(self) -> None:
        """Cancel the agent's task if it has not ended. Raises NoReply, CannotSend."""
        if self.work.task_id and not self.work.ended:
            await self._line.exchange.cancel(self._way, self.work.task_id, self._values)

    async def finish(self) -> None:
        """Poll the task until it has ended. Raises AgentError."""
        work, timeout_s = self.work, self._line.timeout_s
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
            await self._line.pause(pause)
            pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_S)
            answer = await self._line.exchange.get_task(self._way, self.work.task_id, self.work, self._values)
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
