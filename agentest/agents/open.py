"""From the configuration to agents that can be talked to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import anyio

from agentest.agents.adk_server.client import AdkClient
from agentest.agents.chat_completions.client import ChatCompletionsClient
from agentest.agents.port import Agent
from agentest.agents.python import CustomAgentClient
from agentest.config.agents import AdkAgent, AgentConfig, ChatCompletionsAgent, HttpAgent
from agentest.errors import AgentUnreachable, ConfigError
from agentest.http.client import Client
from agentest.http.guard import RefusedAddress
from agentest.http.retries import describe, pause_before_retry
from agentest.support.importing import import_object

_CONNECT_TIMEOUT_S = 10.0


def make_agents(
    configs: Mapping[str, AgentConfig],
    client: Client,
    timeout_s: float,
    concurrency: int,
    root: Path,
) -> dict[str, Agent]:
    """The agents by name. Raises ConfigError for a handler that cannot be imported."""
    threads = anyio.CapacityLimiter(concurrency)
    return {name: _agent(name, config, client, timeout_s, threads, root) for name, config in configs.items()}


def _agent(
    name: str,
    config: AgentConfig,
    client: Client,
    timeout_s: float,
    threads: anyio.CapacityLimiter,
    root: Path,
) -> Agent:
    if isinstance(config, ChatCompletionsAgent):
        return ChatCompletionsClient(config, client, timeout_s)
    if isinstance(config, AdkAgent):
        return AdkClient(config, client, timeout_s)
    handler = config.handler
    if isinstance(handler, str):
        try:
            handler = import_object(handler, root)
        except ValueError as error:
            raise ConfigError(f"agent {name!r}: handler: {error}") from None
    if not callable(handler):
        raise ConfigError(f"agent {name!r}: handler: {config.handler!r} is not a function")
    return CustomAgentClient(name, handler, timeout_s, threads)


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
