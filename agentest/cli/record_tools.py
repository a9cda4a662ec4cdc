"""`agentest record-tools`: the real tools answer, and what they answered is written as mocks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from agentest.authoring.recording.files import targets
from agentest.cli.chat import Person, said_by, typed
from agentest.cli.choosing import Choosing
from agentest.cli.engines import LOCAL, engine_name
from agentest.cli.keeping import Keeping
from agentest.cli.kinds import LiveRun
from agentest.cli.recorded import Recording, tell_recorded, tool_list_anew, with_tool_list
from agentest.cli.run import run_once
from agentest.conversation.users import ScriptedUser, User
from agentest.domain.transcript import NO_TEXT, Conversation, Turn, call_text
from agentest.models.open import Models
from agentest.runner.agents import connected_agents, start_servers
from agentest.runner.place import Place
from agentest.runner.ports import with_ports
from agentest.runner.prepare import Prepared, Request, prepare
from agentest.runner.recording import Recorder, one_conversation, refused, serving, with_real_tools
from agentest.runner.signals import handled_signals
from agentest.runner.sources import LiveAgents, SourceFactory, live_conversations
from agentest.support.errors import ExitCode, UsageError
from agentest.support.interrupts import in_event_loop
from agentest.support.terminal import say, tell
from agentest.support.text import shortened

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
