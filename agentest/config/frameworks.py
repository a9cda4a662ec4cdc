"""The table of frameworks whose agent objects run in this process.

Objects are recognized by the names of their classes, so no framework is imported here. To add a framework,
add a line to the table and a module in `agentest/agents/in_process`.
"""

from __future__ import annotations

from typing import Any

from agentest.support.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework with agent objects."""

    title: str
    what: str
    """Description of its agents, for messages."""
    package: str
    """The module that defines the classes, or a parent package."""
    class_names: tuple[str, ...]
    """Classes whose instances are agents, including instances of subclasses."""
    runner: str
    """The module in `agentest/agents/in_process` that runs the agents, and its function if not `prepare`."""
    takes_context: bool = True
    """True if a run accepts a context from the user."""
    single_use: bool = False
    """True if an agent serves one conversation, so that each needs a new one."""


FRAMEWORKS = (
    Framework("pydantic-ai", "an Agent", "pydantic_ai", ("AbstractAgent",), "pydantic_ai"),
    Framework("OpenAI Agents SDK", "an Agent", "agents.agent", ("AgentBase",), "openai_agents"),
    Framework("LangGraph", "a compiled graph", "langgraph.pregel", ("Pregel",), "langchain:prepare_graph"),
    Framework(
        "google-adk",
        "an agent or an App",
        "google.adk",
        ("BaseAgent", "BaseNode", "App"),
        "google_adk",
        takes_context=False,
    ),
    Framework(
        "LiveKit Agents",
        "a function that makes an Agent or a started AgentSession",
        "livekit.agents",
        ("Agent", "AgentSession"),
        "livekit",
        single_use=True,
    ),
    Framework(
        "Pipecat",
        "a function that makes a Pipeline without transport",
        "pipecat.pipeline",
        ("Pipeline",),
        "pipecat",
        single_use=True,
    ),
    Framework("LangChain", "a Runnable that takes messages", "langchain_core", ("Runnable",), "langchain"),
)
"""In order of precedence: a LangGraph graph is also a LangChain Runnable."""

_ADVICE = {
    ("langgraph", "StateGraph"): "it is not compiled: name what its `.compile()` returns",
    ("langgraph.pregel", "RemoteGraph"): "it is a client of a server: test that by `type: langgraph`",
    ("fastapi", "FastAPI"): "ASGI applications are run by `type: asgi`, with `app`",
    ("starlette", "Starlette"): "ASGI applications are run by `type: asgi`, with `app`",
}


def framework_of(value: Any) -> Framework | None:
    """Return the framework of an agent object, or None for any other value, including agent classes."""
    if advice_for_handler(value) is not None:
        return None
    return next((f for f in FRAMEWORKS if _is_a(value, f.package, f.class_names)), None)


def accepted_handlers() -> str:
    """Return the accepted kinds of handlers, for messages."""
    objects = ", ".join(f"{f.title} ({f.what})" for f in FRAMEWORKS)
    return (
        "a function (messages, ctx), an agent object of one of these frameworks, or the import path of "
        f"either, pkg.module:name. Frameworks: {objects}"
    )


def advice_for_handler(value: Any) -> str | None:
    """Return advice for a value that looks like an agent but runs in another way, or None."""
    advice = (text for (package, name), text in _ADVICE.items() if _is_a(value, package, (name,)))
    return next(advice, None)


def _is_a(value: Any, package: str, class_names: tuple[str, ...]) -> bool:
    return any(
        kind.__name__ in class_names and f"{kind.__module__}.".startswith(f"{package}.")
        for kind in type(value).__mro__
    )
