"""What was recorded of real tools, written and told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentest.authoring.recording.calls import Declared, Gathered, gather
from agentest.authoring.recording.files import Targets, write_module, write_text
from agentest.authoring.recording.module import Module, module_of
from agentest.authoring.recording.scenario import scenario_of
from agentest.domain.transcript import Turn
from agentest.runner.prepare import Prepared
from agentest.runner.recording import Recorder, ways_to_mocks
from agentest.support.files import user_text
from agentest.support.json_text import json_value
from agentest.support.paths import path_from
from agentest.support.terminal import say, tell
from agentest.support.text import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Everything that was recorded."""

    prepared: Prepared
    recorder: Recorder
    at: Targets
    tool_list: Mapping[str, Path]
    """Agent → the file with the list of its MCP server's tools."""
    shown: Callable[[Path], str]
    """A path as the user would write it."""
    turns: tuple[Turn, ...] = ()
    """Those of the conversation of which a scenario is made."""


def with_tool_list(prepared: Prepared, at: Targets) -> tuple[Prepared, dict[str, Path]]:
    """The run with a file for the tools of each MCP server, which is written when that is opened.

    Returns the files by agent, too.
    """
    root, kept, agents = prepared.request.root, {}, {}
    for name, agent in prepared.plan.agents.items():
        if agent.mcp_mock and agent.mcp_mock.upstream:
            if agent.mcp_mock.tools is None:
                told = agent.mcp_mock.model_copy(update={"tools": str(at.tool_list)})
                agent = agent.model_copy(update={"mcp_mock": told})
            assert agent.mcp_mock
            kept[name] = root / str(agent.mcp_mock.tools)
        agents[name] = agent
    return replace(prepared, plan=replace(prepared.plan, agents=agents)), kept


@contextmanager
def tool_list_anew(at: Targets) -> Iterator[None]:
    """With --force the list of tools is written again: one that is there would be taken as it is.

    Where nothing comes in its place, it stays.
    """
    before = at.tool_list.read_bytes() if at.force and at.tool_list.exists() else None
    if before is not None:
        at.tool_list.unlink()
    try:
        yield
    finally:
        if before is not None and not at.tool_list.exists():
            at.tool_list.write_bytes(before)


def tell_recorded(recording: Recording, *, wanted: bool = True) -> bool:
    """Write the mocks, and say what was written. Whether anything was. Raises UsageError.

    Args:
        wanted: whether a run without any call is a riddle.
    """
    gathered = _gathered(recording)
    for note in gathered.notes:
        tell(f"agentest: {note}")
    if not gathered.tools:
        if wanted:
            tell(f"agentest: {_nothing(recording, gathered)}")
        return False
    module = module_of(gathered.tools, recording.at.stem)
    write_module(module, recording.at)
    for row in _written(recording, gathered, module):
        say(row)
    return True


def _gathered(recording: Recording) -> Gathered:
    declared = dict(_declared(recording))
    recorder, redact = recording.recorder, recording.prepared.loaded.redact
    return gather(recorder.conversations, redact, declared, recorder.statuses)


def _declared(recording: Recording) -> Iterator[tuple[str, Declared]]:
    """How tools describe themselves: to judges, in the configuration, or to MCP clients."""
    for agent in recording.prepared.plan.agents.values():
        for tool in agent.tools or ():
            yield tool.name, Declared(description=tool.description or "", parameters=tool.parameters)
    for path in recording.tool_list.values():
        for entry in _listed(path):
            schema = entry.get("inputSchema")
            yield (
                str(entry.get("name")),
                Declared(
                    description=str(entry.get("description") or ""),
                    parameters=schema if isinstance(schema, dict) else None,
                ),
            )


def _listed(path: Path) -> list[dict[str, Any]]:
    """The tools in a file, which the server has read already."""
    try:
        content = json_value(user_text(path))
    except (OSError, ValueError):
        return []
    content = content.get("result", content) if isinstance(content, dict) else content
    tools = content.get("tools") if isinstance(content, dict) else content
    return [entry for entry in tools if isinstance(entry, dict)] if isinstance(tools, list) else []


def _nothing(recording: Recording, gathered: Gathered) -> str:
    if gathered.notes:
        return "nothing was recorded, and nothing was written"
    name, agent = next(iter(recording.prepared.plan.agents.items()))
    hidden = (
        "its tools were not asked through the mock server: give them its address ({{mcp_url}}, {{rest_url}}) "
        "in place of the real server's"
        if agent.mock_servers
        else "it does not tell of its calls"
    )
    return (
        f"nothing was called: agent {name!r} answered without a tool, or {hidden}. Nothing was written; say "
        "something that needs a tool"
    )


def _written(recording: Recording, gathered: Gathered, module: Module) -> Iterator[str]:
    """What was written, and what to do with it."""
    at, shown = recording.at, recording.shown
    calls = sum(tool.calls for tool in gathered.tools)
    yield f"{shown(at.module)}: mocks of {count(len(gathered.tools), 'tool')}, from {count(calls, 'call')}"
    if module.files:
        folder = shown(at.module.parent / next(iter(module.files)).partition("/")[0])
        yield f"{folder}: {count(len(module.files), 'long answer')}"
    if at.tool_list in recording.tool_list.values() and at.tool_list.exists():
        yield (
            f"{shown(at.tool_list)}: the tools of the MCP server; write `mcp_mock.tools: "
            f"{path_from(recording.prepared.request.root, at.tool_list)}`, and tests do not need that server"
        )
    if at.scenario:
        yield from _scenario(recording, gathered)
    else:
        yield f"in a scenario: from {at.stem} import tools, then scenario(…, tools=tools)"


def _scenario(recording: Recording, gathered: Gathered) -> Iterator[str]:
    at = recording.at
    assert at.scenario
    if not recording.turns:
        yield "no scenario was written: the agent has replied to nothing"
        return
    ways = ways_to_mocks(next(iter(recording.prepared.plan.agents.values())))
    source = scenario_of(
        recording.turns, gathered.tools, None if ways else at.stem, recording.prepared.loaded.redact
    )
    write_text(at.scenario, source)
    yield f"{recording.shown(at.scenario)}: the conversation as a scenario; agentest run holds it again"
    if ways:
        yield (
            "it has no mocks yet, as none reach the agent's tools: the real ones run again. To have mocks "
            f"answer, {'; or '.join(ways)}"
        )
