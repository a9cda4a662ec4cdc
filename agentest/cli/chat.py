"""`agentest chat`: a person talks to the configured agent through a scenario's mocks, in the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from agentest.conversation.simulated_user import Said
from agentest.domain.end_reason import Ending
from agentest.domain.transcript import NO_TEXT, Turn, call_text
from agentest.report.phrases import server_rows
from agentest.runner.plan import Unit
from agentest.runner.prepare import Prepared
from agentest.runner.talk import Happening, Noted, Ready, Replied, Spoke, Talking
from agentest.support.errors import ExitCode, UsageError
from agentest.support.function_threads import in_thread
from agentest.support.interrupts import in_event_loop
from agentest.support.terminal import clean_rows, say

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
    return in_event_loop(_chat, prepared, units[0], read_line or typed(), write or _to_stdout)


async def _chat(prepared: Prepared, unit: Unit, read_line: ReadLine, write: Write) -> ExitCode:
    def tell(what: Happening) -> None:
        if told := _told(what):
            write(told)

    person = Person(read_line, write)
    held = await Talking(prepared, unit, f"{unit.slug}-chat", person, tell).run()
    for warning in held.unclaimed:
        write(said_by("! ", prepared.loaded.redact(warning.message)))
    conversation = held.conversation
    if conversation and conversation.failure:
        write(said_by("! ", prepared.loaded.redact(conversation.failure.message)))
        for output in conversation.unfinished.server_output if conversation.unfinished else ():
            write(said_by("! server ", "\n".join(server_rows(output))))
        return ExitCode.FAILED
    return ExitCode.ERRORED if held.unclaimed else ExitCode.PASSED


def _told(what: Happening) -> str:
    """What is written of a happening; "" for what the person has typed."""
    match what:
        case Ready():
            return _introduction(what.unit)
        case Noted():
            return said_by("! ", what.text)
        case Replied():
            return _shown(what.turn)
        case Spoke():
            return ""


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
