"""Settings of agents behind an agent server: Google ADK's, LangGraph's, or one that speaks A2A."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from agentest.config.agents.base import Approvals, check_runs_its_tools
from agentest.config.agents.over_http import HttpAgent
from agentest.config.fields import PathText
from agentest.domain.tool_visibility import ToolVisibility


class AdkAgent(HttpAgent):
    """A Google ADK agent behind its own server (`adk api_server`)."""

    natural_visibility: ClassVar[ToolVisibility] = ToolVisibility.REPORTED
    state_refusal: ClassVar[str | None] = None
    ways_to_mock: ClassVar[tuple[str, ...]] = (
        "have ADK's server ask the mocks: mcp_mock: true, and in its command --extra_plugins "
        "agentest_adk.MockTools",
    )

    type: Literal["adk"]
    app_name: str | None = Field(default=None, min_length=1)
    """None: the app of the case's session."""
    user_id: str | None = Field(default=None, min_length=1)
    """None: the user of the case's session, else `agentest`."""

    @field_validator("app_name", "user_id")
    @classmethod
    def _part_of_an_address(cls, value: str | None) -> str | None:
        if value in (".", ".."):
            raise ValueError("becomes a part of an address, where . and .. stand for other parts")
        return value

    @field_validator("endpoint")
    @classmethod
    def _root_of_the_server(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.query or parts.fragment or parts.path.rstrip("/").endswith(("/run", "/run_sse")):
            raise ValueError("is the address of the ADK server alone, like http://localhost:8000")
        return value

    @model_validator(mode="after")
    def _runs_its_tools_itself(self) -> Self:
        if not self.in_process:
            check_runs_its_tools(self.tool_visibility, "tool_visibility: an agent behind ADK's server")
        return self


class LangGraphAgent(HttpAgent):
    """A graph behind a LangGraph server: `langgraph dev`, `langgraph up`, or a LangSmith deployment."""

    can_report: ClassVar[bool] = True  # responses show whether the graph has messages
    ways_to_see: ClassVar[tuple[str, ...]] = (
        "keep the messages of the graph in its state, under `messages`",
    )
    state_refusal: ClassVar[str | None] = None
    reserved: ClassVar[Mapping[str, str]] = {
        "assistant_id": "is set by Agentest: write `assistant_id` beside `body`",
        "stream_mode": "is set by Agentest: write `streaming: true` beside `body`",
        "if_not_exists": "is set by Agentest: threads are always made where they are missing",
    }

    type: Literal["langgraph"]
    assistant_id: str | None = Field(default=None, min_length=1)
    """The graph's name or an assistant's UUID. None: the server's only assistant."""
    body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every run: `config`, `context`, `metadata`, `input`, `command` for interrupts."""
    reply: PathText | None = None
    """JMESPath of the reply in the graph's final state. None: its last message."""
    approvals: Approvals = "ask"

    @property
    def natural_visibility(self) -> ToolVisibility:
        """How calls become visible. A graph whose reply is not a message may not have messages with calls."""
        return ToolVisibility.REPORTED if self.reply is None else ToolVisibility.UNSEEN

    @field_validator("endpoint")
    @classmethod
    def _root_of_the_server(cls, value: str) -> str:
        parts = urlsplit(value)
        last = parts.path.rstrip("/").rpartition("/")[2]
        routes = ("threads", "runs", "wait", "stream", "assistants", "docs")
        if parts.query or parts.fragment or last in routes:
            raise ValueError("is the address of the LangGraph server alone, like http://localhost:2024")
        return value

    @field_validator("tool_visibility")
    @classmethod
    def _runs_its_tools_itself(cls, value: ToolVisibility | None) -> ToolVisibility | None:
        return check_runs_its_tools(value, "an agent behind a LangGraph server")

    @field_validator("body")
    @classmethod
    def _shapes_of_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "input" in value and not isinstance(value["input"], Mapping):
            raise ValueError(f"`input` must be an object, found {value['input']!r:.100}")
        command = value.get("command", {"resume": None})
        if not isinstance(command, Mapping) or "resume" not in command:
            raise ValueError(
                '`command` is how interrupts are answered: {"resume": …}, with {{message}} in it'
            )
        return value


def _version_as_text(value: Any) -> Any:
    """Convert a version to text, because YAML reads `1.0` as a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{float(value):.1f}" if is_number else value


class A2aAgent(HttpAgent):
    """An agent that speaks A2A (Agent2Agent), version 1.0 or 0.3."""

    natural_visibility: ClassVar[ToolVisibility] = ToolVisibility.UNSEEN
    can_report: ClassVar[bool] = True  # ADK and LangGraph do over A2A
    ways_to_see: ClassVar[tuple[str, ...]] = (
        "set tool_visibility: reported, if its server reports all calls (google-adk and LangGraph do over "
        "A2A, and are known by their answers without it)",
    )
    state_place: ClassVar[str] = (
        'write it where the agent looks for it, like body: {metadata: {customer: "{{state.customer}}"}}'
    )

    type: Literal["a2a"]
    protocol_version: Annotated[Literal["1.0", "0.3"] | None, BeforeValidator(_version_as_text)] = None
    """None: the newest version that its card names or that it accepts."""
    body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every message: `metadata`, `configuration`, `tenant`, `message`."""

    @model_validator(mode="after")
    def _hands_calls_to_somebody(self) -> Self:
        if self.tool_visibility is ToolVisibility.RETURNED and not self.in_process:
            raise ValueError(
                "tool_visibility: an A2A agent runs its tools itself and hands no call to the caller; write "
                "`reported` if its answers report all calls, or `unseen` (the default)"
            )
        return self

    @model_validator(mode="after")
    def _body_leaves_room(self) -> Self:
        for key in ("message", "configuration", "metadata"):
            if not isinstance(self.body.get(key, {}), Mapping):
                raise ValueError(f"`body.{key}` is not an object; write the fields that it shall have")
        set_by_agentest = ("parts", "role", "messageId", "taskId")
        if reserved := [name for name in set_by_agentest if name in self.body.get("message", {})]:
            raise ValueError(
                f"`body.message.{reserved[0]}` is what each message of the user has of its own; "
                "leave it out, other fields (metadata, extensions, contextId) are sent with every message"
            )
        if "historyLength" in self.body.get("configuration", {}):
            raise ValueError(
                "`body.configuration.historyLength` would cut off the calls that the agent reports; leave "
                "it out"
            )
        return self
