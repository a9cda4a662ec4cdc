"""Settings of agents behind AG-UI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from agentest.agents.error_hints import ProbeResponse
from agentest.agents.protocol_probe import ProtocolProbe, detect_type
from agentest.config.agents.over_http import HttpAgent
from agentest.plugins.protocols.approvals import Approvals

_SHAPES: dict[str, tuple[type, str]] = {
    "messages": (list, "a list of messages, put before the conversation"),
    "context": (list, "a list of {description, value}"),
    "state": (Mapping, "an object, with which the session begins"),
    "forwardedProps": (Mapping, "an object"),
}


class AgUiAgent(HttpAgent):
    """An agent behind AG-UI: pydantic-ai, LangGraph, ADK, CrewAI, Mastra and others, as for CopilotKit."""

    shows_own_calls: ClassVar[bool] = True
    tools_on_either_side: ClassVar[bool] = True
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


class AgUiProbe(ProtocolProbe):
    """Finds an AG-UI endpoint by its answer or error for a message, or by the OpenAPI document."""

    usual_paths = ("/ag-ui",)
    path_end = "/ag-ui"
    required = frozenset({"threadid", "runid"})

    def is_spoken(self, response: ProbeResponse) -> bool:
        return response.first_object.get("type") in ("RUN_STARTED", "RUN_ERROR")

    def is_listed(self, path: str, operation: Mapping[str, Any]) -> bool:
        takes_runs = "#/components/schemas/RunAgentInput" in str(operation.get("requestBody"))
        return takes_runs or super().is_listed(path, operation)

    def first_body(self, messages: list[dict[str, Any]], _: Mapping[str, str]) -> dict[str, Any]:
        run = {"threadId": "agentest-1", "runId": "agentest-2", "state": {}, "tools": [], "context": []}
        return {**run, "messages": [{"id": "agentest-3", **messages[0]}], "forwardedProps": {}}

    def evidence(self, response: ProbeResponse) -> str | None:
        if detect_type(response) == self.kind:
            return "it speaks in AG-UI's events and fields"
        lacks_both = b"threadId" in response.body and b"runId" in response.body
        is_one = response.status in (400, 422, 500) and lacks_both
        return "it asks for the `threadId` and `runId` of an AG-UI run" if is_one else None
