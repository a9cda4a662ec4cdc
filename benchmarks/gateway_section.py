"""What a call to a model costs that an agent makes through the model gateway."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.fakes import REPOSITORY
from benchmarks.gateway_caller import Agent, calls, fake_model
from benchmarks.gateway_payloads import APIS, CONVERSATIONS, Api
from benchmarks.process import Failed, environment
from benchmarks.results import Found, Target, machine, ratio, table
from benchmarks.workload import Options

_TURNS = (1, 10)
_TIMES = 5
"""Calls of each conversation."""
_OWN_CALLS = 200
_LATENCIES, _STREAM_LATENCIES = 100, 10
_MOST_OF_OWN, _MOST_ADDED_MS = 1.2, 2.0
_HEAD = ("", "messages", "CPU ms per call", "of our own model call", "of a bare proxy", "added latency")


@dataclass(frozen=True)
class _Round:
    """Milliseconds of one round."""

    gateway: float
    proxy: float
    own: float
    added: float


Case = tuple[str, bool, int]
"""Name of the API, whether it streams, and turns."""


def section(options: Options) -> Found:
    """Measure, and tell it."""
    every = [(api, streams, turns) for api in APIS for streams in (False, True) for turns in _TURNS]
    rounds: dict[Case, list[_Round]] = {}
    for number in range(options.runs):
        for api, streams, turns in every if number % 2 == 0 else reversed(every):
            found = asyncio.run(_round(api, streams, turns))
            rounds.setdefault((api.name, streams, turns), []).append(found)
    cases = {case: _median(found) for case, found in rounds.items()}
    events = len(APIS[0].events)
    about = (
        f"Medians of {options.runs} rounds, {CONVERSATIONS} conversations under way at once, each call with "
        f"instructions and three tools; a streamed answer has about {events} events, each of which comes by "
        "itself. A call of our own is a judge's, as below in [Models](#models). Added latency: until the "
        "answer's end, one call at a time, median."
    )
    text = "\n\n".join([about, table(_HEAD, [_row(case, found) for case, found in cases.items()]), machine()])
    return Found(text, _targets(cases))


def _median(found: Sequence[_Round]) -> _Round:
    values = zip(*((each.gateway, each.proxy, each.own, each.added) for each in found), strict=True)
    return _Round(*map(median, values))


def _row(case: Case, found: _Round) -> list[str]:
    api, streams, turns = case
    name = f"{api}, streamed" if streams else api
    of_own, of_proxy = ratio(found.gateway, found.own), ratio(found.gateway, found.proxy)
    return [name, str(2 * turns - 1), f"{found.gateway:.2f}", of_own, of_proxy, f"{found.added:.2f} ms"]


def _targets(cases: Mapping[Case, _Round]) -> tuple[Target, ...]:
    whole = [found.gateway / found.own for (_, streams, _), found in cases.items() if not streams]
    added = max(found.added for found in cases.values())
    claim = "a call through the model gateway, not streamed: CPU, of a model call of our own, in any row"
    return (
        Target(claim, max(whole), _MOST_OF_OWN, "×"),
        Target("a call through the model gateway: added latency, in any row", added, _MOST_ADDED_MS, "ms"),
    )


async def _round(api: Api, streams: bool, turns: int) -> _Round:
    agents = [Agent(api, number, streams) for number in range(CONVERSATIONS)]
    async with fake_model(api, streams=streams) as model, _server(model, turns) as server:
        for turn in range(1, turns):  # what the gateway then has to remember
            await calls(agents, server.gateway, turn, 1)
        latencies = [await _latency(agents[0], port, turns) for port in (model, server.gateway)]
        for port in (server.gateway, server.proxy):
            await calls(agents, port, turns, 1)
        own = await server.command(f"ask {_OWN_CALLS}")
        cpu = []
        for port in (server.gateway, server.proxy):
            before = await server.command("cpu")
            await calls(agents, port, turns, _TIMES)
            cpu.append((await server.command("cpu") - before) * 1000 / (_TIMES * len(agents)))
        for agent in agents:
            agent.close()
    gateway, proxy = cpu
    return _Round(gateway, proxy, own, latencies[1] - latencies[0])


async def _latency(agent: Agent, port: int, turns: int) -> float:
    number = _STREAM_LATENCIES if agent.streams else _LATENCIES
    return median([await agent.call(port, turns) for _ in range(number)])


@dataclass
class _Server:
    """The running process that is measured."""

    process: asyncio.subprocess.Process
    gateway: int = 0
    proxy: int = 0

    async def command(self, text: str) -> Any:
        """Send a command. Returns the answer. Raises Failed if the process has ended."""
        assert self.process.stdin
        self.process.stdin.write(f"{text}\n".encode())
        return await self.line()

    async def line(self) -> Any:
        assert self.process.stdout
        line = await self.process.stdout.readline()
        if not line:
            raise Failed("the process with the gateway ended")
        return json.loads(line)


@asynccontextmanager
async def _server(model: int, turns: int) -> AsyncIterator[_Server]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.gateway_server", f"--upstream={model}", f"--turns={turns}"),
        cwd=REPOSITORY,
        env=environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    server = _Server(process)
    try:
        ports = await server.line()
        server.gateway, server.proxy = ports["gateway"], ports["proxy"]
        yield server
    finally:
        assert process.stdin
        process.stdin.close()
        await process.wait()
