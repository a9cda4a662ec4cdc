"""Settings that all agents share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from agentest.config.agents.companion_servers import ADDRESSES, AgentWithServers, check_placeholders
from agentest.config.agents.server import Server
from agentest.config.agents.tools import AgentTool, tools_in
from agentest.config.fields import PORT, address_awaits_port, check_json
from agentest.domain.tool_visibility import ToolVisibility
from agentest.plugin import PLUGINS, Feature, if_command
from agentest.support.errors import errors_as
from agentest.support.templates import Template

PLACEHOLDERS = ("message", "messages", "session_id", "turn_index", "scenario", "date")
"""Placeholders in what Agentest sends to an agent. `agents.placeholders` has the values."""
FAMILIES = ("state",)  # prefixes of placeholders that continue with the user's own key: `{{state.user_id}}`


def types_with(*words: str) -> dict[str, Feature]:
    """Return the agent types that have all of these words (`Plugin.agent_type`)."""
    kinds = PLUGINS.all("agent type").items()
    return {name: kind for name, kind in kinds if {*words} <= {*kind.facts.get("words", "").split()}}


def described(kinds: Mapping[str, Feature]) -> str:
    """Return agent types for a message: `http (an API of its own) or asgi (an …)`."""
    *others, last = [f"{name} ({kind.help})" for name, kind in kinds.items()] or [""]
    return f"{', '.join(others)} or {last}" if others else last


def ways_of_state() -> str:
    """Return how to test an agent with the state of a session that it does not take itself."""
    return (
        f"test it as an agent of type {described(types_with('session-state'))}, which creates the session "
        "with it, or through a handler (type: custom), which finds it in ctx.session.state"
    )


class AnyAgent(AgentWithServers):
    """Base class of the settings of all agents."""

    if TYPE_CHECKING:
        type: str  # each type's own class sets it

    templated: ClassVar[tuple[str, ...]] = ()
    """Keys whose texts may contain placeholders."""

    state_place: ClassVar[str] = ""
    """Where to write a session's state, in words for errors. "": into the keys of `templated`."""
    file_descriptors: ClassVar[int] = 1
    """Most file descriptors that a conversation may use at once. An agent over the network uses one
    connection."""
    shows_own_calls: ClassVar[bool] = False
    """True if the protocol reports calls that the agent makes itself."""
    tools_on_either_side: ClassVar[bool] = False
    """True if the protocol lets either the caller or the agent run a tool."""
    has_own_tools: ClassVar[bool] = True
    """True if the agent may run tools itself."""
    can_run_real_tools: ClassVar[bool] = False
    """True if the agent's own tools can run in place of mocks at `mcp_mock`."""
    declares_tools: ClassVar[bool] = False
    """True if `body` may declare tools as the APIs of models do."""

    name: str = Field(default="agent", min_length=1)
    tool_visibility: ToolVisibility | None = None
    """How the agent's tool calls become visible. None: as usual for its type (`natural_visibility`)."""
    server: Server | None = None
    exclusive: bool = False
    """If true, only one conversation with this agent runs at a time, in the whole run."""
    instructions: str | None = None
    """The agent's instructions, for judges. Never sent to the agent."""
    instructions_file: str | None = Field(default=None, min_length=1)
    """A file with the instructions, relative to the configuration; `config.file` reads it."""

    tools: list[AgentTool] | None = None
    """The agent's tools, for judges. Never sent to the agent. None: unknown."""

    @field_validator("tools", mode="before")
    @classmethod
    def _tools_are_a_list(cls, value: Any) -> Any:
        if value is None or isinstance(value, list | tuple):
            return value
        raise ValueError(f"is {value!r:.80}; write a list of names, or of {{name, description, parameters}}")

    @field_validator("tools")
    @classmethod
    def _each_tool_once(cls, value: list[AgentTool] | None) -> list[AgentTool] | None:
        names = [tool.name for tool in value or ()]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"names the tool {twice!r} twice")
        return value

    @field_validator("instructions")
    @classmethod
    def _instructions_say_something(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("is empty; write the agent's instructions, or leave the key out")
        return value

    @model_validator(mode="after")
    def _instructions_from_one_place(self) -> Self:
        if self.instructions is not None and self.instructions_file is not None:
            raise ValueError("instructions and instructions_file exclude each other; keep one of them")
        return self

    @property
    def sent_instructions(self) -> str:
        """The instructions in the agent's requests, from `body`, or "" if unknown."""
        return ""

    @property
    def sent_tools(self) -> tuple[AgentTool, ...]:
        """The tools that `body` declares in the agent's requests."""
        return tools_in(getattr(self, "body", None)) if self.declares_tools else ()

    @property
    def saved_names(self) -> tuple[str, ...]:
        """Placeholders that these settings save, in addition to PLACEHOLDERS."""
        return ()

    @property
    def unsaved_placeholders(self) -> tuple[str, ...]:
        """Placeholders that have a value before anything is saved."""
        return (*PLACEHOLDERS, *self.address_names)

    @model_validator(mode="after")
    def _placeholders_stand_for_something(self) -> Self:
        known = (*self.unsaved_placeholders, *self.saved_names)
        for key in self.templated:
            check_placeholders(key, getattr(self, key, None), known, FAMILIES)
        for key in ("command", "env") if self.server else ():
            value = getattr(self.server, key)
            texts = (
                value.values() if isinstance(value, dict) else [value] if isinstance(value, str) else value
            )
            # Docker's commands have Go templates, which begin with `{{.`.
            own = [text.replace("{{.", "") for text in texts]
            check_placeholders(f"server.{key}", own, self.address_names)
        return self

    @model_validator(mode="after")
    def _is_where_its_server_is(self) -> Self:
        if self.server:
            self.server.check_own()
        keys_with_port = [key for key, url in self.urls.items() if address_awaits_port(url)]
        server_awaits_port = self.server is not None and self.server.awaits_port
        if keys_with_port and not server_awaits_port:
            missing = (
                "`server.command` and `server.ready` have none" if self.server else "there is no `server`"
            )
            raise ValueError(
                f"`{keys_with_port[0]}` has {PORT}, a free port at which `server` starts the agent, and "
                f"{missing}: write the port, or {PORT} into `server.command` and `server.ready`, too"
            )
        if server_awaits_port and not keys_with_port:
            where = (
                f"`{min(self.urls)}` leads elsewhere"
                if self.urls
                else ("calls to it could not be attributed")
            )
            no_key = f"; an agent of type {self.type} has none, so give its server a fixed port"
            raise ValueError(
                f"`server` starts at {PORT}, a free port, and {where}: write {PORT} in place of the port of "
                f"`endpoint`, too{'' if self.urls else no_key}"
            )
        if self.server and self.server.copies > 1 and not self.model_gateway:
            raise ValueError(
                "`server.copies` needs `model_gateway`, whose addresses identify the copies: write "
                "`model_gateway: true`, or leave `copies` out"
            )
        fixed = next((key for key, server in self.beside.items() if server.port), None)
        if self.per_worker and fixed:
            raise ValueError(
                f"`{fixed}.port` is one port, and `server.per_worker` has each worker open its own "
                f"`{fixed}`: leave `port` out, each agent receives its address"
            )
        return self

    @property
    def per_worker(self) -> bool:
        """True if each worker of a run starts its own agent."""
        return self.server is not None and self.server.per_worker

    def with_request(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> Self:
        """Return the settings with further headers and fields of `body`. Raises ValueError."""
        changed: dict[str, Any] = {}
        for key, more in (("headers", headers), ("body", body)) if headers or body else ():
            before = getattr(self, key, None) or {}
            if more and not (key in type(self).model_fields and isinstance(before, Mapping)):
                raise ValueError(f"{key}: agent {self.name!r} (type: {self.type}) has no `{key}` to add to")
            replaced = {name.lower() if key == "headers" else name for name in more}
            kept = {n: v for n, v in before.items() if (n.lower() if key == "headers" else n) not in replaced}
            changed[key] = {**kept, **more}
        if not changed:
            return self
        given = {name: getattr(self, name) for name in self.model_fields_set}
        try:
            return type(self).model_validate(given | changed)
        except ValidationError as error:
            [problem, *_] = error.errors()
            at = "".join(f"{part}: " for part in problem["loc"][:1])
            raise ValueError(f"{at}{problem['msg'].removeprefix('Value error, ')}") from None

    @property
    def urls(self) -> dict[str, str]:
        """Key → URL of requests. A URL without a host is relative to the first."""
        return {}

    def at_port(self, port: int) -> Self:
        """Return the settings for an agent whose server has started at this port."""
        return self.model_copy(update={"server": self.server and self.server.at_port(port)})

    @property
    def tells_addresses(self) -> bool:
        """True if the agent learns the addresses of its mock servers without placeholders in its settings."""
        return self.server is not None

    @model_validator(mode="after")
    def _finds_its_servers(self) -> Self:
        if self.tells_addresses:
            return self
        fields = [getattr(self, key) for key in type(self).model_fields if key != "server"]
        placeholders = Template(fields).names | self.sent_placeholders
        for name in self.address_names:
            key = ADDRESSES[name]
            if self.beside[key].port is None and name not in placeholders:
                raise ValueError(
                    f"`{key}` without a port is at a free one, which the agent does not know: write "
                    f"`{key}.port` and start the agent with that address, let `server` start it, or write "
                    f"{{{{{name}}}}} into what is sent to it"
                )
        return self

    @property
    def address(self) -> str:
        """The agent's address, for messages. Its name if the type has no address."""
        return self.name

    @property
    def streams(self) -> bool | None:
        """True if replies are streamed. None: this type never streams."""
        return None

    @property
    def in_process(self) -> bool:
        """True if an application in this process answers, whose tools may call our mocks directly."""
        return False

    @property
    def natural_visibility(self) -> ToolVisibility:
        """How tool calls become visible, unless `tool_visibility` overrides it."""
        return ToolVisibility.RETURNED

    @property
    def has_own_process(self) -> bool:
        """True if the agent runs in a process of its own, whose model the gateway can stand for."""
        return bool(self.urls) and not self.in_process

    @property
    def gateway_advice(self) -> str:
        """How to see and mock calls at the model gateway, as an instruction with the line to paste."""
        # An agent that is already running reads no address that is chosen later.
        if self.tells_addresses or self.in_process:
            return "set model_gateway: true"
        return (
            "set model_gateway: {port: 8900}, and start the agent with the gateway's address as "
            "OPENAI_BASE_URL" + if_command("doctor", " (`agentest doctor` then prints it)")
        )

    @property
    def documented_gateway_advice(self) -> str:
        """The same, with the command that prints the documentation."""
        return self.gateway_advice + if_command("docs", " (agentest docs model-gateway)")

    @property
    def ways_to_see(self) -> tuple[str, ...]:
        """Settings of this type that could make calls visible, each in words, for errors."""
        return ()

    @property
    def ways_to_mock(self) -> tuple[str, ...]:
        """Settings of this type that could let mocks answer calls, each in words, for errors."""
        return ()

    @property
    def sent_placeholders(self) -> frozenset[str]:
        """The placeholders in what is sent to the agent."""
        return Template([getattr(self, key, None) for key in self.templated]).names

    @property
    def state_refusal(self) -> str | None:
        """How to pass a session's state to the agent, if that is not possible yet. None: it is possible."""
        if any(name.partition(".")[0] in FAMILIES for name in self.sent_placeholders):
            return None
        keys = " or ".join(f"`{key}`" for key in self.templated)
        place = self.state_place or (keys and f"write {{{{state.KEY}}}} into the agent's {keys}")
        return f"{place}, {ways_of_state()}" if place else ways_of_state()

    @model_validator(mode="after")
    def _hands_calls_to_somebody(self) -> Self:
        """Reject `returned` for agents that do not send calls to us, because their mocks would be ignored."""
        returned = ToolVisibility.RETURNED
        if (
            self.tool_visibility is returned
            and self.natural_visibility is not returned
            and not self.in_process
        ):
            ways = "".join(f"; or {alternative}" for alternative in (*self.ways_to_see, *self.ways_to_mock))
            raise ValueError(
                f"tool_visibility: returned: an agent of type {self.type} with these settings runs its tools "
                "itself and hands no call to the caller; "
                f"write `{self.natural_visibility}` (the default){ways}"
            )
        return self

    @property
    def reports_own_calls(self) -> bool:
        """True if the protocol reports all calls that the agent makes itself."""
        return self.natural_visibility is ToolVisibility.REPORTED

    @property
    def can_report(self) -> bool:
        """True if any source can report calls that the agent makes itself.

        Sources are its protocol, `tool_calls` and its traces. A mock server only sees its own calls, so the
        user has to declare that there are no others.
        """
        return self.reports_own_calls

    @model_validator(mode="after")
    def _stated_calls_can_be_seen(self) -> Self:
        """Check that stated calls can be seen. Otherwise, bans would hold because no call is ever seen."""
        hands_over = self.natural_visibility is ToolVisibility.RETURNED or self.in_process
        can_report = self.can_report or bool(self.beside or self.further_sources)
        nothing_reports = self.tool_visibility is ToolVisibility.REPORTED and not can_report
        nothing_seen = self.tool_visibility is ToolVisibility.PARTIAL and not (can_report or hands_over)
        if nothing_reports or nothing_seen:
            gateway = [self.documented_gateway_advice] if self.has_own_process else []
            ways = [*gateway, *self.ways_to_see, "have it send its traces here (traces: true)"][:2]
            raise ValueError(
                f"tool_visibility: {self.tool_visibility}: nothing reports the tool calls of agent "
                f"{self.name!r} (type: {self.type}), so no call would ever be seen. To see them, "
                f"{' or '.join(ways)}; else leave `tool_visibility` out"
            )
        return self

    @property
    def secrets(self) -> list[str]:
        """Values that must be redacted: credentials of the server and of real tool servers."""
        gateway = (self.model_gateway,) if self.model_gateway else ()
        of_mocked = [secret for server in (*self.mock_servers, *gateway) for secret in server.secrets]
        return [*of_mocked, *(self.server.secrets if self.server else [])]

    def check_can_be_sent(self) -> None:
        """Raise ValueError for a `body` that is not JSON."""
        with errors_as(ValueError, f"the body of {self.name!r} "):
            check_json(getattr(self, "body", None))
