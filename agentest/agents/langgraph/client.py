"""A graph behind a LangGraph server: threads, runs, and the state after each.

The graph runs its tools itself: calls are observed in its messages, mocks do not apply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from agentest.agents.approvals import (
    MOST_APPROVALS,
    TOO_MANY_QUESTIONS,
    Decision,
    approvals_of,
    decided_by,
    decided_by_user,
    question,
    resume,
)
from agentest.agents.json_reader import shown
from agentest.agents.langgraph.api import Graph, ThreadState, thread_of
from agentest.agents.langgraph.messages import (
    AI,
    MESSAGES,
    RunTold,
    Sent,
    Wire,
    after_user,
    calls_of,
    distinct,
    kind_of,
    merged,
    new_in_state,
    new_on_the_way,
    remarks_of,
    reply_of,
    state_messages,
    usage_of,
)
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.agents.reply_paths import nothing_found, text_of, where_text_is
from agentest.config.agents.langgraph import LangGraphAgent
from agentest.domain.messages import Message, last_said
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import ToolCall, waiting
from agentest.support.errors import AgentError, SessionMismatch


def open_agent(_: str, config: LangGraphAgent, resources: Resources) -> LangGraphClient:
    """The client of a graph behind a LangGraph server."""
    return LangGraphClient(config, resources)


class LangGraphClient:
    """Sends conversations to one graph. Keeps nothing of any conversation."""

    takes_attachments = True

    def __init__(self, config: LangGraphAgent, resources: Resources) -> None:
        self.name = config.name
        self._graph = Graph(config, resources)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[GraphConversation]:
        """One conversation: it knows which messages of its thread are old, and what the graph asks."""
        yield GraphConversation(self._graph)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The answer to the only message of a conversation."""
        return await GraphConversation(self._graph).reply(messages, ctx)


@dataclass(slots=True)
class _Turn:
    """What a turn has come to, over all of its runs."""

    thread: str
    index: int
    values: TurnValues
    sent: Sent | None
    """None where the user's message answers what the graph asks."""
    told: RunTold = field(default_factory=RunTold)
    """What the last run has told."""
    on_the_way: list[Wire] = field(default_factory=list)
    """What the nodes of all runs have added."""
    state: ThreadState = field(default_factory=ThreadState)
    latency_ms: float = 0.0
    first_token_ms: float | None = None
    retries: int = 0
    decided: dict[str, Approval] = field(default_factory=dict)
    """Name of a tool → what was decided about its call in this turn."""


class GraphConversation:
    """Answers for a graph in one conversation."""

    def __init__(self, graph: Graph) -> None:
        self.name = graph.name
        self._graph = graph
        self._known: set[str] = set()
        """Ids of messages of turns before."""
        self._asked: tuple[Wire, ...] = ()
        """Interrupts that the user's next message answers."""
        self._waiting: dict[str, ToolCall] = {}
        """Calls that wait for the user's word, by id: they belong to the turn in which it is decided."""

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The graph's answer to the last message of the user. Raises NoReply, SessionMismatch, CannotSend."""
        values, said = TurnValues(messages, ctx), last_said(messages)
        assistant = await self._graph.assistant(values)
        state = dict(ctx.session.state) if ctx.session and ctx.turn_index == 0 else {}
        sent = None if self._asked else Sent(id=str(uuid4()), text=said.text)
        turn = _Turn(thread_of(ctx.session_id), ctx.turn_index, values, sent)
        requests = self._graph.requests
        if sent is None:
            own, word = requests.own_resume(values), decided_by_user(said.text)
            body = requests.answer(assistant, resume(self._asked, word) if own is None else own, values)
            turn.decided = {} if own is not None else _decided(self._asked, word)
        else:
            body = requests.run(assistant, said, sent, state, values)
        await self._run(turn, body)
        await self._decide(turn, assistant)
        self._check_state(turn, requests.state_keys(state))
        return self._finished(turn, _state_before(ctx))

    async def _decide(self, turn: _Turn, assistant: str) -> None:
        """Answer what the graph asks, where the configuration decides. Raises NoReply."""
        decision = decided_by(self._graph.approvals)
        questions = 0
        while decision is not None and turn.told.interrupts:
            questions += 1
            if questions > MOST_APPROVALS:
                raise self._no_reply(turn, TOO_MANY_QUESTIONS)
            answer = resume(turn.told.interrupts, decision)
            turn.decided |= _decided(turn.told.interrupts, decision)
            await self._run(turn, self._graph.requests.answer(assistant, answer, turn.values))

    async def _run(self, turn: _Turn, body: dict[str, Any]) -> None:
        """Run the graph once, and take what it tells. Raises NoReply."""
        answer = await self._graph.run(turn.thread, body, turn.values)
        if answer.first_token_ms is not None and turn.first_token_ms is None:
            turn.first_token_ms = turn.latency_ms + answer.first_token_ms
        turn.latency_ms += answer.latency_ms
        turn.retries += answer.retries
        turn.told = answer.value
        turn.on_the_way += after_user(turn.told.messages, turn.sent)
        if turn.told.problem is not None:
            raise self._no_reply(turn, turn.told.problem)
        if turn.told.values is None:
            turn.state = await self._graph.server.state(turn.thread, turn.values)
            turn.told.values = turn.state.values
        self._check_end(turn)

    def _no_reply(self, turn: _Turn, problem: str) -> NoReply:
        try:
            calls = self._calls(turn)
        except AgentError:
            calls = ()
        return NoReply(problem, turn.retries, calls)

    def _check_end(self, turn: _Turn) -> None:
        """Raise NoReply for a run that has not come to its end, as a stream may be cut between two events."""
        told, rest = turn.told, turn.state.following
        if told.interrupts or (told.ended and not rest):
            return
        if told.stopped:
            raise self._no_reply(
                turn,
                f"the graph stopped at a breakpoint before {', '.join(rest) or 'a node'}, without a question "
                "(expected: its end, or an `interrupt()` that `approvals` answers)",
            )
        if rest:
            raise self._no_reply(
                turn, f"the agent's stream was cut: the graph goes on with {', '.join(rest)}"
            )
        if turn.state.error is not None and not self._looks_finished(turn):
            raise self._no_reply(
                turn,
                "the agent's stream was cut: it ended without `event: end` and without a last message of "
                f"the model, and {turn.state.error}",
            )

    def _looks_finished(self, turn: _Turn) -> bool:
        messages = self._messages(turn)
        return bool(messages) and kind_of(messages[-1]) == AI and not messages[-1].get("tool_calls")

    def _check_state(self, turn: _Turn, wanted: Sequence[str]) -> None:
        """Raise SessionMismatch where the graph has no place for what the scenario's session has.

        LangGraph drops such keys without a word.
        """
        found = turn.told.values
        missing = [key for key in wanted if isinstance(found, Mapping) and key not in found]
        if missing:
            raise SessionMismatch(
                f"the state of the scenario's `session` has {missing[0]!r}, and that of the graph has no "
                f"such key (it has {', '.join(found)}); take it out of the scenario, or place it by "
                f"{{{{state.{missing[0]}}}}} in the agent's `body`"
            )

    def _root(self, turn: _Turn) -> list[Wire] | None:
        """The turn's messages in the graph's own state; None where that has none."""
        own = state_messages(turn.told.values)
        return None if own is None else new_in_state(own, self._known, turn.sent)

    def _messages(self, turn: _Turn) -> list[Wire]:
        """All messages of the turn: those of the state, those removed from it, those of graphs inside."""
        return merged(new_on_the_way(turn.on_the_way, self._old(turn)), self._root(turn) or ())

    def _old(self, turn: _Turn) -> set[str]:
        """Ids of the messages that were in the thread before the user's."""
        own = state_messages(turn.told.values)
        older = own[: len(own) - len(after_user(own, turn.sent))] if own else []
        if older or (own is None and turn.sent):
            return {m["id"] for m in older if m.get("id")}
        return self._known

    def _calls(self, turn: _Turn) -> tuple[ToolCall, ...]:
        """The calls of the turn, and those that waited for the user's word in it."""
        calls = calls_of(self._messages(turn), turn.index, self._waiting)
        by_user = turn.sent is None
        return tuple(
            replace(call, approval=turn.decided.get(call.name))
            if not by_user or call.call_id in self._waiting
            else call
            for call in calls
        )

    def _finished(self, turn: _Turn, before: Mapping[str, Any] | None) -> AgentReply:
        """The reply; what belongs to this turn is old from now on."""
        values = turn.told.values
        try:
            messages, calls = self._messages(turn), self._calls(turn)
            text, said = self._text(turn, messages), distinct(messages)
        except AgentError as error:
            raise self._no_reply(turn, str(error)) from None
        self._asked = tuple(turn.told.interrupts)
        self._waiting = {c.call_id: c for c in calls if self._asked and c.call_id and _has_to_wait(c)}
        self._known |= {m["id"] for m in (*messages, *(state_messages(values) or ())) if m.get("id")}
        return AgentReply(
            text,
            usage=usage_of(said),
            latency_ms=turn.latency_ms,
            retries=turn.retries,
            model_calls=sum(kind_of(m) == AI for m in said) or None,
            observed=tuple(waiting(call) if call.call_id in self._waiting else call for call in calls),
            remarks=remarks_of(said, text, self.name),
            state={k: v for k, v in values.items() if k != MESSAGES} if isinstance(values, Mapping) else None,
            state_before=before,
            state_error=turn.state.error,
            first_token_ms=turn.first_token_ms,
            tells_calls=bool(messages) or state_messages(values) is not None,
        )

    def _text(self, turn: _Turn, messages: Sequence[Wire]) -> str | None:
        """The reply. Raises AgentError."""
        values, path = turn.told.values, self._graph.path
        if turn.told.interrupts:
            return question(turn.told.interrupts)
        if path is not None:
            found = text_of(path.find(values))
            if found is None:
                raise AgentError(turn.state.error or nothing_found("reply", path, values))
            return found
        root = self._root(turn)
        if root is None and not messages:
            raise AgentError(
                turn.state.error
                or "the graph's state has no `messages`: set `reply` to the path of the reply in it; "
                f"{where_text_is(values)}: {shown(values)}"
            )
        text, _ = reply_of(messages if root is None else root, self._graph.ignored.note)
        return text


def _decided(interrupts: Sequence[Wire], decision: Decision) -> dict[str, Approval]:
    return approvals_of([each.get("value") for each in interrupts], decision)


def _has_to_wait(call: ToolCall) -> bool:
    """Whether a call has no result yet: while the graph asks the user, nobody has made it."""
    return call.result is None and not call.error and not call.invalid_arguments


def _state_before(ctx: TurnContext) -> Mapping[str, Any] | None:
    """The state with which a thread begins; None where it may be older than this conversation."""
    if ctx.turn_index or (ctx.session and ctx.session.session_id):
        return None
    return dict(ctx.session.state) if ctx.session else {}
