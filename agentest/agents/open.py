"""From the configuration to agents that can be talked to."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

import anyio

from agentest.agents.port import Agent, OpenAgent, Resources
from agentest.config.agent_types import AgentConfig, type_of
from agentest.config.agents import HttpAgent
from agentest.errors import AgentUnreachable, ConfigError
from agentest.http.client import Client
from agentest.http.guard import RefusedAddress
from agentest.http.retries import describe, pause_before_retry

_CONNECT_TIMEOUT_S = 10.0


def make_agents(
    configs: Mapping[str, AgentConfig],
    client: Client,
    timeout_s: float,
    concurrency: int,
    root: Path,
) -> dict[str, Agent]:
    """The agents by name. Raises ConfigError for a handler that cannot be imported."""
    resources = Resources(
        client=client, timeout_s=timeout_s, threads=anyio.CapacityLimiter(concurrency), root=root
    )
    return {name: _opened(name, config, resources) for name, config in configs.items()}


def _opened(name: str, config: AgentConfig, resources: Resources) -> Agent:
    """The client of an agent's type, whose module is imported only where a configuration has that type."""
    open_agent: OpenAgent = import_module(type_of(config).client).open_agent
    return open_agent(name, config, resources)


async def check_reachable(name: str, config: AgentConfig, client: Client) -> None:
    """Raise AgentUnreachable when nobody listens at an agent's endpoint, ConfigError when it is refused.

    One clear message before the first conversation, instead of one failure for each of them.
    """
    if not isinstance(config, HttpAgent):
        return
    parts = urlsplit(config.endpoint)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    for attempt in range(1, config.retries + 2):
        try:
            with anyio.fail_after(_CONNECT_TIMEOUT_S):
                return await client.check_listening(host, port)
        except RefusedAddress as error:
            raise ConfigError(f"agent {name!r}: endpoint {config.endpoint}: {error}") from None
        except (OSError, TimeoutError, UnicodeError) as error:
            problem = "no answer" if isinstance(error, TimeoutError) else describe(error)
            if attempt <= config.retries:
                await anyio.sleep(pause_before_retry(attempt))
    raise AgentUnreachable(
        f"agent {name!r} cannot be reached at {config.endpoint}: {problem}. "
        "Start it first, correct agent.endpoint, or let agent.server start it."
    )
