"""Settings of agents that speak OpenAI's Realtime API."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from pydantic import Field

from agentest.agents.protocol_probe import DetectedProtocol, EndpointProbe, ProtocolProbe
from agentest.config.agents.tools import text_of
from agentest.plugins.protocols.sockets import SocketAgent, opening_message


class RealtimeAgent(SocketAgent):
    """An agent that speaks OpenAI's Realtime API over a WebSocket, in text."""

    can_report: ClassVar[bool] = True  # MCP tools that the server runs
    declares_tools: ClassVar[bool] = True

    type: Literal["realtime"]
    body: dict[str, Any] = Field(default_factory=dict)
    """The session that is requested: `instructions`, `tools`, `output_modalities`, …"""

    @property
    def sent_instructions(self) -> str:
        return text_of(self.body.get("instructions"))


class RealtimeProbe(ProtocolProbe):
    """Finds an endpoint by the first message that its WebSocket sends."""

    order = 5
    forms = ()

    async def find(self, endpoint: EndpointProbe) -> DetectedProtocol | None:
        if '"session.created"' not in (await opening_message(endpoint) or ""):
            return None
        because = "its first message is `session.created` of OpenAI's Realtime API"
        return self.found(re.sub("^http", "ws", endpoint.url), because)
