"""The client of a Google ADK agent behind ADK's server: sessions, `/run` and `/run_sse`.

The agent runs its own tools. Their calls are observed; mocks do not apply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

from agentest.agents.adk_server.events import read_event_list, read_event_stream, read_reply, user_content
from agentest.agents.adk_server.sessions import SessionKey, Sessions, SessionState
from agentest.agents.error_hints import ADK_PLACE
from agentest.agents.http_sender import HttpSender, read_body
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, Resources, TurnContext
from agentest.config.agents.adk import AdkAgent
from agentest.domain.messages import Message, Session, UserText, last_user_message
from agentest.support.errors import CannotSend
from agentest.support.http.client import DirectResponse, Sender

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
        place = self._place(ctx)
        values = TurnValues(messages, ctx)
        first_state = (
            await self._sessions.open(place, ctx.session, values) if ctx.turn_index == 0 else SessionState()
        )
        answer = await self._sender.post(
            self._run_url,
            self._request(place, last_user_message(messages)),
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
        current_state = await self._sessions.read(place, values)
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

    def _request(self, place: SessionKey, message: UserText) -> dict[str, Any]:
        return {
            "app_name": place.app_name,
            "user_id": place.user_id,
            "session_id": place.session_id,
            "new_message": user_content(message),
            "streaming": self._streaming,
        }

    def _read(self, response: DirectResponse) -> Awaitable[list[Any]]:
        return read_body(response, self._streaming, read_event_list, read_event_stream)
