"""Settings of google-adk agents that google-adk's own runner executes in this process."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentest.config.agents.base import AnyAgent
from agentest.config.fields import AgentObject
from agentest.domain.tool_visibility import ToolVisibility
from agentest.support.files import read_user_bytes

_SPEAKS_OF_AGENT = re.compile(rb"\b(root_agent|get_agent_async)\b")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


class AdkModuleAgent(AnyAgent):
    """A Google ADK agent that google-adk's own runner executes in this process."""

    natural_visibility: ClassVar[ToolVisibility] = ToolVisibility.REPORTED
    state_refusal: ClassVar[str | None] = None

    type: Literal["adk_module"] = "adk_module"
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


def agent_folder(word: str) -> Path | None:
    """Return the folder of the google-adk agent at a path or dotted name; None if there is no such agent."""
    folder = Path(*word.split(".")) if _DOTTED.fullmatch(word) else Path(word)
    for file in (folder / "agent.py", folder / "__init__.py"):
        with suppress(OSError, ValueError):  # ValueError: the path contains a null character
            if _SPEAKS_OF_AGENT.search(read_user_bytes(file)):
                return folder
    return None


def agent_section(value: Any) -> dict[str, Any]:
    """Return the `agent` section for an agent or App alone; other nodes are run as agent objects."""
    return (
        {"type": "adk_module", "module": value}
        if is_adk_object(value)
        else {"type": "custom", "handler": value}
    )
