"""Settings of agents that speak Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from agentest.config.agents.over_http import HttpAgent
from agentest.config.agents.tools import AgentTool, text_of, tools_in


class AnthropicMessagesAgent(HttpAgent):
    """An agent that speaks Anthropic's Messages API over HTTP."""

    default_path: ClassVar[str] = "/v1/messages"
    can_report: ClassVar[bool] = True  # tools that the model's provider runs

    type: Literal["anthropic_messages"]
    body: dict[str, Any] = Field(default_factory=dict)

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
        if not isinstance(messages, list) or not all(
            isinstance(each, Mapping)
            and each.get("role") in ("user", "assistant")
            and isinstance(each.get("content"), str | list)
            for each in messages
        ):
            raise ValueError(
                "`messages` is put before the conversation and must be a list of {role: user | assistant, "
                "content}; what the system says goes into body.system"
            )
        return value
