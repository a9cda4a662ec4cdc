"""Settings of agents written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import field_validator

from agentest.config.agents.base import AnyAgent
from agentest.config.fields import AgentObject
from agentest.config.frameworks import accepted_handlers, advice_for_handler, framework_of


class CustomAgent(AnyAgent):
    """An agent in Python: a handler function, or an agent object of a framework."""

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
    def tells_addresses(self) -> bool:
        return True  # through ctx

    @property
    def can_report(self) -> bool:
        return True  # through ctx.record_tool

    @property
    def reports_own_calls(self) -> bool:
        return isinstance(self.handler, AgentObject)  # all calls of an agent object go through the gate

    @property
    def address(self) -> str:
        if isinstance(self.handler, AgentObject):
            return f"{self.handler}"
        return self.handler if isinstance(self.handler, str) else "python handler"

    @property
    def state_refusal(self) -> str | None:
        return None


def check_handler(value: Any) -> None:
    """Raise ValueError for an invalid handler. The message lists the valid kinds."""
    advice = advice_for_handler(value)
    if callable(value) and advice is None:
        return
    shown_value = f"a {type(value).__name__}" if advice else repr(value)
    raise ValueError(f"found {shown_value:.200}; {advice or f'expected {accepted_handlers()}'}")
