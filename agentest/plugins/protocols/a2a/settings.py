"""Settings of agents that speak A2A."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from agentest.config.agents.over_http import HttpAgent
from agentest.domain.tool_visibility import ToolVisibility


def _version_as_text(value: Any) -> Any:
    """Convert a version to text, because YAML reads `1.0` as a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{float(value):.1f}" if is_number else value


class A2aAgent(HttpAgent):
    """An agent that speaks A2A (Agent2Agent), version 1.0 or 0.3."""

    natural_visibility: ClassVar[ToolVisibility] = ToolVisibility.UNSEEN
    tools_on_either_side: ClassVar[bool] = True
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
