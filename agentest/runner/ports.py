"""`{port}`: free ports for the servers that have it in their settings, and who starts which of them.

The plan keeps the placeholder, which is what reports show and fingerprints are made of: a port is new in each
run. Whoever talks to agents has the run as it is `with_ports`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from agentest.config.agent_types import AgentConfig
from agentest.config.agents.over_http import HttpAgent
from agentest.runner.prepare import Prepared
from agentest.runner.servers import OwnServer, OwnServers
from agentest.support.errors import ServerError
from agentest.support.free_ports import free_ports

RAY = "ray"
"""The engine whose workers may be on other machines."""


@contextmanager
def shared_ports(prepared: Prepared) -> Iterator[Prepared]:
    """The run with a port for each server that it starts once for all workers: they must know it, too.

    The ports are nobody else's until the block ends.
    """
    with _chosen(prepared, [own for own in _waiting(prepared) if not own.server.per_worker]) as known:
        yield known


@contextmanager
def with_ports(prepared: Prepared) -> Iterator[Prepared]:
    """The run with each server, and each agent, at its port: a free one, unless it is chosen already.

    The ports are nobody else's until the block ends.
    """
    with _chosen(prepared, _waiting(prepared)) as known:
        servers = known.own_servers.servers
        port_of = {name: own.port for own in servers if own.port for name in own.agents}
        agents = {
            name: agent.at_port(port_of[name]) if name in port_of else agent
            for name, agent in known.plan.agents.items()
        }
        told = tuple(own if own.port is None else _at_its_port(own, own.port) for own in servers)
        yield replace(known, plan=replace(known.plan, agents=agents), own_servers=OwnServers(told))


def known_ports(prepared: Prepared) -> dict[str, int]:
    """The ports that are chosen, by the server's name: for a process that prepares the run anew."""
    return {own.name: own.port for own in prepared.own_servers.servers if own.port}


def with_known_ports(prepared: Prepared, ports: Mapping[str, int]) -> Prepared:
    """The run with ports that another process has chosen."""
    servers = (replace(own, port=ports.get(own.name, own.port)) for own in prepared.own_servers.servers)
    return replace(prepared, own_servers=OwnServers(tuple(servers)))


def in_worker(prepared: Prepared, worker: int) -> Prepared:
    """The run as a worker (from 1) has it: servers that each worker starts are its own."""
    servers = prepared.own_servers.servers
    own = (each.of_worker(worker) if each.server.per_worker else each for each in servers)
    return replace(prepared, own_servers=OwnServers(tuple(own)))


def per_worker_part(prepared: Prepared) -> Prepared:
    """The run with the agents alone of which each worker opens all that stands beside them, and with their
    servers."""
    return _part(prepared, per_worker=True)


def shared_part(prepared: Prepared) -> Prepared:
    """The run without the agents that workers look after."""
    return _part(prepared, per_worker=False)


def has_its_own(agent: AgentConfig, engine: str | None) -> bool:
    """Whether each worker opens what stands beside the agent.

    That of an agent which lives in workers is there, too, where these may be on other machines (Ray). A port
    that is fixed, or a server that is told of it, is beside the run.
    """
    if agent.per_worker or engine != RAY or agent.server or not agent.beside:
        return agent.per_worker
    over_network = isinstance(agent, HttpAgent) and agent.app is None
    return not over_network and all(server.port is None for server in agent.beside.values())


def _part(prepared: Prepared, *, per_worker: bool) -> Prepared:
    engine = prepared.request.options.engine
    every = prepared.plan.agents.items()
    agents = {name: agent for name, agent in every if has_its_own(agent, engine) is per_worker}
    servers = (each for each in prepared.own_servers.servers if each.server.per_worker is per_worker)
    plan = replace(prepared.plan, agents=agents)
    return replace(prepared, plan=plan, own_servers=OwnServers(tuple(servers)))


def _waiting(prepared: Prepared) -> list[OwnServer]:
    """The servers of the plan's agents that need a port and have none."""
    servers = prepared.own_servers.of_any(prepared.plan.agents)
    return [own for own in servers if own.server.awaits_port and own.port is None]


@contextmanager
def _chosen(prepared: Prepared, servers: list[OwnServer]) -> Iterator[Prepared]:
    if not servers:
        yield prepared
        return
    with ExitStack() as stack:
        try:
            ports = stack.enter_context(free_ports(len(servers)))
        except OSError as error:
            raise ServerError(f"no free port can be had for {servers[0].called}: {error}") from None
        yield with_known_ports(prepared, dict(zip((own.name for own in servers), ports, strict=True)))


def _at_its_port(own: OwnServer, port: int) -> OwnServer:
    return replace(own, server=own.server.at_port(port))
