"""The sessions of an ADK server, created with a scenario's state and read after every turn."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from agentest.agents.adk_server.events import read_event_list, read_event_stream, read_reply, user_content
from agentest.agents.error_hints import ADK_PLACE
from agentest.agents.http_sender import HttpSender, read_body
from agentest.agents.json_reader import excerpt, read_json
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.config.agents.agent_servers import AdkAgent
from agentest.domain.messages import Message, Session, UserText, last_user_message
from agentest.support.errors import CannotSend, ProgramDelayed, SessionMismatch
from agentest.support.http.client import DirectResponse, Sender
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import NO_VALUES, Values

_CONFLICT_STATUS = 409
_UNSUPPORTED_STATUSES = (404, 405)
"""Statuses of servers that do not support the request with the session's id in the body."""
_TEMPORARY_PREFIX = "temp:"
"""Prefix of state keys that ADK drops after each invocation."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The app, user and session ids of a conversation on the server."""

    app_name: str
    user_id: str
    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """The state of a session, or None and the error if it could not be read."""

    state: Mapping[str, Any] | None = None
    error: str | None = None
    retries: int = 0


@dataclass(frozen=True, slots=True)
class _Created:
    """The response to the creation of a session. `session` is its JSON, None for handled error statuses."""

    status: int
    session: Any


class Sessions:
    """Creates and reads sessions. Stores nothing about conversations."""

    def __init__(self, root: str, sender: HttpSender) -> None:
        self._root = root
        self._sender = sender

    async def open(
        self, key: SessionKey, session: Session | None, values: Values = NO_VALUES
    ) -> SessionState:
        """Create the session if it does not exist, and return its first state.

        Raises NoReply, SessionMismatch if the state differs from the scenario's, and CannotSend for names
        that cannot be part of an address.
        """
        state = dict(session.state) if session else {}
        url = self._sessions_url(key)
        answer = await self._sender.post(
            url,
            {"state": state, "session_id": key.session_id},
            _read_created,
            (_CONFLICT_STATUS, *_UNSUPPORTED_STATUSES),
            values=values,
        )
        retries, created = answer.retries, answer.value
        if created.status in _UNSUPPORTED_STATUSES or _is_another(created, key):
            url = self._session_url(key)
            answer = await self._sender.post(url, state, _read_created, (_CONFLICT_STATUS,), values=values)
            retries, created = retries + answer.retries, answer.value
        if created.status == _CONFLICT_STATUS:
            return await self._existing(key, state, retries, values)
        if not isinstance(created.session, dict) or created.session.get("id") != key.session_id:
            raise NoReply(
                f"{url}: no session {key.session_id!r} was created, but: {excerpt(created.session)}"
            )
        created_state = created.session.get("state") or {}
        if not contains_state(created_state, state):
            raise SessionMismatch(
                f"{url}: the session's state is not what was asked for: found {excerpt(created_state)}, "
                f"expected {excerpt(_without_temporary(state))}. Is this the address of `adk api_server`?"
            )
        return SessionState(state=created_state, retries=retries)

    async def _existing(
        self, key: SessionKey, state: dict[str, Any], retries: int, values: Values
    ) -> SessionState:
        """Read the state of an existing session, which ignores the scenario's state."""
        read = await self.read(key, values)
        if _without_temporary(state) and (read.state is None or not contains_state(read.state, state)):
            actual = f"has the state {excerpt(read.state)}" if read.error is None else read.error
            raise SessionMismatch(
                f"{self._session_url(key)}: {state_mismatch_text(key.session_id, state, actual)}"
            )
        return SessionState(state=read.state, retries=retries)

    async def read(self, key: SessionKey, values: Values = NO_VALUES) -> SessionState:
        """Read the session's current state.

        A failure is returned instead of raised, because it is not the agent's failure.
        """
        try:
            url = self._session_url(key)
            session = (await self._sender.get(url, _read_session, values=values)).value
        except (NoReply, CannotSend, ProgramDelayed) as error:
            return _unread(str(error), key)
        state = session.get("state", {}) if isinstance(session, dict) else None
        if not isinstance(state, dict) or session.get("id") != key.session_id:
            return _unread(f"{url} answered no session of ADK's, but: {excerpt(session)}", key)
        return SessionState(state=state)

    def _sessions_url(self, key: SessionKey) -> str:
        return f"{self._root}/apps/{_segment(key.app_name)}/users/{_segment(key.user_id)}/sessions"

    def _session_url(self, key: SessionKey) -> str:
        return f"{self._sessions_url(key)}/{_segment(key.session_id)}"


def _unread(problem: str, key: SessionKey) -> SessionState:
    # Session ids differ between runs, and a replay must give the same results.
    return SessionState(
        error=f"the session's state could not be read: {problem.replace(key.session_id, '<session_id>')}"
    )


def _segment(name: str) -> str:
    """Return a name as one segment of a path. Raises CannotSend for `.` and `..`, which change the path."""
    if name in (".", ".."):
        raise CannotSend(
            f"{name!r} cannot be the app_name, user_id or session_id of a session: in an address it stands "
            "for another part; change it in the scenario's `session` or the case's session_input"
        )
    return quote(name, "", errors="replace")


def _is_another(created: _Created, key: SessionKey) -> bool:
    """Return whether the server created another id. Older servers accept an id only in the address."""
    session = created.session
    return isinstance(session, dict) and "id" in session and session["id"] != key.session_id


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


async def _read_created(response: DirectResponse) -> _Created:
    if response.status_code in (_CONFLICT_STATUS, *_UNSUPPORTED_STATUSES):
        return _Created(response.status_code, None)
    return _Created(response.status_code, await _read_session(response))


async def _read_session(response: DirectResponse) -> Any:
    return await read_body(response, False, _session_json, _refuse_stream)


def _session_json(body: bytes) -> Any:
    return read_json(body, ADK_PLACE)


async def _refuse_stream(_: Any) -> Any:
    raise NoReply("the ADK server answered with a stream where a session was expected")


_DEFAULT_USER = "agentest"


def open_agent(_: str, config: AdkAgent, resources: Resources) -> AdkClient:
    """Create the client of an agent behind an ADK server."""
    return AdkClient(config, resources.client, resources.timeout_s)


class AdkClient:
    """Sends conversations to one ADK server. Stores nothing about them."""

    takes_attachments = True

    def __init__(self, config: AdkAgent, client: Sender, timeout_s: float) -> None:
        self.name = config.name
        self._app_name = config.app_name
        self._user_id = config.user_id
        self._streaming = config.streaming
        self._root = config.endpoint.rstrip("/")
        self._run_url = f"{self._root}/{'run_sse' if config.streaming else 'run'}"
        self._sender = HttpSender(config, client, timeout_s, ADK_PLACE)
        self._sessions = Sessions(self._root, self._sender)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the user's last message. The first turn creates the session.

        `latency_ms` of the reply covers the run without the session requests. The time limit applies to
        each request. Raises NoReply, SessionMismatch, CannotSend.
        """
        key = self._place(ctx)
        values = TurnValues(messages, ctx)
        first_state = (
            await self._sessions.open(key, ctx.session, values) if ctx.turn_index == 0 else SessionState()
        )
        answer = await self._sender.post(
            self._run_url,
            self._request(key, last_user_message(messages)),
            self._read,
            values=values,
        )
        reply = read_reply(
            answer.value,
            ctx.turn_index,
            latency_ms=answer.latency_ms,
            retries=first_state.retries + answer.retries,
            streamed=self._streaming,
        )
        current_state = await self._sessions.read(key, values)
        return replace(
            reply,
            state=current_state.state,
            state_error=current_state.error,
            state_before=first_state.state,
            first_token_ms=answer.first_token_ms,
        )

    def _place(self, ctx: TurnContext) -> SessionKey:
        session = ctx.session or Session()
        app_name = self._app_name or session.app_name
        if not app_name:
            raise CannotSend(
                f"agent {self.name!r} has no app_name: set it in the agent's configuration, or as "
                f"app_name of the scenario's `session` or the case's session_input ({self._root}/list-apps "
                "tells which apps there are)"
            )
        return SessionKey(
            app_name,
            self._user_id or session.user_id or _DEFAULT_USER,
            ctx.session_id,
        )

    def _request(self, key: SessionKey, message: UserText) -> dict[str, Any]:
        return {
            "app_name": key.app_name,
            "user_id": key.user_id,
            "session_id": key.session_id,
            "new_message": user_content(message),
            "streaming": self._streaming,
        }

    def _read(self, response: DirectResponse) -> Awaitable[list[Any]]:
        return read_body(response, self._streaming, read_event_list, read_event_stream)
