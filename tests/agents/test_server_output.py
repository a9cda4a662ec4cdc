"""What servers print: the last of it is kept, and others may follow it."""

from __future__ import annotations

import anyio
import pytest

from agentest.agents.server_output import AgentServers, RecentOutput
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.config.agents.server import Server
from agentest.config.config import Config
from agentest.domain.transcript import ServerOutput
from agentest.runner.prepare import managed_servers_of


def test_the_last_lines_since_a_turn_began() -> None:
    """A turn gets the last lines that came after its beginning, and how many came before these."""
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
def test_more_than_there_is_room_for(size: int) -> None:
    """Of more than the memory holds the end is there, without the line that was cut."""
    printed = RecentOutput("api")
    for number in range(200):
        printed.add(f"{number} " + "é" * size)
    found = printed.since(0)
    assert found is not None
    if size < 70_000:
        assert [line.split()[0] for line in found.lines] == [str(n) for n in range(180, 200)]
    assert all(len(line) <= 500 and "\ufffd" not in line for line in found.lines)


def test_others_may_follow() -> None:
    """Who follows hears of what comes from then on, and of the end."""
    printed, heard = RecentOutput("api"), list[str | int]()
    printed.add("before")
    printed.follow(heard.append, heard.append)
    printed.add("one\ntwo")
    printed.end(-9)
    assert heard == ["one\ntwo", -9]


def test_what_comes_a_little_later() -> None:
    """A traceback that comes after the answer is waited for; a silent server that runs is not shown."""

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


def test_names_and_whose_they_are() -> None:
    """Servers are named by their commands, each differently and without secrets; agents may share one."""

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
