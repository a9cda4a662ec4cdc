"""Settings of agents behind AG-UI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from agentest.config.agents.base import Approvals
from agentest.config.agents.over_http import HttpAgent

_SHAPES: dict[str, tuple[type, str]] = {
    "messages": (list, "a list of messages, put before the conversation"),
    "context": (list, "a list of {description, value}"),
    "state": (Mapping, "an object, with which the session begins"),
    "forwardedProps": (Mapping, "an object"),
}


class AgUiAgent(HttpAgent):
    """An agent behind AG-UI: pydantic-ai, LangGraph, ADK, CrewAI, Mastra and others, as for CopilotKit."""

    reports_own_calls: ClassVar[bool] = True
    state_refusal: ClassVar[str | None] = None
    reserved: ClassVar[Mapping[str, str]] = {
        "threadId": "is set by Agentest: it is the session's id: a scenario's `session` can name it",
        "runId": "is set by Agentest: it is new for every run",
        "tools": "is set by Agentest: they are the scenario's mocks, of which `client_tools` names those to "
        "declare",
        "resume": "is set by Agentest: `approvals` says how questions of the agent are answered",
    }

    type: Literal["ag_ui"]
    body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every run: `context`, `forwardedProps`, `state`, and earlier `messages`."""
    streaming: bool = True
    client_tools: tuple[str, ...] | None = None
    """Names of the tools to declare to the agent. None: the scenario's mocks, or no tools if mock servers
    or the model gateway answer for the agent's own."""
    approvals: Approvals = "ask"

    @field_validator("streaming")
    @classmethod
    def _always_streams(cls, value: bool) -> bool:
        if not value:
            raise ValueError("cannot be false: AG-UI is a stream of events; leave the key out")
        return value

    @field_validator("client_tools")
    @classmethod
    def _names_of_tools(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (not all(value) or len(set(value)) < len(value)):
            raise ValueError("names each tool once; an empty list declares none")
        return value

    @field_validator("body")
    @classmethod
    def _shapes_of_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key, (kind, words) in _SHAPES.items():
            if key in value and not isinstance(value[key], kind):
                raise ValueError(f"`{key}` must be {words}, found {value[key]!r:.100}")
        for message in value.get("messages", []):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise ValueError(f"`messages` must be messages with a `role`, found {message!r:.100}")
        return value
