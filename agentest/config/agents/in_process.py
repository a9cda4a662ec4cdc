"""Settings of agents that are written in Python, and how plug-ins' agent objects are recognized."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from agentest.config.agents.base import AnyAgent
from agentest.config.fields import AgentObject
from agentest.plugin import PLUGINS, Feature


class CustomAgent(AnyAgent):
    """An agent in Python: a handler function, or an agent object of a framework."""

    tells_addresses: ClassVar[bool] = True  # through ctx
    can_report: ClassVar[bool] = True  # through ctx.record_tool
    state_refusal: ClassVar[str | None] = None

    type: Literal["custom"]
    handler: Callable[..., Any] | str | AgentObject
    """An async or sync function `(messages, ctx) -> message | str`, an agent object of a framework, or the
    import path of either, `pkg.module:name`."""
    context: Callable[..., Any] | str | None = None
    """For an agent object: a function that creates the context of each conversation (`deps` of pydantic-ai,
    `context` of others), or its import path. It may take the scenario's session."""

    @field_validator("handler", mode="before")
    @classmethod
    def _function_or_object(cls, value: Any) -> Any:
        if isinstance(value, str | AgentObject):
            return value
        if agent_object_of(value) is not None:
            return AgentObject(value)
        check_handler(value)
        return value

    @property
    def call_sources(self) -> tuple[str, ...]:
        return (*super().call_sources, "handlers")

    @property
    def reports_own_calls(self) -> bool:
        return isinstance(self.handler, AgentObject)  # all calls of an agent object go through the gate

    @property
    def address(self) -> str:
        return str(self.handler) if isinstance(self.handler, AgentObject | str) else "python handler"


def agent_object_of(value: Any) -> Feature | None:
    """Return what runs an agent object, or None for any other value, including agent classes."""
    found = _recognized(value)
    return found if found and found.path else None


def _recognized(value: Any) -> Feature | None:
    if inspect.isroutine(value) or isinstance(value, type):
        return None  # spares reading the plug-ins
    features = PLUGINS.all("agent object").values()
    return next((each for kind in type(value).__mro__ for each in features if _is_named(kind, each)), None)


def _is_named(kind: type, feature: Feature) -> bool:
    classes = (each.partition(":") for each in feature.facts["classes"].split())
    return any(
        kind.__name__ == name and f"{kind.__module__}.".startswith(f"{at}.") for at, _, name in classes
    )


def agent_section(value: Any) -> Any:
    """Return the `agent` section for a handler or an agent object, or None for any other value."""
    found = agent_object_of(value)
    if found and "section" in found.facts:
        return found.load("section")(value)
    return {"type": "custom", "handler": value} if found or callable(value) else None


def check_handler(value: Any) -> None:
    """Raise ValueError for an invalid handler. The message lists the valid kinds."""
    found = _recognized(value)
    advice = found.facts.get("advice") if found else None
    if callable(value) and advice is None:
        _check_signature(value)
        return
    shown_value = f"a {type(value).__name__}" if advice else repr(value)
    raise ValueError(f"found {shown_value:.200}; {advice or f'expected {accepted_handlers()}'}")


def _check_signature(function: Any) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a C function without a signature
        return
    try:
        if signature.parameters:
            signature.bind("messages", "ctx")
    except TypeError as error:
        from agentest.support.importing import defined_at

        name = f"{getattr(function, '__name__', 'the handler')}{signature}"
        raise ValueError(f"{defined_at(function)}: {name} is called with (messages, ctx): {error}") from None


def accepted_handlers() -> str:
    """Return the accepted kinds of handlers, for messages."""
    objects = [f"{each.name} ({each.help})" for each in PLUGINS.all("agent object").values() if each.path]
    if not objects:
        return "a function (messages, ctx), or its import path, pkg.module:name"
    return (
        "a function (messages, ctx), an agent object of one of these frameworks, or the import path of "
        f"either, pkg.module:name. Frameworks: {', '.join(objects)}"
    )
