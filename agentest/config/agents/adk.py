"""Settings of Google ADK agents, behind ADK's server or in this process."""

from __future__ import annotations

from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from agentest.config.agents.base import AnyAgent
from agentest.config.agents.over_http import HttpAgent
from agentest.config.fields import AgentObject
from agentest.domain.tool_visibility import ToolVisibility


class AdkAgent(HttpAgent):
    """A Google ADK agent behind its own server (`adk api_server`)."""

    type: Literal["adk"]
    app_name: str | None = Field(default=None, min_length=1)
    """None: the app of the case's session."""
    user_id: str | None = Field(default=None, min_length=1)
    """None: the user of the case's session, else `agentest`."""

    @property
    def natural_visibility(self) -> ToolVisibility:
        return ToolVisibility.REPORTED

    @property
    def state_refusal(self) -> str | None:
        return None

    @property
    def ways_to_mock(self) -> tuple[str, ...]:
        return (
            "have ADK's server ask the mocks: mcp_mock: true, and in its command --extra_plugins "
            "agentest_adk.MockTools",
        )

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


class AdkModuleAgent(AnyAgent):
    """A Google ADK agent that google-adk's own runner executes in this process."""

    type: Literal["adk_module"]
    module: str | AgentObject
    """The module with the agent (`my_agent`), its folder (`agents/my_agent`), or, in Python, the agent or
    App."""
    agent_name: str | None = Field(default=None, min_length=1)
    """The name of a sub-agent to run. None: the root agent."""
    app_name: str | None = Field(default=None, min_length=1)
    """None: the app of the case's session, else the module's name."""
    user_id: str | None = Field(default=None, min_length=1)
    """None: the user of the case's session, else `agentest`."""

    @property
    def address(self) -> str:
        return f"google-adk agent {self.module}"

    @property
    def natural_visibility(self) -> ToolVisibility:
        return ToolVisibility.REPORTED

    @property
    def state_refusal(self) -> str | None:
        return None

    @field_validator("module", mode="before")
    @classmethod
    def _module_or_agent(cls, value: Any) -> Any:
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, AgentObject) or is_adk_object(value):
            return value if isinstance(value, AgentObject) else AgentObject(value)
        raise ValueError(
            "names the module or the folder with the google-adk agent, like `my_agent` or `agents/my_agent`"
        )

    @field_validator("tool_visibility")
    @classmethod
    def _runs_its_tools_itself(cls, value: ToolVisibility | None) -> ToolVisibility | None:
        return check_runs_its_tools(value, "a google-adk agent")

    @model_validator(mode="after")
    def _has_no_server(self) -> Self:
        if self.server is not None:
            raise ValueError("`server` is for agents behind an address: this one runs in this process")
        return self


def is_adk_object(value: Any) -> bool:
    """Return True for a google-adk agent or App, recognized by its class without importing google-adk."""
    return any(kind.__module__.startswith("google.adk.") for kind in type(value).__mro__) and (
        hasattr(value, "run_async") or hasattr(value, "root_agent")
    )


def check_runs_its_tools(value: ToolVisibility | None, who: str) -> ToolVisibility | None:
    """Raise ValueError for `returned`, because ADK agents run their tools themselves."""
    if value is ToolVisibility.RETURNED:
        raise ValueError(
            f"{who} runs its tools itself and hands no call to the caller; write `reported` (the default) or "
            "`unseen`"
        )
    return value
