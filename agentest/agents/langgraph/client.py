"""The client of a graph behind a LangGraph server, and its conversations.

The graph runs its own tools. Calls are observed in its messages; mocks do not apply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field, replace
from typing import Any
from uuid import uuid4

from agentest.agents.approvals import (
    MOST_APPROVALS,
    TOO_MANY_QUESTIONS,
    Decision,
    approvals_of,
    decision_of_setting,
    decision_of_user,
    question_text,
    resume,
)
from agentest.agents.json_reader import excerpt
from agentest.agents.langgraph.api import Graph, ThreadState, thread_of
from agentest.agents.langgraph.messages import (
    AI,
    MESSAGES,
    GraphRun,
    SentMessage,
    Wire,
    after_user,
    calls_of,
    distinct,
    kind_of,
    merged,
    new_in_state,
    new_in_updates,
    remarks_of,
    reply_of,
    state_messages,
    usage_of,
)
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.agents.reply_paths import empty_path_message, text_of, where_text_is
from agentest.config.agents.agent_servers import LangGraphAgent
from agentest.domain.messages import Message, last_user_message
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import ToolCall, waiting
from agentest.support.errors import AgentError, SessionMismatch
from agentest.support.lazy_dataclasses import dataclass


def open_agent(_: str, config: LangGraphAgent, resources: Resources) -> LangGraphClient:
    """Create the client of a graph behind a LangGraph server."""
    return LangGraphClient(config, resources)


class LangGraphClient:
    """Opens conversations with one graph. Stores nothing about them."""

    takes_attachments = True

    def __init__(self, config: LangGraphAgent, resources: Resources) -> None:
        self.name = config.name
        self._graph = Graph(config, resources)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[GraphConversation]:
        """Open one conversation, which stores the known messages and the open interrupts of its thread."""
        yield GraphConversation(self._graph)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to a conversation's only message. Raises NoReply, SessionMismatch, CannotSend."""
        return await GraphConversation(self._graph).reply(messages, ctx)


@dataclass(slots=True)
class _TurnRuns:
    """The results of a turn over all of its runs."""

    thread: str
    index: int
    values: TurnValues
    sent: SentMessage | None
    """The user's message; None if it answers the graph's interrupts."""
    run: GraphRun = field(default_factory=GraphRun)
    """The result of the last run."""
    updates: list[Wire] = field(default_factory=list)
    """The messages that the nodes of all runs have added."""
    state: ThreadState = field(default_factory=ThreadState)
    latency_ms: float = 0.0
    first_token_ms: float | None = None
    retries: int = 0
    decided: dict[str, Approval] = field(default_factory=dict)
    """Names of tools → the decisions about their calls in this turn."""


class GraphConversation:
    """One conversation with a graph."""

    def __init__(self, graph: Graph) -> None:
        self.name = graph.name
        self._graph = graph
        self._known: set[str] = set()
        """Ids of messages of earlier turns."""
        self._interrupts: tuple[Wire, ...] = ()
        """Interrupts that the user's next message answers."""
        self._waiting: dict[str, ToolCall] = {}
        """Calls that wait for the user's decision, by id. They belong to the turn of the decision."""

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the user's last message. Raises NoReply, SessionMismatch, CannotSend."""
        values, user_message = TurnValues(messages, ctx), last_user_message(messages)
        assistant = await self._graph.assistant(values)
        state = dict(ctx.session.state) if ctx.session and ctx.turn_index == 0 else {}
        sent = None if self._interrupts else SentMessage(id=str(uuid4()), text=user_message.text)
        turn = _TurnRuns(thread_of(ctx.session_id), ctx.turn_index, values, sent)
        requests = self._graph.requests
        if sent is None:
            configured, decision = requests.configured_resume(values), decision_of_user(user_message.text)
            answer = resume(self._interrupts, decision) if configured is None else configured
            body = requests.answer(assistant, answer, values)
            turn.decided = {} if configured is not None else _approvals(self._interrupts, decision)
        else:
            body = requests.run(assistant, user_message, sent, state, values)
        await self._run(turn, body)
        await self._answer_interrupts(turn, assistant)
        self._check_state(turn, requests.state_keys(state))
        return self._finish(turn, _state_before(ctx))

    async def _answer_interrupts(self, turn: _TurnRuns, assistant: str) -> None:
        """Answer the graph's interrupts if the configuration decides. Raises NoReply."""
        decision = decision_of_setting(self._graph.approvals)
        questions = 0
        while decision is not None and turn.run.interrupts:
            questions += 1
            if questions > MOST_APPROVALS:
                raise self._no_reply(turn, TOO_MANY_QUESTIONS)
            answer = resume(turn.run.interrupts, decision)
            turn.decided |= _approvals(turn.run.interrupts, decision)
            await self._run(turn, self._graph.requests.answer(assistant, answer, turn.values))

    async def _run(self, turn: _TurnRuns, body: dict[str, Any]) -> None:
        """Run the graph once and add the result to the turn. Raises NoReply."""
        answer = await self._graph.run(turn.thread, body, turn.values)
        if answer.first_token_ms is not None and turn.first_token_ms is None:
            turn.first_token_ms = turn.latency_ms + answer.first_token_ms
        turn.latency_ms += answer.latency_ms
        turn.retries += answer.retries
        turn.run = answer.value
        turn.updates += after_user(turn.run.messages, turn.sent)
        if turn.run.problem is not None:
            raise self._no_reply(turn, turn.run.problem)
        if turn.run.values is None:
            turn.state = await self._graph.server.state(turn.thread, turn.values)
            turn.run.values = turn.state.values
        self._check_end(turn)

    def _no_reply(self, turn: _TurnRuns, problem: str) -> NoReply:
        try:
            calls = self._calls(turn)
        except AgentError:
            calls = ()
        return NoReply(problem, turn.retries, calls)

    def _check_end(self, turn: _TurnRuns) -> None:
        """Raise NoReply if the run has not ended, because a stream may be cut between two events."""
        run, rest = turn.run, turn.state.following
        if run.interrupts or (run.ended and not rest):
            return
        if run.stopped:
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

    def _looks_finished(self, turn: _TurnRuns) -> bool:
        messages = self._turn_messages(turn)
        return bool(messages) and kind_of(messages[-1]) == AI and not messages[-1].get("tool_calls")

    def _check_state(self, turn: _TurnRuns, wanted: Sequence[str]) -> None:
        """Raise SessionMismatch if the graph's state lacks keys of the scenario's session state.

        LangGraph drops such keys without an error.
        """
        state = turn.run.values
        missing = [key for key in wanted if isinstance(state, Mapping) and key not in state]
        if missing:
            raise SessionMismatch(
                f"the state of the scenario's `session` has {missing[0]!r}, and that of the graph has no "
                f"such key (it has {', '.join(state)}); take it out of the scenario, or place it by "
                f"{{{{state.{missing[0]}}}}} in the agent's `body`"
            )

    def _state_messages(self, turn: _TurnRuns) -> list[Wire] | None:
        """Return the turn's messages in the graph's state; None if the state has no messages."""
        in_state = state_messages(turn.run.values)
        return None if in_state is None else new_in_state(in_state, self._known, turn.sent)

    def _turn_messages(self, turn: _TurnRuns) -> list[Wire]:
        """Return all messages of the turn: in the state, removed from it, and of subgraphs."""
        updates = new_in_updates(turn.updates, self._earlier_ids(turn))
        return merged(updates, self._state_messages(turn) or ())

    def _earlier_ids(self, turn: _TurnRuns) -> set[str]:
        """Return the ids of messages that precede the user's message in the thread."""
        in_state = state_messages(turn.run.values)
        earlier = in_state[: len(in_state) - len(after_user(in_state, turn.sent))] if in_state else []
        if earlier or (in_state is None and turn.sent):
            return {m["id"] for m in earlier if m.get("id")}
        return self._known

    def _calls(self, turn: _TurnRuns) -> tuple[ToolCall, ...]:
        """Return the calls of the turn, including those that the user decided about in it."""
        calls = calls_of(self._turn_messages(turn), turn.index, self._waiting)
        by_user = turn.sent is None
        return tuple(
            replace(call, approval=turn.decided.get(call.name))
            if not by_user or call.call_id in self._waiting
            else call
            for call in calls
        )

    def _finish(self, turn: _TurnRuns, before: Mapping[str, Any] | None) -> AgentReply:
        """Return the reply and mark the turn's messages as known."""
        values = turn.run.values
        try:
            messages, calls = self._turn_messages(turn), self._calls(turn)
            text, distinct_messages = self._text(turn, messages), distinct(messages)
        except AgentError as error:
            raise self._no_reply(turn, str(error)) from None
        self._interrupts = tuple(turn.run.interrupts)
        self._waiting = {c.call_id: c for c in calls if self._interrupts and c.call_id and _is_waiting(c)}
        self._known |= {m["id"] for m in (*messages, *(state_messages(values) or ())) if m.get("id")}
        return AgentReply(
            text,
            usage=usage_of(distinct_messages),
            latency_ms=turn.latency_ms,
            retries=turn.retries,
            model_calls=sum(kind_of(m) == AI for m in distinct_messages) or None,
            observed=tuple(waiting(call) if call.call_id in self._waiting else call for call in calls),
            remarks=remarks_of(distinct_messages, text, self.name),
            state={k: v for k, v in values.items() if k != MESSAGES} if isinstance(values, Mapping) else None,
            state_before=before,
            state_error=turn.state.error,
            first_token_ms=turn.first_token_ms,
            tells_calls=bool(messages) or state_messages(values) is not None,
        )

    def _text(self, turn: _TurnRuns, messages: Sequence[Wire]) -> str | None:
        """Return the text of the reply. Raises AgentError."""
        values, path = turn.run.values, self._graph.path
        if turn.run.interrupts:
            return question_text(turn.run.interrupts)
        if path is not None:
            found = text_of(path.find(values))
            if found is None:
                raise AgentError(turn.state.error or empty_path_message("reply", path, values))
            return found
        in_state = self._state_messages(turn)
        if in_state is None and not messages:
            raise AgentError(
                turn.state.error
                or "the graph's state has no `messages`: set `reply` to the path of the reply in it; "
                f"{where_text_is(values)}: {excerpt(values)}"
            )
        text, _ = reply_of(messages if in_state is None else in_state, self._graph.ignored.note)
        return text


def _approvals(interrupts: Sequence[Wire], decision: Decision) -> dict[str, Approval]:
    return approvals_of([each.get("value") for each in interrupts], decision)


def _is_waiting(call: ToolCall) -> bool:
    """Return whether a call has no result. During an interrupt, such a call has not been executed."""
    return call.result is None and not call.error and not call.invalid_arguments


def _state_before(ctx: TurnContext) -> Mapping[str, Any] | None:
    """Return a new thread's state; None if the thread may be older than this conversation."""
    if ctx.turn_index or (ctx.session and ctx.session.session_id):
        return None
    return dict(ctx.session.state) if ctx.session else {}
