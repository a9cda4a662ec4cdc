"""Agent objects of frameworks: one table that says how each is known and who runs it.

They are known by the names of their classes: no framework is imported here. A further framework is a line
of the table and a module in `agentest/agents/in_process`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What there is to know of the agents of one framework."""

    title: str
    what: str
    """What of it is an agent, in words."""
    package: str
    """Where the class is defined: a module, or a package around it."""
    class_names: tuple[str, ...]
    """The classes whose instances are agents, those of their subclasses included."""
    runner: str
    """The module in `agentest/agents/in_process` that runs them."""
    takes_context: bool = True
    """Whether a run is given a context of the user's."""


FRAMEWORKS = (
    Framework(
        title="pydantic-ai",
        what="an Agent",
        package="pydantic_ai",
        class_names=("AbstractAgent",),
        runner="pydantic_ai",
    ),
    Framework(
        title="OpenAI Agents SDK",
        what="an Agent",
        package="agents.agent",
        class_names=("AgentBase",),
        runner="openai_agents",
    ),
    Framework(
        title="LangGraph",
        what="a compiled graph",
        package="langgraph.pregel",
        class_names=("Pregel",),
        runner="langgraph",
    ),
    Framework(
        title="google-adk",
        what="an agent or an App",
        package="google.adk",
        class_names=("BaseAgent", "BaseNode", "App"),
        runner="google_adk",
        takes_context=False,
    ),
    Framework(
        title="LangChain",
        what="a Runnable that takes messages",
        package="langchain_core",
        class_names=("Runnable",),
        runner="langchain",
    ),
)
"""The first line that fits counts: a graph of LangGraph is a Runnable of LangChain, too."""

_ADVICE = {
    ("langgraph", "StateGraph"): "it is not compiled: name what its `.compile()` returns",
    ("langgraph.pregel", "RemoteGraph"): "it is a client of a server: test that by `type: langgraph`",
    ("fastapi", "FastAPI"): "ASGI applications are run by `type: asgi`, with `app`",
    ("starlette", "Starlette"): "ASGI applications are run by `type: asgi`, with `app`",
}


def framework_of(value: Any) -> Framework | None:
    """Whose agent a value is; None for anything else, the class of an agent too."""
    if advice_on(value) is not None:
        return None
    return next((f for f in FRAMEWORKS if _is_a(value, f.package, f.class_names)), None)


def accepted() -> str:
    """What a handler may be, in words."""
    objects = ", ".join(f"{f.title} ({f.what})" for f in FRAMEWORKS)
    return (
        "a function (messages, ctx), an agent object of one of these frameworks, or the import path of "
        f"either, pkg.module:name. Frameworks: {objects}"
    )


def advice_on(value: Any) -> str | None:
    """What to say of a value that looks like an agent and is run in another way; None for anything else."""
    for (package, class_name), advice in _ADVICE.items():
        if _is_a(value, package, (class_name,)):
            return advice
    return None


def _is_a(value: Any, package: str, class_names: tuple[str, ...]) -> bool:
    return any(
        kind.__name__ in class_names and f"{kind.__module__}.".startswith(f"{package}.")
        for kind in type(value).__mro__
    )
