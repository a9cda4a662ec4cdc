"""An agent's tools and tool visibility, as far as a run knows them.

`known_tools` describes the tools for judges, `unknown_tools` and `misspelt_tool` check names in scenarios,
and `about_agent` collects how an agent's calls become visible. Sources of tools, most trusted first: the
configuration (`agent.tools`), mock servers, the tools declared in requests, and the scenario's mocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from agentest.config.agent_types import (
    advice_for_unseen_calls,
    partial_visibility_advice,
    unreported_calls_advice,
    visibility_of_agent,
)
from agentest.config.agents.base import AnyAgent
from agentest.config.agents.over_http import HttpAgent
from agentest.config.agents.tools import AgentTool, format_tools
from agentest.domain.messages import ToolSpec
from agentest.domain.tool_visibility import ToolVisibility
from agentest.mocks.binding import ANY_ARGUMENTS, Mock, tool_specs
from agentest.plugin import PLUGINS
from agentest.scenarios.model import Scenario
from agentest.scenarios.trajectory import ToolName, Trajectory, is_one_tool, name_matches, name_text, names_in
from agentest.support.errors import ConfigError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.patterns import PatternTimeout
from agentest.support.text import on_one_line, shortened


class ServedTools:
    """The tools that an agent has from servers of a call source, as far as they are known before a run."""

    def tools(self) -> tuple[KnownTool, ...]:
        """Return the tools that they serve. Raises ConfigError for a file that cannot be read."""
        return ()

    def known(self) -> tuple[KnownTool, ...]:
        """Return the tools of readable files. A live run reports the others when it opens its servers."""
        try:
            return self.tools()
        except ConfigError:
            return ()

    def listed(self) -> frozenset[str]:
        """The names in the servers' own lists, whose every call is visible."""
        return frozenset(tool.name for tool in self.known())

    def keys_of(self, _: Collection[str]) -> frozenset[str]:
        """Return the keys of the servers that have any of these tools; empty if that does not matter."""
        return frozenset()


NO_SERVED_TOOLS = ServedTools()


def served_tools(
    agent: AnyAgent, root: Path, outputs: str, scenarios: Iterable[Scenario], mocks: Iterable[str] = ()
) -> ServedTools:
    """Return the tools from the first call source of an agent that knows tools.

    Args:
        root: paths of files, and `outputs`, the folder of the stored runs, are relative to this folder.
        scenarios: those with this agent, which know operations by the names of their mocks and trajectories.
        mocks: names of further mocks.
    """
    for name in agent.call_sources:
        source = PLUGINS.get("call source", name)
        if "tools" in source.facts:
            used = list(scenarios)
            mocked = frozenset([*mocks, *(tool for each in used for tool in each.tools)])
            named = frozenset(tool for each in used for tool in each.named_tools)
            found: ServedTools = source.load("tools")(agent, root, outputs, mocked, named)
            return found
    return NO_SERVED_TOOLS


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsOfAgent:
    """The tools of an agent, according to its settings."""

    configured: tuple[AgentTool, ...] | None = None  # None: the configuration does not list them
    sent: tuple[AgentTool, ...] = ()
    told: tuple[ToolSpec, ...] = ()
    """The tools that it offers its model, which count if the configuration lists none."""
    mock_servers: ServedTools = NO_SERVED_TOOLS


def read_mock_server_tools(agents: Mapping[str, ToolsOfAgent]) -> Iterator[str]:
    """Read the tools of mock servers. Yields notes about unreadable files, as a live run did before."""
    for name, agent in agents.items():
        try:
            agent.mock_servers.tools()
        except ConfigError as error:
            yield (
                f"judges do not know which tools the mock servers of agent {name!r} serve: {error}. Put the "
                "file back, or name the tools in the agent's `tools`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTools:
    """An agent's tools, described for judges."""

    text: str = ""  # one line per tool; "": none is known
    some: bool = False


NOTHING_KNOWN = KnownTools()


def known_tools(agent: ToolsOfAgent, mocks: Mapping[str, Mock], named: Iterable[str] = ()) -> KnownTools:
    """Describe what is known about an agent's tools in a scenario, with its mocks and the tools it names."""
    tools = tools_of_unit(agent, mocks)
    if not tools:
        return KnownTools(text=NONE) if agent.configured is not None else NOTHING_KNOWN
    told = agent.told if agent.configured is None else ()
    complete = agent.configured or agent.mock_servers.known() or agent.sent or told
    lines = tool_lines(tools, {*mocks, *named})
    return KnownTools(text="\n".join([*lines, *([] if complete else [MAYBE_OTHERS])]), some=True)


def tools_of_unit(agent: ToolsOfAgent, mocks: Mapping[str, Mock]) -> tuple[KnownTool, ...]:
    """Return what is known about an agent's tools, including those that a scenario mocks."""
    told = agent.told if agent.configured is None else ()
    return joined_tools(
        (
            _configured(agent.configured or ()),
            agent.mock_servers.known(),
            map(_declared, agent.sent),
            map(known_tool, told),
            map(known_tool, tool_specs(mocks)),
        )
    )


def _configured(tools: Iterable[AgentTool]) -> Iterator[KnownTool]:
    for tool in tools:
        line = format_tools([tool])
        declared = "" if line == tool.name else line
        yield KnownTool(name=tool.name, parameters=tool.parameters, declared=declared)


def _declared(tool: AgentTool) -> KnownTool:
    return KnownTool(name=tool.name, description=tool.description or "", parameters=tool.parameters)


def known_tool(spec: ToolSpec) -> KnownTool:
    """Return what a tool's definition says about it."""
    parameters = None if spec.parameters in (ANY_ARGUMENTS, {}) else spec.parameters
    return KnownTool(name=spec.name, description=spec.description, parameters=parameters)


MOST_CHARS = 8_000  # limit for all lines together, because every judge of every turn receives them
_DESCRIPTION_CHARS = 400
_BRIEF_CHARS = 100
_MOST_VALUES = 8
_SENTENCE = re.compile(r"(?<=[.!?])\s")
NONE = "(the assistant has no tools)"
MAYBE_OTHERS = "(the assistant may have other tools: these are known)"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTool:
    """The known facts about one tool. Empty texts and None stand for unknown."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None  # JSON Schema of the arguments
    returns: Mapping[str, Any] | None = None  # JSON Schema of the result, according to an MCP server's list
    declared: str = ""  # the whole line, if the user declared the tool for judges
    read_only: bool | None = None
    """True if it changes nothing, according to an MCP annotation or its HTTP method; None: unknown."""


def joined_tools(sources: Iterable[Iterable[KnownTool]]) -> tuple[KnownTool, ...]:
    """Merge the tools of all sources by name; earlier sources take precedence."""
    tools: dict[str, KnownTool] = {}
    for tool in (tool for source in sources for tool in source):
        known = tools.setdefault(tool.name, tool)
        tools[tool.name] = replace(
            known,
            description=known.description or tool.description,
            parameters=known.parameters or tool.parameters,
            returns=known.returns or tool.returns,
            read_only=tool.read_only if known.read_only is None else known.read_only,
        )
    return tuple(tools.values())


def tool_lines(tools: Sequence[KnownTool], first: Container[str] = ()) -> list[str]:
    """Return a line for each tool. If all are too long, shorten those not `first` and count the rest."""
    full = _fitting(map(_line, tools))
    if len(full) == len(tools):
        return full
    ordered = sorted(tools, key=lambda tool: tool.name not in first)
    brief = _fitting(_line_of_many(tool, first) for tool in ordered)
    left = len(tools) - len(brief)
    return [*brief, *([f"(and {left:,} more, which are not shown)"] if left else [])]


def _fitting(lines: Iterable[str]) -> list[str]:
    fitting: list[str] = []
    room = MOST_CHARS
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        fitting.append(line)
    return fitting


def _line_of_many(tool: KnownTool, first: Container[str]) -> str:
    line = _line(tool) if tool.name in first else ""
    return line if 0 < len(line) <= MOST_CHARS // 8 else _brief(tool)


def _line(tool: KnownTool) -> str:
    if tool.declared:
        return tool.declared
    arguments = "" if tool.parameters is None else f"({', '.join(_arguments(tool.parameters))})"
    text = shortened(on_one_line(tool.description), _DESCRIPTION_CHARS)
    return f"{on_one_line(tool.name)}{arguments}" + (f": {text}" if text else "")


def _brief(tool: KnownTool) -> str:
    text = shortened(_first_sentence(tool.description), _BRIEF_CHARS)
    return shortened(on_one_line(tool.name), _BRIEF_CHARS) + (f": {text}" if text else "")


def _first_sentence(text: str) -> str:
    return _SENTENCE.split(on_one_line(text), maxsplit=1)[0]


def _arguments(schema: Mapping[str, Any]) -> Iterator[str]:
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else ()
    for name, described in properties.items() if isinstance(properties, Mapping) else ():
        described = described if isinstance(described, Mapping) else {}
        kind = _type(described)
        description = _first_sentence(str(described.get("description") or ""))
        yield (
            on_one_line(str(name))
            + ("" if name in needed else "?")
            + (f": {kind}" if kind else "")
            + (f" ({shortened(description, _BRIEF_CHARS)})" if description else "")
        )


def _type(schema: Mapping[str, Any]) -> str:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        more = [] if len(values) <= _MOST_VALUES else ["…"]
        texts = (json.dumps(each, ensure_ascii=False, default=repr) for each in values[:_MOST_VALUES])
        return " | ".join([*(shortened(on_one_line(text), _BRIEF_CHARS) for text in texts), *more])
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list):
        kinds = (_type(each) for each in alternatives if isinstance(each, Mapping))
        return " | ".join(dict.fromkeys(kind for kind in kinds if kind))
    kind = schema.get("type")
    if kind == "array" and isinstance(items := schema.get("items"), Mapping):
        return f"{_type(items) or 'any'}[]"
    types = kind if isinstance(kind, list) else [kind or ("object" if "$ref" in schema else "")]
    return " | ".join(on_one_line(str(each)) for each in types if each)


_NEAR = 2


class NamedTool(NamedTuple):
    """A tool that a scenario names, and the key that names it."""

    key: str
    name: ToolName


def named_tools(scenario: Scenario) -> Iterator[NamedTool]:
    """Yield the tools that a scenario's trajectories and `approve` name."""
    for key, trajectory in keyed_trajectories(scenario):
        calls = "expected_writes" if trajectory.writes else "expected"
        limits = trajectory.max_calls_per_tool
        names: list[tuple[str, Iterable[ToolName]]] = [
            *((calls, names_in(step)) for step in trajectory.expected or ()),
            ("forbidden", [call.name for call in trajectory.forbidden]),
            ("max_calls_per_tool", limits if isinstance(limits, Mapping) else ()),
            ("reads", trajectory.reads),
            *((each.kind, (*names_in(each.first), *names_in(each.then))) for each in trajectory.orders),
        ]
        for kind, of_kind in names:
            yield from (NamedTool(f"{key}.{kind}", name) for name in of_kind)
    for key, approve in scenario.approve_keys.items():
        yield from (NamedTool(key, tool) for tool in (approve if isinstance(approve, Mapping) else ()))


def keyed_trajectories(scenario: Scenario) -> Iterator[tuple[str, Trajectory]]:
    """Yield the trajectories of the scenario and of its turns, each with its key."""
    yield from (("trajectory", each) for each in scenario.trajectory)
    for at, turn in enumerate(scenario.turns):
        yield from ((f"turns[{at}].trajectory", each) for each in turn.trajectory)


def is_known(name: ToolName, known: Collection[str]) -> bool:
    """Return True if the name is a known tool, or a glob or pattern that matches one."""
    if is_one_tool(name):
        return name in known
    try:
        return any(name_matches(name, tool) for tool in known)
    except PatternTimeout:
        return True  # reported when the calls are judged


def unknown_tools(
    scenarios: Mapping[str, Scenario], mocked: Collection[str], agents: Iterable[ToolsOfAgent]
) -> dict[str, tuple[NamedTool, ...]]:
    """Return key of a scenario → tools that it names, but no scenario mocks and no agent's schema defines."""
    named = {key: [t for t in named_tools(each) if t.name not in mocked] for key, each in scenarios.items()}
    left = {key: tools for key, tools in named.items() if tools}
    if not left:
        return {}
    known = {*mocked, *(name for agent in agents for name in _tools_of_agent(agent))}
    unknown = {key: tuple(t for t in tools if not is_known(t.name, known)) for key, tools in left.items()}
    return {key: tools for key, tools in unknown.items() if tools}


def _tools_of_agent(agent: ToolsOfAgent) -> Iterator[str]:
    yield from (tool.name for tool in agent.configured or ())
    yield from (tool.name for tool in agent.sent)
    yield from (tool.name for tool in agent.mock_servers.known())


def misspelled_tool(scenario: Scenario, agent: ToolsOfAgent, unknown: Iterable[NamedTool]) -> str | None:
    """Return an error if the scenario misspells one of its own or its agent's tools; None if not."""
    for named in unknown:
        if near := nearest_tool(named.name, {*scenario.tools, *_tools_of_agent(agent)}):
            return (
                f"{named.key} names tool {name_text(named.name)!r}, which is not known; "
                f"did you mean {near!r}? "
                "If it is another tool, mock it in `tools` or name it in the agent's `tools`"
            )
    return None


def nearest_tool(name: ToolName, tools: Iterable[str]) -> str | None:
    """Return the tool whose name is misspelled.

    People rarely mistype the first letter, and `get_price` and `set_price` are different tools. Short names
    that share little are different, too.
    """
    if not isinstance(name, str) or not is_one_tool(name):
        return None
    alike = [tool for tool in tools if tool[:1].casefold() == name[:1].casefold()]
    near = [(distance, tool) for tool in alike if (distance := _distance(name, tool)) <= _NEAR]
    return min((each for each in near if 2 * each[0] <= len(name)), default=(0, None))[1]


def _distance(name: str, other: str) -> int:
    if abs(len(name) - len(other)) > _NEAR:
        return _NEAR + 1
    row = list(range(len(other) + 1))
    for at, letter in enumerate(name, start=1):
        before, row[0] = row[0], at
        for column, wanted in enumerate(other, start=1):
            replaced = before + (letter != wanted)
            before, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, replaced)
    return row[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTraits:
    """The facts about an agent that evaluation and executor need."""

    visibility: ToolVisibility = ToolVisibility.RETURNED
    blind: str | None = None  # why some of its calls are invisible, with a remedy; None: all are visible
    unreported: str | None = None
    """The same for an agent that reported none of the calls that a mock server answered."""
    replies_show_calls: bool = True
    """True if replies that report calls make them visible.

    False if the configuration says that calls are unseen, because the agent may report only some of them.
    """
    queue: str | None = None  # the queue of its conversations, if only one may run at a time; None: no limit
    mock_servers: tuple[str, ...] = ()
    only_sees_calls: bool = False  # True if calls are seen at its model gateway, and it runs its tools
    mocks_inside: bool = False  # True if it is declared to run in this process with tools that mocks answer
    tools_on_either_side: bool = False
    """True if its protocol lets it hand over a call or run it itself, which only a run can show."""
    spans_count: bool = False  # True if its spans report calls that its protocol does not
    visible_by_spans_only: bool = False
    instructions: str = ""  # its instructions, for judges; "": unknown
    tools: ToolsOfAgent = ToolsOfAgent()
    tool_names: frozenset[str] = frozenset()
    unstreamed: str = ""  # why the time to the first token is unknown; "": it is known


def agent_traits(name: str, agent: AnyAgent, served: ServedTools = NO_SERVED_TOOLS) -> AgentTraits:
    """Collect the facts about an agent's calls and tools from its settings and its mock servers."""
    visibility, blind = visibility_of_agent(agent), None
    if visibility is ToolVisibility.UNSEEN:
        blind = advice_for_unseen_calls(name, agent)
    elif visibility is ToolVisibility.PARTIAL:
        blind = partial_visibility_advice(name, agent)
    may_withhold = (
        bool(agent.mock_servers)
        and agent.tool_visibility is None
        and visibility is not ToolVisibility.UNSEEN
        # Calls of an agent object come to Agentest, but those of its clients do not.
        and not (agent.type == "custom" and agent.reports_own_calls)
    )
    return AgentTraits(
        visibility=visibility,
        blind=blind,
        unreported=unreported_calls_advice(name, agent) if may_withhold else None,
        replies_show_calls=agent.tool_visibility is None,
        queue=_queue_name(name, agent) if agent.exclusive else None,
        mock_servers=agent.call_servers,
        only_sees_calls=agent.only_sees_calls,
        mocks_inside=agent.in_process and agent.tool_visibility is ToolVisibility.RETURNED,
        tools_on_either_side=agent.tools_on_either_side,
        spans_count=_spans_count(agent),
        visible_by_spans_only=_spans_count(agent) and not agent.mock_servers,
        instructions=instructions_of(agent),
        tools=tools_of(agent, served),
        tool_names=frozenset(tool.name for tool in agent.tools or ()),
        unstreamed=_unstreamed(agent),
    )


def instructions_of(agent: AnyAgent) -> str:
    """Return the agent's instructions for judges: from the configuration, else from its requests."""
    return (agent.instructions or agent.sent_instructions).strip()


def tools_of(agent: AnyAgent, served: ServedTools = NO_SERVED_TOOLS) -> ToolsOfAgent:
    """Collect an agent's tools from its settings."""
    configured = None if agent.tools is None else tuple(agent.tools)
    return ToolsOfAgent(configured=configured, sent=agent.sent_tools, mock_servers=served)


def _spans_count(agent: AnyAgent) -> bool:
    """Return True if spans show calls that the protocol does not, unless the configuration says otherwise."""
    tells = agent.natural_visibility is ToolVisibility.REPORTED or agent.shows_own_calls
    return bool(agent.traces and not tells and agent.tool_visibility is not ToolVisibility.RETURNED)


def _queue_name(name: str, agent: AnyAgent) -> str:
    if not isinstance(agent, HttpAgent):
        return name
    return f"{agent.address} {agent.server}" if agent.server and agent.server.awaits_port else agent.address


def _unstreamed(agent: AnyAgent) -> str:
    if agent.streams is None:
        return f"replies of agents of type {agent.type} are not streamed"
    return (
        "it streams, but this reply came without text in pieces"
        if agent.streams
        else "it does not stream its replies; set streaming: true in its configuration"
    )
