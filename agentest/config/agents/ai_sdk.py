"""Settings of agents that speak the Vercel AI SDK's stream protocols."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from agentest.config.agents.base import WAYS_OF_STATE, Approvals
from agentest.config.agents.over_http import IN_PROCESS, HttpAgent
from agentest.support.templates import Template

CHAT_PATH = "/api/chat"
_RESERVED = ("id", "messages", "trigger", "messageId")


class AiSdkAgent(HttpAgent):
    """A backend for `useChat`: the Vercel AI SDK itself, or a server that speaks its protocol."""

    type: Literal["ai_sdk"]
    body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request, in addition to `id`, `messages` and `trigger`."""
    version: Literal[4, 5, 6, 7] | None = None
    """The AI SDK's version. Version 4 has another message form. None: 5 to 7, or 4 once the agent responds
    so."""
    approvals: Approvals = "ask"

    @property
    def reports_own_calls(self) -> bool:
        return True

    @property
    def default_endpoint(self) -> str:
        return f"{IN_PROCESS}{CHAT_PATH}"

    @property
    def state_refusal(self) -> str | None:
        if any(name.partition(".")[0] == "state" for name in Template([self.body, self.headers]).names):
            return None
        return f"place it in the agent's `body` or `headers`, like {{{{state.user_id}}}}, {WAYS_OF_STATE}"

    @field_validator("body")
    @classmethod
    def _leaves_our_keys(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in _RESERVED:
            if key in value:
                raise ValueError(f"`{key}` is written by Agentest for every request; take it out")
        return value
