"""The turn loop: runs one conversation between a user and an agent, and returns its transcript."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from secrets import token_hex
from time import perf_counter
from typing import Any

from agentest.agents.port import (
    Agent,
    AgentReply,
    MockBypassed,
    NoReply,
    TurnContext,
    open_conversation,
    takes_attachments,
    well_formed_reply,
)
from agentest.agents.server_output import NO_SERVERS, AgentServers
from agentest.conversation.in_process_calls import HandlerCalls, HandlerRecording
from agentest.conversation.server_calls import OutOfBandCalls, ServedConversation
from agentest.conversation.simulated_user import NextMessage, User, UserTools
from agentest.conversation.turn_progress import TurnProgress, failure_of
from agentest.domain.end_reason import Ending
from agentest.domain.messages import (
    AgentMessage,
    Attachment,
    Message,
    Session,
    ToolRequest,
    ToolResult,
    UserText,
)
from agentest.domain.transcript import (
    AttachedFile,
    Blame,
    Conversation,
    Failure,
    ServerOutput,
    TimeSpent,
    Turn,
    UnfinishedTurn,
    Usage,
    with_mentions,
)
from agentest.mocks.resolver import EndState, MockResolver
from agentest.support.dates import today
from agentest.support.errors import AgentError, AgentestError, CannotSend
from agentest.support.json_text import copied, well_formed
from agentest.support.replacing import replace
from agentest.support.text import shortened

MAX_TOOL_ROUNDS = 50

OnTurn = Callable[[tuple[Turn, ...]], None]
"""Receives all closed turns whenever one closes."""


class TurnLoop:
    """Runs one conversation. An error that ends it early becomes part of the transcript.

    Args:
        session_id: the id that the agent receives; default: that of `session`, else a new one.
        date: when the conversation takes place, in ISO 8601; default: today.
        served: answers the conversation's calls at mock servers, if the agent has any.
        mocks_inside: True if mocks answer calls within the agent, which may report them as well.
        keeps_state: True if the transcript includes the final state of the mocks.
        servers: the servers that were started for the agent.
        user_tools: the user's own tools, whose calls are recorded.
    """

    def __init__(
        self,
        conversation_id: str,
        scenario: str,
        agent: Agent,
        user: User,
        mocks: MockResolver,
        *,
        max_turns: int,
        session: Session | None = None,
        session_id: str | None = None,
        date: str | None = None,
        served: ServedConversation | None = None,
        mocks_inside: bool = False,
        keeps_state: bool = False,
        on_turn: OnTurn = lambda _: None,
        redact: Callable[[str], str] = str,
        servers: AgentServers = NO_SERVERS,
        user_tools: UserTools | None = None,
    ) -> None:
        self._id = conversation_id
        self._scenario = scenario
        self._agent = agent
        self._connection = agent
        """The agent, or the connection that it opened for this conversation."""
        self._user = user
        self._mocks = mocks
        self._tools = mocks.specs()
        self._max_turns = max_turns
        # A copy, because handlers may change the state.
        self._session = session and replace(session, state=copied(dict(session.state)))
        self._session_id = session_id or session_id_of(session, conversation_id)
        self._date = date or today()
        self._out_of_band = OutOfBandCalls(agent.name, mocks, served, mocks_inside=mocks_inside)
        self._keeps_state = keeps_state
        self._on_turn = on_turn
        self._redact = redact
        self._servers = servers
        self._user_tools = user_tools
        self._turns: tuple[Turn, ...] = ()
        self._initial_state: Mapping[str, Any] | None = None
        self._messages: list[Message] = []
        self._current: TurnProgress | None = None
        self._waited: dict[str, float] = {"agent": 0.0, "user": 0.0, "tools": 0.0}

    async def run(self) -> Conversation:
        """Run the conversation to its end. Raises only if it is cancelled."""
        try:
            self._mocks.begin()
            async with open_conversation(self._agent) as self._connection:
                ending = await self._talk()
            await self._see_late_spans()
            self._out_of_band.check()
            return self._finished(ending)
        except Exception as error:  # noqa: BLE001 - every error becomes part of the transcript
            failure = failure_of(error, self._redact)
        current = self._current
        try:
            await (self._see_spans(current) if current else self._see_late_spans())
            if current:
                self._out_of_band.check_told(current.turn_index)
        except MockBypassed as bypassed:  # the report of a real tool that ran must not be lost
            failure = self._bypassed(failure, bypassed)
        except AgentestError:
            pass  # another error has already ended it
        if current is None:
            return self._finished(Ending.ERROR, self._unless_call_refused(failure))
        calls = self._mocks.calls_of(current.turn_index)
        of_agent = failure.blame is Blame.AGENT
        printed = await self._servers.since(current.printed) if of_agent else ()
        failure = _with_dead_servers(failure, printed)
        unfinished = current.unfinished(calls, printed, self._waited)
        return self._finished(Ending.ERROR, self._unless_call_refused(failure), unfinished)

    def _bypassed(self, ended: Failure, bypassed: MockBypassed) -> Failure:
        """Return the failure of a conversation that had ended when a bypass was discovered."""
        found = failure_of(bypassed, self._redact)
        if ended.bypassed or ended.message.startswith(found.message):
            return ended
        return replace(found, message=f"{found.message}. Besides, {ended.message}")

    def _unless_call_refused(self, failure: Failure) -> Failure:
        """Do not blame the agent if a refused call may have caused the failure."""
        why = self._out_of_band.doubt_of(len(self._turns))
        if why is None or failure.blame is not Blame.AGENT:
            return failure
        return Failure(Blame.INTERNAL, f"{failure.message} (which may come of what we did: {why})")

    def _finished(
        self, ending: Ending, failure: Failure | None = None, unfinished: UnfinishedTurn | None = None
    ) -> Conversation:
        conversation = Conversation(
            self._id,
            self._out_of_band.close(self._turns),
            ending,
            failure,
            unfinished,
            self._time(),
            self._session_id,
            initial_state=self._initial_state,
            user_calls=self._user_tools.calls if self._user_tools else (),
        )
        return with_state(conversation, self._mocks.end_state()) if self._keeps_state else conversation

    async def _see_spans(self, turn: TurnProgress) -> None:
        with self._waiting_for("agent"):
            await self._out_of_band.see_spans(turn)

    async def _see_late_spans(self) -> None:
        with self._waiting_for("agent"):
            await self._out_of_band.see_late_spans(self._turns)

    def _time(self) -> TimeSpent:
        waited = {f"{who}_ms": seconds * 1000 for who, seconds in self._waited.items()}
        return TimeSpent(total_ms=sum(waited.values()), **waited)

    @contextmanager
    def _waiting_for(self, who: str) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            self._waited[who] += perf_counter() - began

    async def _talk(self) -> Ending:
        while len(self._turns) < self._max_turns:
            waited = dict(self._waited)
            with self._waiting_for("user"):
                said = await self._user.next_message(self._turns)
            if isinstance(said, Ending):
                return said
            await self._take_turn(said, waited)
            if said.ends is not None:
                return said.ends
        return Ending.MAX_TURNS

    async def _take_turn(self, said: NextMessage, waited: Mapping[str, float]) -> None:
        text, attached = well_formed(said.text), tuple(map(_attached, said.attachments))
        message = with_mentions(text, attached)
        self._current = TurnProgress(len(self._turns), message, attached, waited=waited)
        self._current.printed = self._servers.positions()
        self._out_of_band.begin_turn(self._current.turn_index)
        if said.attachments and not takes_attachments(self._agent):
            raise CannotSend(
                f"{said.attachments[0].origin} sends a file along, and agent {self._agent.name!r} is of a "
                "type that is sent text alone; leave the case out for this agent"
            )
        self._messages.append(UserText(text, said.attachments))
        reply = await self._text_reply(self._current)
        self._messages.append(AgentMessage(reply))
        calls = self._mocks.calls_of(self._current.turn_index)
        closed = self._current.closed(reply, calls, self._waited)
        doubt = self._out_of_band.doubt_of(closed.turn_index)
        self._turns = (*self._turns, replace(closed, call_refused=doubt) if doubt is not None else closed)
        self._current = None
        self._on_turn(self._turns)

    async def _text_reply(self, turn: TurnProgress) -> str:
        """Send requests to the agent and answer its tool calls until it makes no more calls.

        A reply without text is accepted as empty if the agent called a tool in this turn.
        """
        for answered in range(MAX_TOOL_ROUNDS + 1):
            reply = await self._ask(turn)
            if not reply.tool_requests:
                await self._see_spans(turn)
                if reply.text and reply.text.strip():
                    return reply.text
                if self._mocks.calls_of(turn.turn_index):
                    return ""
                raise AgentError("the agent's reply is empty: it has neither text nor tool calls")
            if answered < MAX_TOOL_ROUNDS:
                await self._answer_tools(reply, turn)
        raise AgentError(
            f"the agent asked for tools more than {MAX_TOOL_ROUNDS} times in turn {turn.turn_index} "
            "without replying to the user"
        )

    async def _ask(self, turn: TurnProgress) -> AgentReply:
        turn.requests += 1
        handed, recording = (
            HandlerCalls(turn.turn_index, self._mocks),
            HandlerRecording(turn.turn_index, self._mocks),
        )
        try:
            reply = await self._reply(turn, handed, recording)
        except NoReply as error:
            turn.count_retries(error.retries)
            self._mocks.observe(turn.in_rounds(error.observed), retold=error.retells)
            self._check_cause(error)
            raise
        except MockBypassed as error:
            self._mocks.observe(error.observed)
            raise
        except RecursionError:
            raise AgentError("the agent's answer is nested too deeply to be read") from None
        except AgentError as error:
            self._check_cause(error)
            handed.check_answered(error)
            raise
        finally:
            recording.close()
        self._out_of_band.check_gates()
        handed.check()
        self._note(turn, reply, recording.usage)
        self._out_of_band.check()
        return reply

    async def _reply(
        self, turn: TurnProgress, handed: HandlerCalls, recording: HandlerRecording
    ) -> AgentReply:
        ctx = self._out_of_band.reaching(self._context(turn.turn_index, handed, recording))
        with self._waiting_for("agent"), self._out_of_band.asking(turn):
            reply = well_formed_reply(await self._connection.reply(self._messages, ctx))
        turn.asks += 1
        return reply

    def _check_cause(self, error: AgentError) -> None:
        """Raise the cause of an agent's error: frameworks wrap errors that a tool raises."""
        try:
            self._out_of_band.check()
        except AgentestError as known:
            raise known from error

    def _note(self, turn: TurnProgress, reply: AgentReply, recorded: Usage) -> None:
        """Store everything of a reply except its text."""
        self._mocks.observe(turn.in_rounds(reply.observed), retold=reply.retells)
        self._out_of_band.check_told(turn.turn_index)
        turn.note_remarks(reply, self._agent.name)
        turn.note_session(reply, self._redact)
        if self._initial_state is None:
            self._initial_state = reply.state_before
        turn.note_times(reply)
        turn.tells_calls = turn.tells_calls or reply.tells_calls
        turn.calls_hidden = turn.calls_hidden or reply.calls_hidden
        turn.usage += reply.usage + recorded
        if reply.model_calls:  # 0 means that the agent does not count its model calls
            turn.model_calls = (turn.model_calls or 0) + reply.model_calls
        turn.count_retries(reply.retries)

    def _context(self, turn_index: int, handed: HandlerCalls, recording: HandlerRecording) -> TurnContext:
        return TurnContext(
            self._id,
            self._scenario,
            turn_index,
            handed.resolve,
            self._session,
            session_id=self._session_id,
            record_tool=recording.record_tool,
            record_usage=recording.record_usage,
            date=self._date,
            tools=self._tools,
            real_call=recording.real_call,
        )

    async def _answer_tools(self, reply: AgentReply, turn: TurnProgress) -> None:
        requests = _with_ids(reply.tool_requests, turn)
        results: list[ToolResult] = []
        round, turn.messages = turn.messages, turn.messages + 1
        for request in requests:
            with self._waiting_for("tools"):
                text = await self._mocks.resolve_json(
                    request.name, request.arguments, turn.turn_index, request.id, round=round
                )
            results.append(ToolResult(request.id, request.name, well_formed(text)))
        self._messages.append(AgentMessage(reply.text, requests))
        self._messages.extend(results)


def with_state(conversation: Conversation, end: EndState) -> Conversation:
    """Return the conversation with the final state of its mocks."""
    return replace(conversation, mock_state=end.told, inexact_state=end.inexact, live_state=end.live)


def _with_dead_servers(failure: Failure, printed: Sequence[ServerOutput]) -> Failure:
    """Return the failure of a turn, naming servers that had ended by then."""
    ended = [
        f"server {each.server!r} had exited with status {each.exit_status}"
        for each in printed
        if each.exit_status is not None
    ]
    return replace(failure, message=f"{failure.message} ({'; '.join(ended)})") if ended else failure


def _attached(file: Attachment) -> AttachedFile:
    return AttachedFile(file.mime_type, file.name, file.size, shortened(file.uri))


def _with_ids(requests: Sequence[ToolRequest], turn: TurnProgress) -> tuple[ToolRequest, ...]:
    """Give every request an id, which is needed to assign its result."""
    return tuple(
        request if request.id else replace(request, id=f"call_{turn.turn_index}_{turn.requests}_{i}")
        for i, request in enumerate(requests)
    )


_WORDS_CHARS = 24


def session_id_of(session: Session | None, conversation_id: str) -> str:
    """Return the session id that the user configured, else a new one."""
    return (session and session.session_id) or new_session_id(conversation_id)


def new_session_id(conversation_id: str) -> str:
    """Return a globally unique id that shows its conversation.

    At most 63 lower-case letters, digits and hyphens, which URLs and ADK session services accept.
    """
    words = re.sub(r"[^a-z0-9]+", "-", conversation_id.lower())[:_WORDS_CHARS].strip("-")
    return "-".join(part for part in ("agentest", words, token_hex(8)) if part)
