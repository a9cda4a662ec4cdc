"""Link-local and cloud-metadata addresses are refused in every spelling; all others are allowed."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from hypothesis import given
from hypothesis import strategies as st
from wire import completion, http, wire

from agentest.agents.chat_completions import ChatCompletionsClient
from agentest.agents.factory import check_reachable
from agentest.agents.port import AgentReply, TurnContext
from agentest.agents.server_process import ServerCallbacks, running_server
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.config.agents.server import Server
from agentest.domain.messages import UserText
from agentest.support.errors import AgentError, AgentUnreachable, ConfigError, ServerError
from agentest.support.http.address_guard import ALLOW_METADATA, AddressGuard, RefusedAddress
from agentest.support.http.client import open_client

REFUSED = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.0.0",
    "169.254.255.255",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fe80::1",
    "febf::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "0:0:0:0:0:FFFF:A9FE:A9FE",
    "::169.254.169.254",
    "64:ff9b::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "::ffff:100.100.100.200",
]
SPELLINGS = [
    "2852039166",
    "0xa9fea9fe",
    "0XA9FEA9FE",
    "025177524776",
    "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "169.16689662",
    "0xa9.254.0251.254",
    "[fe80::1]",
    "[::ffff:169.254.169.254]",
    "fe80::1%25eth0",
]
ALLOWED = [
    "127.0.0.1",
    "127.1",
    "::1",
    "0.0.0.0",
    "::",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "192.0.0.191",
    "100.64.0.1",
    "169.253.255.255",
    "169.255.0.0",
    "8.8.8.8",
    "fd00::1",
    "fc00::1",
    "fd00:ec2::1",
    "fec0::1",
    "2001:db8::1",
    "::ffff:127.0.0.1",
    "64:ff9b::808:808",
]


@pytest.mark.parametrize("address", REFUSED)
def test_refused_addresses(address: str) -> None:
    """Link-local and metadata addresses are refused, even inside IPv6; the error has a solution."""
    with pytest.raises(RefusedAddress, match=f"link-local or cloud-metadata.*{ALLOW_METADATA}=1"):
        AddressGuard(allow_metadata=False).check("agent.example", [address])
    with pytest.raises(RefusedAddress):
        AddressGuard(allow_metadata=False).check_literal(address)


@pytest.mark.parametrize("host", SPELLINGS)
def test_refused_spellings(host: str) -> None:
    """The decimal, hexadecimal, octal and short spellings of an address are that address."""
    with pytest.raises(RefusedAddress):
        AddressGuard(allow_metadata=False).check_literal(host)


@pytest.mark.parametrize("address", ALLOWED)
def test_allowed_addresses(address: str) -> None:
    """Loopback, private, unique local and public addresses are allowed."""
    AddressGuard(allow_metadata=False).check_literal(address)
    if address != "127.1":
        AddressGuard(allow_metadata=False).check("agent.example", [address])


def test_one_of_several() -> None:
    """A name is refused if any of its addresses is."""
    with pytest.raises(RefusedAddress, match=r"agent.example \(169.254.1.1\)"):
        AddressGuard(allow_metadata=False).check("agent.example", ["10.0.0.1", "169.254.1.1"])


@given(st.ip_addresses(v=4, network="169.254.0.0/16") | st.ip_addresses(v=4), st.sampled_from([0, 1, 2, 3]))
def test_ipv4_inside_ipv6(inner: ipaddress.IPv4Address, form: int) -> None:
    """Every IPv6 form of an IPv4 address is refused exactly when the IPv4 address is."""
    number = int(inner)
    forms = [0xFFFF << 32 | number, 0x64_FF9B << 96 | number, 0x2002 << 112 | number << 80, number]
    outer = ipaddress.IPv6Address(forms[form])
    assert _refuses(str(outer)) == _refuses(str(inner))


@given(st.text(max_size=30))
def test_any_host(host: str) -> None:
    """Any text as a host is refused or allowed, without another error."""
    _refuses_literal(host)


def _refuses(address: str) -> bool:
    try:
        AddressGuard(allow_metadata=False).check("agent.example", [address])
    except RefusedAddress:
        return True
    return False


def _refuses_literal(host: str) -> bool:
    try:
        AddressGuard(allow_metadata=False).check_literal(host)
    except RefusedAddress:
        return True
    return False


def test_the_environment_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only AGENTEST_ALLOW_METADATA_ENDPOINTS=1 allows all addresses."""
    for value, allowed in (("1", True), ("0", False), ("", False), ("true", False)):
        monkeypatch.setenv(ALLOW_METADATA, value)
        assert AddressGuard().allow_metadata is allowed
    monkeypatch.delenv(ALLOW_METADATA)
    assert AddressGuard().allow_metadata is False
    monkeypatch.setenv(ALLOW_METADATA, "1")
    for host in REFUSED + SPELLINGS:
        AddressGuard().check_literal(host)


class Names(AbstractResolver):
    """A resolver that knows some names."""

    def __init__(self, **names: Sequence[str]) -> None:
        self._names = names

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._names[host]
        ]

    async def close(self) -> None:
        """Do nothing."""


async def ask(endpoint: str, resolver: AbstractResolver, allow: bool = False) -> AgentReply:
    async with open_client(AddressGuard(allow_metadata=allow), resolver) as client:
        agent = ChatCompletionsClient(ChatCompletionsAgent(endpoint=endpoint, retries=0), client, 1.0)
        ctx = TurnContext("c-1", "s", 0, lambda name, args: None, session_id="x")
        return await agent.reply([UserText("Hi")], ctx)


@pytest.mark.parametrize(
    "addresses", [["169.254.169.254"], ["127.0.0.1", "169.254.169.254"], ["::ffff:a9fe:a9fe"], ["fe80::1"]]
)
def test_names_that_resolve_to_them(addresses: list[str]) -> None:
    """A name that resolves to a refused address, alone or among others, is not connected to."""
    with pytest.raises(AgentError, match=r"agent \(.*\) is a link-local or cloud-metadata address"):
        anyio.run(ask, "http://agent/", Names(agent=addresses))


def test_names_that_resolve_to_loopback() -> None:
    """A name that resolves to loopback is connected."""

    async def go() -> AgentReply:
        async with wire(http(completion())) as opened:
            return await ask(f"http://agent:{opened.port}/", Names(agent=["127.0.0.1"]))

    assert anyio.run(go).text == "Hello."


def test_redirects_to_names_that_resolve_to_them() -> None:
    """A redirect to a name that resolves to a metadata address is refused."""

    async def go() -> None:
        moved = http(b"", "308 Moved", ["location: http://metadata/latest"])
        async with wire(moved) as opened:
            names = Names(agent=["127.0.0.1"], metadata=["169.254.169.254"])
            await ask(f"http://agent:{opened.port}/", names)

    with pytest.raises(AgentError, match=r"metadata \(169.254.169.254\) is a link-local"):
        anyio.run(go)


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "[::ffff:a9fe:a9fe]",
        "169。254。169。254",
        "[fe80::1%25lo]",
    ],
)
def test_endpoints_that_are_addresses(host: str) -> None:
    """A refused address as the endpoint is refused without using a resolver."""
    with pytest.raises(AgentError, match="is a link-local or cloud-metadata address"):
        anyio.run(ask, f"http://{host}/", Names())


@contextmanager
def listening() -> Iterator[int]:
    """A port on loopback with a listener that sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


async def reach(endpoint: str, resolver: AbstractResolver | None = None) -> None:
    async with open_client(AddressGuard(allow_metadata=False), resolver) as client:
        await check_reachable("bot", ChatCompletionsAgent(endpoint=endpoint, retries=0), client)


def test_an_agent_at_the_other_loopback_address_is_found() -> None:
    """`localhost` may be IPv4 or IPv6; the message names the address at which something listens."""
    with (
        listening() as port,
        pytest.raises(AgentUnreachable, match=rf"A program listens at 127\.0\.0\.1, port {port}: write"),
    ):
        anyio.run(reach, f"http://[::1]:{port}/")


def test_reachability_check() -> None:
    """Before a run, a refused endpoint is a configuration error, and a silent one is unreachable."""
    with pytest.raises(ConfigError, match=r"agent 'bot': endpoint .*link-local or cloud-metadata"):
        anyio.run(reach, "http://0xA9FEA9FE:80/")
    for host in ("127.0.0.1:1", "localhost:1", "agent.invalid", "a" * 70 + ".example"):
        with pytest.raises(AgentUnreachable, match="agent 'bot' cannot be reached"):
            anyio.run(reach, f"http://{host}/")


class Rebinding(Names):
    """A name that resolves to loopback at first, and to a metadata address from then on."""

    def __init__(self) -> None:
        super().__init__(agent=["127.0.0.1"])
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.asked += 1
        self._names = {"agent": ["127.0.0.1" if self.asked == 1 else "169.254.169.254"]}
        return await super().resolve(host, port, family)


def test_the_address_that_was_checked_is_connected_to() -> None:
    """A name is resolved once before a run; a different answer later is not used."""
    names = Rebinding()

    async def go() -> None:
        with listening() as port:
            await reach(f"http://agent:{port}/", names)

    anyio.run(go)
    assert names.asked == 1
    with pytest.raises(ConfigError, match=r"agent \(169.254.169.254\) is a link-local"):
        anyio.run(go)


def test_the_next_address() -> None:
    """If a name's first address is unreachable, the next one is tried."""

    async def go() -> None:
        with listening() as port:
            await reach(f"http://agent:{port}/", Names(agent=["127.0.0.9", "::1", "127.0.0.1"]))

    anyio.run(go)


def test_a_ready_port() -> None:
    """The readiness check of a server's port also uses the checked addresses."""

    async def go(names: Names) -> None:
        with listening() as port:
            config = Server(command="false", ready=f"tcp://agent:{port}")
            async with (
                open_client(AddressGuard(False), names) as client,
                anyio.create_task_group() as tasks,
                running_server(config, Path(), client, tasks, ServerCallbacks(str, notes.append)),
            ):
                pass

    notes: list[str] = []
    anyio.run(go, Names(agent=["127.0.0.1"]))
    assert "was running already" in notes[0]
    with pytest.raises(ExceptionGroup) as caught:
        anyio.run(go, Names(agent=["169.254.169.254"]))
    (error,) = caught.value.exceptions
    assert isinstance(error, ServerError)
    assert "agent (169.254.169.254) is a link-local" in str(error)
