"""Conversations that the server keeps: under an id of ours, or one that it has made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from agentest.agents.answers import read_body
from agentest.agents.http_sender import HttpSender
from agentest.agents.port import NoReply, TurnContext
from agentest.agents.reading import read_object, shown
from agentest.agents.responses.exchange import Refused
from agentest.agents.responses.response import RESPONSES_PLACE, Response
from agentest.config.agents.responses import ResponsesAgent
from agentest.support.http.client import DirectResponse
from agentest.support.templates import Template, Values


class Conversations:
    """Begins conversations. It learns how the server has it, and knows nothing of any of them."""

    def __init__(self, config: ResponsesAgent, sender: HttpSender, on_note: Callable[[str], None]) -> None:
        self._agent = config.name
        self._named = Template(config.body.get("conversation"))
        self._is_named = "conversation" in config.body
        self._place = _beside(config.endpoint)
        self._sender = sender
        self._on_note = on_note
        self._makes_its_own = False
        self._noted = False

    async def begun(self, values: Values, ctx: TurnContext) -> Any:
        """What a new conversation is called. Raises NoReply, CannotSend."""
        if self._is_named:
            return self._named.filled(values)
        return await self.made(values) if self._makes_its_own else ctx.session_id

    def may_make_one(self, refused: Refused) -> bool:
        """Whether the server seems to want a conversation that it has made itself."""
        return refused.is_about("conversation") and self._place is not None and not self._is_named

    async def made(self, values: Values) -> str:
        """A conversation made by the server. Raises NoReply."""
        assert self._place is not None  # may_make_one has said so
        made = (await self._sender.post(self._place, {}, _read, values=values)).value
        if not isinstance(made.get("id"), str) or not made["id"]:
            raise NoReply(f"{self._place} answered no conversation with an `id`, but: {shown(made)}")
        self._makes_its_own = True
        return str(made["id"])

    def look_for_one(self, response: Response) -> None:
        """Note, once, that a server's responses name no conversation: it may not know what that is."""
        if response.get("conversation") or self._noted:
            return
        self._noted = True
        self._on_note(
            f"agent {self._agent!r}: its responses name no `conversation`, so it may have forgotten what was "
            "said before; if it does, write history: input"
        )


def _beside(endpoint: str) -> str | None:
    """Where conversations are made: `…/conversations` beside `…/responses`; None beside other paths."""
    parts = urlsplit(endpoint)
    path = parts.path.rstrip("/")
    if not path.endswith("/responses"):
        return None
    return parts._replace(path=f"{path.removesuffix('responses')}conversations").geturl()


async def _read(response: DirectResponse) -> Mapping[str, Any]:
    return await read_body(response, False, lambda body: read_object(body, RESPONSES_PLACE), _no_stream)


async def _no_stream(_: Any) -> Mapping[str, Any]:
    raise NoReply("the agent answered with a stream where a conversation was to be made")
