"""The address of a model gateway: its token, how an agent learns it, and whether the agent uses it."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

import anyio
from yarl import URL

from agentest.agents.call_source_addresses import model_variables
from agentest.agents.listener import HOST
from agentest.config.agent_types import AgentConfig
from agentest.runner.call_sources import CallObservations
from agentest.support.errors import ConfigError
from agentest.support.http.client import OWN_PORTS

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
_OTHER_CLIENTS = frozenset({"httpx", "requests", "urllib3"})  # litellm, metrics and agents in Python use them


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


class BypassWatch:
    """Finds connections of the agent to the APIs behind the gateway on this machine, if Linux lists them.

    The agent's processes, and those that they start, have the gateway's token in their environment. A closed
    connection has no owner any more. One that nobody else was seen to have counts, too, unless others may
    call the same API: other programs, processes of a run that is not `alone`, or other clients in this one.
    """

    def __init__(self, token: str, urls: Collection[str], *, alone: bool) -> None:
        self._token, self._alone = f"/{token}".encode(), alone
        self._apis = {f"{URL(url).port:04X}": url for url in urls}
        self._is_agents: dict[str, bool] = {}  # inode of a connection → True if it is the agent's
        self._unreadable: set[str] = set()  # inodes of connections of which no readable process was found
        self._shared: set[str] = set()  # APIs that others call, too
        self._known: set[str] = set()  # the other ends of connections that count no more once they are closed

    def found(self) -> set[str]:
        """Return the APIs of connections of the agent that are open, or were closed since the last time."""
        found, closed, are_open = set[str](), set[str](), dict[str, tuple[str, str]]()
        tables = (Path(f"/proc/net/{each}") for each in ("tcp", "tcp6"))
        for line in (line for table in tables if table.exists() for line in table.read_text().splitlines()):
            if not any(f":{port} " in line for port in self._apis):  # as most of many
                continue
            near, far, state, inode = itemgetter(1, 2, 3, 9)(line.split())
            is_closed = inode == "0" and state not in ("01", "03")  # these wait to be accepted
            if is_closed and near[-4:] in self._apis:  # the API's side, if that closed first
                near, far = far, near
            api = self._apis.get(far[-4:])
            if api is None or near[:-4] != far[:-4] or int(near[-4:], 16) in OWN_PORTS:
                continue
            if not is_closed:
                are_open[inode] = near, api
            elif near not in self._known:
                self._known.add(near)
                closed.add(api)
        self._is_agents |= dict.fromkeys(self._unreadable & are_open.keys(), False)  # not closed since
        self._shared |= {api for inode, (_, api) in are_open.items() if self._is_agents.get(inode) is False}
        self._find_owners(are_open.keys() - self._is_agents.keys())
        self._unreadable = are_open.keys() - self._is_agents.keys()
        for inode in are_open.keys() & self._is_agents.keys():  # without those closed in the meantime
            near, api = are_open[inode]
            self._known.add(near)
            found.update([api] if self._is_agents[inode] else [])
        is_alone = self._alone and _OTHER_CLIENTS.isdisjoint(sys.modules)
        return found | (closed - self._shared if is_alone else set())

    def _find_owners(self, inodes: Collection[str]) -> None:
        for link in Path("/proc").glob("[0-9]*/fd/*") if inodes else ():
            with suppress(OSError):
                inode = str(link.readlink()).removeprefix("socket:[").removesuffix("]")
                if inode in inodes and not self._is_agents.get(inode):
                    self._is_agents[inode] = self._is_agent(int(link.parts[2]))

    def _is_agent(self, pid: int) -> bool:
        while pid not in (0, os.getpid()):  # a program may start another without its environment
            if self._token in Path(f"/proc/{pid}/environ").read_bytes():
                return True
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return False
