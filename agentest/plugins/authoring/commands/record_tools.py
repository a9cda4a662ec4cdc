"""`agentest record-tools` and `run --record-tools`: call the real tools and write their results as mocks.

With a first scenario for them: the same user messages must lead to calls of the same tools.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click

from agentest.cli.location import Location, Project, request_of
from agentest.cli.options import exits, flag, option, path_option, where
from agentest.cli.rerun_selection import ScenarioSelection
from agentest.cli.run import run_once
from agentest.cli.run_output import RunVariant, live_agents
from agentest.config.agent_types import returns_calls, ways_to_mock
from agentest.conversation.user import ScriptedUser, User
from agentest.domain.transcript import ToolCall, Turn
from agentest.plugins.authoring.mock_module import MockModule, MockTargets, module_of, targets, write_module
from agentest.plugins.authoring.recorded_calls import (
    RecordedTool,
    RecordedTools,
    ToolDeclaration,
    call_key,
    gather_tools,
    is_parameter,
    redacted_json,
)
from agentest.plugins.page.commands.chat import (
    TerminalUser,
    speaker_lines,
    stdin_reader,
    turn_lines,
    write_stdout,
)
from agentest.plugins.page.talk.talk import PersonConversation, TalkEvent
from agentest.plugins.servers.mcp.real_server import read_tools
from agentest.plugins.servers.start import (
    CallRecorder,
    forwarding_servers,
    prepare_one_conversation,
    refused,
    with_real_tools,
)
from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared, RunRequest, prepare
from agentest.scenarios.function_source import CopiedFunction
from agentest.scenarios.model import Scenario, ScriptedTurn
from agentest.scenarios.source_code import scenarios_source
from agentest.scenarios.trajectory import ExpectedCall, Trajectory
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import path_from, write_for_user
from agentest.support.interrupts import handled_signals, run_event_loop
from agentest.support.json_text import NotJson, json_text
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import say, tell, tell_notes
from agentest.support.text import count, shortened

_SHOWN_RESULT_CHARS = 300
_LAST_WORDS = "agentest: stopped immediately; nothing was written\n"
_NAME_CHARS = 60
_ABOUT = '"""Recorded by `agentest record-tools`: the messages and the tool calls."""'


@click.command("record-tools")
@where
@option("--agent", "NAME", "Talk to this agent of the configuration.")
@option("--say messages", "TEXT", "Send TEXT as the user; repeat it for more turns.", multiple=True)
@flag("--serve", "Start only the servers in front of the real tools.")
@path_option("--output", "Write the mocks to this module (default: recorded_tools.py).")
@path_option("--scenario", "Write the conversation as a scenario, too: NAME.sim.py.")
@flag("--force", "Replace existing files.")
@exits
def record_tools(
    location: Location,
    options: Options,
    messages: tuple[str, ...],
    serve: bool,
    output: Path | None,
    scenario: Path | None,
    force: bool,
) -> ExitCode:
    """Talk to the agent while its real tools answer, and write mocks that give the same results.

    Without --say, you type the user's messages. `agentest run --record-tools` records the calls of
    scenarios.

    Exit status: 0 written, 1 the conversation failed, 2 nothing was recorded, 130 interrupted. Calls that
    were recorded before a failure or an interruption are written.
    """
    project = location.enter()
    if serve and messages:
        raise UsageError("--serve has no conversation: remove --say or --serve")
    if serve and scenario:
        raise UsageError("--serve has no conversation to write as a scenario: remove --scenario or --serve")
    if any(not text.strip() for text in messages):
        raise UsageError('--say is empty; give a message: --say "Book me a haircut"')
    at = targets(
        output and project.path(output),
        scenario and project.path(scenario),
        project.here,
        project.display_path,
        force=force,
    )
    request = request_of(project, options, offline=True)
    prepared, tool_lists = with_tool_list(prepare_one_conversation(request, messages), at)
    tell_notes(prepared.notes)
    recording = ToolRecording(prepared, at, tool_lists, project.display_path)
    with fresh_tool_list(at):
        if serve:
            run_event_loop(_serve, recording)
        else:
            run_event_loop(_record, recording, messages)
    written = write_recording(recording, wanted=not recording.interrupted)
    if recording.interrupted:
        return ExitCode.INTERRUPTED
    if recording.failure:
        tell(f"agentest: the conversation ended early: {prepared.loaded.redact(recording.failure)}")
        return ExitCode.FAILED
    return ExitCode.PASSED if written else ExitCode.ERRORED


def record_run(request: RunRequest, project: Project, select: ScenarioSelection) -> ExitCode:
    """Run the scenarios without their mocks and write the results of the real tools. Raises UsageError."""
    at = targets(None, None, project.here, project.display_path, force=None)
    if request.options.engine_feature.name != "local":
        raise UsageError("--record-tools records calls in one process: remove --engine and --workers")
    if request.options.unmocked_tools == "error":
        raise UsageError("--record-tools calls the real tools: remove --unmocked-tools error")
    prepared, tool_lists = with_tool_list(with_real_tools(select(prepare(request))), at)
    recording = ToolRecording(prepared, at, tool_lists, project.display_path)
    # Without mocks, another run has different conversations, so none resumes this one.
    source = partial(live_agents, on_mocks=recording.recorder.on_mocks)
    status = run_once(prepared, RunVariant(resumed_by="", source=source))
    written = write_recording(recording, wanted=status is not ExitCode.INTERRUPTED)
    return status if written or status is not ExitCode.PASSED else ExitCode.ERRORED


@dataclass(slots=True)
class ToolRecording:
    """Recorded calls, the conversation in which they were made, and the files to write."""

    prepared: Prepared
    at: MockTargets
    tool_list: Mapping[str, Path]  # maps an agent to the file with the tool list of its MCP server
    display_path: Callable[[Path], str]  # formats a path for the user
    recorder: CallRecorder = field(default_factory=CallRecorder)
    turns: tuple[Turn, ...] = ()
    failure: str | None = None
    interrupted: bool = False


def with_tool_list(prepared: Prepared, at: MockTargets) -> tuple[Prepared, dict[str, Path]]:
    """Set a tool list file for each agent with an MCP server, and return the files by agent.

    The file is written when the server is opened.
    """
    root, tool_lists, agents = prepared.request.root, {}, {}
    for name, agent in prepared.plan.agents.items():
        if agent.mcp_mock and agent.mcp_mock.upstream:
            if agent.mcp_mock.tools is None:
                mock_config = agent.mcp_mock.model_copy(update={"tools": str(at.tool_list)})
                agent = agent.model_copy(update={"mcp_mock": mock_config})
            assert agent.mcp_mock
            tool_lists[name] = root / str(agent.mcp_mock.tools)
        agents[name] = agent
    return replace(prepared, plan=replace(prepared.plan, agents=agents)), tool_lists


@contextmanager
def fresh_tool_list(at: MockTargets) -> Iterator[None]:
    """With --force, remove the tool list so that it is recorded again, and restore it if it is not."""
    before = at.tool_list.read_bytes() if at.force and at.tool_list.exists() else None
    if before is not None:
        at.tool_list.unlink()
    try:
        yield
    finally:
        if before is not None and not at.tool_list.exists():
            at.tool_list.write_bytes(before)


def write_recording(recording: ToolRecording, *, wanted: bool = True) -> bool:
    """Write the mocks and print the files. Returns True if any tool call was recorded. Raises UsageError.

    Args:
        wanted: True to print why nothing was recorded.
    """
    recorder, redact = recording.recorder, recording.prepared.loaded.redact
    declared = dict(_declared_tools(recording))
    gathered = gather_tools(recorder.conversations, redact, declared, recorder.statuses)
    tell_notes(gathered.notes)
    if not gathered.tools:
        if wanted:
            tell(f"agentest: {_nothing_recorded_message(recording, gathered)}")
        return False
    module = module_of(gathered.tools, recording.at.stem)
    write_module(module, recording.at)
    for row in _summary_lines(recording, gathered, module):
        say(row)
    return True


async def _record(recording: ToolRecording, messages: Sequence[str]) -> None:
    prepared = recording.prepared

    def show(what: TalkEvent) -> None:
        match what:
            case str():
                tell(f"agentest: {what}")
            case Turn():
                if messages:
                    write_stdout(speaker_lines("you    ", what.user_message))
                write_stdout("".join(turn_lines(what, _SHOWN_RESULT_CHARS)))

    user: User = ScriptedUser(messages)
    if not messages:
        if sys.stdin is not None and sys.stdin.isatty():
            write_stdout("Talk to the agent; its real tools run. /quit ends the conversation.\n\n")
        user = TerminalUser(stdin_reader())
    unit = prepared.plan.units[0]
    talk = PersonConversation(prepared, unit, f"{unit.slug}-1", user, show, recording.recorder.on_mocks)
    with handled_signals(talk.stop, lambda: _LAST_WORDS) as signals:
        conversation = await talk.run()
    recording.turns = talk.turns
    recording.interrupted = bool(signals)
    if signals:
        return
    tell_notes(map(prepared.loaded.redact, refused(talk.observed)))
    recording.failure = conversation.failure.message if conversation and conversation.failure else None


async def _serve(recording: ToolRecording) -> None:
    prepared, serving = recording.prepared, anyio.CancelScope()
    with handled_signals(serving.cancel, lambda: _LAST_WORDS) as signals, serving:
        try:
            async with (
                AsyncExitStack() as stack,
                forwarding_servers(
                    prepared, recording.recorder, stack, lambda text: tell(f"agentest: {text}")
                ) as addresses,
            ):
                for name, url in addresses.by_placeholder.items():
                    say(f"{name}  {url}")
                say("Give the agent these addresses and use it; Ctrl-C ends, and writes the mocks.")
                await anyio.sleep_forever()
        except UsageError as error:
            if not signals:
                raise type(error)(prepared.loaded.redact(str(error))) from None


def _declared_tools(recording: ToolRecording) -> Iterator[tuple[str, ToolDeclaration]]:
    for agent in recording.prepared.plan.agents.values():
        for tool in agent.tools or ():
            yield tool.name, ToolDeclaration(description=tool.description or "", parameters=tool.parameters)
    for path in recording.tool_list.values():
        with suppress(ValueError):  # no server was opened that could have written it
            for entry in read_tools(path):
                schema, about = entry.get("inputSchema"), str(entry.get("description") or "")
                parameters = schema if isinstance(schema, dict) else None
                yield entry["name"], ToolDeclaration(description=about, parameters=parameters)


def _nothing_recorded_message(recording: ToolRecording, gathered: RecordedTools) -> str:
    if gathered.notes:
        return "nothing was recorded, and nothing was written"
    name, agent = next(iter(recording.prepared.plan.agents.items()))
    hidden = "it does not report its calls"
    if agent.mock_servers:
        hidden = "its tools did not call the mock server: give them its address ({{mcp_url}}, {{rest_url}}) "
        hidden += "in place of the real server's"
    return (
        f"nothing was called: agent {name!r} answered without a tool, or {hidden}. Nothing was written; say "
        "something that needs a tool"
    )


def _summary_lines(recording: ToolRecording, gathered: RecordedTools, module: MockModule) -> Iterator[str]:
    at, display = recording.at, recording.display_path
    calls = sum(tool.calls for tool in gathered.tools)
    yield f"{display(at.module)}: mocks of {count(len(gathered.tools), 'tool')}, from {count(calls, 'call')}"
    if module.files:
        folder = display(at.module.parent / next(iter(module.files)).partition("/")[0])
        yield f"{folder}: {count(len(module.files), 'long answer')}"
    if at.tool_list in recording.tool_list.values() and at.tool_list.exists():
        yield (
            f"{display(at.tool_list)}: the tools of the MCP server; write `mcp_mock.tools: "
            f"{path_from(recording.prepared.request.root, at.tool_list)}`, and tests do not need that server"
        )
    if at.scenario:
        yield from _write_scenario(recording, gathered)
    else:
        yield f"in a scenario: from {at.stem} import tools, then scenario(…, tools=tools)"


def _write_scenario(recording: ToolRecording, gathered: RecordedTools) -> Iterator[str]:
    at = recording.at
    assert at.scenario
    if not recording.turns:
        yield "no scenario was written: the agent has replied to nothing"
        return
    agent = next(iter(recording.prepared.plan.agents.values()))
    ways = [] if returns_calls(agent) or agent.mocks_reach_tools else ways_to_mock(agent)
    source = scenario_of(
        recording.turns, gathered.tools, None if ways else at.stem, recording.prepared.loaded.redact
    )
    write_for_user(at.scenario, source.encode())
    yield f"{recording.display_path(at.scenario)}: the conversation as a scenario, for agentest run"
    if ways:
        yield (
            "it has no mocks yet, as none reach the agent's tools: the real ones run again. To have mocks "
            f"answer, {'; or '.join(ways)}"
        )


def scenario_of(
    turns: Sequence[Turn], tools: Sequence[RecordedTool], stem: str | None, redact: Callable[[str], str]
) -> str:
    """Return the source of a `*.sim.py`.

    An argument is expected if its value occurs in a user message or in an earlier answer. Other arguments may
    be the agent's own words, or depend on the date.

    Args:
        tools: the recorded tools; other calls are not expected.
        stem: module of the mocks, without `.py`; None if mocks do not reach the agent's tools.
    """
    messages = [redact(turn.user_message) for turn in turns]
    expected = tuple(_expected(turns, {tool.name for tool in tools}, redact))
    made = Scenario(
        shortened(messages[0], _NAME_CHARS),
        file="",
        line=0,
        turns=tuple(map(ScriptedTurn, messages)),
        trajectory=(Trajectory("contains", expected),) if expected else (),
    )
    mocks = {"tools": CopiedFunction("tools", imports=(f"from {stem} import tools",))} if stem else {}
    return scenarios_source([made], _ABOUT, functions=mocks)


def _expected(turns: Sequence[Turn], tools: Set[str], redact: Callable[[str], str]) -> Iterator[ExpectedCall]:
    """Yield each distinct call once, because agents may repeat calls."""
    known: list[str] = []
    seen: set[str] = set()
    for turn in turns:
        known.append(turn.user_message)
        for call in turn.tool_calls:
            made = _call(call, known, redact)
            with suppress(NotJson):
                known.append(call.result if isinstance(call.result, str) else json_text(call.result))
            key = f"{call.name} {call_key(made.args)}"
            if call.name in tools and key not in seen:
                seen.add(key)
                yield made


def _call(call: ToolCall, known: Sequence[str], redact: Callable[[str], str]) -> ExpectedCall:
    args = call.args if isinstance(call.args, Mapping) else {}
    arguments = {
        key: value
        for key, value in args.items()
        if is_parameter(key) and _is_known(value, known) and redacted_json({key: value}, redact)[key] == value
    }
    return ExpectedCall(call.name, arguments or None)


def _is_known(value: Any, texts: Sequence[str]) -> bool:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        return False
    word = re.compile(rf"(?<!\w){re.escape(str(value))}(?!\w)", re.I)
    return any(word.search(text) for text in texts)
