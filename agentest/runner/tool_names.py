"""The tools that scenarios name: which of them nothing knows, and which are misspelt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from agentest.runner.known_tools import ToolsOfAgent
from agentest.scenarios.calls import names_in
from agentest.scenarios.model import Scenario
from agentest.scenarios.names import ToolName, is_one_tool, name_matches, name_text
from agentest.scenarios.trajectory import Trajectory
from agentest.support.patterns import PatternTimeout

_NEAR = 2
"""Names that differ by so many letters are taken for one that is misspelt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTool:
    """A tool that a scenario names, and the key under which it does."""

    key: str
    name: ToolName


def named_tools(scenario: Scenario) -> Iterator[NamedTool]:
    """The tools that a scenario's trajectories forbid, limit, order, expect or call reads."""
    for trajectory in scenario.trajectory:
        yield from _named(trajectory, "trajectory")
    for at, turn in enumerate(scenario.turns):
        for trajectory in turn.trajectory:
            yield from _named(trajectory, f"turns[{at}].trajectory")


def _named(trajectory: Trajectory, key: str) -> Iterator[NamedTool]:
    for step in trajectory.expected or ():
        calls = "expected_writes" if trajectory.writes else "expected"
        yield from (NamedTool(key=f"{key}.{calls}", name=name) for name in names_in(step))
    for call in trajectory.forbidden:
        yield NamedTool(key=f"{key}.forbidden", name=call.name)
    if isinstance(trajectory.max_calls_per_tool, Mapping):
        yield from (NamedTool(key=f"{key}.max_calls_per_tool", name=n) for n in trajectory.max_calls_per_tool)
    yield from (NamedTool(key=f"{key}.reads", name=name) for name in trajectory.reads)
    for order in trajectory.orders:
        names = (*names_in(order.first), *names_in(order.then))
        yield from (NamedTool(key=f"{key}.{order.kind}", name=name) for name in names)


def is_known(name: ToolName, known: Collection[str]) -> bool:
    """Whether a name is that of a known tool; a glob or a pattern, whether it matches one."""
    if is_one_tool(name):
        return name in known
    try:
        return any(name_matches(name, tool) for tool in known)
    except PatternTimeout:
        return True  # judging the calls reports it


def unknown_tools(
    scenarios: Mapping[str, Scenario], mocked: Collection[str], agents: Iterable[ToolsOfAgent]
) -> dict[str, tuple[NamedTool, ...]]:
    """Key of a scenario → the tools that it names and that no mock and no schema knows.

    Args:
        mocked: the tools that any scenario mocks, those included that do not run.
        agents: what is known of the tools of all agents. Their files are read only if need be.
    """
    named = {key: [t for t in named_tools(each) if t.name not in mocked] for key, each in scenarios.items()}
    left = {key: tools for key, tools in named.items() if tools}
    if not left:
        return {}
    known = {*mocked, *(name for agent in agents for name in _tools_of_agent(agent))}
    found = {key: tuple(t for t in tools if not is_known(t.name, known)) for key, tools in left.items()}
    return {key: tools for key, tools in found.items() if tools}


def _tools_of_agent(agent: ToolsOfAgent) -> Iterator[str]:
    """The tools that the agent's settings, its requests and its mock servers' files name."""
    yield from (tool.name for tool in agent.configured or ())
    yield from (tool.name for tool in agent.sent)
    yield from (tool.name for tool in agent.beside.known())


def misspelt_tool(scenario: Scenario, agent: ToolsOfAgent, unknown: Iterable[NamedTool]) -> str | None:
    """What is wrong with a scenario that misspells one of its own or its agent's tools; None: nothing."""
    tools = {*scenario.tools, *_tools_of_agent(agent)}
    for named in unknown:
        if near := _nearest(named.name, tools):
            return (
                f"{named.key} names tool {name_text(named.name)!r}, which is not known; "
                f"did you mean {near!r}? "
                "If it is another tool, mock it in `tools` or name it in the agent's `tools`"
            )
    return None


def _nearest(name: ToolName, tools: Iterable[str]) -> str | None:
    """The tool of which a name is a misspelling.

    People rarely mistype the first letter, and `get_price` and `set_price` are two tools. Short names that
    share little are other names, too.
    """
    if not isinstance(name, str) or not is_one_tool(name):
        return None
    alike = [tool for tool in tools if tool[:1].casefold() == name[:1].casefold()]
    near = [(distance, tool) for tool in alike if (distance := _distance(name, tool)) <= _NEAR]
    return min((each for each in near if 2 * each[0] <= len(name)), default=(0, None))[1]


def _distance(one: str, other: str) -> int:
    """How many letters must be added, left out or replaced; exact up to `_NEAR`."""
    if abs(len(one) - len(other)) > _NEAR:
        return _NEAR + 1
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, start=1):
        before, row[0] = row[0], at
        for place, wanted in enumerate(other, start=1):
            replaced = before + (letter != wanted)
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, replaced)
    return row[-1]
