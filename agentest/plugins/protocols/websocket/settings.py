"""Settings of agents behind a WebSocket."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from agentest.agents.error_hints import ProbeResponse
from agentest.agents.protocol_probe import DetectedProtocol, EndpointProbe, ProtocolProbe
from agentest.config.agents.base import FAMILIES
from agentest.config.agents.companion_servers import check_placeholders
from agentest.config.agents.http_requests import (
    Conditional,
    check_saved_names,
    names_in,
    request_secrets,
    required_in,
)
from agentest.config.fields import PathTemplateText, PathText
from agentest.plugins.protocols.dialogue import DialogueAgent
from agentest.plugins.protocols.sockets import SocketAgent, opening_message


class SocketMessage(Conditional):
    """A message to an agent behind a WebSocket, and the one to wait for before the next is sent."""

    send: Any
    """The message, with placeholders: text as it is, other values as JSON."""
    wait: PathTemplateText | None = None
    """Path that is true for the message that has to arrive before the next one is sent."""

    @model_validator(mode="before")
    @classmethod
    def _message_alone(cls, value: Any) -> Any:
        return value if isinstance(value, cls | Mapping) and "send" in dict(value) else {"send": value}


_MESSAGES = ("hello", "first", "then")


class WebSocketAgent(SocketAgent, DialogueAgent):
    """An agent that exchanges messages over a WebSocket, with one connection per conversation."""

    ways_to_see: ClassVar[tuple[str, ...]] = (
        "set where its messages report them (`tool_calls`, a JMESPath to {name, args, result})",
    )

    type: Literal["websocket"]
    body: Any = Field(default="{{message}}", validate_default=True)
    """The message for each user message, with placeholders: text as it is, other values as JSON."""
    welcome: PathText | None = None
    """Path that is true for the server's first message, which Agentest waits for before it sends."""
    hello: list[SocketMessage] = Field(default_factory=list)
    """Messages to send when the connection has opened."""
    first: list[SocketMessage] = Field(default_factory=list)
    """The messages for the first user message. Empty: as for every user message."""
    then: list[SocketMessage] = Field(default_factory=list)
    """The messages for each user message, or with `first` for later ones. Empty: `body`."""
    after_tools: Any = None
    """A message to send once after the results of all requested tools."""
    session: PathText | None = None
    """Path of the server's session id in a message. None: Agentest creates the id."""
    save: Annotated[dict[str, PathText], AfterValidator(check_saved_names)] = Field(default_factory=dict)
    """Placeholder → path of its value in any message. The latest one counts."""
    ping: PathText | None = None
    """Path that is true for a message that only checks the connection."""
    pong: Any = None
    """The answer to it, with placeholders for its values: `{{ping.id}}`."""

    @property
    def saved_names(self) -> tuple[str, ...]:
        return tuple(self.save)

    @property
    def messages(self) -> Iterator[tuple[str, SocketMessage]]:
        """The messages in lists, and their places."""
        for key in _MESSAGES:
            yield from ((f"{key}[{index}]", message) for index, message in enumerate(getattr(self, key)))

    @property
    def sent_placeholders(self) -> frozenset[str]:
        return super().sent_placeholders | names_in([message.send for _, message in self.messages])

    @property
    def secrets(self) -> list[str]:
        sent = [message.send for _, message in self.messages]
        return [*request_secrets("", {}, {}, sent), *super().secrets]

    @field_validator(*_MESSAGES, mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return value if value is None or isinstance(value, list) else [value]

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        self._check_dialogue()
        if (self.ping is None) != (self.pong is None):
            raise ValueError("`ping` and `pong` belong together: set both or neither")
        if self.after_tools is not None and self.tool_request is None:
            raise ValueError("`after_tools` follows the results of `tool_request`: set both, or leave it out")
        check_placeholders("pong", self.pong, (), ("ping",))
        if self.session and "session_id" in self.save:
            raise ValueError("`session` and a saved `session_id` exclude each other; keep one of them")
        of_user = {"message", "messages"}
        if self.then and "body" in self.model_fields_set:
            raise ValueError("`body` is never sent, because `then` has the messages: move it into that list")
        lists = {key: [message.send for message in getattr(self, key)] for key in ("first", "then")}
        unheard = [key for key, sent in lists.items() if sent and not names_in(sent) & of_user]
        if not self.then and not names_in(self.body) & of_user:
            unheard.append("body")
        if unheard and not names_in(self.endpoint) & of_user:
            raise ValueError(
                f'the request does not contain the user\'s message: put "{{{{message}}}}" into `{unheard[0]}`'
            )
        known = (*self.unsaved_placeholders, *self.saved_names)
        check_placeholders("after_tools", self.after_tools, known, FAMILIES)
        late = {*self.saved_names, *(["session_id"] if self.session else [])}
        has_waited = self.welcome is not None
        for place, message in self.messages:
            for key, value in (("send", message.send), ("wait", message.wait)):
                check_placeholders(f"{place}.{key}", value, known, FAMILIES)
            message.check_condition(place, known)
            is_later = self.first and place.startswith("then")
            unsaved = required_in(message.send) & late - message.condition_names
            if unsaved and not has_waited and not is_later:
                raise ValueError(
                    f"`{place}` sends {{{{{min(unsaved)}}}}} before any message can have saved it: set "
                    "`welcome`, or `wait` of a message before it"
                )
            has_waited = has_waited or message.wait is not None
        return self


_KINDS: tuple[dict[str, str], ...] = ({}, {"type": "message"})
_FIELDS = ("message", "text", "content")


class WebSocketProbe(ProtocolProbe):
    """Finds a WebSocket by opening and closing it. Messages show which form they take."""

    order = 6
    has_own_form = True
    forms = ({}, *({"body": {**kind, key: "{{message}}"}} for kind in _KINDS for key in _FIELDS))

    def is_spoken(self, response: ProbeResponse) -> bool:
        return response.status == 426 or b'"Upgrade" only to "WebSocket"' in response.body

    async def find(self, endpoint: EndpointProbe) -> DetectedProtocol | None:
        if (greeting := await opening_message(endpoint)) is None:
            return None
        welcome = {"welcome": "@"} if greeting else {}
        return self.found(re.sub("^http", "ws", endpoint.url), "a WebSocket opens there", **welcome)
