"""What workers on other machines cannot reach: an address on loopback is each machine's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentest.config.agent_types import AgentConfig
from agentest.config.agents.over_http import HttpAgent
from agentest.config.agents.ports import sample
from agentest.runner.ports import RAY, has_its_own
from agentest.runner.prepare import Prepared
from agentest.support.errors import ConfigError
from agentest.support.http.guard import is_loopback
from agentest.support.text import count

_SHOWN = 3


def check_reach(prepared: Prepared, nodes: Sequence[str]) -> None:
    """Raise ConfigError with all that `unreachable` tells."""
    if problems := unreachable(prepared, nodes):
        raise ConfigError("\n".join(problems))


def unreachable(prepared: Prepared, nodes: Sequence[str]) -> tuple[str, ...]:
    """What these other machines, by name or address, cannot reach of what a run needs: a sentence for each.

    Nothing is asked of the network: an address that is not on loopback may be unreachable, too.
    """
    if not nodes:
        return ()
    elsewhere = _named(nodes)
    found = [*_agents(prepared), *_servers(prepared), *_models(prepared)]
    return tuple(
        prepared.loaded.redact(f"{what} cannot be reached from {elsewhere}: {why}") for what, why in found
    )


def _named(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:_SHOWN])
    more = len(nodes) - _SHOWN
    others = f" and {count(more, 'other')}" if more > 0 else ""
    return f"node{'s' if len(nodes) > 1 else ''} {shown}{others}"


Problem = tuple[str, str]
"""What cannot be reached, and why, with what to do."""
_EACH_ITS_OWN = "on loopback each machine reaches itself alone"
_ELSEWHERE = "write an address that all nodes reach"


def _agents(prepared: Prepared) -> Iterator[Problem]:
    for name, agent in prepared.plan.agents.items():
        if not is_over_network(agent):
            yield from _beside(name, agent)
        elif not agent.per_worker:
            yield from _endpoints(name, agent)
        if has_its_own(agent, RAY):
            yield from _real_tools(name, agent)


def is_over_network(agent: AgentConfig) -> bool:
    """Whether workers send requests to the agent; else it lives where conversations are held."""
    return isinstance(agent, HttpAgent) and agent.app is None


def _endpoints(name: str, agent: AgentConfig) -> Iterator[Problem]:
    for key, url in agent.urls.items():
        if is_loopback(sample(url)):
            own = "let each worker start the agent for itself (`server.per_worker: true`, with {port})"
            yield f"agent {name!r} (`{key}`: {url})", f"{_EACH_ITS_OWN}; {_ELSEWHERE}, or {own}"


def _beside(name: str, agent: AgentConfig) -> Iterator[Problem]:
    """What an agent that lives in workers asks, and that is not opened there."""
    for key, server in agent.beside.items() if not has_its_own(agent, RAY) else ():
        what = f"`{key}.port`: {server.port}" if server.port else f"`{key}`"
        yield (
            f"what stands beside agent {name!r} ({what})",
            f"it listens on loopback beside the run, and an agent of type {agent.type} runs on each node; "
            "without `port` and `server` each worker opens its own",
        )
    if agent.server and is_loopback(agent.server.ready):
        where = f"`server` of agent {name!r} (`ready`: {agent.server.ready})"
        yield where, f"it is started beside the run, and this agent runs on each node; {_ELSEWHERE}"


def _real_tools(name: str, agent: AgentConfig) -> Iterator[Problem]:
    """Real servers behind mock servers that each worker opens."""
    upstream = {
        "mcp_mock.upstream": agent.mcp_mock and agent.mcp_mock.upstream_url,
        "rest_mock.upstream": agent.rest_mock and agent.rest_mock.upstream,
    }
    for key, url in upstream.items():
        if url and is_loopback(url):
            yield f"the real tools of agent {name!r} (`{key}`: {url})", f"{_EACH_ITS_OWN}; {_ELSEWHERE}"


def _servers(prepared: Prepared) -> Iterator[Problem]:
    """What `servers` starts is for agents: those that run on other nodes look for it there."""
    agents = prepared.plan.agents.items()
    there = [name for name, agent in agents if agent.per_worker or not is_over_network(agent)]
    for own in prepared.own_servers.servers if there else ():
        if not own.agents and is_loopback(own.server.ready):
            yield (
                f"{own.called} (`servers`, `ready`: {own.server.ready})",
                f"it is started beside the run, and agent {there[0]!r} runs on each node; {_ELSEWHERE}, or "
                "start it with the agent, by `server.command`",
            )


def _models(prepared: Prepared) -> Iterator[Problem]:
    """Models that are asked. Those that give recorded answers again are not."""
    if prepared.request.options.tape == "replay":
        return
    specs = (prepared.user, prepared.judge, prepared.confirm, *prepared.named.values())
    at = {spec.name: spec.base_url or str(spec.body.get("api_base") or "") for spec in specs if spec}
    for name, url in at.items():
        if is_loopback(url):
            yield f"model {name!r} (`provider_options.base_url`: {url})", f"{_EACH_ITS_OWN}; {_ELSEWHERE}"
