"""Server output reaches all workers soon, in order, and within limits."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import fake_time
import pytest

from agentest.agents.server_process import RecentOutput
from agentest.domain.transcript import ServerOutput
from agentest.workers.channel import deliver, packed
from agentest.workers.forwarding import OutputForwarder, output_part


def parts(servers: Mapping[str, RecentOutput]) -> dict[str, RecentOutput]:
    return {output_part(name): output for name, output in servers.items()}


class Wire:
    """Two servers, the object that forwards their output, and a worker's copy of it."""

    def __init__(self) -> None:
        self.api, self.other = RecentOutput("api"), RecentOutput("other")
        self.here = {name: RecentOutput(name) for name in ("api", "other")}
        self.desk = OutputForwarder((self.api, self.other), self.send)
        self.sent: list[Any] = []
        self.second_told = anyio.Event()
        """What both servers printed in the moment after the first lines."""

    def send(self, message: object) -> None:
        self.sent.append(message)
        if len(self.sent) == 3:
            self.second_told.set()
        deliver(pickle.loads(packed(message)), parts(self.here))


def run(steps: Callable[[Wire], Awaitable[None]]) -> Wire:
    made: list[Wire] = []

    async def go() -> None:
        made.append(wire := Wire())
        await steps(wire)
        wire.desk.close()

    fake_time.run(go)
    return made[0]


def test_a_worker_knows_what_was_printed() -> None:
    """The first output arrives at once, later output shortly after; the copy equals the original."""

    async def steps(wire: Wire) -> None:
        wire.api.add("one")
        assert wire.here["api"].position == wire.api.position  # nobody has waited
        wire.api.add("two\nthree \ud800")
        wire.other.add("é")
        wire.api.add("")
        with anyio.fail_after(5):
            await wire.second_told.wait()

    wire = run(steps)
    assert wire.here["api"].since(0) == wire.api.since(0)
    assert wire.here["other"].since(0) == wire.other.since(0) == ServerOutput(server="other", lines=("é",))
    assert len(wire.sent) == 3


def test_the_end_comes_after_the_last_output() -> None:
    """The exit status is sent at once, after all earlier output."""

    async def steps(wire: Wire) -> None:
        wire.api.add("one")
        wire.api.add("Traceback")
        wire.api.end(-9)

    wire = run(steps)
    expected = ServerOutput(server="api", lines=("one", "Traceback"), exit_status=-9)
    assert wire.here["api"].since(0) == expected


@pytest.mark.parametrize("lines", [1, 5000])
def test_large_output_is_limited(lines: int) -> None:
    """Large output takes a few messages of limited size with whole lines."""

    async def steps(wire: Wire) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + 0.2
        while loop.time() < until:
            wire.api.add("\n".join(f"{n} " + "x" * (100_000 // lines) for n in range(lines)))
            await anyio.sleep(0.002)

    wire = run(steps)
    told = [lines for _, method, (lines,), _ in wire.sent if method == "add"]
    assert 2 <= len(told) <= 12
    assert all(len(each) <= 65_536 for each in told)
    if lines > 1:
        assert all(line.split(" ")[0].isdigit() for each in told for line in each.split("\n"))
        last, kept = wire.api.since(0), wire.here["api"].since(0)
        assert last is not None
        assert kept is not None
        assert kept.lines[-1] == last.lines[-1]


def test_a_new_worker_knows_which_servers_have_ended() -> None:
    """Earlier output belongs to none of its turns, so it gets only the exit status."""

    async def steps(wire: Wire) -> None:
        wire.api.add("one")
        wire.api.end(3)
        late = {name: RecentOutput(name) for name in ("api", "other")}
        wire.desk.welcome(lambda message: deliver(message, parts(late)))
        assert late["api"].since(0) == ServerOutput(server="api", lines=(), exit_status=3)
        assert late["other"].since(0) is None

    run(steps)
