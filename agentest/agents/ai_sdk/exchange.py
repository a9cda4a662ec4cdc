"""Sending messages to a backend of the AI SDK, and reading its answer into the message that goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.agents.ai_sdk.reading import read_stream
from agentest.agents.ai_sdk.streams import PLACE, Told
from agentest.agents.http_sender import HttpAnswer, HttpSender
from agentest.agents.ignored import Ignored
from agentest.agents.own_tools import OwnTools
from agentest.agents.port import Resources
from agentest.config.agents.ai_sdk import AiSdkAgent
from agentest.support.http.client import DirectResponse
from agentest.support.templates import Template, Values

TEXT_TELLS_NOTHING = (
    "it answered with a text stream, which tells of none. To see them, have it answer with a UI message "
    "stream (toUIMessageStreamResponse). Otherwise leave out what judges calls"
)
_ACCEPT = {"accept": "text/event-stream, text/plain, application/json"}


_HANDED_OVER = "take `execute` from the tool, so that the backend hands its calls to the client"


class Exchange:
    """Talks to one backend. Keeps nothing of any conversation."""

    def __init__(self, config: AiSdkAgent, resources: Resources) -> None:
        self.name = config.name
        self.version = config.version
        self.approvals = config.approvals
        self.on_unknown = Ignored(config.name, resources).note
        self.own_tools = OwnTools(config.name, handed_over=_HANDED_OVER)
        self._endpoint = config.endpoint
        self._body = Template(config.body)
        self._sender = HttpSender(config, resources.client, resources.timeout_s, PLACE)

    async def send(self, payload: Mapping[str, Any], told: Told, values: Values) -> HttpAnswer[Told]:
        """Send, and read the answer into `told`. Raises NoReply."""

        async def read(response: DirectResponse) -> None:
            await read_stream(response, told, self.on_unknown)

        body = {**self._body.filled(values), **payload}
        answer = await self._sender.post(self._endpoint, body, read, values=values, headers=_ACCEPT)
        return HttpAnswer(told, answer.latency_ms, answer.retries, answer.first_token_ms)
