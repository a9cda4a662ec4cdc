"""Settings of agents that speak OpenAI's Realtime API."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from agentest.agents.protocol_probe import (
    DetectedProtocol,
    EndpointProbe,
    ProtocolProbe,
)
from agentest.config.agents.over_http import HttpAgent
from agentest.config.agents.tools import AgentTool, text_of, tools_in
from agentest.plugins.protocols.dialogue import opening_message, socket_address


class RealtimeAgent(HttpAgent):
    """An agent that speaks OpenAI's Realtime API over a WebSocket, in text."""

    templated: ClassVar[tuple[str, ...]] = ("endpoint", "headers", "body")
    can_report: ClassVar[bool] = True  # MCP tools that the server runs

    type: Literal["realtime"]
    body: dict[str, Any] = Field(default_factory=dict)
    """The session that is requested: `instructions`, `tools`, `output_modalities`, …"""
    subprotocols: list[str] = Field(default_factory=list)

    @property
    def sent_instructions(self) -> str:
        return text_of(self.body.get("instructions"))

    @property
    def sent_tools(self) -> tuple[AgentTool, ...]:
        return tools_in(self.body)

    @field_validator("endpoint")
    @classmethod
    def _http_url(cls, value: str, info: ValidationInfo) -> str:
        return socket_address(value) if value else super()._http_url(value, info)

    @model_validator(mode="after")
    def _has_a_server(self) -> Self:
        if self.app is not None:
            raise ValueError("`app` is for agents over plain HTTP; start this one by `server`")
        return self


class RealtimeProbe(ProtocolProbe):
    """Finds an endpoint by the first message that its WebSocket sends."""

    order = 5
    can_be_tried = False

    async def find(self, endpoint: EndpointProbe) -> DetectedProtocol | None:
        if '"session.created"' not in (await opening_message(endpoint) or ""):
            return None
        return DetectedProtocol(
            settings={"type": self.kind, "endpoint": re.sub("^http", "ws", endpoint.url)},
            because="its first message is `session.created` of OpenAI's Realtime API",
        )
