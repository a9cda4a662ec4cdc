"""The sessions of an ADK server: created with the state of a scenario, and read back after every turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from agentest.agents.error_hints import ADK_PLACE
from agentest.agents.http_sender import HttpSender, read_body
from agentest.agents.json_reader import read_json, shown
from agentest.agents.port import NoReply
from agentest.domain.messages import Session
from agentest.support.errors import CannotSend, HeldUp, SessionMismatch
from agentest.support.http.client import DirectResponse
from agentest.support.templates import NO_VALUES, Values

_EXISTS = 409
_OTHER_FORM = (404, 405)
"""How a server answers that does not know this way to create a session."""
_LOST_PREFIX = "temp:"
"""Of keys of the state that ADK drops: they are for one invocation."""


@dataclass(frozen=True, slots=True)
class Place:
    """Whose conversation it is on the server."""

    app_name: str
    user_id: str
    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRead:
    """The state of a session; None where it could not be read, and `error` says why."""

    state: Mapping[str, Any] | None = None
    error: str | None = None
    retries: int = 0


@dataclass(frozen=True, slots=True)
class _Created:
    """What the server says of a session. `session` is its JSON, None where the status is not 2xx."""

    status: int
    session: Any


class Sessions:
    """Creates and reads sessions. Holds nothing of any conversation."""

    def __init__(self, root: str, sender: HttpSender) -> None:
        self._root = root
        self._sender = sender

    async def open(self, place: Place, session: Session | None, values: Values = NO_VALUES) -> StateRead:
        """Create the session, or find that it exists already, and say with which state it begins.

        Raises NoReply, SessionMismatch where its state is not what the scenario asks for, and CannotSend for
        names that no address can hold.
        """
        state = dict(session.state) if session else {}
        url = self._url(place)
        answered = await self._sender.post(
            url,
            {"state": state, "session_id": place.session_id},
            _read_created,
            (_EXISTS, *_OTHER_FORM),
            values=values,
        )
        retries, created = answered.retries, answered.value
        if created.status in _OTHER_FORM or _is_another(created, place):
            url = self._url_of(place)
            answered = await self._sender.post(url, state, _read_created, (_EXISTS,), values=values)
            retries, created = retries + answered.retries, answered.value
        if created.status == _EXISTS:
            return await self._existing(place, state, retries, values)
        if not isinstance(created.session, dict) or created.session.get("id") != place.session_id:
            raise NoReply(
                f"{url}: no session {place.session_id!r} was created, but: {shown(created.session)}"
            )
        begun = created.session.get("state") or {}
        if not holds(begun, state):
            raise SessionMismatch(
                f"{url}: the session's state is not what was asked for: found {shown(begun)}, expected "
                f"{shown(_kept(state))}. Is this the address of `adk api_server`?"
            )
        return StateRead(state=begun, retries=retries)

    async def _existing(self, place: Place, state: dict[str, Any], retries: int, values: Values) -> StateRead:
        """The state of a session that was there before: it keeps its own, whatever a scenario asks for."""
        read = await self.read(place, values)
        if _kept(state) and (read.state is None or not holds(read.state, state)):
            found = f"has the state {shown(read.state)}" if read.error is None else read.error
            raise SessionMismatch(f"{self._url_of(place)}: {other_state(place.session_id, state, found)}")
        return StateRead(state=read.state, retries=retries)

    async def read(self, place: Place, values: Values = NO_VALUES) -> StateRead:
        """The state of the session now. Never raises: that it cannot be read is not the agent's failure."""
        try:
            url = self._url_of(place)
            session = (await self._sender.get(url, _read_session, values=values)).value
        except (NoReply, CannotSend, HeldUp) as error:
            return _unread(str(error), place)
        state = session.get("state", {}) if isinstance(session, dict) else None
        if not isinstance(state, dict) or session.get("id") != place.session_id:
            return _unread(f"{url} answered no session of ADK's, but: {shown(session)}", place)
        return StateRead(state=state)

    def _url(self, place: Place) -> str:
        return f"{self._root}/apps/{_segment(place.app_name)}/users/{_segment(place.user_id)}/sessions"

    def _url_of(self, place: Place) -> str:
        return f"{self._url(place)}/{_segment(place.session_id)}"


def _unread(problem: str, place: Place) -> StateRead:
    """No state, and why. Most session ids are new in every run, and results shall be the same in a replay."""
    return StateRead(
        error=f"the session's state could not be read: {problem.replace(place.session_id, '<session_id>')}"
    )


def _segment(name: str) -> str:
    """A name as one part of a path. Raises CannotSend for what no escape keeps from changing the path."""
    if name in (".", ".."):
        raise CannotSend(
            f"{name!r} cannot be the app_name, user_id or session_id of a session: in an address it stands "
            "for another part; change it in the scenario's `session` or the case's session_input"
        )
    return quote(name, "", errors="replace")


def _is_another(created: _Created, place: Place) -> bool:
    """Whether the server made up an id of its own: older ones take one only in the address."""
    session = created.session
    return isinstance(session, dict) and "id" in session and session["id"] != place.session_id


def _kept(state: Mapping[str, Any]) -> dict[str, Any]:
    """What ADK keeps of a state."""
    return {key: value for key, value in state.items() if not key.startswith(_LOST_PREFIX)}


def other_state(session_id: str, asked: Mapping[str, Any], found: str) -> str:
    """What is wrong with a session that was there before, and what to do. `found` says what it has."""
    return (
        f"the session {session_id!r} exists already and keeps its own state, so it does not begin with "
        f"{shown(_kept(asked))}: {found}. Leave session_id out, so that every conversation gets a session of "
        "its own, or name one that does not exist yet"
    )


def holds(found: Any, asked: Mapping[str, Any]) -> bool:
    """Whether a session's state has all that was asked for: both forms of creating answer 200 to either."""
    return isinstance(found, dict) and all(found.get(key) == value for key, value in _kept(asked).items())


async def _read_created(response: DirectResponse) -> _Created:
    if response.status_code in (_EXISTS, *_OTHER_FORM):
        return _Created(response.status_code, None)
    return _Created(response.status_code, await _read_session(response))


async def _read_session(response: DirectResponse) -> Any:
    return await read_body(response, False, _session, _no_stream)


def _session(body: bytes) -> Any:
    return read_json(body, ADK_PLACE)


async def _no_stream(_: Any) -> Any:
    raise NoReply("the ADK server answered with a stream where a session was expected")
