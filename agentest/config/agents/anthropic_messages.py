"""Settings of agents that speak Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from agentest.config.agents.over_http import IN_PROCESS, HttpAgent
from agentest.config.agents.tools import AgentTool, text_of, tools_in


class AnthropicMessagesAgent(HttpAgent):
    """An agent that speaks Anthropic's Messages API over HTTP."""

    type: Literal["anthropic_messages"]
    body: dict[str, Any] = Field(default_factory=dict)

    @property
    def can_report(self) -> bool:
        return True  # tools that the model's provider runs

    @property
    def default_endpoint(self) -> str:
        return f"{IN_PROCESS}/v1/messages"

    @property
    def sent_instructions(self) -> str:
        return text_of(self.body.get("system"))

    @property
    def sent_tools(self) -> tuple[AgentTool, ...]:
        return tools_in(self.body)

    @field_validator("body")
    @classmethod
    def _messages_are_a_list(cls, value: dict[str, Any]) -> dict[str, Any]:
        messages = value.get("messages", [])
        if not isinstance(messages, list) or not all(_is_message(m) for m in messages):
            raise ValueError(
                "`messages` is put before the conversation and must be a list of {role: user | assistant, "
                "content}; what the system says goes into body.system"
            )
        return value


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and value.get("role") in ("user", "assistant")
        and isinstance(value.get("content"), str | list)
    )
