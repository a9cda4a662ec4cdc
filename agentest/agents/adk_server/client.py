"""An agent of Google's ADK behind its own server: sessions, `/run` and `/run_sse`.

The agent runs its tools itself: calls are observed, mocks do not apply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from agentest.agents.adk_server.events import read_event_list, read_event_stream, read_run
from agentest.agents.hints import ADK_PLACE
from agentest.agents.http_sender import HttpAnswer, HttpSender, read_body
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.agents.reading import read_json, shown
from agentest.config.agents import AdkAgent
from agentest.errors import AgentError
from agentest.http.client import Client, DirectResponse
from agentest.messages import Message, UserText
from agentest.scenarios.definition import Session

_DEFAULT_USER = "agentest"
_EXISTS = 409
_OTHER_FORM = (404, 405)
"""How a server answers that does not know this way to create a session."""
_LOST_PREFIX = "temp:"
"""Of keys of the state that ADK drops: they are for one invocation."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Whose conversation it is on the server."""

    app_name: str
    user_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class _Created:
    """What the server says of a session. `session` is its JSON, None where the status is not 2xx."""

    status: int
    session: Any


def open_agent(_: str, config: AdkAgent, resources: Resources) -> AdkClient:
    """The client of an agent behind an ADK server."""
    return AdkClient(config, resources.client, resources.timeout_s)


class AdkClient:
    """Sends conversations to one ADK server. Keeps nothing of any conversation."""

    def __init__(self, config: AdkAgent, client: Client, timeout_s: float) -> None:
        self.name = config.name
        self._app_name = config.app_name
        self._user_id = config.user_id
        self._streaming = config.streaming
        self._root = config.endpoint.rstrip("/")
        self._run_url = f"{self._root}/{'run_sse' if config.streaming else 'run'}"
        self._sender = HttpSender(config, client, timeout_s, ADK_PLACE)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The agent's answer to the last text of the user; the first turn creates the session.

        `latency_ms` is the run's alone. Raises NoReply; each request has the whole time-out.
        """
        place = self._place(ctx)
        retries = await self._open_session(place, ctx.session) if ctx.turn_index == 0 else 0
        answered = await self._sender.post(
            self._run_url, self._request(place, _last_text(messages)), self._read
        )
        return _reply(answered, retries + answered.retries, ctx.turn_index, self._streaming)

    def _place(self, ctx: TurnContext) -> _Place:
        session = ctx.session or Session()
        app_name = self._app_name or session.app_name
        if not app_name:
            raise NoReply(
                f"agent {self.name!r} has no app_name: set it in the agent's configuration, or as "
                f"session_input.app_name of the case ({self._root}/list-apps tells which apps there are)"
            )
        return _Place(
            app_name,
            self._user_id or session.user_id or _DEFAULT_USER,
            ctx.session_id,
        )

    def _request(self, place: _Place, text: str) -> dict[str, Any]:
        return {
            "app_name": place.app_name,
            "user_id": place.user_id,
            "session_id": place.session_id,
            "new_message": {"role": "user", "parts": [{"text": text}]},
            "streaming": self._streaming,
        }

    def _read(self, response: DirectResponse) -> Awaitable[list[Any]]:
        return read_body(response, self._streaming, read_event_list, read_event_stream)

    async def _open_session(self, place: _Place, session: Session | None) -> int:
        """Create the session, or find that it exists already. Returns the number of retries."""
        state = dict(session.state) if session else {}
        url = f"{self._root}/apps/{_segment(place.app_name)}/users/{_segment(place.user_id)}/sessions"
        answered = await self._sender.post(
            url, {"state": state, "session_id": place.session_id}, _read_created, (_EXISTS, *_OTHER_FORM)
        )
        retries, created = answered.retries, answered.value
        if created.status in _OTHER_FORM or _is_another(created, place):
            url = f"{url}/{_segment(place.session_id)}"
            answered = await self._sender.post(url, state, _read_created, (_EXISTS,))
            retries, created = retries + answered.retries, answered.value
        if created.status != _EXISTS:
            _check(created.session, url, place, state)
        return retries


def _reply(answered: HttpAnswer[list[Any]], retries: int, turn_index: int, streamed: bool) -> AgentReply:
    try:
        run = read_run(answered.value, turn_index, streamed)
    except AgentError as error:
        raise NoReply(str(error), retries) from None
    if run.problem is not None:
        raise NoReply(run.problem, retries, run.calls)
    return AgentReply(
        run.text,
        usage=run.usage,
        latency_ms=answered.latency_ms,
        retries=retries,
        observed=run.calls,
        remarks=run.remarks,
    )


def _last_text(messages: Sequence[Message]) -> str:
    """What the user has written last: the server remembers the rest of the conversation itself."""
    return next(message.text for message in reversed(messages) if isinstance(message, UserText))


def _segment(name: str) -> str:
    """A name as one part of a path. Raises NoReply for what no escape keeps from changing the path."""
    if name in (".", ".."):
        raise NoReply(
            f"{name!r} cannot be the app_name, user_id or session_id of a session: in an address it stands "
            "for another part; change it in the case's session_input"
        )
    return quote(name, "", errors="replace")


def _is_another(created: _Created, place: _Place) -> bool:
    """Whether the server made up an id of its own: older ones take one only in the address."""
    session = created.session
    return isinstance(session, dict) and "id" in session and session["id"] != place.session_id


async def _read_created(response: DirectResponse) -> _Created:
    if response.status_code in (_EXISTS, *_OTHER_FORM):
        return _Created(response.status_code, None)
    return _Created(response.status_code, await read_body(response, False, _session, _no_stream))


def _session(body: bytes) -> Any:
    return read_json(body, ADK_PLACE)


async def _no_stream(_: Any) -> Any:
    raise NoReply("the ADK server answered with a stream where a session was expected")


def _check(session: Any, url: str, place: _Place, state: dict[str, Any]) -> None:
    """Raise NoReply where the session is not the one that was asked for: both forms answer 200 to either."""
    if not isinstance(session, dict) or session.get("id") != place.session_id:
        raise NoReply(f"{url}: no session {place.session_id!r} was created, but: {shown(session)}")
    returned = session.get("state") or {}
    asked = {key: value for key, value in state.items() if not key.startswith(_LOST_PREFIX)}
    if not isinstance(returned, dict) or any(returned.get(key) != value for key, value in asked.items()):
        raise NoReply(
            f"{url}: the session's state is not what was asked for: found {shown(returned)}, expected "
            f"{shown(asked)}. Is this the address of `adk api_server`?"
        )
