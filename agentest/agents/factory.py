"""Create the agents of a run from the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from inspect import isawaitable
from types import MappingProxyType
from urllib.parse import urlsplit

import anyio

from agentest.agents.port import Agent, AgentCopies, OpenAgent, Resources
from agentest.config.agent_types import AgentConfig, agent_type
from agentest.config.agents.over_http import HttpAgent
from agentest.support.calling import run_in_progress
from agentest.support.errors import AgentUnreachable, ConfigError
from agentest.support.http.address_guard import RefusedAddress
from agentest.support.http.client import Client, Sender
from agentest.support.http.retries import describe, pause_before_retry

_CONNECT_TIMEOUT_S = 10.0


async def make_agents(
    configs: Mapping[str, AgentConfig],
    resources: Resources,
    copies: Mapping[str, Sequence[AgentConfig]] = MappingProxyType({}),
) -> dict[str, Agent]:
    """Return the agents by name. `resources.closing` closes what they open.

    Args:
        copies: agent → its settings for each copy of its server. The result is then an `AgentCopies`.

    Raises ConfigError for a handler or an application that cannot be imported or does not start, and for
    credentials that a command does not print.
    """
    resources.closing.enter_context(run_in_progress())
    apps = await _running_apps(configs, resources)
    agents: dict[str, Agent] = {}
    for name, config in configs.items():
        own = replace(resources, client=apps[name]) if name in apps else resources
        if isinstance(config, HttpAgent) and (config.header_commands or (config.sign and config.sign.aws)):
            from agentest.agents.credential_renewal import authorized

            sender = await authorized(name, config, own.client, own.root, own.on_secret)
            own = replace(own, client=sender)
        opened = [await _open_agent(name, each, own) for each in copies.get(name, (config,))]
        agents[name] = opened[0] if len(opened) == 1 else AgentCopies(name, tuple(opened))
    return agents


async def _running_apps(configs: Mapping[str, AgentConfig], resources: Resources) -> dict[str, Sender]:
    running: dict[str, Sender] = {}
    by_identity: dict[int, Sender] = {}
    for name, config in configs.items():
        if not isinstance(config, HttpAgent) or config.app is None:
            continue
        from agentest.agents.asgi import load_app, running_app

        app = load_app(name, config.app, resources.root)
        if id(app) not in by_identity:
            opening = running_app(name, app, resources.on_note)
            by_identity[id(app)] = await resources.closing.enter_async_context(opening)
        running[name] = by_identity[id(app)]
    return running


async def _open_agent(name: str, config: AgentConfig, resources: Resources) -> Agent:
    if isinstance(config, HttpAgent) and not config.endpoint:
        config = config.model_copy(update={"endpoint": config.default_endpoint})
    open_agent: OpenAgent = agent_type(config.type).load()
    agent = open_agent(name, config, resources)
    return await agent if isawaitable(agent) else agent


async def check_reachable(name: str, config: AgentConfig, client: Client) -> None:
    """Raise AgentUnreachable if nothing listens at an agent's endpoint.

    One clear message before the first conversation replaces a failure in each of them. Raises ConfigError if
    the address is refused.
    """
    if config.in_process or not config.urls:
        return
    url = config.urls["endpoint"]
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme in ("https", "wss") else 80)
    attempts = 1 + int(getattr(config, "retries", 0))
    for attempt in range(1, attempts + 1):
        try:
            with anyio.fail_after(_CONNECT_TIMEOUT_S):
                return await client.check_listening(host, port)
        except RefusedAddress as error:
            raise ConfigError(f"agent {name!r}: endpoint {url}: {error}") from None
        except (OSError, TimeoutError, UnicodeError) as error:
            problem = "no answer" if isinstance(error, TimeoutError) else describe(error)
            if attempt < attempts:
                await anyio.sleep(pause_before_retry(attempt))
    remedy = "Start it first, correct agent.endpoint, or let agent.server start it."
    if "resolved" in problem:
        remedy = "Correct the host in agent.endpoint."
    if host in ("localhost", "127.0.0.1", "::1"):
        other = "127.0.0.1" if host == "::1" else "[::1]"
        with suppress(OSError, TimeoutError), anyio.fail_after(_CONNECT_TIMEOUT_S):
            await client.check_listening(other.strip("[]"), port)
            remedy = f"A program listens at {other}, port {port}: write that host in agent.endpoint."
    raise AgentUnreachable(f"agent {name!r} cannot be reached at {url}: {problem}. {remedy}")
