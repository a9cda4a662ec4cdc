"""Settings of a server program that starts before a run and ends after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, field_validator

from agentest.config.fields import (
    PORT,
    Section,
    address_at,
    address_awaits_port,
    example_url,
    has_valid_port,
    no_bool,
    normal_address,
    normal_text,
    text_at,
    text_awaits_port,
)
from agentest.support.redaction import secret_values, url_secrets
from agentest.support.templates import Template

AGENTS_SERVER = "the agent's server"  # default name of an agent's server, for messages
NAMED, IN_A_LIST = "named", "listed"
"""The two forms of `servers`, which pydantic includes in the locations of errors."""


class Server(Section):
    """How to start a server before the first scenario."""

    command: str | list[str]
    """The command. For an agent's own server, it and `env` may contain `{{mcp_url}}`, `{{rest_url}}`,
    `{{model_url}}`, `{{otlp_url}}` and `{port}`; `ready` must contain `{port}`, too."""
    ready: str
    timeout_s: Annotated[float, BeforeValidator(no_bool), Field(gt=0, allow_inf_nan=False)] = 60.0
    reuse: bool = True
    env: dict[str, Annotated[str, AfterValidator(normal_text)]] = Field(default_factory=dict)
    cwd: str | None = None
    per_worker: bool = False
    """If true, each worker starts its own instance at its own port. Only for an agent's own server."""
    copies: Annotated[int, BeforeValidator(no_bool), Field(ge=1, le=100)] = 1
    """Instances of an agent's own server that run at once, each at its own port. Each has one conversation at
    a time and its own address of the model gateway."""
    name: Annotated[str, Field(min_length=1)] | None = None
    """Name in messages and logs. None: the command."""
    watch: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Files, folders and patterns, relative to the configuration, that trigger `--watch`."""

    @field_validator("command")
    @classmethod
    def _not_empty(cls, value: str | list[str]) -> str | list[str]:
        if not value or (isinstance(value, str) and not value.strip()):
            raise ValueError("is empty; write the command that starts the agent")
        return normal_text(value) if isinstance(value, str) else list(map(normal_text, value))

    @field_validator("ready")
    @classmethod
    def _reachable_form(cls, value: str) -> str:
        parts = urlsplit(example_url(value))
        if parts.scheme not in ("http", "https", "tcp") or not parts.hostname:
            raise ValueError("is neither an http(s) URL nor tcp://host:port")
        if not has_valid_port(parts) or (parts.scheme == "tcp" and parts.port is None):
            raise ValueError("needs a port: tcp://host:port")
        return normal_address(value)

    @field_validator("watch", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @property
    def receives_port(self) -> bool:
        """True if `command` or `env` contains `{port}`."""
        command = [self.command] if isinstance(self.command, str) else self.command
        return any(map(text_awaits_port, (*command, *self.env.values())))

    @property
    def awaits_port(self) -> bool:
        """True if the server starts at a free port that is not yet known."""
        return self.receives_port or address_awaits_port(self.ready)

    def at_port(self, port: int) -> Server:
        """Return the server for this port. It never reuses another process at that port."""
        command = self.command
        update = {
            "command": text_at(command, port)
            if isinstance(command, str)
            else [text_at(word, port) for word in command],
            "env": {name: text_at(text, port) for name, text in self.env.items()},
            "ready": address_at(self.ready, port),
            "reuse": False,
        }
        return self.model_copy(update=update)

    def check_own(self) -> None:
        """Raise ValueError if an agent's own server does not receive the port at which the run expects it."""
        problem = None
        if self.copies > 1 and self.per_worker:
            problem = (
                "`server.copies` and `server.per_worker` exclude each other: leave out `copies` to run with "
                "workers, or `per_worker` to run without"
            )
        elif self.copies > 1 and "reuse" in self.model_fields_set and self.reuse:
            problem = (
                "`server.reuse` uses a server that already runs, and `server.copies` starts "
                f"{self.copies}: leave `reuse` out"
            )
        elif (self.copies > 1 or self.per_worker) and not self.awaits_port:
            times = f"`server.copies` starts the agent {self.copies} times"
            each = times if self.copies > 1 else "`server.per_worker` starts the agent once in each worker"
            problem = (
                f"{each}, and all of them would have one port: write {PORT} where the port stands in "
                "`server.command` (or `server.env`), in `server.ready` and in `endpoint`"
            )
        elif self.awaits_port and not self.receives_port:
            problem = (
                f"`server.ready` has {PORT}, a free port, which the server does not know: write {PORT} "
                "into `server.command` or `server.env`, too"
            )
        elif self.receives_port and not address_awaits_port(self.ready):
            problem = (
                f"`server.command` or `server.env` has {PORT}, a free port, and `server.ready` is elsewhere: "
                f"write {PORT} in place of its port, too"
            )
        elif self.awaits_port and self.reuse and "reuse" in self.model_fields_set:
            problem = (
                f"`server.reuse` uses what answers at a known port, and {PORT} is a free one: leave "
                "`reuse` out"
            )
        if problem:
            raise ValueError(problem)

    @property
    def secrets(self) -> list[str]:
        """Values that must be redacted."""
        return [*url_secrets(self.ready), *secret_values(self.env)]


def _reject_single_server(value: Any) -> Any:
    alone = isinstance(value, Server) or (
        isinstance(value, Mapping) and isinstance(value.get("command"), str | list)
    )
    if alone:
        raise ValueError("is one server; write a list of servers (`- command: …`), or a name for each")
    return value


def _as_list(value: Mapping[str, Server] | Sequence[Server]) -> list[Server]:
    if not isinstance(value, Mapping):
        return _distinct(list(value))
    for name, server in value.items():
        if server.name not in (None, name):
            raise ValueError(f"{name!r} has the `name` {server.name!r}, too; leave one of them out")
    return _distinct([server.model_copy(update={"name": name}) for name, server in value.items()])


def _distinct(servers: list[Server]) -> list[Server]:
    placeholders = {name for server in servers for name in Template([server.command, server.env]).names}
    if of_agents := sorted(placeholders & {"mcp_url", "rest_url", "model_url", "otlp_url"}):
        raise ValueError(
            f"{{{{{of_agents[0]}}}}} is known to an agent's own server alone: move the server that needs it "
            "to `agent.server`"
        )
    if any(server.per_worker for server in servers):
        raise ValueError(
            "`per_worker` is for an agent's own server: what stands in `servers` is started once, for all "
            "workers; leave it out, or move the server to `agent.server`"
        )
    if any(server.copies > 1 for server in servers):
        raise ValueError(
            "`copies` is for an agent's own server: leave it out, or move the server to `agent.server`"
        )
    if any(server.awaits_port for server in servers):
        raise ValueError(
            f"{PORT} is known to an agent's own server alone: write the port, or move the server that needs "
            "it to `agent.server`"
        )
    names = [server.name for server in servers if server.name]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two servers are named {twice!r}; give each a name of its own")
    ready = [server.ready for server in servers]
    if twice := next((each for each in ready if ready.count(each) > 1), None):
        raise ValueError(
            f"two servers have the same `ready`, {twice}: once the first answers, the second "
            f"cannot be checked; give each an address of its own"
        )
    return servers


if TYPE_CHECKING:
    Servers = list[Server]
else:
    Servers = Annotated[
        Annotated[dict[str, Server], Tag(NAMED)] | Annotated[list[Server], Tag(IN_A_LIST)],
        Discriminator(lambda value: NAMED if isinstance(value, Mapping) else IN_A_LIST),
        BeforeValidator(_reject_single_server),
        AfterValidator(_as_list),
    ]
    """Servers in the order in which they are started: a list, or a mapping by name."""
