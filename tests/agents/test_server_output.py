"""Server output: the last part is stored, and others can follow it."""

from __future__ import annotations

import anyio
import pytest

from agentest.agents.server_process import AgentServers, RecentOutput
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.config.agents.server import Server
from agentest.config.config import Config
from agentest.domain.transcript import ServerOutput
from agentest.runner.prepare import managed_servers_of


def test_the_last_lines_since_a_turn_began() -> None:
    """A turn gets its last lines of output, and the number of earlier ones."""
    printed = RecentOutput("api")
    printed.add("before")
    began = printed.position
    assert printed.since(began) is None
    printed.add("one\n\ntwo")
    assert printed.since(began) == ServerOutput(server="api", lines=("one", "", "two"))
    printed.add("\n".join(f"row {n}" for n in range(40)))
    found = printed.since(began)
    assert found is not None
    assert (found.lines[0], found.lines[-1], len(found.lines), found.lines_before) == (
        "row 20",
        "row 39",
        20,
        23,
    )


@pytest.mark.parametrize("size", [10, 1000, 70_000])
def test_output_over_the_limit(size: int) -> None:
    """The end of the output is stored, without a partial line."""
    printed = RecentOutput("api")
    for number in range(200):
        printed.add(f"{number} " + "é" * size)
    found = printed.since(0)
    assert found is not None
    if size < 70_000:
        assert [line.split()[0] for line in found.lines] == [str(n) for n in range(180, 200)]
    assert all(len(line) <= 500 and "\ufffd" not in line for line in found.lines)


def test_following_output() -> None:
    """A follower gets later output and the exit status."""
    printed, heard = RecentOutput("api"), list[str | int]()
    printed.add("before")
    printed.follow(heard.append, heard.append)
    printed.add("one\ntwo")
    printed.end(-9)
    assert heard == ["one\ntwo", -9]


def test_delayed_output() -> None:
    """A traceback after the answer is awaited; a running server without output is not shown."""

    async def go() -> tuple[ServerOutput, ...]:
        api, silent = RecentOutput("api"), RecentOutput("silent")
        servers = AgentServers((api, silent))
        began = servers.positions()
        found: list[tuple[ServerOutput, ...]] = []
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                found.append(await servers.since(began))

            tasks.start_soon(ask)
            await anyio.lowlevel.checkpoint()
            api.add("Traceback")
        return found[0]

    assert anyio.run(go) == (ServerOutput(server="api", lines=("Traceback",)),)


def test_names_of_servers() -> None:
    """Names come from commands, are unique and contain no secrets; agents may share a server."""

    def server(command: str | list[str], port: int, name: str | None = None) -> Server:
        return Server(command=command, ready=f"tcp://h:{port}", name=name)

    shared = server("TOKEN=hunter2 /usr/bin/python3 -u src/agent.py --port 1", 4)
    config = Config(
        agent=ChatCompletionsAgent(endpoint="http://h/v1"),
        servers=[server("npm start", 1), server(["npm", "start"], 2), server("x", 3, "my db")],
    )
    agents = {
        "a": ChatCompletionsAgent(endpoint="http://h/v1", server=shared),
        "b": ChatCompletionsAgent(endpoint="http://h/v1", server=shared),
        "c": ChatCompletionsAgent(endpoint="http://h/v1", server=server("'never closed", 5)),
    }
    found = managed_servers_of(config, agents)
    assert [each.name for each in found.servers] == [
        "npm-start",
        "npm-start-2",
        "my-db",
        "python3-agent",
        "server",
    ]
    assert [each.name for each in found.of("c").printed] == ["npm-start", "npm-start-2", "my-db", "server"]
    assert found.servers[3].agents == ("a", "b")
    assert found.servers[3].called == "the agent's server"
    assert managed_servers_of(config, {}, lambda _: "[redacted]").servers[0].name == "redacted"
