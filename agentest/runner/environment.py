"""The environment of a run: its folders, the reach of its network, and its limit of open connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agentest.config.agent_types import AgentConfig
from agentest.config.agents.over_http import HttpAgent
from agentest.config.fields import example_url
from agentest.runner.agents import is_opened_per_worker
from agentest.runner.prepare import Prepared
from agentest.support.errors import ConfigError
from agentest.support.http.address_guard import is_loopback
from agentest.support.text import count

if TYPE_CHECKING:
    from agentest.models.providers import ModelSpec

_SHOWN = 3


def check_reach(prepared: Prepared, nodes: Sequence[str]) -> None:
    """Raise ConfigError that lists everything `unreachable` returns."""
    if problems := unreachable(prepared, nodes):
        raise ConfigError("\n".join(problems))


def unreachable(prepared: Prepared, nodes: Sequence[str]) -> tuple[str, ...]:
    """Describe what the run needs but other machines cannot reach, one sentence each.

    Looks at settings only and sends no request, so an address outside loopback may still be unreachable.

    Args:
        nodes: names or addresses of the other machines.
    """
    if not nodes:
        return ()
    more = len(nodes) - _SHOWN
    others = f" and {count(more, 'other')}" if more > 0 else ""
    other_nodes = f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes[:_SHOWN])}{others}"
    problems = [*_agents(prepared), *_servers(prepared), *_models(prepared)]
    return tuple(
        prepared.loaded.redact(f"{what} cannot be reached from {other_nodes}: {why}")
        for what, why in problems
    )


ReachProblem = tuple[str, str]  # a resource that cannot be reached, and the reason with a remedy
_LOOPBACK_IS_LOCAL = "a loopback address reaches only the machine itself"
_REMEDY = "write an address that all nodes reach"


def _agents(prepared: Prepared) -> Iterator[ReachProblem]:
    for name, agent in prepared.plan.agents.items():
        if not is_over_network(agent):
            yield from _unopened_servers(name, agent)
        elif not agent.per_worker:
            for key, url in agent.urls.items():
                if is_loopback(example_url(url)):
                    remedy = (
                        "let each worker start the agent for itself (`server.per_worker: true`, with {port})"
                    )
                    yield f"agent {name!r} (`{key}`: {url})", f"{_LOOPBACK_IS_LOCAL}; {_REMEDY}, or {remedy}"
        if is_opened_per_worker(agent, is_remote=True):
            for key, url in agent.real_tools.items():
                if is_loopback(url):
                    where = f"the real tools of agent {name!r} (`{key}`: {url})"
                    yield where, f"{_LOOPBACK_IS_LOCAL}; {_REMEDY}"


def is_over_network(agent: AgentConfig) -> bool:
    """Return True if the agent is called over the network; False if it runs where conversations run."""
    return isinstance(agent, HttpAgent) and agent.app is None


def _unopened_servers(name: str, agent: AgentConfig) -> Iterator[ReachProblem]:
    for key, server in agent.beside.items() if not is_opened_per_worker(agent, is_remote=True) else ():
        what = f"`{key}.port`: {server.port}" if server.port else f"`{key}`"
        yield (
            f"the mock server or gateway of agent {name!r} ({what})",
            f"it listens on this machine's loopback, and an agent of type {agent.type} runs on each node; "
            "without `port` and `server` each worker opens its own",
        )
    if agent.server and is_loopback(agent.server.ready):
        where = f"`server` of agent {name!r} (`ready`: {agent.server.ready})"
        yield where, f"it starts on this machine, and this agent runs on each node; {_REMEDY}"


def _servers(prepared: Prepared) -> Iterator[ReachProblem]:
    agents = prepared.plan.agents.items()
    on_nodes = [name for name, agent in agents if agent.per_worker or not is_over_network(agent)]
    for server in prepared.managed_servers.servers if on_nodes else ():
        if not server.agents and is_loopback(server.server.ready):
            yield (
                f"{server.called} (`servers`, `ready`: {server.server.ready})",
                f"it starts on this machine, and agent {on_nodes[0]!r} runs on each node; {_REMEDY}, or "
                "start it with the agent, by `server.command`",
            )


def _models(prepared: Prepared) -> Iterator[ReachProblem]:
    if prepared.request.options.tape == "replay":
        return
    specs = (prepared.user, prepared.judge, prepared.confirm, *prepared.named.values())
    at = {spec.name: spec.base_url or str(spec.body.get("api_base") or "") for spec in specs if spec}
    for name, url in at.items():
        if is_loopback(url):
            yield (f"model {name!r} (`provider_options.base_url`: {url})", f"{_LOOPBACK_IS_LOCAL}; {_REMEDY}")


RESERVE = 32  # file descriptors for everything except connections: streams, reports, event loop, agent server

_MAX_REQUESTS_PER_CONVERSATION = 10
"""Maximum number of requests of one conversation to one model, if each metric has its own request."""


def allow(needed: int) -> int:
    """Raise this process's limit of file descriptors if needed. Returns the resulting limit."""
    try:
        import resource
    except ImportError:  # this platform has no such limit
        return needed
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # the operating system has a lower maximum
        return soft
    return wanted


def limited_to_connections(
    prepared: Prepared, processes: int = 1, allow: Callable[[int], int] = allow
) -> Prepared:
    """Lower the concurrency of conversations and models to what this machine can open, and note it.

    Args:
        processes: number of processes that share the work.
        allow: raises the limit to this many file descriptors and returns the resulting limit.
    """
    conversations, calls, demand = _demand(prepared)
    needed = RESERVE + -(-demand // processes)
    # A busy process may exceed its share, and the survivors take over when other processes die.
    allowed = allow(RESERVE + demand)
    if allowed >= needed:
        return prepared
    part = max(0, allowed - RESERVE) * processes / demand
    fewer = max(processes, int(conversations * part))

    def lower(spec: ModelSpec) -> ModelSpec:
        return replace(
            spec, max_concurrency=max(processes, int(_max_model_calls(spec, conversations) * part))
        )

    lowered = replace(
        prepared,
        request=replace(prepared.request, options=replace(prepared.request.options, concurrency=fewer)),
        user=prepared.user and lower(prepared.user),
        judge=prepared.judge and lower(prepared.judge),
        confirm=prepared.confirm and lower(prepared.confirm),
        named={requested: lower(spec) for requested, spec in prepared.named.items()},
    )
    where = f" in each of {processes} processes" if processes > 1 else ""
    note = (
        f"{_limits(conversations, calls)} at once need {needed:,} file descriptors{where}, but only "
        f"{allowed:,} are allowed, so this run has {_limits(fewer, _connections(lowered, fewer))} at once. "
        f"Allow more with `ulimit -n {needed}`, or use fewer with --concurrency"
    )
    return replace(lowered, notes=(*lowered.notes, note))


def make_room(prepared: Prepared, allow: Callable[[int], int] = allow) -> None:
    """Raise this process's limit of file descriptors as far as the run needs and the system allows."""
    allow(RESERVE + _demand(prepared)[2])


def _demand(prepared: Prepared) -> tuple[int, int, int]:
    conversations = min(prepared.concurrency, sum(unit.conversations for unit in prepared.plan.units))
    calls = _connections(prepared, conversations)
    each = max((agent.file_descriptors for agent in prepared.plan.agents.values()), default=1)
    return conversations, calls, conversations * each + calls


def _connections(prepared: Prepared, conversations: int) -> int:
    if prepared.request.options.tape == "replay":
        return 0
    user, judge = prepared.user, prepared.judge
    alike = user and judge and user == replace(judge, temperature=user.temperature)
    specs = [spec for spec in (user, None if alike else judge) if spec]
    # A named model that differs from the configured one only in sampling shares its limit.
    known = {(spec.base_url, spec.model) for spec in specs}
    more = (*prepared.named.values(), *([prepared.confirm] if prepared.confirm else []))
    others = {(s.base_url, s.model): s for s in more if (s.base_url, s.model) not in known}
    return sum(_max_model_calls(spec, conversations) for spec in (*specs, *others.values()))


def _max_model_calls(spec: ModelSpec, conversations: int) -> int:
    return min(_MAX_REQUESTS_PER_CONVERSATION * conversations, spec.requests_at_once(conversations))


def _limits(conversations: int, calls: int) -> str:
    return count(conversations, "conversation") + (f" with {count(calls, 'model call')}" if calls else "")
