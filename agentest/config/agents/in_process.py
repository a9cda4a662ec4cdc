"""Settings of agents that run in this process: written in Python, or run by google-adk's own runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentest.config.agents.base import AnyAgent, check_runs_its_tools
from agentest.config.fields import AgentObject
from agentest.config.frameworks import accepted_handlers, advice_for_handler, framework_of
from agentest.domain.tool_visibility import ToolVisibility


class CustomAgent(AnyAgent):
    """An agent in Python: a handler function, or an agent object of a framework."""

    tells_addresses: ClassVar[bool] = True  # through ctx
    can_report: ClassVar[bool] = True  # through ctx.record_tool
    state_refusal: ClassVar[str | None] = None

    type: Literal["custom"]
    handler: Callable[..., Any] | str | AgentObject
    """An async or sync function `(messages, ctx) -> message | str`, an agent object of a framework
    (`config.frameworks`), or the import path of either, `pkg.module:name`."""
    context: Callable[..., Any] | str | None = None
    """For an agent object: a function that creates the context of each conversation (`deps` of pydantic-ai,
    `context` of others), or its import path. It may take the scenario's session."""

    @field_validator("handler", mode="before")
    @classmethod
    def _function_or_object(cls, value: Any) -> Any:
        if isinstance(value, str | AgentObject):
            return value
        if framework_of(value) is not None:
            return AgentObject(value)
        check_handler(value)
        return value

    @property
    def reports_own_calls(self) -> bool:
        return isinstance(self.handler, AgentObject)  # all calls of an agent object go through the gate

    @property
    def address(self) -> str:
        return str(self.handler) if isinstance(self.handler, AgentObject | str) else "python handler"


def check_handler(value: Any) -> None:
    """Raise ValueError for an invalid handler. The message lists the valid kinds."""
    advice = advice_for_handler(value)
    if callable(value) and advice is None:
        return
    shown_value = f"a {type(value).__name__}" if advice else repr(value)
    raise ValueError(f"found {shown_value:.200}; {advice or f'expected {accepted_handlers()}'}")


class AdkModuleAgent(AnyAgent):
    """A Google ADK agent that google-adk's own runner executes in this process."""

    natural_visibility: ClassVar[ToolVisibility] = ToolVisibility.REPORTED
    state_refusal: ClassVar[str | None] = None

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

    @field_validator("module", mode="before")
    @classmethod
    def _module_or_agent(cls, value: Any) -> Any:
        if isinstance(value, AgentObject) or (isinstance(value, str) and value.strip()):
            return value
        if is_adk_object(value):
            return AgentObject(value)
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
