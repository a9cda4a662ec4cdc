"""The address of a model gateway: its token, how an agent learns it, and whether the agent uses it."""

from __future__ import annotations

import os
import re
import secrets
import socket
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from threading import Thread

import anyio
from yarl import URL

from agentest.agents.call_source_addresses import model_variables
from agentest.agents.listener import HOST
from agentest.config.agent_types import AgentConfig
from agentest.domain.messages import ToolSpec
from agentest.runner.call_sources import CallObservations
from agentest.support.errors import ConfigError, errors_as
from agentest.support.http.address_guard import is_loopback
from agentest.support.http.client import OWN_PORTS

FRAMEWORKS: Sequence[tuple[str, tuple[str, ...]]] = (
    (
        "OpenAI's clients, OpenAI Agents SDK, Mastra, smolagents, CrewAI, Microsoft Agent Framework",
        ("OPENAI_BASE_URL",),
    ),
    ("pydantic-ai", ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL")),
    ("AI SDK, Strands, Agno", ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")),
    ("LlamaIndex", ("OPENAI_API_BASE",)),
    ("LangChain and LangGraph", ("OPENAI_BASE_URL", "ANTHROPIC_API_URL", "GOOGLE_GEMINI_BASE_URL")),
    ("Anthropic's clients, Claude Agent SDK", ("ANTHROPIC_BASE_URL",)),
    ("google-genai, google-adk", ("GOOGLE_GEMINI_BASE_URL",)),
    ("LiteLLM", ("OPENAI_BASE_URL", "ANTHROPIC_API_BASE", "GEMINI_API_BASE")),
    ("Azure", ("AZURE_OPENAI_ENDPOINT",)),
)
"""Frameworks, and the variables from which they read the address of a model, as in docs/model-gateway.md."""
WAY_TO_REACH = (
    "set OPENAI_BASE_URL, ANTHROPIC_BASE_URL or GOOGLE_GEMINI_BASE_URL for it, and no other address in its "
    "code; `agentest doctor` prints the variable that each framework reads"
)
_SIGNATURES = tuple(
    (re.compile(name), re.compile(description, re.DOTALL))
    for name, description in (
        ("final_answer", r"Provides a final answer to the given problem\."),  # smolagents
        (r"final_result(_\w+)?", r"(\S+: )?The final response which ends this conversation"),  # pydantic-ai
        ("set_model_response", r"Set your final response using the required output schema\..*"),  # google-adk
        ("json", r"Respond with a JSON object\."),  # AI SDK with Anthropic
        (  # Strands, under the name of the output's class
            ".+",
            r"IMPORTANT: This StructuredOutputTool should only be invoked as the last and final tool before "
            r"returning the completed result to the caller\..*",
        ),
    )
)
"""Name and description of each framework's output tool. A name alone could be that of a real tool."""
_USUAL = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "AZURE_OPENAI_ENDPOINT")
TOKEN_VARIABLE = "AGENTEST_GATEWAY_TOKEN"
WAY_TO_RUN_ALIKE = "let `server` start copies of the agent (server.copies: 4) to run them at once"
WITHOUT_TOKEN = "its address lacks the gateway's token"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,200}")
_OTHER_CLIENTS = frozenset({"httpx", "requests", "urllib3"})  # litellm, metrics and agents in Python use them
_MAPPED = "0000000000000000FFFF0000"  # how an IPv4 address begins in the list of IPv6
_RESOLVE_S = 2.0
OFTEN_SHARED = ".googleapis.com"  # other services have the same addresses


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
        problem = (
            f"set {TOKEN_VARIABLE} to 16 or more letters and digits, as a token cannot be stored in {path}"
        )
        with errors_as(ConfigError, f"{problem}: ", OSError):
            token = _stored_token(path)
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
    """Return the variables that each framework reads, with values that `lines_to_set` does not have."""
    known, google = model_variables(address), f"{address}/google/v1beta"
    advice = "Restart the agent with the variable of its framework, run doctor again, and send it a message:"
    if agent.server:
        known, google = {}, "AGENTEST_MODEL_URL/google/v1beta"
        advice = (
            "Its code may set another address: use AGENTEST_MODEL_URL there. `server` sets these variables:"
        )
    told = {name: name if name in _USUAL else f"{name}={url}" for name, url in known.items()}
    return [
        advice,
        *(f"{who}: {', '.join(told.get(name, name) for name in names)}" for who, names in FRAMEWORKS),
        f"AI SDK with Google reads none: write baseURL {google} into its constructor",
    ]


async def has_called_model(observed: CallObservations, agent: str, limit_s: float) -> bool:
    """Wait until a request to a model arrives at the agent's gateway. Returns False after the time limit."""
    came = anyio.Event()
    observed.on_reached = came.set
    if (agent, "model_gateway") not in observed.reached:
        with anyio.move_on_after(limit_s):
            await came.wait()
    return (agent, "model_gateway") in observed.reached


def limits_of_watch(agent: AgentConfig, folder: Path, variables: Mapping[str, str]) -> str:
    """Return why calls of the agent past the gateway are not noticed; "" if most are. Raises ConfigError."""
    known = {**variables, **(agent.server.env if agent.server else {})}
    proxy = next(filter(known.get, ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")), None)
    why = f"connections lead to the proxy in {proxy}" if proxy else ""
    if not BypassWatch(f"/{gateway_token(folder, variables)}", (), alone=True).agents_sockets():
        why = "no process here has the gateway's address in its environment, as in a container or with `.env`"
    if not Path("/proc/net/tcp").exists():
        why = "this system does not list connections in /proc/net/tcp"
    return why and f"Calls past the gateway are not noticed: {why}."


class BypassWatch:
    """Finds connections of the agent to APIs of models that do not pass the gateway, if Linux lists them.

    The agent's processes, and those that they start, have the `mark`, a part of the gateway's address, in
    their environment. A closed connection has no owner any more. One to an API on this machine that nobody
    else was seen to have counts, too, unless others may call the same API: other programs, processes of a run
    that is not `alone`, or other clients in this one.
    """

    def __init__(self, mark: str, apis: Iterable[URL], *, alone: bool) -> None:
        self._mark, self._alone = mark, alone
        # Google's comes last. The last one counts if all names lead to one address, as behind some proxies.
        apis = sorted(apis, key=lambda api: str(api).endswith(OFTEN_SHARED))
        self._local = {f"{api.port:04X}": str(api) for api in apis if _is_here(api)}
        self._remote = {str(api): api for api in apis if str(api) not in self._local.values()}
        self._agents: dict[int, bool | None] = {}  # process → True if it is the agent's; None: perhaps later
        self._before: Sequence[Collection[str]] = ((), ())  # the agent's sockets at the last looks
        self._ends: list[tuple[int, str]] = []  # process of the agent → address that it is connected to
        self._strangers: Collection[str] = ()  # sockets of others at APIs on this machine, at the last look
        self._shared: set[str] = set()  # APIs that others call, too
        self._known: set[str] = set()  # the other ends of connections that count no more once they are closed
        self._apis: dict[str, tuple[str, str] | None] = {port: (api, "") for port, api in self._local.items()}
        """Address, or port on this machine → base URL of the API there, and how the address is shown."""

    def found(self) -> list[tuple[str, str]]:
        """Return the owner and the API of each connection that is open, or was closed since the last time."""
        mine, closed = self.agents_sockets(), set[str]()
        # What is new at one look may lead nowhere until the next.
        if self._local or any(before != mine.keys() for before in self._before):
            closed = self._read_connections(mine)
        self._before = self._before[1], mine.keys()
        found = [("a part", api) for api in closed]
        for pid, end in self._ends:
            if there := self._apis[end] if end in self._apis else self._resolved(end):
                at = f", connected to {there[1]}" if there[1] else ""
                found.append((f"process {pid} ({_text_of(pid, 'comm').strip()}{at})", there[0]))
        return found

    def _read_connections(self, mine: dict[str, int]) -> set[str]:
        """Note where the agent's sockets lead to. Returns the APIs here of connections closed since."""
        self._ends, strangers, closed = [], set[str](), set[str]()
        for near, far, state, inode in _connections():
            is_here = near[:-4] == far[:-4]
            if state == "02":  # it is not connected yet, perhaps never, so it counts as new at the next look
                mine.pop(inode, None)
            if inode in mine:
                self._ends.append((mine[inode], far[-4:] if is_here else far))
                self._known.add(near)
                continue
            is_closed = inode == "0" and state not in ("01", "03")  # these wait to be accepted
            if is_closed and near[-4:] in self._local:  # the API's side, if that closed first
                near, far = far, near
            api = self._local.get(far[-4:]) if is_here else None
            if api is None or int(near[-4:], 16) in OWN_PORTS or near in self._known:
                continue
            if is_closed:
                closed.add(api)
            else:
                strangers.add(inode)
                if inode not in self._strangers:  # it may be the agent's newest, or closed since
                    continue
                self._shared.add(api)
            self._known.add(near)
        self._strangers = strangers
        return closed - self._shared if self._alone and _OTHER_CLIENTS.isdisjoint(sys.modules) else set()

    def agents_sockets(self) -> dict[str, int]:
        """Return the sockets of the agent's processes that can be seen, with these."""
        running, before = (int(each.name) for each in Path("/proc").glob("[0-9]*")), self._agents
        self._agents = {
            pid: is_agents if (is_agents := before.get(pid)) is not None else self._is_agent(pid)
            for pid in running
        }
        found: dict[str, int] = {}
        for pid in [pid for pid, is_agents in self._agents.items() if is_agents]:
            with suppress(OSError):  # one that has just ended
                for link in Path(f"/proc/{pid}/fd").glob("*"):
                    with suppress(OSError):
                        kind, _, inode = str(link.readlink()).partition(":")
                        found |= {inode.strip("[]"): pid} if kind == "socket" else {}
        return found

    def _is_agent(self, pid: int) -> bool | None:
        while pid:  # a program may start another without its environment
            if pid == os.getpid():
                return None  # a process that this one has just forked has its environment
            if self._mark in _text_of(pid, "environ"):
                return True
            pid = int((_text_of(pid, "stat").rpartition(")")[2].split() or "00")[1])
        return False

    def _resolved(self, end: str) -> tuple[str, str] | None:
        """Return the API at an address, and how that is shown."""
        self._apis[end] = None
        if f":{end}"[-4:] in {f"{api.port:04X}" for api in self._remote.values()}:
            # Names have many addresses, which change. The agent has just found out this one.
            task = Thread(target=self._resolve, daemon=True)
            task.start()
            task.join(_RESOLVE_S)
        return self._apis[end]

    def _resolve(self) -> None:
        for text, api in self._remote.items():
            with suppress(OSError, UnicodeError):
                for family, *_, (ip, *_) in socket.getaddrinfo(api.host, api.port, type=socket.SOCK_STREAM):
                    words = struct.iter_unpack("=I", socket.inet_pton(family, str(ip)))
                    end = "".join(f"{word:08X}" for (word,) in words)
                    self._apis[f"{end}:{api.port:04X}"] = text, str(ip)


def _is_here(api: URL) -> bool:
    """Return True for an address of this machine, also in its network. A name is not looked up."""
    host = str(api.host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with suppress(OSError), socket.socket(family) as probe:
        socket.inet_pton(family, host)
        probe.bind((host, 0))
        return True
    return is_loopback(str(api))


def _connections() -> Iterator[tuple[str, str, str, str]]:
    """Yield both ends, the state and the socket of each TCP connection of this machine."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            near, far, state, inode = itemgetter(1, 2, 3, 9)(line.split())
            yield near.removeprefix(_MAPPED), far.removeprefix(_MAPPED), state, inode


def _text_of(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_text(errors="replace")
    except OSError:  # it has ended, or belongs to another user
        return ""


def is_output_tool(tool: ToolSpec) -> bool:
    """Return True if a tool's name and description are those of a framework's output tool.

    By it the framework receives the model's final answer: its call is the agent's reply. It runs no code of
    the agent, so it needs no mock.
    """
    known = any(
        name.fullmatch(tool.name) and description.fullmatch(tool.description.strip())
        for name, description in _SIGNATURES
    )
    # pydantic-ai offers functions as output tools, too. pydantic sorts a schema's keys, and forbids other
    # parameters in that of a function. In that of a type, a client may have added this at the end.
    first = next((key for key in tool.parameters if key in ("additionalProperties", "properties")), "")
    return known and first != "additionalProperties"
