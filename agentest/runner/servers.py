"""The servers that a run starts: which, in which order, what they are called, and whose they are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

from agentest.agents.server.output import AGENTS_SERVER, AgentServers, Printed
from agentest.config.agents.base import AnyAgent
from agentest.config.agents.server import Server
from agentest.config.config import Config

_NAME_CHARS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnServer:
    """A server that the run starts."""

    name: str
    """Different from all others, and fit for a file's name."""
    server: Server
    agents: tuple[str, ...]
    """Whose own it is; none: it stands in `servers`, for all of them."""
    printed: Printed
    port: int | None = None
    """Where it is started, if its settings have `{port}` and that is chosen."""
    worker: int | None = None
    """The worker (from 1) that starts it, of which each has one (`per_worker`); None: the run starts it."""

    @property
    def log(self) -> str:
        """What its output is kept under: several workers may have a server of this name."""
        return self.name if self.worker is None else f"{self.name}-worker-{self.worker}"

    def of_worker(self, worker: int) -> OwnServer:
        """The server that this worker starts: it prints into memory of its own."""
        return replace(self, worker=worker, printed=Printed(self.name))

    @property
    def called(self) -> str:
        """What messages call it."""
        if self.agents and self.server.name is None:
            return AGENTS_SERVER
        return f"server {self.name!r}"


@dataclass(frozen=True, slots=True)
class OwnServers:
    """The servers of a run, in the order in which they are started."""

    servers: tuple[OwnServer, ...] = ()

    def of_any(self, agents: Iterable[str]) -> tuple[OwnServer, ...]:
        """Those that some of these agents depend on."""
        wanted = set(agents)
        return tuple(each for each in self.servers if not each.agents or wanted & {*each.agents})

    @property
    def printed(self) -> tuple[Printed, ...]:
        """What each of them prints."""
        return tuple(each.printed for each in self.servers)

    def of(self, agent: str) -> AgentServers:
        """What the servers print that an agent depends on."""
        return AgentServers(tuple(each.printed for each in self.of_any([agent])))


def own_servers(
    config: Config, agents: Mapping[str, AnyAgent], redact: Callable[[str], str] = str
) -> OwnServers:
    """Those of `servers`, and then the agents' own. Agents that have the same server share it."""
    names: set[str] = set()
    return OwnServers(
        tuple(
            _own_server(server, whose, _free_name(_name_of(server, redact), names))
            for server, whose in _servers(config, agents)
        )
    )


def _own_server(server: Server, whose: tuple[str, ...], name: str) -> OwnServer:
    return OwnServer(name=name, server=server, agents=whose, printed=Printed(name))


def _servers(config: Config, agents: Mapping[str, AnyAgent]) -> Iterator[tuple[Server, tuple[str, ...]]]:
    for server in config.servers:
        yield server, ()
    owned: list[tuple[Server, list[str]]] = []
    for name, agent in agents.items():
        if agent.server is None:
            continue
        whose = next((whose for server, whose in owned if server == agent.server), None)
        if whose is None:
            owned.append((agent.server, [name]))
        else:
            whose.append(name)
    yield from ((server, tuple(whose)) for server, whose in owned)


def _name_of(server: Server, redact: Callable[[str], str]) -> str:
    """Its name, or the program and what it runs: `uvicorn-app-app`, `python-agent`."""
    words = [server.name] if server.name else _telling(server.command)
    slug = re.sub(r"[^\w.]+", "-", redact(" ".join(words)))
    return slug.strip("-.")[:_NAME_CHARS] or "server"


def _telling(command: str | list[str]) -> list[str]:
    """The first two words of a command that are neither options nor settings, without folders."""
    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError:  # a quote that is never closed: the shell will say so
        words = []
    names = [PurePath(word).name for word in words if not word.startswith("-") and "=" not in word]
    return [re.sub(r"\.(py|[cm]?[jt]s|sh|jar)$", "", name) for name in names[:2]]


def _free_name(name: str, taken: set[str]) -> str:
    free, number = name, 1
    while free.casefold() in taken:  # they become names of files
        number += 1
        free = f"{name}-{number}"
    taken.add(free.casefold())
    return free
