"""The address of a model gateway: its token, how an agent learns it, and whether the agent uses it."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio

from agentest.agents.call_source_addresses import model_variables
from agentest.agents.listener import HOST
from agentest.config.agent_types import AgentConfig
from agentest.runner.call_sources import CallObservations
from agentest.support.errors import ConfigError

FRAMEWORKS: Sequence[tuple[str, tuple[str, ...]]] = (
    (
        "OpenAI's clients, OpenAI Agents SDK, Mastra, smolagents, CrewAI, Microsoft Agent Framework",
        ("OPENAI_BASE_URL",),
    ),
    ("Strands, Agno", ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")),
    ("pydantic-ai", ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL")),
    ("AI SDK", ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")),
    ("LlamaIndex", ("OPENAI_API_BASE",)),
    ("LangChain and LangGraph", ("OPENAI_BASE_URL", "ANTHROPIC_API_URL", "GOOGLE_GEMINI_BASE_URL")),
    ("Anthropic's clients, Claude Agent SDK", ("ANTHROPIC_BASE_URL",)),
    ("google-genai, google-adk", ("GOOGLE_GEMINI_BASE_URL",)),
    ("LiteLLM", ("OPENAI_BASE_URL", "ANTHROPIC_API_BASE", "GEMINI_API_BASE")),
    ("Azure", ("AZURE_OPENAI_ENDPOINT",)),
)
"""Frameworks, and the variables from which they read the address of a model, as in docs/model-gateway.md."""
_USUAL = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "AZURE_OPENAI_ENDPOINT")
TOKEN_VARIABLE = "AGENTEST_GATEWAY_TOKEN"
WAY_TO_RUN_ALIKE = "let `server` start copies of the agent (server.copies: 4) to run them at once"
WITHOUT_TOKEN = "its address lacks the gateway's token"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,200}")


def gateway_token(folder: Path, variables: Mapping[str, str]) -> str:
    """Return the token that the gateway's addresses contain, so that only the agent's user can call it.

    It is that of the environment, else one that is stored with the runs, so that it stays the same. Raises
    ConfigError.
    """
    if token := variables.get(TOKEN_VARIABLE, ""):
        where, remedy = TOKEN_VARIABLE, "write 16 or more letters and digits"
    else:
        path = folder / "gateway-token"
        where, remedy = str(path), f"delete the file, or set {TOKEN_VARIABLE}"
        try:
            token = _stored_token(path)
        except OSError as error:
            raise ConfigError(
                f"{path}: the token of model_gateway cannot be stored ({error.strerror or error}); set "
                f"{TOKEN_VARIABLE} to 16 or more letters and digits"
            ) from None
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{where} is not a token for model_gateway: {remedy}")
    return token


def _stored_token(path: Path) -> str:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        with open(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(16))
        try:
            with suppress(FileExistsError):  # another run stored one at the same time
                os.link(new, path)
        finally:
            new.unlink()
    if os.name == "posix" and path.stat().st_mode & 0o077:
        path.chmod(0o600)
    return path.read_text("utf-8", errors="replace").strip()


def gateway_address(agent: AgentConfig, folder: Path, variables: Mapping[str, str]) -> str:
    """Return the address of a gateway with a fixed port as its owner sets it. Raises ConfigError."""
    assert agent.model_gateway is not None
    token = gateway_token(folder, variables)
    # Its value may be a secret of the environment, which is not shown.
    shown = f"${TOKEN_VARIABLE}" if variables.get(TOKEN_VARIABLE) else token
    return f"http://{HOST}:{agent.model_gateway.port}/{shown}"


def lines_to_set(agent: AgentConfig, address: str) -> list[str]:
    """Return the usual variable for each provider, if the owner of a running agent has to set it; else []."""
    told = agent.server or agent.in_process or "model_url" in agent.sent_placeholders
    if told or not agent.urls:
        return []
    variables = model_variables(address)
    return [
        "Restart the agent with the line for its model's API:",
        *(f"{name}={variables[name]}" for name in _USUAL),
    ]


def how_told(agent: AgentConfig) -> str:
    """Return in words how the agent learns the address."""
    is_sent = "model_url" in agent.sent_placeholders
    if agent.server and (not is_sent or agent.server.copies > 1):
        told = "its `server` receives the address{} (OPENAI_BASE_URL and others)"
        if "{{model_url}}" in str(agent.server.command):
            told += "; other users see the token in its command line: move {{{{model_url}}}} to server.env"
        if agent.server.copies > 1:
            return told.format(f", each of its {agent.server.copies} copies its own")
        return told.format("") + f"; conversations that begin alike take turns: {WAY_TO_RUN_ALIKE}"
    if is_sent:
        return "each request carries the address ({{model_url}}), so all conversations run at once"
    return "the agent is already running, so it needs the address from you"


def lines_by_framework(agent: AgentConfig, address: str) -> list[str]:
    """Return what each framework needs."""
    if agent.server:
        return [
            "Its code may set another address: use AGENTEST_MODEL_URL there. `server` sets these variables:",
            *(f"{who}: {', '.join(names)}" for who, names in FRAMEWORKS),
            "AI SDK with Google reads none: write AGENTEST_MODEL_URL/google/v1beta as baseURL",
        ]
    known = model_variables(address)
    return [
        "Restart the agent with the variable of its framework, run doctor again, and send it a message:",
        *(f"{who}: {', '.join(f'{name}={known[name]}' for name in names)}" for who, names in FRAMEWORKS),
        f"AI SDK with Google reads none: write baseURL {address}/google/v1beta into its constructor",
    ]


async def has_called_model(observed: CallObservations, agent: str, limit_s: float) -> bool:
    """Wait until a request to a model arrives at the agent's gateway. Returns False after the time limit."""
    came = anyio.Event()
    observed.on_reached = came.set
    if (agent, "model_gateway") not in observed.reached:
        with anyio.move_on_after(limit_s):
            await came.wait()
    return (agent, "model_gateway") in observed.reached
