"""`agentest chat`: talk to the configured agent in the terminal, with a scenario's mocks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import click

from agentest.cli.location import Location, request_of
from agentest.cli.options import exits, where, which
from agentest.conversation.user import NextMessage
from agentest.domain.end_reason import Ending
from agentest.domain.transcript import NO_TEXT, Turn, call_text
from agentest.plugins.page.talk.talk import (
    MessageSent,
    PersonConversation,
    Ready,
    Replied,
    TalkEvent,
    TalkNote,
)
from agentest.report.alignments import server_rows
from agentest.runner.plan import Options, Unit
from agentest.runner.prepare import Prepared, prepare
from agentest.support.errors import ExitCode, UsageError
from agentest.support.function_threads import in_thread
from agentest.support.interrupts import run_event_loop
from agentest.support.terminal import clean_rows, say

QUIT = "/quit"

Write = Callable[[str], None]
ReadLine = Callable[[], str | None]


class TerminalUser:
    """A user whose messages are typed. `read_line` returns None at the end of the input."""

    def __init__(self, read_line: ReadLine, write: Write) -> None:
        self._read_line = read_line
        self._write = write

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        """Return the next line that is not empty; /quit or the end of the input ends the conversation."""
        del turns  # the person remembers the conversation
        while True:
            self._write("you    ")
            line = await in_thread(self._read_line)
            if line is None or line.strip() == QUIT:
                return Ending.SATISFIED
            if line.strip():
                return NextMessage(line.strip())


@click.command()
@where
@which
@exits
def chat(location: Location, options: Options) -> ExitCode:
    """Talk to the agent yourself, with the mocks of one scenario."""
    prepared = prepare(request_of(location.enter(), options, offline=True))
    units = prepared.plan.units
    if len(units) != 1:
        names = "\n".join(f"  {unit.scenario.name}" for unit in units) or "  (none)"
        raise UsageError(f"chat needs one scenario; choose with --scenario TEXT among\n{names}")
    return run_event_loop(_chat, prepared, units[0], stdin_reader(), write_stdout)


async def _chat(prepared: Prepared, unit: Unit, read_line: ReadLine, write: Write) -> ExitCode:
    def tell(what: TalkEvent) -> None:
        match what:
            case Ready():
                write(_introduction(what.unit))
            case TalkNote():
                write(speaker_lines("! ", what.text))
            case Replied():
                for call in what.turn.tool_calls:
                    write(speaker_lines("tool   ", f"{call_text(call)} → {call.result!r}"))
                write(speaker_lines("agent  ", what.turn.agent_message or NO_TEXT))
            case MessageSent():  # the person typed it
                pass

    person = TerminalUser(read_line, write)
    outcome = await PersonConversation(prepared, unit, f"{unit.slug}-chat", person, tell).run()
    for warning in outcome.unclaimed:
        write(speaker_lines("! ", prepared.loaded.redact(warning.message)))
    conversation = outcome.conversation
    if conversation and conversation.failure:
        write(speaker_lines("! ", prepared.loaded.redact(conversation.failure.message)))
        for output in conversation.unfinished.server_output if conversation.unfinished else ():
            write(speaker_lines("! server ", "\n".join(server_rows(output))))
        return ExitCode.FAILED
    return ExitCode.ERRORED if outcome.unclaimed else ExitCode.PASSED


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


def speaker_lines(who: str, text: str) -> str:
    """Format a message with its speaker. Later lines are indented, so that they cannot imitate a speaker."""
    return who + f"\n{' ' * len(who)}".join(clean_rows(text).split("\n")) + "\n"


def write_stdout(text: str) -> None:
    """Write a text to standard output as it is, without a line end."""
    say(text, end="")


def stdin_reader() -> ReadLine:
    """Return a function that reads lines from standard input.

    It bypasses Python's buffer, because a thread that waits in a buffered read blocks the exit. Input
    from a file or a pipe is echoed, as a terminal echoes what is typed.

    Raises UsageError if standard input is closed.
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
            write_stdout(f"{text}\n")
        return text

    return read_line
