"""Settings of agents that speak the API of a model provider: Responses, Assistants, Realtime, Messages."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from agentest.config.agents.over_http import HttpAgent
from agentest.config.agents.tools import AgentTool, join_texts, system_text, text_of, tools_in
from agentest.config.fields import AtLeastOne
from agentest.plugins.protocols.settings.dialogue import socket_address


class History(StrEnum):
    """Where the history of a conversation is stored."""

    INPUT = "input"
    """Agentest sends the whole history with every request."""
    PREVIOUS_RESPONSE_ID = "previous_response_id"
    """The server stores it; requests name the previous response."""
    CONVERSATION = "conversation"
    """The server stores it; requests name the conversation."""


class ResponsesAgent(HttpAgent):
    """An agent that speaks OpenAI's Responses API over HTTP."""

    default_path: ClassVar[str] = "/v1/responses"
    reports_own_calls: ClassVar[bool] = True

    type: Literal["responses"]
    body: dict[str, Any] = Field(default_factory=dict)
    history: History = History.INPUT

    @property
    def sent_instructions(self) -> str:
        return join_texts([text_of(self.body.get("instructions")), system_text(self.body.get("input"))])

    @property
    def sent_tools(self) -> tuple[AgentTool, ...]:
        return tools_in(self.body)

    @field_validator("body")
    @classmethod
    def _input_is_a_list(cls, value: dict[str, Any]) -> dict[str, Any]:
        items = value.get("input", [])
        if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
            raise ValueError("`input` is put before the conversation and must be a list of items")
        return value

    @model_validator(mode="after")
    def _one_history(self) -> Self:
        if "conversation" in self.body and self.history is not History.CONVERSATION:
            raise ValueError(
                "body.conversation makes the server store the conversation, and history: "
                f"{self.history.value} would send it twice; write history: conversation"
            )
        return self


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


class AssistantsAgent(HttpAgent):
    """An agent that speaks OpenAI's Assistants API, as the threads of Azure AI Foundry do."""

    templated: ClassVar[tuple[str, ...]] = ("headers", "body")
    default_path: ClassVar[str] = "/v1"
    reserved: ClassVar[Mapping[str, str]] = {
        "assistant_id": "is a key of its own: write `assistant_id` next to `endpoint`",
        "stream": "is set by Agentest: write `streaming: true`",
    }
    can_report: ClassVar[bool] = True  # tools that the server runs

    type: Literal["assistants"]
    endpoint: Annotated[str, Field(validate_default=True)] = ""
    """The URL before `/threads`."""
    assistant_id: str = Field(min_length=1)
    api_version: str | None = None
    """Sent as `api-version`, which Azure requires."""
    body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each run, such as `instructions`."""
    poll_ms: AtLeastOne = 500
    """Pause between two requests for the state of a run, in milliseconds."""

    @property
    def sent_instructions(self) -> str:
        return join_texts(
            [text_of(self.body.get("instructions")), text_of(self.body.get("additional_instructions"))]
        )

    @property
    def sent_tools(self) -> tuple[AgentTool, ...]:
        return tools_in(self.body)


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
