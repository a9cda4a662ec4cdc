"""What is known of an agent besides what it says and does: what it was told, and which tools it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentest.adk.formats.model import AgentDetails, EvalCase
from agentest.support.json_text import on_one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """What judges are told of an agent; "" stands for what is not known."""

    instructions: str = ""
    tools: str = ""
    """The declarations of its tools, a line each."""
    tools_beside: str = ""
    """What is known of its tools otherwise: for cases that have recorded none."""
    unseen: str = ""
    """Why its tool calls cannot be seen, unless its answers tell of them; "": they can."""
    date: str = ""
    """When the conversation takes place, where that is configured: ISO 8601."""


NOTHING_KNOWN = AgentFacts()


def facts_of(
    case: EvalCase, own: AgentFacts = NOTHING_KNOWN, redact: Callable[[str], str] = str
) -> AgentFacts:
    """What the agent's own settings say, else what the case recorded of it (`app_details`).

    Args:
        redact: takes secrets out of what the case recorded; `own` holds none.
    """
    agents = list(_agents(case))
    declared = (tool for agent in agents for tool in _tools(agent.tool_declarations))
    return AgentFacts(
        instructions=own.instructions or redact(_joined("\n\n", map(_told, agents))),
        tools=own.tools or redact(_joined("\n", declared)) or own.tools_beside,
        unseen=own.unseen,
    )


def _agents(case: EvalCase) -> Iterator[AgentDetails]:
    for invocation in case.conversation or ():
        if invocation.app_details:
            yield from invocation.app_details.agent_details.values()


def _told(agent: AgentDetails) -> str:
    return f"Agent {agent.name}:\n{agent.instructions}" if agent.instructions.strip() else ""


def _tools(declarations: Iterable[Any]) -> Iterator[str]:
    """Each tool as JSON. ADK keeps functions in groups; other tools stand for themselves."""
    for declaration in declarations:
        functions = _functions(declaration)
        for tool in [declaration] if functions is None else functions:
            yield on_one_line(tool)


def _functions(declaration: Any) -> list[Any] | None:
    if not isinstance(declaration, Mapping):
        return None
    found = declaration.get("function_declarations", declaration.get("functionDeclarations"))
    return found if isinstance(found, list) else None


def _joined(separator: str, texts: Iterable[str]) -> str:
    """The texts, each once: every invocation of a case repeats what its agents were told."""
    return separator.join(dict.fromkeys(text for text in texts if text))
