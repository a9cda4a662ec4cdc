"""Settings of agents that speak Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from agentest.agents.error_hints import ProbeResponse
from agentest.agents.protocol_probe import ProtocolProbe, detect_type
from agentest.config.agents.over_http import HttpAgent
from agentest.config.agents.tools import text_of


class AnthropicMessagesAgent(HttpAgent):
    """An agent that speaks Anthropic's Messages API over HTTP."""

    default_path: ClassVar[str] = "/v1/messages"
    has_own_tools: ClassVar[bool] = False
    declares_tools: ClassVar[bool] = True
    can_report: ClassVar[bool] = True  # tools that the model's provider runs

    type: Literal["anthropic_messages"]
    body: dict[str, Any] = Field(default_factory=dict)

    @property
    def sent_instructions(self) -> str:
        return text_of(self.body.get("system"))

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


class AnthropicMessagesProbe(ProtocolProbe):
    """Finds a Messages endpoint by its answer or error for a message, here or at the usual path."""

    usual_paths = ("/v1/messages",)
    path_end = "/v1/messages"
    required = frozenset({"maxtokens", "messages"})
    names_model = True

    def is_spoken(self, response: ProbeResponse) -> bool:
        match response.first_object:
            case {"type": "error", "error": {"type": _}} | {"type": "message_start"}:
                return True
            case {"type": "message", "content": [*_]}:
                return True
        return False

    def first_body(self, messages: list[dict[str, Any]], model: Mapping[str, str]) -> dict[str, Any]:
        return {**model, "max_tokens": 1024, "messages": messages}

    def evidence(self, response: ProbeResponse) -> str | None:
        match response.json:
            case {"type": "error", "error": {"type": str(), "message": _}}:
                return "its errors have the form of Anthropic's"
        is_one = response.is_success and detect_type(response) == self.kind
        return "it answers with a message in the form of Anthropic's" if is_one else None
