"""The turn loop: runs one conversation between a user and an agent, and returns its transcript."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from secrets import token_hex
from time import perf_counter
from typing import TYPE_CHECKING, Any

from agentest.agents.port import (
    AGENT_ANSWERED,
    SENT_REQUESTS,
    Agent,
    AgentReply,
    MockBypassed,
    NoReply,
    TurnContext,
    takes_attachments,
)
from agentest.conversation.turn_progress import (
    CallSource,
    TurnProgress,
    WaitingTimes,
    failure_of,
    open_conversation,
    well_formed_reply,
)
from agentest.conversation.user import NextMessage, User, UserLeftRole
from agentest.domain.end_reason import Ending
from agentest.domain.messages import (
    AgentMessage,
    Attachment,
    Message,
    Session,
    ToolResult,
    ToolSpec,
    UserText,
    earlier_messages,
)
from agentest.domain.tool_visibility import Approve
from agentest.domain.transcript import (
    AttachedFile,
    Blame,
    Conversation,
    Failure,
    SentRequest,
    ServerOutput,
    TimeSpent,
    Turn,
    UnfinishedTurn,
    with_mentions,
)
from agentest.mocks.resolver import EndState, MockResolver
from agentest.support.dates import today
from agentest.support.errors import AgentError, AgentestError, CannotSend
from agentest.support.json_text import copied, well_formed
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import shortened, turn_name

if TYPE_CHECKING:
    from agentest.agents.bypassed_tools import MockedTools
    from agentest.agents.server_process import AgentServers

MAX_TOOL_ROUNDS = 50
_MAX_EXCHANGES = 6  # the HTTP exchanges of a turn that are remembered: the last ones

OnTurn = Callable[[tuple[Turn, ...]], None]


@dataclass(frozen=True, slots=True)
class ConversationSpec:
    """The settings of one conversation."""

    conversation_id: str
    scenario: str
    max_turns: int
    session: Session | None = None
    session_id: str | None = None  # the id that the agent receives; None: that of `session`, else a new one
    date: str | None = None  # when the conversation takes place, in ISO 8601; None: today
    history: tuple[Message, ...] = ()  # messages before the first turn
    attachments: tuple[Attachment, ...] = ()  # files of the first message
    approve: Callable[[int], Approve | None] = lambda _: None
    """Turn index → the scenario's answer when the agent asks for approval."""
    keeps_state: bool = False  # True if the transcript includes the final state of the mocks


class TurnLoop:
    """Runs one conversation, with calls of `sources` too. An error becomes part of the transcript."""

    def __init__(
        self,
        spec: ConversationSpec,
        agent: Agent,
        user: User,
        mocks: MockResolver,
        sources: Sequence[CallSource] = (),
        *,
        on_turn: OnTurn = lambda _: None,
        redact: Callable[[str], str] = str,
        servers: AgentServers | None = None,
    ) -> None:
        self._spec = spec
        self._agent = agent
        self._connection = agent  # the agent, or the connection that it opened for this conversation
        self._user = user
        self._mocks = mocks
        self._sources = sources
        self._on_turn = on_turn
        self._redact = redact
        self._servers = servers
        session = spec.session
        # A copy, because handlers may change the state.
        self._session = session and replace(session, state=copied(dict(session.state)))
        self._session_id = spec.session_id or session_id_of(session, spec.conversation_id)
        self._date = spec.date or today()
        self._tools = mocks.specs()
        self._mocked_tools = _mocked_tools(agent.name, self._tools, sources) if self._tools else None
        self._turns: tuple[Turn, ...] = ()
        self._initial_state: Mapping[str, Any] | None = None
        self._messages: list[Message] = [*spec.history]
        self._sent: dict[int, deque[SentRequest]] = {}
        self._resent: list[NextMessage] = []
        self._current: TurnProgress | None = None
        self._agent_wait, self._user_wait, self._tool_wait = _Stopwatch(), _Stopwatch(), _Stopwatch()

    async def run(self) -> Conversation:
        """Run the conversation to its end. Raises only if it is cancelled."""
        AGENT_ANSWERED.set(False)
        invalid = None
        try:
            self._mocks.begin()
            ending = None
            while ending is None:
                async with open_conversation(self._agent) as self._connection:
                    ending = await self._talk()
            if self._sources:
                await self._complete_late()
                await self._check_sources()
            return self._finished(ending)
        except Exception as error:  # noqa: BLE001 - every error becomes part of the transcript
            failure = failure_of(error, self._redact)
            invalid = str(error) if isinstance(error, UserLeftRole) else None
        try:
            conversation = await self._failed(failure)
        except Exception as error:  # noqa: BLE001 - one of our sources is broken: no closed turn may be lost
            for source in self._sources:
                with suppress(Exception):
                    source.close()
            self._sources = ()
            conversation = await self._failed(failure_of(error, self._redact))
        return replace(conversation, invalid=invalid)

    async def _talk(self) -> Ending | None:
        resent, self._resent = self._resent, []
        for each in resent:
            await self._take_turn(each, self._waited())
        while len(self._turns) < self._spec.max_turns:
            waited = self._waited()
            with self._user_wait:
                message = await self._user.next_message(self._turns)
            if isinstance(message, Ending):
                return message
            if message.keep is not None and message.keep < len(self._turns):
                self._forget(message, message.keep)
                if self._resent:
                    return None
            await self._take_turn(message, waited)
            if message.ends is not None:
                return message.ends
        return Ending.MAX_TURNS

    def _forget(self, message: NextMessage, keep: int) -> None:
        kept = self._turns[:keep]
        if self._connection is self._agent:  # every request has the whole history
            before, messages = len(self._spec.history), enumerate(self._messages)
            starts = [at for at, each in messages if at >= before and isinstance(each, UserText)]
            del self._messages[starts[keep] :]
            self._turns = kept
            return
        self._resent = [*(NextMessage(turn.user_message) for turn in kept), replace(message, keep=None)]
        self._messages, self._turns = [*self._spec.history], ()
        self._session_id = new_session_id(self._spec.conversation_id)

    async def _take_turn(self, message: NextMessage, waited: WaitingTimes) -> None:
        text = well_formed(message.text)
        if self._spec.attachments and not self._turns:
            message = replace(message, attachments=(*self._spec.attachments, *message.attachments))
        attached = tuple(
            AttachedFile(file.mime_type, file.name, file.size, shortened(file.uri))
            for file in message.attachments
        )
        turn = self._current = TurnProgress(
            len(self._turns),
            with_mentions(text, attached) if attached else text,
            attached,
            printed=self._servers.positions() if self._servers else {},
            waited=waited,
        )
        SENT_REQUESTS.set(self._sent.setdefault(turn.turn_index, deque(maxlen=_MAX_EXCHANGES)))
        for source in self._sources:
            source.begin_turn(turn.turn_index)
        if message.attachments and not takes_attachments(self._agent):
            raise CannotSend(
                f"{message.attachments[0].origin} sends a file along, and agent {self._agent.name!r} is of a "
                "type that is sent text alone; leave it out for this agent"
            )
        self._messages.append(UserText(text, message.attachments))
        reply = await self._text_reply(turn)
        self._messages.append(AgentMessage(reply))
        calls = self._mocks.record.of_turn(turn.turn_index)
        doubt = self._doubt_of(turn.turn_index) if self._sources else None
        self._turns = (*self._turns, turn.closed(reply, calls, self._waited(), doubt))
        self._current = None
        self._on_turn(self._turns)

    async def _text_reply(self, turn: TurnProgress) -> str:
        context = TurnContext(
            self._spec.conversation_id,
            self._spec.scenario,
            turn.turn_index,
            session=self._session,
            session_id=self._session_id,
            date=self._date,
            approve=self._spec.approve(turn.turn_index),
            tools=self._tools,
        )
        for answered in range(MAX_TOOL_ROUNDS + 1):
            reply = await self._request_reply(turn, context)
            if not reply.tool_requests:
                if self._sources:
                    await self._complete(turn)
                if reply.text and reply.text.strip():
                    return reply.text
                if self._mocks.record.of_turn(turn.turn_index):
                    return ""
                raise AgentError(
                    "the agent's reply is empty: it has neither text nor tool calls. "
                    "Look for an error of its model in its log"
                )
            if answered < MAX_TOOL_ROUNDS:
                await self._answer_tools(reply, turn)
        raise AgentError(
            f"the agent asked for tools more than {MAX_TOOL_ROUNDS} times in {turn_name(turn.turn_index)} "
            "without replying to the user"
        )

    async def _request_reply(self, turn: TurnProgress, context: TurnContext) -> AgentReply:
        turn.requests += 1
        try:
            async with AsyncExitStack() as request:
                with self._agent_wait:
                    for source in self._sources:
                        context = await request.enter_async_context(source.request(turn, context))
                    reply = well_formed_reply(await self._connection.reply(self._messages, context))
        except NoReply as error:
            turn.count_retries(error.retries)
            self._mocks.observe(turn.in_rounds(error.observed), may_repeat=error.retells)
            await self._check_sources(error)
            raise
        except MockBypassed as error:
            self._mocks.observe(error.observed)
            raise
        except RecursionError:
            raise AgentError("the agent's answer is nested too deeply to be read") from None
        except AgentError as error:
            await self._check_sources(error)  # frameworks wrap errors that a tool raises
            raise
        turn.reply_count += 1
        if reply.observed:
            self._mocks.observe(turn.in_rounds(reply.observed), may_repeat=reply.retells)
        await self._check_sources()
        self._check_bypass(turn.turn_index)
        turn.note(reply, self._agent.name, self._redact)
        if self._initial_state is None:
            self._initial_state = reply.state_before
        return reply

    async def _answer_tools(self, reply: AgentReply, turn: TurnProgress) -> None:
        # Every request needs an id, by which its result is assigned.
        requests = tuple(
            request if request.id else replace(request, id=f"call_{turn.turn_index}_{turn.requests}_{i}")
            for i, request in enumerate(reply.tool_requests)
        )
        results: list[ToolResult] = []
        round, turn.messages = turn.messages, turn.messages + 1
        for request in requests:
            with self._tool_wait:
                text = await self._mocks.resolve_json(
                    request.name, request.arguments, turn.turn_index, request.id, round=round
                )
            results.append(ToolResult(request.id, request.name, well_formed(text)))
        self._messages.append(AgentMessage(reply.text, requests))
        self._messages.extend(results)

    async def _check_sources(self, cause_of: AgentError | None = None) -> None:
        if self._mocks.fault:  # which the agent may have swallowed, or wrapped
            raise self._mocks.fault from cause_of
        for source in self._sources:
            await source.check(cause_of)

    def _check_bypass(self, turn_index: int) -> None:
        if self._mocked_tools and (calls := self._mocks.record.of_turn(turn_index)):
            self._mocked_tools.check(calls)

    async def _complete(self, turn: TurnProgress) -> None:
        with self._agent_wait:
            for source in self._sources:
                await source.complete(turn)
        self._check_bypass(turn.turn_index)

    async def _complete_late(self) -> None:
        with self._agent_wait:
            for source in self._sources:
                await source.complete_late()
        for turn in self._turns:
            self._check_bypass(turn.turn_index)

    def _doubt_of(self, turn_index: int) -> str | None:
        return next((doubt for each in self._sources if (doubt := each.doubt_of(turn_index))), None)

    def _waited(self) -> WaitingTimes:
        return WaitingTimes(self._agent_wait.seconds, self._user_wait.seconds, self._tool_wait.seconds)

    async def _failed(self, failure: Failure) -> Conversation:
        turn = self._current
        try:
            await (self._complete(turn) if turn else self._complete_late())
        except MockBypassed as error:  # the report of a real tool that ran must not be lost
            failure = _with_bypass(failure, failure_of(error, self._redact))
        except AgentestError:
            pass  # another error has already ended it
        if turn is None:
            return self._finished(Ending.ERROR, self._without_doubtful_blame(failure))
        calls = self._mocks.record.of_turn(turn.turn_index)
        waited = self._waited()
        printed: tuple[ServerOutput, ...] = ()
        if failure.blame is Blame.AGENT:
            if self._servers:
                with self._agent_wait:
                    printed = await self._servers.since(turn.printed)
            failure = _with_load_hint(failure, printed)
        failure = self._without_doubtful_blame(_with_dead_servers(failure, printed))
        return self._finished(Ending.ERROR, failure, turn.unfinished(calls, printed, waited))

    def _without_doubtful_blame(self, failure: Failure) -> Failure:
        doubt = self._doubt_of(len(self._turns))
        if doubt is None or failure.blame is not Blame.AGENT:
            return failure
        return Failure(Blame.INTERNAL, f"{failure.message} (which may come of what we did: {doubt})")

    def _finished(
        self, ending: Ending, failure: Failure | None = None, unfinished: UnfinishedTurn | None = None
    ) -> Conversation:
        for source in self._sources:
            source.close()
        agent_ms, user_ms, tools_ms = (1000 * seconds for seconds in self._waited())
        model_ms = unfinished.model_ms or 0.0 if unfinished else 0.0
        if self._sources:
            model_ms += sum(turn.model_ms or 0.0 for turn in self._turns)
        conversation = Conversation(
            self._spec.conversation_id,
            tuple(map(self._with_late_calls, self._turns)),
            ending,
            failure,
            unfinished,
            TimeSpent(agent_ms + user_ms + tools_ms, agent_ms, user_ms, tools_ms, model_ms=model_ms),
            self._session_id,
            initial_state=self._initial_state,
            sent=self._sent,
            history=earlier_messages(self._spec.history),
        )
        return with_state(conversation, self._mocks.end_state()) if self._spec.keeps_state else conversation

    def _with_late_calls(self, turn: Turn) -> Turn:
        index, hidden = turn.turn_index, turn.calls_hidden
        calls, moved = self._mocks.record.of_turn(index), self._mocks.record.moved_from(index)
        if not self._sources and hidden is None and (calls, moved) == (turn.tool_calls, turn.asked_calls):
            return turn
        known = hidden is not None and any(each.came_late(index, hidden) for each in self._sources)
        known = known or any(each.calls_hidden == "" for each in self._turns[index:])
        return replace(
            turn,
            tool_calls=calls,
            asked_calls=moved,
            calls_hidden=None if known else hidden,
            call_refused=self._doubt_of(index),
        )


class _Stopwatch:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._began


def _mocked_tools(agent: str, tools: Sequence[ToolSpec], sources: Sequence[CallSource]) -> MockedTools:
    from agentest.agents.bypassed_tools import MockedTools

    leading = next((source for source in sources if source.remedy), None)
    if leading is None:
        return MockedTools(agent, tools, exact=True)
    return MockedTools(agent, tools, leading.own_tools, leading.remedy)


def with_state(conversation: Conversation, end: EndState) -> Conversation:
    """Return the conversation with the final state of its mocks."""
    return replace(conversation, mock_state=end.readable, inexact_state=end.inexact, live_state=end.live)


def _with_bypass(failure: Failure, bypass: Failure) -> Failure:
    if failure.bypassed or failure.message.startswith(bypass.message):
        return failure
    return replace(bypass, message=f"{bypass.message}. Besides, {failure.message}")


def _with_load_hint(failure: Failure, printed: Sequence[ServerOutput]) -> Failure:
    from agentest.agents.error_hints import load_hint

    hint = load_hint([failure.message, *(line for each in printed for line in each.lines)])
    return replace(failure, message=f"{failure.message}. {hint}") if hint else failure


def _with_dead_servers(failure: Failure, printed: Sequence[ServerOutput]) -> Failure:
    ended = [
        f"server {each.server!r} had exited with status {each.exit_status}"
        for each in printed
        if each.exit_status is not None
    ]
    return replace(failure, message=f"{failure.message} ({'; '.join(ended)})") if ended else failure


_WORDS_CHARS = 24


def session_id_of(session: Session | None, conversation_id: str) -> str:
    """Return the session id that the user configured, else a new one."""
    return (session and session.session_id) or new_session_id(conversation_id)


def new_session_id(conversation_id: str) -> str:
    """Return a unique id of at most 63 lower-case letters, digits and hyphens, which URLs and ADK accept."""
    words = re.sub(r"[^a-z0-9]+", "-", conversation_id.lower())[:_WORDS_CHARS].strip("-")
    return "-".join(part for part in ("agentest", words, token_hex(8)) if part)
