"""`agentest record-tools`: the real tools answer, and what they answered is written as mocks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from agentest.authoring.mock_module import Module, Targets, module_of, targets, write_module, write_text
from agentest.authoring.recorded_calls import Declared, Gathered, gather
from agentest.authoring.recorded_scenario import scenario_of
from agentest.cli.chat import Person, said_by, typed
from agentest.cli.engines import LOCAL, engine_name
from agentest.cli.run import run_once
from agentest.cli.run_output import Keeping, LiveRun
from agentest.cli.selection import Choosing
from agentest.conversation.simulated_user import ScriptedUser, User
from agentest.domain.transcript import NO_TEXT, Conversation, Turn, call_text
from agentest.models.factory import Models
from agentest.runner.agents import connected_agents, start_servers, with_ports
from agentest.runner.environment import Place
from agentest.runner.mock_servers import (
    Recorder,
    one_conversation,
    refused,
    serving,
    ways_to_mocks,
    with_real_tools,
)
from agentest.runner.prepare import Prepared, Request, prepare
from agentest.runner.run import handled_signals
from agentest.runner.sources import LiveAgents, SourceFactory, live_conversations
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import path_from, user_text
from agentest.support.interrupts import in_event_loop
from agentest.support.json_text import json_value
from agentest.support.terminal import say, tell
from agentest.support.text import count, shortened

_SHOWN_RESULT_CHARS = 300
_LAST_WORDS = "agentest: ended at once; nothing was written\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the command line asks for."""

    say: tuple[str, ...] = ()
    """The user's messages; (): they are typed in."""
    serve: bool = False
    """Whether nobody is talked to: the servers wait for calls."""
    output: Path | None = None
    scenario: Path | None = None
    force: bool = False


def record_tools(request: Request, wish: Wish, place: Place) -> ExitCode:
    """Hold one conversation, or serve, and write the mocks. Raises UsageError."""
    _check(wish)
    at = targets(
        wish.output and place.path(wish.output),
        wish.scenario and place.path(wish.scenario),
        place.here,
        place.shown,
        force=wish.force,
    )
    prepared, kept = with_tool_list(one_conversation(request, wish.say), at)
    for note in prepared.notes:
        tell(f"agentest: {note}")
    recorder = Recorder()
    with tool_list_anew(at):
        held = in_event_loop(_recorded, prepared, wish, recorder)
    recording = Recording(
        prepared=prepared,
        recorder=recorder,
        at=at,
        tool_list=kept,
        shown=place.shown,
        turns=held.turns,
    )
    written = tell_recorded(recording, wanted=not held.interrupted)
    if held.interrupted:
        return ExitCode.INTERRUPTED
    if held.failure:
        tell(f"agentest: the conversation ended early: {prepared.loaded.redact(held.failure)}")
        return ExitCode.FAILED
    return ExitCode.PASSED if written else ExitCode.ERRORED


def record_run(request: Request, place: Place, choose: Choosing) -> ExitCode:
    """Run the scenarios without their mocks, and write what the real tools answered. Raises UsageError."""
    at = targets(None, None, place.here, place.shown, force=None)
    if engine_name(request.options) != LOCAL:
        raise UsageError("--record-tools keeps calls in one process: leave --engine and --workers out")
    if request.options.unmocked_tools == "error":
        raise UsageError("--record-tools has the real tools answer; leave --unmocked-tools error out")
    prepared, kept = with_tool_list(with_real_tools(choose(prepare(request))), at)
    recorder = Recorder()
    status = run_once(prepared, RecordedRun(recorder=recorder))
    recording = Recording(prepared=prepared, recorder=recorder, at=at, tool_list=kept, shown=place.shown)
    written = tell_recorded(recording, wanted=status is not ExitCode.INTERRUPTED)
    return status if written or status is not ExitCode.PASSED else ExitCode.ERRORED


@dataclass(frozen=True, slots=True)
class RecordedRun(LiveRun):
    """Conversations with the agents, now, whose calls are kept."""

    recorder: Recorder = field(default_factory=Recorder)
    resumed_by: str = ""  # mocks are left out: other runs hold other conversations

    def source(self, keeping: Keeping | None) -> SourceFactory:
        on_mocks = self.recorder.on_mocks
        if keeping is None:
            return LiveAgents(on_mocks=on_mocks)
        return LiveAgents(on_mocks, keeping.keep_span, keeping.keep_output)


def _check(wish: Wish) -> None:
    if wish.serve and wish.say:
        raise UsageError("--serve talks to nobody: leave --say out, or --serve")
    if wish.serve and wish.scenario:
        raise UsageError("--serve has no conversation of which --scenario could be written: leave one out")
    if any(not text.strip() for text in wish.say):
        raise UsageError('--say: is empty; write what the user says: --say "Book me a haircut"')


@dataclass(slots=True)
class _Held:
    """What has come of the conversation."""

    turns: tuple[Turn, ...] = ()
    failure: str | None = None
    interrupted: bool = False


async def _recorded(prepared: Prepared, wish: Wish, recorder: Recorder) -> _Held:
    held, problem = _Held(), None
    with handled_signals(lambda: tasks.cancel_scope.cancel(), lambda: _LAST_WORDS) as signals:
        async with anyio.create_task_group() as tasks:
            try:
                async with AsyncExitStack() as stack:
                    if wish.serve:
                        await _serve(prepared, recorder, stack)
                    else:
                        await _converse(prepared, wish, recorder, stack, tasks, held)
            except UsageError as error:  # kept: a task group would wrap it
                problem = error
            tasks.cancel_scope.cancel()
        held.interrupted = bool(signals) and not wish.serve
    if problem and not signals:
        raise type(problem)(prepared.loaded.redact(str(problem)))
    return held


async def _converse(
    prepared: Prepared,
    wish: Wish,
    recorder: Recorder,
    stack: AsyncExitStack,
    tasks: TaskGroup,
    held: _Held,
) -> None:
    redact = prepared.loaded.redact

    def show(turns: Sequence[Turn]) -> None:
        held.turns = tuple(turns)
        for row in _shown(turns[-1], typed_in=not wish.say):
            say(redact(row), end="")

    def note(text: str) -> None:
        tell(f"agentest: {redact(text)}")

    unit = prepared.plan.units[0]
    user = _user(wish)
    prepared = stack.enter_context(with_ports(prepared))
    started = await start_servers(prepared, stack, tasks, note)
    agents = await connected_agents(prepared, started.client, stack, note)
    source = live_conversations(
        prepared,
        agents,
        Models(),
        pick_user=lambda *_: user,
        registry=started.registry,
        on_mocks=recorder.on_mocks,
    )
    conversation: Conversation = await source.converse(unit, 1, f"{unit.slug}-1", show)
    held.turns = conversation.turns
    for text in refused(started.registry):
        note(text)
    held.failure = conversation.failure.message if conversation.failure else None


def _user(wish: Wish) -> User:
    if wish.say:
        return ScriptedUser(wish.say)
    if sys.stdin is not None and sys.stdin.isatty():
        say("Talk to the agent; its real tools run. /quit ends the conversation.\n\n", end="")
    return Person(typed(), lambda text: say(text, end=""))


def _shown(turn: Turn, *, typed_in: bool) -> Iterator[str]:
    if not typed_in:
        yield said_by("you    ", turn.user_message)
    for call in turn.tool_calls:
        answer = shortened(str(call.error or call.result), _SHOWN_RESULT_CHARS)
        yield said_by("tool   ", f"{shortened(call_text(call), _SHOWN_RESULT_CHARS)} → {answer}")
    yield said_by("agent  ", turn.agent_message or NO_TEXT)


async def _serve(prepared: Prepared, recorder: Recorder, stack: AsyncExitStack) -> None:
    """Let the mock servers stand before the real tools until a signal ends it."""
    addresses = await stack.enter_async_context(
        serving(prepared, recorder, stack, lambda text: tell(f"agentest: {text}"))
    )
    for name, url in addresses.by_placeholder.items():
        say(f"{name}  {url}")
    say("Give the agent these addresses and use it; Ctrl-C ends, and writes the mocks.")
    await anyio.sleep_forever()


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
