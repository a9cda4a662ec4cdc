"""One conversation with a graph: which messages of its thread are old, and what the graph asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from agentest.agents.adk_server.replies import last_said
from agentest.agents.langgraph.interrupts import answered, decided, question
from agentest.agents.langgraph.messages import AI, HUMAN, Wire, calls_of, kind_of, usage_of
from agentest.agents.langgraph.requests import thread_of
from agentest.agents.langgraph.runs import MESSAGES, RunTold, is_passing, state_messages
from agentest.agents.langgraph.turns import Sent, is_sent, new_messages, place_of, remarks_of, reply_of
from agentest.agents.paths import nothing_found, text_of, where_text_is
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, NoReply, TurnContext
from agentest.agents.reading import shown
from agentest.errors import AgentError, CannotSend, SessionMismatch
from agentest.messages import Message
from agentest.transcript import ToolCall

if TYPE_CHECKING:
    from agentest.agents.langgraph.client import LangGraphClient

_MOST_APPROVALS = 50


@dataclass(slots=True)
class _Turn:
    """What a turn has come to, over all of its runs."""

    thread: str
    index: int
    values: TurnValues
    sent: Sent | None
    """None where the user's message answers what the graph asks."""
    told: RunTold = field(default_factory=RunTold)
    new: dict[str, Wire] = field(default_factory=dict)
    latency_ms: float = 0.0
    first_token_ms: float | None = None
    retries: int = 0

    @property
    def root(self) -> list[Wire]:
        """The new messages of the graph itself, without those of graphs inside."""
        own = state_messages(self.told.values)
        if own is None or not self.told.told_state:
            return [*self.new.values()]
        ids = {message.get("id") for message in own}
        return [m for m in self.new.values() if not m.get("id") or m["id"] in ids]


class GraphConversation:
    """Answers for a graph in one conversation."""

    def __init__(self, client: LangGraphClient) -> None:
        self.name = client.name
        self._client = client
        self._known: set[str] = set()
        """Keys of messages of turns before."""
        self._asked: tuple[Wire, ...] = ()
        """Interrupts that the user's next message answers."""
        self._pending: dict[str, ToolCall] = {}
        """Calls that were told before they had a result, by id."""

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The graph's answer to the last message of the user. Raises NoReply, SessionMismatch, CannotSend."""
        values = TurnValues(messages, ctx)
        said, assistant = last_said(messages), await self._client.assistant(values)
        state = dict(ctx.session.state) if ctx.session and ctx.turn_index == 0 else {}
        sent = None if self._asked else Sent(id=str(uuid4()), text=said.text)
        turn = _Turn(thread_of(ctx.session_id), ctx.turn_index, values, sent)
        if sent is None:
            own = self._client.requests.own_resume(values)
            resume = answered(self._asked, said.text) if own is None else own
            body = self._client.requests.answer(assistant, resume, values)
        else:
            body = self._client.requests.run(assistant, said, sent, state, values)
        for _ in range(_MOST_APPROVALS):
            await self._run(turn, body)
            if not turn.told.interrupts or self._client.approvals == "ask":
                break
            resume = decided(turn.told.interrupts, self._client.approvals == "approve")
            body = self._client.requests.answer(assistant, resume, values)
        else:
            raise NoReply(f"the graph was interrupted more than {_MOST_APPROVALS} times in one turn")
        await self._check_state(turn, state)
        return replace(self._finished(turn), state_before=_state_before(ctx))

    async def _run(self, turn: _Turn, body: dict[str, Any]) -> None:
        """Run the graph once, and take what it tells."""
        answer = await self._client.run(turn.thread, body, turn.values)
        if answer.first_token_ms is not None and turn.first_token_ms is None:
            turn.first_token_ms = turn.latency_ms + answer.first_token_ms
        turn.latency_ms += answer.latency_ms
        turn.retries += answer.retries
        turn.told = answer.value
        await self._find_what_was_removed(turn)
        turn.new |= new_messages(turn.told.messages, self._known, turn.sent)
        if turn.told.problem is not None:
            raise NoReply(turn.told.problem, turn.retries, self._observed(turn))
        await self._check_end(turn)

    async def _find_what_was_removed(self, turn: _Turn) -> None:
        """Ask the thread's history where a graph that trims or sums up has removed the user's message."""
        told, sent = turn.told, turn.sent
        if sent is None or not told.told_state or state_messages(told.values) is None:
            return
        messages = [*told.messages.values()]
        if place_of(messages, sent) is not None:
            return
        history = await self._client.server.history(turn.thread, turn.values)
        if history and any(is_sent(message, sent) for message in history.values()):
            told.messages = history | told.messages
        elif any(kind_of(message) == HUMAN for message in messages):
            raise CannotSend(
                f"thread {turn.thread}: the user's message is not among the messages of the graph's state, "
                "nor in the thread's history, so calls of this turn may have been removed unseen; set "
                "streaming: true, which tells each message as it comes"
            )

    async def _check_end(self, turn: _Turn) -> None:
        """Raise NoReply for a stream that may have been cut: it has no event that says that it has ended."""
        told, messages = turn.told, turn.root
        if told.ended or told.interrupts or _looks_finished(messages) or self._client.path:
            return
        state = await self._client.server.state(turn.thread, turn.values)
        if state.get("next") != []:
            raise NoReply(
                "the agent's stream was cut: it ended before the graph did (expected: a last message of the "
                f"model, `event: end` or an interrupt; last seen: {_last(messages)})",
                turn.retries,
                self._observed(turn),
            )

    async def _check_state(self, turn: _Turn, state: Mapping[str, Any]) -> None:
        """Raise SessionMismatch where the graph has no place for what the scenario's session has.

        LangGraph drops such keys without a word.
        """
        wanted = self._client.requests.state_keys(state)
        if not any(key not in _mapping(turn.told.values) for key in wanted):
            return
        full = await self._client.server.state(turn.thread, turn.values)
        missing = [key for key in wanted if key not in _mapping(full.get("values"))]
        if missing:
            raise SessionMismatch(
                f"the state of the scenario's `session` has {missing[0]!r}, and that of the graph has no "
                f"such key (it has {', '.join(_mapping(full.get('values'))) or 'none'}); take it out of the "
                f"scenario, or place it by {{{{state.{missing[0]}}}}} in the agent's `body`"
            )

    def _observed(self, turn: _Turn) -> tuple[ToolCall, ...]:
        """The calls of the turn. One that was told before its answer is not told again."""
        calls = calls_of([*turn.new.values()], turn.index)
        return tuple(call for key, call in calls if key not in self._pending)

    def _finished(self, turn: _Turn) -> AgentReply:
        """The reply; what belongs to this turn is old from now on."""
        told, messages = turn.told, [*turn.new.values()]
        try:
            observed = self._observed(turn)
            text, spoken = self._text(turn)
        except AgentError as error:
            raise NoReply(str(error), turn.retries) from None
        self._asked = tuple(told.interrupts)
        self._known |= {key for key in told.messages.keys() | turn.new.keys() if not is_passing(key)}
        self._pending |= {key: call for key, call in calls_of(messages, turn.index) if self._asked}
        state = {k: v for k, v in told.values.items() if k != MESSAGES} if _mapping(told.values) else None
        return AgentReply(
            text,
            usage=usage_of(messages),
            latency_ms=turn.latency_ms,
            retries=turn.retries,
            model_calls=sum(kind_of(m) == AI for m in messages) or None,
            observed=observed,
            remarks=remarks_of(messages, spoken, self.name),
            state=state,
            first_token_ms=turn.first_token_ms,
            tells_calls=state_messages(told.values) is not None or bool(told.messages),
        )

    def _text(self, turn: _Turn) -> tuple[str | None, Wire | None]:
        """The reply, and the message that it is. Raises AgentError."""
        values, path = turn.told.values, self._client.path
        if turn.told.interrupts:
            return question(turn.told.interrupts), None
        if path is not None:
            found = text_of(path.find(values))
            if found is None:
                raise AgentError(nothing_found("reply", path, values))
            return found, None
        if not turn.told.messages and state_messages(values) is None:
            raise AgentError(
                "the graph's state has no `messages`: set `reply` to the path of the reply in it; "
                f"{where_text_is(values)}: {shown(values)}"
            )
        return reply_of(turn.root, self._client.ignored.note)


def _looks_finished(messages: Sequence[Wire]) -> bool:
    return bool(messages) and kind_of(messages[-1]) == AI and not messages[-1].get("tool_calls")


def _last(messages: Sequence[Wire]) -> str:
    return shown(messages[-1]) if messages else "none"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _state_before(ctx: TurnContext) -> Mapping[str, Any] | None:
    """The state with which a thread begins; None where it may be older than this conversation."""
    if ctx.turn_index or (ctx.session and ctx.session.session_id):
        return None
    return dict(ctx.session.state) if ctx.session else {}
