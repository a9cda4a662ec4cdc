"""An agent that is a program: a process for each turn, or one for each conversation."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from anyio.lowlevel import checkpoint

from agentest.agents.command.program import Invocation, Program
from agentest.agents.dialogue import Form, Hearing, last_results
from agentest.agents.notes import Notes
from agentest.agents.placeholders import TurnValues, last_message
from agentest.agents.port import Agent, AgentReply, NoReply, Resources, TurnContext
from agentest.agents.reading import read_text
from agentest.config.agents.command import CommandAgent
from agentest.domain.messages import Message
from agentest.mock_servers.telemetry import with_own
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, ConfigError
from agentest.support.http.bodies import MAX_BODY_BYTES
from agentest.support.processes.groups import Reaper, search_path
from agentest.support.templates import Template, as_text
from agentest.support.trace_context import note_request

_OUTPUT = "what the agent's command wrote"
_BODIES = {"json": {"messages": "{{messages}}"}, "jsonl": {"message": "{{message}}"}}


def open_agent(name: str, config: CommandAgent, resources: Resources) -> CommandClient:
    """The client of a program. Raises ConfigError for one that is not there."""
    cwd = resources.root / (config.cwd or ".")
    if not cwd.is_dir():
        raise ConfigError(f"agent {name!r}: cwd: the folder {cwd} does not exist")
    program = config.command[0]
    found = (cwd / program).is_file() if "/" in program else shutil.which(program, path=search_path())
    if not found:
        raise ConfigError(
            f"agent {name!r}: command: there is no program {program!r}"
            + ("" if "/" in program else " on the PATH")
        )
    reaper = Reaper()
    resources.closing.callback(reaper.close)
    return CommandClient(config, cwd, reaper, resources)


class CommandClient:
    """Starts programs. Keeps nothing of any conversation."""

    def __init__(self, config: CommandAgent, cwd: Path, reaper: Reaper, resources: Resources) -> None:
        self.name = config.name
        self._input = config.input
        self._words = Template(config.command)
        self._env = Template(config.env)
        self._body = Template(_BODIES.get(config.input) if config.body is None else config.body)
        self._as_argument = config.input == "argument" and "message" not in self._words.names
        self._is_json = config.input == "json" or config.reply is not None or config.tool_calls is not None
        self._form = Form.of(config)
        self._cwd = cwd
        self._reaper = reaper
        self._timeout_s = resources.timeout_s
        self._notes = Notes(config.name, resources.on_note)

    def conversation(self) -> AbstractAsyncContextManager[Agent]:
        """One process for the conversation, where that is what the program takes (`input: jsonl`)."""
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Agent]:
        async with AsyncExitStack() as stack:
            yield self if self._input != "jsonl" else Conversing(self, stack)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """What the program answers to one message. Raises AgentError, CannotSend."""
        values = TurnValues(messages, ctx)
        limit = TimeLimit(self._timeout_s)
        program = await self.start(values, messages)
        try:
            with limit:
                program.write(self._content(values, messages), last=True)
                output = await program.finished()
        except TimeoutError:
            raise NoReply(self.too_late(program)) from None
        finally:
            await program.end()
        return replace(self._read(output, ctx.turn_index), latency_ms=limit.elapsed * 1000)

    async def start(self, values: TurnValues, messages: Sequence[Message]) -> Program:
        """The program, started for a turn or a conversation."""
        words = [as_text(word) for word in self._words.filled(values)]
        if self._as_argument:
            words.append(last_message(messages))
        env: Mapping[str, Any] = self._env.filled(values)
        env = with_own(values.environment, {name: as_text(value) for name, value in env.items()})
        program = await Program.start(Invocation(words=words, env=env, cwd=self._cwd), self._reaper)
        note_request(stays_open=self._input == "jsonl")
        return program

    def line(self, values: TurnValues) -> bytes:
        """The body as a line of JSON."""
        return json.dumps(self._body.filled(values), ensure_ascii=False).encode(errors="replace") + b"\n"

    def _content(self, values: TurnValues, messages: Sequence[Message]) -> bytes:
        match self._input:
            case "stdin":
                return last_message(messages).encode(errors="replace")
            case "json":
                return self.line(values)
            case _:
                return b""

    @property
    def form(self) -> Form:
        """How to read what the program writes."""
        return self._form

    @property
    def timeout_s(self) -> float:
        """The longest that one answer may take."""
        return self._timeout_s

    def too_late(self, program: Program) -> str:
        """What to say of a program that has not answered in time."""
        seconds = f"{self._timeout_s:g} s (request_timeout_ms)"
        return f"the agent's command did not answer within {seconds}{program.log}"

    def hearing(self, turn_index: int) -> Hearing:
        """What hears the messages of a turn."""
        return Hearing(self._form, turn_index, self._notes)

    def _read(self, output: bytes, turn_index: int) -> AgentReply:
        text = output.decode("utf-8", errors="replace").strip()
        if not self._is_json:
            return AgentReply(text or None)
        return self._read_json(text, turn_index)

    def _read_json(self, text: str, turn_index: int) -> AgentReply:
        value = read_text(text, _OUTPUT)
        hearing = self.hearing(turn_index)
        try:
            hearing.hear(value)
            return hearing.answer()
        except AgentError as error:
            raise hearing.no_reply(str(error)) from None


class Conversing:
    """One process that hears and says one line after the other."""

    def __init__(self, client: CommandClient, stack: AsyncExitStack) -> None:
        self.name = client.name
        self._client = client
        self._stack = stack
        self._program: Program | None = None
        self._hearing: Hearing | None = None

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The answer to a message or to tool results. Raises NoReply."""
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
                self._say(self._program, messages, values)
                first = await self._hear(self._program, hearing, limit)
            if not hearing.done:
                reply = hearing.requests()
            else:
                self._hearing, reply = None, hearing.answer()
        except TimeoutError:
            raise hearing.no_reply(self._client.too_late(self._program)) from None
        except AgentError as error:
            raise hearing.no_reply(str(error)) from None
        return replace(reply, latency_ms=limit.elapsed * 1000, first_token_ms=first)

    def _say(self, program: Program, messages: Sequence[Message], values: TurnValues) -> None:
        results = last_results(messages)
        if not results:
            program.write(self._client.line(values))
        for result in results:
            program.write(json.dumps(self._client.form.response(result)).encode() + b"\n")

    async def _hear(self, program: Program, hearing: Hearing, limit: TimeLimit) -> float | None:
        """Hear lines until the turn is done or a tool is asked for; when the first text came, in ms."""
        first: float | None = None
        heard = 0
        while not hearing.done:
            line = await program.line()
            heard += len(line or b"")
            if heard > MAX_BODY_BYTES:
                raise program.wrote_too_much()
            # Lines may come without end, and one that is there already is no pause for anybody else.
            await checkpoint()
            if line is None:
                how = await program.how_it_ended()
                raise AgentError(f"the agent's command ended before its turn was done: {how}")
            if not line.strip():
                continue
            if hearing.hear(read_text(line.decode("utf-8", errors="replace"), _OUTPUT)) and first is None:
                first = limit.elapsed * 1000
            if hearing.asks:
                break
        return first
