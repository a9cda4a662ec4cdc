"""Settings of backends of the Vercel AI SDK."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from agentest.agents.error_hints import ProbeResponse
from agentest.agents.protocol_probe import ProtocolProbe, detect_type
from agentest.config.agents.over_http import HttpAgent
from agentest.plugins.protocols.approvals import Approvals

CHAT_PATH = "/api/chat"


class AiSdkAgent(HttpAgent):
    """A backend for `useChat`: the Vercel AI SDK itself, or a server that speaks its protocol."""

    default_path: ClassVar[str] = CHAT_PATH
    shows_own_calls: ClassVar[bool] = True
    tools_on_either_side: ClassVar[bool] = True
    reports_own_calls: ClassVar[bool] = True
    state_place: ClassVar[str] = "place it in the agent's `body` or `headers`, like {{state.user_id}}"
    reserved: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("id", "messages", "trigger", "messageId"), "is written by Agentest for every request; take it out"
    )

    type: Literal["ai_sdk"]
    body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request, in addition to `id`, `messages` and `trigger`."""
    approvals: Approvals = "ask"


_STREAM_HEADER = "x-vercel-ai-ui-message-stream"
_WANTS_TRIGGER = b"Unable to extract tag using discriminator 'trigger'"
_NO_PARTS = re.compile(rb"Cannot read properties of undefined \(reading '(some|map|filter|parts)'\)")


class AiSdkProbe(ProtocolProbe):
    """Finds an AI SDK endpoint by its stream headers, or by pydantic-ai's error about a missing `trigger`."""

    usual_paths = (CHAT_PATH,)
    required = frozenset({"trigger"})

    def is_spoken(self, response: ProbeResponse) -> bool:
        is_event = response.first_object.get("type") in ("start", "text-start", "tool-input-start")
        return _STREAM_HEADER in response.headers or is_event or _WANTS_TRIGGER in response.body

    def evidence(self, response: ProbeResponse) -> str | None:
        is_stream = response.is_success and detect_type(response) == self.kind
        if is_stream or _STREAM_HEADER in response.headers:
            return "it answers with a UI message stream"
        wants_trigger = response.status == 422 and b"discriminator 'trigger'" in response.body
        return "it wants a `trigger`, as the AI SDK's client sends it" if wants_trigger else None

    def hint(self, response: ProbeResponse) -> str:
        if response.status < 500 or not _NO_PARTS.search(response.body):
            return ""
        return (
            "if this is a backend of Vercel's AI SDK, which misses the `parts` of messages: "
            f"`type: {self.kind}`"
        )
