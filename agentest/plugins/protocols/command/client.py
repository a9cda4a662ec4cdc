"""Client for agents that are programs: one process per turn, or one per conversation (`input: jsonl`)."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import anyio
from anyio.lowlevel import checkpoint

from agentest.agents.call_source_addresses import with_user_variables
from agentest.agents.json_reader import read_text
from agentest.agents.placeholders import TurnValues, last_message
from agentest.agents.port import Agent, AgentNotes, AgentReply, NoReply, Resources, TurnContext
from agentest.domain.messages import Message
from agentest.plugins.protocols.command.settings import CommandAgent
from agentest.plugins.protocols.dialogue import MessagePaths, TurnReader, last_results
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, CannotSend, ConfigError, errors_as
from agentest.support.http.bodies import MAX_BODY_BYTES
from agentest.support.http.retries import describe_shortage, shortage_in
from agentest.support.process_groups import ChildProcess, OutputTail, search_path, start_process
from agentest.support.templates import Template, as_text
from agentest.support.trace_context import note_request

_OUTPUT = "what the agent's command wrote"
_BODIES = {"json": {"messages": "{{messages}}"}, "jsonl": {"message": "{{message}}"}}
_PIECE_BYTES = 65536
_LOG_CHARS = 2000
_FINAL_OUTPUT_S = 1.0
_GRACE_S = 2.0


def open_agent(name: str, config: CommandAgent, resources: Resources) -> CommandClient:
    """Return the client of a program. Raises ConfigError if the program or its folder does not exist."""
    cwd = resources.root / (config.cwd or ".")
    if not cwd.is_dir():
        raise ConfigError(f"agent {name!r}: cwd: the folder {cwd} does not exist")
    program = config.command[0]
    program_path = (cwd / program).is_file() if "/" in program else shutil.which(program, path=search_path())
    if not program_path:
        raise ConfigError(
            f"agent {name!r}: command: found no program {program!r}"
            + ("" if "/" in program else " on the PATH")
        )
    return CommandClient(config, cwd, resources)


class CommandClient:
    """Starts the program. Stores no conversation state."""

    def __init__(self, config: CommandAgent, cwd: Path, resources: Resources) -> None:
        self.name = config.name
        self._input = config.input
        self._command_template = Template(config.command)
        self._env = Template(config.env)
        self._body = Template(_BODIES.get(config.input) if config.body is None else config.body)
        self.takes_history = "messages" in self._body.names
        self._as_argument = config.input == "argument" and "message" not in self._command_template.names
        self._is_json = config.input == "json" or config.reply is not None or config.tool_calls is not None
        self.form = MessagePaths.of(config)
        self._cwd = cwd
        self.timeout_s = resources.timeout_s  # the longest time that one reply may take
        self._notes = AgentNotes(config.name, resources.on_note)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        """Open a conversation: one process for all of it if `input` is `jsonl`."""
        async with AsyncExitStack() as stack:
            yield self if self._input != "jsonl" else CommandConversation(self, stack)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Run the program for one turn and return its reply. Raises AgentError, CannotSend."""
        values = TurnValues(messages, ctx)
        limit = TimeLimit(self.timeout_s)
        program = await self.start(values, messages)
        content = b""
        if self._input == "stdin":
            content = last_message(messages).encode(errors="replace")
        elif self._input == "json":
            content = self.line(values)
        try:
            with limit:
                program.write(content, last=True)
                output = await program.finished()
        except TimeoutError:
            raise NoReply(self.too_late(program)) from None
        finally:
            await program.end()
        return replace(self._read(output, ctx.turn_index), latency_ms=limit.elapsed * 1000)

    async def start(self, values: TurnValues, messages: Sequence[Message]) -> Program:
        """Start the program for a turn or a conversation."""
        words = [as_text(word) for word in self._command_template.filled(values)]
        if self._as_argument:
            words.append(last_message(messages))
        env: Mapping[str, Any] = self._env.filled(values)
        env = with_user_variables(values.environment, {name: as_text(value) for name, value in env.items()})
        program = await Program.start(words, env, self._cwd)
        note_request(stays_open=self._input == "jsonl")
        return program

    def line(self, values: TurnValues) -> bytes:
        """Return the request body as a line of JSON."""
        return json.dumps(self._body.filled(values), ensure_ascii=False).encode(errors="replace") + b"\n"

    def too_late(self, program: Program) -> str:
        """Return the error message for a program that did not answer in time."""
        seconds = f"{self.timeout_s:g} s (request_timeout_ms)"
        return f"the agent's command did not answer within {seconds}{program.log}"

    def hearing(self, turn_index: int) -> TurnReader:
        """Return a reader for the messages of a turn."""
        return TurnReader(self.form, turn_index, self._notes)

    def _read(self, output: bytes, turn_index: int) -> AgentReply:
        text = output.decode("utf-8", errors="replace").strip()
        if not self._is_json:
            return AgentReply(text or None)
        value, hearing = read_text(text, _OUTPUT), self.hearing(turn_index)
        with errors_as(hearing.no_reply, "", AgentError):
            hearing.hear(value)
            return hearing.answer()


class CommandConversation:
    """One conversation with one process, over lines of JSON."""

    def __init__(self, client: CommandClient, stack: AsyncExitStack) -> None:
        self.name = client.name
        self._client = client
        self._stack = stack
        self._program: Program | None = None
        self._hearing: TurnReader | None = None

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Return the reply to a user message or to tool results. Raises NoReply."""
        values = TurnValues(messages, ctx)
        if self._program is None:
            self._program = await self._client.start(values, messages)
            self._stack.push_async_callback(self._program.end)
        limit = TimeLimit(self._client.timeout_s)
        if self._hearing is None:
            self._hearing = self._client.hearing(ctx.turn_index)
        hearing = self._hearing
        try:
            with limit:
                self._send(self._program, messages, values)
                await self._read_turn(self._program, hearing, limit)
            if hearing.done:
                self._hearing = None
            return hearing.reply(limit)
        except TimeoutError:
            raise hearing.no_reply(self._client.too_late(self._program)) from None
        except AgentError as error:
            raise hearing.no_reply(str(error)) from None

    def _send(self, program: Program, messages: Sequence[Message], values: TurnValues) -> None:
        results = last_results(messages)
        if not results:
            program.write(self._client.line(values))
        for result in results:
            program.write(json.dumps(self._client.form.response(result)).encode() + b"\n")

    async def _read_turn(self, program: Program, hearing: TurnReader, limit: TimeLimit) -> None:
        received_bytes = 0
        while not hearing.is_over:
            line = await program.line()
            received_bytes += len(line or b"")
            if received_bytes > MAX_BODY_BYTES:
                raise program.output_limit_error()
            # A program may write lines without end, and reading a buffered line never yields to other tasks.
            await checkpoint()
            if line is None:
                how = await program.how_it_ended()
                raise AgentError(f"the agent's command ended before its turn was done: {how}")
            if line.strip():
                hearing.hear(read_text(line.decode("utf-8", errors="replace"), _OUTPUT), limit)


class Program:
    """A running program, without a shell."""

    def __init__(
        self, process: ChildProcess, output: asyncio.StreamReader, log: OutputTail, name: str
    ) -> None:
        self._process = process
        self._output = output
        self._log = log
        self._name = name

    @classmethod
    async def start(cls, words: Sequence[str], env: Mapping[str, str], cwd: Path) -> Self:
        """Start a program. `env` has variables in addition to those of this process.

        Raises AgentError if it cannot be started. Raises CannotSend if the arguments are too long or if this
        machine has no processes or file descriptors left.
        """
        problem = f"the command {words[0]!r} cannot be started"
        output, log = asyncio.StreamReader(limit=MAX_BODY_BYTES), OutputTail(_LOG_CHARS)
        received = asyncio.StreamReaderProtocol(output)
        try:
            process = await start_process(
                list(words), cwd=cwd, env=env, stdin=True, stdout=received, stderr=log
            )
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) or error.errno == errno.E2BIG:
                raise CannotSend(  # ValueError: a NUL in an argument
                    f"the command {words[0]!r} cannot be given the message as an argument ({error}); let it "
                    "read the message: input: stdin"
                ) from None
            if shortage_in([error]):
                raise CannotSend(describe_shortage(problem, error)) from None
            raise AgentError(f"{problem}: {error}") from None
        return cls(process, output, log, words[0])

    def write(self, content: bytes, *, last: bool = False) -> None:
        """Write to standard input, and close it after the `last` write."""
        stdin = self._process.stdin
        if stdin and not stdin.is_closing():
            stdin.write(content)
            if last:
                stdin.close()  # written data is still sent

    async def line(self) -> bytes | None:
        """Return the next line of output, or None at the end. Raises AgentError for an overlong line."""
        try:
            return await self._output.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial or None
        except asyncio.LimitOverrunError:
            raise self.output_limit_error() from None

    async def finished(self) -> bytes:
        """Wait for a successful exit and return the whole output. Raises AgentError."""
        written: list[bytes] = []
        reading = asyncio.ensure_future(self._read_into(written))
        ending = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            self.check_status(await ending)
            # A child of the program may keep the output open, so stop reading soon after the exit.
            await asyncio.wait({reading}, timeout=_FINAL_OUTPUT_S)
        finally:
            for task in (reading, ending):
                task.cancel()
            await asyncio.wait({reading, ending})
        return b"".join(written)

    async def _read_into(self, written: list[bytes]) -> None:
        size = 0
        while piece := await self._output.read(_PIECE_BYTES):
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise self.output_limit_error()
            written.append(piece)

    def check_status(self, status: int | None) -> None:
        """Raise AgentError if the exit status reports a failure."""
        if status:
            how = f"was ended by signal {-status}" if status < 0 else f"exited with status {status}"
            raise AgentError(f"the command {self._name!r} {how}{self.log}")

    async def how_it_ended(self) -> str:
        """Describe the exit status of a program that has closed its output."""
        with anyio.move_on_after(_FINAL_OUTPUT_S):
            return f"it exited with status {await self._process.wait()}{self.log}"
        return f"it closed its output and runs on{self.log}"

    @property
    def log(self) -> str:
        """The end of standard error, as the end of a message."""
        text = self._log.text
        return f"; its log ends with:\n{text}" if text else "; it logged nothing"

    def output_limit_error(self) -> AgentError:
        """Return the error for unlimited output."""
        return AgentError(f"the command {self._name!r} wrote more than {MAX_BODY_BYTES // 2**20} MB")

    async def end(self) -> None:
        """End its processes, even if the program has exited, because its children may still run."""
        await self._process.end(_GRACE_S)
