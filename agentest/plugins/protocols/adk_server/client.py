"""The client of an ADK server: its sessions, and the events of a run with the reply, calls and usage.

A session is created with a scenario's state and read after every turn. The reply follows google-adk's
`Event.is_final_response`: it is the text of the last event that is final and has text. All other texts are
remarks, and all function calls form the trajectory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any
from urllib.parse import quote

from agentest.agents.http_sender import EventStream, HttpSender, OutgoingRequest, read_body
from agentest.agents.json_reader import (
    excerpt,
    is_list_of_objects,
    mapping_at,
    objects_at,
    read_json,
    read_text,
    reported_usage,
    truncated_stream_error,
)
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.domain.messages import Attachment, Message, Session, UserText, last_user_message
from agentest.domain.tool_visibility import DENIED, Approval
from agentest.domain.transcript import Remark, ToolCall, Usage, waiting
from agentest.plugins.protocols.adk_server.settings import AdkAgent
from agentest.plugins.protocols.approvals import Approver, Decision
from agentest.plugins.protocols.protocol_client import (
    ProtocolTurn,
    ReportedResults,
    agent_call,
    read_json_body,
)
from agentest.support.errors import AgentError, CannotSend, ProgramDelayed, SessionMismatch, errors_as
from agentest.support.http.client import DirectResponse, Sender
from agentest.support.lazy_dataclasses import dataclass

_LOCATION = "is this the address of `adk api_server`, and app_name one of those that its /list-apps lists?"
_CONFLICT_STATUS = 409
_UNSUPPORTED_STATUSES = (404, 405)
"""Statuses of servers that do not support the request with the session's id in the body."""
_TEMPORARY_PREFIX = "temp:"
_DEFAULT_AUTHOR = "agent"
_CONFIRMATION = "adk_request_confirmation"  # the pseudo-call by which google-adk asks whether a tool may run

Part = Mapping[str, Any]
Asked = Mapping[str, Mapping[str, Any]]  # id of a confirmation → the call that waits for it
_UNDECIDED: Mapping[str, Approval] = dict[str, Approval]()


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The app, user and session ids of a conversation on the server."""

    app_name: str
    user_id: str
    session_id: str


class Sessions:
    """Creates and reads sessions. Stores nothing about conversations."""

    def __init__(self, root: str, sender: HttpSender) -> None:
        self._root = root
        self._sender = sender

    async def open(self, key: SessionKey, turn: ProtocolTurn) -> Mapping[str, Any] | None:
        """Create the session if it does not exist, and return its first state; None if that is unknown.

        Raises NoReply, SessionMismatch if the state differs from the scenario's, and CannotSend for names
        that cannot be part of an address.
        """
        state = dict(turn.ctx.session.state) if turn.ctx.session else {}
        url, with_id = self._sessions_url(key), {"state": state, "session_id": key.session_id}
        status, created = await self._create(url, with_id, (_CONFLICT_STATUS, *_UNSUPPORTED_STATUSES), turn)
        # Older servers accept an id only in the address.
        is_another = isinstance(created, dict) and "id" in created and created["id"] != key.session_id
        if status in _UNSUPPORTED_STATUSES or is_another:
            url = self._session_url(key)
            status, created = await self._create(url, state, (_CONFLICT_STATUS,), turn)
        if status == _CONFLICT_STATUS:
            return await self._existing(key, state, turn)
        if not isinstance(created, dict) or created.get("id") != key.session_id:
            raise NoReply(f"{url}: no session {key.session_id!r} was created, but: {excerpt(created)}")
        created_state: dict[str, Any] = created.get("state") or {}
        if not contains_state(created_state, state):
            raise SessionMismatch(
                f"{url}: the session's state differs from the one requested: found {excerpt(created_state)}, "
                f"expected {excerpt(_without_temporary(state))}. Is this the address of `adk api_server`?"
            )
        return created_state

    async def _create(
        self, url: str, payload: Mapping[str, Any], also: Container[int], turn: ProtocolTurn
    ) -> tuple[int, Any]:
        answer = await self._sender.post(url, payload, _read_created, also, values=turn.values)
        turn.retries += answer.retries
        return answer.value

    async def _existing(
        self, key: SessionKey, state: Mapping[str, Any], turn: ProtocolTurn
    ) -> Mapping[str, Any] | None:
        found, problem = await self.read(key, turn)
        if _without_temporary(state) and (found is None or not contains_state(found, state)):
            actual = problem or f"has the state {excerpt(found)}"
            raise SessionMismatch(
                f"{self._session_url(key)}: {state_mismatch_text(key.session_id, state, actual)}"
            )
        return found

    async def read(self, key: SessionKey, turn: ProtocolTurn) -> tuple[Mapping[str, Any] | None, str | None]:
        """Return the session's current state, or None and why: a failure, because it is not the agent's."""
        try:
            url = self._session_url(key)
            request = OutgoingRequest(url=url, method="GET")
            session = (await self._sender.send(request, _read_session, values=turn.values)).value
            state = session.get("state", {}) if isinstance(session, dict) else None
            if isinstance(state, dict) and session.get("id") == key.session_id:
                return state, None
            problem = f"{url} answered no session of ADK's, but: {excerpt(session)}"
        except (NoReply, CannotSend, ProgramDelayed) as error:
            problem = str(error)
        # Session ids differ between runs, and a replay must give the same results.
        problem = problem.replace(key.session_id, "<session_id>")
        return None, f"the session's state could not be read: {problem}"

    def _sessions_url(self, key: SessionKey) -> str:
        return f"{self._root}/apps/{_segment(key.app_name)}/users/{_segment(key.user_id)}/sessions"

    def _session_url(self, key: SessionKey) -> str:
        return f"{self._sessions_url(key)}/{_segment(key.session_id)}"


def _segment(name: str) -> str:
    """Return a name as one segment of a path. Raises CannotSend for `.` and `..`, which change the path."""
    if name in (".", ".."):
        raise CannotSend(
            f"{name!r} cannot be the app_name, user_id or session_id of a session: in an address it stands "
            "for another part; change it in the scenario's `session` or the case's session_input"
        )
    return quote(name, "", errors="replace")


def _without_temporary(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not key.startswith(_TEMPORARY_PREFIX)}


def state_mismatch_text(session_id: str, expected: Mapping[str, Any], actual: str) -> str:
    """Return the error for an existing session that has another state. `found` describes that state."""
    return (
        f"the session {session_id!r} exists already and keeps its own state, so it does not begin with "
        f"{excerpt(_without_temporary(expected))}: {actual}. Leave session_id out, so that every "
        "conversation gets a session of its own, or name one that does not exist yet"
    )


def contains_state(actual: Any, expected: Mapping[str, Any]) -> bool:
    """Return whether a session's state contains the requested state, except for temporary keys.

    The check is needed because servers respond with 200 to both forms of the request, even the wrong one.
    """
    return isinstance(actual, dict) and all(
        actual.get(key) == value for key, value in _without_temporary(expected).items()
    )


async def _read_created(response: DirectResponse) -> tuple[int, Any]:
    if response.status_code in (_CONFLICT_STATUS, *_UNSUPPORTED_STATUSES):
        return response.status_code, None
    return response.status_code, await _read_session(response)


async def _read_session(response: DirectResponse) -> Any:
    if_stream = "the ADK server answered with a stream where a session was expected"
    return await read_json_body(response, _LOCATION, if_stream)


_DEFAULT_USER = "agentest"


def open_agent(_: str, config: AdkAgent, resources: Resources) -> AdkClient:
    """Create the client of an agent behind an ADK server."""
    return AdkClient(config, resources.client, resources.timeout_s)


@dataclass(slots=True, kw_only=True)
class _AdkRuns(ProtocolTurn):
    """The runs of one turn: of the user's message, and of answers to confirmations."""

    asked: Asked
    events: list[Any] = field(default_factory=list)
    decided: dict[str, Approval] = field(default_factory=dict)

    def answer(self, approver: Approver, words: str | None = None) -> Mapping[str, Any] | None:
        tools = [call.get("name") for call in self.asked.values()]
        decision = approver.decision(tools, words) if tools else None
        if decision is None:
            return None
        for call in self.asked.values():
            granted = decision.about(call.get("name")).approved
            self.decided[str(call.get("id"))] = Approval.GRANTED if granted else Approval.DENIED
        return confirmation_answer(self.asked, decision)


class AdkClient:
    """Sends conversations to one ADK server. Stores only the calls that wait for the user."""

    takes_attachments = True

    def __init__(self, config: AdkAgent, client: Sender, timeout_s: float) -> None:
        self.name = config.name
        self._app_name = config.app_name
        self._user_id = config.user_id
        self._streaming = config.streaming
        self._root = config.endpoint.rstrip("/")
        self._run_url = f"{self._root}/{'run_sse' if config.streaming else 'run'}"
        self._sender = HttpSender(config, client, timeout_s, _LOCATION)
        self._sessions = Sessions(self._root, self._sender)
        self._approvals = config.approvals
        self._waiting: dict[str, Asked] = {}
        """Session id → the calls that the user's next message decides about."""

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the user's last message. The first turn creates the session.

        `latency_ms` of the reply covers the runs without the session requests. The time limit applies to
        each request. Raises NoReply, SessionMismatch, CannotSend.
        """
        key = self._place(ctx)
        asked = self._waiting.pop(key.session_id, {})
        run = _AdkRuns(ctx=ctx, values=TurnValues(messages, ctx), asked=asked)
        state_before = await self._sessions.open(key, run) if ctx.turn_index == 0 else None
        message, approver = last_user_message(messages), Approver(ctx.approve, self._approvals)
        if run.asked:
            run.events.append({"content": {"parts": [{"functionCall": call} for call in run.asked.values()]}})
        given: Any = run.answer(approver, message.text) or user_content(message)
        try:
            while given is not None:
                await self._send(key, given, run)
                given = run.answer(approver)
        except AgentError as error:
            calls = read_run(run.events, ctx.turn_index, decided=run.decided)[0].observed
            raise run.no_reply(error, calls) from error
        if run.asked:
            self._waiting[key.session_id] = run.asked
        reply = read_reply(run.events, ctx.turn_index, run.retries, self._streaming, run.decided)
        state, state_error = await self._sessions.read(key, run)
        return replace(
            run.timed(reply),
            state=state,
            state_error=state_error,
            state_before=state_before,
            approvals=approver.answered,
        )

    async def _send(self, key: SessionKey, given: Any, run: _AdkRuns) -> None:
        payload = {**asdict(key), "streaming": self._streaming, "new_message": given}
        events = run.add(await self._sender.post(self._run_url, payload, self._read, values=run.values))
        run.events += events
        run.asked = confirmations(events)

    def _place(self, ctx: TurnContext) -> SessionKey:
        session = ctx.session or Session()
        app_name = self._app_name or session.app_name
        if not app_name:
            raise CannotSend(
                f"agent {self.name!r} has no app_name: set it in the agent's configuration, or as "
                f"app_name of the scenario's `session` or the case's session_input ({self._root}/list-apps "
                "lists the apps)"
            )
        return SessionKey(app_name, self._user_id or session.user_id or _DEFAULT_USER, ctx.session_id)

    def _read(self, response: DirectResponse) -> Awaitable[list[Any]]:
        return read_body(response, self._streaming, read_event_list, read_event_stream)


@dataclass(frozen=True, slots=True)
class _Event:
    author: str
    parts: tuple[Part, ...]
    final: bool
    usage: Usage
    error: str | None
    is_model_response: bool  # True if the event reports a model's version or token usage

    @property
    def text(self) -> str:
        return "\n".join(part["text"] for part in self.parts if part.get("text") and not part.get("thought"))


def read_event_list(body: bytes) -> list[Any]:
    """Read the events in a response of `/run`. Raises AgentError."""
    data = read_json(body, _LOCATION)
    if isinstance(data, Mapping) and data.get("error"):
        raise AgentError(f"the agent answered with an error: {excerpt(data['error'])}")
    if not isinstance(data, list):
        raise AgentError(f"the agent's answer is not a list of ADK's events: {excerpt(data)}")
    return data


async def read_event_stream(stream: EventStream) -> list[Any]:
    """Read the events in a response of `/run_sse`. Raises AgentError, also if the stream was cut."""
    events: list[Any] = []
    async for event in stream:
        if event.data.strip():  # some servers keep the connection alive with empty events
            events.append(read_text(event.data))
            if any(part.get("text") for part in objects_at(mapping_at(events[-1], "content"), "parts")):
                stream.note_first_token()
    if not events:
        raise truncated_stream_error("any event")
    if isinstance(events[-1], Mapping) and events[-1].get("partial") is True:
        raise AgentError("the agent's stream was cut: it ended within an event that came in pieces")
    return events


def confirmations(items: Iterable[Any]) -> Asked:
    """Return the calls in a run's events that wait for a confirmation."""
    parts = [part for item in items for part in objects_at(mapping_at(item, "content"), "parts")]
    asked = [
        call for part in parts if (call := mapping_at(part, "functionCall")).get("name") == _CONFIRMATION
    ]
    return {str(call.get("id")): _original(call) for call in asked}


def _original(confirmation: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping_at(mapping_at(confirmation, "args"), "originalFunctionCall")


def confirmation_answer(asked: Asked, decision: Decision) -> dict[str, Any]:
    """Return the message that answers confirmations."""
    approved = {known: decision.about(call.get("name")).approved for known, call in asked.items()}
    answers = [
        {"id": known, "name": _CONFIRMATION, "response": {"confirmed": yes}}
        for known, yes in approved.items()
    ]
    return {"role": "user", "parts": [{"functionResponse": each} for each in answers]}


def read_run(
    items: Sequence[Any],
    turn_index: int,
    streamed: bool = False,
    decided: Mapping[str, Approval] = _UNDECIDED,
) -> tuple[AgentReply, str | None]:
    """Return the reply in a run's events, and the problem if there is none.

    Raises AgentError for values that are not events of ADK. `decided`: call id → what the user decided.

    A run without text is a reply if the agent called a tool. If the events were streamed, it must not end
    with a call, because a stream may be cut between two events.
    """
    events = [event for item in items if (event := _event(item)) is not None]
    calls = _calls(events, turn_index, decided)
    last: _Event | None = None
    for event in events:
        if event.final and (event.error or event.text or last is None or not last.text):
            last = event
    problem, text = None, None
    if last:
        question = "\n".join(_questions(events, decided))
        problem, text = last.error, "" if last.error else last.text or question or _fallback_text(last.parts)
    elif not calls or (streamed and any(part.get("functionCall") is not None for part in events[-1].parts)):
        problem = f"no final response among the {len(items)} events of the agent"
    if not problem and not text and not calls:
        problem = "the final response of the agent is empty"
    reply = AgentReply(
        text=text or None,
        observed=calls,
        remarks=tuple(_remarks(events, last)),
        usage=sum((event.usage for event in events), Usage()),
        author=last.author if last else events[-1].author if events else _DEFAULT_AUTHOR,
        model_calls=sum(event.is_model_response for event in events) or None,
    )
    return reply, problem


def _remarks(events: Sequence[_Event], reply: _Event | None) -> Iterator[Remark]:
    calls = 0
    for event in events:
        if event is not reply and event.text:
            yield Remark(event.author, event.text, calls)
        calls += sum(part.get("functionCall") is not None for part in event.parts)


def _event(item: Any) -> _Event | None:
    if not isinstance(item, Mapping):
        raise AgentError(f"an event of the agent is not a JSON object: {excerpt(item)}")
    author = item.get("author") or _DEFAULT_AUTHOR
    if not isinstance(author, str):
        raise AgentError(f"the `author` of an event of the agent is not a text: {excerpt(author)}")
    values = [item.get(key) for key in ("errorCode", "errorMessage", "error")]
    reported = ": ".join(excerpt(value) for value in values if value)
    error = f"the agent reports an error: {reported}" if reported else None
    if author.lower() == "user" or (item.get("partial") is True and not error):
        return None
    parts = _parts(item)
    final = error is not None or _is_final(item, parts)
    tokens = item.get("usageMetadata")
    usage = reported_usage(tokens) or Usage()
    is_model_response = isinstance(tokens, Mapping) or isinstance(item.get("modelVersion"), str)
    return _Event(author, parts, final, usage, error, is_model_response)


def _is_final(event: Mapping[str, Any], parts: Sequence[Part]) -> bool:
    if not parts:
        return False
    if event.get("longRunningToolIds") or mapping_at(event, "actions").get("skipSummarization"):
        return True
    if any(part.get(kind) is not None for part in parts for kind in ("functionCall", "functionResponse")):
        return False
    return parts[-1].get("codeExecutionResult") is None


def _parts(event: Mapping[str, Any]) -> tuple[Part, ...]:
    content = event.get("content") or {}
    parts = content.get("parts") if isinstance(content, Mapping) else content
    if parts is None:
        return ()
    if not is_list_of_objects(parts):
        raise AgentError(f"the `content` of an event of the agent has no list of parts: {excerpt(content)}")
    for part in parts:
        if not isinstance(part.get("text") or "", str):
            raise AgentError(f"the `text` of an event of the agent is not a text: {excerpt(part)}")
    return tuple(parts)


def _fallback_text(parts: Iterable[Part]) -> str:
    return "\n".join(
        excerpt(part["functionResponse"].get("response"))
        if part.get("functionResponse") is not None
        else f"[{next(iter(part), 'nothing')}]"
        for part in parts
        if not part.get("thought") and "text" not in part
    )


def _questions(events: Iterable[_Event], decided: Mapping[str, Approval]) -> Iterator[str]:
    for part in (part for event in events for part in event.parts):
        call = mapping_at(part, "functionCall")
        about = _original(call)
        if call.get("name") == _CONFIRMATION and about.get("id") not in decided:
            hint = mapping_at(mapping_at(call, "args"), "toolConfirmation").get("hint")
            why = f" ({hint})" if hint else ""
            args = excerpt(about.get("args"))
            yield f"The agent asks for approval to call {about.get('name')} with {args}{why}."


def _calls(
    events: Sequence[_Event], turn_index: int, decided: Mapping[str, Approval]
) -> tuple[ToolCall, ...]:
    parts = [part for event in events for part in event.parts]
    results = ReportedResults(_functions(parts, "functionResponse"))
    rounds = [calls for event in events if (calls := _functions(event.parts, "functionCall"))]
    made = [
        agent_call(
            name=call["name"],
            args=call.get("args"),
            turn_index=turn_index,
            result=results.take(call["name"], call.get("id")),
            call_id=call.get("id") or None,
            round=round,
        )
        for round, calls in enumerate(rounds)
        for call in calls
    ]
    asked = {str(mapping_at(call.args, "originalFunctionCall").get("id")) for call in made}
    known: dict[str, Approval] = {**dict.fromkeys(asked, Approval.PENDING), **decided}
    return tuple(_decided(call, known.get(call.call_id or "")) for call in made if call.name != _CONFIRMATION)


def _decided(call: ToolCall, approval: Approval | None) -> ToolCall:
    if approval in (None, Approval.GRANTED):
        return replace(call, approval=approval)
    call = replace(call, result=None)
    return waiting(call) if approval is Approval.PENDING else replace(call, error=DENIED, approval=approval)


def _functions(parts: Sequence[Part], kind: str) -> list[Mapping[str, Any]]:
    functions = [part[kind] for part in parts if part.get(kind) is not None]
    for function in functions:
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise AgentError(f"a `{kind}` of the agent has no name: {excerpt(function)}")
        if not isinstance(function.get("id") or "", str):
            raise AgentError(f"the `id` of a `{kind}` of the agent is not a text: {excerpt(function)}")
    return functions


def read_reply(
    items: Sequence[Any],
    turn_index: int,
    retries: int = 0,
    streamed: bool = False,
    decided: Mapping[str, Approval] = _UNDECIDED,
) -> AgentReply:
    """Return the reply in a run's events, without the session's state.

    Raises NoReply with the agent's calls.
    """
    with errors_as(lambda problem: NoReply(problem, retries), "", AgentError):
        reply, problem = read_run(items, turn_index, streamed, decided)
    if problem is not None:
        raise NoReply(problem, retries, reply.observed)
    return replace(reply, retries=retries)


def user_content(message: UserText) -> dict[str, Any]:
    """Return the message as a `Content`, in camelCase, which ADK for Python and TypeScript accept."""
    text = [{"text": message.text}] if message.text or not message.attachments else []
    return {"role": "user", "parts": [*text, *map(_part, message.attachments)]}


def _part(file: Attachment) -> dict[str, Any]:
    name = {"displayName": file.name} if file.name else {}
    if file.uri:
        return {"fileData": {"mimeType": file.mime_type, "fileUri": file.uri, **name}}
    return {"inlineData": {"mimeType": file.mime_type, "data": file.base64, **name}}
