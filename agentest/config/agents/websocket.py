"""Settings of agents behind a WebSocket."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from agentest.config.agents.base import DialogueAgent
from agentest.config.agents.over_http import HttpAgent
from agentest.config.fields import PathText, check_url, example_url, normal_address
from agentest.support.templates import Template, check_names

_SCHEMES = {"ws": "http", "wss": "https"}
_TOOL_PLACEHOLDERS = ("tool",)


class WebSocketAgent(HttpAgent, DialogueAgent):
    """An agent that exchanges messages over a WebSocket, with one connection per conversation."""

    templated: ClassVar[tuple[str, ...]] = ("endpoint", "headers", "body")

    type: Literal["websocket"]
    body: Any = Field(default="{{message}}", validate_default=True)
    """The message for each user message, with placeholders: text as it is, other values as JSON."""
    subprotocols: list[str] = Field(default_factory=list)
    welcome: PathText | None = None
    """Path that is true for the server's first message, which Agentest waits for before it sends."""
    session: PathText | None = None
    """Path of the server's session id in a message. None: Agentest creates the id."""

    @property
    def ways_to_see(self) -> tuple[str, ...]:
        return ("name where its messages tell of them (`tool_calls`, a JMESPath to {name, args, result})",)

    @field_validator("endpoint")
    @classmethod
    def _http_url(cls, value: str, info: ValidationInfo) -> str:
        if not value:
            return super()._http_url(value, info)
        scheme, _, rest = value.partition("://")
        if scheme not in _SCHEMES:
            raise ValueError(f"must start with ws:// or wss://, but is {value!r}; http:// is for other types")
        check_url(example_url(f"{_SCHEMES[scheme]}://{rest}").replace(" ", ""))
        return normal_address(value)

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        if self.app is not None:
            raise ValueError("`app` is for agents over plain HTTP; start this one by `server`")
        if (self.tool_request is None) != (self.tool_response is None):
            raise ValueError("`tool_request` and `tool_response` go together: what asks, and what answers")
        if self.delta is not None and self.done is None and self.reply is None:
            raise ValueError("`delta` needs `done`: which message is a turn's last, like type == 'end'")
        if not Template([self.body, self.endpoint]).names & {"message", "messages"}:
            raise ValueError('the agent would never hear the user: put "{{message}}" into `body`')
        try:
            check_names(self.tool_response, (), _TOOL_PLACEHOLDERS)
        except ValueError as error:
            raise ValueError(f"`tool_response` {error}") from None
        return self
