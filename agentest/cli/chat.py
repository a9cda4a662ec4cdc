"""`agentest chat`: a person talks to the configured agent through a scenario's mocks, in the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import anyio

from agentest.conversation.users import Said
from agentest.endings import Ending
from agentest.errors import ExitCode, UsageError
from agentest.llm.open import Models
from agentest.report.server_output import server_rows
from agentest.results import RunWarning
from agentest.run.agents import connected_agents, start_servers
from agentest.run.plan import Unit
from agentest.run.prepare import Prepared
from agentest.run.run import unclaimed_calls
from agentest.run.sources import live_conversations
from agentest.support.calling import in_thread
from agentest.support.terminal import clean_rows, say
from agentest.transcript import NO_TEXT, Conversation, Turn, call_text

QUIT = "/quit"

Write = Callable[[str], None]
ReadLine = Callable[[], str | None]


class Person:
    """A user whose messages are typed in. `read_line` gives None at the end of the input."""

    def __init__(self, read_line: ReadLine, write: Write) -> None:
        self._read_line = read_line
        self._write = write

    async def next_message(self, turns: Sequence[Turn]) -> Said | Ending:
        """What is typed next; an empty line is asked for again."""
        del turns  # the person remembers
        while True:
            self._write("you    ")
            line = await in_thread(self._read_line)
            if line is None or line.strip() == QUIT:
                return Ending.SATISFIED
            if line.strip():
                return Said(line.strip())


def chat(prepared: Prepared, read_line: ReadLine | None = None, write: Write | None = None) -> ExitCode:
    """Hold one conversation. Raises UsageError unless exactly one scenario is selected."""
    units = prepared.plan.units
    if len(units) != 1:
        names = "\n".join(f"  {unit.scenario.name}" for unit in units) or "  (none)"
        raise UsageError(f"chat needs one scenario; choose with --scenario TEXT among\n{names}")
    return anyio.run(_chat, prepared, units[0], read_line or typed(), write or _to_stdout)


async def _chat(prepared: Prepared, unit: Unit, read_line: ReadLine, write: Write) -> ExitCode:
    problem: UsageError | None = None
    conversation: Conversation | None = None
    unclaimed: tuple[RunWarning, ...] = ()
    redact = prepared.loaded.redact

    def note(text: str) -> None:
        write(said_by("! ", redact(text)))

    async with anyio.create_task_group() as tasks:
        try:
            async with AsyncExitStack() as stack:
                started = await start_servers(prepared, stack, tasks, note)
                agents = await connected_agents(prepared, started.client, stack, note)
                write(_introduction(unit))
                source = live_conversations(
                    prepared,
                    agents,
                    Models(),
                    pick_user=lambda *_: Person(read_line, write),
                    registry=started.registry,
                )
                conversation = await source.converse(
                    unit, 1, f"{unit.slug}-chat", lambda turns: write(_shown(turns[-1]))
                )
                unclaimed = unclaimed_calls(prepared, started.registry)
        except UsageError as error:  # kept: a task group would wrap it
            problem = error
        tasks.cancel_scope.cancel()
    if problem:
        raise type(problem)(redact(str(problem)))
    for warning in unclaimed:
        note(warning.message)
    if conversation and conversation.failure:
        note(conversation.failure.message)
        for output in conversation.unfinished.server_output if conversation.unfinished else ():
            write(said_by("! server ", "\n".join(server_rows(output))))
        return ExitCode.FAILED
    if unclaimed:
        return ExitCode.ERRORED
    return ExitCode.PASSED


def _introduction(unit: Unit) -> str:
    scenario = unit.scenario
    facts = "".join(f"\n         - {fact}" for fact in scenario.knowledge)
    lines = [
        f"scenario {scenario.name}",
        f"profile  {scenario.profile}" if scenario.profile else "",
        f"goal     {scenario.goal}" if scenario.goal else "",
        f"knows    {facts.lstrip()}" if facts else "",
        f"tools    {', '.join(scenario.tools) or 'none are mocked'}",
        f"(up to {unit.max_turns} turns; {QUIT} or the end of the input ends the conversation)",
    ]
    return "\n".join(line for line in lines if line) + "\n\n"


def _shown(turn: Turn) -> str:
    calls = "".join(said_by("tool   ", f"{call_text(call)} → {call.result!r}") for call in turn.tool_calls)
    return calls + said_by("agent  ", turn.agent_message or NO_TEXT)


def said_by(who: str, text: str) -> str:
    """What somebody said; indented from the second row on, so that it cannot pass for another speaker."""
    return who + f"\n{' ' * len(who)}".join(clean_rows(text).split("\n")) + "\n"


def _to_stdout(text: str) -> None:
    say(text, end="")


def typed() -> ReadLine:
    """Lines of the standard input, past Python's buffer: a thread that waits there must not block the exit.

    What comes from a file or a pipe is echoed, as a terminal does with what is typed.
    """
    if sys.stdin is None:
        raise UsageError("chat reads what you type from the standard input, which is closed")
    rest = b""
    echo = not sys.stdin.isatty()

    def read_line() -> str | None:
        nonlocal rest
        while b"\n" not in rest:
            piece = os.read(sys.stdin.fileno(), 65536)
            if not piece:
                line, rest = rest, b""
                return line.decode(errors="replace") if line else None
            rest += piece
        line, _, rest = rest.partition(b"\n")
        text = line.decode(errors="replace")
        if echo:
            _to_stdout(f"{text}\n")
        return text

    return read_line
