"""Settings of backends of the Vercel AI SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from agentest.config.agents.base import Approvals
from agentest.config.agents.over_http import HttpAgent

CHAT_PATH = "/api/chat"


class AiSdkAgent(HttpAgent):
    """A backend for `useChat`: the Vercel AI SDK itself, or a server that speaks its protocol."""

    default_path: ClassVar[str] = CHAT_PATH
    reports_own_calls: ClassVar[bool] = True
    state_place: ClassVar[str] = "place it in the agent's `body` or `headers`, like {{state.user_id}}"
    reserved: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("id", "messages", "trigger", "messageId"), "is written by Agentest for every request; take it out"
    )

    type: Literal["ai_sdk"]
    body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request, in addition to `id`, `messages` and `trigger`."""
    version: Literal[4, 5, 6, 7] | None = None
    """The AI SDK's version. Version 4 has another message form. None: 5 to 7, or 4 once the agent responds
    so."""
    approvals: Approvals = "ask"
