"""Settings of agents that speak OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from agentest.config.agents.base import ways_of_state
from agentest.config.agents.over_http import IN_PROCESS, AsgiApp, HttpAgent
from agentest.config.agents.tools import system_text
from agentest.config.fields import check_url

CHAT_PATH = "/v1/chat/completions"


class ChatCompletionsAgent(HttpAgent):
    """An agent that speaks OpenAI's chat completions over HTTP."""

    has_own_tools: ClassVar[bool] = False
    declares_tools: ClassVar[bool] = True

    type: Literal["chat_completions"] = "chat_completions"
    body: dict[str, Any] = Field(default_factory=dict)
    path: str | None = None
    """The path of chat completions in an `app`, instead of an endpoint."""
    send_session_state: bool = False
    """Send the session state of a scenario or case as `metadata.session_state`."""

    @property
    def default_endpoint(self) -> str:
        return f"{IN_PROCESS}{self.path or CHAT_PATH}"

    @property
    def sent_instructions(self) -> str:
        return system_text(self.body.get("messages"))

    @property
    def state_refusal(self) -> str | None:
        if self.send_session_state:
            return None
        return (
            "set send_session_state: true in the agent's configuration (every request then has it as "
            f"metadata.session_state), {ways_of_state()}"
        )

    @field_validator("path")
    @classmethod
    def _absolute_path(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError(f"is {value!r}, and must begin with a slash, like {CHAT_PATH}")
        return value and urlsplit(check_url(f"{IN_PROCESS}{value}"))._replace(scheme="", netloc="").geturl()

    @model_validator(mode="after")
    def _path_or_endpoint(self) -> Self:
        if self.path is not None and (self.app is None or self.endpoint):
            raise ValueError("`path` goes with an `app` and without an `endpoint`, which has a path already")
        return self

    @field_validator("body")
    @classmethod
    def _messages_are_a_list(cls, value: dict[str, Any]) -> dict[str, Any]:
        messages = value.get("messages", [])
        if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
            raise ValueError("`messages` is put before the conversation and must be a list of messages")
        return value

    @model_validator(mode="after")
    def _state_has_a_place(self) -> Self:
        if self.send_session_state and not isinstance(self.body.get("metadata", {}), Mapping):
            raise ValueError("body.metadata must be an object: send_session_state puts session_state into it")
        return self


class AsgiAgent(ChatCompletionsAgent):
    """An ASGI application in this process that speaks OpenAI's chat completions."""

    type: Literal["asgi"]  # type: ignore[assignment]
    app: AsgiApp
