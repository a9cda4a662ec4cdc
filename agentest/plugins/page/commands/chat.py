"""`agentest chat`: talk to the configured agent in the terminal, with a scenario's mocks.

With `--send`, a process of its own keeps the conversation, and takes one message from each call.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import replace
from pathlib import Path
from secrets import token_hex, token_urlsafe
from tempfile import TemporaryFile
from typing import Any

import click

from agentest.cli.location import Location, request_of
from agentest.cli.options import exits, flag, option, where, which
from agentest.conversation.user import NextMessage
from agentest.domain.end_reason import Ending
from agentest.domain.transcript import NO_TEXT, Conversation, Turn, call_text
from agentest.plugins.page.talk.saved_conversation import free_path, request_named, save_talk
from agentest.plugins.page.talk.talk import (
    FREE,
    MOST_TURNS,
    ActionNotPossible,
    PersonConversation,
    PersonUser,
    TalkChoice,
    TalkEvent,
    prepare_talk,
)
from agentest.report.alignments import server_rows
from agentest.runner.plan import Options, Unit
from agentest.runner.prepare import Prepared, RunRequest, prepare
from agentest.support.errors import AgentestError, ExitCode, UsageError
from agentest.support.files import write_atomically
from agentest.support.function_threads import in_thread
from agentest.support.interrupts import run_event_loop
from agentest.support.json_text import json_document
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import clean_rows, say, tell, tell_notes
from agentest.support.text import cut_middle

QUIT = "/quit"
_IDLE_S = 600.0
_MESSAGE_S = 30.0
_SHOWN = 10
_OFFER = "\nSave it? NAME of a scenario, FILE.evalset.json::NAME of a case, or Enter for no: "

ReadLine = Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class TerminalUser:
    """A user whose messages are typed."""

    read_line: ReadLine  # returns None at the end of the input

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        """Return the next line that is not empty; /quit or the end of the input ends the conversation."""
        del turns  # the person remembers the conversation
        while True:
            write_stdout("you    ")
            line = await in_thread(self.read_line)
            if line is None or line.strip() == QUIT:
                return Ending.SATISFIED
            if line.strip():
                return NextMessage(line.strip())


@click.command()
@where
@which
@option("--send text", "TEXT", "Send one message (-: from standard input) and print the reply.")
@option("--conversation id", "ID", "With --send: go on with this conversation.")
@option("--save", "NAME", "Save the conversation as this scenario; FILE::NAME: in FILE.")
@flag("--json as_json", "With --send: print the reply, its calls and the conversation's id as JSON.")
@click.option("--keep", hidden=True, help="Keep the conversation of this file open.")
@exits
def chat(
    location: Location,
    options: Options,
    text: str | None,
    id: str | None,
    save: str | None,
    as_json: bool,
    keep: str | None,
) -> ExitCode:
    """Talk to the agent yourself, with the mocks of one scenario.

    A project without scenarios, and --send, need none: calls are then answered with null. A conversation of
    --send ends with the message /quit, or after 10 minutes without a message.

    --save writes a scripted scenario, or a case if FILE is an evaluation set. In a terminal, the end of the
    conversation offers it.

    Exit status: 0 the agent replied; 1 the conversation failed; 2 it could not start or be saved.
    """
    project = location.enter()
    text = sys.stdin.read() if text == "-" else text
    if text is None and (id or as_json):
        raise UsageError("--conversation and --json go with --send TEXT")
    if text is not None and id:
        return _show(_sent(text, save, _file_of(project.output_dir, id)), as_json=as_json)
    with redirect_stdout(sys.stdout if text is None else sys.stderr):  # scenario files may print
        request = request_of(project, options, offline=True)
        prepared, unit = _chosen(request, may_be_free=not options.filtered, sends=(keep or text) is not None)
    if keep:
        file = _file_of(project.output_dir, keep)
        try:
            return run_event_loop(_OpenConversation(prepared, replace(unit, max_turns=MOST_TURNS), file).run)
        finally:
            file.unlink(missing_ok=True)
    if text is None:
        if save is not None:
            free_path(request_named(save, unit.scenario, project.root), request)
        return run_event_loop(_chat, prepared, unit, save)
    file = _file_of(project.output_dir, f"{unit.slug}-{token_hex(4)}")
    words = [f"--cwd={project.root}", f"--keep={file.stem}"]
    words += [f"--scenario=={unit.scenario.name}"] if unit.scenario.name != FREE else []
    words += [f"--config={project.named_config}"] if project.named_config else []
    words += [f"--agent={options.agent}"] if options.agent else []
    _start(file, words)
    return _show(_sent(text, save, file), as_json=as_json)


def _chosen(request: RunRequest, *, may_be_free: bool, sends: bool) -> tuple[Prepared, Unit]:
    """Return the only scenario, or a conversation without one. Raises UsageError if neither can be meant."""
    prepared = prepare(request, may_be_empty=may_be_free)
    units = prepared.plan.units
    if len(units) == 1:
        return prepared, units[0]
    if may_be_free and (sends or not units):
        free = replace(request, options=replace(request.options, unmocked_tools="passthrough"))
        talk = prepare_talk(free, TalkChoice(agent=request.options.agent))
        return talk.prepared, talk.unit
    names = [f"\n  {unit.scenario.name}" for unit in units[:_SHOWN]] or ["\n  (none)"]
    names += [f"\n  and {len(units) - _SHOWN:,} more"] if len(units) > _SHOWN else []
    raise UsageError(f"chat needs one scenario; choose with --scenario TEXT among{''.join(names)}")


def _file_of(output_dir: Path, id: str) -> Path:
    """Return the file with the address of the process that keeps a conversation."""
    if not re.fullmatch(r"[\w.-]+", id):
        raise UsageError(f"--conversation {id[:80]!r} is not an id that --send has printed")
    return output_dir / "talks" / f"{id}.json"


def _start(file: Path, words: Sequence[str]) -> None:
    """Start the process that keeps a conversation. Raises UsageError with its output if it ends at once."""
    file.parent.parent.mkdir(exist_ok=True)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    with TemporaryFile() as output:
        process = subprocess.Popen(
            (sys.executable, "-m", "agentest", "chat", *words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        while not file.exists():
            if process.poll() is not None:
                output.seek(0)
                text = output.read().decode(errors="replace").strip().removeprefix("agentest: ")
                raise UsageError(text or f"the conversation ended with exit status {process.returncode}")
            time.sleep(0.05)


def _sent(text: str, save: str | None, file: Path) -> dict[str, Any]:
    """Send a message to the process that keeps a conversation, and return its answer."""
    try:
        kept = json.loads(file.read_bytes())
        with socket.create_connection(("127.0.0.1", kept["port"])) as connection:
            asked = {"token": kept["token"], "text": text, "save": save}
            connection.sendall(json.dumps(asked).encode() + b"\n")
            answer: dict[str, Any] = json.loads(connection.makefile("rb").read())
    except (OSError, ValueError):
        file.unlink(missing_ok=True)  # its process is gone
        going_on = ", ".join(each.stem for each in sorted(file.parent.glob("*.json")) if each != file)
        raise UsageError(
            f"the conversation {file.stem} does not go on (those that do: {going_on or 'none'}). Begin one: "
            "agentest chat --send TEXT"
        ) from None
    if problem := answer.get("refused"):
        raise UsageError(problem)
    return answer


def _show(answer: dict[str, Any], *, as_json: bool) -> ExitCode:
    errored = answer.pop("errored", False)
    calls = (("tool   ", f"{call['text']} → {call['result']!r}") for call in answer["calls"])
    reply = [] if answer["reply"] is None else [("agent  ", answer["reply"] or NO_TEXT)]
    lines = [speaker_lines(*each) for each in (*(("! ", note) for note in answer["notes"]), *calls, *reply)]
    write_stdout(json_document(answer) if as_json else "".join(lines))
    go_on = f"go on with agentest chat --conversation {answer['conversation']} --send TEXT"
    ended = f"the conversation has ended: {answer['error'] or answer['ended']}"
    tell(f"agentest: {ended if answer['ended'] else go_on}")
    return ExitCode.FAILED if answer["error"] else ExitCode.ERRORED if errored else ExitCode.PASSED


class _OpenConversation:
    """A conversation whose messages come one by one from other processes."""

    def __init__(self, prepared: Prepared, unit: Unit, file: Path) -> None:
        self._id, self._file, self._redact = file.stem, file, prepared.loaded.redact
        self._news = asyncio.Queue[None]()  # the conversation waits for a message, or has ended
        self._said: dict[str, Any] = {}
        self._notes: list[str] = []
        self._one_at_a_time = asyncio.Lock()
        self._token = token_urlsafe()
        self._person = PersonUser(lambda: self._news.put_nowait(None))
        self._talk = PersonConversation(prepared, unit, self._id, self._person, self._tell)

    async def run(self) -> ExitCode:
        """Answer messages until the conversation ends. Raises UsageError if it cannot begin."""
        self._conversation = asyncio.create_task(self._talk.run())
        self._conversation.add_done_callback(lambda _: self._news.put_nowait(None))
        self._idle = asyncio.get_running_loop().call_later(_IDLE_S, self._person.leave)
        await self._news.get()
        if self._conversation.done():
            self._conversation.result()
            raise UsageError("; ".join(self._notes) or "the conversation ended before its first message")
        async with await asyncio.start_server(self._answer, "127.0.0.1", 0, limit=2**24) as server:
            address = {"port": server.sockets[0].getsockname()[1], "token": self._token}
            write_atomically(self._file, json.dumps(address).encode())
            await asyncio.wait({self._conversation})
            async with self._one_at_a_time:  # the last message gets its answer
                return ExitCode.PASSED

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            async with asyncio.timeout(_MESSAGE_S):
                asked = json.loads(await reader.readline())
            async with self._one_at_a_time:
                if asked["token"] == self._token:
                    self._idle.cancel()
                    self._idle = asyncio.get_running_loop().call_later(_IDLE_S, self._person.leave)
                    answer = await self._reply(asked["text"], asked["save"])
                    writer.write(json.dumps(answer, default=str).encode())
                    await writer.drain()

    async def _reply(self, text: str, save: str | None) -> dict[str, Any]:
        leaves = text.strip() == QUIT
        found: dict[str, Any] = dict.fromkeys(("conversation", "reply", "calls", "ended", "error"))
        found |= {"conversation": self._id, "calls": [], "errored": False}
        if not leaves:
            try:
                self._person.say(text)
            except ActionNotPossible as error:
                return {"refused": str(error)}
            await self._news.get()
        if save is not None:
            try:
                self._notes += await in_thread(save_talk, self._talk, save)
            except UsageError as error:  # it goes on, so that it can be saved under another name
                self._notes.append(f"the conversation is not saved: {error}")
                found["errored"], leaves = True, False
        if leaves and self._person.leave():
            await self._news.get()
        if self._conversation.done():
            try:
                ended = self._conversation.result()
            except AgentestError as error:
                return {"refused": self._redact(str(error))}
            self._notes += [text for _, text in _last_notes(self._talk, ended)]
            if ended:
                failure = self._redact(ended.failure.message) if ended.failure else None
                found |= {"ended": str(ended.ending), "error": failure}
            found["errored"] |= bool(self._talk.unclaimed)
        found |= {**self._said, "notes": list(map(self._redact, self._notes))}
        self._said.clear()
        self._notes.clear()
        return found

    def _tell(self, what: TalkEvent) -> None:
        match what:
            case str():
                self._notes.append(what)
            case Turn():
                calls = [
                    {"name": call.name, "args": call.args, "result": call.result, "text": call_text(call)}
                    for call in what.tool_calls
                ]
                self._said.update(reply=what.agent_message or "", calls=calls)


async def _save_or_offer(talk: PersonConversation, save: str | None, read_line: ReadLine) -> None:
    """Save the conversation. In a terminal, ask for a name, and again if it is not possible."""
    offers = bool(talk.turns) and sys.stdin.isatty()
    while save or offers:
        try:
            if save:
                return tell_notes(await in_thread(save_talk, talk, save))
        except UsageError as error:
            if not offers:
                raise
            tell_notes([str(error)])
        write_stdout(_OFFER)
        save = (await in_thread(read_line) or "").strip()
        offers = bool(save)


async def _chat(prepared: Prepared, unit: Unit, save: str | None) -> ExitCode:
    def show(what: TalkEvent) -> None:
        match what:
            case Unit():
                write_stdout(_introduction(what))
            case str():
                write_stdout(speaker_lines("! ", what))
            case Turn():
                write_stdout("".join(turn_lines(what)))

    read_line = stdin_reader()
    talk = PersonConversation(prepared, unit, f"{unit.slug}-chat", TerminalUser(read_line), show)
    conversation = await talk.run()
    failure = conversation and conversation.failure
    said = [("! ", failure.message)] if failure else []
    for speaker, text in (*said, *_last_notes(talk, conversation)):
        write_stdout(speaker_lines(speaker, prepared.loaded.redact(text)))
    await _save_or_offer(talk, save, read_line)
    return ExitCode.FAILED if failure else ExitCode.ERRORED if talk.unclaimed else ExitCode.PASSED


def _last_notes(talk: PersonConversation, conversation: Conversation | None) -> Iterator[tuple[str, str]]:
    """Yield calls that belong to no conversation, and what the agent's server printed before it failed."""
    yield from (("! ", warning.message) for warning in talk.unclaimed)
    if conversation and conversation.failure and conversation.unfinished:
        yield from (
            ("! server ", "\n".join(server_rows(each))) for each in conversation.unfinished.server_output
        )


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


def turn_lines(turn: Turn, limit: int = sys.maxsize) -> Iterator[str]:
    """Yield the rows of a reply: its text, after the calls with their results, in `limit` characters each."""
    for call in turn.tool_calls:
        texts = call_text(call), repr(call.result)
        yield speaker_lines("tool   ", " → ".join(cut_middle(text, limit) for text in texts))
    yield speaker_lines("agent  ", turn.agent_message or NO_TEXT)


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

    def read_line() -> str | None:
        nonlocal rest
        while b"\n" not in rest and (piece := os.read(sys.stdin.fileno(), 65536)):
            rest += piece
        line, end, rest = rest.partition(b"\n")
        if not (line or end):
            return None
        text = line.decode(errors="replace")
        if not sys.stdin.isatty():
            write_stdout(f"{text}\n")
        return text

    return read_line
