"""Settings of the servers that Agentest runs for an agent: MCP and REST mock servers, and traces."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from agentest.config.fields import CallSourceName, HttpHeaders, Section, Url, check_url, no_bool
from agentest.plugin import if_command
from agentest.support.errors import errors_as
from agentest.support.redaction import header_secrets, url_secrets
from agentest.support.templates import Template, check_names

_HOST_NAME = re.compile(r"\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z_.-]+")
Port = Annotated[int, BeforeValidator(no_bool), Field(ge=1, le=65535)]


ADDRESSES = {
    "mcp_url": "mcp_mock",
    "rest_url": "rest_mock",
    "model_url": "model_gateway",
    "otlp_url": "traces",
}
"""Placeholder → the key of the server with this address."""


def names_of_addresses(keys: Container[str]) -> str:
    """Return how agents read the addresses of mock servers or gateway: `{{mcp_url}} or AGENTEST_MCP_URL`."""
    names = [name for name, key in ADDRESSES.items() if key in keys and key != "traces"]
    return ", ".join(f"{{{{{name}}}}} or AGENTEST_{name.upper()}" for name in names)


def unreached(agent: str, servers: Container[str]) -> str:
    """Return why no call of an agent can have reached the servers with these keys, and what to do."""
    addresses = names_of_addresses(servers)
    keys = [key for key in ADDRESSES.values() if key in servers]
    if "model_gateway" in servers:
        return (
            f"no request to a model ever reached model_gateway of agent {agent!r}, so its real tools "
            f"may have run. Give the client of its model the address ({addresses})"
            + if_command("doctor", ": `agentest doctor` prints the variable that each framework reads")
        )
    return (
        f"no client ever connected to {' and '.join(keys)} of agent {agent!r}, so its real tools "
        f"may have run. Give the agent this address in place of the real server's: {addresses}"
    )


class CompanionServer(Section):
    """A server that Agentest runs on this machine."""

    port: Port | None = None
    """The port. None: a free port, which is passed to the agent."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that requests may use in addition to loopback names, as from an agent in a container."""

    @field_validator("allowed_hosts", "direct_hosts", check_fields=False)
    @classmethod
    def _names_alone(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for host in value:
            if not _HOST_NAME.fullmatch(host):
                raise ValueError(
                    f"{host!r:.80} is not a host; write its name alone, like host.docker.internal, without "
                    "scheme and port"
                )
        return tuple(host.lower() for host in value)

    @model_validator(mode="before")
    @classmethod
    def _true_is_all_by_default(cls, value: Any) -> Any:
        if value is True:
            return {}
        if isinstance(value, Mapping | cls):
            return value
        raise ValueError(f"is {value!r:.80}; write true, or keys of: {', '.join(cls.model_fields)}")


class McpMock(CompanionServer):
    """An MCP server that answers an agent's tool calls with the scenario's mocks."""

    tools: Annotated[str, Field(min_length=1)] | None = None
    """A file with the real server's `tools/list` response, relative to the configuration."""
    upstream: str | list[str] | None = None
    """The real server: its URL, or a command that starts one on standard input and output."""
    upstream_headers: HttpHeaders = Field(default_factory=dict)
    """Further headers for the real server's URL, such as credentials."""

    @field_validator("upstream")
    @classmethod
    def _address_or_command(cls, value: str | list[str] | None) -> str | list[str] | None:
        if value is None:
            return value
        if not value or (isinstance(value, str) and not value.strip()):
            raise ValueError("is empty; write the URL of the real server, or the command that starts it")
        return check_url(value) if isinstance(value, str) and "://" in value.split()[0] else value

    @model_validator(mode="after")
    def _headers_go_somewhere(self) -> Self:
        if self.upstream_headers and not self.upstream_url:
            raise ValueError("`upstream_headers` go with an `upstream` that is a URL")
        return self

    @property
    def upstream_url(self) -> str | None:
        """The real server's URL. None if it is a command or not set."""
        upstream = self.upstream
        return upstream if isinstance(upstream, str) and "://" in upstream.split()[0] else None

    @property
    def secrets(self) -> list[str]:
        """The real server's credentials, which must be redacted."""
        return [*url_secrets(self.upstream_url or ""), *header_secrets(self.upstream_headers)]


class RestMock(CompanionServer):
    """An HTTP server that answers an agent's API requests with the scenario's mocks."""

    openapi: str = Field(min_length=1)
    """The real API's OpenAPI document, relative to the configuration. Each operation is a tool."""
    upstream: Url | None = None
    """The base URL of the real API."""

    @property
    def secrets(self) -> list[str]:
        """The real API's credentials, which must be redacted."""
        return url_secrets(self.upstream or "")


Provider = Literal["openai", "anthropic", "google", "azure", "ollama"]


class Override(Section):
    """What the gateway writes over in the agent's requests to its model. None: as the agent has it."""

    model: Annotated[str, Field(min_length=1)] | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    seed: int | None = None
    reasoning_effort: Annotated[str, Field(min_length=1)] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are written over, by key."""
        return self.model_dump(exclude_none=True)


class ModelGateway(CompanionServer):
    """A server between the agent and its model: it sees tool calls, and answers those of mocked tools."""

    mode: Literal["live", "record", "replay"] | None = None
    """How recordings of the agent's model are used; None: as the command line says."""
    upstream: dict[Provider, str] = Field(default_factory=dict)
    """Provider → the base URL of its API, where it is not the usual one."""
    mocks: bool = True
    """False: calls are only seen, and the agent runs its tools."""
    memory: Literal["auto", "keep", "turn"] = "auto"
    """Whether the model remembers results of mocks in later turns. auto: as it does those of real tools."""
    output_tools: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Tools by which the agent returns its answer, where a framework's name does not show it."""
    direct_hosts: tuple[str, ...] = ()
    """Hosts of APIs that the agent may also call past the gateway, as for embeddings."""
    override: Override = Field(default_factory=Override)
    ignore: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Parts of requests that differ from run to run, which a replay ignores.

    Each is a path such as `messages[0].content`, with `*` for any index or key, or a pattern between slashes.
    """

    @field_validator("upstream")
    @classmethod
    def _http_urls(cls, value: dict[Provider, str]) -> dict[Provider, str]:
        return {provider: check_url(url).rstrip("/") for provider, url in value.items()}

    @field_validator("ignore")
    @classmethod
    def _valid_patterns(cls, value: list[str]) -> list[str]:
        for ignored in value:
            if ignored.startswith("/"):
                with errors_as(ValueError, f"{ignored!r} is not a regular expression: ", re.error):
                    re.compile(ignored[1:-1])
                if len(ignored) < 3 or not ignored.endswith("/"):
                    raise ValueError(f"{ignored!r} has no slash at its end")
            elif not re.fullmatch(r"[^.\[\]]+(\.[^.\[\]]+|\[(\d+|\*)\])*", ignored):
                raise ValueError(
                    f"{ignored!r} is neither a path such as messages[0].content nor a pattern between slashes"
                )
        return value

    @property
    def secrets(self) -> list[str]:
        """Credentials in the addresses of the APIs, which must be redacted."""
        return [secret for url in self.upstream.values() for secret in url_secrets(url)]


class Traces(CompanionServer):
    """A receiver for the agent's own traces."""


class AgentWithServers(Section):
    """The servers that Agentest runs for an agent."""

    mcp_mock: McpMock | None = None
    rest_mock: RestMock | None = None
    model_gateway: ModelGateway | None = None
    traces: Traces | None = None
    further_sources: list[CallSourceName] = Field(default_factory=list, alias="call_sources")
    """Sources of tool calls that plug-ins hand in, in addition to those of the agent's type."""

    @field_validator("mcp_mock", "rest_mock", "model_gateway", "traces", mode="before")
    @classmethod
    def _false_is_none(cls, value: Any) -> Any:
        return None if value is False else value

    @property
    def mock_servers(self) -> tuple[McpMock | RestMock, ...]:
        """The servers whose tools mocks answer."""
        return tuple(server for server in (self.mcp_mock, self.rest_mock) if server)

    @property
    def mocks_reach_tools(self) -> bool:
        """True if mocks answer calls at a server, or in place of the agent at its model gateway."""
        return bool(self.mock_servers) or (self.model_gateway is not None and self.model_gateway.mocks)

    @property
    def only_sees_calls(self) -> bool:
        """True if calls are seen at the model gateway, and the agent runs its tools."""
        return self.model_gateway is not None and not self.model_gateway.mocks

    @property
    def call_servers(self) -> tuple[str, ...]:
        """Keys of the servers at which calls arrive. Traces only report calls."""
        return tuple(key for key in self.beside if key != "traces")

    @property
    def real_tools(self) -> dict[str, str]:
        """Key → URL of the real servers behind mock servers."""
        mcp, rest = self.mcp_mock, self.rest_mock
        known = {"mcp_mock.upstream": mcp and mcp.upstream_url, "rest_mock.upstream": rest and rest.upstream}
        return {key: url for key, url in known.items() if url}

    @property
    def why_silent(self) -> str | None:
        """What may hide the calls of an agent that needed some; None if no server would have seen them."""
        address = f"the address ({names_of_addresses(self.beside)})"
        if self.mock_servers:
            return (
                f"its tools never called the mock servers, so the real ones ran: give all of them {address}"
            )
        gateway = f"it calls another model without the gateway: give the client of that model {address}, too"
        return gateway if self.model_gateway else None

    @model_validator(mode="after")
    def _calls_are_answered_in_one_place(self) -> Self:
        if self.model_gateway and self.mock_servers:
            key = "mcp_mock" if self.mcp_mock else "rest_mock"
            raise ValueError(
                f"`model_gateway` sees all calls of the agent, also those to tools behind `{key}`: leave "
                f"`{key}` out"
            )
        return self

    @property
    def beside(self) -> dict[str, McpMock | RestMock | ModelGateway | Traces]:
        """All servers, by key."""
        known = {
            "mcp_mock": self.mcp_mock,
            "rest_mock": self.rest_mock,
            "model_gateway": self.model_gateway,
            "traces": self.traces,
        }
        return {key: server for key, server in known.items() if server}

    @property
    def call_sources(self) -> tuple[str, ...]:
        """Names of the sources of calls that do not arrive by the agent's protocol."""
        return (*(("servers",) if self.beside else ()), *self.further_sources)

    @property
    def address_names(self) -> tuple[str, ...]:
        """Placeholders for the addresses of servers."""
        return tuple(name for name, key in ADDRESSES.items() if key in self.beside)

    @model_validator(mode="after")
    def _each_at_a_port_of_its_own(self) -> Self:
        keys: dict[int, str] = {}
        for key, server in self.beside.items():
            if server.port and keys.setdefault(server.port, key) != key:
                raise ValueError(
                    f"`{keys[server.port]}` and `{key}` have the same port, {server.port}; give each its own"
                )
        return self


def check_placeholders(
    location: str, template: Any, known: Iterable[str], families: Iterable[str] = ()
) -> None:
    """Raise ValueError for unknown placeholders. For a server's address, name the key that it needs."""
    known = tuple(known)
    for name in sorted(Template(template).names & (ADDRESSES.keys() - set(known))):
        raise ValueError(
            f"`{location}` has the placeholder {{{{{name}}}}}, which needs `{ADDRESSES[name]}`: write "
            f"`{ADDRESSES[name]}: true`"
        )
    with errors_as(ValueError, f"`{location}` "):
        check_names(template, known, families)
